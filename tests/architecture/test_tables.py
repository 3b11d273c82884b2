"""Codes and events stand in one table each, and nothing stands there that nobody uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from moorings.core.model.events import EVENTS
from moorings.wire.errors import ERRORS

SOURCES = sorted(Path("src/moorings").rglob("*.py"))
TABLES = {Path("src/moorings/core/model/events.py"), Path("src/moorings/wire/errors.py")}
CODE = re.compile(r"[a-z]+(\.[a-z_]+)+")


def strings() -> Iterator[tuple[Path, str]]:
    for path in SOURCES:
        if path not in TABLES:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield path, node.value


def raised() -> Iterator[tuple[Path, str]]:
    """The code of every ``MooringsError(...)`` written out in the sources."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MooringsError" and node.args:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    yield path, str(code.value)


def test_every_error_raised_stands_in_the_table() -> None:
    found = list(raised())
    assert len(found) > 50
    assert [(str(path), code) for path, code in found if code not in ERRORS] == []


def test_every_error_in_the_table_is_used() -> None:
    used = {text for _, text in strings()} | {"state.illegal_move"}
    assert sorted(set(ERRORS) - used) == []


def test_every_event_told_stands_in_the_table_and_every_one_there_is_told() -> None:
    told = set()
    for path in (*Path("src/moorings/core").rglob("*.py"), *Path("src/moorings/workloads").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called in ("emit_event", "_emit_event", "_emit_project_event", "_move"):
                names = {
                    str(part.value)
                    for argument in node.args
                    for part in ast.walk(argument)
                    if isinstance(part, ast.Constant)
                }
                told |= {name for name in names if CODE.fullmatch(name)}
    told |= {
        text
        for _, text in strings()
        if text in EVENTS and text.split(".")[0] in ("turn", "key", "controller", "database", "device", "pool")
    }
    assert sorted(told ^ set(EVENTS)) == []
