"""``moor logs``, ``moor cancel`` and ``moor wait``: commands for existing runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from moorings.cli.arrays import (
    array_instead,
    elements_instead,
    end_text,
    find_run,
    follow_array,
    one_element_error,
    unless_array,
    worst_exit_code,
)
from moorings.cli.command_tree import (
    MoorCommand,
    complete_names,
    examples,
    name_argument,
    names_argument,
    strip_nouns,
)
from moorings.cli.confirm import confirm, yes_option
from moorings.cli.named import resolve_any, resolve_run
from moorings.client.requests import RunFilter
from moorings.core.model.claims import ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text, join_first
from moorings.submission.slurm_submission import cancel_array, cancel_own, report_own
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import Deadline, parse_since
from moorings.terminal.following import (
    END_WAIT_S,
    REASON_FRESH_S,
    RunFollower,
    format_wait,
    last_lines,
    run_end_text,
    run_exit_code,
    wait_for_claim,
)
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import RunBody
from moorings.workloads.runs import ENDED

_timeout = click.option(
    "--timeout", metavar="DURATION", help="Give up after this time, as 90s or 10m, with exit code 124."
)


@click.command(
    cls=MoorCommand,
    help="Show the output of a run.\n\nOf several tasks, each line stands behind its rank in brackets.",
    epilog=examples(
        "moor logs digits",
        "moor logs -f run-7f3kq2m4xw2a",
        "moor logs -f digits --tail 20",
        "moor logs digits --since 10m",
        "moor logs digits --rank 1",
    ),
)
@name_argument("run")
@click.option("-f", "--follow", is_flag=True, help="Continue until the run has ended.")
@click.option("--task", "--rank", "task", type=click.IntRange(min=0), metavar="RANK", help="Only of this task.")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Begin with the last lines of what there is.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only what was written since then, to within some seconds: how long ago, as 10m, or a time, as "
    "2026-01-31T12:00. Of runs on the controller's machine (engine local).",
)
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="Of an array: the output of this element.")
@click.pass_obj
def logs(
    session: CommandContext,
    name: str,
    *,
    follow: bool,
    task: int | None,
    tail: int | None,
    since: str | None,
    index: int | None,
) -> None:
    """Show the output of a run."""
    (name,) = strip_nouns("run", [name])
    name = name if index is None else f"{name}-{index}"  # as its id and its name are made
    since = parse_since(since, session.now()) if since is not None else None
    report_own(session)
    try:
        _show_logs(session, name, follow=follow, task=task, tail=tail, since=since)
    except MooringsError as error:
        raise one_element_error(elements_instead(session.client, name, error), name, "moor logs") from error


def _show_logs(
    session: CommandContext, name: str, *, follow: bool, task: int | None, tail: int | None, since: str | None
) -> None:
    client, console = session.client, session.console
    if not follow:
        chunks = client.logs(name, task=task, since=since)
        for chunk in chunks if tail is None else last_lines(chunks, tail):
            console.print_bytes(chunk)
        return
    progress = Progress(console)
    client.retry_policy = make_patience(progress)
    follower, run = RunFollower(client, progress, console.print_bytes, since=since), find_run(client, name)
    session.if_interrupted = f"no longer followed: 'moor logs -f {run.id}' follows it again"
    if tail is not None and run.started_at is not None:
        follower.skip_to_last_lines(run, tail, task=task)
    follower.copy_logs(run, task=task)


@click.command(
    cls=MoorCommand,
    help="Stop runs.\n\nTheir processes get TERM, and KILL after the job's grace period. Waits until they have ended. "
    "Of --all and --user it asks first.",
    epilog=examples(
        "moor cancel digits", "moor cancel run-7f3kq2m4xw2a --no-wait", "moor cancel --all", "moor cancel --user ann -y"
    ),
)
@names_argument("run")
@click.option("--all", "is_all", is_flag=True, help="All of your own runs.")
@click.option("--user", metavar="NAME", help="All runs of this user; of others, for admins.")
@yes_option
@click.option("--wait/--no-wait", default=True, help="Wait until they have ended (yes).")
@_timeout
@click.pass_obj
def cancel(
    session: CommandContext,
    names: Sequence[str],
    *,
    is_all: bool,
    user: str | None,
    yes: bool,
    wait: bool,
    timeout: str | None,
) -> None:
    """Stop runs."""
    if bool(names) + is_all + (user is not None) != 1:
        raise click.UsageError("give names of runs, or --all, or --user NAME")
    client, progress = session.client, Progress(session.console)
    limit = Deadline.of(timeout)
    if names:
        chosen = [resolve_run(session, name, "moor cancel") for name in strip_nouns("run", names)]
    else:
        chosen = _confirm_runs(session, user, yes=yes)
    runs, arrays = [], []
    for name in chosen:
        try:
            runs.append(unless_array(client, name, client.cancel_run(name)))
        except MooringsError as error:
            arrays.append(array_instead(client, name, error))
    for array in arrays:
        _cancel_array(session, progress, array, limit if wait else None)
    session.if_interrupted = f"not waited for; being cancelled: {', '.join(run.id for run in runs)}"
    cancel_own(session, *(run for run in runs if run.state not in ENDED))
    for run in runs:
        ended = _wait_for_end(session, progress, run, limit) if wait else run
        session.console.print_line(f"run/{ended.id} {_cancel_text(ended)}")


def _cancel_array(session: CommandContext, progress: Progress, array: str, limit: Deadline | None) -> None:
    """Cancel the runs of an array; wait for their ends unless ``limit`` is None."""
    session.if_interrupted = f"not waited for; being cancelled: {array}"
    count = cancel_array(session, array)
    if limit is not None:
        follow_array(session.client, progress, array, limit, lambda: report_own(session))
    session.console.print_line(f"array/{array} {count} runs cancelled")


def _confirm_runs(session: CommandContext, user: str | None, *, yes: bool) -> list[str]:
    """The ids of all runs of a user (None: the caller) that have not ended, once the caller has confirmed."""
    user = user or session.client.who_am_i().subject
    runs = [run for run in session.client.list_runs(RunFilter(subject=user)) if run.state not in ENDED]
    if not runs:
        session.console.info(f"No runs of {user} run or wait.")
        return []
    named = join_first(f"{run.name} ({run.state})" for run in runs)
    what = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    confirm(session, f"Cancel {what} of {user}: {named}?", lambda: None, yes=yes)
    return [run.id for run in runs]


@click.command(
    cls=MoorCommand,
    help="Wait for a run's end, or for a claim's partition.\n\n"
    "Of a run, the exit code is the run's; of an array, the highest of its runs. Of a claim, 0 if it came to what was "
    "waited for, else 1.",
    epilog=examples("moor wait digits", "moor wait claim/p64 --for READY --timeout 10m"),
)
@click.argument("name", metavar="RUN|CLAIM", shell_complete=complete_names("run", "claim"))
@click.option(
    "--for",
    "until",
    type=click.Choice(["GRANTED", "READY", "ENDED"], case_sensitive=False),
    help="What to wait for, of a claim (READY).",
)
@_timeout
@click.pass_obj
def wait(session: CommandContext, name: str, *, until: str | None, timeout: str | None) -> int:
    """Wait for a run's end, or for a claim's partition."""
    limit, progress = Deadline.of(timeout), Progress(session.console)
    report_own(session)
    session.client.retry_policy = make_patience(progress)
    try:
        named = resolve_any(session, name, "moor wait")
    except MooringsError as error:
        return _wait_for_array(session, progress, array_instead(session.client, name, error), limit)
    session.if_interrupted = f"not waited for: it continues; 'moor wait {named.noun}/{named.ident}' waits again"
    if named.noun == "claim":
        return _wait_for_claim(session, progress, named.ident, until or "READY", limit)
    ended = _wait_for_end(session, progress, session.client.get_run(named.ident), limit)
    progress.report(run_end_text(ended))
    return run_exit_code(ended)


def _wait_for_array(session: CommandContext, progress: Progress, array: str, limit: Deadline) -> int:
    session.if_interrupted = f"not waited for: it continues; 'moor wait {array}' waits again"
    ended = follow_array(session.client, progress, array, limit, lambda: report_own(session))
    progress.report(end_text(array, ended))
    return worst_exit_code(ended)


def _wait_for_end(session: CommandContext, progress: Progress, run: RunBody, limit: Deadline) -> RunBody:
    """The run as it ended.

    Raises:
        MooringsError: ``wait.timeout``.
    """
    while run.state not in ENDED:
        if limit.is_over:
            progress.clear()
            raise MooringsError(
                "wait.timeout", f"{run.id} is {run.state}; the time is up", hint=f"it continues: 'moor wait {run.id}'"
            )
        progress.show_waiting(_state_text(run, session))
        report_own(session)  # without an agent only its person sees how its job in Slurm goes on
        run = session.client.get_run(run.id, wait_s=limit.remaining_s(END_WAIT_S if run.started_at else REASON_FRESH_S))
    progress.clear()
    return run


def _state_text(run: RunBody, session: CommandContext) -> str:
    if run.reason is not None and run.started_at is None:
        return f"{run.id}: {format_wait(run.reason, run.position)}"
    if run.started_at is not None and session.console.err_is_tty:
        from moorings.core.model.timestamps import seconds_between
        from moorings.wire.codec import parse_time

        return f"{run.id}: {run.state} for {duration_text(seconds_between(parse_time(run.started_at), session.now()))}"
    return f"{run.id}: {run.state}"


def _cancel_text(run: RunBody) -> str:
    if run.state == "CANCELLED":
        return "cancelled"
    return f"had ended: {run.state}" if run.state in ENDED else "is being cancelled"


def _wait_for_claim(session: CommandContext, progress: Progress, ident: str, until: str, limit: Deadline) -> int:
    until = until.upper()
    claim = wait_for_claim(session.client, progress, ident, until, name=ident, limit=limit)
    if claim is None:
        raise MooringsError(
            "wait.timeout", f"claim {ident} is not {until}; the time is up", hint=f"see 'moor explain claim {ident}'"
        )
    session.console.print_line(f"claim/{claim.name} {claim.state}")
    good = claim.state == ClaimState.READY or until == "ENDED" or (until == "GRANTED" and claim.state == "GRANTED")
    return ExitCode.OK if good else ExitCode.FAILED
