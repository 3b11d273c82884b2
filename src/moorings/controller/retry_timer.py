"""Resumes lost runs when the time of their retry has come."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.core.model.claims import ClaimId
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds, seconds_between
from moorings.ports.clock import Clock, Ids
from moorings.workloads.jobs import counted_claim_spec
from moorings.workloads.run_turn import PauseRun, ResumeRun
from moorings.workloads.runs import Run, RunId

log = logging.getLogger("moorings.controller")

FAILED_PAUSE_S = 5.0  # after a try that the database could not save


class RetryTimer:
    """The runs that wait for their retry, and a task that resumes them.

    A run whose retry is refused (its project is gone, say) stays paused, and its reason says why.
    """

    def __init__(self, loop: TurnLoop, clock: Clock, ids: Ids) -> None:
        self._loop = loop
        self._clock = clock
        self._ids = ids
        self._due: dict[RunId, Timestamp] = {}
        self._changed = asyncio.Event()
        loop.subscribe(self._follow)

    async def serve(self) -> None:
        """Resume runs until cancelled."""
        while True:
            self._changed.clear()
            now = self._clock.now()
            for ident in [ident for ident, at in self._due.items() if at <= now]:
                await self._resume(ident)
            await self._wait()

    def _follow(self, change: CommittedChange) -> None:
        if change.is_reload:
            self._due.clear()
        for run in change.runs:
            at = _resume_at(run)
            if at is not None:
                self._due[run.id] = at
                self._changed.set()
            else:
                self._due.pop(run.id, None)

    async def _wait(self) -> None:
        """Wait until the next one is due, or there is another."""
        if not self._due:
            await self._changed.wait()
            return
        left_s = seconds_between(self._clock.now(), min(self._due.values()))
        if left_s <= 0:
            return
        nap = asyncio.ensure_future(self._clock.sleep(left_s))
        nap.add_done_callback(lambda over: None if over.cancelled() else self._changed.set())
        try:
            await self._changed.wait()
        finally:
            nap.cancel()

    async def _resume(self, ident: RunId) -> None:
        run = self._loop.runs.by_id.get(ident)
        if run is None or _resume_at(run) is None:
            self._due.pop(ident, None)
            return
        try:
            job = (await asyncio.to_thread(self._loop.store.get_jobs, [ident])).get(ident)
            if job is not None:  # else the database was turned back; the next turn detects that
                await self._loop.submit(ResumeRun(ident, ClaimId(self._ids.new("claim")), counted_claim_spec(job)))
                return
        except MooringsError as error:
            log.warning("run.retry_failed", extra={"run": ident, "code": error.code, "detail": error.detail})
            run = self._loop.runs.by_id.get(ident)
            if run is None or _resume_at(run) is None:
                return  # somebody else resumed or ended it
            if not error.retryable and not error.code.startswith("store."):
                with contextlib.suppress(MooringsError):
                    await self._loop.submit(PauseRun(ident, f"the controller: {error.detail}", 0.0, holds_retry=True))
                return
        self._due[ident] = add_seconds(self._clock.now(), FAILED_PAUSE_S)


def _resume_at(run: Run) -> Timestamp | None:
    return run.pause.resume_at if run.pause is not None else None
