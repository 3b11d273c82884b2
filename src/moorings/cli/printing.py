"""The output options of every listing, and the one way to show items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click

from moorings.cli.command_tree import options
from moorings.cli.output import OutputFormat, TableStyle, check_field, parse_format, render_list, render_one, sort_items
from moorings.cli.resources import ResourceKind
from moorings.terminal.context import CommandContext

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., object])

FORMAT_HELP = "table, wide, json, yaml, name, csv or custom-columns=HEADER:.field,..."

output_option = click.option("-o", "--output", metavar="FORMAT", help=f"Form of the output: {FORMAT_HELP}.")


def output_options(command: CommandT) -> CommandT:
    """``-o``, ``--no-headers`` and ``--sort-by``."""
    return options(
        output_option,
        click.option("--no-headers", is_flag=True, help="Leave the header line out."),
        click.option(
            "--sort-by", metavar="FIELD", help="Order by a JSON field, as createdAt or job.accelerators.size."
        ),
    )(command)


@dataclass(frozen=True, slots=True)
class ResourcePrinter:
    """The output options of one command."""

    session: CommandContext
    form: OutputFormat
    look: TableStyle
    sort_by: str | None

    def show_list(self, kind: ResourceKind[T], items: Sequence[T], *, where: str = "") -> None:
        """Show items; an empty list gives a note on stderr and exit code 0."""
        ordered = sort_items(items, self.sort_by) if self.sort_by else items
        console = self.session.console
        if not items and self.form.name not in ("json", "yaml"):
            console.info(f"{kind.nothing or f'No {kind.plural} found'}{where}.")
            return
        console.print_data(render_list(kind, ordered, self.form, self.session.now(), self.look))

    def show_one(self, kind: ResourceKind[T], item: T) -> None:
        """Show one item; as JSON the item itself, not a list."""
        self.session.console.print_data(render_one(kind, item, self.form, self.session.now(), self.look))

    def show_done(self, kind: ResourceKind[T], item: T, sentence: str) -> None:
        """Show the result of a change: the sentence, or the item if a format was given."""
        if self.form.name == "table":
            self.session.console.print_line(sentence)
        else:
            self.show_one(kind, item)


def make_printer(
    session: CommandContext,
    output: str | None,
    *,
    no_headers: bool = False,
    sort_by: str | None = None,
    usual: str | None = None,
    kind: ResourceKind[T] | None = None,
) -> ResourcePrinter:
    """The printer for a command's options and the configuration.

    Args:
        session: of this command.
        output: the value of ``-o``.
        no_headers: the value of ``--no-headers``.
        sort_by: the value of ``--sort-by``.
        usual: the format without ``-o``; None: that of the configuration.
        kind: of the listed items, for ``sort_by``.

    Raises:
        MooringsError: ``name.invalid``: there is no such format, or field.
    """
    if sort_by is not None and kind is not None:
        check_field(kind, sort_by)
    form = parse_format(output or usual or session.configuration.text("output"))
    return ResourcePrinter(session, form, table_style(session, headers=not no_headers), sort_by)


def table_style(session: CommandContext, *, headers: bool = True, widths: list[int] | None = None) -> TableStyle:
    """The style of tables on this terminal."""
    console = session.console
    return TableStyle(headers, console.columns, console.paint, console.unicode, widths)
