"""The page about the guards, made from the table."""

from __future__ import annotations

from collections.abc import Iterable

from tests.guards.guard import FENCING, LAWS, Guard
from tests.mutation.copies import ROOT

PAGE = ROOT / "docs" / "explanation" / "guards.md"

_HEAD = """\
# The guards of the laws

A test that has never failed proves nothing. This is the list of the guards: the lines that keep the
[laws](../../ARCHITECTURE.md#the-laws). A guard is taken out in a copy of the source, the tests named beside it are run
over that copy, and each of them must fail.

There are {count} guards. `make guards` and `make test-all` take out each of them. `make test` takes out a tenth, drawn
by the commit, and those whose source or tests have changed in the last 50 commits, at most 100 together; and it checks
that the source still has every one. A guard is found by its function and its syntax, so it survives a move and a new
format.

The table stands in `tests/guards`, and this page is written by `python -m tests.guards`. The simulator takes some of
the guards out as well, and must find the broken law by chance alone: `tests/simulation/test_guards.py`.
"""

_TITLES = {
    "1": "Law 1: a device is in at most one live partition",
    "2": "Law 2: a partition exists if and only if an unreleased claim holds it",
    "3": "Law 3: a live job never loses its partition because of us",
    "4": "Law 4: no process starts before its partition is ACTIVE",
    "5": "Law 5: the same key gives the same claim; names are unique",
    "6": "Law 6: a project gets its guaranteed share in bounded time",
    "7": "Law 7: nobody starves",
    "8": "Law 8: every wait and every refusal says why",
    "9": "Law 9: the same inputs give the same decisions, byte for byte",
    "10": "Law 10: secrets stay secret, and nobody is who he only says he is",
    FENCING: "Fencing: of several controllers one decides (laws 1 to 3)",
}


def page(guards: Iterable[Guard]) -> str:
    """The page, whole."""
    known = list(guards)
    parts = [_HEAD.format(count=len(known))]
    for law in LAWS:
        lines = [f"## {_TITLES[law]}", "", "| guard | where | without it these fail |", "|---|---|---|"]
        lines += [_line(guard) for guard in known if guard.law == law]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(guard: Guard) -> str:
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in guard.tests)
    place = f"`{guard.file}`: `{guard.at}`" if guard.at else f"`{guard.file}`"
    return f"| {guard.what} | {place} | {tests} |"
