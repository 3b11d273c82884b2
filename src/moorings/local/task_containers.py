"""The containers of one run's tasks: what is started in the place of a command, and which processes get a signal.

The decisions are in ``engines.containers``; here are the run's folder, the machine and the clock.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from moorings.engines.containers import (
    FABRIC,
    PAUSE,
    RUNTIME_END_S,
    RUNTIME_VARIABLES,
    ContainerTask,
    RuntimeKind,
    build_beside,
    build_run,
    build_variables,
    choose_folders,
    choose_receivers,
    container_name,
    find_own_runtime,
    find_programs,
    remove_stale_records,
)
from moorings.engines.processes import Process, ProcessTable, descendants, is_in_container, send_signal
from moorings.ports.engine import RunSubmission

REASON_BYTES_MAX = 4096
_PODMAN_FAILED, _ERROR = (125, 126, 127), "Error: "  # how podman exits then, and begins its last line
_INIT_FAILED, _INIT_ERROR = 1, "ERROR (catatonit:"  # and the first process in a container
_Command = tuple[tuple[str, ...], dict[str, str]]


class TaskContainers:
    """The containers of a run with an image.

    Args:
        order: the run.
        folder: the run's folder.

    Raises:
        MooringsError: ``container.no_runtime``, ``engine.rejected``.
    """

    def __init__(self, order: RunSubmission, folder: Path) -> None:
        assert order.job.image is not None
        self._image, self._order = order.job.image, order
        self._runtime = find_own_runtime(self._image)
        self._own = {name: os.environ[name] for name in RUNTIME_VARIABLES if name in os.environ}
        job = order.job
        named = (self._own.get("HOME"), job.workdir, job.checkpoint_directory, order.resume_from, str(folder))
        paths = [Path(each) for each in named if each]
        # A link into another file system leads nowhere without its target.
        self._folders = choose_folders(str(each) for path in paths if path.exists() for each in (path, path.resolve()))
        self._alone_since_s: float | None = None
        marked = {"MOORINGS_RUN_ID": order.run}  # by which what podman leaves behind is found
        remove_stale_records(self._runtime, build_variables(self._runtime, self._own, marked))

    def place(
        self, rank: int, command: tuple[str, ...], variables: Mapping[str, str], *, is_terminal: bool
    ) -> _Command:
        """The command of a task, and its variables."""
        task = self._task(rank, command, variables, is_terminal=is_terminal)
        return build_run(self._runtime, task), build_variables(self._runtime, self._own, variables)

    def place_beside(self, command: tuple[str, ...], variables: Mapping[str, str], *, is_terminal: bool) -> _Command:
        """The command of a program beside task 0, and its variables."""
        task = self._task(0, command, variables, is_terminal=is_terminal)
        return build_beside(self._runtime, task), build_variables(self._runtime, self._own, variables)

    def find_programs(self, tasks: Iterable[int], table: ProcessTable) -> list[Process]:
        """The uppermost processes of the tasks' programs."""
        everyone = descendants([os.getpid()], table)
        return find_programs(self._runtime.kind, tasks, everyone, table, is_in_container)

    def choose_receivers(self, everyone: Iterable[Process], signum: int) -> list[Process]:
        """The processes that get a signal now."""
        processes = list(everyone)
        choose = partial(choose_receivers, processes, signum, is_in_container)
        if signum != signal.SIGKILL:
            return choose(runtime_is_late=False)
        now_s = time.monotonic()
        if any(is_in_container(each.pid) for each in processes):
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = now_s
        return choose(runtime_is_late=self._alone_since_s is not None and now_s - self._alone_since_s > RUNTIME_END_S)

    def end_pause(self, table: ProcessTable) -> None:
        """KILL what keeps the person's user namespace for the next podman: no task needs it, and it ignores the end."""
        for process in descendants([os.getpid()], table):
            if process.name == PAUSE and not is_in_container(process.pid):
                send_signal(process, signal.SIGKILL)

    def explain_failure(self, rank: int, code: int, log: Path) -> tuple[int, str] | None:
        """The exit code, as a shell has it, and why a task did not start; None: its program ran, as far as one sees."""
        said = _last_line(log) if self._runtime.kind is RuntimeKind.PODMAN else ""
        if code == _INIT_FAILED and said.startswith(_INIT_ERROR):
            is_missing = "No such file" in said
            how = "was not found" if is_missing else "cannot be executed"
            return (127 if is_missing else 126), f"the program of task {rank} {how} in the image {self._image}"
        if code in _PODMAN_FAILED and said.startswith(_ERROR):
            return code, f"podman could not run task {rank} in {self._image}: {said.removeprefix(_ERROR)}"
        return None

    def _task(
        self, rank: int, command: tuple[str, ...], variables: Mapping[str, str], *, is_terminal: bool
    ) -> ContainerTask:
        order = self._order
        devices = order.binding.gcds[rank].device_files
        return ContainerTask(
            image=self._image,
            name=container_name(order.run, order.attempt, rank),
            command=command,
            workdir=order.job.workdir,
            folders=self._folders,
            devices=(*devices, *((FABRIC,) if devices and Path(FABRIC).exists() else ())),
            variables=variables,
            is_terminal=is_terminal,
        )


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - REASON_BYTES_MAX, 0))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")
