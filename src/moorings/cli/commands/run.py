"""``moor run``: runs a job on a partition of its own, and ends with the job's exit code."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from moorings.cli.arrays import end_text, follow_array, worst_exit_code
from moorings.cli.command_tree import MoorCommand, complete_names, examples
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.interactive import SIGHUP_EXIT, TerminalSession, check_terminal
from moorings.cli.slurm_terminals import check_is_ours
from moorings.client.jobs import job_shape
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.submission.container_images import fetch_image
from moorings.submission.early_checks import check_startable
from moorings.submission.handing_in import create_run, hand_in, without_values
from moorings.submission.job_building import JobFlags, build_job
from moorings.submission.job_environment import (
    JobPlace,
    choose_export,
    find_place,
)
from moorings.submission.slurm_submission import SlurmSubmission, cancel_array, cancel_own, report_own, reporting
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import Deadline
from moorings.terminal.errors import OutputClosed, TerminalClosed
from moorings.terminal.following import RunFollower, run_end_text, run_exit_code
from moorings.terminal.interrupts import Interrupted, SignalsAsExceptions
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.shapes import RunBody, RunRequest
from moorings.workloads.runs import RunState

CANCEL_PATIENCE_S = 60.0
KEEP_S = 600.0


class CommandBehindDashes(MoorCommand):
    """A command whose last arguments are another one behind ``--``, never parsed as our flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["command"] = tuple(after)
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARGUMENT]..."]


class RunCommand(CommandBehindDashes):
    """``moor run [FILE] [flags] [-- COMMAND...]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from moorings.cli.slurm_options import hint_for

            hint = hint_for(error.option_name)
            if not hint:
                raise
            raise UsageErrorWithHint(f"moor run has no option {error.option_name}", hint=hint) from error

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[FILE]", "[-- COMMAND [ARGUMENT]...]"]


@click.command(
    cls=RunCommand,
    help="Run a job on a partition of its own, and wait for its end.\n\n"
    "Its output comes to stdout, what happens meanwhile to stderr, and the exit code is the job's own. Ctrl-C cancels "
    "the run; if the terminal is closed it continues. The job is a FILE (TOML), or a COMMAND behind --; flags win over "
    "the file.",
    epilog=examples(
        "moor run --ipus 4 -- python3 train.py --epochs 3",
        "moor run --ipus 16 -n 4 --time 2:00:00 --env HF_HOME -- python3 train.py",
        "moor run job.toml --ipus 8",
        "moor run --size 0 --cpus 2 --memory 4G -- ./prepare.sh",
        "moor run --detach job.toml",
        "moor run -i --ipus 4 -- bash",
        "moor run --resume digits job.toml",
        "moor run --array 0-99%8 job.toml",
        "moor run --after prepare --after fetch:any job.toml",
        "moor run --engine slurm job.toml",
    ),
)
@click.argument("file", required=False, nargs=-1, type=click.Path())
@click.option("--ipus", type=int, metavar="N", help="IPUs of the whole job; the same as --kind ipu --size N.")
@click.option("--size", type=int, metavar="N", help="Devices of the whole job; 0: none, only CPUs and memory.")
@click.option("--kind", metavar="KIND", help="Kind of accelerator (ipu).")
@click.option("--pool", metavar="POOL", help="Only in this pool.", shell_complete=complete_names("pool"))
@click.option("-n", "--ntasks", type=int, metavar="N", help="Processes; each gets one GCD of the partition (1).")
@click.option("--cpus", type=int, metavar="N", help="CPUs of each task (1).")
@click.option("--memory", metavar="SIZE", help="Memory of each task, as 4G or 500M.")
@click.option("--num-replicas", type=int, metavar="N", help="Model replicas of the whole job (one a task).")
@click.option(
    "--time", metavar="DURATION", help="Time limit, as 30m, 2:00:00, 1-12:00:00; bare: minutes, as Slurm has it (none)."
)
@click.option("--name", metavar="NAME", help="Name of the job (the program's).")
@click.option("--priority", type=int, metavar="N", help="Higher is first (0).")
@click.option("--project", metavar="NAME", help="Project (default).")
@click.option("--preemptible", is_flag=True, help="The job may be preempted; it resumes later.")
@click.option("--retries", type=int, metavar="N", help="Resume so often after the loss of its machine or devices (0).")
@click.option(
    "--export",
    metavar="WHICH",
    help="Variables of this shell that the job gets: ALL, BASIC (HOME, PATH, LANG, ...), NONE, or NAME,NAME=VALUE, "
    "also behind ALL (by your own controller and on Slurm ALL, on Kubernetes NONE, else BASIC).",
)
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Give the job a further variable.")
@click.option(
    "--env-file", multiple=True, metavar="FILE", help="Give it those of a file with NAME=VALUE lines, as secrets."
)
@click.option("--setup", multiple=True, metavar="LINE", help="Run this line in bash before the command.")
@click.option(
    "--after",
    multiple=True,
    metavar="RUN[:END]",
    help="Wait until that run has ended: ok (with success), failed, or any (ok). May be given several times.",
)
@click.option(
    "--array",
    metavar="INDEXES",
    help="One run for each index, as 0-99, 1,3,7-9 or 0-10:2; with %8 behind it, 8 at most ask for devices at once.",
)
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="Give the run a label, for 'moor get runs -l'.")
@click.option("--chdir", metavar="DIR", help="Working folder (this one, or the job file's).")
@click.option(
    "--engine",
    default="local",
    metavar="NAME",
    help="The engine: local, or slurm or kubernetes if set up (local).",
)
@click.option("--image", metavar="IMAGE", help="Run the tasks in this container image, as registry.example/digits:1.")
@click.option("--resume", metavar="RUN", help="Begin from the newest whole checkpoint of an earlier run.")
@click.option("--from", "from_", metavar="CHECKPOINT", help="With --resume: from this one, by path or name.")
@click.option("-i", "--interactive", is_flag=True, help="Give task 0 a terminal, and attach to it.")
@click.option(
    "--keep",
    metavar="DURATION",
    help="With -i: how long it stays with its terminal closed; then it gets HUP (10m).",
)
@click.option("--detach", is_flag=True, help="Print the run's id and do not wait.")
@click.option("--dry-run", is_flag=True, help="Check the job and print it as JSON; start nothing.")
@click.pass_context
def run(
    ctx: click.Context,
    file: tuple[str, ...],
    *,
    ipus: int | None,
    size: int | None,
    kind: str | None,
    pool: str | None,
    ntasks: int | None,
    cpus: int | None,
    memory: str | None,
    num_replicas: int | None,
    time: str | None,
    name: str | None,
    priority: int | None,
    project: str | None,
    preemptible: bool,
    retries: int | None,
    export: str | None,
    after: tuple[str, ...],
    array: str | None,
    env: tuple[str, ...],
    label: tuple[str, ...],
    env_file: tuple[str, ...],
    setup: tuple[str, ...],
    chdir: str | None,
    engine: str,
    image: str | None,
    resume: str | None,
    from_: str | None,
    interactive: bool,
    keep: str | None,
    detach: bool,
    dry_run: bool,
) -> int:
    """Run a job."""
    session = ctx.ensure_object(CommandContext)
    command: Sequence[str] = ctx.meta["command"]
    _check_arguments(file, command, ipus, size, kind)
    flags = JobFlags(
        size=ipus if ipus is not None else size,
        kind="ipu" if ipus is not None else kind,
        pool=pool,
        tasks=ntasks,
        cpus=cpus,
        memory=memory,
        replicas=num_replicas,
        time=time,
        name=name,
        priority=priority,
        project=project,
        preemptible=preemptible,
        retries=retries,
        exported=export,
        after=after,
        array=array,
        environment=(*_terminal_type(session.environment, interactive=interactive, engine=engine), *env),
        labels=label,
        env_files=env_file,
        setup=setup,
        workdir=chdir,
        image=image,
        keep_s=_keep_s(keep, interactive=interactive),
    )
    usual_project = session.configuration.text("project")
    place = find_place(session.configuration.text("server"), engine, session.environment)
    job = build_job(
        file[0] if file else None,
        command,
        flags,
        session.environment,
        Path.cwd(),
        usual_project,
        usual_export=choose_export(place, engine),
        warn=session.console.warn,
    )
    if from_ is not None and resume is None:
        raise click.UsageError("--from names a checkpoint of the run behind --resume: give both")
    request = RunRequest(job=job_shape(job), engine=engine, resume=resume, resume_from=from_)
    if dry_run:
        return _show_job(session, without_values(request))
    if place is not JobPlace.ELSEWHERE:
        check_startable(job)
        if job.image is not None:
            fetch_image(job.image, session.environment, session.console.info)
    if interactive and not detach:
        check_terminal()
        if engine == "kubernetes":
            from moorings.cli.pod_terminal import check_kubectl

            check_kubectl()
    key = secrets.token_hex(16)
    request = hand_in(session, job, request)
    submission = SlurmSubmission(session, job)
    request = submission.prepare(request)
    if request.submitter is not None:  # what this command itself submits to Slurm has the values
        request = without_values(request)
    elif engine == "slurm":
        check_is_ours(session, request)
    if detach:
        made = create_run(session, request, key)
        progress = Progress(session.console)
        _report_notes(progress, made)
        _submit(progress, submission, made)
        session.console.print_line(made.array.id if made.array is not None else made.id)
        return 0
    return _run_and_follow(session, request, key, submission)


def _keep_s(keep: str | None, *, interactive: bool) -> float | None:
    if not interactive:
        if keep is not None:
            raise click.UsageError("--keep is about the terminal of -i: give both")
        return None
    return KEEP_S if keep is None else parse_duration_s(keep)


def _terminal_type(environment: Mapping[str, str], *, interactive: bool, engine: str) -> Sequence[str]:
    """The variable TERM of a container's terminal; elsewhere the terminal says it when it is attached."""
    term = environment.get("TERM", "")
    return (f"TERM={term}",) if interactive and engine == "kubernetes" and term else ()


def _check_arguments(
    file: Sequence[str], command: Sequence[str], ipus: int | None, size: int | None, kind: str | None
) -> None:
    if len(file) > 1:
        raise click.UsageError(f"put -- before the command: moor run [flags] -- {' '.join(file)}")
    if not file and not command:
        raise click.UsageError("give a job file, or a command behind --")
    if ipus is not None and (size is not None or kind not in (None, "ipu")):
        raise click.UsageError("--ipus N means --kind ipu --size N: give one or the other")


def _show_job(session: CommandContext, request: RunRequest) -> int:
    from moorings.cli.output import OutputFormat, render_data
    from moorings.wire.codec import encode

    session.console.print_data(render_data(encode(request), OutputFormat("json")))
    return 0


def _report_notes(progress: Progress, made: RunBody) -> None:
    """Report what the engine does differently from the job file."""
    for note in made.notes or ():
        progress.report(f"{made.id}: {note}")


def _submit(progress: Progress, submission: SlurmSubmission, made: RunBody) -> None:
    """Submit a new run to Slurm, where that is its person's to do."""
    if note := submission.submit(made):
        progress.report(note)


def _run_and_follow(session: CommandContext, request: RunRequest, key: str, submission: SlurmSubmission) -> int:
    progress = Progress(session.console)
    client = session.client
    follower = RunFollower(client, progress, session.console.print_bytes)
    terminal = TerminalSession(session, progress)
    started: RunBody | None = None
    with SignalsAsExceptions():
        try:
            started = create_run(session, request, key)
            _report_notes(progress, started)
            _submit(progress, submission, started)
            if started.array is not None:
                return _follow_array(session, progress, submission, started.array.id)
            client.retry_policy = make_patience(progress)
            if request.job.terminal_keep_s is not None:
                with reporting(session, started.id):
                    return terminal.follow(started)
            with submission.reported(started.id):
                ended = follower.follow(started)
        except Interrupted as stop:
            # The run may have been made while the response was on its way: the same key finds it.
            run = started or create_run(session, request, key)
            if run.array is not None:
                return _stop_array(session, progress, stop, run.array.id)
            if stop.number == signal.SIGHUP or terminal.is_attached:
                return _leave(progress, terminal, run, stop.exit_code)
            return _cancel(session, progress, follower, stop, run)
        except TerminalClosed:
            assert started is not None
            return _leave(progress, terminal, started, SIGHUP_EXIT)
        except OutputClosed:
            assert started is not None
            client.cancel_run(started.id)
            progress.report(f"{started.id}: cancelled because its output was closed")
            raise
        except MooringsError as error:
            if started is None:
                raise
            raise _with_run_hint(error, started) from error
    progress.report(run_end_text(ended))
    return run_exit_code(ended)


def _leave(progress: Progress, terminal: TerminalSession, run: RunBody, exit_code: int) -> int:
    """Leave a run whose terminal was closed: it continues, as in a queue of Slurm."""
    if run.job.terminal_keep_s is not None:
        terminal.report_left(run)
    elif run.array is not None:
        progress.report(f"{run.array.id}: continues; 'moor wait {run.array.id}' waits for its end")
    else:
        progress.report(f"{run.id}: continues; 'moor logs -f {run.id}' shows its output, 'moor wait {run.id}' its end")
    return exit_code


def _stop_array(session: CommandContext, progress: Progress, stop: Interrupted, array: str) -> int:
    """Cancel the runs of an array, wait for their ends, and exit as the signal says; a closed terminal leaves them."""
    if stop.number == signal.SIGHUP:
        progress.report(f"{array}: continues; 'moor wait {array}' waits for its end")
        return stop.exit_code
    progress.report(f"{array}: {stop.name}: cancelling; press Ctrl-C again to stop waiting")
    try:
        cancel_array(session, array)
        progress.report(end_text(array, _ended_array(session, progress, array)))
    except Interrupted:
        progress.report(f"{array}: not waited for; 'moor wait {array}' waits for it")
    return stop.exit_code


def _ended_array(session: CommandContext, progress: Progress, array: str) -> Sequence[RunBody]:
    return follow_array(session.client, progress, array, Deadline(None), lambda: report_own(session))


def _follow_array(session: CommandContext, progress: Progress, submission: SlurmSubmission, array: str) -> int:
    """Wait for the ends of all runs of an array; a signal cancels them."""
    try:
        session.client.retry_policy = make_patience(progress)
        ended = _ended_array(session, progress, array)
    except Interrupted as stop:
        return _stop_array(session, progress, stop, array)
    submission.close(ended)
    progress.report(end_text(array, ended))
    return worst_exit_code(ended)


def _cancel(session: CommandContext, progress: Progress, follower: RunFollower, stop: Interrupted, run: RunBody) -> int:
    """Cancel the run, wait for its end, and exit as the signal says; a second signal stops the wait."""
    client = session.client
    try:
        client.retry_policy = make_patience(progress, CANCEL_PATIENCE_S)
        if client.get_run(run.id).state == RunState.PAUSED:
            progress.report(f"{run.id}: {stop.name}: it stays paused; 'moor cancel {run.id}' ends it")
            return stop.exit_code
        progress.report(f"{run.id}: {stop.name}: cancelling; press Ctrl-C again to stop waiting")
        cancelled = client.cancel_run(run.id)
        cancel_own(session, cancelled)
        ended = follower.follow(cancelled)
        progress.report(run_end_text(ended))
    except Interrupted:
        progress.report(f"{run.id}: not waited for; 'moor get run {run.id}' shows it")
    except OutputClosed:
        progress.report(f"{run.id}: cancelled because its output was closed")
    except MooringsError as error:
        raise _with_run_hint(error, run) from error
    return stop.exit_code


def _with_run_hint(error: MooringsError, run: RunBody) -> MooringsError:
    """``error``, with what happens to the run that was being followed."""
    hint = f"the run continues: 'moor wait {run.id}', 'moor logs -f {run.id}' or 'moor cancel {run.id}'"
    return MooringsError(error.code, f"{run.id}: {error.detail}", hint=hint, retryable=error.retryable)
