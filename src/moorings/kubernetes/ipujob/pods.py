"""A Pod as a value, with the fields that we use of the API server's object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.kube.api import KubeObject
from moorings.wire.codec import parse_time

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
ENDED = frozenset({SUCCEEDED, FAILED})
UNSCHEDULABLE = "Unschedulable"  # the scheduler's reason
GRACE_S = 30  # Kubernetes' default

# Kubelet's reasons for normal, short waits; other reasons do not pass soon, so messages show them.
_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
LINE_CHARS_MAX = 160  # of a text by kubelet or a program, in a message
UNSEEN = frozenset({"Unknown", "ContainerStatusUnknown"})  # the exit code beside it is made up


@dataclass(frozen=True, slots=True)
class Pod:
    """One Pod of a job.

    Attributes:
        instance: number of its instance.
        worker: its number over all instances; -1 for a launcher.
        restart: number of restarts of its instance when it was made.
        partition: the partition it was made for.
        phase: as the API server reports it.
        deleting: whether it is being deleted.
        exit_code: of its main container; None if there is none (evicted, its node lost).
        reason_text: what it waits for, or how it ended, in kubelet's words; may be empty.
        ended_at: when its main container ended, if that is known.
        grace_s: its grace period when it is deleted.
        killed_at: when its processes are killed, if it is being deleted and that is known.
        has_stale_proxy: a launcher whose init container is not done and uses an outdated way to the proxy.
        node: where it runs; empty before it is scheduled.
        waiting_reason: before it starts: the scheduler's or kubelet's reason, one word; may be empty.
    """

    name: str
    uid: str
    instance: int
    worker: int
    restart: int
    partition: str
    phase: str
    ready: bool
    deleting: bool
    exit_code: int | None = None
    reason_text: str = ""
    ended_at: Timestamp | None = None
    grace_s: int = GRACE_S
    killed_at: Timestamp | None = None
    has_stale_proxy: bool = False
    node: str = ""
    waiting_reason: str = ""

    @property
    def is_launcher(self) -> bool:
        """Whether it is a launcher."""
        return self.worker < 0

    @property
    def unschedulable(self) -> bool:
        """Whether the scheduler has found no node for it; ``why`` has its message."""
        return self.phase == PENDING and self.waiting_reason == UNSCHEDULABLE

    @property
    def has_ended(self) -> bool:
        """Whether its processes have ended."""
        return self.phase in ENDED


def parse_pod(found: KubeObject, proxy: str = "") -> Pod | None:
    """A Pod of a job, or None if its labels are not ours.

    Args:
        found: the Pod.
        proxy: the mark of launchers that use the present way to the proxy; empty: not known.
    """
    meta = found["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    number = _number(labels.get(names.INSTANCE))
    worker = -1 if labels.get(names.ROLE) == names.LAUNCHER_ROLE else _number(labels.get(names.WORKER))
    if number is None or worker is None:
        return None
    status = found.get("status") or {}
    phase = status.get("phase") or PENDING
    if phase in ENDED and not has_ended(status):
        phase = RUNNING
    if phase in ENDED:
        reason, (code, why, ended_at) = "", _ending(status, _first_container(found.get("spec") or {}))
        if code == 0 and {name for name, ended in containers_in(status, "terminated") if ended.get("exitCode")} == {
            names.CHECKPOINTS
        }:
            phase = SUCCEEDED  # kubelet says Failed if any container has
    else:
        reason, why = _waiting(status)
        code = ended_at = None
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        instance=number,
        worker=worker,
        restart=_number(labels.get(names.RESTART)) or 0,
        partition=annotations.get(names.PARTITION, ""),
        phase=phase,
        ready=condition_of(status, "Ready").get("status") == "True",
        deleting=meta.get("deletionTimestamp") is not None,
        exit_code=code,
        reason_text=why,
        ended_at=ended_at,
        grace_s=_grace_s(found.get("spec") or {}),
        killed_at=_time(meta.get("deletionTimestamp") or None),
        has_stale_proxy=bool(proxy)
        and worker < 0
        and _init_is_pending(status)
        and annotations.get(names.PROXY) != proxy,
        node=(found.get("spec") or {}).get("nodeName") or "",
        waiting_reason=reason,
    )


def _init_is_pending(status: KubeObject) -> bool:
    """Whether a launcher's init container may still make requests to the proxy."""
    inits = status.get("initContainerStatuses") or ()
    return (status.get("phase") or PENDING) == PENDING and not any(
        (one.get("state") or {}).get("terminated") is not None for one in inits
    )


def has_ended(status: KubeObject) -> bool:
    """Whether a Pod's processes have ended: its phase says so, and none of its containers runs.

    A phase alone proves nothing. Kubelets set the phase of a Pod past its deadline, or evicted, to Failed before its
    program is gone; so do newer garbage collectors with Pods that they are about to remove.
    """
    return status.get("phase") in ENDED and not containers_in(status, "running")


def condition_of(status: KubeObject, kind: str) -> KubeObject:
    """The condition of that type; empty if the object has none."""
    found: Iterable[KubeObject] = status.get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), {})


def containers_in(status: KubeObject, state: str) -> list[tuple[str, KubeObject]]:
    """The containers of a Pod that are ``waiting``, ``running`` or ``terminated``, by name, with that state."""
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [(one.get("name") or "?", (one.get("state") or {}).get(state)) for one in every]
    return [(name, found) for name, found in states if found is not None]


def trim_pod(found: KubeObject) -> KubeObject:
    """A Pod with only the fields that ``parse_pod`` reads: thousands are kept in memory."""
    meta, status = found["metadata"], found.get("status") or {}
    kept = {key: meta[key] for key in _META if key in meta}
    annotations = meta.get("annotations") or {}
    if read := {name: annotations[name] for name in (names.PARTITION, names.PROXY) if name in annotations}:
        kept["annotations"] = read
    given = found.get("spec") or {}
    spec: KubeObject = {_GRACE: given.get(_GRACE, GRACE_S), "nodeName": given.get("nodeName", "")}
    spec["containers"] = [{"name": _first_container(given)}]
    return {"metadata": kept, "spec": spec, "status": {key: status[key] for key in _STATUS if key in status}}


_GRACE = "terminationGracePeriodSeconds"
_META = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp", "ownerReferences")
_STATUS = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")


def _first_container(spec: KubeObject) -> str:
    """The name of a Pod's main container; kubelet sorts the statuses of containers by name."""
    containers = spec.get("containers") or ()
    return containers[0].get("name") or "" if containers else ""


def _ending(status: KubeObject, first: str) -> tuple[int | None, str, Timestamp | None]:
    """Exit code, text and time of the container that decides: a failed init container, else the main one."""
    inits = [one for one in status.get("initContainerStatuses") or () if _code(one)]
    mains = sorted(status.get("containerStatuses") or (), key=lambda one: one.get("name") != first)
    for one in [*inits[:1], *mains[:1]]:
        ended = (one.get("state") or {}).get("terminated")
        if ended is None:
            continue
        code = _number(ended.get("exitCode"))
        if ended.get("reason") in UNSEEN:
            return None, "its end is unknown: its node was lost", _time(ended.get("finishedAt"))
        where = f"init container {one['name']}: " if one in inits else ""
        words = ended.get("message") or ended.get("reason") or ""
        why = f"{where}exit code {code}" + (f" ({_line(words)})" if words not in ("", "Completed", "Error") else "")
        return code, why, _time(ended.get("finishedAt"))
    words = [status.get("reason") or "", _line(status.get("message") or "")]
    return None, ": ".join(word for word in words if word) or "it was ended from outside", None


def _grace_s(spec: KubeObject) -> int:
    given = spec.get(_GRACE)
    return given if isinstance(given, int) and given >= 0 else GRACE_S


def _waiting(status: KubeObject) -> tuple[str, str]:
    """What it waits for: the reason, and the whole sentence."""
    scheduled = condition_of(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = scheduled.get("reason") or UNSCHEDULABLE
        return reason, _line(f"{reason}: {scheduled.get('message') or ''}")
    for _, waiting in containers_in(status, "waiting"):
        reason = waiting.get("reason") or ""
        if reason not in _WAITS:
            return reason, _line(": ".join(filter(None, (reason, waiting.get("message")))))
    return "", ""


def _code(one: KubeObject) -> int:
    ended = (one.get("state") or {}).get("terminated")
    return _number(ended.get("exitCode")) or 0 if ended is not None else 0


def _line(words: str) -> str:
    text = " ".join(str(words).split())
    if len(text) <= LINE_CHARS_MAX:
        return text
    cut = text[:LINE_CHARS_MAX]
    return f"{cut[: cut.rfind(' ')] if ' ' in cut[LINE_CHARS_MAX // 2 :] else cut}…"


def _number(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None


def _time(text: object) -> Timestamp | None:
    return parse_time(text) if isinstance(text, str) else None
