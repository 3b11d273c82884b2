"""What an admin may choose about the queue: the order, what is lent and taken back, and when jobs are moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from moorings.core.records import LATER

DAY_S: Final = 86_400.0


class Defragment(StrEnum):
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
        fair_share: among equal priorities, serve first the project that used least for its weight.
        half_life_s: after which use counts half.
        min_run_s: so long a borrower runs, at least, before it is asked to yield; 0: no time.
        yield_s: so long the holder of a claim has, from when it is asked, to save its state and stop.
        preempt: claims within a guarantee may take the place of others of their own project with lower priority.
        defragment: whether claims are moved to make room.
        move_s: what a move costs the claim that is moved, in seconds, beside the work since its last checkpoint.
        moves_per_hour: at most so many claims are moved in an hour.
    """

    reserve: bool = True
    backfill: bool = field(default=True, metadata=LATER)
    fair_share: bool = field(default=True, metadata=LATER)
    half_life_s: float = field(default=7 * DAY_S, metadata=LATER)
    min_run_s: float = field(default=300.0, metadata=LATER)
    yield_s: float = field(default=120.0, metadata=LATER)
    preempt: bool = field(default=True, metadata=LATER)
    defragment: Defragment = field(default=Defragment.OFF, metadata=LATER)
    move_s: float = field(default=120.0, metadata=LATER)
    moves_per_hour: int = field(default=60, metadata=LATER)

    @property
    def bound_s(self) -> float:
        """Within which a guaranteed claim has its devices, but for the time the hardware takes (law 6)."""
        return self.min_run_s + self.yield_s
