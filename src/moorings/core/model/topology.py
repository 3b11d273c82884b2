"""Topologies: which sets of a pool's devices are valid blocks.

Three kinds cover the known machines (facts: IPU pods, HGX boards, NVL72 racks, wafers): power-of-two buddies in
domains, any subset, and a catalogue listed by an admin or a vendor. They share one interface, so the queue need not
know which one it has. ``placement`` keeps and chooses free devices; a topology is a value without state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.reasons import Reason

DEVICES_MAX = 1 << 20
CATALOGUE_BLOCKS_MAX = 4096

_SPAN = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Block:
    """A set of devices of one pool, by index, ascending. Text form: ``0-15`` or ``0,3,5-7``."""

    members: range | tuple[int, ...]

    @classmethod
    def of(cls, members: range | tuple[int, ...] | list[int]) -> Block:
        """The block with these members; contiguous ones are stored as a range, so equal sets are equal values."""
        if isinstance(members, range) and members.step == 1 and members:
            return cls(members)
        ordered = tuple(sorted(members))
        if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
            return cls(range(ordered[0], ordered[-1] + 1))
        return cls(ordered)

    @classmethod
    def single(cls, index: int) -> Block:
        """The block of one device."""
        return cls(range(index, index + 1))

    @classmethod
    def parse(cls, text: str) -> Block:
        """The block of a text form.

        Raises:
            MooringsError: ``block.invalid``.
        """
        members: list[int] = []
        for part in text.split(","):
            span = _SPAN.fullmatch(part.strip())
            if span is None:
                raise MooringsError(
                    "block.invalid", f"{text[:80]!r} is not a list of devices", hint="write 0-15 or 0,3,5-7"
                )
            first, last = int(span[1]), int(span[2] or span[1])
            if first > last or last >= DEVICES_MAX:
                raise MooringsError("block.invalid", f"{part[:40]!r} is not a range of devices", hint="write LOW-HIGH")
            members.extend(range(first, last + 1))
            if len(members) > DEVICES_MAX:
                break  # some device is there twice; a short text must not fill the memory
        if len(set(members)) != len(members):
            raise MooringsError("block.invalid", f"{text[:80]!r} names a device twice")
        return cls.of(members)

    @property
    def start(self) -> int:
        """Its lowest device."""
        return self.members[0] if self.members else 0

    def overlaps(self, other: Block) -> bool:
        """Whether they have a device in common."""
        mine, theirs = self.members, other.members
        if isinstance(mine, range) and isinstance(theirs, range):
            return mine.start < theirs.stop and theirs.start < mine.stop
        return not set(mine).isdisjoint(theirs)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[int]:
        return iter(self.members)

    def __contains__(self, index: int) -> bool:
        return index in self.members

    def __str__(self) -> str:
        if isinstance(self.members, range):
            return _span(self.members.start, self.members.stop - 1) if self.members else ""
        spans: list[str] = []
        first = last = -2
        for index in self.members:
            if index != last + 1:
                if last >= 0:
                    spans.append(_span(first, last))
                first = index
            last = index
        return ",".join([*spans, _span(first, last)]) if self.members else ""


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


@dataclass(frozen=True)
class PowerOfTwo:
    """Aligned power-of-two blocks in domains of ``domain_size``; larger ones take whole neighbouring domains.

    As in IPU-POD16/64/128/256 and on HGX boards. ``max_block`` is the largest partition; it may be a part of a domain,
    one domain, or several (aligned, neighbouring, whole).
    """

    domains: int
    domain_size: int
    max_block: int

    def __post_init__(self) -> None:
        for name in ("domain_size", "max_block"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise MooringsError("pools.invalid", f"{name} = {value} is not a power of two")
        if self.domains < 1 or self.n_devices > DEVICES_MAX:
            raise MooringsError("pools.invalid", f"domains = {self.domains} is out of range")
        if self.max_block > self.n_devices:
            raise MooringsError(
                "pools.invalid", f"max_block = {self.max_block} is more than the pool's {self.n_devices} devices"
            )

    @property
    def n_devices(self) -> int:
        """Devices in the pool."""
        return self.domains * self.domain_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes a partition may have, ascending."""
        return tuple(1 << level for level in range(self.max_block.bit_length()))

    def ineligible_reason(self, size: int, gcds: int) -> Reason | None:
        """Why no partition of that shape can ever be formed here; None: it can."""
        if size < 1 or size & (size - 1):
            lower = 1 << max(size.bit_length() - 1, 0)
            tries = f"{lower} or {lower * 2}" if lower * 2 <= self.max_block else f"{min(lower, self.max_block)}"
            return Reason("claim.size_not_allowed", f"{size} is not a power of two", hint=f"ask for {tries}")
        if size > self.max_block:
            return Reason(
                "claim.too_large",
                f"{size} devices are more than the largest partition, {self.max_block}",
                hint=f"ask for {self.max_block} or fewer",
            )
        spanned = -(-size // self.domain_size)
        if gcds < spanned:
            return Reason(
                "claim.gcds_too_few",
                f"a partition of {size} spans {spanned} domains and needs at least one GCD in each, but {gcds} asked",
                hint=f"ask for {spanned} GCDs (tasks) or more",
            )
        return None

    def is_block(self, block: Block) -> bool:
        """Whether ``block`` is valid here."""
        size = len(block)
        return (
            isinstance(block.members, range)
            and size in self.sizes
            and block.start >= 0
            and block.start % size == 0
            and block.start + size <= self.n_devices
        )

    def domain_of(self, index: int) -> int:
        """The domain a device is wired into."""
        return index // self.domain_size


@dataclass(frozen=True)
class AnySubset:
    """Any set of devices is a block: accelerators without wiring between them, or with a full crossbar."""

    n_devices: int
    max_block: int

    def __post_init__(self) -> None:
        if self.n_devices == self.max_block == 0:
            return  # of a pool that offers only secondary resources
        if not 1 <= self.n_devices <= DEVICES_MAX:
            raise MooringsError("pools.invalid", f"{self.n_devices} devices are out of range")
        if not 1 <= self.max_block <= self.n_devices:
            raise MooringsError("pools.invalid", f"max_block = {self.max_block} is not between 1 and {self.n_devices}")

    @property
    def sizes(self) -> range:
        """Sizes a partition may have, ascending."""
        return range(1, self.max_block + 1)

    def ineligible_reason(self, size: int, gcds: int) -> Reason | None:
        """Why no partition of that shape can ever be formed here; None: it can."""
        if size < 1:
            return Reason("claim.size_not_allowed", f"a partition of {size} devices is none", hint="ask for 1 or more")
        if size > self.max_block:
            return Reason(
                "claim.too_large",
                f"{size} devices are more than the largest partition, {self.max_block}",
                hint=f"ask for {self.max_block} or fewer",
            )
        return None

    def is_block(self, block: Block) -> bool:
        """Whether ``block`` is valid here."""
        return 1 <= len(block) <= self.max_block and 0 <= block.start and max(block) < self.n_devices

    def domain_of(self, index: int) -> int:
        """The domain a device is wired into: there is only one."""
        return 0


@dataclass(frozen=True)
class Catalogue:
    """The blocks of a list, and no others: a rack of 18 trays, MIG profiles, torus slices.

    ``blocks`` may overlap; overlapping blocks conflict.
    """

    n_devices: int
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.n_devices <= DEVICES_MAX:
            raise MooringsError("pools.invalid", f"{self.n_devices} devices are out of range")
        if not 1 <= len(self.blocks) <= CATALOGUE_BLOCKS_MAX:
            raise MooringsError("pools.invalid", f"{len(self.blocks)} blocks; 1 to {CATALOGUE_BLOCKS_MAX} are allowed")
        if len(set(self.blocks)) != len(self.blocks):
            raise MooringsError("pools.invalid", "the same block is listed twice")
        for block in self.blocks:
            if not len(block) or block.start < 0 or max(block) >= self.n_devices:
                raise MooringsError("pools.invalid", f"block {block} is outside the pool's {self.n_devices} devices")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Sizes a partition may have, ascending."""
        return tuple(sorted({len(block) for block in self.blocks}))

    @property
    def max_block(self) -> int:
        """The largest partition."""
        return self.sizes[-1]

    @cached_property
    def _known(self) -> frozenset[Block]:
        return frozenset(self.blocks)

    def ineligible_reason(self, size: int, gcds: int) -> Reason | None:
        """Why no partition of that shape can ever be formed here; None: it can."""
        if size > self.max_block:
            return Reason(
                "claim.too_large",
                f"{size} devices are more than the largest partition, {self.max_block}",
                hint=f"ask for {self.max_block} or fewer",
            )
        if size not in self.sizes:
            return Reason(
                "claim.size_not_allowed",
                f"no block of {size} devices is listed",
                hint=f"ask for one of {', '.join(map(str, self.sizes))}",
            )
        return None

    def is_block(self, block: Block) -> bool:
        """Whether ``block`` is valid here."""
        return block in self._known

    def domain_of(self, index: int) -> int:
        """The domain a device is wired into: there is only one."""
        return 0


Topology = PowerOfTwo | AnySubset | Catalogue


@dataclass(frozen=True)
class Pool:
    """Devices of one kind behind one driver.

    Attributes:
        name: unique in the pools file.
        kind: kind of accelerator, lower case.
        driver: which driver controls it (``simulated``, ``vipu``).
        topology: which blocks are valid.
        resources: secondary resources it offers, in base units.
    """

    name: PoolName
    kind: str
    driver: str
    topology: Topology
    resources: tuple[tuple[str, int], ...] = ()
