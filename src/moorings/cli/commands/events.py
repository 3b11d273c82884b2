"""``moor events``: the event log, and new events as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from moorings.cli.command_tree import MoorCommand, complete_names, examples
from moorings.cli.output import TableStyle, render_line, render_list
from moorings.cli.printing import ResourcePrinter, make_printer, output_options, table_style
from moorings.cli.resources import EVENTS
from moorings.client.requests import EventFilter
from moorings.terminal.context import CommandContext
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.shapes import EventBody

LAST_SHOWN = 100


@click.command(
    cls=MoorCommand,
    help="Show what has happened.\n\nThe newest events, oldest first; or all after a sequence number.",
    epilog=examples(
        "moor events --last 20", "moor events -f --name 'claim.*'", "moor events --run run-7f3kq2m4xw2a -o json"
    ),
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events.")
@click.option(
    "--claim", metavar="CLAIM", help="Only of this claim (id or name).", shell_complete=complete_names("claim")
)
@click.option("--run", metavar="RUN", help="Only of this run (id or name).", shell_complete=complete_names("run"))
@click.option("--name", multiple=True, metavar="NAME", help="Only of this name; claim.* for all of a noun.")
@click.option("--last", type=click.IntRange(min=0), metavar="N", help=f"So many of the newest ({LAST_SHOWN}).")
@click.option("--after", type=click.IntRange(min=0), metavar="SEQ", help="All after this sequence number.")
@output_options
@click.pass_obj
def events(
    session: CommandContext,
    *,
    follow: bool,
    claim: str | None,
    run: str | None,
    name: tuple[str, ...],
    last: int | None,
    after: int | None,
    output: str | None,
    no_headers: bool,
    sort_by: str | None,
) -> None:
    """Show what has happened."""
    shown = make_printer(session, output, no_headers=no_headers, sort_by=sort_by, kind=EVENTS)
    client = session.client
    where = EventFilter(client.get_claim(claim).id if claim else None, client.get_run(run).id if run else None, name)
    if after is not None:
        found = tuple(client.events_after(where, after))
    else:
        found = client.last_events(where, LAST_SHOWN if last is None else last)
    if not follow:
        shown.show_list(EVENTS, found)
        return
    look = table_style(session, headers=not no_headers, widths=[])
    newest = found[-1].seq if found else (after or client.last_seq())
    session.if_interrupted = "no longer watched"
    client.retry_policy = make_patience(Progress(session.console))
    look = _show_batch(shown, found, look)
    for batch in client.watch_events(where, after=newest):
        look = _show_batch(shown, batch, look)


def _show_batch(shown: ResourcePrinter, batch: Sequence[EventBody], look: TableStyle) -> TableStyle:
    """Show some events; return the style for the next ones."""
    session = shown.session
    if not batch:
        return look
    if shown.form.name == "json":
        for event in batch:
            session.console.print_data(render_line(EVENTS, event, look))
    else:
        session.console.print_data(render_list(EVENTS, batch, shown.form, session.now(), look))
    return replace(look, headers=False)
