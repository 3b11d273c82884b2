"""Runs parts of a doctor as asyncio tasks, each within a time of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from moorings.core.model.errors import MooringsError
from moorings.doctor.findings import FAIL, PASS, Finding, failed_finding, skipped_findings

P = ParamSpec("P")
T = TypeVar("T")


async def run_part(checks: Sequence[str], work: Awaitable[list[Finding]], limit_s: float) -> list[Finding]:
    """The findings of one part; an error or a timeout costs this part alone."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except MooringsError as error:
        return [failed_finding(checks[0], error), *skipped_findings(checks[1:], f"see {checks[0]}")]
    except TimeoutError:
        fix = "what hangs: a disk, munge, the network? The rest of this list may tell"
        failure = Finding(checks[0], FAIL, f"nothing was seen in {limit_s:g} s", fix)
        return [failure, *skipped_findings(checks[1:], f"see {checks[0]}")]


async def in_daemon_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """The result of ``work`` in a thread that is abandoned at the timeout: munge or a disk may hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work(*args, **named)
        except Exception as error:  # any error belongs to the waiting caller
            settle: Callable[[], None] = partial(done.set_exception, error)
        else:
            settle = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())

    threading.Thread(target=run, daemon=True).start()
    return await done


async def confirm_twice(checks: Sequence[Callable[[], Awaitable[list[Finding]]]], pause_s: float) -> list[Finding]:
    """The findings; what is wrong must be wrong twice: between two readings something may have begun or ended."""
    first = [await look() for look in checks]
    if any(finding.verdict != PASS for found in first for finding in found):
        await asyncio.sleep(pause_s)
    good = [all(finding.verdict == PASS for finding in found) for found in first]
    again = [found if well else await look() for look, found, well in zip(checks, first, good, strict=True)]
    return [finding for found in again for finding in found]
