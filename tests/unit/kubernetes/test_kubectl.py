"""Calls of a person's own kubectl, and what its answers mean."""

from __future__ import annotations

import pytest

from moorings.cli.pod_terminal import check_right
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.engine.kubectl import (
    PodRight,
    build_attach,
    build_check,
    build_exec,
    build_look,
    build_port_forward,
    check_answer,
    check_pod,
    check_refusal,
)
from moorings.wire.shapes import TaskContainerBody
from tests.cases import cases

PLACE = TaskContainerBody(namespace="runs", pod="run-1-worker-0", container="task")


def test_calls_name_the_container_and_end_options_before_the_command() -> None:
    piped = build_exec(PLACE, ["tar", "-c", "x"], tty=False)
    assert piped == [
        *("kubectl", "--namespace=runs", "exec", "--stdin", "run-1-worker-0", "--container=task"),
        *("--", "tar", "-c", "x"),
    ]
    assert "--tty" in build_exec(PLACE, ["vi"], tty=True)
    assert build_attach(PLACE)[2:] == ["attach", "--stdin", "--tty", "run-1-worker-0", "--container=task"]
    assert build_port_forward(PLACE, [(0, 8888), (9000, 80)])[2:] == [
        *("port-forward", "--address=127.0.0.1", "pod/run-1-worker-0", "0:8888", "9000:80")
    ]
    assert build_check("runs", PodRight.ATTACH)[2:] == ["auth", "can-i", "create", "pods", "--subresource=attach"]


def test_pod_must_be_one_of_the_run() -> None:
    """A controller that was taken over must not lead what a person types into a Pod of another job."""
    assert build_look(PLACE)[2:] == ["get", "pod", "run-1-worker-0", "--output=json"]
    labelled = '{"metadata": {"labels": {"moorings/run": "%s"}}}'
    check_pod(PLACE, "run-1", labelled % "run-1", "")
    for said in (labelled % "run-2", '{"metadata": {}}', '{"metadata": {"labels": []}}'):
        with pytest.raises(MooringsError) as caught:
            check_pod(PLACE, "run-1", said, "")
        assert caught.value.code == "terminal.refused"
    for said in ("", "[]", "null", '{"metadata": null}'):
        with pytest.raises(MooringsError) as caught:
            check_pod(PLACE, "run-1", said, "error: it is gone")
        assert caught.value.code == "kubernetes.unreachable"
    with pytest.raises(MooringsError) as caught:
        check_pod(PLACE, "run-1", "", "Error from server (Forbidden): pods is forbidden")
    assert caught.value.code == "kubernetes.denied"


@cases(
    "place",
    [
        TaskContainerBody(namespace="--kubeconfig=/tmp/x", pod="a", container="task"),
        TaskContainerBody(namespace="runs", pod="--server=x", container="task"),
        TaskContainerBody(namespace="runs", pod="a/b", container="task"),
        TaskContainerBody(namespace="runs", pod="a", container=""),
    ],
)
def test_controller_cannot_lead_kubectl_by_flags(place: TaskContainerBody) -> None:
    with pytest.raises(MooringsError, match="no name in Kubernetes"):
        build_exec(place, ["true"], tty=False)


@cases(
    ("said", "errors", "code"),
    [
        ("no\n", "", "kubernetes.denied"),
        ("no - no RBAC policy matched\n", "", "kubernetes.denied"),
        ("", "warning\nThe connection to the server 10.0.0.1:6443 was refused\n", "kubernetes.unreachable"),
        ("", "", "kubernetes.unreachable"),
    ],
)
def test_answers_of_a_cluster_become_errors(said: str, errors: str, code: str) -> None:
    with pytest.raises(MooringsError) as caught:
        check_answer("runs", PodRight.EXEC, said, errors)
    assert caught.value.code == code
    assert caught.value.hint


def test_only_a_refusal_of_the_cluster_is_one() -> None:
    check_answer("runs", PodRight.EXEC, "yes\n", "Warning: old\n")
    check_refusal("error: lost connection to pod\n")
    with pytest.raises(MooringsError, match='User "ann" cannot'):
        check_refusal('Error from server (Forbidden): pods "a" is forbidden: User "ann" cannot get resource "pods"\n')


def test_missing_kubectl_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MooringsError) as caught:
        check_right("runs", PodRight.EXEC)
    assert caught.value.code == "kubernetes.missing"
