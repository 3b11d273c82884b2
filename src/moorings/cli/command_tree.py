"""The grammar ``moor VERB NOUN [NAME]``: verbs loaded when called, nouns in every spelling, flags of every command.

Click parses; this adds what kubectl's users expect: ``get partition``, ``get partitions``, ``list part`` and ``delete
partition/p64`` all work, and global flags may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from moorings.terminal.context import CommandContext

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CommandT = TypeVar("CommandT", bound=Callable[..., object])

NOUNS: dict[str, tuple[str, ...]] = {
    "pool": ("pools", "po"),
    "device": ("devices", "dev", "devs"),
    "partition": ("partitions", "part", "parts"),
    "claim": ("claims", "cl"),
    "checkpoint": ("checkpoints", "ckpt", "ckpts"),
    "run": ("runs", "job", "jobs"),
    "queue": ("queues", "q"),
    "project": ("projects", "proj"),
    "quota": ("quotas",),
    "key": ("keys",),
    "event": ("events", "ev"),
}


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One row of the table of commands: its module, its help line, its other names.

    Attributes:
        module: below ``moorings.cli.commands``; its attribute of the command's name, ``_`` for ``-``, is the command.
        help: one line; a test compares it with the command's own.
        section: of ``moor --help``.
        aliases: other spellings.
    """

    module: str
    help: str
    section: str
    aliases: tuple[str, ...] = ()


def _store_flag(name: str) -> Callable[[click.Context, click.Parameter, object], None]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
        if value not in (None, False, 0):
            ctx.ensure_object(CommandContext).flags[name] = str(value)

    return callback


def global_options(*, hidden: bool) -> list[click.Option]:
    """The flags that every command takes; shown once, by ``moor --help``."""

    def flag(name: str, *spelling: str, **settings: Any) -> click.Option:  # noqa: ANN401 - Click's own arguments
        return click.Option(
            [*spelling, f"_{name}"], hidden=hidden, expose_value=False, callback=_store_flag(name), **settings
        )

    return [
        flag("server", "--server", metavar="URL", help="Address of the controller."),
        flag(
            *("context", "--context"),
            metavar="NAME",
            help="Use this context of the configuration.",
            shell_complete=complete_names("context"),
        ),
        flag("config", "--config", metavar="FILE", help="Read this configuration file first."),
        flag("ca_file", "--ca-file", metavar="FILE", help="PEM file of the authority behind the server's certificate."),
        flag(
            "timeout",
            "--request-timeout",
            metavar="DURATION",
            help="Request timeout, as 90s or 10m (30s).",
        ),
        flag("color", "--color", type=click.Choice(["auto", "always", "never"]), help="Colour the tables."),
        flag("quiet", "--quiet", "-q", is_flag=True, help="Print only errors and warnings to stderr."),
        flag("verbose", "--verbose", "-v", count=True, help="Log each request to stderr."),
        flag("debug", "--debug", is_flag=True, help="Show a traceback with an error."),
    ]


class MoorCommand(click.Command):
    """A command that also takes the global flags."""

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - Click's own arguments
        super().__init__(*args, **settings)
        self.params = [*self.params, *global_options(hidden=True)]


class NounGroup(click.Group):
    """A verb: its nouns in every spelling, also as ``noun/name``.

    Args:
        default_noun: the noun of a name without one, of which it takes one; empty: a noun must be given.
    """

    command_class = MoorCommand

    def __init__(self, *args: Any, default_noun: str = "", **settings: Any) -> None:  # noqa: ANN401 - Click's own
        if default_noun:  # an option before the name is the noun's
            settings["context_settings"] = {"ignore_unknown_options": True}
        super().__init__(*args, **settings)
        self.params = [*self.params, *global_options(hidden=True)]
        self.subcommand_metavar = "NAME | NOUN NAME..." if default_noun else "NOUN [NAME]..."
        self.default_noun = default_noun

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, singular(cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        noun, slash, begun = incomplete.partition("/")
        if not slash:
            return super().shell_complete(ctx, incomplete)
        found = complete_names(singular(noun))(ctx, self.params[0], begun)
        return [CompletionItem(f"{noun}/{name}") for name in found]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        noun, slash, _ = args[0].partition("/")
        if slash and self.get_command(ctx, noun) is not None:
            args = [noun, *args]
        elif self.default_noun and not slash and self.get_command(ctx, noun) is None:
            args = [self.default_noun, *args]
        try:
            _, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = ", ".join(name for name in self.list_commands(ctx) if not self.commands[name].hidden)
            raise click.UsageError(f"'{ctx.command_path}' does not know {args[0]!r}; it takes: {known}", ctx) from error
        return (command.name if command else None), command, rest


def attribute_of(name: str) -> str:
    """The attribute of a command's module that is the command of that name."""
    return name.replace("-", "_")


class LazyCommandGroup(click.Group):
    """The root: a table of commands whose modules are imported when called."""

    def __init__(self, table: Mapping[str, CommandEntry], *args: Any, **settings: Any) -> None:  # noqa: ANN401 - Click's own
        super().__init__(*args, **settings)
        self.table = table
        self._names = {alias: name for name, entry in table.items() for alias in (name, *entry.aliases)}

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._names.get(cmd_name)
        if name is None:
            return None
        module = import_module(f"moorings.cli.commands.{self.table[name].module}")
        return cast("click.Command", getattr(module, attribute_of(name)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            _, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise self._did_you_mean(args[0], ctx) or error from None
        return (command.name if command else None), command, rest

    def _did_you_mean(self, word: str, ctx: click.Context) -> click.UsageError | None:
        from difflib import get_close_matches

        from moorings.cli.errors import UsageErrorWithHint

        alike = list(dict.fromkeys(self._names[name] for name in get_close_matches(word, self._names)))
        if word in self._names or not alike:
            return None
        hint = f"did you mean {' or '.join(map(repr, alike))}? See '{ctx.command_path} --help'"
        return UsageErrorWithHint(f"there is no command {word!r}", hint=hint)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.table.items():
            sections.setdefault(entry.section, []).append((name, entry.help))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def singular(noun: str) -> str:
    """The noun in its canonical form: ``part`` and ``partitions`` are ``partition``."""
    return next((name for name, others in NOUNS.items() if noun in others), noun)


def strip_nouns(noun: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names without a leading ``noun/``.

    Raises:
        click.UsageError: a name has another noun.
    """
    found = []
    for name in names:
        before, slash, after = name.partition("/")
        if slash and noun == "project" and singular(before) not in NOUNS:  # a part of another project
            found.append(name)
            continue
        if slash and singular(before) != noun:
            raise click.UsageError(f"{name!r} is no {noun}")
        found.append(after if slash else name)
    return tuple(found)


def options(*decorators: Callable[[CommandT], CommandT]) -> Callable[[CommandT], CommandT]:
    """Several options as one decorator, in the order of the help text."""

    def decorate(command: CommandT) -> CommandT:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def examples(*lines: str) -> str:
    """Examples for the end of a help text, each ready to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def names_argument(noun: str, *, required: bool = False) -> Callable[[CommandT], CommandT]:
    """``[NAME]...``, completed with names of existing resources."""
    metavar = "NAME..." if required else "[NAME]..."
    return click.argument("names", metavar=metavar, nargs=-1, required=required, shell_complete=complete_names(noun))


def name_argument(noun: str) -> Callable[[CommandT], CommandT]:
    """``NAME``, completed with names of existing resources."""
    return click.argument("name", metavar=noun.upper(), shell_complete=complete_names(noun))


def complete_names(*nouns: str) -> Callable[[click.Context, click.Parameter, str], Sequence[str]]:
    """A completer for names of existing resources of these nouns; ``state``: the states of the command's noun."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Sequence[str]:
        from moorings.cli.completion import live_names, states

        session = ctx.ensure_object(CommandContext)
        names = [
            name
            for noun in nouns
            for name in (states(singular(ctx.info_name or "")) if noun == "state" else live_names(session, noun))
        ]
        return [name for name in names if name.lower().startswith(incomplete.lower())]

    return complete
