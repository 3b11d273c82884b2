"""What a benchmark reports: one line for programs, a table for people."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import Report

REPORT = Report(
    "claims",
    figures={"wait_s_p50": 1.23456, "rate": 1234.5},
    bounds={"wait_s_p50": 0.5},
    anchors={"rate": 1000, "others": 7},
    notes=("on a small machine",),
)

figures = st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=4)


def test_the_line_has_the_agreed_keys():
    assert json.loads(REPORT.json()) == {
        "name": "claims",
        "figures": {"wait_s_p50": 1.235, "rate": 1234.5},
        "bounds": {"wait_s_p50": 0.5},
        "anchors": {"rate": 1000, "others": 7},
    }


@given(st.text(), figures, figures, figures)
def test_the_line_is_one_line_of_json_with_the_same_keys_whatever_was_measured(name, measured, bounds, anchors):
    line = Report(name, measured, bounds, anchors, notes=("two\nlines",)).json()
    assert len(line.splitlines()) == 1
    told = json.loads(line)
    assert list(told) == ["name", "figures", "bounds", "anchors"]
    assert [told["name"], set(told["figures"]), set(told["bounds"])] == [name, set(measured), set(bounds)]
    assert told["anchors"] == anchors


def test_bounds_and_anchors_may_be_missing():
    told = json.loads(Report("x", {"a": 1}).json())
    assert (told["bounds"], told["anchors"]) == ({}, {})


def test_the_table_puts_each_figure_beside_its_bound_and_anchor():
    title, head, wait, rate, others, note = REPORT.table().splitlines()
    assert title == "claims"
    assert head.split() == ["ours", "bound", "anchor"]
    assert wait.split() == ["wait_s_p50", "1.23", "0.5", "-"]
    assert rate.split() == ["rate", "1234", "-", "1000"]
    assert others.split() == ["others", "-", "-", "7"]
    assert note.strip() == "on a small machine"


def test_the_columns_of_the_table_are_aligned():
    _, *rows, _ = REPORT.table().splitlines()
    assert len({len(row) for row in rows}) == 1
