"""The use cases of projects: who they are, what each has, and when a claim would start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from moorings.controller.loop import Loop
from moorings.controller.views import EstimateView
from moorings.core.access import Caller, check_admin
from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState, check_spec
from moorings.core.forecast import estimate, snapshot
from moorings.core.inputs import DeleteProject, SetProject
from moorings.core.projects import Project
from moorings.core.quotas import Quota, quota_rows
from moorings.core.serving import pools_for
from moorings.ports.clock import Clock

_ASKED_ABOUT = ClaimId("estimate")  # never the id of a claim


class ProjectCases:
    """What can be asked of projects and of the queue they share."""

    def __init__(self, loop: Loop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        # A forecast of a long queue takes seconds: in a thread beside the turns, and one at a time.
        self._forecaster = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecast")
        self._turn_to_ask = asyncio.Lock()

    def all(self) -> Sequence[Project]:
        """All projects, by name."""
        return list(self._loop.fleet.projects.by_name.values())

    def get(self, name: str) -> Project:
        """The project with that name.

        Raises:
            MooringsError: ``project.unknown``.
        """
        projects = self._loop.fleet.projects
        project = projects.get(name)
        if project is None:
            raise projects.unknown(name)
        return project

    async def set(self, caller: Caller, project: Project, version: int | None) -> Project:
        """The project as it is saved: a new one, or ``version`` of it changed.

        Raises:
            MooringsError: ``auth.denied``, ``project.*``, ``pool.unknown``.
        """
        check_admin(caller, "change projects")
        saved = await self._loop.post(SetProject(project, version))
        assert isinstance(saved, Project)
        return saved

    async def delete(self, caller: Caller, name: str) -> None:
        """Remove a project.

        Raises:
            MooringsError: ``auth.denied``, ``project.unknown``, ``project.has_children``, ``project.in_use``.
        """
        check_admin(caller, "delete projects")
        await self._loop.post(DeleteProject(name))

    def quotas(self) -> Sequence[Quota]:
        """What each project is guaranteed, holds, borrows and waits for, by project and pool."""
        return quota_rows(self._loop.fleet, self._clock.now(), self._loop.policy)

    async def estimate(self, caller: Caller, spec: ClaimSpec) -> EstimateView:
        """When a claim of the caller's would start that was made now; whether it may use the project is not asked.

        Raises:
            MooringsError: ``claim.*``, ``pool.unknown``, ``kind.unknown``, ``project.unknown``.
        """
        fleet, owner = self._loop.fleet, f"user/{caller.subject}"
        spec = check_spec(spec)
        spec = replace(spec, project=fleet.projects.resolve(spec.project, owner))
        pools_for(spec, fleet.pools)
        never = fleet.projects.never_fits(spec.project, spec.size)
        if never is not None:
            project, most = never
            return EstimateView(None, why=f"project {project} may hold {most} devices at once, and no more")
        claim = Claim(
            id=_ASKED_ABOUT,
            name=_ASKED_ABOUT,
            owner=owner,
            subject=caller.subject,
            spec=spec,
            state=ClaimState.PENDING,
            arrival=max(self._clock.now(), fleet.last_arrival),
        )
        return await self.when(claim)

    async def when(self, claim: Claim) -> EstimateView:
        """When a claim would start that waits, or that could."""
        async with self._turn_to_ask:
            now, still = self._clock.now(), snapshot(self._loop.fleet)
            running = asyncio.get_running_loop().run_in_executor(
                self._forecaster, estimate, still, self._loop.policy, now, claim
            )
            found = await running
        starts_now = found.starts_at is not None and found.starts_at <= now
        return EstimateView(found.starts_at, starts_now=starts_now, why=found.why)
