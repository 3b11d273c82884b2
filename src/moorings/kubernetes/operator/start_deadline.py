"""The start deadline: an instance that does not start releases its partition, and requests one again later.

The time counts while the instance has its partition and none of its programs runs, until all of them are Ready;
restarts of a program that ends before it was Ready do not reset it. The deadline never stops a running program: a
server may load its model for as long as it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.pods import RUNNING, SUCCEEDED, UNSCHEDULABLE, Pod
from moorings.kubernetes.ipujob.types import StartAttempts

# Kubernetes' own default for the progress of a Deployment: enough to pull 20 GB at 40 MB/s and to unpack them.
DEADLINE_S = 600
PAUSE_S_MAX = 3600  # before it requests a partition again: the cause may be gone by then

_PULLS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CRASHES = frozenset({"CrashLoopBackOff", "RunContainerError", "PostStartHookError"})


@dataclass(frozen=True, slots=True)
class StartProgress:
    """The observed start of an instance.

    Attributes:
        has_partition: None: not known now.
        begun: the Pod of at least one of its programs, of any attempt, is in phase Running.
        runs: all of its programs run.
        done: all of them run and are Ready, or have succeeded.
    """

    has_partition: bool | None
    begun: bool
    runs: bool
    done: bool


def observe_start(has_partition: bool | None, programs: Sequence[Pod], restart: int, wanted: int) -> StartProgress:
    """Observe a start.

    Args:
        has_partition: whether the partition is READY; None: not known now.
        programs: the Pods that run the job's program.
        restart: number of this attempt.
        wanted: how many of these Pods the instance needs.
    """
    fresh = [pod for pod in programs if pod.restart >= restart]
    live = [pod for pod in fresh if pod.phase in (RUNNING, SUCCEEDED) and not pod.deleting]
    return StartProgress(
        has_partition,
        begun=any(pod.phase == RUNNING for pod in programs),
        runs=len(live) == wanted,
        done=len(live) == wanted and all(pod.ready or pod.phase == SUCCEEDED for pod in live),
    )


def update_start(
    start: StartAttempts, seen: StartProgress, deadline_s: int, now: Timestamp, pods: Sequence[Pod], failure: str
) -> StartAttempts:
    """The new record of a start; with ``until`` the instance must not have a partition.

    Args:
        start: the previous record.
        seen: the observed start.
        deadline_s: 0: there is no deadline.
        now: the time.
        pods: those of this attempt.
        failure: why the last attempt failed; may be empty.
    """
    if not deadline_s or (seen.done and start.until is None):
        return StartAttempts()
    if start.until is not None:
        # At most its pause from now on: the deadline may have been shortened, or the clock set back.
        until = min(start.until, add_seconds(now, backoff_s(deadline_s, max(start.missed, 1))))
        if now < until:
            return replace(start, until=until)
        start = replace(start, until=None)
    if start.since is not None and start.since > now:
        start = replace(start, since=now)
    if seen.has_partition is None:
        return start
    if not seen.has_partition:
        return replace(start, since=None)
    if start.since is None:  # an instance that ran and lacks a Pod now is not starting
        return start if seen.begun else replace(start, since=now)
    if seen.runs or now < add_seconds(start.since, deadline_s):
        return start
    missed = start.missed + 1
    why = f"it did not start in {deadline_s} s: {explain_pods(pods, failure)}"
    return StartAttempts(missed=missed, until=add_seconds(now, backoff_s(deadline_s, missed)), why=why)


def backoff_s(deadline_s: int, missed: int) -> int:
    """The pause in seconds after so many missed deadlines in a row: at least as long as it has held its IPUs."""
    doubled: int = deadline_s << min(missed - 1, 12)
    return max(deadline_s, min(doubled, PAUSE_S_MAX))


def next_check_at(start: StartAttempts, deadline_s: int, now: Timestamp) -> Timestamp | None:
    """When to check again, even if nothing changes."""
    times = (start.until, add_seconds(start.since, deadline_s) if start.since is not None and deadline_s else None)
    return min((at for at in times if at is not None and at > now), default=None)


def explain_pods(pods: Sequence[Pod], failure: str) -> str:
    """What keeps these Pods from starting, the cause before its effects."""
    late = [pod for pod in pods if not pod.has_ended and (pod.phase != RUNNING or pod.waiting_reason)]
    if not late:
        return f"it crashes at start: {failure}" if failure else "its Pods are not there"
    worst = min(late, key=lambda pod: (_rank(pod), pod.is_launcher, pod.worker))
    if not worst.reason_text:
        return f"{worst.name} waits, and its node names no reason: an image is being pulled, or a volume is missing"
    if worst.waiting_reason == UNSCHEDULABLE:
        return f"{worst.name} cannot be scheduled: {worst.reason_text.removeprefix(f'{UNSCHEDULABLE}: ')}"
    if worst.waiting_reason in _PULLS:
        return f"{worst.name} cannot pull its image: {worst.reason_text}"
    if worst.waiting_reason in _CRASHES:
        return f"{worst.name} crashes at start: {worst.reason_text}"
    return f"{worst.name} cannot start: {worst.reason_text}"


def _rank(pod: Pod) -> int:
    for rank, reasons in enumerate((frozenset({UNSCHEDULABLE}), _PULLS, _CRASHES)):
        if pod.waiting_reason in reasons:
            return rank
    return 3 if pod.reason_text else 4
