"""``moor run``: runs a job on a partition of its own, and ends with the job's exit code."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import click

from moorings.cli.errors import OutputClosed
from moorings.cli.following import RunFollower, make_patience, run_end_text, run_exit_code
from moorings.cli.grammar import MoorCommand, complete_names, examples
from moorings.cli.interrupts import Interrupted, SignalsAsExceptions
from moorings.cli.jobs import JobFlags, build_job
from moorings.cli.progress import Progress
from moorings.cli.session import CommandContext
from moorings.client.client import Client
from moorings.client.jobs import job_shape
from moorings.core.errors import MooringsError
from moorings.wire.shapes import RunBody, RunRequest

CANCEL_PATIENCE_S = 60.0


class RunCommand(MoorCommand):
    """``moor run [FILE] [flags] [-- COMMAND...]``: words after ``--`` are never parsed as our flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["command"] = tuple(after)
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[FILE]", "[-- COMMAND [ARGUMENT]...]"]


@click.command(
    cls=RunCommand,
    help="Run a job on a partition of its own, and wait for its end.\n\n"
    "Its output comes to stdout, what happens meanwhile to stderr, and the exit code is the job's own. Ctrl-C cancels "
    "the run. The job is a FILE (TOML), or a COMMAND behind --; flags win over the file.",
    epilog=examples(
        "moor run --ipus 4 -- python3 train.py --epochs 3",
        "moor run --ipus 16 -n 4 --time 2:00:00 --env HF_HOME -- python3 train.py",
        "moor run job.toml --ipus 8",
        "moor run --detach job.toml",
        "moor run --engine slurm job.toml",
    ),
)
@click.argument("file", required=False, nargs=-1, type=click.Path())
@click.option("--ipus", type=int, metavar="N", help="IPUs of the whole job; the same as --kind ipu --size N.")
@click.option("--size", type=int, metavar="N", help="Devices of the whole job.")
@click.option("--kind", metavar="KIND", help="Kind of accelerator (ipu).")
@click.option("--pool", metavar="POOL", help="Only in this pool.", shell_complete=complete_names("pool"))
@click.option("-n", "--ntasks", type=int, metavar="N", help="Processes; each gets one GCD of the partition (1).")
@click.option("--num-replicas", type=int, metavar="N", help="Model replicas of the whole job (one a task).")
@click.option(
    "--time", metavar="DURATION", help="Time limit, as 30m, 2:00:00, 1-12:00:00; bare: minutes, as Slurm has it (none)."
)
@click.option("--name", metavar="NAME", help="Name of the job (the program's).")
@click.option("--priority", type=int, metavar="N", help="Higher is first (0).")
@click.option("--project", metavar="NAME", help="Project (default).")
@click.option("--preemptible", is_flag=True, help="The job may be preempted; it resumes later.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Give the job a variable; PATH it always has.")
@click.option("--chdir", metavar="DIR", help="Working folder (this one, or the job file's).")
@click.option(
    "--engine",
    default="local",
    metavar="NAME",
    help="What runs it: local, or slurm or kubernetes where set up (local).",
)
@click.option("--image", metavar="IMAGE", help="Container image of the tasks, on Kubernetes.")
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
    num_replicas: int | None,
    time: str | None,
    name: str | None,
    priority: int | None,
    project: str | None,
    preemptible: bool,
    env: tuple[str, ...],
    chdir: str | None,
    engine: str,
    image: str | None,
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
        replicas=num_replicas,
        time=time,
        name=name,
        priority=priority,
        project=project,
        preemptible=preemptible,
        environment=env,
        workdir=chdir,
        image=image,
    )
    usual_project = session.configuration.text("project")
    job = build_job(file[0] if file else None, command, flags, session.environment, Path.cwd(), usual_project)
    request = RunRequest(job=job_shape(job), engine=engine)
    if dry_run:
        return _show_job(session, request)
    key = secrets.token_hex(16)
    if detach:
        made = session.client.create_run(request, key)
        _report_notes(Progress(session.console), made)
        session.console.line(made.id)
        return 0
    return _run_and_follow(session, request, key)


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

    session.console.data(render_data(encode(request), OutputFormat("json")))
    return 0


def _report_notes(progress: Progress, made: RunBody) -> None:
    """Report what the engine does differently from the job file."""
    for note in made.notes or ():
        progress.say(f"{made.id}: {note}")


def _run_and_follow(session: CommandContext, request: RunRequest, key: str) -> int:
    progress = Progress(session.console)
    client = session.client
    follower = RunFollower(client, progress, session.console.raw)
    started: RunBody | None = None
    with SignalsAsExceptions():
        try:
            started = client.create_run(request, key)
            _report_notes(progress, started)
            client.patience = make_patience(progress)
            ended = follower.follow(started)
        except Interrupted as stop:
            # The run may have been made while the response was on its way: the same key finds it.
            return _cancel(client, progress, follower, stop, started or client.create_run(request, key))
        except OutputClosed:
            assert started is not None
            client.cancel_run(started.id)
            progress.say(f"{started.id}: cancelled because its output was closed")
            raise
        except MooringsError as error:
            if started is None:
                raise
            raise _with_run_hint(error, started) from error
    progress.say(run_end_text(ended))
    return run_exit_code(ended)


def _cancel(client: Client, progress: Progress, follower: RunFollower, stop: Interrupted, run: RunBody) -> int:
    """Cancel the run, wait for its end, and exit as the signal says; a second signal stops the wait."""
    try:
        progress.say(f"{run.id}: {stop.name}: cancelling; press Ctrl-C again to stop waiting")
        client.patience = make_patience(progress, CANCEL_PATIENCE_S)
        ended = follower.follow(client.cancel_run(run.id))
        progress.say(run_end_text(ended))
    except Interrupted:
        progress.say(f"{run.id}: not waited for; 'moor get run {run.id}' shows it")
    except OutputClosed:
        progress.say(f"{run.id}: cancelled because its output was closed")
    except MooringsError as error:
        raise _with_run_hint(error, run) from error
    return stop.exit_code


def _with_run_hint(error: MooringsError, run: RunBody) -> MooringsError:
    """``error``, with what happens to the run that was being followed."""
    hint = f"the run goes on: 'moor wait {run.id}', 'moor logs -f {run.id}' or 'moor cancel {run.id}'"
    return MooringsError(error.code, f"{run.id}: {error.detail}", hint=hint, retryable=error.retryable)
