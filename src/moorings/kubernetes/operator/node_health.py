"""Nodes that are not Ready, and what to do about Pods on them.

Kubernetes deletes such Pods after some minutes, but their objects stay until their node reports that the programs have
ended; a lost node never does. Whether the programs still run is unknown. They certainly have no IPUs once the partition
is removed. So a Pod is given up in this order: partition, then object, then another Pod of its name. We cannot
protect what the old program can still reach, its volumes and the network; so a job must opt in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.pods import Pod, condition_of
from moorings.kubernetes.kube.api import KubeObject
from moorings.wire.codec import format_time, parse_time


@dataclass(frozen=True, slots=True)
class NotReadyNode:
    """A node that is not Ready.

    Attributes:
        since: when it became so.
        kubelet_reports: whether its kubelet itself reports it.
    """

    since: Timestamp
    kubelet_reports: bool = False


def parse_not_ready(node: KubeObject) -> NotReadyNode | None:
    """Since when a node is not Ready; None: it is Ready, or its state is unknown."""
    ready = condition_of(node.get("status") or {}, "Ready")
    if ready.get("status") not in ("False", "Unknown"):
        return None
    try:
        since = parse_time(ready.get("lastTransitionTime") or "")
    except MooringsError:
        return None
    return NotReadyNode(since, kubelet_reports=ready["status"] == "False")


def trim_node(found: KubeObject) -> KubeObject:
    """A node with only the fields that ``parse_not_ready`` reads."""
    meta = {key: found["metadata"][key] for key in ("name", "uid", "resourceVersion") if key in found["metadata"]}
    ready = condition_of(found.get("status") or {}, "Ready")
    return {"metadata": meta, "status": {"conditions": [ready] if ready else []}}


def on_not_ready_nodes(pods: Iterable[Pod], silent: Mapping[str, NotReadyNode]) -> list[Pod]:
    """The Pods that may run on nodes that are not Ready."""
    return [pod for pod in pods if not pod.has_ended and pod.node in silent]


def choose_lost(pods: Iterable[Pod], silent: Mapping[str, NotReadyNode], lost_s: int, now: Timestamp) -> list[Pod]:
    """The Pods whose nodes have not been Ready for ``lost_s`` seconds; 0: no Pod is ever lost."""
    if not lost_s:
        return []
    return [pod for pod in on_not_ready_nodes(pods, silent) if add_seconds(silent[pod.node].since, lost_s) <= now]


def lost_at(pods: Sequence[Pod], silent: Mapping[str, NotReadyNode], lost_s: int, now: Timestamp) -> Timestamp | None:
    """When the next of these Pods is lost, unless its node returns."""
    times = [add_seconds(silent[pod.node].since, lost_s) for pod in pods if pod.node in silent] if lost_s else []
    return min((at for at in times if at > now), default=None)


def describe_not_ready(pods: Sequence[Pod], silent: Mapping[str, NotReadyNode]) -> str:
    """A sentence about the one of these Pods' nodes that has not been Ready for longest."""
    pod = min(pods, key=lambda one: (silent[one.node].since, one.name))
    silence = silent[pod.node]
    how = "has not been Ready" if silence.kubelet_reports else "has not answered"
    others = len({one.node for one in pods}) - 1
    more = f", and {others} more" if others else ""
    return f"node {pod.node} with {pod.name} {how} since {format_clock_time(silence.since)}{more}"


def format_clock_time(at: Timestamp) -> str:
    """A time in the form that messages use."""
    text = format_time(at)
    return f"{text[:10]} {text[11:19]} UTC"
