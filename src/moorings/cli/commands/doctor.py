"""``moor doctor``: checks the installation, with a fix for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.examination import examine
from moorings.cli.output import render_data, render_table
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.doctor.checks import CHECKS, docs_link, is_check_prefix
from moorings.doctor.findings import FAIL, SKIP, WARN, Finding
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import parse_seconds
from moorings.terminal.interrupts import Interrupted, SignalsAsExceptions
from moorings.terminal.progress import Progress
from moorings.wire.codec import encode
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import API_VERSION
from moorings.workloads.jobs import check_job


@click.command(
    cls=MoorCommand,
    help="Check the installation and show how to fix problems.\n\n"
    "Looks at this command's configuration, at the controller from inside (for admins), and, on its machine, at its "
    "files. Only reads, and takes 10 seconds at most. The exit code is 8 if a check failed.\n\n"
    "With --job it tries a job instead: starts it on one device a task, with a folder of checkpoints of its own, warns "
    "it, and says whether a whole checkpoint appeared and whether the second attempt continued from it.",
    epilog=examples(
        "moor doctor", "moor doctor -o json", "moor doctor --only pools,host", "moor doctor --job job.toml --works 1m"
    ),
)
@click.option("--job", "job_file", metavar="FILE", help="Try the checkpoint contract of this job file.")
@click.option(
    "--works", default="10s", metavar="DURATION", help="With --job: how long it works before it is warned (10s)."
)
@click.option("--timeout", default="5m", metavar="DURATION", help="With --job: longest time of each step (5m).")
@click.option("--only", metavar="ID,...", help="Only checks whose id begins with one of these.")
@click.option("--data", metavar="DIR", help="Data folder of a controller on this machine ($MOORINGS_DATA).")
@output_option
@click.pass_obj
def doctor(
    session: CommandContext,
    *,
    job_file: str | None,
    works: str,
    timeout: str,
    only: str | None,
    data: str | None,
    output: str | None,
) -> int:
    """Check the installation and show how to fix problems."""
    if job_file is not None:
        if only is not None or data is not None:
            raise click.UsageError("--job tries a job; --only and --data are for the other checks")
        try:
            return show_findings(session, _try_job(session, Path(job_file), works, timeout), output)
        except Interrupted as stop:
            Progress(session.console).report(f"{stop.name}: the trial was cancelled")
            return stop.exit_code
    wanted = parse_only(only, CHECKS) if only is not None else ("",)
    everything = examine(session, Path(data).absolute() if data else None)
    found = [finding for finding in everything if finding.id.startswith(wanted)]
    found += [_skipped_finding(part) for part in wanted if not any(finding.id.startswith(part) for finding in found)]
    return show_findings(session, found, output)


def _try_job(session: CommandContext, file: Path, works: str, timeout: str) -> list[Finding]:
    from moorings.cli.job_trial import TrialTimes, try_job
    from moorings.submission.job_building import read_job
    from moorings.submission.job_environment import choose_export, find_place

    times = TrialTimes(parse_seconds(works), parse_seconds(timeout))
    place = find_place(session.configuration.text("server"), "local", session.environment)
    usual = choose_export(place, "local")
    warn = session.console.warn
    job = check_job(read_job(Path.cwd() / file, session.environment, usual_export=usual, warn=warn))
    with SignalsAsExceptions():
        return try_job(session.client, job, times, Progress(session.console).report)


def parse_only(only: str, known: Mapping[str, str]) -> tuple[str, ...]:
    """The requested prefixes of the ids of known checks.

    Raises:
        UsageErrorWithHint: no check's id begins with one.
    """
    wanted = tuple(filter(None, (part.strip() for part in only.split(","))))
    unknown = [part for part in wanted if not is_check_prefix(part, known)]
    if unknown or not wanted:
        problem = f"no check's id begins with {' or '.join(map(repr, unknown))}" if unknown else "--only names no check"
        raise UsageErrorWithHint(problem, hint=f"the checks are {', '.join(known)}")
    return wanted


def _skipped_finding(part: str) -> Finding:
    """The finding for a requested check that was skipped because it depends on something that failed."""
    return Finding(part, SKIP, "it was not looked at", "'moor doctor' without --only shows why")


def show_findings(session: CommandContext, found: Sequence[Finding], output: str | None) -> ExitCode:
    """Show findings, each with its page of the manual; return the exit code: whether a check failed."""
    code = ExitCode.FINDINGS if any(finding.verdict is FAIL for finding in found) else ExitCode.OK
    # The configuration may be the broken part: then its output setting is not read.
    shown = make_printer(session, output, usual="table")
    if shown.form.name in ("json", "yaml"):
        items = [{**encode(finding), "docs": docs_link(finding.id)} for finding in found]
        data = {"apiVersion": API_VERSION, "kind": "Findings", "items": items}
        session.console.print_data(render_data(data, shown.form, shown.look))
        return code
    rows = [[finding.verdict, finding.id, finding.evidence] for finding in found]
    table = render_table(["RESULT", "CHECK", "EVIDENCE"], rows, table_style(session)).splitlines()
    session.console.print_data(table[0])
    for line, finding in zip(table[1:], found, strict=True):
        session.console.print_data(line)
        if finding.verdict in (WARN, FAIL):
            fix = f"fix: {finding.fix}; " if finding.fix else ""
            session.console.print_line(f"         {fix}more: {docs_link(finding.id)}")
    return code
