"""``moor top``: pools, people and the queue on one screen, drawn anew every few seconds."""

from __future__ import annotations

import time
from typing import NoReturn

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.folded_arrays import fold_waiting
from moorings.cli.printing import table_style
from moorings.cli.queue_entries import load_queue
from moorings.cli.top_frame import QueueSnapshot, build_frame
from moorings.client.requests import is_transient
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext
from moorings.terminal.interrupts import Interrupted, SignalsAsExceptions

INTERVAL_S = 2.0


@click.command(
    cls=MoorCommand,
    help="Show pools, people and the queue, and redraw the screen.\n\n"
    "For each pool its devices: OUT are drained or broken, also while a job still has them. For each user what they "
    "hold and wait for: SHARE is of all devices of a kind, QUOTA of the projects that limit users. Then as much of the "
    "queue as there is room for. Ctrl-C ends it. Without a terminal it prints one screen, with all rows.",
    epilog=examples("moor top", "moor top -i 10", "moor top --once"),
)
@click.option(
    "-i",
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=INTERVAL_S,
    help=f"Seconds between two screens ({INTERVAL_S:g}).",
)
@click.option("--once", is_flag=True, help="Print one screen and end.")
@click.pass_obj
def top(session: CommandContext, *, interval: float, once: bool) -> int:
    """Show one screen, or draw it until interrupted; return the exit code."""
    console = session.console
    if once or not console.out_is_tty or console.dumb:
        console.print_data(build_frame(_load(session), session.now(), look=table_style(session)))
        return 0
    with SignalsAsExceptions():
        try:
            shown = _load(session)
            with console.full_screen():
                _draw_always(session, shown, interval)
        except Interrupted as error:
            return error.exit_code


def _draw_always(session: CommandContext, shown: QueueSnapshot, interval_s: float) -> NoReturn:
    """Draw what there is, until a signal comes; also while the controller is away.

    Raises:
        MooringsError: the controller refuses.
    """
    problem = ""
    while True:
        look, lines = table_style(session), session.console.lines
        session.console.draw(build_frame(shown, session.now(), look=look, lines_max=lines, problem=problem))
        time.sleep(interval_s)
        try:
            shown, problem = _load(session), ""
        except MooringsError as error:
            if not is_transient(error):
                raise
            problem = error.detail


def _load(session: CommandContext) -> QueueSnapshot:
    client = session.client
    return QueueSnapshot(session.now(), client.list_pools(), fold_waiting(load_queue(client)), client.list_projects())
