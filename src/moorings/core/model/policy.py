"""What an admin may configure about the queue: the order, lending and reclaiming, and when jobs are moved.

In a file (``policy.toml``), in which every line is optional; these are the defaults::

    reserve = true           # reserve a block for the first claim that must wait
    backfill = true          # let claims use a reserved block if their time limit ends before it is needed
    making = "30s"           # they must end so much earlier, because a partition takes time to create: up to 1 hour
    fair_share = true        # among equal priorities, serve first the project that used least for its weight
    half_life = "7d"         # after which usage counts half: 1 minute to 3660 days
    min_run = "5m"           # a borrower runs at least so long before it is asked to yield: up to 7 days
    yield = "2m"             # time to save a checkpoint and stop, when asked to yield: 1 second to 1 day
    preempt = true           # within a guarantee, preempt the project's own claims of lower priority
    defragment = "off"       # "off", "suggest" (say what would be moved) or "on"
    move = "2m"              # what a move costs the moved claim: up to 1 day
    moves_per_hour = 60      # move at most so many claims in an hour
    patience = "7d"          # a claim lets others pass so long if no release time is known: up to 3660 days
    user_priority_max = 0    # the highest priority for users, unless a project sets its own
    agent_priority_max = 1000000    # the same for agents of other schedulers, which have limits of their own
    waiting_max = 10000      # pending claims of one user, and pending runs, at most; 0: unlimited
    waiting_bytes_max = "64M"    # total size of the jobs of these runs, at most; 0: unlimited
    ageing = "7d"            # after so long no higher priority passes a claim: 1 minute to 3660 days, or "off"

Lengths of time are texts (``30s``, ``5m``, ``2h``, ``1d``, ``1:30:00``) or numbers of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import LIMIT_BYTES_MAX, LIMIT_MAX
from moorings.core.model.quantities import parse_bytes, parse_duration_s
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.timestamps import DAY_S
from moorings.core.model.toml_table import TomlTable

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
    """What to do for a claim if enough devices are free, but no block of them."""

    OFF = "off"  # nothing: it waits until a block empties by itself
    SUGGEST = "suggest"  # find out which claims would have to move, and report it; move none
    ON = "on"  # move them, if that costs less than waiting


@dataclass(frozen=True, slots=True)
class Policy:
    """What an admin may configure.

    Attributes:
        reserve: reserve a block for the first claim that must wait. Without it, small claims may starve a large one.
        backfill: let claims use a reserved block if their time limit ends before it is needed.
        making_s: hardware needs at most so long to create a partition. A backfilled claim must end so much earlier,
            because its time limit counts from when its partition is ready.
        fair_share: among equal priorities, serve first the project that used least for its weight.
        half_life_s: after which usage counts half.
        min_run_s: a borrower runs at least so long before it is asked to yield; 0: no time.
        yield_s: time for a job to save a checkpoint and stop, when asked to yield.
        preempt: claims within a guarantee may preempt claims of their own project with lower priority.
        defragment: whether claims are moved to free a block.
        move_s: what a move costs the moved claim, in seconds, beside the work since its last checkpoint.
        moves_per_hour: at most so many claims are moved in an hour.
        patience_s: if no release time is known, a claim waits so long until others are moved for it before later claims
            are served, and a block is kept empty for it; 0: no wait, as in logs of before.
        user_priority_max: the highest priority for users, unless their project sets its own.
        agent_priority_max: the same for agents of other schedulers.
        waiting_max: pending claims of one user, and pending runs, at most; 0: unlimited.
        waiting_bytes_max: total size in bytes of the jobs of these runs, at most; 0: unlimited.
        ageing_s: a claim that has waited so long counts with the highest priority pending for its kind; None: off, as
            in logs of before.
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
    def guarantee_bound_s(self) -> float:
        """Within this time a guaranteed claim gets its devices, plus the time the hardware takes (law 6)."""
        return self.min_run_s + self.yield_s


DEFAULT_POLICY: Final = Policy(patience_s=PATIENCE_S, waiting_max=10_000, waiting_bytes_max=64 << 20, ageing_s=AGEING_S)
"""The policy without a policy file. The fields' own defaults differ: they keep the meaning of older logs."""


def parse_policy(text: str, *, source: str = "policy.toml") -> Policy:
    """The policy in a policy file; missing keys take the default.

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
    table.reject_unknown_keys()
    if not 0 <= policy.moves_per_hour <= MOVES_PER_HOUR_MAX:
        table.fail_at("moves_per_hour", "moves_per_hour is out of range", hint=f"use 0 to {MOVES_PER_HOUR_MAX}")
    for key in ("user_priority_max", "agent_priority_max"):
        if abs(getattr(policy, key)) > PRIORITY_MAX:
            table.fail_at(key, f"{key} is out of range", hint=f"use {-PRIORITY_MAX} to {PRIORITY_MAX}")
    for key, most in (("waiting_max", LIMIT_MAX), ("waiting_bytes_max", LIMIT_BYTES_MAX)):
        if not 0 <= getattr(policy, key) <= most:
            table.fail_at(key, f"{key} is out of range", hint=f"use 0 to {most}; 0 is no limit")
    return policy


def _size_bytes(table: TomlTable, key: str, usual: int) -> int:
    value = table.raw_value(key) if table.has(key) else usual
    if isinstance(value, str):
        try:
            value = parse_bytes(value)
        except MooringsError as error:
            table.fail_at(key, error.detail, error.hint)
    if not isinstance(value, int) or isinstance(value, bool):
        table.fail_at(key, f"{key} must be a size", hint='write "64M" or a number of bytes')
    return value


def _ageing_s(table: TomlTable, usual_s: float | None) -> float | None:
    if not table.has("ageing"):
        return usual_s
    if table.raw_value("ageing") == AGEING_OFF:
        return None
    return _duration_s(table, "ageing", AGEING_S, AGEING_S_MIN, AGEING_S_MAX)


def _duration_s(table: TomlTable, key: str, usual_s: float, least_s: float, most_s: float) -> float:
    if not table.has(key):
        return usual_s
    value = table.raw_value(key)
    if isinstance(value, str):
        try:
            value = parse_duration_s(value, bare_s=1.0)
        except MooringsError as error:
            table.fail_at(key, error.detail, error.hint)
    if not isinstance(value, int | float) or isinstance(value, bool):
        table.fail_at(key, f"{key} must be a length of time", hint='write "30s", "5m" or a number of seconds')
    if not least_s <= value <= most_s:
        table.fail_at(
            key, f"{key} is out of range", hint=f"use {_duration_label(least_s)} to {_duration_label(most_s)}"
        )
    return float(value)


def _duration_label(seconds: float) -> str:
    return f"{seconds / DAY_S:g}d" if seconds >= DAY_S else f"{seconds:g}s"


def _defragment(table: TomlTable, usual: DefragmentMode) -> DefragmentMode:
    text = table.text("defragment", usual.value)
    if text not in list(DefragmentMode):
        table.fail_at(
            "defragment", f"defragment {text[:40]!r} is not known", hint=f"use one of {', '.join(DefragmentMode)}"
        )
    return DefragmentMode(text)
