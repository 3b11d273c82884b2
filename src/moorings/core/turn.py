"""One turn: inputs and a fleet in, changes and events out. The whole life of claims and partitions is decided here.

``Turn`` works on an overlay: the fleet is as it was when the turn is done, and the caller applies the changes when the
database holds them. Nothing here waits, fails half way or asks the world; an input that cannot be met is answered with
its error and changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge
from types import TracebackType
from typing import assert_never

from moorings.core import claims, devices, partitions
from moorings.core.announced import Announced, Elsewhere
from moorings.core.claims import (
    BROKEN_BLOCKS_MAX,
    Claim,
    ClaimEvent,
    ClaimId,
    ClaimState,
    PartitionId,
    QueueMode,
)
from moorings.core.devices import Device, DeviceEvent, DeviceState, PoolName
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical
from moorings.core.fleet import (
    Fleet,
    FleetChanges,
    Line,
    Order,
    PoolState,
    add_resources,
    end_of,
    give_back,
    line_of,
    touched,
)
from moorings.core.hardware import Answer, Seen, Verdict
from moorings.core.inputs import (
    CreateClaim,
    DrainDevice,
    DriverAnswered,
    ForeignSeen,
    Input,
    PoolAnswers,
    QueueTold,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
    SetPriority,
    StraySeen,
    WithdrawClaim,
)
from moorings.core.instants import Instant, after
from moorings.core.partitions import Partition, PartitionEvent, PartitionState
from moorings.core.placement import Hold, Trial, trial
from moorings.core.policy import Policy
from moorings.core.queue import Grant, Plan, explain, plan, pools_for
from moorings.core.reasons import Reason
from moorings.core.told import created_data
from moorings.core.topology import Block

_DEVICE_EVENTS = {
    DeviceState.QUARANTINED: "device.quarantined",
    DeviceState.DRAINED: "device.drained",
    DeviceState.IN_SERVICE: "device.resumed",
}
Reply = Claim | Partition | Device | MooringsError | None


class Turn:
    """A turn under way: ``take`` each input, then ``schedule`` once; read ``changes`` and ``events``."""

    def __init__(self, fleet: Fleet, policy: Policy, now: Instant) -> None:
        self.fleet = fleet
        self.policy = policy
        self.now = now
        self.changes = FleetChanges()
        self.events: list[Event] = []
        self.decided = Plan((), ())
        self._names: dict[str, ClaimId | None] = {}
        self._partition_names: dict[str, PartitionId | None] = {}
        self._new: list[ClaimId] = []
        self._arrival = fleet.last_arrival
        self._elsewhere = Elsewhere(fleet.announced, now)
        self._stack = ExitStack()
        self._trials: dict[PoolName, Trial] = {}

    def __enter__(self) -> Turn:
        for name, state in self.fleet.pools.items():
            self._trials[name] = self._stack.enter_context(trial(state.free))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- what the turn sees: its own changes over the fleet's records ------------------------------------------------

    def claim(self, ident: ClaimId) -> Claim | None:
        """The claim as this turn has it."""
        changed = self.changes.claims.get(ident)
        return changed[0] if changed is not None else self.fleet.claims.get(ident)

    def partition(self, ident: PartitionId | None) -> Partition | None:
        """The partition as this turn has it; None once it is removed."""
        if ident is None or ident in self.changes.removed:
            return None
        changed = self.changes.partitions.get(ident)
        return changed[0] if changed is not None else self.fleet.partitions.get(ident)

    def _save_claim(self, claim: Claim, *, new: bool = False) -> Claim:
        before = self.changes.claims.get(claim.id)
        expected = before[1] if before is not None else None if new else self.fleet.claims[claim.id].version
        self.changes.claims[claim.id] = (claim, expected)
        return claim

    def _save_partition(self, partition: Partition, *, new: bool = False) -> Partition:
        before = self.changes.partitions.get(partition.id)
        expected = before[1] if before is not None else None if new else self.fleet.partitions[partition.id].version
        self.changes.partitions[partition.id] = (partition, expected)
        return partition

    def _tell(
        self, name: str, about: Claim | Partition | Device | PoolName, data: Mapping[str, object] | None = None
    ) -> None:
        text = canonical(data) if data else "{}"
        if isinstance(about, Claim):
            event = Event(name=name, at=self.now, claim=about.id, partition=about.partition, pool=about.pool, data=text)
        elif isinstance(about, Partition):
            event = Event(name=name, at=self.now, claim=about.claim, partition=about.id, pool=about.pool, data=text)
        elif isinstance(about, Device):
            event = Event(name=name, at=self.now, pool=about.pool, device=about.id, data=text)
        else:
            event = Event(name=name, at=self.now, pool=about, data=text)
        self.events.append(event)

    # -- inputs ------------------------------------------------------------------------------------------------------

    def take(self, given: Input) -> Reply:
        """Work one input in; what its sender is to be told.

        An error is returned, not raised: the other inputs of the turn go on.
        """
        try:
            return self._handle(given)
        except MooringsError as error:
            return error

    def _handle(self, given: Input) -> Reply:  # noqa: C901 - one case for each kind of input
        match given:
            case CreateClaim():
                return self.create(given)
            case ReleaseClaim():
                return self.release(given)
            case WithdrawClaim():
                return self.withdraw(given)
            case DriverAnswered():
                return self.answered(given)
            case RenewClaim():
                return self.renew(given)
            case SetPriority():
                return self.prioritise(given)
            case ResetPartition():
                return self.reset(given)
            case RetryRemoval():
                return self.retry(given)
            case ForeignSeen():
                self.foreign(given)
            case PoolAnswers():
                self.health(given)
            case QueueTold():
                self._elsewhere.take(given.told, self._started(given.told))
            case StraySeen():
                self._tell("partition.stray_found", given.pool, {"name": given.name})
            case DrainDevice():
                return self.drain(given)
            case ResumeDevice():
                return self.resume(given)
            case _:
                assert_never(given)
        return None

    def create(self, given: CreateClaim) -> Claim:
        pools_for(given.spec, self.fleet.pools)
        if self._names.get(given.name, self.fleet.names.get(given.name)) is not None:
            raise MooringsError(
                "claim.name_taken",
                f"an unended claim is called {given.name!r}",
                hint="choose another name, or wait until that one has ended",
            )
        arrival = self._elsewhere.start(given.owner)
        if arrival is None:
            arrival = self._arrival = Instant(max(self.now, self._arrival + 1))
        lease = after(self.now, given.spec.lease_s) if given.spec.lease_s is not None else None
        claim = Claim(
            id=given.id,
            name=given.name,
            owner=given.owner,
            subject=given.subject,
            spec=given.spec,
            state=ClaimState.PENDING,
            arrival=arrival,
            lease_until=lease,
        )
        self._names[given.name] = claim.id
        self._new.append(claim.id)
        self._tell("claim.created", claim, created_data(claim))
        return self._save_claim(claim, new=True)

    def _started(self, told: Announced) -> Instant | None:
        """Where the last of a queue's claims that wait stands; None: none of them waits."""
        waited = [order[2] for line in self.fleet.lines.values() for order in line]
        claims = filter(None, map(self.claim, (*waited, *self.changes.claims)))
        own = (claim for claim in claims if claim.state is ClaimState.PENDING and told.owns(claim.owner))
        return max((claim.arrival for claim in own), default=None)

    def release(self, given: ReleaseClaim) -> Claim | None:
        claim = self.claim(given.claim)
        if claim is None or claim.ended or claim.state in (ClaimState.RELEASING, ClaimState.YIELDING):
            return claim
        claim = self._step_claim(claim, ClaimEvent.RELEASE, Reason("claim.released", given.why))
        if claim.ended:
            self._tell("claim.cancelled", claim, {"why": given.why})
            return claim
        self._tell("claim.releasing", claim, {"why": given.why})
        partition = self.partition(claim.partition)
        if partition is None:
            return self._freed(claim)
        if partition.state is not PartitionState.REMOVING:
            self._step_partition(partition, PartitionEvent.REMOVE, given.why)
        return claim

    def withdraw(self, given: WithdrawClaim) -> Claim | None:
        claim = self.claim(given.claim)
        if claim is None or claim.ended or claim.state is ClaimState.RELEASING:
            return claim
        if claim.state not in claims.WAITING:
            raise MooringsError(
                "claim.held",
                f"claim {claim.id} is {claim.state}: it does not wait any more",
                hint="release it without onlyWaiting, if its partition is to be removed",
            )
        return self.release(ReleaseClaim(claim.id, given.why))

    def renew(self, given: RenewClaim) -> Claim:
        claim = self.claim(given.claim)
        if claim is None or claim.spec.lease_s is None or claim.ended or claim.state is ClaimState.RELEASING:
            raise MooringsError("claim.no_lease", f"claim {given.claim} has no lease to renew")
        renewed = replace(claim, lease_until=after(self.now, claim.spec.lease_s), version=claim.version + 1)
        self._tell("claim.renewed", renewed)
        return self._save_claim(renewed)

    def prioritise(self, given: SetPriority) -> Claim:
        claim = self.claim(given.claim)
        if claim is None or claim.ended:
            raise MooringsError("claim.ended", f"claim {given.claim} has ended; nothing of it waits")
        if claim.spec.priority == given.priority:
            return claim
        spec = replace(claim.spec, priority=given.priority)
        changed = replace(claim, spec=spec, version=claim.version + 1)
        self._tell("claim.prioritised", changed, {"from": claim.spec.priority, "to": given.priority})
        return self._save_claim(changed)

    def reset(self, given: ResetPartition) -> Partition:
        partition = self.partition(given.partition)
        if partition is None:
            raise MooringsError("partition.unknown", f"there is no partition {given.partition!r}")
        if partition.state is PartitionState.RESETTING:
            return partition
        if partition.state is not PartitionState.ACTIVE:
            raise MooringsError(
                "partition.not_active",
                f"partition {partition.name} is {partition.state}; only an ACTIVE one can be reset",
                retryable=True,
            )
        partition = self._step_partition(partition, PartitionEvent.RESET, "reset was asked for")
        self._tell("partition.reset", partition)
        return partition

    def drain(self, given: DrainDevice) -> Device:
        return self._device_event(given.pool, given.index, DeviceEvent.DRAIN, given.reason)

    def resume(self, given: ResumeDevice) -> Device:
        return self._device_event(given.pool, given.index, DeviceEvent.RESUME, "")

    def foreign(self, given: ForeignSeen) -> None:
        known = self.fleet.pools[given.pool].foreign
        n_devices = self.fleet.pools[given.pool].pool.topology.n_devices
        ordered = sorted(given.blocks.items())  # a driver lists them as it likes (law 9)
        inside = {name: Block.of([i for i in block if i < n_devices]) for name, block in ordered}
        blocks = {name: block for name, block in inside.items() if len(block)}
        if known == blocks:
            return
        self.changes.foreign[given.pool] = blocks
        for name, block in blocks.items():
            if known.get(name) != block:
                self._tell("partition.foreign_seen", given.pool, {"name": name, "devices": str(block)})
                self._occupied(given.pool, name, block)
        for name, block in known.items():
            if name not in blocks:
                self._tell("partition.foreign_gone", given.pool, {"name": name, "devices": str(block)})

    def _occupied(self, pool: PoolName, name: str, block: Block) -> None:
        """Give way to a partition made outside: ours that were about to be made on its devices try elsewhere."""
        free, on_trial = self.fleet.pools[pool].free, self._trials[pool]
        for index in block:
            alone = Block(range(index, index + 1))
            if free.is_free(alone):
                on_trial.take(alone)
        for partition in sorted(self._partitions(), key=lambda one: one.id):  # not in the order of memory (law 9)
            in_the_way = partition.block.overlaps(block) or partition.name == name
            if partition.pool != pool or partition.state is not PartitionState.PROVISIONING or not in_the_way:
                continue
            why = f"partition {name!r} on devices {block} of {pool} was not made for any claim and was there first"
            self._step_partition(partition, PartitionEvent.REMOVE, why)
            claim = self._holder(partition)
            if claim is not None and claim.state is ClaimState.GRANTED:
                self._tell("claim.broken", claim, {"devices": str(partition.block), "why": why})
                self._step_claim(claim, ClaimEvent.BROKE, Reason("claim.broken", f"{why}; it keeps its place"))

    def health(self, given: PoolAnswers) -> None:
        if self.fleet.pools[given.pool].problem == given.problem:
            return
        self.changes.problems[given.pool] = given.problem
        name = "pool.unreachable" if given.problem else "pool.reachable"
        self._tell(name, given.pool, {"problem": given.problem} if given.problem else None)

    def retry(self, given: RetryRemoval) -> Partition | None:
        partition = self.partition(given.partition)
        if partition is not None and partition.state is PartitionState.ERROR and not self._holder(partition):
            return self._step_partition(partition, PartitionEvent.REMOVE, "removal is tried again")
        return partition

    # -- what drivers say --------------------------------------------------------------------------------------------

    def answered(self, given: DriverAnswered) -> Partition | None:
        partition = self.partition(given.partition)
        if partition is None or given.answer.verdict is Verdict.UNAVAILABLE or partition.version != given.version:
            return partition  # nothing is known, or it is about a state that has passed
        handle = {
            PartitionState.PROVISIONING: self._while_provisioning,
            PartitionState.ACTIVE: self._while_active,
            PartitionState.RESETTING: self._while_resetting,
            PartitionState.REMOVING: self._while_removing,
        }.get(partition.state)
        if handle is not None and not _of_another_order(partition.state, given.order):
            handle(partition, given.answer, given.order)
        return self.partition(given.partition)

    def _while_provisioning(self, partition: Partition, answer: Answer, order: str) -> None:
        claim = self._holder(partition)
        if answer.verdict is Verdict.REJECTED:
            self._step_partition(partition, PartitionEvent.REMOVE, f"rejected: {answer.detail}")
            if claim is not None:
                reason = Reason("claim.rejected", f"the driver of {partition.pool} rejected it: {answer.detail}")
                claim = self._step_claim(claim, ClaimEvent.REJECT, reason)
                self._tell("claim.failed", claim, {"why": reason.message})
        elif answer.verdict is Verdict.BROKEN or answer.seen is Seen.ERROR:
            self._broke_before_ready(partition, claim, answer.detail or f"the driver reports ERROR ({order})")
        elif answer.seen is Seen.ACTIVE:
            partition = self._step_partition(partition, PartitionEvent.ACTIVE)
            self._tell("partition.active", partition)
            if claim is not None and claim.state is ClaimState.GRANTED:
                self._tell("claim.ready", self._step_claim(claim, ClaimEvent.READY))

    def _broke_before_ready(self, partition: Partition, claim: Claim | None, detail: str) -> None:
        partition = self._break(partition, detail)
        self._out_of_service(partition, DeviceEvent.BROKE, detail)
        self._step_partition(partition, PartitionEvent.REMOVE, detail)
        if claim is None or claim.state is not ClaimState.GRANTED:
            return
        broken = claim.broken + 1
        if broken >= BROKEN_BLOCKS_MAX:
            reason = Reason(
                "claim.broken",
                f"{broken} blocks broke under it, the last with: {detail}",
                hint="the blocks are out of service now ('moor get devices'); ask again, and tell the admins",
            )
            claim = self._step_claim(replace(claim, broken=broken), ClaimEvent.REJECT, reason)
            self._tell("claim.failed", claim, {"why": reason.message})
            return
        reason = Reason("claim.broken", f"its block {partition.block} broke: {detail}; it keeps its place")
        self._tell("claim.broken", claim, {"devices": str(partition.block), "why": detail})
        self._step_claim(replace(claim, broken=broken), ClaimEvent.BROKE, reason)

    def _while_active(self, partition: Partition, answer: Answer, order: str) -> None:
        if answer.verdict is Verdict.BROKEN or answer.seen is Seen.ERROR:
            detail = answer.detail or "the driver reports ERROR"
            partition = self._break(partition, detail)
            self._out_of_service(partition, DeviceEvent.BROKE, detail)
        elif answer.seen is Seen.ABSENT and order == "list":
            detail = answer.detail or "it vanished from the driver's listings"
            partition = self._break(partition, detail)
        else:
            return
        claim = self._holder(partition)
        if claim is not None and claim.state in (ClaimState.READY, ClaimState.RECLAIMING, ClaimState.MIGRATING):
            reason = Reason(
                "claim.lost",
                f"partition {partition.name} was lost: {detail}",
                hint="start the job again; if it happens again tell the admins, who see more with 'moor doctor'",
            )
            self._tell("claim.lost", self._step_claim(claim, ClaimEvent.LOSE, reason), {"why": detail})

    def _while_resetting(self, partition: Partition, answer: Answer, order: str) -> None:
        if answer.verdict in (Verdict.BROKEN, Verdict.REJECTED) or answer.seen in (Seen.ERROR, Seen.ABSENT):
            self._while_active(partition, replace(answer, seen=Seen.ERROR), order)
        elif answer.seen is Seen.ACTIVE:
            self._tell("partition.active", self._step_partition(partition, PartitionEvent.ACTIVE))

    def _while_removing(self, partition: Partition, answer: Answer, order: str) -> None:
        claim = self._holder(partition)
        if answer.verdict in (Verdict.BROKEN, Verdict.REJECTED) and order == "remove":
            detail = f"it could not be removed: {answer.detail}"
            partition = self._break(partition, detail)
            self._out_of_service(partition, DeviceEvent.REMOVAL_FAILED, detail)
            if claim is not None and claim.state is ClaimState.RELEASING:
                self._freed(claim)
        elif answer.seen is Seen.ABSENT and order == "remove":  # a listing may be bad
            self._gone(partition)
            if claim is not None and claim.state is ClaimState.RELEASING:
                self._freed(claim)

    def _gone(self, partition: Partition) -> None:
        gone = partitions.step(partition, PartitionEvent.GONE, self.now)
        _, expected = self.changes.partitions.pop(partition.id, (gone, self.fleet.partitions[partition.id].version))
        assert expected is not None, "a partition cannot be made and removed in one turn"
        self.changes.removed[partition.id] = expected
        self._partition_names[partition.name] = None
        self._tell("partition.removed", gone, {"devices": str(gone.block)})
        state = self.fleet.pools[partition.pool]
        give_back(self._seen(state), partition.block, self._trials[partition.pool])

    def _seen(self, state: PoolState) -> PoolState:
        """The pool with this turn's changes, over the same free map."""
        name = state.pool.name
        changed = {index: device for (pool, index), device in self.changes.devices.items() if pool == name}
        out = {**state.out, **changed} if changed else state.out
        return replace(
            state,
            out={i: device for i, device in out.items() if device.state is not DeviceState.IN_SERVICE}
            if changed
            else out,
            foreign=self.changes.foreign.get(name, state.foreign),
            used=self._used(state),
            problem=self.changes.problems.get(name, state.problem),
        )

    def _held(self, state: PoolState) -> PoolState:
        """The pool with what this turn has changed of what is held in it, and until when."""
        held: dict[PartitionId, Hold] = {}
        for ident in touched(self.changes):
            partition = self.partition(ident)
            if partition is not None and partition.pool == state.pool.name:
                held[ident] = Hold(partition.block, end_of(partition, self.claim(partition.claim)))
        gone = self.changes.removed.keys() & state.holds.keys()
        if gone or any(state.holds.get(ident) != hold for ident, hold in held.items()):
            kept = {ident: hold for ident, hold in state.holds.items() if ident not in gone}
            return replace(state, holds=kept | held, soonest={})
        name = state.pool.name
        if name in self.changes.foreign or any(pool == name for pool, _ in self.changes.devices):
            return replace(state, soonest={})
        return state

    def _used(self, state: PoolState) -> dict[str, int]:
        """The pool's secondary resources held by claims, as this turn has them."""
        used = dict(state.used)
        for claim, _ in self.changes.claims.values():
            if claim.spec.resources:
                before = self.fleet.claims.get(claim.id)
                add_resources(used, state, before, -1)
                add_resources(used, state, None if claim.ended else claim, 1)
        return used

    # -- scheduling --------------------------------------------------------------------------------------------------

    def lapse(self, since: Instant, in_use: Callable[[ClaimId], bool] = lambda _: False) -> list[Claim]:
        """Release every claim whose lease has run out, but those that are in use; these.

        Args:
            since: from when on owners could renew: while the controller was down, or its database away, no lease runs.
                From ``now`` on, where the time before is in doubt; then leases that run longer than their owners asked
                for, because the clock was set back, are begun anew.
            in_use: whether a job still runs on a claim's partition: it is stopped first (law 3).
        """
        if since >= self.now:
            self._shorten_leases()
            return []
        spared = []
        due = self.fleet.leases[: bisect_left(self.fleet.leases, (Instant(self.now + 1), ClaimId("")))]
        for ident in sorted(ident for _, ident in due):
            claim = self.claim(ident)
            if claim is None or claim.ended or claim.lease_until is None or claim.spec.lease_s is None:
                continue
            if max(claim.lease_until, after(since, claim.spec.lease_s)) > self.now:
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
            if claim.lease_until > after(self.now, claim.spec.lease_s) and claim.state is not ClaimState.RELEASING:
                self.renew(RenewClaim(ident))

    def schedule(self) -> list[tuple[ClaimId, MooringsError]]:
        """Grant what fits; the claims that would not wait and found no room (they leave no trace).

        ``decided`` has the decision then.
        """
        pools = {name: self._held(self._seen(state)) for name, state in self.fleet.pools.items()}
        announced = self._elsewhere.believed()
        self.changes.announced = self._elsewhere.changes
        self.events += self._elsewhere.events
        decided = plan(pools, self._lines(announced), self.policy, self.now, announced)
        for grant in decided.grants:
            self._grant(grant)
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

    def _lines(self, announced: Iterable[Announced] = ()) -> Iterator[Iterator[Claim]]:
        """The queue as this turn has it, line by line, each first to last; then what other queues announced."""
        changed = sorted((claim for claim, _ in self.changes.claims.values()), key=lambda claim: claim.order)
        new: dict[Line, list[Claim]] = {}
        for claim in changed:
            if claim.state is ClaimState.PENDING:
                new.setdefault(line_of(claim.spec), []).append(claim)
        for line, orders in self.fleet.lines.items():
            yield merge(self._unchanged(orders), new.pop(line, ()), key=lambda claim: claim.order)
        yield from map(iter, new.values())
        for told in announced:
            elsewhere: dict[Line, list[Claim]] = {}
            for claim in told.claims():
                elsewhere.setdefault(line_of(claim.spec), []).append(claim)
            yield from map(iter, elsewhere.values())

    def _unchanged(self, orders: Iterable[Order]) -> Iterator[Claim]:
        return (self.fleet.claims[order[2]] for order in orders if order[2] not in self.changes.claims)

    def _grant(self, grant: Grant) -> None:
        claim = self.claim(grant.claim)
        assert claim is not None
        if grant.block is None:
            claim = self._step_claim(replace(claim, pool=grant.pool), ClaimEvent.GRANT)
            self._tell("claim.granted", claim)
            self._tell("claim.ready", self._step_claim(claim, ClaimEvent.READY))
            return
        ident = PartitionId(f"{claim.id}-{claim.attempt}")
        name = partitions.name_for(claim.name, claim.attempt, _Taken(self))
        claim = self._step_claim(replace(claim, pool=grant.pool, partition=ident), ClaimEvent.GRANT)
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
        reason = explain(self.fleet, claim, self.now).reasons[0]
        if reason.code == "queue.next_turn":  # it was so before this turn's grants
            reason = Reason(reason.code, f"waits for {claim.spec.size} devices: others came first")
        detail = reason.message.replace("waits for", "no room for", 1)
        hint = reason.hint or "try again later, or let it wait in the queue"
        return MooringsError("claim.no_room", detail, hint=hint, retryable=True)

    def name_taken(self, name: str) -> bool:
        """Whether a partition that exists has that name, ours or one made outside."""
        held = self._partition_names.get(name, self.fleet.partition_names.get(name))
        foreign = (self.changes.foreign.get(pool, state.foreign) for pool, state in self.fleet.pools.items())
        return held is not None or any(name in blocks for blocks in foreign)

    # -- moves -------------------------------------------------------------------------------------------------------

    def _holder(self, partition: Partition) -> Claim | None:
        """The unended claim whose partition it is."""
        claim = self.claim(partition.claim)
        return claim if claim is not None and claim.partition == partition.id and not claim.ended else None

    def _step_claim(self, claim: Claim, event: ClaimEvent, reason: Reason | None = None) -> Claim:
        moved = claims.step(claim, event, self.now, reason)
        if moved.ended:
            self._names[moved.name] = None
        return self._save_claim(moved)

    def _step_partition(self, partition: Partition, event: PartitionEvent, reason: str = "") -> Partition:
        return self._save_partition(partitions.step(partition, event, self.now, reason))

    def _freed(self, claim: Claim) -> Claim:
        claim = self._step_claim(claim, ClaimEvent.FREED, claim.reason)
        self._tell("claim.released", claim)
        return claim

    def _break(self, partition: Partition, detail: str) -> Partition:
        partition = self._step_partition(partition, PartitionEvent.BREAK, detail)
        self._tell("partition.broken", partition, {"why": detail, "devices": str(partition.block)})
        return partition

    def _out_of_service(self, partition: Partition, event: DeviceEvent, reason: str) -> None:
        for index in partition.block:
            self._device_event(partition.pool, index, event, f"partition {partition.name}: {reason}")

    def _device_event(self, pool: PoolName, index: int, event: DeviceEvent, reason: str) -> Device:
        state = self.fleet.pools.get(pool)
        if state is None or not 0 <= index < state.pool.topology.n_devices:
            raise MooringsError("device.unknown", f"there is no device {devices.device_id(pool, index)}")
        before = self.changes.devices.get((pool, index)) or state.out.get(index)
        before = before or Device(pool, index, DeviceState.IN_SERVICE, "", self.now)
        device = devices.step(before, event, reason, self.now)
        if device != before:
            self.changes.devices[pool, index] = device
            self._tell(_DEVICE_EVENTS[device.state], device, {"why": reason} if reason else None)
            self._try_device(state, device)
        return device

    def _try_device(self, state: PoolState, device: Device) -> None:
        """Show a device's change of service to this turn's plan."""
        alone, on_trial = Block(range(device.index, device.index + 1)), self._trials[device.pool]
        if device.state is not DeviceState.IN_SERVICE:
            if state.free.is_free(alone):
                on_trial.take(alone)
        elif not state.free.is_free(alone) and not any(
            partition.pool == device.pool and device.index in partition.block for partition in self._partitions()
        ):
            give_back(self._seen(state), alone, on_trial)

    def _partitions(self) -> Iterator[Partition]:
        changed = self.changes.partitions
        yield from (partition for partition, _ in changed.values())
        passed = self.changes.removed
        yield from (p for p in self.fleet.partitions.values() if p.id not in changed and p.id not in passed)


class _Taken:
    """The partition names in use, as ``name_for`` asks for them."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._turn.name_taken(name)


def _of_another_order(state: PartitionState, order: str) -> bool:
    """Whether an answer belongs to an order that a later state has overtaken (a late ``create`` while REMOVING)."""
    wanted = {
        PartitionState.PROVISIONING: ("create", "list"),
        PartitionState.ACTIVE: ("list",),
        PartitionState.RESETTING: ("reset", "list"),
        PartitionState.REMOVING: ("remove", "list"),
    }
    return order not in wanted.get(state, ())
