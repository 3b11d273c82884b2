"""How tests wait: for a condition, with a bound that only a failure reaches, and one factor for a busy machine.

A bound says when to give up, and nothing about speed: what is waited for returns at once. So each bound is multiplied
by ``PATIENCE``, which a slow machine raises with ``MOORINGS_TESTS_PATIENCE=3``. Refused: a fixed sleep, which is too
short on a busy machine and too long on all others, and an assertion on the time that something took. What the project
promises about speed is measured in ``benchmarks``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic, sleep  # by name: a test may give the module's clock another time
from typing import TypeVar, overload

T = TypeVar("T")

# Read at the import: no test sees the settings of the person who runs it.
PATIENCE = 4.0 * float(os.environ.get("MOORINGS_TESTS_PATIENCE", "1"))
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.005, 0.1

Description = str | Callable[[], object]


def patient(seconds: float) -> float:
    """The bound, in seconds, for something that takes far less than that on a machine that does nothing else."""
    return seconds * PATIENCE


def until(
    true: Callable[[], T | None],
    wait_s: float = 30.0,
    *,
    what: Description = "",
    not_yet: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """Wait for what another process or thread does; the first true value.

    Args:
        true: looks.
        wait_s: the bound in seconds, before ``patient``.
        what: what is waited for, or a function that says what is there instead.
        not_yet: errors of ``true`` that mean no more than "not yet"; others end the wait.

    Raises:
        AssertionError: the time is over.
    """
    waiting = _Wait(wait_s, what)
    while True:
        try:
            value = true()
        except not_yet as error:
            waiting.saw(error)
        else:
            if value:
                return value
            waiting.saw(value)
        sleep(waiting.pause_s())


@overload
async def until_async(
    true: Callable[[], Awaitable[T]],
    wait_s: float = 30.0,
    *,
    what: Description = "",
    not_yet: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...


@overload
async def until_async(
    true: Callable[[], T],
    wait_s: float = 30.0,
    *,
    what: Description = "",
    not_yet: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...


async def until_async(
    true: Callable[[], object],
    wait_s: float = 30.0,
    *,
    what: Description = "",
    not_yet: type[Exception] | tuple[type[Exception], ...] = (),
) -> object:
    """``until``, while the event loop goes on; ``true`` may be awaitable. It is looked at once more after each turn."""
    waiting = _Wait(wait_s, what)
    while True:
        try:
            value = true()
            if inspect.isawaitable(value):
                value = await asyncio.wait_for(value, waiting.left_s())
        except not_yet as error:
            waiting.saw(error)
        except TimeoutError as error:  # of its own, or it hangs
            waiting.saw(error)
        else:
            if value:
                return value
            waiting.saw(value)
        await asyncio.sleep(waiting.pause_s())


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is in the block must not hang: give ten times what it takes on a machine that does nothing else.

    It does not interrupt. For a promise about speed there is ``benchmarks``.

    Raises:
        AssertionError: it took more than ``patient(seconds)``.
    """
    begun = monotonic()
    yield
    took_s = monotonic() - begun
    assert took_s < patient(seconds), f"it took {took_s:.1f} s, and should not take {patient(seconds):g} s"


class _Wait:
    """One wait: when it is over, and what was seen last."""

    def __init__(self, wait_s: float, what: Description) -> None:
        self._bound_s = patient(wait_s)
        self._ends = monotonic() + self._bound_s
        self._what = what
        self._pause_s = _PAUSE_S_MIN
        self._last: object = None
        self._over = False  # the one more look after the end: this process may have stood still meanwhile

    def saw(self, last: object) -> None:
        """Note the observations of a failed wait."""
        self._last = last
        if self._over:
            raise AssertionError(self._failure())
        self._over = monotonic() >= self._ends

    def pause_s(self) -> float:
        """How long to wait for the next look: each time a half longer."""
        pause_s, self._pause_s = self._pause_s, min(_PAUSE_S_MAX, self._pause_s * 1.5)
        return pause_s

    def left_s(self) -> float:
        """How much of the time is left, but always some."""
        return max(1.0, self._ends - monotonic())

    def _failure(self) -> str:
        what = self._what if isinstance(self._what, str) else self._what()
        return f"not within {self._bound_s:g} s: {what or 'it is not true'} (the last look: {self._last!r})"
