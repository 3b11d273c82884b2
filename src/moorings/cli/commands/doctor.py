"""``moor doctor``: checks the installation, with a fix for each problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from moorings.cli.checks import CheckStatus, Finding
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.examination import examine
from moorings.cli.grammar import MoorCommand, examples
from moorings.cli.output import render_data, render_table
from moorings.cli.session import CommandContext
from moorings.cli.showing import make_printer, output_option, table_style
from moorings.wire.checks import CHECKS, check_family, docs_link
from moorings.wire.codec import encode
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import API_VERSION


@click.command(
    cls=MoorCommand,
    help="Check the installation and show how to fix problems.\n\n"
    "Looks at this command's configuration, at the controller from inside (for admins), and, on its machine, at its "
    "files. Only reads, and takes 10 seconds at most. The exit code is 8 if a check failed.",
    epilog=examples("moor doctor", "moor doctor -o json", "moor doctor --only pools,host"),
)
@click.option("--only", metavar="ID,...", help="Only checks whose id begins with one of these.")
@click.option("--data", metavar="DIR", help="Data folder of a controller on this machine ($MOORINGS_DATA).")
@output_option
@click.pass_obj
def doctor(session: CommandContext, *, only: str | None, data: str | None, output: str | None) -> int:
    """Check the installation and show how to fix problems."""
    wanted = _wanted(only) if only is not None else ("",)
    everything = examine(session, Path(data).absolute() if data else None)
    found = [finding for finding in everything if finding.id.startswith(wanted)]
    found += [_skipped_finding(part) for part in wanted if not any(finding.id.startswith(part) for finding in found)]
    show_findings(session, found, output, docs_link)
    return ExitCode.FINDINGS if any(finding.verdict is CheckStatus.FAIL for finding in found) else ExitCode.OK


def _wanted(only: str) -> tuple[str, ...]:
    """The requested prefixes of check ids.

    Raises:
        UsageErrorWithHint: no check's id begins with one.
    """
    wanted = tuple(filter(None, (part.strip() for part in only.split(","))))
    unknown = [part for part in wanted if not _is_check_prefix(part)]
    if unknown or not wanted:
        told = f"no check's id begins with {' or '.join(map(repr, unknown))}" if unknown else "--only names no check"
        raise UsageErrorWithHint(told, hint=f"the checks are {', '.join(CHECKS)}")
    return wanted


def _is_check_prefix(part: str) -> bool:
    """Whether an id may begin with this: a check's own, or a pool's check, followed by the pool's name."""
    check = check_family(part)
    own = any(name.startswith(part) for name in CHECKS)
    return own or (check in CHECKS and not any(name.startswith(f"{check}.") for name in CHECKS))


def _skipped_finding(part: str) -> Finding:
    """The finding for a requested check that was skipped because it depends on something that failed."""
    return Finding(part, CheckStatus.SKIP, "it was not looked at", "'moor doctor' without --only shows why")


def show_findings(
    session: CommandContext, found: Sequence[Finding], output: str | None, docs_of: Callable[[str], str]
) -> None:
    """Show findings; ``docs_of`` gives the page of the manual for a check."""
    # The configuration may be the broken part: then its output setting is not read.
    shown = make_printer(session, output, usual="table")
    if shown.form.name in ("json", "yaml"):
        items = [{**encode(finding), "docs": docs_of(finding.id)} for finding in found]
        data = {"apiVersion": API_VERSION, "kind": "Findings", "items": items}
        session.console.data(render_data(data, shown.form, shown.look))
        return
    rows = [[finding.verdict, finding.id, finding.evidence] for finding in found]
    table = render_table(["RESULT", "CHECK", "EVIDENCE"], rows, table_style(session)).splitlines()
    session.console.data(table[0])
    for line, finding in zip(table[1:], found, strict=True):
        session.console.data(line)
        if finding.verdict in (CheckStatus.WARN, CheckStatus.FAIL):
            fix = f"fix: {finding.fix}; " if finding.fix else ""
            session.console.line(f"         {fix}more: {docs_of(finding.id)}")
