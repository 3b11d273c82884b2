"""The table of commands and its promises: one help text, one meaning a letter, a reference page that is right."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from moorings.cli.command_tree import NOUNS, attribute_of
from moorings.cli.commands import COMMANDS
from moorings.cli.main import main, root
from moorings.cli.reference import build_reference
from moorings.cli.resources import KINDS
from moorings.terminal.context import CommandContext
from tests.cases import cases

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"


def all_commands() -> Iterator[tuple[str, click.Command]]:
    with click.Context(root, obj=CommandContext({})) as ctx:
        for name in COMMANDS:
            command = root.get_command(ctx, name)
            assert command is not None
            yield from tree(name, command)


def tree(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for noun, child in command.commands.items():
            yield from tree(f"{name} {noun}", child)


@cases("name", COMMANDS)
def test_the_table_says_what_the_command_says(name):
    command = getattr(import_module(f"moorings.cli.commands.{COMMANDS[name].module}"), attribute_of(name))
    assert (command.help or "").partition("\n")[0] == COMMANDS[name].help


def test_a_short_flag_means_one_thing():
    meanings: dict[str, set[str]] = {}
    for _, command in all_commands():
        for option in (option for option in command.params if isinstance(option, click.Option)):
            for flag in option.opts:
                if len(flag) == 2:
                    meanings.setdefault(flag, set()).add(max(option.opts, key=len))
    assert meanings == {
        "-a": {"--all-states"},
        "-l": {"--selector"},
        "-o": {"--output"},
        "-p": {"--path"},
        "-i": {"--interval", "--interactive"},  # as Slurm's commands have it, and docker's
        "-w": {"--watch"},
        "-A": {"--all"},
        "-f": {"--follow"},
        "-n": {"--ntasks"},
        "-q": {"--quiet"},
        "-v": {"--verbose"},
        "-y": {"--yes"},
    }


def test_every_command_has_a_help_text_of_whole_sentences():
    for name, command in all_commands():
        first = (command.help or "").partition("\n")[0]
        assert first.endswith((".", ":")), name


def test_every_noun_of_a_table_is_in_the_grammar():
    assert {noun: (kind.plural, *kind.aliases) for noun, kind in KINDS.items()} == NOUNS


@pytest.mark.parametrize("words", [[], ["-h"], ["get", "-h"], ["run", "--help"], ["delete", "partition", "-h"]])
def test_help_is_there_on_every_level(capsys, words):
    assert main(words) in (0, 2)
    shown = capsys.readouterr()
    assert "Usage: moor" in shown.out + shown.err


def test_the_reference_page_is_what_the_commands_say():
    assert PAGE.read_text() == build_reference(root), "python -m moorings.cli.reference > docs/reference/cli.md"
