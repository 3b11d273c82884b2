"""The API server's refusals of an IPUJob's Pods, permanent or not; and when they release its partitions.

An invalid Pod stays invalid, and its instance fails. A quota, a policy or another owner's object of its name may go
away: the instance tries again, but meanwhile does not keep IPUs that other claims wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeError
from moorings.kubernetes.operator.plan import PartitionPause

PATIENCE_S = 30.0  # how long an instance keeps its partition while its Pods are refused
PAUSE_S, PAUSE_S_MAX = 60.0, 600.0  # before it requests one again: this, doubled each time

_UNHEARD = frozenset({0, 401})  # no response, or not authenticated: it says nothing about the Pods


@dataclass(frozen=True, slots=True)
class ActionFailure:
    """A failed action: of an instance, or, with None, of the whole job."""

    instance: int | None
    error: MooringsError


@dataclass(slots=True)
class _RejectedInstance:
    why: str
    since: float | None  # None: not refused since its last request of a partition
    starting: bool
    pauses: int = 0
    until: float = 0.0  # it has no partition until then


@dataclass(slots=True)
class CreateFailures:
    """The refusals of one job's Pods; times are of a monotonic clock, in seconds.

    Attributes:
        invalid: instances whose Pods can never be created, and why.
    """

    invalid: dict[int, str] = field(default_factory=dict)
    _stuck: dict[int, _RejectedInstance] = field(default_factory=dict)

    def record(self, tried: Mapping[int, bool], failures: Iterable[ActionFailure], now: float) -> None:
        """Record the results of trying to create Pods.

        Args:
            tried: their instances; for each, whether all its Pods were to be created, so that nothing of it runs.
            failures: the failed actions.
            now: the time.
        """
        errors: dict[int | None, MooringsError] = {}
        for failure in failures:
            errors.setdefault(failure.instance, failure.error)
        for instance, starting in tried.items():
            error = errors.get(instance) or errors.get(None)
            if error is None:
                self._stuck.pop(instance, None)
            elif _is_permanent(error):
                self.invalid[instance] = error.detail
            elif _is_temporary(error):
                stuck = self._stuck.setdefault(instance, _RejectedInstance(error.detail, now, starting))
                stuck.why = error.detail
                stuck.since = now if stuck.since is None else stuck.since

    def paused(self, now: float, spread: float = 0.0) -> tuple[Mapping[int, PartitionPause], float | None]:
        """The instances that must not have a partition now; and the seconds until that changes.

        Args:
            now: the time.
            spread: 0 to 1, specific to the job, so that two jobs that share a quota do not try at the same moments.
        """
        held: dict[int, PartitionPause] = {}
        times: list[float] = []
        for instance, stuck in self._stuck.items():
            if stuck.since is not None and now >= stuck.since + PATIENCE_S:
                stuck.until = now + min(PAUSE_S * 2.0**stuck.pauses, PAUSE_S_MAX) * (1 + spread / 2)
                stuck.pauses = min(stuck.pauses + 1, 10)
                stuck.since = None
            if now < stuck.until:
                held[instance] = PartitionPause(stuck.why, stuck.starting)
                times.append(stuck.until)
            elif stuck.since is not None:
                times.append(stuck.since + PATIENCE_S)
        return held, min(times) - now if times else None

    def clear(self) -> None:
        """Forget everything: the job has changed."""
        self.invalid.clear()
        self._stuck.clear()


def _is_permanent(error: MooringsError) -> bool:
    """Whether every further try would fail: the Pod is wrong, or cannot be parsed as one.

    Denials by policies and webhooks have the same reasons, but may end: the message tells them apart.
    """
    if not isinstance(error, KubeError):
        return error.code == "ipujob.invalid"
    if error.reason == "Invalid":
        return " is invalid: " in error.detail
    return error.reason == "BadRequest" and " cannot be handled as a " in error.detail


def _is_temporary(error: MooringsError) -> bool:
    """Whether the refusal may end: by a quota, a policy or a webhook, or because of a name in use."""
    if isinstance(error, KubeError):
        return error.status not in _UNHEARD
    return error.code == "ipujob.name_taken"
