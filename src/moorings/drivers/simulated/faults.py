"""Faults of simulated hardware: what fails, how often, on which partitions; switchable at run time.

Each active fault decides by itself whether it strikes, from the pool's seed, its own words and its number of chances:
same seed, same calls, same failures, whatever other faults are active. Refused: one shared ``random.Random``, with
which a new fault would change all the others, and a restarted process would repeat the same chances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2b

from moorings.core.model.driver_results import ResultCode
from moorings.core.model.topology import Block
from moorings.drivers.simulated.settings import RestartState

AGENT_DEVICES = 4  # an IPU-Machine: four IPUs behind one V-IPU agent (facts: vipu section 2)


class VendorCall(StrEnum):
    """A call to the vendor's controller."""

    CREATE = "create"
    RESET = "reset"
    REMOVE = "remove"
    LIST = "list"
    BINDING = "binding"


ORDERS = frozenset({VendorCall.CREATE, VendorCall.RESET, VendorCall.REMOVE})


class FaultKind(StrEnum):
    """A kind of fault."""

    TIMEOUT_BEFORE = "timeout_before"  # the request is not carried out, and gets no answer
    TIMEOUT_AFTER_SUCCESS = "timeout_after_success"  # the request is carried out, and gets no answer
    ERROR_ON_RESULT = "error_on_result"  # the request is carried out, and the answer is a gateway's 502
    REJECT = "reject"  # the request is refused
    NAME_TOO_LONG = "name_too_long"  # names over ``chars`` are refused, whatever the capability promises
    AGENT_DOWN = "agent_down"  # IPU-Machines are unreachable for as long as the fault is in force
    SLOW = "slow"  # creation, reset or removal takes ``factor`` times as long
    HANG = "hang"  # the answer arrives ``seconds`` after the state it reports
    LYING_UNKNOWN = "lying_unknown"  # an unknown state is shown
    LISTING_FAILS = "listing_fails"
    LISTING_EMPTY = "listing_empty"  # a listing is empty although partitions exist
    LISTING_PARTIAL = "listing_partial"  # a partition is missing in a listing
    BREAKS_WHILE_PROVISIONING = "breaks_while_provisioning"  # a new partition never becomes ready
    BREAKS_WHILE_ACTIVE = "breaks_while_active"  # a partition breaks ``seconds`` after it became ready
    VANISHES = "vanishes"  # a partition disappears ``seconds`` after it became ready
    REMOVAL_FAILS = "removal_fails"  # the partition stays, broken
    RESET_FAILS = "reset_fails"  # the partition stays, broken
    RESTART = "restart"  # the vendor's controller is down for ``seconds``, and may come back without its state
    STRAY = "stray"  # a partition is made by hand; it disappears after ``seconds``, unless that is zero


_ONCE = frozenset({FaultKind.RESTART, FaultKind.STRAY})  # they would fill the pool, or block it forever


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: what, how often, and on which partitions.

    Attributes:
        kind: what fails.
        calls: the affected calls, for kinds that affect calls.
        names: patterns of partition names, as in ``slurm-*``; empty: every name. For a stray: its name.
        devices: only partitions with one of these; None: any. For a stray: its devices.
        probability: that it strikes at each chance, 0 to 1. Fates (``breaks_*``, ``vanishes``) are drawn once
        for each partition, an agent's being down once for each IPU-Machine.
        times: how often it strikes at most; None: no limit, except for ``restart`` and ``stray``, which strike once.
        seconds: see the kind.
        factor: of ``slow``.
        chars: longest name, of ``name_too_long``.
        raw: the shown state, of ``lying_unknown``.
        state: what ``restart`` does to the controller's state; None: as in the pool's settings.
        answer: the answer to requests that touch its devices, of ``agent_down``.
    """

    kind: FaultKind
    calls: frozenset[VendorCall] = ORDERS
    names: tuple[str, ...] = ()
    devices: Block | None = None
    probability: float = 1.0
    times: int | None = None
    seconds: float = 0.0
    factor: float = 10.0
    chars: int = 20
    raw: str = "PS_???"
    state: RestartState | None = None
    answer: ResultCode = ResultCode.BROKEN

    def __post_init__(self) -> None:
        if self.times is None and self.kind in _ONCE:
            object.__setattr__(self, "times", 1)

    def matches(self, call: VendorCall | None, name: str, block: Block | None) -> bool:
        """Whether it applies to that call (None: no call) for a partition of that name on that block."""
        if self.kind is FaultKind.STRAY:
            return True  # its names and devices are those of the new partition
        if self.kind is FaultKind.NAME_TOO_LONG and len(name) <= self.chars:
            return False
        if call is not None and call not in self.calls:
            return False
        if self.names and not any(fnmatchcase(name, pattern) for pattern in self.names):
            return False
        return self.devices is None or (block is not None and self.devices.overlaps(block))

    def describe(self) -> str:
        """Return the fault in one line, without default values: equal faults have equal words."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(f"{field.name}={','.join(sorted(value)) if isinstance(value, frozenset) else value}")
        return " ".join(parts)


@dataclass(slots=True)
class _ActiveFault:
    fault: Fault
    key: str  # its words, numbered for equal faults: the key of its chance and its count
    injected: int
    is_persistent: bool  # whether its strikes must outlive the process
    evaluated: int = 0

    @property
    def is_exhausted(self) -> bool:
        return self.fault.times is not None and self.injected >= self.fault.times


class VendorFaults:
    """The active faults: those added in Python, and those of a faults file.

    Args:
        seed: the seed of all chances.
        opening: how often the machine was opened: a new process gets new chances, the same ones in each repetition.
        counted: called with the key of a counted fault of the file at each strike, to save it.

    Attributes:
        injected_counts: how often each kind has struck.
    """

    def __init__(self, seed: int, opening: int = 1, counted: Callable[[str], None] = lambda _: None) -> None:
        self.injected_counts: Counter[FaultKind] = Counter()
        self._seed = seed
        self._counted = counted
        self._opening = opening
        self._given: list[_ActiveFault] = []
        self._of_file: list[_ActiveFault] = []
        self._by_kind: dict[FaultKind, list[_ActiveFault]] = {}
        self._given_before: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def __contains__(self, kind: FaultKind) -> bool:
        return kind in self._by_kind

    def add(self, *faults: Fault) -> None:
        """Activate faults, each with all its ``times`` left."""
        for fault in faults:
            words = fault.describe()
            nth = self._given_before[words] = self._given_before.get(words, 0) + 1
            self._given.append(_ActiveFault(fault, f"given {words} #{nth}", injected=0, is_persistent=False))
        self._index()

    def remove(self, fault: Fault) -> None:
        """Remove every fault equal to this one that was added here; none is not an error."""
        self._given = [one for one in self._given if one.fault != fault]
        self._index()

    def clear(self) -> None:
        """Remove every fault that was added here; those of the file stay."""
        self._given.clear()
        self._index()

    def replace_file_faults(self, faults: tuple[Fault, ...], struck: Mapping[str, int]) -> tuple[str, ...]:
        """Replace the faults of the file; return their keys.

        Args:
            faults: the file's current faults.
            struck: how often each has struck, by key: an unchanged fault continues its count.
        """
        asked = {one.key: one.evaluated for one in self._of_file}
        repeats: dict[str, int] = {}
        self._of_file = []
        for fault in faults:
            words = fault.describe()
            nth = repeats[words] = repeats.get(words, 0) + 1
            key = f"{words} #{nth}"
            counts = fault.times is not None
            self._of_file.append(_ActiveFault(fault, key, struck.get(key, 0), counts, asked.get(key, 0)))
        self._index()
        return tuple(one.key for one in self._of_file)

    def inject(
        self, kind: FaultKind, call: VendorCall | None = None, name: str = "", block: Block | None = None
    ) -> Fault | None:
        """Return the fault of that kind that strikes this call now, or None."""
        for one in self._by_kind.get(kind, ()):
            if one.is_exhausted or not one.fault.matches(call, name, block):
                continue
            one.evaluated += 1
            if self._draws(one, f"{self._opening}/{one.evaluated}"):
                self._count(one)
                return one.fault
        return None

    def inject_fate(self, kind: FaultKind, name: str, block: Block, serial: int) -> Fault | None:
        """Return the fault of that kind that is this partition's fate, or None; drawn once for each serial number."""
        for one in self._by_kind.get(kind, ()):
            if not one.is_exhausted and one.fault.matches(None, name, block) and self._draws(one, f"fate/{serial}"):
                self._count(one)
                return one.fault
        return None

    def agent_down(self, block: Block) -> Fault | None:
        """Return the fault that has stopped an IPU-Machine of ``block``, or None."""
        for one in self._by_kind.get(FaultKind.AGENT_DOWN, ()):
            if any(self._is_down(one, agent) for agent in dict.fromkeys(index // AGENT_DEVICES for index in block)):
                self.injected_counts[one.fault.kind] += 1
                return one.fault
        return None

    def random_fraction(self, *what: object) -> float:
        """Return a number in [0, 1) that is always the same for the same seed and the same words."""
        words = "/".join(map(str, (self._seed, *what)))
        return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big") / 2**64

    def _is_down(self, one: _ActiveFault, agent: int) -> bool:
        devices = one.fault.devices
        machine = Block(range(agent * AGENT_DEVICES, (agent + 1) * AGENT_DEVICES))
        return (devices is None or devices.overlaps(machine)) and self._draws(one, f"agent/{agent}")

    def _draws(self, one: _ActiveFault, moment: str) -> bool:
        probability = one.fault.probability
        return probability >= 1 or self.random_fraction(one.key, moment) < probability

    def _count(self, one: _ActiveFault) -> None:
        one.injected += 1
        self.injected_counts[one.fault.kind] += 1
        if one.is_persistent:
            self._counted(one.key)

    def _index(self) -> None:
        self._by_kind = {}
        for one in (*self._given, *self._of_file):
            self._by_kind.setdefault(one.fault.kind, []).append(one)
