"""The job file: one format for every engine, as TOML, as ``moor run`` flags and as this Python object.

::

    name = "digits"
    command = ["python3", "train.py"]
    setup = ["module load cuda", "source $HOME/venv/bin/activate"]  # in bash, before the command
    tasks = 2                     # processes; one GCD each
    time = "10:00"                # limit, in Slurm's form; none: unlimited
    workdir = "."                 # relative to the job file
    project = "default"
    priority = 0
    preemptible = false           # may be stopped for a guaranteed claim, and resumes later
    retries = 0                   # how often it resumes after the loss of its machine or devices
    image = "registry.example/digits:1"  # the container image in which it runs
    array = "0-99%8"              # one run for each index, of which 8 at most ask for devices at once
    after = ["prepare:ok"]        # runs that must have ended before it asks for devices; `:ok`, `:any` or `:failed`

    [accelerators]
    kind = "ipu"
    size = 4                      # devices of the whole job; 0: a job without devices
    replicas = 2                  # model replicas of the whole job; default: one a task
    pool = "pod64"                # optional

    [resources]
    cpus = 2                      # a task
    memory = "4G"                 # a task
    nodes = 1

    [environment]
    export = "ALL"                # of the submitter's variables: ALL, BASIC, NONE, or "NAME,NAME=value"
    pass = ["HF_HOME"]            # further ones by name
    set = { OMP_NUM_THREADS = "1" }

    [checkpoint]
    directory = "checkpoints"
    resumable = true
    warn_signal = "auto"          # the first of USR2, USR1, TERM that the program handles
    warn = "2:00"
    grace = "0:30"
    resume_arg = "--resume {}"    # appended to the command when it resumes; or read MOORINGS_RESUME_FROM
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from moorings.core.model.claims import TIME_LIMIT_S_MAX, CheckpointContract, ClaimSpec, check_spec
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.machine import MACHINE_CPUS, MACHINE_KIND, MACHINE_MEMORY
from moorings.core.model.quantities import parse_duration_s, parse_memory_bytes
from moorings.core.model.serialization import OMIT_IF_DEFAULT, to_plain
from moorings.core.model.toml_table import TomlTable
from moorings.workloads.appliance import WorkflowPart, check_workflow_part
from moorings.workloads.arrays import ArrayPart, parse_array
from moorings.workloads.commands import COMMAND_ARGS_MAX, COMMAND_CHARS_MAX
from moorings.workloads.dependencies import check_after
from moorings.workloads.environment import (
    BASIC,
    NONE,
    SETUP_CHARS_MAX,
    SETUP_LINES_MAX,
    ExportedVariables,
    ExportRule,
    check_environment,
    choose_variables,
    parse_export,
    with_setup,
)
from moorings.workloads.images import absolute_image, check_image
from moorings.workloads.labels import check_labels

JOB_NAME_CHARS_MAX = 63
TASKS_MAX = 4096
RETRIES_MAX = 100

_JOB_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What the job requests of a pool: devices in total, and model replicas in total (None: one a task).

    ``resources`` are secondary resources of the pool, in base units: ``memory`` of an appliance's management node, in
    bytes.
    """

    kind: str = "ipu"
    size: int = 1
    replicas: int | None = None
    pool: str | None = None
    resources: Mapping[str, int] = field(default_factory=dict, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one task needs of its host, and the number of hosts of the job.

    One CPU a task is the default. A job with devices that names no more, and no memory, is not counted against the CPUs
    of a machine: its tasks feed their devices.
    """

    cpus: int = 1
    memory_bytes: int | None = None
    nodes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job, complete: nothing of the submitter's environment is looked up later.

    Attributes:
        command: program and arguments of every task; no shell is involved.
        workdir: absolute working folder.
        environment: the variables of every task, before the binding is added; nothing else is inherited.
        tasks: processes, one a GCD.
        time_limit_s: wall-clock limit of the run, or None.
        checkpoint_directory: absolute folder, or None.
        image: the container image in which the tasks run, by its name in a registry or the path of a file; None:
            they run on the machine itself.
        labels: chosen by its owner; they may be changed.
        lease_s: the job is cancelled unless its claim's lease is renewed within this time; None: no lease.
        appliance: its part in a workflow of an appliance.
        preemptible: may be asked to yield: it is warned, stopped, and started again later.
        resume_args: further arguments of an attempt that resumes; ``{}`` in them is the checkpoint's path.
        retries: how often it resumes after an attempt was lost through no fault of its program.
        setup: lines that bash runs before the command, which then has their variables and folder.
        terminal_keep_s: task 0 gets a terminal, and the job ends once that was unattended for so long; None: no
            terminal.
        after: the runs that it waits for, each as ``RUN[:ok|any|failed]``.
        array: the indexes of its array, as ``0-99%8``; empty: it is one run.
    """

    name: str
    command: tuple[str, ...]
    workdir: str
    environment: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1
    accelerators: Accelerators = Accelerators()
    resources: Resources = Resources()
    project: str = "default"
    priority: int = 0
    time_limit_s: float | None = None
    checkpoint: CheckpointContract = CheckpointContract()
    checkpoint_directory: str | None = None
    image: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict, metadata=OMIT_IF_DEFAULT)
    lease_s: float | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    appliance: WorkflowPart | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    preemptible: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    resume_args: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    retries: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    setup: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    terminal_keep_s: float | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    after: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    array: str = field(default="", metadata=OMIT_IF_DEFAULT)

    def started_command(self, checkpoint: str | None) -> tuple[str, ...]:
        """What is started: setup and command, of an attempt that resumes from a checkpoint or of one that begins.

        The command's own words are its last ones: arguments can be added at the end.
        """
        given = self.resume_args if checkpoint is not None else ()
        resumed = (*self.command, *(each.replace("{}", checkpoint or "") for each in given))
        return with_setup(self.setup, resumed)

    @property
    def needs_devices(self) -> bool:
        """Whether it needs devices, or a part of the pool of an appliance; else only CPUs and memory."""
        return bool(self.accelerators.size or self.accelerators.resources or self.appliance is not None)

    @property
    def command_line(self) -> str:
        """The command as typed in a shell."""
        return shlex.join(self.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """The part of a job in memory: what decisions and lists need.

    Command, environment and the rest may be half a megabyte: they stay in the database until they are needed.

    Attributes:
        body_bytes: size of the whole job, by ``job_size_bytes``; 0: it was not counted.
        array: its place in an array; None: it is in none.
    """

    name: str
    tasks: int = 1
    accelerators: Accelerators = Accelerators()
    project: str = "default"
    priority: int = 0
    checkpoint_directory: str | None = None
    appliance: WorkflowPart | None = None
    body_bytes: int = 0
    retries: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    array: ArrayPart | None = field(default=None, metadata=OMIT_IF_DEFAULT)


def summarize_job(job: JobSpec, body_bytes: int = 0) -> JobSummary:
    """The summary of a job of so many bytes."""
    return JobSummary(
        name=job.name,
        tasks=job.tasks,
        accelerators=job.accelerators,
        project=job.project,
        priority=job.priority,
        checkpoint_directory=job.checkpoint_directory,
        appliance=job.appliance,
        body_bytes=body_bytes,
        retries=job.retries,
    )


def job_size_bytes(job: JobSpec) -> int:
    """The size of a job in bytes as ASCII JSON, its form in the database."""
    return len(json.dumps(to_plain(job), separators=(",", ":")))


def check_job(job: JobSpec) -> JobSpec:
    """``job``, if it is valid on every engine.

    Raises:
        MooringsError: ``job.invalid``, or an error of ``core.claims.check_spec`` about its claim.
    """
    if not _JOB_NAME.fullmatch(job.name):
        raise MooringsError(
            "job.invalid",
            f"job name {job.name[:80]!r} is not allowed",
            hint=f"use up to {JOB_NAME_CHARS_MAX} letters, digits, '-', '.' and '_'",
        )
    if not job.command or not job.command[0]:
        raise MooringsError("job.invalid", "the job has no command", hint="moor run --ipus 4 -- COMMAND [ARGUMENT...]")
    if len(job.command) > COMMAND_ARGS_MAX or sum(map(len, (*job.command, *job.resume_args))) > COMMAND_CHARS_MAX:
        raise MooringsError("job.invalid", "the command is too long", hint="put it into a script and run that")
    if not job.workdir.startswith("/"):
        raise MooringsError("job.invalid", f"the working folder {job.workdir[:200]!r} is not absolute")
    _check_texts(job)
    if not 1 <= job.tasks <= TASKS_MAX:
        raise MooringsError("job.invalid", f"{job.tasks} tasks are out of range", hint=f"ask for 1 to {TASKS_MAX}")
    memory_bytes = job.resources.memory_bytes
    if job.resources.cpus < 1 or job.resources.nodes < 1 or (memory_bytes is not None and memory_bytes < 1):
        raise MooringsError("job.invalid", "cpus, memory and nodes must be at least 1")
    for name, length_s in (("warn", job.checkpoint.warn_s), ("grace", job.checkpoint.grace_s)):
        if not 0 <= length_s <= TIME_LIMIT_S_MAX:  # nor NaN
            raise MooringsError("job.invalid", f"{name} {length_s:g} s is out of range", hint="use 0 s to 366 days")
    _check_retries(job)
    _check_setup(job.setup)
    check_environment(job.environment)
    if job.image is not None:
        check_image(job.image)
    if job.terminal_keep_s is not None and not 0 <= job.terminal_keep_s <= TIME_LIMIT_S_MAX:  # nor NaN
        raise MooringsError(
            "job.invalid", f"keep {job.terminal_keep_s:g} s is out of range", hint="use 0 s to 366 days"
        )
    check_after(job.after)
    _check_array(job)
    check_labels(job.labels)
    if job.appliance is not None:
        check_workflow_part(job.appliance)
    claim_spec_for(job)
    return job


def _check_texts(job: JobSpec) -> None:
    if job.resume_args and not any("{}" in each for each in job.resume_args):
        raise MooringsError(
            "job.invalid",
            "no resume argument has {} where the checkpoint's path goes",
            hint='resume_arg = "--resume_from_checkpoint {}"',
        )
    words = (*job.command, *job.resume_args, *job.setup)
    texts = (*words, job.workdir, job.checkpoint_directory or "", *job.environment.values())
    if any("\0" in text for text in texts):
        raise MooringsError("job.invalid", "a command, folder or variable holds a NUL character")


def _check_retries(job: JobSpec) -> None:
    if not 0 <= job.retries <= RETRIES_MAX:
        raise MooringsError("job.invalid", f"{job.retries} retries are out of range", hint=f"use 0 to {RETRIES_MAX}")
    if job.retries and not (job.checkpoint.resumable and job.checkpoint_directory is not None):
        raise MooringsError(
            "job.invalid",
            "only a job that resumes from a checkpoint is retried; any other would begin again",
            hint="'resumable = true' and 'directory' in [checkpoint] of its job file",
        )


def _check_setup(setup: Sequence[str]) -> None:
    if len(setup) > SETUP_LINES_MAX or sum(map(len, setup)) > SETUP_CHARS_MAX:
        detail = f"setup has more than {SETUP_LINES_MAX} lines or {SETUP_CHARS_MAX} characters"
        raise MooringsError("job.invalid", detail, hint='put them into a file: setup = ["source setup.sh"]')


def _check_array(job: JobSpec) -> None:
    if not job.array:
        return
    indexes, _ = parse_array(job.array)
    if len(element_name(job.name, indexes[-1])) > JOB_NAME_CHARS_MAX:
        raise MooringsError("job.invalid", f"with its index the name {job.name} is longer than {JOB_NAME_CHARS_MAX}")


def element_name(name: str, index: int) -> str:
    """The name of an array's element."""
    return f"{name}-{index}"


def element_of(job: JobSpec, part: ArrayPart) -> JobSpec:
    """The job of one element of an array."""
    environment = {**job.environment, **part.variables}
    return replace(job, name=element_name(job.name, part.index), environment=environment, array="")


def element_of_run(job: JobSpec, run: str) -> JobSpec:
    """The job of the element that a run is, by its id; of a job that is no array the job itself.

    Raises:
        ValueError: the array has no such element.
    """
    if not job.array:
        return job
    array, _, index = run.rpartition("-")
    indexes, limit = parse_array(job.array)
    if not array or not index.isdecimal() or int(index) not in indexes:
        raise ValueError(f"run {run} is no element of {job.array}")
    return element_of(job, ArrayPart(array, int(index), len(indexes), limit))


def claim_spec_for(job: JobSpec) -> ClaimSpec:
    """The request of the job's claim: one GCD a task; replicas per GCD from the job's total.

    Raises:
        MooringsError: the replicas do not divide over the tasks, or an error of ``core.claims.check_spec``.
    """
    if not job.needs_devices:
        return _claim_spec_without_devices(job)
    total = job.accelerators.replicas if job.accelerators.replicas is not None else job.tasks
    if total < 1 or total % job.tasks:
        raise MooringsError(
            "claim.replicas_invalid",
            f"{total} replicas do not divide over {job.tasks} tasks",
            hint="the number of replicas of the job must be a multiple of its tasks (GCDs)",
        )
    return check_spec(
        ClaimSpec(
            kind=job.accelerators.kind,
            size=job.accelerators.size,
            gcds=job.tasks,
            replicas_per_gcd=total // job.tasks,
            pool=PoolName(job.accelerators.pool) if job.accelerators.pool is not None else None,
            project=job.project,
            priority=job.priority,
            time_limit_s=job.time_limit_s,
            preemptible=job.preemptible,
            checkpoint=job.checkpoint,
            resources=job.accelerators.resources,
            lease_s=job.lease_s,
        )
    )


def counted_claim_spec(job: JobSpec) -> ClaimSpec:
    """``claim_spec_for`` a job on the controller's machine, with the CPUs and memory that are counted there.

    Raises:
        MooringsError: as for ``claim_spec_for``.
    """
    spec = claim_spec_for(job)
    return replace(spec, machine=machine_amounts(job)) if job.needs_devices else spec


def _claim_spec_without_devices(job: JobSpec) -> ClaimSpec:
    accelerators = job.accelerators
    if accelerators.pool is not None:
        raise MooringsError("job.invalid", "a job without devices is in no pool", hint="leave its pool out")
    if accelerators.replicas is not None:
        raise MooringsError(
            "claim.replicas_invalid", "a job without devices has no model replicas", hint="leave them out"
        )
    return check_spec(
        ClaimSpec(
            kind=MACHINE_KIND,
            size=0,
            resources=machine_amounts(job),
            project=job.project,
            priority=job.priority,
            time_limit_s=job.time_limit_s,
            preemptible=job.preemptible,
            checkpoint=job.checkpoint,
            lease_s=job.lease_s,
        )
    )


def machine_amounts(job: JobSpec) -> dict[str, int]:
    """The CPUs and the bytes of memory of all its tasks, for a machine that counts them; empty: it names none."""
    wanted = job.resources
    if job.needs_devices and wanted.cpus == 1 and wanted.memory_bytes is None:
        return {}
    found = {MACHINE_CPUS: wanted.cpus * job.tasks}
    if wanted.memory_bytes is not None:
        found[MACHINE_MEMORY] = wanted.memory_bytes * job.tasks
    return found


def parse_job(
    text: str,
    *,
    source: str,
    folder: str,
    submitter: Mapping[str, str],
    default_name: str = "job",
    export: ExportRule | None = None,
    usual_export: str = BASIC,
    on_dropped: Callable[[str], None] = lambda _: None,
    image: str | None = None,
) -> JobSpec:
    """The job of a job file.

    Args:
        text: the TOML text.
        source: the file's name, for messages.
        folder: absolute folder that relative paths start from (the job file's own).
        submitter: the submitter's environment, from which variables travel.
        default_name: the name, if the file has none.
        export: which of them, instead of what the file says.
        usual_export: which of them, if neither says it.
        on_dropped: gets a sentence on each variable that cannot travel.
        image: its container image, instead of what the file says.

    Raises:
        MooringsError: ``job.invalid`` (file and line named), or ``claim.*`` if the numbers cannot work.
    """
    top = TomlTable.parse(text, source=source, code="job.invalid")
    return read_job_table(
        top,
        folder=folder,
        submitter=submitter,
        default_name=default_name,
        export=export,
        usual_export=usual_export,
        on_dropped=on_dropped,
        image=image,
    )


def read_job_table(
    top: TomlTable,
    *,
    folder: str,
    submitter: Mapping[str, str],
    default_name: str,
    export: ExportRule | None,
    usual_export: str,
    on_dropped: Callable[[str], None],
    image: str | None = None,
) -> JobSpec:
    """The job of the top table of a job file; arguments and errors are those of ``parse_job``."""
    accelerators, resources = _accelerators(top.table("accelerators")), _resources(top.table("resources"))
    contract, directory, resume_args = _checkpoint(top.table("checkpoint"), folder)
    named = _image(top, folder)
    image = named if image is None else image
    choose = partial(choose_variables, submitter=submitter, into_image=image is not None)
    environment = _environment(top.table("environment"), choose, export, usual_export, on_dropped)
    job = JobSpec(
        name=top.text("name", default_name),
        command=_command(top),
        workdir=_absolute(top.text("workdir", "."), folder),
        environment=environment,
        tasks=top.integer("tasks", 1),
        accelerators=accelerators,
        resources=resources,
        project=top.text("project", "default"),
        priority=top.integer("priority", 0),
        time_limit_s=_duration(top, "time") if top.has("time") else None,
        checkpoint=contract,
        checkpoint_directory=directory,
        image=image,
        preemptible=top.boolean("preemptible", default=False),
        resume_args=resume_args,
        retries=top.integer("retries", 0),
        setup=top.strings("setup", ()),
        after=top.strings("after", ()),
        array=top.text("array") if top.has("array") else "",
    )
    top.reject_unknown_keys()
    try:
        return check_job(job)
    except MooringsError as error:
        raise MooringsError(error.code, f"{_where(top, error.code)}: {error.detail}", hint=error.hint) from error


def _where(top: TomlTable, code: str) -> str:
    """``file:line`` of the number that caused an error about the claim."""
    accelerators = top.table("accelerators")
    return {
        "claim.size_invalid": accelerators.location("size"),
        "claim.gcds_invalid": top.location("tasks"),
        "claim.replicas_invalid": accelerators.location("replicas"),
    }.get(code, top.location())


def _command(top: TomlTable) -> tuple[str, ...]:
    value = top.raw_value("command")
    if isinstance(value, str):
        if len(value) > COMMAND_CHARS_MAX:  # shlex takes time with the square of a word's length
            top.fail_at("command", "the command is too long", hint="put it into a script and run that")
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            top.fail_at("command", f"the command cannot be read: {error}")
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    top.fail_at("command", "command must be a string or a list of strings", hint='command = ["python3", "train.py"]')


def _accelerators(table: TomlTable) -> Accelerators:
    wanted = Accelerators(
        kind=table.text("kind", "ipu"),
        size=table.integer("size", 1),
        replicas=table.integer("replicas") if table.has("replicas") else None,
        pool=table.text("pool") if table.has("pool") else None,
    )
    table.reject_unknown_keys()
    return wanted


def _resources(table: TomlTable) -> Resources:
    memory: int | None = None
    if table.has("memory"):
        written = table.text("memory")
        try:
            memory = parse_memory_bytes(written)
        except MooringsError as error:
            table.fail_at("memory", error.detail, error.hint)
    wanted = Resources(table.integer("cpus", 1), memory, table.integer("nodes", 1))
    table.reject_unknown_keys()
    return wanted


def _image(top: TomlTable, folder: str) -> str | None:
    """The image; the table ``kubernetes`` has it in files of earlier releases."""
    kubernetes = top.table("kubernetes")
    table = kubernetes if kubernetes.has("image") else top
    if kubernetes.has("image") and top.has("image"):
        kubernetes.fail_at("image", "the file names an image twice", hint="leave the one in [kubernetes] out")
    image = absolute_image(table.text("image"), folder) if table.has("image") else None
    kubernetes.reject_unknown_keys()
    return image


def _environment(
    table: TomlTable,
    choose: Callable[[ExportRule], ExportedVariables],
    export: ExportRule | None,
    usual: str,
    on_dropped: Callable[[str], None],
) -> dict[str, str]:
    chosen = _export_rule(table, usual)
    found = choose(export or chosen)
    for sentence in found.dropped:
        on_dropped(sentence)
    variables = dict(found.variables)
    given = table.table("set")
    for name in given.keys():
        variables[name] = given.text(name)
    table.reject_unknown_keys()
    return variables


def _export_rule(table: TomlTable, usual: str) -> ExportRule:
    """The rule of the file; ``pass`` alone means only these, as it did before there was ``export``."""
    names = table.strings("pass", ())
    if not table.has("export"):
        return ExportRule(NONE, names) if table.has("pass") else ExportRule(usual)
    try:
        rule = parse_export(table.text("export"))
    except MooringsError as error:
        table.fail_at("export", error.detail, error.hint)
    return replace(rule, names=(*rule.names, *names))


def _checkpoint(table: TomlTable, folder: str) -> tuple[CheckpointContract, str | None, tuple[str, ...]]:
    usual = CheckpointContract()
    directory = _absolute(table.text("directory"), folder) if table.has("directory") else None
    contract = CheckpointContract(
        resumable=table.boolean("resumable", default=usual.resumable),
        warn_signal=table.text("warn_signal", usual.warn_signal).removeprefix("SIG"),
        warn_s=_duration(table, "warn") if table.has("warn") else usual.warn_s,
        grace_s=_duration(table, "grace") if table.has("grace") else usual.grace_s,
    )
    resume_args = _resume_args(table) if table.has("resume_arg") else ()
    table.reject_unknown_keys()
    return contract, directory, resume_args


def _resume_args(table: TomlTable) -> tuple[str, ...]:
    text = table.text("resume_arg")
    hint = 'resume_arg = "--resume_from_checkpoint {}"'
    if len(text) > COMMAND_CHARS_MAX or "{}" not in text:
        table.fail_at("resume_arg", "resume_arg must have {} where the checkpoint's path goes", hint)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        table.fail_at("resume_arg", f"resume_arg cannot be read: {error}", hint)


def _duration(table: TomlTable, key: str) -> float:
    value = table.raw_value(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return table.number(key)
    if isinstance(value, str):
        try:
            return parse_duration_s(value)
        except MooringsError as error:
            table.fail_at(key, error.detail, error.hint)
    table.fail_at(key, f"{key} must be a duration", hint='write "10:00", "2h" or a number of seconds')


def _absolute(path: str, folder: str) -> str:
    return path if path.startswith("/") else f"{folder.rstrip('/')}/{path}".removesuffix("/.") or "/"
