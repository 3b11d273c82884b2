"""Warning Events of an IPUJob whose Pods are refused, or which is refused itself; as Kubernetes' controllers do it.

A Pod that the API server refuses (a quota, a policy, a webhook) is a ``FailedCreate``, with its message; a Pod without
a fitting node is a ``FailedScheduling``; an invalid job that came past the webhook is an ``InvalidSpec``. Each is
recorded once for each try or change; the recorder counts equal ones together and limits the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moorings.kubernetes.ipujob.pods import Pod
from moorings.kubernetes.ipujob.types import IPUJob
from moorings.kubernetes.kube.api import KubeError
from moorings.kubernetes.operator.create_failures import ActionFailure
from moorings.kubernetes.operator.status import JobEvent

_PASSES = frozenset({0, 401, 409, 429, 504})  # HTTP statuses that say nothing about the Pod, or pass by themselves
_OWN = frozenset({"ipujob.name_taken", "ipujob.invalid"})


def failed_create(tried: Mapping[int, bool], failures: Sequence[ActionFailure]) -> JobEvent | None:
    """The refusal of Pods that were to be created; of several, that of the first instance.

    Args:
        tried: instances whose Pods were to be created.
        failures: the failed actions.
    """
    refused = [one for one in failures if (one.instance is None or one.instance in tried) and _is_refusal(one)]
    if not tried or not refused:
        return None
    more = f" (and of {len(refused) - 1} more instances)" if len(refused) > 1 else ""
    return JobEvent("Warning", "FailedCreate", f"Error creating: {refused[0].error.detail}{more}")


@dataclass(slots=True)
class WarnedEvents:
    """The Events that were already recorded for one job.

    Attributes:
        unscheduled: uids of Pods.
        invalid: uid and generation of the job.
    """

    unscheduled: frozenset[str] = frozenset()
    invalid: tuple[str, int] = field(default=("", 0))

    def new_warnings(self, job: IPUJob, pods: Sequence[Pod], wrong: str) -> list[JobEvent]:
        """The Events to record now, each once.

        Args:
            job: the job.
            pods: of it.
            wrong: the errors of its spec; empty: none.
        """
        warnings = []
        edition = (job.uid, job.generation)
        if wrong and job.status.observed_generation != job.generation and self.invalid != edition:
            self.invalid = edition
            warnings.append(JobEvent("Warning", "InvalidSpec", wrong))
        late = [pod for pod in pods if pod.unschedulable and not pod.deleting]
        if any(pod.uid not in self.unscheduled for pod in late):
            more = f" (and {len(late) - 1} more Pods)" if len(late) > 1 else ""
            warnings.append(JobEvent("Warning", "FailedScheduling", f"{late[0].name}: {late[0].reason_text}{more}"))
        self.unscheduled = frozenset(pod.uid for pod in late)
        return warnings


def _is_refusal(failure: ActionFailure) -> bool:
    error = failure.error
    return error.status not in _PASSES if isinstance(error, KubeError) else error.code in _OWN
