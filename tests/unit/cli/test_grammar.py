"""The table of commands and its promises: one help text, one meaning a letter, a reference page that is right."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from moorings.cli.command_tree import NOUNS, attribute_of
from moorings.cli.commands import COMMANDS
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.main import main, root
from moorings.cli.reference import build_reference
from moorings.cli.resources import KINDS
from moorings.cli.slurm_options import HINTS
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


@cases(
    ("words", "option", "hint"),
    [
        ("-t 10", "-t", "write --time DURATION"),
        ("-t10", "-t", "write --time DURATION"),
        ("-J x", "-J", "write --name NAME"),
        ("-a 0-3", "-a", "write --array INDEXES"),
        ("-D dir", "-D", "write --chdir DIR"),
        ("--pty", "--pty", "write -i"),
        ("--gres gpu:2", "--gres", "write --ipus N"),
        ("--gres=gpu:2", "--gres", "write --ipus N"),
        ("--mem=4000", "--mem", "write --memory SIZE, for each task"),
        ("--dependency afterok:7", "--dependency", "write --after RUN:ok"),
        ("-o out.txt", "-o", "the output is kept: 'moor logs RUN' shows it"),
    ],
)
def test_an_option_of_slurm_is_refused_with_ours(words, option, hint):
    with pytest.raises(UsageErrorWithHint) as caught:
        dict(all_commands())["run"].make_context("run", [*words.split(), "--", "true"])
    assert (caught.value.message, caught.value.hint) == (f"moor run has no option {option}", hint)


def test_an_unknown_option_ends_as_wrong_usage_with_a_hint(capsys):
    assert main(["run", "-t", "10", "--", "true"]) == 2
    assert capsys.readouterr().err == "error: moor run has no option -t\nhint: write --time DURATION\n"
    assert main(["run", "--no-such", "--", "true"]) == 2
    assert capsys.readouterr().err == "error: No such option '--no-such'.\nhint: see 'moor run --help'\n"


def test_what_a_hint_for_people_of_slurm_names_is_there_and_what_it_refuses_is_not():
    run = dict(all_commands())["run"]
    ours = {flag for option in run.params for flag in (*option.opts, *option.secondary_opts)}
    assert {word for hint in HINTS.values() for word in hint.split() if word.startswith("-")} <= ours
    assert not ours & {name for names in HINTS for name in names}


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
