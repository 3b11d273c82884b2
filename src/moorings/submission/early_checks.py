"""Looks at a job's program and folders before it is queued, so that a typing error does not wait in a queue.

Only where the job would run on this machine as this user: the controller is never asked about a person's files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.workloads.jobs import JobSpec

_FIRST_LINE_BYTES = 256  # as much as Linux reads of it


def check_startable(job: JobSpec) -> None:
    """Raise if the job cannot start here as things stand.

    Setup lines decide themselves what there is, and an image has programs of its own: then none is looked for.

    Raises:
        MooringsError: ``job.not_startable``.
    """
    _check_folder(job.workdir)
    _check_checkpoints(job.checkpoint_directory)
    if not job.setup and job.image is None:
        _check_program(job)


def _error(detail: str, hint: str = "") -> MooringsError:
    return MooringsError("job.not_startable", detail, hint=hint)


def _check_folder(workdir: str) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(workdir).st_mode)  # noqa: PTH116 - a Path would change the name
    except OSError as error:
        detail = f"the working folder {workdir} cannot be used: {error.strerror}"
        raise _error(detail, "choose it with --chdir") from error
    if not is_folder:
        raise _error(f"the working folder {workdir} is no folder", "choose it with --chdir")
    if not os.access(workdir, os.X_OK):
        raise _error(f"you may not enter the working folder {workdir}", "choose it with --chdir")


def _check_checkpoints(directory: str | None) -> None:
    """The folder of checkpoints is made before the tasks start: that must be possible."""
    if directory is None or os.path.lexists(directory):
        return
    parent = next(each for each in Path(directory).parents if os.path.lexists(each))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise _error(f"the folder of checkpoints {directory} cannot be made: {parent} is not yours to write in")


def _check_program(job: JobSpec) -> None:
    program = job.command[0]
    seen = ""
    for path in _candidates(job, program):
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - as above
        except OSError:
            continue
        if stat.S_ISREG(mode) and os.access(path, os.X_OK):
            _check_interpreter(path, job.workdir)
            return
        seen = seen or path
    if seen:
        raise _error(f"{seen} is not executable", f"chmod +x {seen}, or name its interpreter: python3 {program}")
    if "/" in program:
        raise _error(f"there is no program {program}", f"relative names start in {job.workdir}")
    where = f"PATH={job.environment['PATH']}" if "PATH" in job.environment else f"{os.defpath}: the job has no PATH"
    raise _error(f"the program {program} was not found", f"looked for in {where}")


def _candidates(job: JobSpec, program: str) -> Iterator[str]:
    """The paths that a start tries, as the kernel and ``execvp`` look for a program."""
    if "/" in program:
        yield os.path.join(job.workdir, program)  # noqa: PTH118 - a Path would change the name
        return
    for folder in job.environment.get("PATH", os.defpath).split(os.pathsep):
        yield os.path.join(job.workdir, folder, program)  # noqa: PTH118 - as above


def _check_interpreter(path: str, workdir: str) -> None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            first = file.read(_FIRST_LINE_BYTES).split(b"\n", 1)[0]
    except OSError:
        return  # it may be executed, not read
    words = first[2:].split() if first.startswith(b"#!") else []
    interpreter = os.path.join(workdir, os.fsdecode(words[0])) if words else ""  # noqa: PTH118 - as above
    if interpreter and not os.path.exists(interpreter):  # noqa: PTH110 - as above
        raise _error(f"{path} cannot be started: there is no {interpreter}, which its first line names")
