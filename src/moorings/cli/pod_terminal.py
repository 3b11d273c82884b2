"""Runs the person's own ``kubectl`` for a run on Kubernetes: with their kubeconfig, by their rights."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import termios
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, NoReturn

from moorings.core.model.errors import MooringsError
from moorings.engines.processes import die_with_parent
from moorings.kubernetes.engine.kubectl import (
    PodRight,
    build_attach,
    build_check,
    build_exec,
    build_look,
    check_answer,
    check_pod,
    check_refusal,
    failure_of,
)
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import TaskContainerBody

CHECK_TIMEOUT_S = 30.0
ATTENDED_S = 10.0  # between two words to the controller that the terminal is attended
ERRORS_BYTES_MAX = 1 << 14


def check_kubectl() -> None:
    """Raise unless there is a ``kubectl`` here.

    Raises:
        MooringsError: ``kubernetes.missing``.
    """
    if shutil.which("kubectl") is None:
        hint = "install kubectl, or run this where it is, with your own kubeconfig"
        raise MooringsError("kubernetes.missing", "there is no kubectl here", hint=hint)


def check_right(namespace: str, right: PodRight) -> None:
    """Raise unless the person has the right in the namespace, as the cluster says.

    Raises:
        MooringsError: ``kubernetes.missing``, ``kubernetes.denied``, ``kubernetes.unreachable``.
    """
    check_kubectl()
    check_answer(namespace, right, *_ask_cluster(build_check(namespace, right)))


def check_place(run: str, place: TaskContainerBody, right: PodRight) -> None:
    """Raise unless the person has the right, and the Pod is one of the run.

    Raises:
        MooringsError: as ``check_right``; ``terminal.refused``.
    """
    check_right(place.namespace, right)
    check_pod(place, run, *_ask_cluster(build_look(place)))


def _ask_cluster(call: Sequence[str]) -> tuple[str, str]:
    """What a ``kubectl`` says, and its errors."""
    try:
        asked = subprocess.run(
            call, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", check=False, timeout=CHECK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {CHECK_TIMEOUT_S:g} s"
    return asked.stdout, asked.stderr


def become_command(run: str, place: TaskContainerBody, command: Sequence[str], *, tty: bool) -> NoReturn:
    """Become the ``kubectl`` that runs a command beside a task.

    Raises:
        MooringsError: as ``check_place``.
    """
    check_place(run, place, PodRight.EXEC)
    call = build_exec(place, command, tty=tty)
    os.execvp(call[0], call)  # noqa: S606 - no shell


def attach(session: CommandContext, run: str, place: TaskContainerBody) -> str:
    """Attach this terminal to a task's, until ``kubectl`` ends; returns why it failed, or nothing.

    Meanwhile the controller hears that the terminal is attended.

    Raises:
        MooringsError: as ``check_place``.
    """
    check_place(run, place, PodRight.ATTACH)
    with _restored_terminal(0), tempfile.TemporaryFile() as errors, _attended(session, run):
        with run_kubectl(build_attach(place), errors=errors) as kubectl:
            code = kubectl.wait()
        errors.seek(0)
        said = errors.read(ERRORS_BYTES_MAX).decode(errors="replace")
    check_refusal(said)
    return failure_of(said, code) if code else ""


@contextlib.contextmanager
def run_kubectl(call: Sequence[str], *, errors: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A ``kubectl`` that ends with the block, or with this process."""
    kubectl = subprocess.Popen(call, stderr=errors, preexec_fn=partial(die_with_parent, os.getpid()))
    try:
        yield kubectl
    finally:
        kubectl.terminate()
        kubectl.wait()


@contextlib.contextmanager
def _restored_terminal(fd: int) -> Iterator[None]:
    """Afterwards the terminal is as it was, also if ``kubectl`` was killed."""
    before = termios.tcgetattr(fd)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # it has gone
            termios.tcsetattr(fd, termios.TCSANOW, before)


@contextlib.contextmanager
def _attended(session: CommandContext, run: str) -> Iterator[None]:
    """Say every few seconds that somebody is at the terminal: the cluster shows that to no controller."""
    done = threading.Event()

    def report() -> None:
        with session.new_client() as client:
            while not done.wait(ATTENDED_S):
                with contextlib.suppress(MooringsError, OSError):
                    client.get_terminal(run, attended=True)

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        done.set()
