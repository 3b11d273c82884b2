"""Waiting for news of runs, and counting missed listings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.core.reconcile import LISTINGS_REQUIRED, Streak
from moorings.ports.clock import Clock
from moorings.workloads.runs import RunId


async def wait_for_change(changed: asyncio.Event, clock: Clock, longest_s: float) -> None:
    """Return when there is news, which is then cleared, or after so many seconds."""
    waits = {asyncio.ensure_future(changed.wait()), asyncio.ensure_future(clock.sleep(longest_s))}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    changed.clear()


def rate_limited(query: Callable[[], Awaitable[bool]], clock: Clock, every_s: float) -> Callable[[], Awaitable[bool]]:
    """Return ``query`` with a limited rate, to spare a scheduler: False until ``every_s`` seconds have passed."""
    asked_at = clock.now()

    async def limited() -> bool:
        nonlocal asked_at
        if 0 <= seconds_between(asked_at, clock.now()) < every_s:
            return False
        asked_at = clock.now()
        return await query()

    return limited


class MissedListings:
    """Runs whose job was missing in a scheduler's last listing: one good listing ends nothing (law 3)."""

    def __init__(self) -> None:
        self._streaks: dict[RunId, tuple[Streak, Timestamp]] = {}

    def record_miss(self, run: RunId, now: Timestamp) -> bool:
        """Count one more good listing without the run's job; return whether that is proof by now."""
        streak, before = self._streaks.get(run, (Streak(), now))
        streak = streak.extended(max(seconds_between(before, now), 0.0))
        self._streaks[run] = streak, now
        return streak.is_conclusive(LISTINGS_REQUIRED)

    def clear(self, run: RunId) -> None:
        """Reset a run: its job is listed, or its end is known."""
        self._streaks.pop(run, None)
