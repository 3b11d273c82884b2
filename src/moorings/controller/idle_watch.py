"""Watches for runs that hold devices and do not work: it shows them, and reports each once. It stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from moorings.controller.loop import TurnLoop
from moorings.ports.clock import Clock
from moorings.ports.usage import UsageMeter
from moorings.workloads.idleness import IdleLimits, Idleness, RunUsage, UsageReading, find_idleness, next_usage
from moorings.workloads.run_turn import RunIdled
from moorings.workloads.runs import RunId, RunState

log = logging.getLogger("moorings.controller")


class IdleWatch:
    """Reads what runs use, now and then.

    Args:
        loop: of the runs.
        meters: by engine; the runs of the others are not watched.
        limits: when a run is idle; nothing is read if it never is.
        clock: the time.
    """

    def __init__(self, loop: TurnLoop, meters: Mapping[str, UsageMeter], limits: IdleLimits, clock: Clock) -> None:
        self._loop = loop
        self._meters = meters if limits.after_s else {}
        self._limits = limits
        self._clock = clock
        self._usage: dict[RunId, RunUsage] = {}
        self._idle: dict[RunId, Idleness] = {}

    async def serve(self) -> None:
        """Watch until cancelled."""
        while self._meters:
            await self._clock.sleep(self._limits.interval_s)
            await self.look()

    async def look(self) -> None:
        """Read all of them once."""
        readings: dict[RunId, UsageReading] = {}
        for engine, meter in self._meters.items():
            try:
                readings |= await meter.read_usage(self._holders(engine))
            except Exception:  # a meter's fault must not end the controller
                log.exception("engine.fault", extra={"engine": engine})
        now, runs = self._clock.now(), self._loop.runs
        usage: dict[RunId, RunUsage] = {}
        idle: dict[RunId, Idleness] = {}
        for ident, reading in readings.items():
            run = runs.by_id.get(ident)
            if run is None or run.state is not RunState.RUNNING or run.attempt != reading.attempt:
                continue  # it changed meanwhile
            usage[ident] = next_usage(self._usage.get(ident), reading, now, self._limits.interval_s)
            found = find_idleness(usage[ident], self._limits)
            if found is None:
                continue
            idle[ident] = found
            if self._idle.get(ident) != found:
                self._loop.submit_nowait(RunIdled(ident, run.attempt, found.since, is_long=found.is_long))
        self._usage, self._idle = usage, idle
        runs.set_idle(idle)

    def _holders(self, engine: str) -> list[RunId]:
        """The runs of an engine that work on devices now."""
        found = (run for run in self._loop.runs.by_id.values() if run.engine == engine)
        return [run.id for run in found if run.state is RunState.RUNNING and run.job.accelerators.size]
