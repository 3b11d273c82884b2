"""``moor pause`` and ``moor resume``: stop a run for a while; ``resume`` also serves devices and pools."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from moorings.cli.arrays import elements_instead, one_element_error
from moorings.cli.command_tree import MoorCommand, NounGroup, examples, name_argument, names_argument, strip_nouns
from moorings.cli.commands.drain import resume_devices_command
from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import seconds_between
from moorings.submission.slurm_submission import submit_own
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import Deadline, parse_seconds
from moorings.terminal.following import END_WAIT_S
from moorings.terminal.progress import Progress
from moorings.wire.codec import parse_time
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import PauseBody, PauseRequest, ResumeRequest, RunBody
from moorings.workloads.runs import ENDED, RunState

_LOOK_S = 1.0


@click.command(
    cls=MoorCommand,
    help="Pause runs: each saves a checkpoint and stops, and its devices are free.\n\n"
    "Its processes are warned as before a preemption. Each is stopped once it has saved a whole checkpoint, at the "
    "latest when its time to save is over. 'moor resume' lets it wait in the queue again.",
    epilog=examples("moor pause digits", "moor pause digits --save-timeout 1h", "moor resume digits"),
)
@names_argument("run", required=True)
@click.option("--save-timeout", metavar="DURATION", help="Longest time to save (the job's 'warn').")
@click.option("--wait/--no-wait", default=True, help="Wait until they are paused (yes).")
@click.option("--timeout", metavar="DURATION", help="Give up after this time, as 90s or 10m, with exit code 124.")
@click.pass_obj
def pause(
    session: CommandContext, names: Sequence[str], *, save_timeout: str | None, wait: bool, timeout: str | None
) -> int:
    """Pause runs; the exit code says whether all are paused now, or being paused."""
    client, progress, limit = session.client, Progress(session.console), Deadline.of(timeout)
    request = PauseRequest(save_timeout_s=parse_seconds(save_timeout) if save_timeout is not None else None)
    pausing = [_pause(client, name, request) for name in strip_nouns("run", names)]
    session.if_interrupted = f"not waited for; being paused: {', '.join(run.id for run in pausing)}"
    code = ExitCode.OK
    for run in pausing:
        reached = _wait_for_pause(session, progress, run, limit) if wait else run
        session.console.print_line(f"run/{reached.id} {_pause_text(reached)}")
        code = ExitCode.FAILED if reached.pause is None else code
    return code


def _pause(client: Client, name: str, request: PauseRequest) -> RunBody:
    try:
        return client.pause_run(name, request)
    except MooringsError as error:
        raise one_element_error(elements_instead(client, name, error), name, "moor pause") from error


def _wait_for_pause(session: CommandContext, progress: Progress, run: RunBody, limit: Deadline) -> RunBody:
    """The run once it is PAUSED, has ended, or was resumed.

    Raises:
        MooringsError: ``wait.timeout``.
    """
    while run.state not in ENDED and run.state != RunState.PAUSED and run.pause is not None:
        if limit.is_over:
            progress.clear()
            raise MooringsError(
                "wait.timeout",
                f"{run.id} is {run.state}; the time is up",
                hint=f"it continues: 'moor pause {run.id}'",
            )
        progress.show_waiting(_saving_text(session, run, run.pause))
        time.sleep(min(_LOOK_S, limit.remaining_s(END_WAIT_S)))
        run = session.client.get_run(run.id)
    progress.clear()
    return run


def _saving_text(session: CommandContext, run: RunBody, pause: PauseBody) -> str:
    text = f"{run.id}: saves a checkpoint"
    if pause.stops_at is None or not session.console.err_is_tty:  # in a log each change is a line
        return text
    left_s = max(0.0, seconds_between(session.now(), parse_time(pause.stops_at)))
    return f"{text}; it is stopped in {duration_text(left_s)} at the latest"


def _pause_text(run: RunBody) -> str:
    if run.state in ENDED:
        return f"ended by itself: {run.state}"
    if run.pause is None:
        return "was resumed since"
    if run.state != RunState.PAUSED:
        return "is being paused"
    if run.checkpoint_fault:
        return f"paused; its checkpoints cannot be looked at: {run.checkpoint_fault}"
    saved = run.resume_point
    if saved is None and run.started_at is None:
        return "paused before it began"
    return f"paused; it resumes from {saved.path}" if saved is not None else "paused; no checkpoint of it is whole"


@click.command(
    "run",
    cls=MoorCommand,
    help="Let a paused run wait in the queue again.\n\nIt is given its newest whole checkpoint, or the one of --from.",
)
@name_argument("run")
@click.option("--from", "from_", metavar="CHECKPOINT", help="Resume from this checkpoint, by path or name.")
@click.pass_obj
def _resume_run(session: CommandContext, name: str, from_: str | None) -> None:
    (name,) = strip_nouns("run", [name])
    run = session.client.resume_run(name, ResumeRequest(resume_from=from_))
    submit_own(session, run)
    session.console.print_line(f"run/{run.id} resumed")


resume = NounGroup(
    name="resume",
    help="Let a paused run wait again, or put devices back into service.\n\nA name without a noun is that of a run.",
    epilog=examples(
        "moor resume digits",
        "moor resume digits --from step-2000.pt",
        "moor resume device pod64:17",
        "moor resume pool pod64",
    ),
    no_args_is_help=True,
    default_noun="run",
)
resume.add_command(_resume_run)
for _noun in ("device", "pool"):
    resume.add_command(resume_devices_command(_noun), _noun)
