"""Many small cases as one test: `@cases` stands where `@pytest.mark.parametrize` would.

A test of its own costs milliseconds in each process that collects or runs it, a case of a pure function microseconds.
So thousands of them run in loops. Refused: a loop in the test itself, which ends at the first case that fails.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import pytest

REASON_LENGTH_MAX = 500

_Case = tuple[str, dict[str, Any]]


class CasesFailedError(AssertionError):
    """Some cases failed; its cause is how the first of them did."""


def cases(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[object] | None = None,
    shared: Sequence[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a test run for each of the values, and fail once with a list of all cases that fail.

    The arguments are `pytest.mark.parametrize`'s; two decorators give all pairs. Fixtures are made once for all cases:
    those that no case can change are named in `shared`, and others are refused. So are async tests. A skip fails.
    """
    argnames = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    alone = isinstance(names, str) and len(argnames) == 1
    rows = [
        value if isinstance(value, type(pytest.param())) else pytest.param(*[value] if alone else value)
        for value in values
    ]
    given = [None] * len(rows) if ids is None or callable(ids) else list(ids)
    assert rows, f"no case for {names}"
    assert all(len(row.values) == len(argnames) and not row.marks for row in rows), (
        f"each case is {argnames}, without marks"
    )
    table: list[_Case] = []
    for row, name in zip(rows, given, strict=True):
        parts = [_text(value, ids if callable(ids) else None) for value in row.values]
        table.append((str(row.id or name or "-".join(parts)), dict(zip(argnames, row.values, strict=True))))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        inner, inner_table, inner_shared = getattr(test, "looped", (test, [("", {})], ()))
        pairs = [(f"{a}-{b}".strip("-"), here | there) for a, there in inner_table for b, here in table]
        return _loop(inner, pairs, (*inner_shared, *shared))

    return decorate


def _loop(test: Callable[..., None], table: list[_Case], shared: tuple[str, ...]) -> Callable[..., None]:
    assert not inspect.iscoroutinefunction(test), f"{test.__name__} is async: a loop would not await it"
    others = [item for name, item in inspect.signature(test).parameters.items() if name not in table[0][1]]

    @functools.wraps(test)
    def looped(**fixtures: Any) -> None:
        __tracebackhide__ = True
        assert set(fixtures) <= set(shared), f"made once for all cases of {test.__name__}: {sorted(fixtures)}"
        failed = []
        for name, arguments in table:
            try:
                test(**fixtures, **arguments)
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
                    raise  # of pytest-timeout, whose alarm comes once: the next case would have no limit
                failed.append((name, error))
        if failed:
            told = "\n".join(f"  [{name}] {_reason(error)}" for name, error in failed)
            raise CasesFailedError(f"{len(failed)} of {len(table)} cases failed:\n{told}") from failed[0][1]

    looped.__dict__["looped"] = (test, table, shared)
    looped.__dict__["__signature__"] = inspect.Signature(others)
    return looped


def _reason(error: BaseException) -> str:
    """The line of the test, and the beginning of what was wrong there."""
    lines = [str(frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[1:2]]
    text = str(error).strip()
    kind = "" if isinstance(error, (AssertionError, pytest.fail.Exception)) else f"{type(error).__name__}: "
    cut = text if len(text) <= REASON_LENGTH_MAX else text[:REASON_LENGTH_MAX] + " ..."
    return f"line {''.join(lines)}: {kind}{cut}".replace("\n", "\n      ")


def _text(value: object, namer: Callable[[Any], object] | None) -> str:
    """One argument in the name of a case."""
    named = namer(value) if namer else None
    if named is not None:
        return str(named)
    if isinstance(value, str) and not isinstance(value, Enum):
        return value if value.isprintable() and value else ascii(value)
    return str(getattr(value, "__name__", None) or (value if isinstance(value, Enum) else repr(value)))
