"""``moor diag``: a bundle for support, without secrets."""

from __future__ import annotations

import time
from pathlib import Path

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.diagnostics import collect_bundle
from moorings.cli.new_file import new_file
from moorings.terminal.configuration import data_folder
from moorings.terminal.context import CommandContext
from moorings.terminal.progress import Progress


@click.command(
    cls=MoorCommand,
    help="Write a diagnostic bundle without secrets: facts, logs and records.\n\n"
    "A tar file, 0600, with what 'moor doctor' finds, versions, settings, the pools file, the end of the controller's "
    "log, metrics, claims, runs, partitions and the last events. Its README says what is in it and what was left out: "
    "keys, passwords and the values of jobs' variables never are in it.",
    epilog=examples("moor diag", "moor diag /tmp/for-the-helpdesk.tar.gz"),
)
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.option("--data", metavar="DIR", help="Data folder of a controller on this machine ($MOORINGS_DATA).")
@click.pass_obj
def diag(session: CommandContext, *, file: Path | None, data: str | None) -> int:
    """Write a diagnostic bundle without secrets: facts, logs and records."""
    to = file or Path(f"moorings-diag-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(session.now() / 1e6))}.tar.gz")
    progress = Progress(session.console)
    with new_file(to) as made:
        progress.show_waiting("looking around ...")
        bundle = collect_bundle(session, Path(data).absolute() if data else data_folder(session.environment))
        progress.clear()
        made.write(bundle.tar())
    session.console.print_line(f"{to}: {len(bundle.pieces)} pieces, {to.stat().st_size} bytes")
    session.console.print_data(bundle.about().rstrip())
    return 0
