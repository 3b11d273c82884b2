"""A complete job from a job file, a command and flags, as ``moor run`` and programs give them.

Errors are found here, before any network call. A file goes through ``workloads.jobs.parse_job``; flags become the same
``JobSpec`` and pass the same checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s, parse_memory_bytes
from moorings.core.model.toml_table import TomlTable
from moorings.submission.job_environment import named_variables, read_env_files, read_regular_text
from moorings.workloads.arrays import parse_array
from moorings.workloads.environment import BASIC, ExportRule, choose_variables, parse_export
from moorings.workloads.images import absolute_image
from moorings.workloads.jobs import Accelerators, JobSpec, Resources, check_job, parse_job, read_job_table

JOB_FILE_BYTES_MAX = 4 << 20  # its environment and command, escaped

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFlags:
    """The flags of ``moor run``; None where a flag is not given."""

    size: int | None = None
    kind: str | None = None
    pool: str | None = None
    tasks: int | None = None
    cpus: int | None = None
    memory: str | None = None
    replicas: int | None = None
    time: str | None = None
    name: str | None = None
    priority: int | None = None
    project: str | None = None
    preemptible: bool = False
    retries: int | None = None
    exported: str | None = None
    after: tuple[str, ...] = ()
    array: str | None = None
    environment: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    workdir: str | None = None
    image: str | None = None
    keep_s: float | None = None


def build_job(
    given: str | Mapping[str, object] | None,
    command: Sequence[str],
    flags: JobFlags,
    environment: Mapping[str, str],
    folder: Path,
    project: str,
    *,
    usual_export: str = BASIC,
    warn: Callable[[str], None] = lambda _: None,
) -> JobSpec:
    """Build the job from a file, a command and flags; flags take precedence over the file.

    Args:
        given: a job file, or the tables of one, or None.
        command: program and arguments; empty: the file's.
        flags: of the command line.
        environment: the submitter's variables.
        folder: the current folder of the command, absolute.
        project: the project of a command without a flag for it; a file names its own.
        usual_export: the variables that travel if neither flag nor file says it.
        warn: gets a sentence on a variable that cannot travel, or on a file that others can read.

    Raises:
        MooringsError: ``job.invalid``, ``claim.*``, ``duration.invalid``, ``size.invalid``.
    """
    rule = parse_export(flags.exported) if flags.exported is not None else None
    image = absolute_image(flags.image, str(folder)) if flags.image is not None else None
    if isinstance(given, str):
        job = read_job(folder / given, environment, rule, usual_export, warn, image)
    elif given is not None:
        job = read_job_table(
            TomlTable.of(given, source="the job", code="job.invalid"),
            folder=str(folder),
            submitter=environment,
            default_name=_usual_name(given.get("command")),
            export=rule,
            usual_export=usual_export,
            on_dropped=warn,
            image=image,
        )
    else:
        chosen = choose_variables(rule or ExportRule(usual_export), environment)
        for sentence in chosen.dropped:
            warn(sentence)
        job = JobSpec(
            name=job_name_of(command),
            command=tuple(command),
            workdir=str(folder),
            environment=chosen.variables,
            project=project,
            image=image,
        )
    if command:
        job = replace(job, command=tuple(command))
    further = read_env_files(flags.env_files, folder, warn) | named_variables(flags.environment, environment)
    return check_job(_with_flags(replace(job, environment={**job.environment, **further}), flags, folder))


def read_job(
    path: Path,
    environment: Mapping[str, str],
    rule: ExportRule | None = None,
    usual_export: str = BASIC,
    warn: Callable[[str], None] = lambda _: None,
    image: str | None = None,
) -> JobSpec:
    """The job in a job file.

    Args:
        path: the file.
        environment: the submitter's variables.
        rule: which of them travel, whatever the file says.
        usual_export: which of them, if the file says nothing.
        warn: gets a sentence on each that cannot travel.
        image: its container image, whatever the file says.

    Raises:
        MooringsError: ``job.invalid``, with file and line.
    """
    try:
        text, _ = read_regular_text(path, JOB_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError(
            "job.invalid",
            f"the job file {path} cannot be read: {format_cause(error)}",
            hint="to run a command write: moor run [flags] -- COMMAND [ARGUMENT...]",
        ) from error
    return parse_job(
        text,
        source=str(path),
        folder=str(path.absolute().parent),
        submitter=environment,
        default_name=job_name_of([path.stem]),
        export=rule,
        usual_export=usual_export,
        on_dropped=warn,
        image=image,
    )


def job_name_of(command: Sequence[str]) -> str:
    """A job's name from its program: ``/usr/bin/python3`` gives ``python3``."""
    stem = _FOREIGN.sub("-", Path(command[0]).name if command else "")[:63]
    return stem.strip("._-") or "job"


def _usual_name(command: object) -> str:
    """The name of a job of tables that have none: its program's."""
    words = command.split() if isinstance(command, str) else command
    return job_name_of([word for word in words if isinstance(word, str)] if isinstance(words, list) else ())


def _with_flags(job: JobSpec, flags: JobFlags, folder: Path) -> JobSpec:
    wanted, needs = job.accelerators, job.resources
    if flags.array is not None:  # an empty one, as of an unset variable of a script, is no plain job
        parse_array(flags.array)
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
        resources=Resources(
            flags.cpus if flags.cpus is not None else needs.cpus,
            parse_memory_bytes(flags.memory) if flags.memory is not None else needs.memory_bytes,
            needs.nodes,
        ),
        time_limit_s=parse_duration_s(flags.time) if flags.time is not None else job.time_limit_s,
        priority=flags.priority if flags.priority is not None else job.priority,
        project=flags.project if flags.project is not None else job.project,
        preemptible=flags.preemptible or job.preemptible,
        retries=flags.retries if flags.retries is not None else job.retries,
        after=flags.after or job.after,
        array=flags.array if flags.array is not None else job.array,
        labels={**job.labels, **_labels(flags.labels)},
        setup=(*job.setup, *flags.setup),
        workdir=str((folder / flags.workdir).absolute()) if flags.workdir is not None else job.workdir,
        terminal_keep_s=flags.keep_s,
    )


def _labels(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, equals, _ in pairs:
        if not equals:
            raise MooringsError("label.invalid", f"--label {key[:80]!r} is not KEY=VALUE", hint="write team=nlp")
    return {key: value for key, _, value in pairs}
