"""The end of a turn: scheduling the queue, and applying the plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

from moorings.core.model import partitions
from moorings.core.model.access import USER_OWNER_PREFIX
from moorings.core.model.claims import Claim, ClaimEvent, ClaimId, ClaimState, PartitionId, QueueMode
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import DefragmentPool, ReleaseClaim, RenewClaim, YieldClaim
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import DefragmentMode
from moorings.core.model.projects import usage_now
from moorings.core.model.queue_reports import QueueReport
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import HOUR_S, SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.core.model.visibility import visible_to_subject
from moorings.core.placement.fleet import changed_partition_ids, expected_release
from moorings.core.placement.free_map import NO_RELEASE, OUT_OF_SERVICE
from moorings.core.placement.pending_classes import ClassKey, PendingClassView, class_key
from moorings.core.placement.plans import Grant, Holder, MovePlan, Reclaim, SchedulingSnapshot, list_holders_of
from moorings.core.placement.release_times import FREE
from moorings.core.scheduling.defragmentation import plan_defragmentation
from moorings.core.scheduling.explain import explain_wait
from moorings.core.scheduling.schedule import plan_schedule
from moorings.core.scheduling.turn_requests import release_claim, renew_claim, yield_claim
from moorings.core.scheduling.turn_state import TurnState

_MOVING = frozenset({ClaimState.RECLAIMING, ClaimState.YIELDING, ClaimState.PENDING})


def expire_leases(turn: TurnState, since: Timestamp, in_use: Callable[[ClaimId], bool]) -> list[Claim]:
    """Release every claim whose lease has expired, except claims in use; returns the latter.

    Args:
        turn: the turn in progress.
        since: from when on owners could renew: leases do not run while the controller or its database is down.
            ``now``, if the time before is in doubt; then leases longer than requested, because the clock was set
            back, are shortened.
        in_use: whether a job still runs on a claim's partition: the job is stopped first (law 3).
    """
    if since >= turn.now:
        _shorten_leases(turn)
        _clamp_future_times(turn)
        return []
    spared = []
    due = turn.fleet.lease_expiries[: bisect_left(turn.fleet.lease_expiries, (Timestamp(turn.now + 1), ClaimId("")))]
    for claim, lease_until, lease_s in _leases(turn, sorted(ident for _, ident in due)):
        if max(lease_until, add_seconds(since, lease_s)) > turn.now:
            continue
        if in_use(claim.id):
            spared.append(claim)
        elif claim.state is not ClaimState.RELEASING:
            turn.emit_event("claim.lapsed", claim)
            release_claim(turn, ReleaseClaim(claim.id, "its lease ran out"))
    return spared


def _leases(turn: TurnState, idents: Iterable[ClaimId]) -> Iterator[tuple[Claim, Timestamp, float]]:
    """Those of the claims that have not ended and have a lease: until when, and its length."""
    for claim in filter(None, map(turn.claim, idents)):
        if not claim.is_ended and claim.lease_until is not None and claim.spec.lease_s is not None:
            yield claim, claim.lease_until, claim.spec.lease_s


def _shorten_leases(turn: TurnState) -> None:
    for claim, lease_until, lease_s in _leases(turn, sorted(ident for _, ident in turn.fleet.lease_expiries)):
        if lease_until > add_seconds(turn.now, lease_s) and claim.state is not ClaimState.RELEASING:
            renew_claim(turn, RenewClaim(claim.id))


def _clamp_future_times(turn: TurnState) -> None:
    """After the clock was set back, keep minimum run times and yield deadlines from growing."""
    latest = add_seconds(turn.now, turn.policy.yield_s)
    for ident in sorted({partition.claim for partition in turn.list_partitions()}):
        claim = turn.claim(ident)
        if claim is None or claim.is_ended:
            continue
        ready_at, until = claim.ready_at, claim.asked_until
        if ready_at is not None and ready_at > turn.now:
            ready_at = turn.now
        if claim.state is ClaimState.RECLAIMING and until is not None and until > latest:
            until = latest
        if (ready_at, until) != (claim.ready_at, claim.asked_until):
            turn.save_claim(replace(claim, ready_at=ready_at, asked_until=until, version=claim.version + 1))


def schedule_queue(turn: TurnState, in_use: Callable[[ClaimId], bool]) -> list[tuple[ClaimId, MooringsError]]:
    """Grant what fits; returns the claims that would not wait and did not fit (they leave no trace).

    Afterwards ``decided`` has the decision.

    Args:
        turn: the turn in progress, with all inputs handled.
        in_use: whether a job of ours runs on a claim's partition: the job is stopped first (law 3).
    """
    for ident in filter(lambda ident: not in_use(ident), _overdue_yields(turn)):
        yield_claim(turn, YieldClaim(ident, "its time to yield is over"))
    announced = turn.queue_reports.unexpired_reports()
    turn.changes.queue_reports = turn.queue_reports.changes
    turn.events += turn.queue_reports.events
    decided = plan_schedule(build_snapshot(turn, announced), turn.policy, turn.now)
    for ident, cell in decided.adopted:
        _set_guaranteed_block(turn, ident, cell)
    for grant in decided.grants:
        _grant(turn, grant)
    for reclaim in decided.reclaims:
        _reclaim(turn, reclaim)
    refused = [
        (ident, _refuse(turn, ident))
        for ident in turn.new_claim_ids
        if (claim := turn.changes.claims[ident][0]).state is ClaimState.PENDING and claim.spec.queue is QueueMode.NEVER
    ]
    if decided.grants or decided.reservations != turn.fleet.reserved_blocks:
        turn.changes.reserved_blocks = decided.reservations
    if decided.offers != turn.fleet.offers:
        turn.changes.offers = decided.offers
    turn.plan = decided
    return refused


def build_snapshot(turn: TurnState, announced: Sequence[QueueReport] = ()) -> SchedulingSnapshot:
    """The input of the plan, as this turn sees it."""
    _update_release_times(turn)
    projects = turn.projects
    pools = {name: turn.current_pool(state) for name, state in turn.fleet.pools.items()}
    tenants = cache(partial(_list_holders, turn))  # computed on first use
    moves_left = 0
    movable = resumable = frozenset[PoolName]()
    if turn.policy.defragment is DefragmentMode.ON:
        moves_left = max(0, turn.policy.moves_per_hour - len(_recent_moves(turn)))
        ours = frozenset(name for name, state in pools.items() if not state.foreign_blocks)
        movable = ours - {one.pool for one in tenants() if not (one.is_movable or one.is_leaving)}
        resumable = ours - {one.pool for one in tenants() if not (one.is_resumable or one.is_leaving)}
    return SchedulingSnapshot(
        pools,
        _pending_classes(turn, announced),
        announced,
        projects,
        _usage_by_weight(turn) if projects else {},
        tenants,
        _moving_claims(turn),
        moves_left,
        movable,
        resumable,
    )


def _update_release_times(turn: TurnState) -> None:
    """Set the release times that this turn has changed."""
    for name, blocks in turn.changes.foreign.items():
        state = turn.fleet.pools[name]
        for index in {i for block in (*blocks.values(), *state.foreign_blocks.values()) for i in block}:
            _update_device(turn, name, index)
    for ident in sorted(turn.changes.removed_partitions):
        gone = turn.fleet.partitions[ident]
        turn.release_times[gone.pool].put(gone.block, FREE)
        _update_unusable(turn, gone)
    for ident in sorted(changed_partition_ids(turn.changes)):
        partition = turn.partition(ident)
        if partition is not None:
            turn.release_times[partition.pool].put(partition.block, _expected_release(turn, partition))
            _update_unusable(turn, partition)
    for pool, index in sorted(turn.changes.devices):
        _update_device(turn, pool, index)


def _expected_release(turn: TurnState, partition: Partition) -> Timestamp:
    until = expected_release(partition, turn.claim(partition.claim))
    return NO_RELEASE if 0 < until <= turn.now else until  # it has passed


def _update_unusable(turn: TurnState, partition: Partition) -> None:
    unusable = turn.current_pool(turn.fleet.pools[partition.pool]).unusable
    for index in unusable.intersection(partition.block) if unusable else ():
        _update_device(turn, partition.pool, index)


def _update_device(turn: TurnState, pool: PoolName, index: int) -> None:
    state, until = turn.current_pool(turn.fleet.pools[pool]), FREE
    for partition in turn.list_partitions():
        if partition.pool == pool and index in partition.block:
            until = _expected_release(turn, partition)
    if any(index in block for block in state.foreign_blocks.values()):
        until = NO_RELEASE
    turn.release_times[pool].put(Block.single(index), OUT_OF_SERVICE if index in state.out_of_service else until)


def _list_holders(turn: TurnState) -> list[Holder]:
    return list_holders_of(turn.list_partitions(), turn.claim)


def _moving_claims(turn: TurnState) -> list[Claim]:
    """The claims that were asked to move and have not resumed yet."""
    changed = (ident for ident, (claim, _) in turn.changes.claims.items() if claim.kept is not None)
    found = filter(None, map(turn.claim, sorted({*turn.fleet.moving_claims, *changed})))
    return [claim for claim in found if claim.kept is not None and claim.state in _MOVING]


def _recent_moves(turn: TurnState) -> tuple[Timestamp, ...]:
    """When claims were asked to move, within the last hour."""
    return tuple(at for at in turn.changes.move_times or turn.fleet.move_times if 0 <= turn.now - at < HOUR_S * SECOND)


def _usage_by_weight(turn: TurnState) -> dict[str, float]:
    """Of each project, its usage divided by its weight, with present use."""
    known = {**turn.fleet.usage, **turn.changes.usage}
    held = ((one.project, len(one.block), one.ready_at) for one in _list_holders(turn) if one.ready_at is not None)
    return turn.projects.by_weight(usage_now(known.values(), held, turn.now, turn.policy.half_life_s))


def _overdue_yields(turn: TurnState) -> list[ClaimId]:
    """The claims of users, not of jobs, that were asked to yield and missed the deadline.

    A user who makes a preemptible claim has agreed to that; the end of a job is reported by its engine.
    """
    found = (claim for claim in map(turn.claim, sorted(turn.fleet.claims_asked_to_yield)) if claim is not None)
    return [
        claim.id
        for claim in found
        if claim.state is ClaimState.RECLAIMING
        and claim.owner.startswith(USER_OWNER_PREFIX)
        and claim.asked_until is not None
        and claim.asked_until <= turn.now
    ]


def _pending_classes(
    turn: TurnState, announced: Sequence[QueueReport] = ()
) -> Iterator[tuple[ClassKey, PendingClassView]]:
    """The pending classes as this turn sees them; then the announced jobs of other queues."""
    projects, changed = turn.projects, turn.changes.claims
    new: dict[ClassKey, list[Claim]] = {}
    for claim, _ in changed.values():
        if claim.state is ClaimState.PENDING:
            new.setdefault(class_key(claim, projects), []).append(claim)
    if turn.changes.projects:  # pending classes depend on projects
        for claim in turn.fleet.pending_claims():
            if claim.id not in changed:
                new.setdefault(class_key(claim, projects), []).append(claim)
    else:
        for key, line in turn.fleet.pending_classes.items():
            yield key, PendingClassView(line, turn.fleet.claims, changed, new.pop(key, ()))
    yield from ((key, PendingClassView(None, {}, {}, added)) for key, added in new.items())
    for report in announced:
        elsewhere: dict[ClassKey, list[Claim]] = {}
        for claim in report.to_claims():
            spec = replace(claim.spec, project=projects.resolve(claim.spec.project, claim.owner))
            claim = replace(claim, spec=spec) if spec.project != claim.spec.project else claim
            elsewhere.setdefault(class_key(claim, projects), []).append(claim)
        yield from ((key, PendingClassView(None, {}, {}, added)) for key, added in elsewhere.items())


def _set_guaranteed_block(turn: TurnState, ident: ClaimId, cell: Block | None) -> None:
    claim = turn.claim(ident)
    assert claim is not None
    covered = turn.save_claim(replace(claim, cell=cell, version=claim.version + 1))
    turn.emit_event("claim.covered", covered, {"cell": str(cell) if cell is not None else None})


def _reclaim(turn: TurnState, reclaim: Reclaim) -> None:
    """Ask a claim to yield."""
    claim, by = turn.claim(reclaim.claim), turn.claim(reclaim.for_claim) or _find_queued_job(turn, reclaim.for_claim)
    assert claim is not None
    until = add_seconds(turn.now, turn.policy.yield_s)
    whom = f"{by.name} of project {by.spec.project}" if by is not None else reclaim.for_claim or "larger partitions"
    if reclaim.move_target is None:
        why = f"its devices were lent and are needed for {whom}; it keeps its place and goes on later"
    else:
        why = f"it makes room for {whom} and goes on at once, on devices {reclaim.move_target.block}"
        turn.changes.move_times = (*_recent_moves(turn), turn.now)
    claim = replace(claim, asked_until=until, kept=reclaim.move_target)
    beneficiary = (reclaim.for_claim,) if reclaim.for_claim else ()
    claim = turn.step_claim(claim, ClaimEvent.RECLAIM, Reason("claim.reclaiming", why, beneficiary, until))
    to = str(reclaim.move_target.block) if reclaim.move_target is not None else None
    payload = {"for": reclaim.for_claim or None, "until": until, "to": to}
    turn.emit_event("claim.reclaiming", claim, payload)


def defragment(turn: TurnState, given: DefragmentPool) -> MovePlan:
    """Ask claims to move, on an admin's order; no more in an hour than the policy allows."""
    claim = turn.claim(given.claim) if given.claim is not None else None
    left = max(0, turn.policy.moves_per_hour - len(_recent_moves(turn)))
    found = plan_defragmentation(
        given, claim, build_snapshot(turn), turn.fleet.reserved_blocks, turn.policy, turn.now, left
    )
    for move in found.moves:
        _reclaim(turn, move)
    return found


def _find_queued_job(turn: TurnState, ident: ClaimId) -> Claim | None:
    """A job that waits in another scheduler's queue, with its resolved project."""
    claim = next(
        (one for report in turn.queue_reports.unexpired_reports() for one in report.to_claims() if one.id == ident),
        None,
    )
    if claim is None:
        return None
    project = turn.projects.resolve(claim.spec.project, claim.owner)
    return replace(claim, spec=replace(claim.spec, project=project))


def _grant(turn: TurnState, grant: Grant) -> None:
    claim = turn.claim(grant.claim)
    assert claim is not None
    if grant.block is None:
        claim = turn.step_claim(replace(claim, pool=grant.pool, kept=None), ClaimEvent.GRANT)
        turn.emit_event("claim.granted", claim)
        turn.emit_event("claim.ready", turn.step_claim(claim, ClaimEvent.READY))
        return
    ident = PartitionId(f"{claim.id}-{claim.attempt}")
    name = partitions.unique_partition_name(claim.name, claim.attempt, _UsedNames(turn))
    held = replace(claim, pool=grant.pool, partition=ident, cell=grant.cell, kept=None)
    claim = turn.step_claim(held, ClaimEvent.GRANT)
    partition = Partition(
        id=ident,
        name=name,
        claim=claim.id,
        pool=grant.pool,
        block=grant.block,
        gcds=claim.spec.gcds,
        replicas_per_gcd=claim.spec.replicas_per_gcd,
        state=PartitionState.PROVISIONING,
        since=turn.now,
    )
    turn.partition_names[name] = ident
    turn.savepoints[grant.pool].allocate(grant.block)
    turn.save_partition(partition, new=True)
    turn.emit_event("claim.granted", claim, {"devices": str(grant.block), "name": name})


def _refuse(turn: TurnState, ident: ClaimId) -> MooringsError:
    claim, _ = turn.changes.claims.pop(ident)
    turn.claim_ids_by_name[claim.name] = None
    turn.events[:] = [event for event in turn.events if event.claim != ident]
    visible = visible_to_subject(claim.subject, turn.projects)
    reason = explain_wait(turn.fleet, claim, turn.now, turn.policy, visible).reasons[0]
    if reason.code == "queue.next_turn":  # it was true before this turn's grants
        reason = Reason(reason.code, f"waits for {claim.spec.size} devices: others came first")
    detail = reason.message.replace("waits for", "no room for", 1)
    hint = reason.hint or "try again later, or let it wait in the queue"
    return MooringsError("claim.no_room", detail, hint=hint, retryable=True)


class _UsedNames:
    """The names of all partitions, ours and foreign, as ``unique_partition_name`` needs them."""

    def __init__(self, turn: TurnState) -> None:
        self._turn = turn

    def __contains__(self, name: object) -> bool:
        turn = self._turn
        assert isinstance(name, str)
        held = turn.partition_names.get(name, turn.fleet.partition_ids_by_name.get(name))
        foreign = (turn.changes.foreign.get(pool, state.foreign_blocks) for pool, state in turn.fleet.pools.items())
        return held is not None or any(name in blocks for blocks in foreign)
