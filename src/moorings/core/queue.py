"""The queue: which claim is next, what it gets, what is reserved for claims that wait, and which claims must yield.

``plan_schedule`` is the one decision function: the scheduler applies its grants, ``explain`` words its waits, a replay
repeats it, a simulation runs it. Claims within a guarantee come first; then priority, fair share and arrival decide.

- If the devices of a claim within a guarantee are lent, it gets them back: borrowers are asked to yield (law 6).
- The first other claim that does not fit gets a reservation: the block that can be emptied soonest is chosen for it.
  Only claims that end before the reservation starts may use it (law 7).
- If enough devices are free but no block of them, claims may be moved; if no release time is known, at first only with
  what later claims have left.
- A claim that has waited too long counts with the highest priority pending for its kind (law 7, ``core.ageing``).

A turn must cost what it decides, not what is pending: like claims form one pending class, and the pass leaves a class
as soon as the rest of it can get nothing. Refused: a walk over the whole queue. It decides the same (the tests compare
the two), but took milliseconds a turn with 10,000 pending claims, and seconds if every large block had a broken device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final

from moorings.core.ageing import ClassHead, find_aged_classes
from moorings.core.cells import GuaranteedPlacement, GuaranteeMap, UsableGuarantees, build_guarantee_map
from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState, PoolBlock, QueueMode
from moorings.core.devices import PoolName
from moorings.core.ends import FREE, DeferredReleaseTimes
from moorings.core.fleet import PoolState, ReservedBlock, has_resources_left
from moorings.core.instants import SECOND, Timestamp, add_seconds
from moorings.core.kept import BackfillWindow, reserve_device_count
from moorings.core.limits import LimitDeficits, ProjectLimits
from moorings.core.lines import NO_LIMIT_S, ClassKey, DeviceKey, PendingClassReader, backfill_limit_s
from moorings.core.offers import build_offers
from moorings.core.placement import NO_RELEASE, OUT_OF_SERVICE, Savepoint
from moorings.core.plans import Grant, Holder, MovePlan, Reclaim, SchedulePlan, SchedulingSnapshot, holder_from_claim
from moorings.core.policy import DAY_S, DefragmentMode, Policy
from moorings.core.reclaims import LimitDeficit, ReclaimCandidate, ReclaimCosts, find_cheapest_reclaim
from moorings.core.room import Relocation, find_relocation, is_bypassable
from moorings.core.topology import AnySubset, Block, PowerOfTwo

_NOTHING: Final = Block(())
_Rank = tuple[int, int, float, Timestamp, ClaimId]
# The next claim of a class: rank, number, claim, class, pools; last, the priority that an aged claim counts with.
_Head = tuple[_Rank, int, Claim, ClassKey, PendingClassReader, list[PoolState], int | None]


class _VisitResult(Enum):
    """What a claim got when it was visited."""

    SERVED = "served"  # a block, or a reservation
    NOTHING = "nothing"  # later claims of the class may still get something, if they end sooner
    BARRED = "barred"  # a limit of its project bars it and all later claims of the class
    LATER = "later"  # nothing of its project's guarantee; it may borrow after all others have theirs


class _SchedulingPass:
    """One pass over the queue, on maps under savepoints."""

    def __init__(
        self, scene: SchedulingSnapshot, policy: Policy, now: Timestamp, trials: Mapping[PoolName, Savepoint]
    ) -> None:
        self.scene = scene
        self.pools = scene.pools
        self.policy = policy
        self.now = now
        self.trials = trials
        self.ends = {name: DeferredReleaseTimes(state.ends) for name, state in scene.pools.items()}
        self.grants: list[Grant] = []
        self.reclaims: list[Reclaim] = []
        self.suggested: list[MovePlan] = []
        self.adopted: list[tuple[ClaimId, Block | None]] = []
        self.reservations: dict[tuple[PoolName, bool], ReservedBlock] = {}  # one for devices, one for resources alone
        self.promised: list[ReservedBlock] = []  # for claims within a guarantee, and for moved claims
        self.lent: list[ReservedBlock] = []  # free blocks for announced jobs, which their own scheduler may start
        self.used = {name: dict(state.used) for name, state in scene.pools.items() if state.used}
        self._kept: dict[PoolName, list[BackfillWindow]] = {}
        self._open_windows: dict[tuple[object, ...], list[float]] = {}
        self._hopeless: set[tuple[PoolName, int]] = set()  # sizes of which no block will be empty, as things stand
        self._priced: dict[PoolName, ReclaimCosts] = {}  # costs of reclaiming from holders
        self._vain: set[tuple[PoolName, str, int, int | None]] = set()  # requests without holders to reclaim from
        self._filled: set[tuple[PoolName, str, int]] = set()  # requests without a free place within their guarantee
        self._asked: set[ClaimId] = set()
        self._done: dict[ClaimId, _VisitResult] = {}  # visited claims: an aged claim is in two classes
        self._moves_left = scene.moves_left
        self._patient: list[tuple[Claim, Sequence[PoolState]]] = []  # claims that let others pass; moved for last
        self._pays = bool(scene.projects)
        self._estates: dict[PoolName, GuaranteeMap] = {}
        self._seen: dict[PoolName, dict[ClaimId, Holder]] = {}  # in pools with guarantees: holders with their cells
        self._within: dict[tuple[PoolName, str, int, int], bool] = {}
        self._limits = ProjectLimits(scene.projects)
        self._tenants: list[Holder] = []
        if self._pays:
            self._survey()

    # -- holders -----------------------------------------------------------------------------------------------------

    def _survey(self) -> None:
        """Count what projects hold, find where their cells lie, and take borrowers into free cells."""
        projects, limits = self.scene.projects, self._limits
        by_pool: dict[PoolName, list[Holder]] = {}
        moving = {claim.id for claim in self.scene.kept}
        for tenant in (one.lasting(self.policy.ageing_s) for one in self.scene.tenants()):
            by_pool.setdefault(tenant.pool, []).append(tenant)
            limits.hold(tenant.project, tenant.subject, len(tenant.block))
            if tenant.leaving and tenant.claim not in moving:
                limits.leave(tenant)
        for name, state in self.pools.items():
            tenants, cells = by_pool.get(name, []), projects.cells(name)
            estate: GuaranteeMap | None = None
            if cells:
                owners = {tenant.project: projects.lineage(tenant.project) for tenant in tenants}
                out = {*state.out, *(index for block in state.foreign.values() for index in block)}
                estate = self._estates[name] = build_guarantee_map(state.pool, cells, tenants, out, owners)
                tenants = [replace(one, cell=None) if one.claim in estate.strays else one for one in tenants]
                # A cell that is no longer owed has no owner: else its claims would count for its next owner.
                self.adopted += [(ident, None) for ident in sorted(estate.strays)]
            for tenant in tenants:
                if tenant.is_firm:
                    limits.settle(tenant.project, len(tenant.block), estate.owners_of(tenant) if estate else {})
            if estate is not None:
                self._seen[name] = {one.claim: one for one in tenants}
                self._adopt(state, estate)
                tenants = list(self._seen[name].values())
            self._tenants += tenants

    def _adopt(self, state: PoolState, estate: GuaranteeMap) -> None:
        """Take borrowers into free cells."""
        name, seen = state.pool.name, self._seen[state.pool.name]
        borrowers = [one for one in seen.values() if not one.is_firm and not one.leaving]
        for tenant in sorted(borrowers, key=lambda one: (-one.priority, one.since or self.now, one.claim)):
            place = estate.place_of(self._cells(tenant.project, name, len(tenant.block)), tenant.block)
            if place is not None:
                settled = seen[tenant.claim] = replace(tenant, cell=place.cell)
                estate.bind(place, settled)
                self._limits.settle(tenant.project, len(tenant.block), estate.owners_of(settled))
                self.adopted.append((tenant.claim, place.cell))

    def _cells(self, project: str, pool: PoolName, size: int) -> UsableGuarantees:
        """The cells that a claim of so many devices may use under its project's limits."""
        return self._limits.reach(project, size, self.scene.projects.open_cells(project, pool))

    def is_within(self, claim: Claim, state: PoolState) -> bool:
        """Whether a claim is within its project's guarantee in a pool."""
        name, spec = state.pool.name, claim.spec
        estate = self._estates.get(name)
        if estate is None or not spec.size:
            return False
        key = (name, spec.project, spec.size, spec.priority)
        known = self._within.get(key)
        if known is None:
            known = self._within[key] = estate.may_use(
                self._cells(spec.project, name, spec.size), spec.size, self._over(claim)
            )
        return known

    def _over(self, claim: Claim) -> int | None:
        """Claims of its own project with a priority below this may be preempted for it; None: none."""
        return claim.spec.priority if self.policy.preempt else None

    def _rank(self, claim: Claim, counts_as: int | None = None) -> _Rank:
        """The rank of a claim; ``counts_as``: the priority that an aged claim counts with.

        An aged claim that has yielded is not within a guarantee: it would take back what it yielded to a higher
        priority.
        """
        within = self._pays and any(self.is_within(claim, state) for state in self.scene.pools_of(claim.spec))
        priority = claim.spec.priority
        if counts_as is not None:
            within, priority = within and not claim.has_yielded, max(priority, counts_as)
        share = 0.0
        if self._pays and self.policy.fair_share and claim.state is not ClaimState.ANNOUNCED:
            share = self.scene.shares.get(claim.spec.project, 0.0)
        return (0 if within else 1, -priority, share, claim.arrival, claim.id)

    def _may_be_served(self, claim: Claim, able: Iterable[PoolState]) -> bool:
        """Whether it may be served some day, as things stand: no limit bars it, and a block can be emptied for it."""
        usable, size = [state.pool.name for state in able if not state.problem], claim.spec.size
        found = (self.ends[name].read().soonest(size) if size else None for name in usable)
        empties = bool(usable) if not size else any(one is not None and one[1] < OUT_OF_SERVICE for one in found)
        return empties and not self._limits.bars(claim)

    # -- the pass ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Visit the claims of all classes in the queue's order, but leave a class once the rest can get nothing.

        During a pass the free devices only shrink and the reservations only grow: a claim that requests no less than
        one that got nothing gets nothing.
        """
        self._settle_moves()
        heads = self._heads()
        heapify(heads)
        none_left: set[DeviceKey] = set()  # whatever resources are requested with them
        in_vain: set[object] = set()  # requests that got nothing: equal ones of the same project get nothing either
        while heads:
            rank, number, claim, key, line, able, counts_as = heads[0]
            if not rank[0] and (now_rank := self._rank(claim, counts_as)) != rank:
                # Its project's cells have been used meanwhile.
                heapreplace(heads, (now_rank, number, claim, key, line, able, counts_as))
                continue
            (devices, (project, _, preemptible), resources), following = key, None
            if devices not in none_left:
                like = (devices, project, preemptible, resources) if rank[0] else None
                got = self._look(claim, able, first=not rank[0], in_vain=like in in_vain)
                if got is _VisitResult.LATER:
                    heapreplace(heads, ((1, *rank[1:]), number, claim, key, line, able, counts_as))
                    continue
                self._done[claim.id] = got
                if got is _VisitResult.SERVED:
                    following = line.next(claim.order)
                elif got is _VisitResult.NOTHING:
                    in_vain.add(like)
                    following = self._next_shorter(claim, line, able)
                    if resources and following is None and not self._may_be_had(claim.spec):
                        none_left.add(devices)
            if following is not None:
                heapreplace(heads, (self._rank(following, counts_as), number, following, key, line, able, counts_as))
            else:
                heappop(heads)
        for patient, pools in self._patient:
            self._move_into_rest(patient, pools)

    def _heads(self) -> list[_Head]:
        """The first claim of each class; then the aged claims, once more."""
        lines = ((claim, key, line) for key, line in self.scene.lines if (claim := line.first()) is not None)
        first: list[ClassHead] = [(claim, key, line, self.scene.pools_of(claim.spec)) for claim, key, line in lines]
        aged = find_aged_classes(first, self.policy, self.now, self._may_be_served)
        every = chain(((*one, None) for one in first), aged)
        return [(self._rank(one[0], one[4]), number, *one) for number, one in enumerate(every)]

    def _look(self, claim: Claim, able: Sequence[PoolState], *, first: bool, in_vain: bool) -> _VisitResult:
        """``_visit``, or its short form if that is enough.

        Args:
            claim: the claim.
            able: the pools that could serve it.
            first: it is within a guarantee.
            in_vain: an equal claim of its project got nothing: nor does this one, unless it ends sooner.
        """
        done = self._done.get(claim.id)
        if done is not None:
            return done
        if in_vain and backfill_limit_s(claim) > max(self._windows(claim, able), default=0.0):
            return self._visit_barred(claim, able, first=False) or _VisitResult.NOTHING
        return self._visit(claim, able, first=first)

    def _next_shorter(self, claim: Claim, line: PendingClassReader, able: Sequence[PoolState]) -> Claim | None:
        """The next of the class that ends soon enough to use what is reserved for others."""
        spec = claim.spec
        if not self.policy.backfill or not spec.size or not self._kept:
            return None
        limit = backfill_limit_s(claim)
        window = max((one for one in self._windows(claim, able) if one < limit), default=0.0)
        return line.next(claim.order, window) if window else None

    def _windows(self, claim: Claim, able: Sequence[PoolState]) -> list[float]:
        """The times within which a claim must end to use reserved blocks large enough for it."""
        size = claim.spec.size
        if not size:
            return []
        key = (size, *(state.pool.name for state in able))
        known = self._open_windows.get(key)
        if known is None:
            every = ((kept, state) for state in able for kept in self._kept.get(state.pool.name, ()))
            found = ((kept.window_s(self.now), kept, state) for kept, state in every)
            known = [within for within, kept, state in found if within and self._has_inside(kept, state, size)]
            self._open_windows[key] = known
        return known

    def _has_inside(self, kept: BackfillWindow, state: PoolState, size: int) -> bool:
        return state.free.free >= size if kept.spare is not None else kept.find(size) is not None

    def _settle_moves(self) -> None:
        """Claims that were asked to move have their new blocks: grant these, or keep them reserved."""
        for claim in self.scene.kept:
            spot = claim.kept
            state = self.pools.get(spot.pool) if spot is not None else None
            if spot is None or state is None or not state.pool.topology.is_block(spot.block):
                continue
            if claim.state is ClaimState.PENDING and state.free.is_free(spot.block) and not state.problem:
                self._accept(claim, state, spot.block)
                self._done[claim.id] = _VisitResult.SERVED
            elif not any(index in state.out for index in spot.block):
                self._keep(claim, state, spot.block, Timestamp(0))

    def _visit(self, claim: Claim, able: Sequence[PoolState], *, first: bool) -> _VisitResult:
        """Grant a claim a block, or reserve one for it; returns what it got.

        A claim within a guarantee (``first``) does not borrow before all others within one have theirs: what yields to
        one of them would be lent at once to the next, and in a pool without guarantees it would pass earlier claims.
        """
        spec, enough_free = claim.spec, False
        if self._pays and spec.size:
            barred = self._visit_barred(claim, able, first=first)
            if barred is not None:
                return barred
        for state in able:
            if self._pays and self._fit_within(claim, state):
                return _VisitResult.SERVED
            if first:
                continue
            if not spec.size or state.free.free >= spec.size:
                enough_free = True
                if self._fit(claim, state):
                    return _VisitResult.SERVED
        if first:
            waits = spec.queue is QueueMode.WAIT
            return _VisitResult.SERVED if waits and self._take_back(claim, able, ()) else _VisitResult.LATER
        if spec.size and self._kept and any(self._fit_inside(claim, state) for state in able):
            return _VisitResult.SERVED
        if spec.queue is not QueueMode.WAIT:
            return _VisitResult.NOTHING
        if spec.size and enough_free and self._make_room(claim, able):
            return _VisitResult.SERVED
        return _VisitResult.SERVED if self.policy.reserve and self._reserve(claim, able) else _VisitResult.NOTHING

    def _visit_barred(self, claim: Claim, able: Sequence[PoolState], *, first: bool) -> _VisitResult | None:
        """Handle a claim that a limit bars: if it is within a guarantee, borrowers under that limit must yield.

        None: no limit bars it.
        """
        spec, waits = claim.spec, claim.spec.queue is QueueMode.WAIT
        if not self._limits.bars(claim):
            settles = first or spec.preemptible or self._limits.against_settling(spec.project, spec.size) is None
            return None if settles else _VisitResult.BARRED
        if first and (owed := self._limits.owed(claim)) is not None:
            return _VisitResult.SERVED if waits and self._take_back(claim, able, owed) else _VisitResult.LATER
        if waits and self.policy.reserve:
            self._limits.close(claim)
        return _VisitResult.BARRED

    def _may_be_had(self, spec: ClaimSpec) -> bool:
        """Whether a claim for the same devices but other resources may get what this one did not."""
        reserves = self.policy.reserve and spec.queue is QueueMode.WAIT
        return not spec.size or any(
            not state.problem
            and (
                (reserves and not self._keeps(state, spec.size))
                or state.free.find(spec.size) is not None
                or any(self._has_inside(kept, state, spec.size) for kept in self._kept.get(state.pool.name, ()))
            )
            for state in self.pools.values()
            if state.pool.kind == spec.kind and spec.pool in (None, state.pool.name)
        )

    def _usable(self, state: PoolState, spec: ClaimSpec) -> bool:
        if state.problem:
            return False
        return not spec.resources or has_resources_left(state.pool, self._used(state), spec.resources)

    def _used(self, state: PoolState) -> dict[str, int]:
        return self.used.setdefault(state.pool.name, {})

    # -- free blocks -------------------------------------------------------------------------------------------------

    def _fit_within(self, claim: Claim, state: PoolState) -> bool:
        """Grant it a free block within its project's guarantee."""
        spec = claim.spec
        if not self.is_within(claim, state) or not self._usable(state, spec):
            return False
        if state.free.free < spec.size:
            return False
        asks = (state.pool.name, spec.project, spec.size)
        if asks in self._filled:
            return False
        estate = self._estates[state.pool.name]
        for place in estate.places(self._cells(spec.project, state.pool.name, spec.size), spec.size, None):
            block = place.block if len(place.block) else state.free.find(spec.size)
            if block is not None and state.free.is_free(block):
                self._accept(claim, state, block, place)
                return True
        self._filled.add(asks)
        return False

    def _fit(self, claim: Claim, state: PoolState) -> bool:
        """Grant it a free block that is not needed for a guarantee or a reservation."""
        spec, name = claim.spec, state.pool.name
        if not self._usable(state, spec):
            return False
        if not spec.size:
            self._accept(claim, state, None)
            return True
        block = state.free.find(spec.size)
        if block is None or not self._may_borrow(claim, state, block):
            return False
        if not self._fits_numbers(claim, name):
            return False
        self._accept(claim, state, block)
        return True

    def _may_borrow(self, claim: Claim, state: PoolState, block: Block) -> bool:
        """The lending check: a claim that cannot be preempted must leave room for every guarantee."""
        estate = self._estates.get(state.pool.name)
        return estate is None or claim.spec.preemptible or estate.may_hold(block)

    def _fits_numbers(self, claim: Claim, pool: PoolName, *, take: bool = True) -> bool:
        """Whether reservations by number allow it: it ends before, or enough devices are left over."""
        limit, size = backfill_limit_s(claim), claim.spec.size
        numbers = [kept for kept in self._kept.get(pool, ()) if kept.spare is not None]
        over = [kept for kept in numbers if not (self.policy.backfill and limit <= kept.window_s(self.now))]
        if any((kept.spare or 0) < size for kept in over):
            return False
        for kept in over if take else ():
            kept.spare = (kept.spare or 0) - size
        return True

    def _fit_inside(self, claim: Claim, state: PoolState) -> bool:
        """Grant it a part of a block reserved for another, if it ends before that is needed."""
        spec = claim.spec
        if not self.policy.backfill or spec.time_limit_s is None:
            return False
        limit = backfill_limit_s(claim)
        for kept in self._kept.get(state.pool.name, ()):
            if kept.spare is None and limit <= kept.window_s(self.now):
                block = kept.find(spec.size)
                if block is not None and self._usable(state, spec) and self._may_borrow(claim, state, block):
                    kept.take(block)
                    self._accept(claim, state, block, taken=True)
                    return True
        return False

    def _accept(
        self,
        claim: Claim,
        state: PoolState,
        block: Block | None,
        place: GuaranteedPlacement | None = None,
        *,
        taken: bool = False,
    ) -> None:
        """Give it the block: a grant, or, for another scheduler's job, a loan until that scheduler starts it."""
        name, spec = state.pool.name, claim.spec
        self._open_windows.clear()
        cell = None
        if block is not None:
            if not taken:
                self.trials[name].take(block)
            until = add_seconds(self.now, spec.time_limit_s) if spec.time_limit_s is not None else NO_RELEASE
            self.ends[name].put(block, until)
            cell = self._tie(claim, state, block, place)
        self._use(spec, name)
        if claim.state is ClaimState.ANNOUNCED:
            self.lent.append(ReservedBlock(claim.id, name, block or _NOTHING, Timestamp(0)))
        else:
            self.grants.append(Grant(claim.id, name, block, cell))

    def _tie(self, claim: Claim, state: PoolState, block: Block, place: GuaranteedPlacement | None) -> Block | None:
        """Count a block as its project's; returns its cell."""
        if not self._pays:
            return None
        project, limits = claim.spec.project, self._limits
        limits.hold(project, claim.user, len(block))
        estate = self._estates.get(state.pool.name)
        if place is None or estate is None:
            if not claim.spec.preemptible:
                limits.settle(project, len(block))
                if estate is not None:
                    estate.hold(block)
                self._tighten()
            return None
        cell = place.cell if len(place.cell) else block
        tenant = replace(holder_from_claim(claim, state.pool.name, block), cell=cell)
        estate.bind(GuaranteedPlacement(place.owner, cell, block), tenant)
        limits.settle(project, len(block), estate.owners_of(tenant))
        self._tighten()
        return cell

    def _tighten(self) -> None:
        """Part of a guarantee is used: claims outside one stay outside; those within one are checked again."""
        self._within = {key: known for key, known in self._within.items() if not known}

    def _use(self, spec: ClaimSpec, pool: PoolName, sign: int = 1) -> None:
        for name, amount in spec.resources.items():
            used = self.used.setdefault(pool, {})
            used[name] = used.get(name, 0) + sign * amount

    # -- blocks that are not free ------------------------------------------------------------------------------------

    def _take_back(self, claim: Claim, able: Sequence[PoolState], owed: LimitDeficits) -> bool:
        """Have borrowers yield to a claim within its guarantee, and reserve the block for it until then.

        Args:
            claim: the claim.
            able: the pools that could serve it.
            owed: what must also be given back under limits of projects.
        """
        best: tuple[ReclaimCandidate, PoolState] | None = None
        for state in able:
            if not self.is_within(claim, state) or not self._usable(state, claim.spec):
                continue
            found = self._cheapest(claim, state, owed)
            if found is not None and (best is None or found.cost < best[0].cost):
                best = (found, state)
        if best is None:
            return False
        wanted, state = best
        if wanted.when <= self.now:
            for tenant in wanted.victims:
                if not tenant.leaving:
                    self.reclaims.append(Reclaim(tenant.claim, claim.id))
        for tenant in wanted.victims:
            self._asked.add(tenant.claim)
            if tenant.pool in self._priced:
                self._priced[tenant.pool].holders = None
            if not tenant.leaving:
                self._limits.leave(tenant)
        until = add_seconds(max(wanted.when, self.now), self.policy.yield_s)
        self._keep(claim, state, wanted.place.block, until)
        self._tie(claim, state, wanted.place.block, wanted.place)
        self._use(claim.spec, state.pool.name)
        return True

    def _cheapest(self, claim: Claim, state: PoolState, owed: LimitDeficits) -> ReclaimCandidate | None:
        name, spec = state.pool.name, claim.spec
        asks = (name, spec.project, spec.size, self._over(claim))
        if asks in self._vain:
            return None
        tenants = self._seen[name].values()
        if name not in self._priced:
            self._priced[name] = ReclaimCosts(self.policy, self.now)
        found = find_cheapest_reclaim(
            self._estates[name],
            self._cells(spec.project, name, spec.size),
            state,
            spec.size,
            self._over(claim),
            list(tenants),
            self._asked,
            self.policy,
            self.now,
            self._priced[name],
            LimitDeficit(owed, self._tenants) if owed else None,
        )
        if found is None:
            self._vain.add(asks)
        return found

    def _keep(self, claim: Claim, state: PoolState, block: Block, until: Timestamp) -> None:
        self._open_windows.clear()
        name = state.pool.name
        reservation = ReservedBlock(claim.id, name, block, until)
        self.promised.append(reservation)
        # No claim may use it meanwhile: it would run for a time before it may be asked, and so would the next.
        self._kept.setdefault(name, []).append(BackfillWindow(reservation, state, self.trials[name], NO_LIMIT_S))
        self.ends[name].put(block, NO_RELEASE)

    def _make_room(self, claim: Claim, able: Sequence[PoolState]) -> bool:
        """Move other claims for it; in pools where it lets others pass, only after they had what is free."""
        patient = {state.pool.name for state in able if self._lets_pass(claim, state)}
        if self._move(claim, [state for state in able if state.pool.name not in patient]):
            return True
        if patient:
            self._patient.append((claim, [state for state in able if state.pool.name in patient]))
        return False

    def _move(self, claim: Claim, able: Sequence[PoolState]) -> bool:
        """Move claims if enough devices are free but no block of them; only suggest it, if the policy says so."""
        mode = self.policy.defragment
        if mode is DefragmentMode.OFF or (mode is DefragmentMode.ON and self._moves_left < 1):
            return False
        best: tuple[float, Relocation, PoolState] | None = None
        for state in able:
            found = self._room(claim, state)
            if found is not None and (best is None or found.cost < best[0]):
                best = (found.cost, found, state)
        if best is None:
            return False
        _, room, state = best
        name = state.pool.name
        moves = tuple(Reclaim(tenant.claim, claim.id, PoolBlock(name, block)) for tenant, block in room.moves)
        if mode is DefragmentMode.SUGGEST:
            self.suggested.append(MovePlan(claim.id, PoolBlock(name, room.block), moves, room.cost))
            return False
        self._fits_numbers(claim, name)
        self.reclaims += moves
        self._moves_left -= len(moves)
        for tenant, block in room.moves:
            self._asked.add(tenant.claim)
            if name in self._priced:
                self._priced[name].holders = None
            for part in state.free.free_within(block):
                self.trials[name].take(part)
        self._keep(claim, state, room.block, add_seconds(self.now, self.policy.yield_s))
        self._limits.hold(claim.spec.project, claim.user, claim.spec.size)
        self._use(claim.spec, name)
        return True

    def _lets_pass(self, claim: Claim, state: PoolState) -> bool:
        passable = state.pool.name in self.scene.resumable
        return passable and is_bypassable(claim, state, self.ends[state.pool.name].read(), self.policy, self.now)

    def _move_into_rest(self, claim: Claim, able: Sequence[PoolState]) -> None:
        """Free a block for a claim that let others pass, out of what they have left."""
        mine = next(((key, one) for key, one in self.reservations.items() if one.claim == claim.id), None)
        if mine is not None and len(mine[1].block):
            return  # it has a block in another pool, or one that is being emptied
        if self._pays and self._limits.bars(claim):
            return
        if mine is not None:
            self._use(claim.spec, mine[1].pool, -1)
        if self._move(claim, able):
            if mine is not None:
                del self.reservations[mine[0]]
        elif mine is not None:
            self._use(claim.spec, mine[1].pool)

    def _room(self, claim: Claim, state: PoolState) -> Relocation | None:
        """A block to free for it in a pool, if that costs less than its wait."""
        spec, name = claim.spec, state.pool.name
        if not self._usable(state, spec) or state.free.free < spec.size or isinstance(state.pool.topology, AnySubset):
            return None
        if self.policy.defragment is DefragmentMode.SUGGEST and (name, True) in self.reservations:
            return None  # suggested for the first pending claim only
        guaranteed = name in self._estates  # a holder in a cell, or not preemptible, must stay where it counts
        if not self._fits_numbers(claim, name, take=False) or (guaranteed and not spec.preemptible):
            return None
        soonest = self.ends[name].read().soonest(spec.size)
        wait_s = DAY_S if soonest is None or soonest[1] >= NO_RELEASE else max(0, soonest[1] - self.now) / SECOND
        tenants = [
            replace(one, movable=False) if one.claim in self._asked or (guaranteed and one.is_firm) else one
            for one in (self._tenants if self._pays else self.scene.tenants())
            if one.pool == name
        ]
        most = self._moves_left if self.policy.defragment is DefragmentMode.ON else self.policy.moves_per_hour
        room = find_relocation(state, spec.size, tenants, self.now, self.policy.move_s, most)
        return room if room is not None and room.cost < spec.size * wait_s else None

    def _keeps(self, state: PoolState, size: int) -> bool:
        """Whether a pool can reserve nothing more for a size: it has a reservation, or no block would empty."""
        name = state.pool.name
        return (name, size > 0) in self.reservations or (name, size) in self._hopeless

    def _reserve(self, claim: Claim, able: Iterable[PoolState]) -> bool:
        """Reserve a block for it in the pool where that is soonest, among pools without a reservation.

        A claim without devices reserves only resources: it must not take the place of one that waits for a block.
        """
        best: tuple[Timestamp, int, PoolState, Block, int | None] | None = None
        for state in able:
            size = claim.spec.size
            if state.problem or self._keeps(state, size):
                continue
            if not size:
                found: tuple[Block, Timestamp, int] | None = (_NOTHING, NO_RELEASE, 0)
            else:
                found = self.ends[state.pool.name].read().soonest(size)
            if found is None or found[1] >= OUT_OF_SERVICE:
                self._hopeless.add((state.pool.name, size))
                continue
            block, until, held = found
            estate = self._estates.get(state.pool.name)
            if size and estate is not None and not (claim.spec.preemptible or estate.could_hold(block)):
                continue  # a guarantee would bar it when the block is empty, and no other claim could use the block
            spare = None
            moving = any(one.kept is not None and one.kept.pool == state.pool.name for one in self.scene.kept)
            if size and not moving and self._lets_pass(claim, state):
                block = _NOTHING
            elif size and state.pool.name in self.scene.movable and isinstance(state.pool.topology, PowerOfTwo):
                block, until, spare = reserve_device_count(
                    self.ends[state.pool.name].read(), size, block, until, self.now
                )
            if best is None or (until, held) < best[:2]:
                best = (until, held, state, block, spare)
        if best is None:
            return False
        until, _, state, block, spare = best
        until = Timestamp(0) if until == FREE else until
        name = state.pool.name
        kept = ReservedBlock(claim.id, name, block, until)
        self.reservations[name, claim.spec.size > 0] = kept
        if claim.spec.size:
            self._open_windows.clear()
            self._kept.setdefault(name, []).append(
                BackfillWindow(kept, state, self.trials[name], self.policy.making_s, spare)
            )
        self._use(claim.spec, name)
        return True

    def undo(self) -> None:
        """Roll back the release times."""
        for ends in self.ends.values():
            ends.undo()


def plan_schedule(scene: SchedulingSnapshot, policy: Policy, now: Timestamp) -> SchedulePlan:
    """Which claims get which blocks now, what is reserved for those that wait, and which must yield or move.

    Args:
        scene: pools, pending classes, projects and holders, as the turn sees them.
        policy: the policy in force.
        now: the turn's time, from which the time limits of new grants count.
    """
    trials = {name: Savepoint(state.free) for name, state in scene.pools.items()}
    one = _SchedulingPass(scene, policy, now, trials)
    try:
        one.serve()
        reservations = (*one.reservations.values(), *one.promised, *one.lent)
        return SchedulePlan(
            tuple(one.grants),
            reservations,
            tuple(build_offers(scene.announced, scene.pools, one.lent, scene.guarded)),
            tuple(one.reclaims),
            tuple(one.adopted),
            tuple(one.suggested),
        )
    finally:
        one.undo()
        for on_trial in trials.values():
            on_trial.undo()
