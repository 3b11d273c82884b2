"""What may change in a suspended IPUJob, and which controller starts it: Kueue's contract with jobs. Pure.

A queueing system admits a job by setting `spec.suspend` to false, and may at the same moment add to its Pods where they
must run; it removes that again when it suspends the job. With another controller's name in `spec.managedBy`, that
controller manages the whole job: MultiKueue runs a copy of it elsewhere.

https://kueue.sigs.k8s.io/docs/tasks/dev/integrate_a_custom_job/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moorings.kubernetes.kube.api import KubeObject

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MANAGED_BY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9!-.:-~]+")  # the rule of a Job's field

# Fields of a Pod template that say where its Pods run, and their labels and annotations.
_METADATA = frozenset({"labels", "annotations"})
_SPEC = frozenset({"affinity", "nodeSelector", "schedulingGates", "tolerations"})


def immutable_template(template: Mapping[str, Any]) -> KubeObject:
    """A Pod template without the fields that may change while its job is suspended."""
    return {
        **template,
        "metadata": _without(template.get("metadata"), _METADATA),
        "spec": _without(template.get("spec"), _SPEC),
    }


def is_queued_by_kueue(obj: KubeObject) -> bool:
    """Whether Kueue starts this new job; an object with an owner is admitted with its owner."""
    meta = obj["metadata"]
    labels = meta.get("labels")
    owners = meta.get("ownerReferences")
    owned = isinstance(owners, list) and any(isinstance(one, Mapping) and one.get("controller") for one in owners)
    return isinstance(labels, Mapping) and bool(labels.get(QUEUE_LABEL)) and not owned


def _without(found: object, names: frozenset[str]) -> KubeObject:
    return {key: value for key, value in found.items() if key not in names} if isinstance(found, Mapping) else {}
