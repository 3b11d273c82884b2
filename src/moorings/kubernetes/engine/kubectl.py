"""Calls of a person's own ``kubectl`` for the terminal, commands and ports of a run, and what its answers mean. Pure.

The cluster decides by that person's rights (``pods/exec``, ``pods/attach``, ``pods/portforward``). Leading the bytes
through the controller was refused: its own rights would then be everybody's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.engine.submission import RUN
from moorings.wire.shapes import TaskContainerBody

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_REFUSED = re.compile(r"^Error from server \(Forbidden\): (.*)", re.MULTILINE)
_DENIED_HINT = "an admin of the namespace can give you that right: docs/how-to/terminals.md has the Role"
_LINE_CHARS_MAX = 300

# In a container without a login: its profile would undo the PATH of the image.
CONTAINER_SHELL = ("/bin/sh", "-c", "if command -v bash > /dev/null; then exec bash; fi; exec sh")


class PodRight(StrEnum):
    """What one may do with a Pod."""

    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portforward"


def build_check(namespace: str, right: PodRight) -> list[str]:
    """The call that asks whether the person has a right in a namespace."""
    return [*_kubectl(namespace), "auth", "can-i", "create", "pods", f"--subresource={right}"]


def check_answer(namespace: str, right: PodRight, said: str, errors: str) -> None:
    """Raise unless the answer of ``build_check``'s call is yes.

    Raises:
        MooringsError: ``kubernetes.denied``, ``kubernetes.unreachable``.
    """
    if said.startswith("yes"):
        return
    if said.startswith("no"):
        detail = f"your user of the cluster may not create pods/{right} in the namespace {namespace}"
        raise MooringsError("kubernetes.denied", detail, hint=_DENIED_HINT)
    hint = "does 'kubectl get pods' work here? It takes the same kubeconfig and context"
    raise MooringsError("kubernetes.unreachable", f"kubectl cannot ask the cluster: {_last_line(errors)}", hint=hint)


def check_refusal(errors: str) -> None:
    """Raise if ``kubectl`` ended because the cluster refused.

    Raises:
        MooringsError: ``kubernetes.denied``.
    """
    if found := _REFUSED.search(errors):
        raise MooringsError("kubernetes.denied", found[1][:_LINE_CHARS_MAX], hint=_DENIED_HINT)


def build_look(place: TaskContainerBody) -> list[str]:
    """The call that shows a task's Pod."""
    return [*_kubectl(place.namespace), "get", "pod", _name(place.pod), "--output=json"]


def check_pod(place: TaskContainerBody, run: str, said: str, errors: str) -> None:
    """Raise unless the answer of ``build_look``'s call is a Pod of the run: the controller alone is no witness of it.

    Raises:
        MooringsError: ``terminal.refused``, ``kubernetes.denied``, ``kubernetes.unreachable``.
    """
    check_refusal(errors)
    try:
        labels = json.loads(said)["metadata"].get("labels", {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        detail = f"kubectl does not show the Pod {place.pod}: {_last_line(errors)}"
        raise MooringsError("kubernetes.unreachable", detail, hint="does 'kubectl get pods' work here?") from error
    if not isinstance(labels, dict) or labels.get(RUN) != run:
        detail = f"the controller names the Pod {place.pod} in {place.namespace}, which is not of run {run}"
        raise MooringsError("terminal.refused", detail)


def build_exec(place: TaskContainerBody, command: Sequence[str], *, tty: bool) -> list[str]:
    """The call that runs a command beside a task."""
    streams = ("--stdin", "--tty") if tty else ("--stdin",)
    return [*_kubectl(place.namespace), "exec", *streams, *_container(place), "--", *command]


def build_attach(place: TaskContainerBody) -> list[str]:
    """The call that attaches this terminal to a task's."""
    return [*_kubectl(place.namespace), "attach", "--stdin", "--tty", *_container(place)]


def build_port_forward(place: TaskContainerBody, ports: Sequence[tuple[int, int]]) -> list[str]:
    """The call that listens on ports here and passes connections to ports of a task's Pod; 0: any port here."""
    pairs = [f"{local}:{remote}" for local, remote in ports]
    return [*_kubectl(place.namespace), "port-forward", "--address=127.0.0.1", f"pod/{_name(place.pod)}", *pairs]


def failure_of(errors: str, code: int) -> str:
    """Why an attached ``kubectl`` has failed, in a line; empty: it did not."""
    found = [line for line in errors.splitlines() if line.lower().startswith("error")]
    return found[-1][:_LINE_CHARS_MAX] if found else f"it ended with code {code}" if code else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LINE_CHARS_MAX] if lines else "it says nothing"


def _kubectl(namespace: str) -> list[str]:
    return ["kubectl", f"--namespace={_name(namespace)}"]


def _container(place: TaskContainerBody) -> list[str]:
    return [_name(place.pod), f"--container={_name(place.container)}"]


def _name(text: str) -> str:
    """The name, if it is one: a controller that was taken over must not lead ``kubectl`` by flags."""
    if not _NAME.fullmatch(text):
        raise MooringsError("terminal.refused", f"the controller names {text[:80]!r}, which is no name in Kubernetes")
    return text
