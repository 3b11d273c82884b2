"""``python -m moorings.cli.reference``: the reference page of the command line, generated from the commands."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from moorings.cli.command_tree import NOUNS, LazyCommandGroup
from moorings.cli.main import root
from moorings.terminal.configuration import DEFAULTS, NAMES, flag_of
from moorings.terminal.context import CommandContext
from moorings.wire.errors import ExitCode

EXITS = {
    ExitCode.OK: "success; an empty list is one",
    ExitCode.FAILED: "the operation, or the job, failed",
    ExitCode.USAGE: "wrong usage, or a value that is not allowed",
    ExitCode.NOT_FOUND: "there is no such thing",
    ExitCode.DENIED: "not allowed, or no valid access key",
    ExitCode.CONFLICT: "conflict with what is there",
    ExitCode.NO_ROOM: "no room now; the same may succeed later",
    ExitCode.UNREACHABLE: "the controller, or what it needs, cannot be reached; the same may succeed later",
    ExitCode.FINDINGS: "`moor doctor` found something",
    ExitCode.TIMEOUT: "the time of `--timeout` was up",
}


def make_context(commands: LazyCommandGroup) -> click.Context:
    """The context of a call of ``moor``, with its settings: Click keeps the help option of the first one that asks."""
    return click.Context(commands, info_name="moor", obj=CommandContext({}), **commands.context_settings)


def build_reference(commands: LazyCommandGroup) -> str:
    """The page as Markdown."""
    with make_context(commands) as ctx:
        lines = [
            "# The moor command",
            "",
            "<!-- made by `python -m moorings.cli.reference` (`make docs`): do not edit -->",
            "",
            "`moor VERB NOUN [NAME]`. Nouns may be written in several ways:",
            "",
            *(f"- {', '.join(f'`{word}`' for word in (noun, *others))}" for noun, others in NOUNS.items()),
            "",
            "`NOUN/NAME`, which `-o name` prints, is taken wherever `NOUN NAME` is.",
            "",
            "## Flags of every command",
            "",
            *_options(commands, ctx, hidden=False),
            "",
            *_settings(),
            "",
            *_exit_codes(),
        ]
        for name in commands.list_commands(ctx):
            command = commands.get_command(ctx, name)
            assert command is not None, name
            lines += _command(command, ctx, name, aliases=commands.table[name].aliases)
    return "\n".join(lines) + "\n"


def _command(
    command: click.Command, parent: click.Context, name: str, *, aliases: tuple[str, ...] = (), level: int = 2
) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as ctx:
        yield from ["", f"{'#' * level} {ctx.command_path}", ""]
        yield from [help_text(command), ""]
        if aliases:
            yield from [f"Also: {', '.join(f'`moor {alias}`' for alias in aliases)}.", ""]
        pieces = command.collect_usage_pieces(ctx)
        yield from ["```text", " ".join([ctx.command_path, *pieces]), "```", ""]
        yield from _options(command, ctx, hidden=True)
        yield from _examples(command)
        if isinstance(command, click.Group):
            for noun in command.list_commands(ctx):
                child = command.get_command(ctx, noun)
                if child is not None and not child.hidden:
                    yield from _command(child, ctx, noun, level=level + 1)


def help_text(command: click.Command) -> str:
    """The help text, without Click's marks."""
    return inspect.cleandoc((command.help or "").replace("\b\n", ""))


def option_rows(command: click.Command, ctx: click.Context, *, hidden: bool) -> list[tuple[str, str]]:
    """Spelling and meaning of the options; ``hidden``: without those of every command."""
    shown = [each for each in command.params if isinstance(each, click.Option) and not (hidden and each.hidden)]
    return [record for each in shown if (record := each.get_help_record(ctx)) is not None]


def _options(command: click.Command, ctx: click.Context, *, hidden: bool) -> Iterator[str]:
    rows = option_rows(command, ctx, hidden=hidden)
    if rows:
        yield from ["| option | meaning |", "|---|---|"]
        yield from (f"| `{spelling.replace('|', chr(92) + '|')}` | {meaning} |" for spelling, meaning in rows)


def example_lines(command: click.Command) -> list[str]:
    """The examples, one command a line."""
    return [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]


def _examples(command: click.Command) -> Iterator[str]:
    lines = example_lines(command)
    if lines:
        yield from ["", "```shell", *lines, "```"]


def _settings() -> Iterator[str]:
    yield from [
        "## Configuration",
        "",
        "The first that says something holds: flag, environment, the file of `--config` (or `MOORINGS_CONFIG`),",
        "`~/.config/moorings/config.toml`, `/etc/moorings/client.toml`, then the credentials file",
        "`~/.config/moorings/credentials.toml` (or `MOORINGS_CREDENTIALS`), which must have mode 0600.",
        "`moor config view --show-origin` shows where each value came from.",
        "",
        "| setting | flag | environment | default |",
        "|---|---|---|---|",
    ]
    for name in NAMES:
        variables = f"`MOORINGS_{name.upper()}`" + (", `MOORINGS_ACCESS_KEY_FILE`" if name == "access_key" else "")
        flag, default = flag_of(name), DEFAULTS[name] or "none"
        yield f"| `{name}` | {f'`{flag}`' if flag else 'none'} | {variables} | {default} |"
    yield from [
        "",
        "`server_user` is the account, or its uid, of a controller on this machine that plain HTTP reaches. Other",
        "users can listen on its port while it is down, and there the access key goes to nobody but that user and",
        "root; without this setting, to yourself, `moorings` and root (`controller.foreign` otherwise).",
    ]


def _exit_codes() -> Iterator[str]:
    yield from ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    yield from (f"| {code.value} | {EXITS[code]} |" for code in ExitCode)
    yield from ["| 128+N | killed by signal N; `moor run` returns the job's own code unchanged |"]


if __name__ == "__main__":
    sys.stdout.write(build_reference(root))
