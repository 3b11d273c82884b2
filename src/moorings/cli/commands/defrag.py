"""``moor defrag``: moves claims to make a larger block free."""

from __future__ import annotations

import time
from dataclasses import replace

import click

from moorings.cli.command_tree import MoorCommand, complete_names, examples, strip_nouns
from moorings.cli.confirm import confirm, yes_option
from moorings.cli.output import TableStyle, render_data, render_table
from moorings.cli.printing import make_printer, output_option
from moorings.core.model.topology import Block
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest
from moorings.wire.shapes import API_VERSION

ANSWER_S = 5.0  # an order may take this long to arrive


@click.command(
    cls=MoorCommand,
    help="Move claims to make a larger block free.\n\n"
    "For a block of N devices, or for a pending claim, where enough devices are free but no block of them. The claims "
    "that lose the least work are asked to save a checkpoint and resume on other devices of the pool. Only claims that "
    "can resume from a checkpoint are moved, and no more in an hour than the policy allows; its own 'defragment' "
    "setting does not matter here.",
    epilog=examples(
        "moor defrag --ipus 32 --dry-run", "moor defrag --claim big", "moor defrag --pool pod64 --ipus 32 -y"
    ),
)
@click.option(
    "--ipus", "--size", "size", type=click.IntRange(min=1), metavar="N", help="Devices of the block that shall be free."
)
@click.option(
    "--claim", metavar="CLAIM", help="Room for this claim, which waits.", shell_complete=complete_names("claim")
)
@click.option("--pool", metavar="POOL", help="Only in this pool.", shell_complete=complete_names("pool"))
@click.option("--cost-max", type=float, metavar="SECONDS", help="Only if no more device-seconds of work are lost.")
@click.option("--dry-run", is_flag=True, help="Show which claims would move; change nothing.")
@yes_option
@output_option
@click.pass_obj
def defrag(
    session: CommandContext,
    /,
    size: int | None,
    *,
    claim: str | None,
    pool: str | None,
    cost_max: float | None,
    dry_run: bool,
    yes: bool,
    output: str | None,
) -> None:
    """Move claims to make a larger block free."""
    if (size is None) == (claim is None):
        raise click.UsageError("name --ipus or --claim")
    shown = make_printer(session, output, usual="table")
    named = strip_nouns("claim", [claim])[0] if claim is not None else None
    order = DefragmentRequest(size=size, claim=named, pool=pool, dry_run=dry_run, cost_max_s=cost_max)

    asked: list[tuple[DefragmentBody, float]] = []

    def look() -> None:
        asked.append((session.client.defragment(replace(order, dry_run=True)), time.monotonic()))
        for line in moves_text(asked[0][0], shown.look).splitlines():
            session.console.info(line)

    if not dry_run:
        confirm(session, "Ask these claims to move?", look, yes=yes)
    for agreed, at in asked:
        order = limit_to_agreed(order, agreed, time.monotonic() - at)
    found = session.client.defragment(order)
    if shown.form.name in ("json", "yaml"):
        document = {"apiVersion": API_VERSION, "kind": "Defragment", **encode(found)}
        session.console.print_data(render_data(document, shown.form, shown.look))
        return
    session.console.print_data(moves_text(found, shown.look))
    if not dry_run:
        session.console.info("the claims were asked to move; follow them with 'moor get claims'")


def limit_to_agreed(order: DefragmentRequest, agreed: DefragmentBody, elapsed_s: float) -> DefragmentRequest:
    """The order, limited to the agreed pool and loss; ``elapsed_s`` is the time since the agreement.

    The claims that would move keep working meanwhile, and lose that work, too.
    """
    if order.cost_max_s is not None:
        return replace(order, pool=agreed.pool)
    devices = sum(len(Block.parse(move.devices)) for move in agreed.moves)
    return replace(order, pool=agreed.pool, cost_max_s=agreed.cost_s + devices * (elapsed_s + ANSWER_S))


def moves_text(found: DefragmentBody, look: TableStyle) -> str:
    """The claims that move, and the block that becomes free."""
    rows = [[one.name, one.project, one.devices, one.to] for one in found.moves]
    count = "1 claim moves" if len(found.moves) == 1 else f"{len(found.moves)} claims move"
    summary = (
        f"devices {found.devices} of {found.pool} become free: {count}, {found.cost_s / 60:.0f} device-minutes are lost"
    )
    return f"{render_table(['NAME', 'PROJECT', 'FROM', 'TO'], rows, look)}\n{summary}"
