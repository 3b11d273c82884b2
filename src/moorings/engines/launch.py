"""What every engine derives from a submission, and its errors."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from moorings.core.model.claims import AUTO_SIGNAL, AUTO_SIGNALS, CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.engines.node_program import WatchedJob
from moorings.ports.engine import RunSubmission
from moorings.workloads.environment import is_function_name
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId


def rejected_error(detail: str, hint: str = "") -> MooringsError:
    """Return the error for a request that will never be accepted."""
    return MooringsError("engine.rejected", detail, hint=hint)


def unavailable_error(detail: str, hint: str = "") -> MooringsError:
    """Return the error for a request that cannot be carried out now."""
    return MooringsError("engine.unavailable", detail, hint=hint, retryable=True)


@contextlib.contextmanager
def as_unavailable(what: str, hint: str = "") -> Iterator[None]:
    """Raise errors of files and of their contents as ``engine.unavailable``, whose detail begins with ``what``."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise unavailable_error(f"{what}: {error}", hint) from error


def no_terminal_error(scheduler: str) -> MooringsError:
    """Return the error for a terminal of a run that another scheduler starts."""
    hint = "run it on one machine, '--engine local'"
    return rejected_error(f"runs on {scheduler} have no terminal, and take no commands beside their tasks", hint)


def not_startable_error(order: RunSubmission, why: str) -> MooringsError:
    """Return the error for a submission that cannot start now."""
    return unavailable_error(f"run {order.run}, attempt {order.attempt}, cannot be started now: {why}")


def parse_signal(name: str, most: int = signal.SIGRTMIN - 1) -> signal.Signals:
    """Parse a signal (``USR1`` or ``SIGUSR1``) up to the number ``most``.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    found = signal.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
    if found is None or not 1 <= found <= min(most, signal.SIGRTMIN - 1):
        raise rejected_error(f"no signal {name[:20]!r} can be sent to a run", "use USR1, USR2, TERM, INT, ...")
    return found


def warn_signals(name: str, *, to_yield: bool) -> tuple[signal.Signals, ...]:
    """Return the signals of a contract's warning, the first choice first.

    By itself TERM warns of a request to yield only: before a time limit a program that ends at it would lose that time.
    """
    if name != AUTO_SIGNAL:
        return (parse_signal(name),)
    signals = tuple(signal.Signals[f"SIG{each}"] for each in AUTO_SIGNALS)
    return signals if to_yield else tuple(each for each in signals if each is not signal.SIGTERM)


def signal_names(signals: Iterable[signal.Signals]) -> str:
    """Return their names without ``SIG``, with spaces between them."""
    return " ".join(each.name.removeprefix("SIG") for each in signals)


def fixed_warn_signal(contract: CheckpointContract) -> str:
    """Return the signal of a contract's warning, for an engine that cannot see what a program handles: not ``auto``."""
    return "USR1" if contract.warn_signal == AUTO_SIGNAL else contract.warn_signal


def checkpoint_environment(order: RunSubmission) -> dict[str, str]:
    """Return a job's variables for its checkpoints."""
    variables = {}
    if order.job.checkpoint_directory is not None:
        variables["MOORINGS_CHECKPOINT_DIR"] = order.job.checkpoint_directory
    if order.resume_from is not None:
        variables["MOORINGS_RESUME_FROM"] = order.resume_from
    if order.resume_step is not None:
        variables["MOORINGS_RESUME_STEP"] = str(order.resume_step)
    return variables


def watched_job(order: RunSubmission, directory: str) -> WatchedJob:
    """Return what whoever looks at the checkpoints beside the tasks has to know of a job."""
    job, resumable = order.job, order.job.checkpoint.resumable
    given = job.resume_args if resumable else ()
    since, chosen = order.resume_since, order.resume_from
    return WatchedJob(directory, job.started_command(None), given, resumable, since, order.attempt, chosen)


def job_environment(order: RunSubmission) -> dict[str, str]:
    """Return a job's own variables and those of its run; callers add those of its partition.

    Exported functions of bash are not among them: neither a POSIX shell nor a Secret takes their names.
    """
    own = {name: value for name, value in order.job.environment.items() if not is_function_name(name)}
    named = {"MOORINGS_RUN_ID": order.run, "MOORINGS_JOB_ID": order.run}
    return {**own, **named, **checkpoint_environment(order)}


def describe_lost_functions(job: JobSpec) -> tuple[str, ...]:
    """Return a sentence on the exported functions of bash that do not travel, if there are some."""
    names = [name.removeprefix("BASH_FUNC_").removesuffix("%%") for name in job.environment if is_function_name(name)]
    return (f"functions of bash do not travel: {', '.join(sorted(names)[:5])}",) if names else ()


def log_files_of_tasks(
    run: RunId, tasks: int, task: int | None, log: Callable[[int], Path]
) -> list[tuple[Path, bytes]]:
    """Return the files with the output of one task, or of all, each with the prefix of its lines.

    Args:
        run: its run.
        tasks: its number of tasks.
        task: the rank of one; None: all.
        log: returns the file of a task.

    Raises:
        MooringsError: ``engine.rejected``: there is no such task.
    """
    if task is not None and not 0 <= task < tasks:
        raise rejected_error(f"run {run} has no task {task}", f"it has 0 to {tasks - 1}")
    ranks = range(tasks) if task is None else (task,)
    return [(log(rank), f"[{rank}] ".encode() if len(ranks) > 1 else b"") for rank in ranks]
