"""The end of a turn: scheduling the queue, and applying the plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from moorings.core import partitions
from moorings.core.announced import QueueReport
from moorings.core.claims import Claim, ClaimEvent, ClaimId, ClaimState, PartitionId, QueueMode
from moorings.core.defragment import plan_defragmentation
from moorings.core.demands import InputTurn
from moorings.core.devices import PoolName
from moorings.core.ends import FREE
from moorings.core.errors import MooringsError
from moorings.core.explain import explain_wait
from moorings.core.fleet import changed_partition_ids, expected_release
from moorings.core.inputs import DefragmentPool, ReleaseClaim, RenewClaim, YieldClaim
from moorings.core.instants import SECOND, Timestamp, add_seconds
from moorings.core.lines import USER_OWNER_PREFIX, ClassKey, PendingClassView, class_key
from moorings.core.partitions import Partition, PartitionState
from moorings.core.placement import NO_RELEASE, OUT_OF_SERVICE
from moorings.core.plans import Grant, Holder, MovePlan, Reclaim, SchedulingSnapshot, list_holders_of
from moorings.core.policy import DefragmentMode
from moorings.core.projects import decayed_usage
from moorings.core.queue import plan_schedule
from moorings.core.reasons import Reason
from moorings.core.topology import Block

HOUR_S = 3600.0
_MOVING = frozenset({ClaimState.RECLAIMING, ClaimState.YIELDING, ClaimState.PENDING})


class ScheduleTurn(InputTurn):
    """The part of a turn that serves the queue."""

    def lapse(self, since: Timestamp, in_use: Callable[[ClaimId], bool] = lambda _: False) -> list[Claim]:
        """Release every claim whose lease has expired, except claims in use; returns the latter.

        Args:
            since: from when on owners could renew: leases do not run while the controller or its database is down.
                ``now``, if the time before is in doubt; then leases longer than requested, because the clock was set
                back, are shortened.
            in_use: whether a job still runs on a claim's partition: the job is stopped first (law 3).
        """
        if since >= self.now:
            self._shorten_leases()
            self._begin_anew()
            return []
        spared = []
        due = self.fleet.leases[: bisect_left(self.fleet.leases, (Timestamp(self.now + 1), ClaimId("")))]
        for ident in sorted(ident for _, ident in due):
            claim = self.claim(ident)
            if claim is None or claim.ended or claim.lease_until is None or claim.spec.lease_s is None:
                continue
            if max(claim.lease_until, add_seconds(since, claim.spec.lease_s)) > self.now:
                continue
            if in_use(ident):
                spared.append(claim)
            elif claim.state is not ClaimState.RELEASING:
                self._tell("claim.lapsed", claim)
                self.release(ReleaseClaim(ident, "its lease ran out"))
        return spared

    def _shorten_leases(self) -> None:
        for ident in sorted(ident for _, ident in self.fleet.leases):
            claim = self.claim(ident)
            if claim is None or claim.ended or claim.lease_until is None or claim.spec.lease_s is None:
                continue
            if (
                claim.lease_until > add_seconds(self.now, claim.spec.lease_s)
                and claim.state is not ClaimState.RELEASING
            ):
                self.renew(RenewClaim(ident))

    def _begin_anew(self) -> None:
        """After the clock was set back, keep minimum run times and yield deadlines from growing."""
        latest = add_seconds(self.now, self.policy.yield_s)
        for ident in sorted({partition.claim for partition in self._partitions()}):
            claim = self.claim(ident)
            if claim is None or claim.ended:
                continue
            ready_at, until = claim.ready_at, claim.asked_until
            if ready_at is not None and ready_at > self.now:
                ready_at = self.now
            if claim.state is ClaimState.RECLAIMING and until is not None and until > latest:
                until = latest
            if (ready_at, until) != (claim.ready_at, claim.asked_until):
                self._save_claim(replace(claim, ready_at=ready_at, asked_until=until, version=claim.version + 1))

    def schedule(self, in_use: Callable[[ClaimId], bool] = lambda _: False) -> list[tuple[ClaimId, MooringsError]]:
        """Grant what fits; returns the claims that would not wait and did not fit (they leave no trace).

        Afterwards ``decided`` has the decision.

        Args:
            in_use: whether a job of ours runs on a claim's partition: the job is stopped first (law 3).
        """
        for ident in filter(lambda ident: not in_use(ident), self._overdue()):
            self.give_way(YieldClaim(ident, "its time to yield is over"))
        announced = self._elsewhere.believed()
        self.changes.announced = self._elsewhere.changes
        self.events += self._elsewhere.events
        decided = plan_schedule(self.scene(announced), self.policy, self.now)
        for ident, cell in decided.adopted:
            self._cover(ident, cell)
        for grant in decided.grants:
            self._grant(grant)
        for reclaim in decided.reclaims:
            self._reclaim(reclaim)
        refused = [
            (ident, self._refuse(ident))
            for ident in self._new
            if (claim := self.changes.claims[ident][0]).state is ClaimState.PENDING
            and claim.spec.queue is QueueMode.NEVER
        ]
        if decided.grants or decided.reservations != self.fleet.reservations:
            self.changes.reservations = decided.reservations
        if decided.offers != self.fleet.offers:
            self.changes.offers = decided.offers
        self.decided = decided
        return refused

    def scene(self, announced: Sequence[QueueReport] = ()) -> SchedulingSnapshot:
        """The input of the plan, as this turn sees it."""
        self._expect()
        projects = self.projects
        pools = {name: self._seen(state) for name, state in self.fleet.pools.items()}
        tenants = _LazyHolders(self._tenants)
        moves_left = 0
        movable = resumable = frozenset[PoolName]()
        if self.policy.defragment is DefragmentMode.ON:
            moves_left = max(0, self.policy.moves_per_hour - len(self._moved()))
            ours = frozenset(name for name, state in pools.items() if not state.foreign)
            movable = ours - {one.pool for one in tenants() if not (one.movable or one.leaving)}
            resumable = ours - {one.pool for one in tenants() if not (one.resumable or one.leaving)}
        return SchedulingSnapshot(
            pools,
            self._lines(announced),
            announced,
            projects,
            self._shares() if projects else {},
            tenants,
            self._kept(),
            moves_left,
            movable,
            resumable,
        )

    def _expect(self) -> None:
        """Set the release times that this turn has changed."""
        for name, blocks in self.changes.foreign.items():
            state = self.fleet.pools[name]
            for index in {i for block in (*blocks.values(), *state.foreign.values()) for i in block}:
                self._expect_device(name, index)
        for ident in sorted(self.changes.removed):
            gone = self.fleet.partitions[ident]
            self._ends[gone.pool].put(gone.block, FREE)
            self._expect_out(gone)
        for ident in sorted(changed_partition_ids(self.changes)):
            partition = self.partition(ident)
            if partition is not None:
                until = expected_release(partition, self.claim(partition.claim))
                self._ends[partition.pool].put(partition.block, NO_RELEASE if 0 < until <= self.now else until)
                self._expect_out(partition)
        for pool, index in sorted(self.changes.devices):
            self._expect_device(pool, index)

    def _expect_out(self, partition: Partition) -> None:
        state = self._seen(self.fleet.pools[partition.pool])
        if state.out or state.foreign:
            for index in partition.block:
                if index in state.out or any(index in block for block in state.foreign.values()):
                    self._expect_device(partition.pool, index)

    def _expect_device(self, pool: PoolName, index: int) -> None:
        state = self._seen(self.fleet.pools[pool])
        alone = Block(range(index, index + 1))
        until = FREE
        for partition in self._partitions():
            if partition.pool == pool and index in partition.block:
                until = expected_release(partition, self.claim(partition.claim))
                until = NO_RELEASE if 0 < until <= self.now else until
        if any(index in block for block in state.foreign.values()):
            until = NO_RELEASE
        self._ends[pool].put(alone, OUT_OF_SERVICE if index in state.out else until)

    def _tenants(self) -> list[Holder]:
        return list_holders_of(self._partitions(), self.claim)

    def _kept(self) -> list[Claim]:
        """The claims that were asked to move and have not resumed yet."""
        found = (claim for claim in map(self.claim, sorted(self._moving())) if claim is not None and not claim.ended)
        return [claim for claim in found if claim.kept is not None and claim.state in _MOVING]

    def _moving(self) -> set[ClaimId]:
        changed = (ident for ident, (claim, _) in self.changes.claims.items() if claim.kept is not None)
        return {*self.fleet.moving, *changed}

    def _moved(self) -> tuple[Timestamp, ...]:
        """When claims were asked to move, within the last hour."""
        return tuple(at for at in self.changes.moved or self.fleet.moved if 0 <= self.now - at < HOUR_S * SECOND)

    def _shares(self) -> dict[str, float]:
        """Of each project, its usage divided by its weight, with present use."""
        half_life_s = self.policy.half_life_s
        used: dict[str, float] = {}
        for name, known in sorted({**self.fleet.usage, **self.changes.usage}.items()):
            used[name] = float(decayed_usage(known, self.now, half_life_s))
        for tenant in self._tenants():
            if tenant.since is not None:
                used[tenant.project] = used.get(tenant.project, 0.0) + len(tenant.block) * max(
                    0, self.now - tenant.since
                )
        projects = self.projects
        weights = {name: project.weight for name, project in projects.by_name.items()}
        return {name: amount / weights.get(name, 1.0) for name, amount in used.items()}

    def _overdue(self) -> list[ClaimId]:
        """The claims of users, not of jobs, that were asked to yield and missed the deadline.

        A user who makes a preemptible claim has agreed to that; the end of a job is reported by its engine.
        """
        found = (claim for claim in map(self.claim, sorted(self.fleet.asked)) if claim is not None)
        return [
            claim.id
            for claim in found
            if claim.state is ClaimState.RECLAIMING
            and claim.owner.startswith(USER_OWNER_PREFIX)
            and claim.asked_until is not None
            and claim.asked_until <= self.now
        ]

    def _lines(self, announced: Sequence[QueueReport] = ()) -> Iterator[tuple[ClassKey, PendingClassView]]:
        """The pending classes as this turn sees them; then the announced jobs of other queues."""
        projects, changed = self.projects, self.changes.claims
        new: dict[ClassKey, list[Claim]] = {}
        for claim, _ in changed.values():
            if claim.state is ClaimState.PENDING:
                new.setdefault(class_key(claim, projects), []).append(claim)
        if self.changes.projects:  # pending classes depend on projects
            for claim in self.fleet.waiting():
                if claim.id not in changed:
                    new.setdefault(class_key(claim, projects), []).append(claim)
        else:
            for key, line in self.fleet.lines.items():
                yield key, PendingClassView(line, self.fleet.claims, changed, new.pop(key, ()))
        yield from ((key, PendingClassView(None, {}, {}, added)) for key, added in new.items())
        for report in announced:
            elsewhere: dict[ClassKey, list[Claim]] = {}
            for claim in report.claims():
                spec = replace(claim.spec, project=projects.resolve(claim.spec.project, claim.owner))
                claim = replace(claim, spec=spec) if spec.project != claim.spec.project else claim
                elsewhere.setdefault(class_key(claim, projects), []).append(claim)
            yield from ((key, PendingClassView(None, {}, {}, added)) for key, added in elsewhere.items())

    def _cover(self, ident: ClaimId, cell: Block | None) -> None:
        claim = self.claim(ident)
        assert claim is not None
        covered = self._save_claim(replace(claim, cell=cell, version=claim.version + 1))
        self._tell("claim.covered", covered, {"cell": str(cell) if cell is not None else None})

    def _reclaim(self, reclaim: Reclaim) -> None:
        """Ask a claim to yield."""
        claim, by = self.claim(reclaim.claim), self.claim(reclaim.by) or self._announced_job(reclaim.by)
        assert claim is not None
        until = add_seconds(self.now, self.policy.yield_s)
        whom = f"{by.name} of project {by.spec.project}" if by is not None else reclaim.by or "larger partitions"
        if reclaim.to is None:
            why = f"its devices were lent and are needed for {whom}; it keeps its place and goes on later"
        else:
            why = f"it makes room for {whom} and goes on at once, on devices {reclaim.to.block}"
            self.changes.moved = (*self._moved(), self.now)
        claim = replace(claim, asked_until=until, kept=reclaim.to)
        whose = (reclaim.by,) if reclaim.by else ()
        claim = self._step_claim(claim, ClaimEvent.RECLAIM, Reason("claim.reclaiming", why, whose, until))
        to = str(reclaim.to.block) if reclaim.to is not None else None
        payload = {"for": reclaim.by or None, "until": until, "to": to}
        self._tell("claim.reclaiming", claim, payload)

    def make_room(self, given: DefragmentPool) -> MovePlan:
        """Ask claims to move, on an admin's order; no more in an hour than the policy allows."""
        claim = self.claim(given.claim) if given.claim is not None else None
        left = max(0, self.policy.moves_per_hour - len(self._moved()))
        found = plan_defragmentation(given, claim, self.scene(), self.fleet.reservations, self.policy, self.now, left)
        for move in found.moves:
            self._reclaim(move)
        return found

    def _announced_job(self, ident: ClaimId) -> Claim | None:
        """A job that waits in another scheduler's queue, with its resolved project."""
        claim = next((one for report in self._elsewhere.believed() for one in report.claims() if one.id == ident), None)
        if claim is None:
            return None
        project = self.projects.resolve(claim.spec.project, claim.owner)
        return replace(claim, spec=replace(claim.spec, project=project))

    def _grant(self, grant: Grant) -> None:
        claim = self.claim(grant.claim)
        assert claim is not None
        if grant.block is None:
            claim = self._step_claim(replace(claim, pool=grant.pool, kept=None), ClaimEvent.GRANT)
            self._tell("claim.granted", claim)
            self._tell("claim.ready", self._step_claim(claim, ClaimEvent.READY))
            return
        ident = PartitionId(f"{claim.id}-{claim.attempt}")
        name = partitions.unique_partition_name(claim.name, claim.attempt, _UsedNames(self))
        held = replace(claim, pool=grant.pool, partition=ident, cell=grant.cell, kept=None)
        claim = self._step_claim(held, ClaimEvent.GRANT)
        partition = Partition(
            id=ident,
            name=name,
            claim=claim.id,
            pool=grant.pool,
            block=grant.block,
            gcds=claim.spec.gcds,
            replicas_per_gcd=claim.spec.replicas_per_gcd,
            state=PartitionState.PROVISIONING,
            since=self.now,
        )
        self._partition_names[name] = ident
        self._trials[grant.pool].take(grant.block)
        self._save_partition(partition, new=True)
        self._tell("claim.granted", claim, {"devices": str(grant.block), "name": name})

    def _refuse(self, ident: ClaimId) -> MooringsError:
        claim, _ = self.changes.claims.pop(ident)
        self._names[claim.name] = None
        self.events = [event for event in self.events if event.claim != ident]
        reason = explain_wait(self.fleet, claim, self.now, self.policy).reasons[0]
        if reason.code == "queue.next_turn":  # it was true before this turn's grants
            reason = Reason(reason.code, f"waits for {claim.spec.size} devices: others came first")
        detail = reason.message.replace("waits for", "no room for", 1)
        hint = reason.hint or "try again later, or let it wait in the queue"
        return MooringsError("claim.no_room", detail, hint=hint, retryable=True)

    def name_taken(self, name: str) -> bool:
        """Whether an existing partition has that name, ours or a foreign one."""
        held = self._partition_names.get(name, self.fleet.partition_names.get(name))
        foreign = (self.changes.foreign.get(pool, state.foreign) for pool, state in self.fleet.pools.items())
        return held is not None or any(name in blocks for blocks in foreign)


class _LazyHolders:
    """The holders, computed once on first use."""

    def __init__(self, find: Callable[[], list[Holder]]) -> None:
        self._find = find
        self._found: list[Holder] | None = None

    def __call__(self) -> list[Holder]:
        if self._found is None:
            self._found = self._find()
        return self._found


class _UsedNames:
    """The partition names in use, as ``unique_partition_name`` needs them."""

    def __init__(self, turn: ScheduleTurn) -> None:
        self._turn = turn

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._turn.name_taken(name)
