"""The containers that look at a run's checkpoints in its Pods. Pure.

An init container looks before the task starts and writes what it resumes from, for the task and, as its termination
message, for the controller; a second container looks while the task runs, and prints what it sees. Both have an image
of Moorings with ``python3 -m moorings.app.kubernetes_checkpoints``: a job's own image may have no Python. The task is
started by the image's own shell, which reads what was written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from moorings.core.model.serialization import to_plain
from moorings.engines.launch import watched_job
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.kube.api import KubeObject
from moorings.ports.engine import RunSubmission

BEFORE = "checkpoints"  # the init container
CHECKPOINTS = names.CHECKPOINTS  # after the task's in alphabetical order, as kubelet sorts their statuses
FOLDER = "/run/moorings"  # shared by the containers of a Pod
BEGAN = "began"  # a file there, once the task has been started
RESUME = "resume"  # a file there: shell commands for the task
RESTART = "IPUJOB_RESTART"  # a variable of our containers; those with our usual prefix are the operator's to set

_VOLUME = "moorings"
_START = f"""_moorings_refuse() {{
    printf '%s\\n' "$2" >&2
    [ ! -w /dev/termination-log ] || printf '%s' "$2" > /dev/termination-log
    exit "$1"
}}
true > {FOLDER}/{BEGAN}
[ ! -r {FOLDER}/{RESUME} ] || . {FOLDER}/{RESUME}
exec "$@\""""


def add_checkpoint_containers(spec: KubeObject, order: RunSubmission, image: str) -> None:
    """Add them to the Pod of a task.

    Args:
        spec: of the Pod; its only container is the task's.
        order: of a job with a folder of checkpoints.
        image: of Moorings.
    """
    folder = order.job.checkpoint_directory
    assert folder is not None
    watched = watched_job(order, folder)
    (task,) = spec["containers"]
    shared = {"name": _VOLUME, "mountPath": FOLDER}
    ours = {
        "image": image,
        "env": [{"name": RESTART, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.RESTART}']"}}}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{**_mount_of(folder, task["volumeMounts"]), "readOnly": True}, shared],
    }
    program, words = ["python3", "-m", "moorings.app.kubernetes_checkpoints"], unexpanded(json.dumps(to_plain(watched)))
    spec["initContainers"] = [{"name": BEFORE, "command": [*program, "begin", words], **ours}]
    spec["containers"] = [
        task | {"command": ["/bin/sh", "-c", unexpanded(_START), *task["command"][:1], *task["command"]]},
        {"name": CHECKPOINTS, "command": [*program, "watch", words], **ours},
    ]
    spec["containers"][0]["volumeMounts"] = [*task["volumeMounts"], shared]
    spec["volumes"] = [*spec["volumes"], {"name": _VOLUME, "emptyDir": {"sizeLimit": "16Mi"}}]


def _mount_of(folder: str, mounts: Sequence[KubeObject]) -> KubeObject:
    """The mount with that folder."""
    holding = [each for each in mounts if f"{folder}/".startswith(f"{each['mountPath']}/")]
    return max(holding, key=lambda each: len(each["mountPath"]))


def unexpanded(text: str) -> str:
    """Text in which Kubernetes expands nothing: neither ``$(NAME)`` nor ``$$``."""
    return text.replace("$", "$$")
