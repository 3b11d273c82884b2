"""What a supervisor does next: a pure function of what it knows, so that every order of events can be tested at once.

A run stops for the first of these reasons and keeps it: a task failed, somebody asked, its time is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moorings.core.quantities import duration_text
from moorings.workloads.runs import Ending


class Act(StrEnum):
    """What to do now."""

    WAIT = "WAIT"  # nothing, until ``Move.within_s`` or until something happens
    WARN = "WARN"  # send the warning of the checkpoint contract
    STOP = "STOP"  # TERM to everything; the grace period begins
    KILL = "KILL"  # KILL to everything that is left, and look again
    FINISH = "FINISH"  # nothing is left: record the end


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run may take: seconds since its tasks were started, of a clock that nobody sets."""

    time_limit_s: float | None
    warn_s: float
    grace_s: float

    @property
    def warn_at_s(self) -> float | None:
        """When to warn, or None: there is no limit, or it is over before there is anything to warn of."""
        if self.time_limit_s is None or self.warn_s <= 0 or self.warn_s >= self.time_limit_s:
            return None
        return self.time_limit_s - self.warn_s


@dataclass(frozen=True, slots=True)
class Situation:
    """What a supervisor knows.

    Attributes:
        elapsed_s: seconds since the tasks were started.
        tasks_left: tasks that have not ended.
        childless: no process of the run is left at all.
        failure: a sentence about the first task that failed, if one did.
        cancel: the reason somebody gave for stopping the run, if one did.
        warned: the warning was sent.
        stopping_since_s: when TERM was sent, or None.
    """

    elapsed_s: float
    tasks_left: int
    childless: bool
    failure: str | None = None
    cancel: str | None = None
    warned: bool = False
    stopping_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One act.

    Attributes:
        act: what to do.
        within_s: for WAIT: when to look again at the latest; None: only when something happens.
        ending: for STOP: how the run will have ended.
        detail: for STOP: why, as a sentence.
    """

    act: Act
    within_s: float | None = None
    ending: Ending = Ending.EXITED
    detail: str = ""


def choose(now: Situation, limits: Limits) -> Move:
    """What to do now."""
    if now.childless:
        return Move(Act.FINISH)
    if now.stopping_since_s is not None:
        left_s = now.stopping_since_s + limits.grace_s - now.elapsed_s
        return Move(Act.KILL) if left_s <= 0 else Move(Act.WAIT, left_s)
    if now.tasks_left == 0:
        return Move(Act.KILL)  # every task has ended: what it left in the background had its time
    if now.failure is not None:
        return Move(Act.STOP, ending=Ending.EXITED, detail=now.failure)
    if now.cancel is not None:
        return Move(Act.STOP, ending=Ending.CANCELLED, detail=now.cancel)
    if limits.time_limit_s is None:
        return Move(Act.WAIT)
    if now.elapsed_s >= limits.time_limit_s:
        detail = f"stopped at its time limit of {duration_text(limits.time_limit_s)}"
        return Move(Act.STOP, ending=Ending.TIMED_OUT, detail=detail)
    if limits.warn_at_s is not None and not now.warned:
        left_s = limits.warn_at_s - now.elapsed_s
        return Move(Act.WARN) if left_s <= 0 else Move(Act.WAIT, left_s)
    return Move(Act.WAIT, limits.time_limit_s - now.elapsed_s)
