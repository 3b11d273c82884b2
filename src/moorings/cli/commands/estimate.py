"""``moor estimate``: when a claim submitted now would start."""

from __future__ import annotations

import click

from moorings.cli.command_tree import MoorCommand, complete_names, examples
from moorings.cli.output import render_data
from moorings.cli.printing import make_printer, output_option
from moorings.cli.resources import estimate_text
from moorings.core.model.quantities import parse_duration_s
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode
from moorings.wire.shapes import API_VERSION, EstimateRequest


@click.command(
    cls=MoorCommand,
    help="Estimate when a claim submitted now would start.\n\n"
    "The estimate is the latest start: what runs now uses its whole time limit, and no claim with a higher priority "
    "arrives. Nothing is requested or reserved.",
    epilog=examples("moor estimate --ipus 16", "moor estimate --ipus 16 --time 2h --project lab --preemptible"),
)
@click.option("--ipus", "--size", "size", type=int, required=True, metavar="N", help="Devices.")
@click.option("--kind", default="ipu", metavar="KIND", help="Kind of accelerator (ipu).")
@click.option("--pool", metavar="POOL", help="Only in this pool.", shell_complete=complete_names("pool"))
@click.option("--gcds", "--num-gcds", type=int, default=1, metavar="N", help="Graph compilation domains (1).")
@click.option("--project", metavar="NAME", help="Project (default).", shell_complete=complete_names("project"))
@click.option("--priority", type=int, default=0, metavar="N", help="Higher is first (0).")
@click.option("--time", metavar="DURATION", help="Its time limit, as 30m, 2:00:00; bare: minutes (no limit).")
@click.option("--preemptible", is_flag=True, help="The claim may be preempted.")
@output_option
@click.pass_obj
def estimate(
    session: CommandContext,
    /,
    size: int,
    *,
    kind: str,
    pool: str | None,
    gcds: int,
    project: str | None,
    priority: int,
    time: str | None,
    preemptible: bool,
    output: str | None,
) -> None:
    """Estimate when a claim submitted now would start."""
    shown = make_printer(session, output, usual="table")
    found = session.client.estimate(
        EstimateRequest(
            size=size,
            kind=kind,
            pool=pool,
            gcds=gcds,
            project=project or session.configuration.text("project"),
            priority=priority,
            time_limit_s=None if time is None else parse_duration_s(time),
            preemptible=preemptible,
        )
    )
    if shown.form.name in ("json", "yaml"):
        document = {"apiVersion": API_VERSION, "kind": "Estimate", **encode(found)}
        session.console.print_data(render_data(document, shown.form, shown.look))
    else:
        session.console.print_data(estimate_text(found, session.now(), would="would start"))
