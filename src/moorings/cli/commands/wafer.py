"""``moor wafer``: the jobs and systems of wafer-scale appliances, in their users' terms.

Everything that this does with a job can be done with its run, too. This command exists because users have years of
habits, and sites have scripts: columns, phases, messages and the shape of the JSON follow the vendor's
(docs/how-to/wafer-queue.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, complete_names, examples, options
from moorings.cli.csctl import DEFAULT_SESSION, FILE_NAME, install
from moorings.cli.new_file import new_file, unwritable_error
from moorings.cli.output import render_data
from moorings.cli.printing import ResourcePrinter, make_printer, output_options
from moorings.cli.wafer import (
    JOBS,
    SYSTEMS,
    WaferJob,
    WaferSystem,
    count_jobs,
    is_appliance,
    job_from_list,
    job_from_run,
    job_name,
    parse_changes,
    parse_selectors,
    sort_jobs,
    summarize_pool,
    summary_text,
    systems_of,
    with_reasons,
)
from moorings.client.requests import ApplianceFilter
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext
from moorings.terminal.following import END_WAIT_S
from moorings.wire.codec import encode
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import API_VERSION, PoolBody, RunBody
from moorings.workloads.appliance import APPLIANCE_KIND, ApplianceJobType, parse_priority, priority_bucket
from moorings.workloads.runs import ENDED

CommandT = TypeVar("CommandT", bound=Callable[..., object])


class WaferGroup(NounGroup):
    """``moor wafer`` and its verbs: with their own nouns, singular and plural, and without those of ``moor``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return click.Group.get_command(self, ctx, {"jobs": "job", "systems": "system"}.get(cmd_name, cmd_name))


wafer = WaferGroup(
    name="wafer",
    help="Manage the jobs of wafer-scale appliances.",
    epilog=examples(
        "moor wafer get jobs",
        "moor wafer get cluster",
        "moor wafer job set-priority wsjob-7f3kq2m4xw2a7f3kq2m4xw p1",
        "moor wafer install-csctl ~/bin",
    ),
    no_args_is_help=True,
)
wafer.subcommand_metavar = "COMMAND [ARGS]..."

_session = click.option(
    "--session", "session_name", metavar="NAME", help="Only of this session: the project that the job is of (of any)."
)
_no_session = click.option(
    "--session", metavar="NAME", expose_value=False, help="Changes nothing: systems are of no session."
)
_name = click.argument("name", metavar="NAME", shell_complete=complete_names("job"))


# -- get ---------------------------------------------------------------------------------------------------------------

get = WaferGroup(
    name="get",
    help="Show jobs, systems, or the whole cluster.",
    epilog=examples("moor wafer get jobs -a -l team=nlp", "moor wafer get cluster --error-only"),
    no_args_is_help=True,
)
wafer.add_command(get)


def _job_filters(command: CommandT) -> CommandT:
    return options(
        click.option("-a", "--all-states", is_flag=True, help="Also jobs that have ended."),
        click.option(
            "-l",
            "--selector",
            "--labels",
            "selectors",
            multiple=True,
            metavar="KEY=VALUE,...",
            help="Only jobs with these labels; may be repeated.",
        ),
        click.option(
            "--kind",
            type=click.Choice([kind.value for kind in ApplianceJobType]),
            help="Only jobs that compile, or that execute.",
        ),
        click.option("--workflow", metavar="NAME", help="Only jobs of this workflow."),
        click.option("--user", metavar="NAME", help="Only jobs of this user."),
        _session,
        output_options,
    )(command)


_GET_JOBS = (
    "List jobs, or show some by name.\n\n"
    "First those that run, then the queue in its order. Those that have ended are left out unless -a is given. With "
    "-o wide there is a column that says why a job waits and at which place, or how it ended. For scripts: -o json."
)


@get.command(
    "job",
    cls=MoorCommand,
    help=_GET_JOBS,
    epilog=examples(
        "moor wafer get jobs",
        "moor wafer get jobs -a -l team=nlp,exp=3 -o json",
        "moor wafer get jobs --kind execute -o wide",
        "moor wafer get job wsjob-7f3kq2m4xw2a7f3kq2m4xw -o yaml",
    ),
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names("job"))
@_job_filters
@click.pass_obj
def get_job(session: CommandContext, /, *, names: Sequence[str], **filters: Any) -> None:  # noqa: ANN401 - Click's options
    """List jobs, or show some by name."""
    _show_jobs(session, names, **filters)


def _show_jobs(
    session: CommandContext,
    names: Sequence[str],
    *,
    all_states: bool,
    selectors: Sequence[str],
    kind: str | None,
    workflow: str | None,
    user: str | None,
    session_name: str | None,
    output: str | None,
    no_headers: bool,
    sort_by: str | None,
) -> None:
    labels = parse_selectors(selectors)
    shown = make_printer(session, output, no_headers=no_headers, sort_by=sort_by, kind=JOBS)
    if names:
        _show_named(shown, names, session_name)
        return
    where = ApplianceFilter(subject=user, kind=kind, workflow=workflow, labels=labels, all=all_states)
    found = map(job_from_list, session.client.appliance_jobs(where))
    jobs = [job for job in found if session_name in (None, job.meta.namespace)]
    if shown.form.name == "wide":
        jobs = with_reasons(session.client, jobs)
    shown.show_list(JOBS, sort_jobs(jobs))


def _show_named(shown: ResourcePrinter, names: Sequence[str], session_name: str | None) -> None:
    """Show the existing ones; the first missing one is the error, after the others were shown."""
    found, missing = [], None
    for name in names:
        try:
            found.append(job_from_run(_run(shown.session, name, session_name)))
        except MooringsError as error:
            missing = missing or error
    if len(names) == 1 and found:
        shown.show_one(JOBS, found[0])
    elif found:
        shown.show_list(JOBS, found)
    if missing is not None:
        raise missing


def _run(session: CommandContext, name: str, session_name: str | None) -> RunBody:
    """The run of a job.

    Raises:
        MooringsError: ``run.unknown``: no run has that name, or it is not such a job, or not of that session.
    """
    hint = "see 'moor wafer get jobs -a'"
    try:
        run = session.client.get_run(job_name(name))
    except MooringsError as error:
        if error.code in ("run.unknown", "path.unknown"):
            raise MooringsError("run.unknown", f"there is no job {name[:80]!r}", hint=hint) from error
        raise
    job = job_from_run(run)
    if session_name not in (None, job.meta.namespace):
        raise MooringsError("run.unknown", f"there is no job {run.id} in session {session_name}", hint=hint)
    return run


def _appliances(session: CommandContext) -> list[PoolBody]:
    """The pools of appliance systems.

    Raises:
        MooringsError: ``kind.unknown``.
    """
    pools = [pool for pool in session.client.list_pools() if is_appliance(pool)]
    if not pools:
        raise MooringsError(
            "kind.unknown",
            "this controller has no wafer-scale systems",
            hint=f'a pool of them has kind = "{APPLIANCE_KIND}"',
        )
    return pools


def _systems(session: CommandContext, pools: Sequence[PoolBody], jobs: Sequence[WaferJob]) -> list[WaferSystem]:
    client = session.client
    return [
        system
        for pool in pools
        for system in systems_of(pool, client.list_devices(pool.name), client.list_partitions(pool.name), jobs)
    ]


@get.command(
    "system",
    cls=MoorCommand,
    help="List systems with their state, holder and time of allocation.",
    epilog=examples("moor wafer get systems", "moor wafer get system cs:0 -o json"),
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names("device"))
@options(click.option("--error-only", is_flag=True, help="Only those that are not well."), _no_session, output_options)
@click.pass_obj
def get_system(
    session: CommandContext,
    *,
    names: Sequence[str],
    error_only: bool,
    output: str | None,
    no_headers: bool,
    sort_by: str | None,
) -> None:
    """List the systems."""
    shown = make_printer(session, output, no_headers=no_headers, sort_by=sort_by, kind=SYSTEMS)
    systems = _systems(session, _appliances(session), _list_jobs(session))
    known = {system.meta.name for system in systems}
    for name in names:
        if name not in known:
            raise MooringsError("device.unknown", f"there is no system {name[:80]!r}", hint="moor wafer get systems")
    chosen = [item for item in systems if (item.has_error or not error_only) and (not names or item.meta.name in names)]
    if len(names) == 1 and chosen:
        shown.show_one(SYSTEMS, chosen[0])
    else:
        shown.show_list(SYSTEMS, chosen, where=" that are not well" if error_only else "")


def _list_jobs(session: CommandContext) -> list[WaferJob]:
    return [job_from_list(job) for job in session.client.appliance_jobs(ApplianceFilter())]


@get.command(
    "cluster",
    cls=MoorCommand,
    help="Show the systems, what memory is free beside them, and how long the queue is.",
    epilog=examples("moor wafer get cluster", "moor wafer get cluster --error-only -o json"),
)
@options(
    click.option("--error-only", is_flag=True, help="Only systems that are not well."),
    click.option("--system-only", is_flag=True, help="Only the systems."),
    _no_session,
    output_options,
)
@click.pass_obj
def get_cluster(
    session: CommandContext,
    *,
    error_only: bool,
    system_only: bool,
    output: str | None,
    no_headers: bool,
    sort_by: str | None,
) -> None:
    """Show the systems, what memory is free beside them, and how long the queue is."""
    shown = make_printer(session, output, no_headers=no_headers, sort_by=sort_by, kind=SYSTEMS)
    pools, jobs = _appliances(session), _list_jobs(session)
    systems = [system for system in _systems(session, pools, jobs) if system.has_error or not error_only]
    short, lengths = [summarize_pool(pool) for pool in pools], count_jobs(jobs)
    if shown.form.name in ("json", "yaml"):
        document = {
            "apiVersion": API_VERSION,
            "kind": "WaferCluster",
            "items": [encode(system) for system in systems],
            "pools": [encode(pool) for pool in short],
            "queue": encode(lengths),
        }
        session.console.print_data(render_data(document, shown.form, shown.look))
        return
    shown.show_list(SYSTEMS, systems, where=" that are not well" if error_only else "")
    if not system_only and shown.form.name in ("table", "wide"):
        session.console.print_data(("\n" if systems else "") + summary_text(short, lengths, shown.look))


# -- change ------------------------------------------------------------------------------------------------------------

cancel = WaferGroup(
    name="cancel", help="Stop jobs.", epilog=examples("moor wafer cancel job wsjob-..."), no_args_is_help=True
)
label = WaferGroup(
    name="label",
    help="Change labels of jobs.",
    epilog=examples("moor wafer label job wsjob-... team=nlp stage-"),
    no_args_is_help=True,
)
job = WaferGroup(
    name="job",
    help="List jobs, or change their priority.",
    epilog=examples("moor wafer job list -a", "moor wafer job set-priority wsjob-... p1"),
    no_args_is_help=True,
)
job.subcommand_metavar = "COMMAND [ARGS]..."
for _group in (cancel, label, job):
    wafer.add_command(_group)


@cancel.command(
    "job",
    cls=MoorCommand,
    help="Stop jobs.\n\nTheir processes get TERM, write a checkpoint, and get KILL after the job's grace period.",
    epilog=examples("moor wafer cancel job wsjob-7f3kq2m4xw2a7f3kq2m4xw"),
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names("job"))
@options(click.option("--wait", is_flag=True, help="Return when they have ended."), _session)
@click.pass_obj
def cancel_job(session: CommandContext, *, names: Sequence[str], wait: bool, session_name: str | None) -> None:
    """Stop jobs."""
    for name in names:
        run = _get_active_run(session, name, session_name)
        run = session.client.cancel_run(run.id)
        while wait and run.state not in ENDED:
            run = session.client.get_run(run.id, wait_s=END_WAIT_S)
        session.console.print_line("Job canceled successfully")


def _get_active_run(session: CommandContext, name: str, session_name: str | None) -> RunBody:
    """The run of a job that has not ended.

    Raises:
        MooringsError: ``run.unknown``, ``run.ended``.
    """
    run = _run(session, name, session_name)
    if run.state in ENDED:
        raise MooringsError(
            "run.ended",
            f"job {run.id} has ended: {job_from_run(run).status.phase}",
            hint=f"see 'moor wafer get job {run.id}'",
        )
    return run


@label.command(
    "job",
    cls=MoorCommand,
    help="Change labels of a job.\n\nKEY=VALUE sets one, KEY- removes it.",
    epilog=examples("moor wafer label job wsjob-7f3kq2m4xw2a7f3kq2m4xw team=nlp stage-"),
)
@_name
@click.argument("changes", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@_session
@click.pass_obj
def label_job(session: CommandContext, *, name: str, changes: Sequence[str], session_name: str | None) -> None:
    """Change labels of a job."""
    request = parse_changes(changes)
    run = session.client.label_run(_get_active_run(session, name, session_name).id, request)
    session.console.print_line(f"job/{run.id} was patched")


@job.command("list", cls=MoorCommand, help=_GET_JOBS, epilog=examples("moor wafer job list -a"))
@_job_filters
@click.pass_obj
def list_jobs(session: CommandContext, /, **filters: Any) -> None:  # noqa: ANN401 - Click's options
    """List jobs."""
    _show_jobs(session, (), **filters)


@job.command(
    "set-priority",
    cls=MoorCommand,
    help="Serve a job earlier or later, and with it all jobs of its workflow that have not ended.\n\n"
    "PRIORITY is p1, p2 or p3 (the last of each: 199, 299, 399), or a number from 100 to 399: the lower one is first. "
    "P0 (p0, or 0 to 99) is for admins. It orders the queue only: what runs is never taken away.",
    epilog=examples("moor wafer job set-priority wsjob-7f3kq2m4xw2a7f3kq2m4xw p1"),
)
@_name
@click.argument("priority", metavar="PRIORITY")
@_session
@click.pass_obj
def set_priority(session: CommandContext, *, name: str, priority: str, session_name: str | None) -> None:
    """Serve a job earlier or later."""
    value = parse_priority(priority)
    run = session.client.prioritise_run(_get_active_run(session, name, session_name).id, value)
    session.console.print_line(f"job/{run.id} was patched: priority {priority_bucket(run.priority)} ({-run.priority})")


# -- log-export --------------------------------------------------------------------------------------------------------


@wafer.command(
    "log-export",
    cls=MoorCommand,
    help="Write an archive of everything about a job: output, records, events.\n\n"
    "A .zip file, 0600, in DIR, which is made if it is not there. What looks like a secret is left out.",
    epilog=examples(
        "moor wafer log-export wsjob-7f3kq2m4xw2a7f3kq2m4xw",
        "moor wafer log-export wsjob-7f3kq2m4xw2a7f3kq2m4xw -p /tmp/logs --num-lines 1000",
    ),
)
@_name
@options(
    click.option(
        "-p",
        "--path",
        "folder",
        metavar="DIR",
        type=click.Path(path_type=Path),
        default=Path(),
        help="Folder for the archive (where one is).",
    ),
    click.option(
        "--num-lines", "lines", type=click.IntRange(1), metavar="N", help="Only so many of the last lines of each task."
    ),
    _session,
)
@click.pass_obj
def log_export(session: CommandContext, *, name: str, folder: Path, lines: int | None, session_name: str | None) -> int:
    """Write an archive of all that is known of a job."""
    from moorings.cli.wafer_export import write_export

    run = _run(session, name, session_name)
    at = time.gmtime(session.now() / 1e6)
    file = folder / f"log-export-{run.id}-{time.strftime('%Y%m%dT%H%M%SZ', at)}.zip"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable_error(folder, error) from error
    with new_file(file) as made:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", at)
        known = session.environment
        missing = write_export(session.client, job_from_run(run), run, made, at=when, lines=lines, known=known)
    for one in missing:
        session.console.warn(f"not in the archive: {one}")
    session.console.print_line(f"{file}: {file.stat().st_size} bytes")
    return ExitCode.FAILED if missing else ExitCode.OK


# -- csctl -------------------------------------------------------------------------------------------------------------


@wafer.command(
    "install-csctl",
    cls=MoorCommand,
    help=f"Put a command called {FILE_NAME} into a folder: 'moor wafer' with the vendor's global flags.\n\n"
    f"It takes -n/--namespace (a session; job-operator is {DEFAULT_SESSION}), --csconfig and -d, too; the latter two "
    "change nothing. A file of that name which is not ours is left alone.",
    epilog=examples("moor wafer install-csctl ~/bin", "moor wafer install-csctl /usr/local/bin"),
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_obj
def install_csctl(session: CommandContext, *, folder: Path) -> None:
    """Put a command called csctl into a folder."""
    session.console.print_line(f"{install(folder)} installed")
