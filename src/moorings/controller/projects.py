"""The use cases of projects and forecasts: definitions, quotas, and when a claim would start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from moorings.controller.forecasts import ForecastQueue
from moorings.controller.loop import TurnLoop
from moorings.controller.views import EstimateView, MovesView, WhatIfView
from moorings.core.forecast.estimate import copy_fleet, estimate_start
from moorings.core.forecast.whatif import compare_policies
from moorings.core.model.access import Caller, Role, check_admin
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, check_spec
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import DefragmentPool, DeleteProject, SetProject
from moorings.core.model.owners import HIDDEN
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import Visibility, check_may_set_project, sees_project, visible_to
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.placement.fleet import Fleet
from moorings.core.placement.plans import MovePlan
from moorings.core.scheduling.explain import explain_wait, list_holders
from moorings.core.scheduling.quotas import ProjectQuota, merge_hidden, quota_rows
from moorings.core.scheduling.turn import Turn
from moorings.ports.clock import Clock

T = TypeVar("T")

# An estimate runs at most so long, and at most so many others wait for theirs: so a caller has an answer in half a
# minute, the time that ``moor`` waits for one.
ESTIMATE_S_MAX: Final = 3.0
ESTIMATES_WAITING_MAX: Final = 8
WHAT_IF_S_MAX: Final = 10.0  # then the answer is what is known so far
WHAT_IFS_WAITING_MAX: Final = 2
_LIMIT_REASONS = ("project.limit", "project.guaranteed")
_ESTIMATE_CLAIM_ID = ClaimId("estimate")  # never the id of a claim


class ProjectService:
    """The use cases of projects and of the queue they share."""

    def __init__(self, loop: TurnLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._estimates = ForecastQueue("estimates", ESTIMATES_WAITING_MAX)
        self._what_ifs = ForecastQueue("comparisons of policies", WHAT_IFS_WAITING_MAX)

    def list_projects(self, caller: Caller) -> Sequence[Project]:
        """The projects that the caller sees, by name."""
        projects, visible = self._loop.fleet.projects, self._visible_to(caller)
        return [one for one in projects.by_name.values() if sees_project(visible, projects, one.name)]

    def get_project(self, caller: Caller, name: str) -> Project:
        """The project with that name.

        Raises:
            MooringsError: ``project.unknown``: the same whether it does not exist or is not seen.
        """
        projects, visible = self._loop.fleet.projects, self._visible_to(caller)
        project = projects.get(name)
        if project is None or not sees_project(visible, projects, name):
            raise projects.unknown_error(name, [one.name for one in self.list_projects(caller)])
        return project

    def knows_people(self, caller: Caller, project: Project) -> bool:
        """Whether the caller may know who the members and the admins of a project are."""
        return caller.role is Role.ADMIN or self._loop.fleet.projects.knows_people(project, caller.subject)

    def _visible_to(self, caller: Caller) -> Visibility:
        return visible_to(caller, self._loop.fleet.projects)

    async def set_project(self, caller: Caller, project: Project, version: int | None) -> Project:
        """Create a project, or change ``version`` of it; returns it as saved.

        Raises:
            MooringsError: ``auth.denied``, ``project.*``, ``pool.unknown``.
        """
        check_may_set_project(caller, project, version, self._loop.fleet.projects)
        saved = await self._loop.submit(SetProject(project, version))
        assert isinstance(saved, Project)
        return saved

    async def delete_project(self, caller: Caller, name: str) -> None:
        """Delete a project.

        Raises:
            MooringsError: ``auth.denied``, ``project.unknown``, ``project.has_children``, ``project.in_use``.
        """
        check_admin(caller, "delete projects")
        await self._loop.submit(DeleteProject(name))

    def list_quotas(self, caller: Caller) -> Sequence[ProjectQuota]:
        """Each project's guarantee, and what it holds, borrows and waits for, by project and pool.

        What the caller does not see is added up under the name ``(hidden)``, so the sums of a pool stay right.
        """
        fleet, visible = self._loop.fleet, self._visible_to(caller)
        rows = quota_rows(fleet, self._clock.now(), self._loop.policy)
        if visible.sees_all:
            return rows
        own = {claim.spec.project for claim in fleet.claims.values() if visible.includes_claim(claim)}
        own.update(*(fleet.projects.lineage(name) for name in tuple(own)))
        return merge_hidden(rows, lambda name: name in own or sees_project(visible, fleet.projects, name), HIDDEN)

    async def estimate(self, caller: Caller, spec: ClaimSpec) -> EstimateView:
        """Estimate when a claim submitted now would start; the caller's right to use the project is not checked.

        Raises:
            MooringsError: ``claim.*``, ``pool.unknown``, ``kind.unknown``, ``project.unknown``, ``forecast.busy``.
        """
        fleet, owner = self._loop.fleet, f"user/{caller.subject}"
        spec = check_spec(spec)
        spec = replace(spec, project=fleet.projects.resolve(spec.project, owner, caller.subject))
        eligible_pools(spec, fleet.pools)
        never = fleet.projects.exceeded_limit(spec.project, spec.size, caller.subject)
        if never is not None:
            project, most = never
            return EstimateView(None, why=f"project {project} may hold {most} devices at once, and no more")
        claim = Claim(
            id=_ESTIMATE_CLAIM_ID,
            name=_ESTIMATE_CLAIM_ID,
            owner=owner,
            subject=caller.subject,
            spec=spec,
            state=ClaimState.PENDING,
            arrival=max(self._clock.now(), fleet.last_arrival),
        )
        return await self.estimate_claim(caller, claim)

    async def estimate_claim(self, caller: Caller, claim: Claim) -> EstimateView:
        """Estimate when a pending or hypothetical claim would start.

        Raises:
            MooringsError: ``forecast.busy``.
        """

        def played(fleet: Fleet, policy: Policy, now: Timestamp, go_on: Callable[[], bool]) -> EstimateView:
            found = estimate_start(fleet, policy, now, claim, go_on)
            starts_now = found.starts_at is not None and found.starts_at <= now
            return EstimateView(found.starts_at, starts_now=starts_now, why=found.unknown_reason)

        found = await self._estimates.run(caller.subject, ESTIMATE_S_MAX, self._with_snapshot(played))
        if found.starts_at is not None:
            return found
        # A project's limits may keep it waiting even if all other claims end: that reason comes first.
        visible = self._visible_to(caller)
        reasons = explain_wait(self._loop.fleet, claim, self._clock.now(), self._loop.policy, visible).reasons
        ruled = next((reason for reason in reasons if reason.code in _LIMIT_REASONS), None)
        return replace(found, why=f"{ruled.message}; {found.why}") if ruled is not None else found

    async def what_if(self, caller: Caller, other: Policy) -> WhatIfView:
        """What another policy would change for the pending claims.

        Raises:
            MooringsError: ``forecast.busy``.
        """
        visible = self._visible_to(caller)

        def played(fleet: Fleet, policy: Policy, now: Timestamp, go_on: Callable[[], bool]) -> WhatIfView:
            found = compare_policies(fleet, now, policy, other, go_on)
            named = {ident for asked in found.yield_counts for ident in (one.claim for one in asked)}
            named.update(one.claim for one in found.claims)
            known = (fleet.claims[ident] for ident in named if ident in fleet.claims)
            claims = {claim.id: claim for claim in known if visible.includes_claim(claim)}
            return WhatIfView(now, found, claims)

        return await self._what_ifs.run(caller.subject, WHAT_IF_S_MAX, self._with_snapshot(played))

    async def defragment(self, caller: Caller, order: DefragmentPool, *, dry_run: bool) -> MovesView:
        """Move claims so that the ordered block becomes free; a dry run only returns the moves.

        Raises:
            MooringsError: ``auth.denied``, ``claim.unknown``, ``claim.held``, ``pool.unknown``, ``room.*``.
        """
        if not dry_run:
            check_admin(caller, "move claims")
        visible = self._visible_to(caller)
        if order.claim is not None:  # an id or a name
            claim = self._loop.fleet.find_claim(order.claim)
            if claim is None or not visible.includes_claim(claim):
                raise MooringsError("claim.unknown", f"no claim {order.claim[:80]!r} waits", hint="moor get claims")
            order = replace(order, claim=claim.id)
        if not dry_run:
            return self._moves_view(await self._loop.submit(order), visible)
        with Turn(self._loop.fleet, self._loop.policy, self._clock.now()) as thrown_away:
            reply = thrown_away.handle_input(order)
        if isinstance(reply, MooringsError):
            raise reply
        return self._moves_view(reply, visible)

    def _moves_view(self, reply: object, visible: Visibility) -> MovesView:
        assert isinstance(reply, MovePlan)
        claims = self._loop.fleet.claims
        held = {tenant.claim: tenant.block for tenant in list_holders(self._loop.fleet)}
        moved = [(claims[move.claim], held[move.claim], move.move_target) for move in reply.moves if move.claim in held]
        shown = [(one if visible.includes_claim(one) else None, block, to) for one, block, to in moved]
        return MovesView(reply.spot, reply.cost, tuple((one, block, to.block) for one, block, to in shown if to))

    def _with_snapshot(
        self, played: Callable[[Fleet, Policy, Timestamp, Callable[[], bool]], T]
    ) -> Callable[[], Callable[[Callable[[], bool]], T]]:
        """A forecast that begins with the fleet as it is when the forecast starts."""
        return lambda: partial(played, copy_fleet(self._loop.fleet), self._loop.policy, self._clock.now())
