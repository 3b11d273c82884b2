"""``moor version``: the releases of the command and the controller."""

from __future__ import annotations

import click

from moorings import __version__
from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.output import render_data
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode
from moorings.wire.shapes import API_VERSION


@click.command(
    cls=MoorCommand,
    help="Show the versions of the command and of the controller.",
    epilog=examples("moor version", "moor version --client", "moor version -o json"),
)
@click.option("--client", "client_only", is_flag=True, help="Only of the command; needs no controller.")
@output_option
@click.pass_obj
def version(session: CommandContext, *, client_only: bool, output: str | None) -> int:
    """Show the versions."""
    shown = make_printer(session, output, usual="table")
    data: dict[str, object] = {"client": {"version": __version__, "apiVersion": API_VERSION}}
    problem: MooringsError | None = None
    if not client_only:
        try:
            data["controller"] = {**encode(session.client.version()), "server": session.client.server}
        except MooringsError as error:
            problem = error
    if shown.form.name in ("json", "yaml"):
        session.console.print_data(render_data(data, shown.form, table_style(session)))
    else:
        session.console.print_line(f"client      {__version__} ({API_VERSION})")
        controller = data.get("controller")
        if isinstance(controller, dict):
            session.console.print_line(
                f"controller  {controller['version']} ({controller['apiVersion']}) at {controller['server']}"
            )
    if problem is not None:
        raise problem
    return 0
