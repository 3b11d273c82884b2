"""What a suspended IPUJob may be given, and whose it is to start: the contract that Kueue has with jobs. Pure.

A queueing system admits a job by setting `spec.suspend` to false, and may put into its Pods at the same moment where
they are to run; it takes that out again as it suspends the job. With a controller of another name in `spec.managedBy`
the job is that one's altogether: MultiKueue runs a copy of it elsewhere.

https://kueue.sigs.k8s.io/docs/tasks/dev/integrate_a_custom_job/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moorings.kubernetes.ipujob import KubeObject

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MANAGED_BY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9!-.:-~]+")  # as a Job's field must be

# Of a Pod template: what says where its Pods run, and what they are marked with.
_METADATA = frozenset({"labels", "annotations"})
_SPEC = frozenset({"affinity", "nodeSelector", "schedulingGates", "tolerations"})


def immutable_template(template: Mapping[str, Any]) -> KubeObject:
    """A Pod template without what may change while its job is suspended."""
    return {
        **template,
        "metadata": _without(template.get("metadata"), _METADATA),
        "spec": _without(template.get("spec"), _SPEC),
    }


def is_queued_by_kueue(obj: KubeObject) -> bool:
    """Whether a new job is one that Kueue is to start; what belongs to another object is admitted with that one."""
    meta = obj["metadata"]
    labels = meta.get("labels")
    owners = meta.get("ownerReferences")
    owned = isinstance(owners, list) and any(isinstance(one, Mapping) and one.get("controller") for one in owners)
    return isinstance(labels, Mapping) and bool(labels.get(QUEUE_LABEL)) and not owned


def _without(found: object, names: frozenset[str]) -> KubeObject:
    return {key: value for key, value in found.items() if key not in names} if isinstance(found, Mapping) else {}
