"""A run's submission to Slurm: sbatch's arguments, the scripts and the file for the tasks. Pure.

The arguments are numbers and checked names only: a list of processes shows neither the command nor a variable. Those
stand in a file of the run's folder, 0600; the tasks read it themselves.
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.engines.launch import (
    describe_lost_functions,
    fixed_warn_signal,
    job_environment,
    parse_signal,
    rejected_error,
    signal_names,
    warn_signals,
    watched_job,
)
from moorings.engines.node_report import SETTINGS_FILE
from moorings.engines.run_folder import to_json
from moorings.ports.engine import RunSubmission
from moorings.slurm.engine.node_terminal import TERMINAL_FILE, NodeTerminal
from moorings.slurm.engine.settings import SubmitTarget
from moorings.slurm.host.job_table import KIND
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId

SCRIPTS = Path(__file__).parent
MARGIN_S = 60.0  # Slurm's limit beyond ours: it counts from the script's start, and stops with less grace
FIRST_S = 60.0  # at least as long a terminal waits for the first person to attach
WARN_S_MAX = 65_535  # the maximum of --signal
NICE_MAX = 2_147_483_645
MIB = 1 << 20

# Variables that a POSIX shell, or bash as one, does not let others set.
_SHELLS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "GROUPS", "LINENO", "OPTIND", "PPID", "SHELLOPTS", "UID"})
_COMMENT = re.compile(r"moorings:([A-Za-z0-9][A-Za-z0-9._-]{0,99})/([0-9]{1,6})")
_COMPLAINT = re.compile(r"\bsbatch: (?:error: )?")
_JOB = re.compile(rb"([0-9]{1,10})(;[A-Za-z0-9._-]+)?\s*")


def check_job(job: JobSpec) -> None:
    """Raise if Slurm cannot run the job.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    if job.image is not None:
        hint = "let its command start the container: apptainer exec IMAGE python3 train.py"
        raise rejected_error("a run on Slurm is not put into a container image", hint)
    if job.needs_devices and job.accelerators.kind != KIND:
        hint = "use the engine local for these, where the controller has a pool of them"
        raise rejected_error(
            f"Slurm has accelerators of kind {KIND}, and none of kind {job.accelerators.kind[:40]!r}", hint
        )
    if job.needs_devices and job.accelerators.size < 1:
        raise rejected_error("a run on Slurm cannot ask for a part of a pool without its devices", "ask for some")
    if job.accelerators.pool is not None:
        raise rejected_error("a job on Slurm cannot choose a pool: its cluster has one", "leave pool out of the job")
    if job.priority > 0:
        hint = "leave priority out, or let a QOS raise it"
        raise rejected_error(f"priority {job.priority}: a user of Slurm can only lower the priority of a job", hint)
    if job.resources.nodes > job.tasks:
        raise rejected_error(
            f"{job.tasks} tasks do not fill {job.resources.nodes} nodes", "ask for one node a task at most"
        )
    own = sorted(_SHELLS_OWN & job.environment.keys())
    if own:
        raise rejected_error(f"the variable {own[0]} is the shell's own", "leave it out of the job's environment")
    signal_of(fixed_warn_signal(job.checkpoint))


def describe_differences(job: JobSpec, place: SubmitTarget, user: str) -> tuple[str, ...]:
    """Return sentences for the user on what a job file means differently on Slurm than on one machine.

    Args:
        job: the checked job.
        place: its target.
        user: its user there, in words.
    """
    where = {"account": place.account, "partition": place.partition, "QOS": place.qos}
    named = "".join(f", {key} {value}" for key, value in where.items() if value)
    differences = [f"in Slurm it is a job of {user}{named}, under Slurm's priorities and limits"]
    differences += describe_lost_functions(job)
    if job.time_limit_s is None:
        differences.append("without a time it has the usual limit of Slurm's partition")
    if job.resources.memory_bytes is not None and job.resources.memory_bytes % (job.resources.cpus * MIB):
        differences.append(
            f"Slurm counts memory by CPU: {_memory_mib(job)} MiB for each of a task's {job.resources.cpus}"
        )
    if job.priority < 0:
        differences.append(f"its priority {job.priority} is --nice={_nice(job)} in Slurm")
    if job.preemptible and job.needs_devices and not job.checkpoint.resumable:
        differences.append(
            "it may be asked to make room, so Slurm may stop it, put it back into its queue and start it anew"
        )
    if job.retries:
        differences.append("Slurm itself starts it again if a node is lost, whatever its number of retries")
    if job.checkpoint.resumable:
        differences.append("it can be resumed, so Slurm may stop it, put it back into its queue and start it again")
    return tuple(differences)


def signal_of(name: str) -> str:
    """Return Slurm's name of the signal: ``USR1``.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    parse_signal(name)
    return name.upper().removeprefix("SIG")


def comment_of(run: RunId, attempt: int) -> str:
    """Return the comment that finds a job after its id was lost."""
    return f"moorings:{run}/{attempt}"


def parse_run_comment(comment: str) -> tuple[RunId, int] | None:
    """Return the run and the attempt in a job's comment, which its user wrote; None: it names none."""
    found = _COMMENT.fullmatch(comment)
    return (RunId(found[1]), int(found[2])) if found is not None else None


def build_submit(order: RunSubmission, place: SubmitTarget, attempt: Path, dependency: str = "") -> list[str]:
    """Return the command that submits a run.

    Args:
        order: the checked submission.
        place: account, partition and QOS.
        attempt: the folder of this attempt, absolute.
        dependency: the jobs that it waits for, as sbatch has it; empty: none.
    """
    job, contract = order.job, order.job.checkpoint
    words = [
        *("sbatch", "--parsable", "--export=ALL", "--input=/dev/null", "--chdir=/", "--open-mode=append"),
        *(f"--output={attempt}/job.log", f"--job-name={job.name}", f"--comment={comment_of(order.run, order.attempt)}"),
        *(f"--ntasks={job.tasks}", f"--cpus-per-task={job.resources.cpus}", f"--nodes={job.resources.nodes}"),
        *((f"--ipus={job.accelerators.size}",) if job.needs_devices else ()),
        "--requeue" if contract.resumable or job.preemptible else "--no-requeue",
    ]
    if job.preemptible and job.needs_devices:
        words.append("--ipu-preemptible=B:USR1")  # the script warns the tasks
    if job.accelerators.replicas is not None:
        words.append(f"--num-replicas={job.accelerators.replicas}")
    if job.resources.memory_bytes is not None:
        words.append(f"--mem-per-cpu={_memory_mib(job)}M")
    if job.time_limit_s is not None:
        words.append(f"--time={math.ceil((job.time_limit_s + contract.grace_s + MARGIN_S) / 60)}")
    if contract.warn_s > 0:
        # For a limit of the partition, or one that an admin changed. Under a limit of ours, our own warning comes
        # first.
        early_s = min(math.ceil(contract.warn_s + contract.grace_s), WARN_S_MAX)
        words.append(f"--signal=B:USR1@{early_s}")
    if job.priority < 0:
        words.append(f"--nice={_nice(job)}")
    if dependency:  # a job that can never start ends at once, whatever the cluster's own setting
        words += [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"]
    named = {"account": place.account, "partition": place.partition, "qos": place.qos}
    return [*words, *(f"--{key}={value}" for key, value in named.items() if value), f"{attempt}/batch.sh"]


def _memory_mib(job: JobSpec) -> int:
    """Return the memory of each CPU."""
    return math.ceil((job.resources.memory_bytes or 0) / job.resources.cpus / MIB)


def _nice(job: JobSpec) -> int:
    return min(-job.priority, NICE_MAX)


def parse_submit(answer: bytes) -> int:
    """Return the job's id.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = _JOB.fullmatch(answer)
    if found is None:
        raise MooringsError("slurm.unreadable", f"sbatch tells no job: {answer[:80]!r}")
    return int(found[1])


def explain_refusal(error: MooringsError, place: SubmitTarget) -> MooringsError | None:
    """Return the error for a job that Slurm refused; None: Slurm may still accept it."""
    if error.code not in ("slurm.refused", "slurm.denied"):
        return None
    words = "; ".join(part.strip() for part in _COMPLAINT.split(error.detail)[1:] if part.strip()) or error.detail
    named = {"account": place.account, "partition": place.partition, "qos": place.qos}
    where = ", ".join(f'{key} = "{value}"' for key, value in named.items() if value)
    hint = f"it was to go to {where}: see [slurm] in the controller's settings" if where else ""
    return rejected_error(f"Slurm refuses it: {words}", hint)


def build_files(
    order: RunSubmission,
    attempt: Path,
    python: str,
    program: Path,
    report: bytes | None = None,
    terminal: Path | None = None,
) -> dict[str, bytes]:
    """Return the files for the nodes, by name.

    Args:
        order: the checked submission.
        attempt: the folder of this attempt, absolute.
        python: what runs the program.
        program: of ``engines.node_program``.
        report: by which the job reports to a controller; None: it does not.
        terminal: the program of its terminal (``slurm.engine.node_terminal``); None: it has none.
    """
    job, contract = order.job, order.job.checkpoint
    warn_s = job.time_limit_s - contract.warn_s if job.time_limit_s is not None else 0.0
    batch = {
        "attempt": str(attempt),
        "tasks": str(job.tasks),
        "cpus": str(job.resources.cpus),
        "limit": _seconds(job.time_limit_s),
        "warn": _seconds(warn_s if 0 < contract.warn_s and warn_s > 0 else None),
        "grace": _seconds(contract.grace_s),
        "plain_signal": signal_of(fixed_warn_signal(contract)),
        "limit_signals": signal_names(warn_signals(contract.warn_signal, to_yield=False)),
        "yield_signals": signal_names(warn_signals(contract.warn_signal, to_yield=True)),
        "python": python,
        "program": str(program),
        "watched": "yes" if job.checkpoint_directory is not None else "",
        "reports": "yes" if report is not None else "",
        "terminal": "yes" if terminal is not None else "",
    }
    task = {
        "_moorings_attempt": str(attempt),
        "_moorings_program": str(program),
        "_moorings_plain": "" if job.needs_devices else "yes",
        "_moorings_terminal": str(terminal) if terminal is not None else "",
    }
    watched = {}
    if job.checkpoint_directory is not None:
        seen = watched_job(order, job.checkpoint_directory)
        watched = {"watched.json": to_json(seen)}
    if job.terminal_keep_s is not None:
        watched[TERMINAL_FILE] = to_json(terminal_of(job.terminal_keep_s, contract.grace_s))
    return {
        **watched,
        **({SETTINGS_FILE: report} if report is not None else {}),
        "batch.sh": _script("batch.sh", batch),
        "task.sh": _script("task.sh", task),
        "environment": _environment(order).encode("utf-8", "surrogateescape"),
    }


def terminal_of(keep_s: float, grace_s: float) -> NodeTerminal:
    """Return what the program of a terminal has to know of a job."""
    why = f"its terminal was unattended for {duration_text(keep_s)} ('--keep')"
    return NodeTerminal(keep_s, max(keep_s, FIRST_S), grace_s, why)


def _environment(order: RunSubmission) -> str:
    """Return shell commands that export the job's variables and set its command as the arguments."""
    job = order.job
    lines = [f"export {name}={shlex.quote(value)}" for name, value in job_environment(order).items()]
    lines += [
        f"_moorings_workdir={shlex.quote(job.workdir)}",
        f"set -- {shlex.join(job.started_command(order.resume_from))}",
    ]
    return "\n".join([*lines, ""])


def _script(name: str, values: dict[str, str]) -> bytes:
    head = "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
    return b"#!/bin/sh\n" + head.encode() + (SCRIPTS / name).read_bytes()


def _seconds(length_s: float | None) -> str:
    """Return a length for sleep(1), without exponent: not every sleep(1) reads one."""
    return "" if length_s is None else f"{length_s:.3f}"
