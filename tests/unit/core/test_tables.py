"""Reading TOML strictly: every complaint names the file and the line, whatever the file is."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.toml_table import TEXT_CHARS_MAX, TomlTable
from tests.cases import cases

TEXT = """\
# a comment

name = "digits"   # line 3
size = 4
share = 0.5
on = true
words = ["a", "b"]
when = 2026-01-31
dotted.inner = 1
inline = { deep = { odd = 1 } }

["quoted table"]
x = 1

[outer]
y = 1

[outer . inner]
z = 1

[[item]]
id = "first"

[[item]]
id = "second"

[item.settings]
odd = 1

[[item.part]]
id = "part"
"""


def parse(text: str = TEXT) -> TomlTable:
    return TomlTable.parse(text, source="some.toml", code="job.invalid")


def complaint(call, *arguments) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        call(*arguments)
    assert caught.value.code == "job.invalid"
    return caught.value


def test_values_come_as_what_they_are():
    table = parse()
    assert table.text("name") == "digits"
    assert table.integer("size") == 4
    assert table.number("share") == 0.5
    assert table.number("size") == 4.0
    assert table.boolean("on") is True
    assert table.strings("words") == ("a", "b")
    assert table.raw_value("size") == 4
    assert table.table("dotted").integer("inner") == 1


def test_what_is_not_given_has_its_default():
    table = parse("")
    assert table.text("name", "job") == "job"
    assert table.integer("size", 1) == 1
    assert table.number("share", 0.5) == 0.5
    assert table.boolean("on", default=False) is False
    assert table.strings("words", ("x",)) == ("x",)
    assert table.table("outer").keys() == ()
    assert table.tables("item") == ()


def test_lines_of_quoted_and_dotted_keys_are_known():
    table = parse("\"@a b\" = 1\n'c.d' = 2\ne.f = 3\n\"g\".'h' = 4\n")
    assert [table.location(key) for key in ("@a b", "c.d", "e", "g")] == [f"some.toml:{n}" for n in (1, 2, 3, 4)]
    assert table.table("g").location("h") == "some.toml:4"


def test_lines_are_known_however_the_key_is_written():
    table = parse()
    assert table.location("name") == "some.toml:3"
    assert table.table("dotted").location("inner") == "some.toml:9"
    assert table.table("inline").location("deep") == "some.toml:10"
    assert table.table("inline").table("deep").location("odd") == "some.toml:10"
    assert table.table("quoted table").location("x") == "some.toml:13"
    assert table.table("outer").location("y") == "some.toml:16"
    assert table.table("outer").table("inner").location("z") == "some.toml:19"
    assert [item.location("id") for item in table.tables("item")] == ["some.toml:22", "some.toml:25"]
    assert table.tables("item")[1].table("settings").location("odd") == "some.toml:28"
    assert table.tables("item")[1].tables("part")[0].location("id") == "some.toml:31"


def test_a_missing_key_is_missing_where_its_table_begins():
    assert str(complaint(parse().tables("item")[1].text, "name")) == "some.toml:24: name is missing"
    assert str(complaint(parse().text, "title")) == "some.toml: title is missing"


@cases(
    ("getter", "key", "told"),
    [
        ("text", "size", "some.toml:4: size must be a string, not a number"),
        ("text", "when", "some.toml:8: when must be a string, not a date or time"),
        ("text", "words", "some.toml:7: words must be a string, not a list"),
        ("integer", "name", "some.toml:3: name must be a whole number, not a string"),
        ("integer", "share", "some.toml:5: share must be a whole number, not a number"),
        ("integer", "on", "some.toml:6: on must be a whole number, not true or false"),
        ("number", "on", "some.toml:6: on must be a number, not true or false"),
        ("number", "inline", "some.toml:10: inline must be a number, not a table"),
        ("boolean", "size", "some.toml:4: size must be true or false, not a number"),
        ("strings", "name", "some.toml:3: name must be a list of strings, not a string"),
        ("table", "words", "some.toml:7: words must be a table, not a list"),
        ("tables", "outer", "some.toml:15: outer must be written as [[outer]]"),
        ("tables", "words", "some.toml:7: words must be written as [[words]]"),
    ],
)
def test_a_wrong_type_is_told_with_file_line_key_and_both_types(getter, key, told):
    assert str(complaint(getattr(parse(), getter), key)) == told


def test_a_list_of_strings_holds_strings_only():
    assert "list of strings" in str(complaint(parse('words = ["a", 1]').strings, "words"))


def test_a_number_too_large_to_be_one_is_told():
    assert str(complaint(parse("\nshare = " + "9" * 400).number, "share")) == "some.toml:2: share is too large"


def test_an_unknown_key_is_told_with_those_that_are_known():
    table = parse('name = "x"\nsiez = 4\n')
    table.text("name")
    table.integer("size", 1)
    error = complaint(table.reject_unknown_keys)
    assert (str(error), error.hint) == ("some.toml:2: 'siez' is not known here", "known: name, size")


def test_a_key_that_was_only_asked_after_is_known_too():
    table = parse("siez = 4\n")
    assert not table.has("size")
    assert complaint(table.reject_unknown_keys).hint == "known: size"


def test_a_table_whose_keys_were_all_read_is_finished():
    table = parse('name = "x"\n')
    assert table.has("name")
    assert table.keys() == ("name",)
    table.text("name")
    table.reject_unknown_keys()


@cases(
    ("text", "line"),
    [
        ("a = 1\nb = \n", 2),
        ("a = 1\na = 2\n", 2),
        ("[a]\n[a]\n", 2),
        ("a = 1\n\0", 2),
        ('a = "\0"', 1),
        ('a = "\\ud800"', 1),
        ("a = 'x\ny'", 1),
        ("\ufeffa = 1", 1),
        ("a = 1\rb = 2", 1),
        ("\x1b[31m", 1),
        ("<html>", 1),
        ('{"a": 1}', 1),
    ],
)
def test_what_is_not_toml_is_told_with_its_line(text, line):
    error = complaint(parse, text)
    assert str(error).startswith(f"some.toml:{line}: ")
    assert error.hint == "the file is not valid TOML"


@cases(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "[" * 100_000 + "]" * 100_000,
        "a = " + "{a = " * 50_000 + "1" + "}" * 50_000,
        "a = " + "9" * 5000,
        "a = -" + "9" * 5000,
        "a = 9999-99-99",
        "a = 2026-02-30",
        'a = """' + "x" * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_is_refused_like_any_other(text):
    error = complaint(parse, text)
    assert str(error).startswith("some.toml")
    assert error.hint == "the file is not valid TOML"


@pytest.mark.parametrize("text", ["[" + ".".join("a" * 256) + "]", ".".join("a" * 256) + " = 1"])
def test_deep_paths_are_read_without_getting_lost(text):
    assert "'a' is not known" in str(complaint(parse(text).reject_unknown_keys))


@pytest.mark.parametrize("text", ["[" + ".".join("a" * 2_000) + "]", ".".join(["'a.b'"] * 2_000) + " = 1"])
def test_paths_so_deep_that_reading_them_takes_long_are_refused(text):
    assert "some.toml:2: more than 256 dots" in str(complaint(parse, f"\n{text}"))


def test_dots_in_quotes_are_no_path():
    quoted = "a.'\\\"" * 600
    assert parse(f'x = "{quoted}"').has("x")
    assert parse("x = '" + "." * 1000 + "' # \"").has("x")


def test_lines_are_counted_as_toml_counts_them():
    assert str(complaint(parse("# a\u2028b\u0085c\nx = 1").reject_unknown_keys)).startswith("some.toml:2:")


def test_a_huge_file_is_refused_before_it_is_read():
    assert "longer than" in str(complaint(parse, "#" * (TEXT_CHARS_MAX + 1)))
    assert parse("#" * TEXT_CHARS_MAX).keys() == ()


@given(st.text() | st.text("[]{}=.\"'#\n\\ab1 "))
def test_any_text_is_a_table_or_refused(text):
    with contextlib.suppress(MooringsError):
        table = parse(text)
        for key in table.keys():
            assert table.location(key).startswith("some.toml")


@given(st.lists(st.sampled_from(["# note", "", "[a]", "[[b]]"]), max_size=8), st.integers(0, 3))
def test_a_key_stands_on_the_line_it_stands_on(above, blank):
    # A header may come once only; the key is asked for at the top, so it comes first.
    lines = [*[""] * blank, "key = 1", *dict.fromkeys(above)]
    assert parse("\n".join(lines)).location("key") == f"some.toml:{blank + 1}"
