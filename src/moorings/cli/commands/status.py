"""``moor status``: the state of the controller and its pools."""

from __future__ import annotations

from collections import Counter

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.output import OutputFormat, render_data, render_list
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.cli.resources import POOLS
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode


@click.command(
    cls=MoorCommand,
    help="Show how the controller and its pools are.",
    epilog=examples("moor status", "moor status -o json"),
)
@output_option
@click.pass_obj
def status(session: CommandContext, *, output: str | None) -> int:
    """Show how the controller and its pools are."""
    client = session.client
    shown = make_printer(session, output, usual="table")
    version = client.version()
    problem = _problem(session)
    pools = client.list_pools()
    claims = Counter(claim.state for claim in client.list_claims())
    runs = Counter(run.state for run in client.list_runs())
    if shown.form.name in ("json", "yaml"):
        data = {
            "server": client.server,
            "version": version.version,
            "installation": version.installation,
            "ready": problem is None,
            "problem": problem.detail if problem is not None else "",
            "pools": [encode(pool) for pool in pools],
            "claims": dict(claims),
            "runs": dict(runs),
        }
        session.console.print_data(render_data(data, shown.form, shown.look))
        return 0
    ready = "ready" if problem is None else f"NOT READY: {problem.detail}"
    session.console.print_line(f"controller  {client.server} ({version.version}), {ready}")
    session.console.print_line(f"claims      {_counts(claims)}")
    session.console.print_line(f"runs        {_counts(runs)}")
    session.console.print_data("")
    session.console.print_data(render_list(POOLS, pools, OutputFormat("table"), session.now(), table_style(session)))
    return 0


def _problem(session: CommandContext) -> MooringsError | None:
    try:
        session.client.ready()
    except MooringsError as error:
        return error
    return None


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(counted.items())) or "none"
