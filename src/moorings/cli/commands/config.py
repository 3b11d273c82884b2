"""``moor config``: the settings in effect, their origin, and the current context."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, complete_names, examples
from moorings.cli.output import render_data, render_table
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.terminal.configuration import NAMES, Configuration, check_context, config_folder, credentials_file
from moorings.terminal.context import CommandContext

_CONTEXT_LINE = re.compile(r"^context\s*=.*$", re.MULTILINE)

config = NounGroup(
    name="config",
    help="Show the configuration, or choose a context.",
    epilog=examples("moor config view --show-origin", "moor config use-context pod1"),
    no_args_is_help=True,
)


@config.command("view", cls=MoorCommand)
@click.option("--show-origin", is_flag=True, help="Also where each value came from.")
@output_option
@click.pass_obj
def view(session: CommandContext, *, show_origin: bool, output: str | None) -> None:
    """Show the configuration that holds; the access key only by its beginning."""
    shown = make_printer(session, output, usual="table")
    values = {name: _shown(session.configuration, name) for name in NAMES}
    origins = {name: session.configuration.values[name].origin for name in NAMES}
    if shown.form.name in ("json", "yaml"):
        data: dict[str, object] = {
            name: {"value": values[name], "origin": origins[name]} if show_origin else values[name] for name in NAMES
        }
        session.console.print_data(render_data(data, shown.form, table_style(session)))
        return
    headers = ["NAME", "VALUE", *(["ORIGIN"] if show_origin else [])]
    rows = [[name, values[name], *([origins[name]] if show_origin else [])] for name in NAMES]
    session.console.print_data(render_table(headers, rows, table_style(session)))


@config.command("use-context", cls=MoorCommand)
@click.argument("name", shell_complete=complete_names("context"))
@click.pass_obj
def use_context(session: CommandContext, name: str) -> None:
    """Use the context NAME from now on."""
    check_context(name, session.flags, session.environment)
    path = config_folder(session.environment) / "config.toml"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_context(path, name)
    session.console.print_line(f"context {name} is used from now on ({path})")


@config.command("path", cls=MoorCommand)
@click.pass_obj
def path(session: CommandContext) -> None:
    """Print the path of the credentials file."""
    session.console.print_data(str(credentials_file(session.environment)))


def _shown(configuration: Configuration, name: str) -> str:
    text = configuration.text(name)
    return f"{text[:8]}..." if name == "access_key" and text else text


def _write_context(path: Path, name: str) -> None:
    """Set the one line, and leave the rest of the user's file as it is."""
    line = f"context = {json.dumps(name, ensure_ascii=False)}"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    changed = _CONTEXT_LINE.sub(lambda _match: line, text, count=1) if _CONTEXT_LINE.search(text) else f"{line}\n{text}"
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(changed, encoding="utf-8")
    draft.replace(path)
