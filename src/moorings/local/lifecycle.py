"""Decides a supervisor's next action: a pure function of its observations, so that tests can try every order of events.

A run stops for the first of these reasons, and keeps it: a failed task, a cancel, its time limit, or a request to
yield. Before a yield it is warned, and a task that then exits does not stop the others: they may still be writing their
checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moorings.core.model.quantities import duration_text
from moorings.workloads.runs import EndReason

SAVED_POLL_S = 0.2  # between two questions whether a checkpoint was saved


class SupervisorAction(StrEnum):
    """The action to take now."""

    WAIT = "WAIT"  # do nothing until ``SupervisorDecision.within_s`` or an event
    WARN = "WARN"  # send the warning of the checkpoint contract
    STOP = "STOP"  # TERM to everything; the grace period begins
    KILL = "KILL"  # KILL to every remaining process, then decide again
    FINISH = "FINISH"  # no process is left: record the end


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The time limits of a run: seconds since its tasks were started, by a monotonic clock."""

    time_limit_s: float | None
    warn_s: float
    grace_s: float
    keep_s: float | None = None  # how long its terminal may stay unattended; None: it has none

    @property
    def warn_at_s(self) -> float | None:
        """Return when to warn, or None: there is no limit, or it ends before the time to warn."""
        if self.time_limit_s is None or self.warn_s <= 0 or self.warn_s >= self.time_limit_s:
            return None
        return self.time_limit_s - self.warn_s


@dataclass(frozen=True, slots=True)
class YieldState:
    """A request to yield; seconds as those of ``RunLimits``.

    Attributes:
        reason: why, as a sentence.
        received_at_s: when the supervisor read it.
        deadline_s: when no process of the run may be left.
        is_warned: the warning was sent.
        until_saved: TERM is sent as soon as it has saved a checkpoint.
    """

    reason: str
    received_at_s: float
    deadline_s: float
    is_warned: bool = False
    until_saved: bool = False

    def term_at_s(self, grace_s: float) -> float:
        """Return when to send TERM: the grace period before the end.

        At least half of the time is for the warning, but for a pause, whose deadline has the time to save in it.
        """
        time_s = max(self.deadline_s - self.received_at_s, 0.0)
        return self.deadline_s - min(grace_s, time_s if self.until_saved else time_s / 2)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A supervisor's observations.

    Attributes:
        elapsed_s: seconds since the tasks were started.
        tasks_left: tasks that have not ended.
        has_no_processes: no process of the run is left at all.
        first_failure: a sentence about the first failed task, if any.
        cancel_reason: the reason of a request to stop the run, if any.
        yielding: the request to yield, if any.
        warned: the warning was sent.
        has_saved: it has saved a whole checkpoint since the warning.
        stopping_since_s: when TERM was sent, or None.
        unattended_s: for how long no client has been at its terminal; None: there is one, or no terminal.
    """

    elapsed_s: float
    tasks_left: int
    has_no_processes: bool
    first_failure: str | None = None
    cancel_reason: str | None = None
    yielding: YieldState | None = None
    warned: bool = False
    has_saved: bool = False
    stopping_since_s: float | None = None
    unattended_s: float | None = None


@dataclass(frozen=True, slots=True)
class SupervisorDecision:
    """A supervisor's next action.

    Attributes:
        act: the action.
        wait_at_most_s: for WAIT: when to decide again at the latest; None: only after an event.
        ending: for STOP: the run's end reason.
        detail: for STOP: why, as a sentence.
    """

    act: SupervisorAction
    wait_at_most_s: float | None = None
    ending: EndReason = EndReason.EXITED
    detail: str = ""


def decide_next(observed: ObservedRun, limits: RunLimits) -> SupervisorDecision:
    """Return the action to take now."""
    if observed.has_no_processes:
        return SupervisorDecision(SupervisorAction.FINISH)
    if observed.stopping_since_s is not None:
        kill_at_s = observed.stopping_since_s + limits.grace_s
        if observed.yielding is not None:
            kill_at_s = min(kill_at_s, observed.yielding.deadline_s)
        left_s = kill_at_s - observed.elapsed_s
        return (
            SupervisorDecision(SupervisorAction.KILL)
            if left_s <= 0
            else SupervisorDecision(SupervisorAction.WAIT, left_s)
        )
    if observed.tasks_left == 0:
        return SupervisorDecision(
            SupervisorAction.KILL
        )  # every task has ended, and its background processes had their time
    if observed.first_failure is not None and observed.yielding is None:
        return SupervisorDecision(SupervisorAction.STOP, ending=EndReason.EXITED, detail=observed.first_failure)
    if observed.cancel_reason is not None:
        return SupervisorDecision(SupervisorAction.STOP, ending=EndReason.CANCELLED, detail=observed.cancel_reason)
    if limits.time_limit_s is not None and observed.elapsed_s >= limits.time_limit_s:
        detail = f"stopped at its time limit of {duration_text(limits.time_limit_s)}"
        return SupervisorDecision(SupervisorAction.STOP, ending=EndReason.TIMED_OUT, detail=detail)
    if limits.keep_s is not None and observed.unattended_s is not None and observed.unattended_s >= limits.keep_s:
        detail = f"its terminal was unattended for {duration_text(limits.keep_s)} ('--keep')"
        return SupervisorDecision(SupervisorAction.STOP, ending=EndReason.CANCELLED, detail=detail)
    if observed.yielding is not None:
        return _decide_yield(observed, observed.yielding, limits)
    if limits.time_limit_s is None:
        return SupervisorDecision(SupervisorAction.WAIT)
    if limits.warn_at_s is not None and not observed.warned:
        left_s = limits.warn_at_s - observed.elapsed_s
        return (
            SupervisorDecision(SupervisorAction.WARN)
            if left_s <= 0
            else SupervisorDecision(SupervisorAction.WAIT, left_s)
        )
    return SupervisorDecision(SupervisorAction.WAIT, limits.time_limit_s - observed.elapsed_s)


def _decide_yield(now: ObservedRun, asked: YieldState, limits: RunLimits) -> SupervisorDecision:
    if not asked.is_warned:
        return SupervisorDecision(SupervisorAction.WARN)
    stop_at_s = asked.term_at_s(limits.grace_s)
    if now.elapsed_s >= stop_at_s or (asked.until_saved and now.has_saved):
        return SupervisorDecision(SupervisorAction.STOP, ending=EndReason.YIELDED, detail=asked.reason)
    until_s = stop_at_s if limits.time_limit_s is None else min(stop_at_s, limits.time_limit_s)
    left_s = until_s - now.elapsed_s
    return SupervisorDecision(SupervisorAction.WAIT, min(left_s, SAVED_POLL_S) if asked.until_saved else left_s)
