"""A command line and a job file become one complete job; errors are found here, before any network call.

The file goes through ``workloads.jobs.parse_job``; the flags become the same ``JobSpec`` and pass the same checks.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.client.causes import format_cause
from moorings.core.errors import MooringsError
from moorings.core.quantities import parse_duration_s
from moorings.workloads.jobs import Accelerators, JobSpec, check_job, parse_job

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFlags:
    """The flags of ``moor run``; None where a flag is not given."""

    size: int | None = None
    kind: str | None = None
    pool: str | None = None
    tasks: int | None = None
    replicas: int | None = None
    time: str | None = None
    name: str | None = None
    priority: int | None = None
    project: str | None = None
    preemptible: bool = False
    environment: tuple[str, ...] = ()
    workdir: str | None = None
    image: str | None = None


def build_job(
    file: str | None,
    command: Sequence[str],
    flags: JobFlags,
    environment: Mapping[str, str],
    folder: Path,
    project: str,
) -> JobSpec:
    """Build the job from a file, a command and flags; flags take precedence over the file.

    Args:
        file: a job file, or None.
        command: program and arguments; empty: the file's.
        flags: of the command line.
        environment: the submitter's variables.
        folder: the current folder of the command, absolute.
        project: the project of a command without a flag for it; a file names its own.

    Raises:
        MooringsError: ``job.invalid``, ``claim.*``, ``duration.invalid``.
    """
    if file is not None:
        job = read_job(folder / file, environment)
    else:
        passed = {name: environment[name] for name in ("PATH",) if name in environment}
        job = JobSpec(
            name=job_name_of(command), command=tuple(command), workdir=str(folder), environment=passed, project=project
        )
    if command:
        job = replace(job, command=tuple(command))
    return check_job(_with_flags(job, flags, environment, folder))


def read_job(path: Path, environment: Mapping[str, str]) -> JobSpec:
    """The job in a job file.

    Raises:
        MooringsError: ``job.invalid``, with file and line.
    """
    try:
        text = _regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError(
            "job.invalid",
            f"the job file {path} cannot be read: {format_cause(error)}",
            hint="to run a command write: moor run [flags] -- COMMAND [ARGUMENT...]",
        ) from error
    folder = path.absolute().parent
    return parse_job(
        text, source=str(path), folder=str(folder), submitter=environment, default_name=job_name_of([path.stem])
    )


def _regular_text(path: Path) -> str:
    """The text of a regular file; ``O_NONBLOCK``, as opening a FIFO would wait for a writer for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read()


def job_name_of(command: Sequence[str]) -> str:
    """A job's name from its program: ``/usr/bin/python3`` gives ``python3``."""
    stem = _FOREIGN.sub("-", Path(command[0]).name if command else "")[:63]
    return stem.strip("._-") or "job"


def _with_flags(job: JobSpec, flags: JobFlags, environment: Mapping[str, str], folder: Path) -> JobSpec:
    wanted = job.accelerators
    return replace(
        job,
        name=flags.name if flags.name is not None else job.name,
        tasks=flags.tasks if flags.tasks is not None else job.tasks,
        accelerators=Accelerators(
            kind=flags.kind if flags.kind is not None else wanted.kind,
            size=flags.size if flags.size is not None else wanted.size,
            replicas=flags.replicas if flags.replicas is not None else wanted.replicas,
            pool=flags.pool if flags.pool is not None else wanted.pool,
        ),
        time_limit_s=parse_duration_s(flags.time) if flags.time is not None else job.time_limit_s,
        priority=flags.priority if flags.priority is not None else job.priority,
        project=flags.project if flags.project is not None else job.project,
        preemptible=flags.preemptible or job.preemptible,
        environment={**job.environment, **_variables(flags.environment, environment)},
        workdir=str((folder / flags.workdir).absolute()) if flags.workdir is not None else job.workdir,
        image=flags.image if flags.image is not None else job.image,
    )


def _variables(given: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """``NAME=VALUE`` unchanged, ``NAME`` with the submitter's value; a missing variable is an error."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in environment:
            raise MooringsError(
                "job.invalid", f"--env {name[:80]}: there is no such variable here", hint="give it as --env NAME=VALUE"
            )
        found[name] = value if equals else environment[name]
    return found
