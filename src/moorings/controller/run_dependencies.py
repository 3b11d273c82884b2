"""Finds the runs and arrays that a new run waits for, by their ids or names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from moorings.controller.loop import TurnLoop
from moorings.core.model.access import Caller
from moorings.core.model.claims import is_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.visibility import visible_to
from moorings.ports.store import PageQuery, Store
from moorings.workloads.arrays import ELEMENTS_MAX, parse_array
from moorings.workloads.awaited import AWAITED_JOBS_MAX, check_own_dependency, dependency_on
from moorings.workloads.dependencies import Dependency, parse_dependency
from moorings.workloads.jobs import JobSpec, element_name
from moorings.workloads.run_turn import ownership_of_run
from moorings.workloads.runs import Run, RunState


class FindRun(Protocol):
    """Finds the run with an id, or the newest with a name, among the caller's own or all that they see."""

    async def __call__(self, ident: str, caller: Caller, *, among_own: bool = False) -> Run:
        """The run.

        Raises:
            MooringsError: ``run.unknown``.
        """
        ...


class DependencyFinder:
    """Finds what runs wait for.

    Args:
        loop: has the runs that have not ended.
        store: has all.
        find_run: finds one run.
    """

    def __init__(self, loop: TurnLoop, store: Store, find_run: FindRun) -> None:
        self._loop = loop
        self._store = store
        self._find_run = find_run

    async def find(self, caller: Caller, job: JobSpec) -> tuple[Dependency, ...]:
        """The runs and arrays that a new run waits for, by id, with the ends of those that have ended.

        Raises:
            MooringsError: ``run.unknown``, ``job.invalid``.
        """
        found: dict[str, Dependency] = {}
        for named in map(parse_dependency, job.after):
            runs = await self._find_dependency(named.run, caller)
            each = dependency_on(runs, named.end)
            if each.run in found:
                raise MooringsError("job.invalid", f"the job waits twice for run {each.run}", hint="name it once")
            found[each.run] = each
        return tuple(found.values())

    async def find_own(self, caller: Caller, engine: str, job: JobSpec) -> tuple[str, ...]:
        """What a run that its person submits waits for, by id: that person's scheduler must know all of it.

        Raises:
            MooringsError: ``run.unknown``, ``run.never_starts``, ``engine.rejected``.
        """
        kept, awaited = [], 0
        for named in map(parse_dependency, job.after):
            runs = await self._find_dependency(named.run, caller)
            unended = [run for run in runs if not run.is_ended]
            each = dependency_on(runs, named.end)
            if not unended and each.is_met(succeeded=each.ended == RunState.SUCCEEDED):
                continue
            check_own_dependency(each, unended, engine, caller.subject)
            awaited += len(unended)
            kept.append(f"{each.run}:{each.end}")
        if awaited * (len(parse_array(job.array)[0]) if job.array else 1) > AWAITED_JOBS_MAX:
            detail = f"Slurm would have to follow more than {AWAITED_JOBS_MAX} dependencies"
            raise MooringsError("engine.rejected", detail, hint="let one run wait for them, and wait for that one")
        return tuple(kept)

    async def _find_dependency(self, named: str, caller: Caller) -> Sequence[Run]:
        """One's own run of that name, else another that the caller sees; else the runs of an array, likewise."""
        try:
            return [await self._find_run(named, caller, among_own=True)]
        except MooringsError as error:
            if error.code != "run.unknown":
                raise
        try:
            return [await self._find_run(named, caller)]
        except MooringsError as error:
            runs = await self._find_array(named, caller) if error.code == "run.unknown" else ()
            if not runs:
                raise
            return runs

    async def _find_array(self, named: str, caller: Caller) -> Sequence[Run]:
        """The runs of the array with that id, else of the newest with that name of which some have not ended."""
        visible, known = visible_to(caller, self._loop.fleet.projects), self._loop.runs.by_id
        array = named
        if not is_id(named):
            members = [run for run in known.values() if run.job.array and visible.includes(ownership_of_run(run))]
            of_name = [run for run in members if _is_called(run, named)]
            own = [run for run in of_name if run.subject == caller.subject]
            newest = max(own or of_name, key=lambda run: (run.created_at, run.id), default=None)
            if newest is None or newest.job.array is None:
                return ()
            array = newest.job.array.id
        page = PageQuery(limit=ELEMENTS_MAX)
        found = await asyncio.to_thread(self._store.list_runs, page, array=array, visible=visible)
        return [known.get(run.id, run) for run in found]


def _is_called(run: Run, name: str) -> bool:
    """Whether a run is of an array with a job of that name."""
    return run.job.array is not None and run.job.name == element_name(name, run.job.array.index)
