"""What an admin may choose about the queue: the order, what is lent and taken back, and when jobs are moved.

In a file (``policy.toml``), of which every line may be missing; these are the defaults::

    reserve = true           # keep a block for the first claim that must wait
    backfill = true          # let claims with a time limit use what is kept, if they end before it is needed
    making = "30s"           # so much sooner, for a partition takes time to make: up to 1 hour
    fair_share = true        # among equal priorities, serve first the project that used least for its weight
    half_life = "7d"         # after which use counts half: 1 minute to 3660 days
    min_run = "5m"           # so long a borrower runs before it is asked to yield: up to 7 days
    yield = "2m"             # so long it has to save its state and stop: 1 second to 1 day
    preempt = true           # within a guarantee, take the place of the project's own claims of lower priority
    defragment = "off"       # "off", "suggest" (say what would be moved) or "on"
    move = "2m"              # what a move costs the claim that is moved: up to 1 day
    moves_per_hour = 60      # at most so many claims are moved in an hour
    patience = "7d"          # so long it lets others pass where nobody says when devices come free: up to 3660 days
    user_priority_max = 0    # the highest priority that users may ask for, but where a project says otherwise
    agent_priority_max = 1000000    # the same of the agents of other schedulers, which have limits of their own
    waiting_max = 10000      # so many claims, and so many runs, a user has waiting at most; 0: any number
    waiting_bytes_max = "64M"    # so large the jobs of these are, together, at most; 0: any size
    ageing = "7d"            # who has waited so long is passed by no higher priority: 1 minute to 3660 days, or "off"

Lengths of time are texts (``30s``, ``5m``, ``2h``, ``1d``, ``1:30:00``) or numbers of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from moorings.core.claims import PRIORITY_MAX
from moorings.core.errors import MooringsError
from moorings.core.projects import LIMIT_BYTES_MAX, LIMIT_MAX
from moorings.core.quantities import parse_bytes, parse_duration_s
from moorings.core.records import OMIT_IF_DEFAULT
from moorings.core.tables import TomlTable

DAY_S: Final = 86_400.0
HALF_LIFE_S_MIN, HALF_LIFE_S_MAX = 60.0, 3660 * DAY_S
MAKING_S_MAX: Final = 3600.0
MIN_RUN_S_MAX: Final = 7 * DAY_S
YIELD_S_MIN, YIELD_S_MAX = 1.0, DAY_S
MOVE_S_MAX: Final = DAY_S
MOVES_PER_HOUR_MAX: Final = 100_000
AGEING_S: Final = 7 * DAY_S
AGEING_S_MIN, AGEING_S_MAX = 60.0, 3660 * DAY_S
AGEING_OFF: Final = "off"
PATIENCE_S: Final = 7 * DAY_S
PATIENCE_S_MAX: Final = 3660 * DAY_S


class DefragmentMode(StrEnum):
    """What to do for a claim for which enough devices are free, but no block."""

    OFF = "off"  # nothing: it waits until a block empties by itself
    SUGGEST = "suggest"  # work out which claims would have to move, and tell it; move none
    ON = "on"  # move them, if that costs less than waiting


@dataclass(frozen=True, slots=True)
class Policy:
    """What an admin may choose.

    Attributes:
        reserve: keep a block for the first claim that must wait. Off, small claims may starve a large one.
        backfill: let claims with a time limit use what is kept, if they end before it is needed.
        making_s: so long, at most, hardware takes to make a partition: who uses what is kept must end sooner by that,
            for its time limit counts from when its partition is ready.
        fair_share: among equal priorities, serve first the project that used least for its weight.
        half_life_s: after which use counts half.
        min_run_s: so long a borrower runs, at least, before it is asked to yield; 0: no time.
        yield_s: so long the holder of a claim has, from when it is asked, to save its state and stop.
        preempt: claims within a guarantee may take the place of others of their own project with lower priority.
        defragment: whether claims are moved to make room.
        move_s: what a move costs the claim that is moved, in seconds, beside the work since its last checkpoint.
        moves_per_hour: at most so many claims are moved in an hour.
        patience_s: where no end is known, so long a claim waits until others are moved for it ahead of those behind it,
            and a block is kept empty for it; 0: it waits for nothing, and so it was before there was patience.
        user_priority_max: the highest priority that users may ask for, but where their project says otherwise.
        agent_priority_max: the same of agents of other schedulers.
        waiting_max: so many claims, and so many runs, one user has waiting at most; 0: any number.
        waiting_bytes_max: so many bytes the jobs of these runs have together, at most; 0: any number.
        ageing_s: who has waited so long counts as of the highest priority that waits for its kind; None: nobody does,
            and so it was before there was ageing.
    """

    reserve: bool = True
    backfill: bool = field(default=True, metadata=OMIT_IF_DEFAULT)
    making_s: float = field(default=30.0, metadata=OMIT_IF_DEFAULT)
    fair_share: bool = field(default=True, metadata=OMIT_IF_DEFAULT)
    half_life_s: float = field(default=7 * DAY_S, metadata=OMIT_IF_DEFAULT)
    min_run_s: float = field(default=300.0, metadata=OMIT_IF_DEFAULT)
    yield_s: float = field(default=120.0, metadata=OMIT_IF_DEFAULT)
    preempt: bool = field(default=True, metadata=OMIT_IF_DEFAULT)
    defragment: DefragmentMode = field(default=DefragmentMode.OFF, metadata=OMIT_IF_DEFAULT)
    move_s: float = field(default=120.0, metadata=OMIT_IF_DEFAULT)
    moves_per_hour: int = field(default=60, metadata=OMIT_IF_DEFAULT)
    patience_s: float = field(default=0.0, metadata=OMIT_IF_DEFAULT)
    user_priority_max: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    agent_priority_max: int = field(default=PRIORITY_MAX, metadata=OMIT_IF_DEFAULT)
    waiting_max: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    waiting_bytes_max: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    ageing_s: float | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        # Equal values must be the same bytes in a log: 60 and 60.0 are not.
        for name in ("making_s", "half_life_s", "min_run_s", "yield_s", "move_s", "patience_s", "ageing_s"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))

    @property
    def bound_s(self) -> float:
        """Within which a guaranteed claim has its devices, but for the time the hardware takes (law 6)."""
        return self.min_run_s + self.yield_s


DEFAULT_POLICY: Final = Policy(patience_s=PATIENCE_S, waiting_max=10_000, waiting_bytes_max=64 << 20, ageing_s=AGEING_S)
"""What holds where nobody chose. Not the fields' defaults: these are what logs meant before a field came."""


def parse_policy(text: str, *, source: str = "policy.toml") -> Policy:
    """The policy a policy file says; what it does not say is the default.

    Raises:
        MooringsError: ``policy.invalid``; the message names file, line and key.
    """
    table = TomlTable.parse(text, source=source, code="policy.invalid")
    usual = DEFAULT_POLICY
    policy = Policy(
        reserve=table.boolean("reserve", usual.reserve),
        backfill=table.boolean("backfill", usual.backfill),
        making_s=_duration_s(table, "making", usual.making_s, 0.0, MAKING_S_MAX),
        fair_share=table.boolean("fair_share", usual.fair_share),
        half_life_s=_duration_s(table, "half_life", usual.half_life_s, HALF_LIFE_S_MIN, HALF_LIFE_S_MAX),
        min_run_s=_duration_s(table, "min_run", usual.min_run_s, 0.0, MIN_RUN_S_MAX),
        yield_s=_duration_s(table, "yield", usual.yield_s, YIELD_S_MIN, YIELD_S_MAX),
        preempt=table.boolean("preempt", usual.preempt),
        defragment=_defragment(table, usual.defragment),
        move_s=_duration_s(table, "move", usual.move_s, 0.0, MOVE_S_MAX),
        moves_per_hour=table.integer("moves_per_hour", usual.moves_per_hour),
        patience_s=_duration_s(table, "patience", usual.patience_s, 0.0, PATIENCE_S_MAX),
        user_priority_max=table.integer("user_priority_max", usual.user_priority_max),
        agent_priority_max=table.integer("agent_priority_max", usual.agent_priority_max),
        waiting_max=table.integer("waiting_max", usual.waiting_max),
        waiting_bytes_max=_size_bytes(table, "waiting_bytes_max", usual.waiting_bytes_max),
        ageing_s=_ageing_s(table, usual.ageing_s),
    )
    table.finish()
    if not 0 <= policy.moves_per_hour <= MOVES_PER_HOUR_MAX:
        table.complain("moves_per_hour", "moves_per_hour is out of range", hint=f"use 0 to {MOVES_PER_HOUR_MAX}")
    for key in ("user_priority_max", "agent_priority_max"):
        if abs(getattr(policy, key)) > PRIORITY_MAX:
            table.complain(key, f"{key} is out of range", hint=f"use {-PRIORITY_MAX} to {PRIORITY_MAX}")
    for key, most in (("waiting_max", LIMIT_MAX), ("waiting_bytes_max", LIMIT_BYTES_MAX)):
        if not 0 <= getattr(policy, key) <= most:
            table.complain(key, f"{key} is out of range", hint=f"use 0 to {most}; 0 is no limit")
    return policy


def _size_bytes(table: TomlTable, key: str, usual: int) -> int:
    value = table.either(key) if table.has(key) else usual
    if isinstance(value, str):
        try:
            value = parse_bytes(value)
        except MooringsError as error:
            table.complain(key, error.detail, error.hint)
    if not isinstance(value, int) or isinstance(value, bool):
        table.complain(key, f"{key} must be a size", hint='write "64M" or a number of bytes')
    return value


def _ageing_s(table: TomlTable, usual_s: float | None) -> float | None:
    if not table.has("ageing"):
        return usual_s
    if table.either("ageing") == AGEING_OFF:
        return None
    return _duration_s(table, "ageing", AGEING_S, AGEING_S_MIN, AGEING_S_MAX)


def _duration_s(table: TomlTable, key: str, usual_s: float, least_s: float, most_s: float) -> float:
    if not table.has(key):
        return usual_s
    value = table.either(key)
    if isinstance(value, str):
        try:
            value = parse_duration_s(value, bare_s=1.0)
        except MooringsError as error:
            table.complain(key, error.detail, error.hint)
    if not isinstance(value, int | float) or isinstance(value, bool):
        table.complain(key, f"{key} must be a length of time", hint='write "30s", "5m" or a number of seconds')
    if not least_s <= value <= most_s:
        table.complain(
            key, f"{key} is out of range", hint=f"use {_duration_label(least_s)} to {_duration_label(most_s)}"
        )
    return float(value)


def _duration_label(seconds: float) -> str:
    return f"{seconds / DAY_S:g}d" if seconds >= DAY_S else f"{seconds:g}s"


def _defragment(table: TomlTable, usual: DefragmentMode) -> DefragmentMode:
    text = table.text("defragment", usual.value)
    if text not in list(DefragmentMode):
        table.complain(
            "defragment", f"defragment {text[:40]!r} is not known", hint=f"use one of {', '.join(DefragmentMode)}"
        )
    return DefragmentMode(text)
