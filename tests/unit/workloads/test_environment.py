"""Which variables travel, what a file of them says, and lines before the command."""

import contextlib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.workloads.environment import (
    ENVIRONMENT_CHARS_MAX,
    VARIABLE_BYTES_MAX,
    ExportRule,
    check_environment,
    choose_variables,
    has_values,
    names_alone,
    parse_env_file,
    parse_export,
    with_setup,
)
from tests.cases import cases

MODULE = "BASH_FUNC_module%%"
SHELL = {
    "HOME": "/home/ann",
    "PATH": "/bin",
    "LC_TIME": "C",
    "CONDA_PREFIX": "/c",
    "SECRET": "s",
    "EDITOR": "vi",
    "MOORINGS_ACCESS_KEY": "moor_1",
    "RANK": "3",
    "IPUOF_X": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_CONF": "/s",
    "CUDA_VISIBLE_DEVICES": "0",
    "PWD": "/",
    "_": "/bin/moor",
    MODULE: "() {  echo $1\n}",
}


def chosen(text, shell=SHELL):
    return choose_variables(parse_export(text), shell)


@cases(
    ("text", "names"),
    [
        ("ALL", {"HOME", "PATH", "LC_TIME", "CONDA_PREFIX", "SECRET", "EDITOR", "SLURM_CONF", MODULE}),
        ("BASIC", {"HOME", "PATH", "LC_TIME", "CONDA_PREFIX", MODULE}),
        ("NONE", set()),
        ("SECRET", {"SECRET"}),
        ("SECRET,NEW=1", {"SECRET", "NEW"}),
        ("BASIC,EDITOR", {"HOME", "PATH", "LC_TIME", "CONDA_PREFIX", MODULE, "EDITOR"}),
        ("EDITOR,BASIC", {"HOME", "PATH", "LC_TIME", "CONDA_PREFIX", MODULE, "EDITOR"}),
        ("CUDA_VISIBLE_DEVICES,SLURM_JOB_ID", {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"}),
    ],
)
def test_a_rule_says_what_travels(text, names):
    found = chosen(text)
    assert set(found.variables) == names
    assert not found.dropped
    check_environment(found.variables)


def test_a_value_of_the_rule_wins():
    assert chosen("ALL,HOME=/x,A=b=c").variables["HOME"] == "/x"
    assert chosen("A=b=c").variables == {"A": "b=c"}


@cases("text", ["", "A B", "ALL,NONE", "NONE,A", "BASIC,ALL", "ALL,,A", "1A", "=1", "A\n"])
def test_a_rule_that_cannot_be_read_is_refused(text):
    with pytest.raises(MooringsError, match="export") as caught:
        parse_export(text)
    assert caught.value.code == "job.invalid"


def test_what_cannot_travel_is_named_without_its_value():
    long = "hunter2" * 20_000
    shell = {"A": "1", "b-c": "hunter2", "D": "hunter2\udcff", "E": long, "BASH_FUNC_x y%%": "() { :; }"}
    found = choose_variables(ExportRule("ALL"), shell)
    assert found.variables == {"A": "1"}
    assert [text.split(" ")[0] for text in found.dropped] == ["b-c", "D", "E", "BASH_FUNC_x"]
    assert "hunter2" not in "".join(found.dropped)
    assert chosen("NOPE").dropped == ("NOPE is not set here",)


def test_of_too_much_the_longest_stays_behind_and_what_was_named_travels():
    shell = {f"V{number}": "x" * 60_000 for number in range(4)} | {"LONGEST": "x" * 100_000, "A": "1"}
    found = choose_variables(ExportRule("ALL"), shell)
    assert set(found.variables) == {"V0", "V1", "V2", "V3", "A"}
    assert [text.split(" ")[0] for text in found.dropped] == ["LONGEST"]
    named = choose_variables(ExportRule("ALL", ("LONGEST",)), shell)
    assert "LONGEST" in named.variables
    assert len(named.dropped) == 2


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50)))
def test_whatever_the_shell_has_makes_a_job(shell):
    shell = {name: value for name, value in shell.items() if "\0" not in value}
    check_environment(choose_variables(ExportRule("ALL"), shell).variables)
    check_environment(choose_variables(ExportRule("BASIC"), shell).variables)


def test_names_alone_have_no_values():
    assert names_alone({"A": "secret", "B": ""}) == {"A": "", "B": ""}
    assert has_values({"A": "x"})
    assert not has_values({"A": ""})


# -- files


def test_a_file_of_variables_is_read():
    text = (
        "# a comment\n\nA=1\nexport B='as $it is # so'\n  C = plain text # a comment\nD=\nE=a#b\n"
        'F="two\\nlines \\"x\\" \\$"\nG="first\nsecond"  # behind\nH=\'\'\r\nA=2'
    )
    assert parse_env_file(text, source="f") == {
        "A": "2",
        "B": "as $it is # so",
        "C": "plain text",
        "D": "",
        "E": "a#b",
        "H": "",
        "F": 'two\nlines "x" $',
        "G": "first\nsecond",
    }


@cases(
    ("text", "what"),
    [
        ("A", "f:1: there is no NAME=value"),
        ("A=1\n\nhunter2 x\n", "f:3: there is no NAME=value"),
        ("1A=hunter2", "f:1: there is no NAME=value"),
        ("A='hunter2", "f:1: the quote does not end"),
        ('A=1\nB="hunter2\n', "f:2: the quote does not end"),
        ("A='hunter2'x", "f:1: something follows the closing quote"),
    ],
)
def test_a_mistake_in_a_file_is_told_by_its_line_and_without_values(text, what):
    with pytest.raises(MooringsError) as caught:
        parse_env_file(text, source="f")
    assert (caught.value.code, caught.value.detail) == ("job.invalid", what)
    assert "hunter2" not in caught.value.hint


def test_a_file_has_an_end():
    with pytest.raises(MooringsError, match="characters"):
        parse_env_file("#" * (ENVIRONMENT_CHARS_MAX + 1), source="f")


@given(st.text(max_size=200))
def test_any_text_is_a_file_or_an_error(text):
    with contextlib.suppress(MooringsError):
        assert all(name.isascii() for name in parse_env_file(text, source="f"))


# -- setup


def ran(setup, command, **more):
    words = with_setup(setup, command)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}, **more)
    return done.returncode, done.stdout, done.stderr


def test_without_setup_the_command_is_as_it_was():
    assert with_setup((), ("a", "b c")) == ("a", "b c")


def test_the_command_has_what_the_lines_have_set(tmp_path):
    lines = ("export A='it is'", f"cd {tmp_path}", "f() { export B=$1; }", "f two", "set -u")
    code, out, err = ran(lines, ("sh", "-c", 'echo "$A $B $(pwd) $1"', "sh", "an argument"))
    assert (code, out, err) == (0, f"it is two {tmp_path} an argument\n", "")


@cases(
    ("lines", "code", "told"),
    [
        (("true", "false"), 1, "setup line 2 ended with exit code 1: false"),
        (("(exit 5)", "true"), 5, "setup line 1 ended with exit code 5: (exit 5)"),
        (("exit 7",), 7, "setup line 1 ended with exit code 7: exit 7"),
        (("", "nosuch 'a thing'"), 127, "setup line 2 ended with exit code 127: nosuch 'a thing'"),
        (("set -e", "false; true"), 1, "setup line 2 ended with exit code 1: false; true"),
        (("true", "if"), 2, "setup line 2 ended with exit code 2: if"),
    ],
)
def test_a_line_that_fails_ends_the_task_with_its_code(lines, code, told):
    found, out, err = ran(lines, ("echo", "started"))
    assert (found, out) == (code, "")
    assert f"moorings: {told}\n" in err


def test_the_lines_do_not_see_the_commands_arguments(tmp_path):
    script = tmp_path / "activate"
    script.write_text('[ $# = 0 ] || echo "arguments: $*"\n')
    assert ran((f"source {script}",), ("echo", "started")) == (0, "started\n", "")


def test_a_program_that_setup_does_not_bring_is_not_found():
    code, _, err = ran(("true",), ("nosuch",))
    assert code == 127
    assert "nosuch" in err


def test_the_longest_setup_can_be_started():
    assert ran(("true " + "'" * 16_378,), ("true",))[0] == 0
    words = with_setup(("'" * 16_384,), ("x" * 10,))
    assert max(map(len, words)) < VARIABLE_BYTES_MAX
