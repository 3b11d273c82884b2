"""The queue: which claim is next, what it gets, what is reserved for claims that wait, and which claims must yield.

``plan_schedule`` is the one decision function: the scheduler applies its grants, ``explain`` words its waits, a replay
repeats it, a simulation runs it. Claims within a guarantee come first; then priority, fair share and arrival decide.
Each stage has a module; here is the order of claims, and what each of them is offered in turn:

1. Its guarantee (``guarantees.guarantee_use``). If those devices are lent, borrowers are asked to yield
   (``guarantees.reclaims``, law 6). 2. A free block that is neither guaranteed nor reserved; then a part of a reserved
   block, if the claim ends before that is needed (``backfill``: backfill). 3. If enough devices are free but no block
   of them, claims may be moved (``moves``); if no release time is known, at first only with what later claims have
   left. 4. A reservation, if it is the first of its pool that does not fit: the block that can be emptied soonest
   (``reservations``, law 7).

A claim that has waited too long counts with the highest priority pending for its kind (law 7, ``ageing``).

A turn must cost what it decides, not what is pending: like claims form one pending class, and the pass leaves a class
as soon as the rest of it can get nothing. Refused: a walk over the whole queue. It decides the same (the tests compare
the two), but took milliseconds a turn with 10,000 pending claims, and seconds if every large block had a broken device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from heapq import heapify, heappop, heapreplace
from itertools import chain

from moorings.core.guarantees.project_limits import LimitDeficits
from moorings.core.guarantees.reclaims import ReclaimSearch
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PoolBlock, QueueMode
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import OUT_OF_SERVICE
from moorings.core.placement.pending_classes import (
    ClassKey,
    DeviceKey,
    PendingClassReader,
    backfill_limit_s,
)
from moorings.core.placement.plans import (
    MovePlan,
    Reclaim,
    SchedulePlan,
    SchedulingSnapshot,
)
from moorings.core.scheduling.ageing import ClassHead, find_aged_classes
from moorings.core.scheduling.draft import PlanDraft
from moorings.core.scheduling.moves import find_moves, may_be_passed
from moorings.core.scheduling.reservations import ReservableBlockSearch

_Rank = tuple[int, int, float, Timestamp, ClaimId]
# The next claim of a class: rank, number, claim, class, pools; last, the priority that an aged claim counts with.
_Head = tuple[_Rank, int, Claim, ClassKey, PendingClassReader, list[PoolState], int | None]


class _VisitResult(Enum):
    """What a claim got when it was visited."""

    ADMITTED = "served"  # a block, or a reservation
    NO_DEVICES = "nothing"  # later claims of the class may still get something, if they end sooner
    OVER_LIMIT = "barred"  # a limit of its project bars it and all later claims of the class
    DEFERRED = "later"  # nothing of its project's guarantee; it may borrow after all others have theirs


class _QueuePass:
    """One pass over the queue: visits the claims in order, and applies to the draft what each stage finds for them."""

    def __init__(self, draft: PlanDraft) -> None:
        self.draft = draft
        self.guarantees = draft.guarantees
        self.limits = draft.guarantees.survey.limits
        self.snapshot = draft.snapshot
        self.policy = draft.policy
        self.reclaims = ReclaimSearch(draft.guarantees, draft.policy, draft.now)
        self.reservations = ReservableBlockSearch(draft)
        self.moves_left = draft.snapshot.moves_left
        self._has_projects = bool(draft.snapshot.projects)
        self._done: dict[ClaimId, _VisitResult] = {}  # visited claims: an aged claim is in two classes
        self._patient: list[tuple[Claim, Sequence[PoolState]]] = []  # claims that let others pass; moved for last

    # -- the order -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Visit the claims of all classes in the queue's order, but leave a class once the rest can get nothing.

        During a pass the free devices only shrink and the reservations only grow: a claim that requests no less than
        one that got nothing gets nothing.
        """
        self._place_moved_claims()
        heads = self._class_heads()
        heapify(heads)
        none_left: set[DeviceKey] = set()  # whatever resources are requested with them
        hopeless: set[object] = set()  # requests that got nothing: equal ones of the same project get nothing either
        while heads:
            rank, number, claim, key, line, able, counts_as = heads[0]
            if not rank[0] and (now_rank := self._rank(claim, counts_as)) != rank:
                # Its project's cells have been used meanwhile.
                heapreplace(heads, (now_rank, number, claim, key, line, able, counts_as))
                continue
            (devices, (project, _, preemptible), resources), following = key, None
            if devices not in none_left:
                like = (devices, project, preemptible, resources) if rank[0] else None
                got = self._visit_once(claim, able, first=not rank[0], hopeless=like in hopeless)
                if got is _VisitResult.DEFERRED:
                    heapreplace(heads, ((1, *rank[1:]), number, claim, key, line, able, counts_as))
                    continue
                self._done[claim.id] = got
                if got is _VisitResult.ADMITTED:
                    following = line.next(claim.queue_key)
                elif got is _VisitResult.NO_DEVICES:
                    hopeless.add(like)
                    window_s = self.draft.windows.next_shorter_s(claim, able)
                    following = line.next(claim.queue_key, window_s) if window_s else None
                    if resources and following is None and not self._has_devices_left(claim.spec):
                        none_left.add(devices)
            if following is not None:
                heapreplace(heads, (self._rank(following, counts_as), number, following, key, line, able, counts_as))
            else:
                heappop(heads)
        for patient, pools in self._patient:
            self._relocate_deferred(patient, pools)

    def _class_heads(self) -> list[_Head]:
        """The first claim of each class; then the aged claims, once more."""
        lines = ((claim, key, line) for key, line in self.snapshot.classes if (claim := line.first()) is not None)
        first: list[ClassHead] = [
            (claim, key, line, self.snapshot.eligible_pools(claim.spec)) for claim, key, line in lines
        ]
        aged = find_aged_classes(first, self.policy, self.draft.now, self._is_servable)
        every = chain(((*one, None) for one in first), aged)
        return [(self._rank(one[0], one[4]), number, *one) for number, one in enumerate(every)]

    def _rank(self, claim: Claim, counts_as: int | None = None) -> _Rank:
        """The rank of a claim; ``counts_as``: the priority that an aged claim counts with.

        An aged claim that has yielded is not within a guarantee: it would take back what it yielded to a higher
        priority.
        """
        within = self._has_projects and any(
            self.guarantees.is_within(claim, state.pool.name) for state in self.snapshot.eligible_pools(claim.spec)
        )
        priority = claim.spec.priority
        if counts_as is not None:
            within, priority = within and not claim.has_yielded, max(priority, counts_as)
        share = 0.0
        if self._has_projects and self.policy.fair_share and claim.state is not ClaimState.ANNOUNCED:
            share = self.snapshot.shares.get(claim.spec.project, 0.0)
        return (0 if within else 1, -priority, share, claim.arrival, claim.id)

    def _is_servable(self, claim: Claim, able: Iterable[PoolState]) -> bool:
        """Whether it may be served some day, as things stand: no limit bars it, and a block can be emptied for it."""
        usable, size = [state.pool.name for state in able if not state.unreachable_reason], claim.spec.size
        found = (self.draft.release_times(name).earliest_block(size) if size else None for name in usable)
        empties = bool(usable) if not size else any(one is not None and one[1] < OUT_OF_SERVICE for one in found)
        return empties and not self.limits.is_over_limit(claim)

    def _has_devices_left(self, spec: ClaimSpec) -> bool:
        """Whether a claim for the same devices but other resources may get what this one did not."""
        reserves = self.policy.reserve and spec.queue is QueueMode.WAIT
        return not spec.size or any(
            not state.unreachable_reason
            and (
                (reserves and not self.reservations.is_closed(state.pool.name, spec.size))
                or state.free.find_block(spec.size) is not None
                or self.draft.windows.has_inside(state, spec.size)
            )
            for state in self.draft.snapshot.pools.values()
            if state.pool.kind == spec.kind and spec.pool in (None, state.pool.name)
        )

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _visit_once(self, claim: Claim, able: Sequence[PoolState], *, first: bool, hopeless: bool) -> _VisitResult:
        """``_visit``, or its short form if that is enough.

        Args:
            claim: the claim.
            able: the pools that could serve it.
            first: it is within a guarantee.
            hopeless: an equal claim of its project got nothing: nor does this one, unless it ends sooner.
        """
        done = self._done.get(claim.id)
        if done is not None:
            return done
        if hopeless and backfill_limit_s(claim) > max(self.draft.windows.open_s(claim.spec.size, able), default=0.0):
            return self._visit_over_limit(claim, able, first=False) or _VisitResult.NO_DEVICES
        return self._visit(claim, able, first=first)

    def _visit(self, claim: Claim, able: Sequence[PoolState], *, first: bool) -> _VisitResult:
        """Grant a claim a block, or reserve one for it; returns what it got.

        A claim within a guarantee (``first``) does not borrow before all others within one have theirs: what yields to
        one of them would be lent at once to the next, and in a pool without guarantees it would pass earlier claims.
        """
        spec, enough_free = claim.spec, False
        if self._has_projects and spec.size:
            barred = self._visit_over_limit(claim, able, first=first)
            if barred is not None:
                return barred
        for state in able:
            if self._has_projects and self._grant_guaranteed(claim, state):
                return _VisitResult.ADMITTED
            if first:
                continue
            if not spec.size or state.free.n_free >= spec.size:
                enough_free = True
                if self._grant_free(claim, state):
                    return _VisitResult.ADMITTED
        if first:
            waits = spec.queue is QueueMode.WAIT
            return _VisitResult.ADMITTED if waits and self._reclaim_for(claim, able, ()) else _VisitResult.DEFERRED
        if spec.size and any(self._backfill(claim, state) for state in able):
            return _VisitResult.ADMITTED
        if spec.queue is not QueueMode.WAIT:
            return _VisitResult.NO_DEVICES
        if spec.size and enough_free and self._relocate_for(claim, able):
            return _VisitResult.ADMITTED
        return _VisitResult.ADMITTED if self.policy.reserve and self._reserve(claim, able) else _VisitResult.NO_DEVICES

    def _visit_over_limit(self, claim: Claim, able: Sequence[PoolState], *, first: bool) -> _VisitResult | None:
        """Handle a claim that a limit bars: if it is within a guarantee, borrowers under that limit must yield.

        None: no limit bars it.
        """
        spec, waits = claim.spec, claim.spec.queue is QueueMode.WAIT
        if not self.limits.is_over_limit(claim):
            settles = first or spec.preemptible or self.limits.limit_exceeded_by_firm(spec.project, spec.size) is None
            return None if settles else _VisitResult.OVER_LIMIT
        if first and (owed := self.limits.required_releases(claim)) is not None:
            return _VisitResult.ADMITTED if waits and self._reclaim_for(claim, able, owed) else _VisitResult.DEFERRED
        if waits and self.policy.reserve:
            self.limits.reserve_headroom(claim)
        return _VisitResult.OVER_LIMIT

    # -- free blocks ---------------------------------------------------------------------------------------------------

    def _grant_guaranteed(self, claim: Claim, state: PoolState) -> bool:
        """Grant it a free block within its project's guarantee."""
        if not self.guarantees.is_within(claim, state.pool.name) or not self.draft.is_usable(state, claim.spec):
            return False
        place = self.guarantees.find_free_place(claim, state)
        if place is not None:
            self.draft.grant(claim, state, place.block, place)
        return place is not None

    def _grant_free(self, claim: Claim, state: PoolState) -> bool:
        """Grant it a free block that is not needed for a guarantee or a reservation."""
        spec, name = claim.spec, state.pool.name
        if not self.draft.is_usable(state, spec):
            return False
        block = state.free.find_block(spec.size) if spec.size else None
        if spec.size and (
            block is None
            or not self.guarantees.may_borrow(claim, name, block)
            or not self.draft.windows.fits_counts(claim, name, take=True)
        ):
            return False
        self.draft.grant(claim, state, block)
        return True

    def _backfill(self, claim: Claim, state: PoolState) -> bool:
        """Grant it a part of a block reserved for another, if it ends before that is needed."""
        for window, block in self.draft.windows.find_inside(claim, state.pool.name):
            if self.draft.is_usable(state, claim.spec) and self.guarantees.may_borrow(claim, state.pool.name, block):
                self.draft.grant(claim, state, block, inside=window)
                return True
        return False

    # -- blocks that are not free --------------------------------------------------------------------------------------

    def _reclaim_for(self, claim: Claim, able: Iterable[PoolState], deficits: LimitDeficits) -> bool:
        """Have borrowers yield to a claim within its guarantee, and reserve the block for it until then."""
        draft = self.draft
        pools = (one for one in able if self.guarantees.is_within(claim, one.pool.name))
        found = self.reclaims.find(claim, [one for one in pools if draft.is_usable(one, claim.spec)], deficits)
        if found is None:
            return False
        wanted, state = found
        for holder in wanted.victims:
            self.reclaims.ask(holder)
            if not holder.is_leaving:
                self.limits.add_leaving(holder)
                if wanted.possible_at <= draft.now:
                    draft.reclaims.append(Reclaim(holder.claim, claim.id))
        draft.promise(
            claim, state, wanted.place.block, add_seconds(max(wanted.possible_at, draft.now), self.policy.yield_s)
        )
        self.guarantees.record(claim, state.pool.name, wanted.place.block, wanted.place)
        draft.use(claim.spec, state.pool.name)
        return True

    def _place_moved_claims(self) -> None:
        """Claims that were asked to move have their new blocks: grant these, or keep them reserved."""
        for claim in self.snapshot.moving_claims:
            spot = claim.kept
            state = self.snapshot.pools.get(spot.pool) if spot is not None else None
            if spot is None or state is None or not state.pool.topology.is_block(spot.block):
                continue
            if claim.state is ClaimState.PENDING and state.free.is_free(spot.block) and not state.unreachable_reason:
                self.draft.grant(claim, state, spot.block)
                self._done[claim.id] = _VisitResult.ADMITTED
            elif not any(index in state.out_of_service for index in spot.block):
                self.draft.promise(claim, state, spot.block, Timestamp(0))
                if claim.state is ClaimState.PENDING:  # until then it still holds them
                    self.draft.use_machine(claim.spec)

    def _relocate_for(self, claim: Claim, able: Sequence[PoolState]) -> bool:
        """Move other claims for it; in pools where it lets others pass, only after they had what is free."""
        patient = {state.pool.name for state in able if may_be_passed(self.draft, claim, state)}
        if self._move(claim, [state for state in able if state.pool.name not in patient]):
            return True
        if patient:
            self._patient.append((claim, [state for state in able if state.pool.name in patient]))
        return False

    def _move(self, claim: Claim, able: Sequence[PoolState]) -> bool:
        """Move claims if enough devices are free but no block of them; only suggest it, if the policy says so."""
        draft = self.draft
        found = find_moves(draft, claim, able, self.reclaims.asked, self.moves_left)
        if found is None:
            return False
        relocation, state = found
        name = state.pool.name
        moves = tuple(Reclaim(holder.claim, claim.id, PoolBlock(name, block)) for holder, block in relocation.moves)
        if self.policy.defragment is DefragmentMode.SUGGEST:
            draft.suggested.append(MovePlan(claim.id, PoolBlock(name, relocation.block), moves, relocation.cost))
            return False
        draft.windows.fits_counts(claim, name, take=True)
        draft.reclaims += moves
        self.moves_left -= len(moves)
        for holder, block in relocation.moves:
            self.reclaims.ask(holder)
            draft.take(state, block)
        draft.promise(claim, state, relocation.block, add_seconds(draft.now, self.policy.yield_s))
        self.limits.add_held(claim.spec.project, claim.user, claim.spec.size)
        draft.use(claim.spec, name)
        return True

    def _relocate_deferred(self, claim: Claim, able: Sequence[PoolState]) -> None:
        """Free a block for a claim that let others pass, out of what they have left."""
        reserved = self.draft.reserved
        mine = next(((key, one) for key, one in reserved.items() if one.claim == claim.id), None)
        if mine is not None and len(mine[1].block):
            return  # it has a block in another pool, or one that is being emptied
        if self._has_projects and self.limits.is_over_limit(claim):
            return
        if mine is not None:
            self.draft.use(claim.spec, mine[1].pool, -1)
        if self._move(claim, able):
            if mine is not None:
                del reserved[mine[0]]
        elif mine is not None:
            self.draft.use(claim.spec, mine[1].pool)

    def _reserve(self, claim: Claim, able: Iterable[PoolState]) -> bool:
        """Reserve the block for it that is empty soonest."""
        found = self.reservations.find(claim, able)
        if found is not None:
            self.draft.reserve(claim, found.state, found.block, found.until, found.spare)
        return found is not None


def plan_schedule(scene: SchedulingSnapshot, policy: Policy, now: Timestamp) -> SchedulePlan:
    """Which claims get which blocks now, what is reserved for those that wait, and which must yield or move.

    Args:
        scene: pools, pending classes, projects and holders, as the turn sees them.
        policy: the policy in force.
        now: the turn's time, from which the time limits of new grants count.
    """
    draft = PlanDraft(scene, policy, now)
    try:
        _QueuePass(draft).run()
        return draft.plan()
    finally:
        draft.roll_back()
