"""The use cases of a controller, one method each; every interface (HTTP, and later others) calls these.

Each checks form and caller (before anything is queued), submits an input to the loop, and returns a view. Nothing is
decided here, and only the loop writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from moorings.controller.findings import Doctor
from moorings.controller.hardware import DriverManager, partition_spec
from moorings.controller.idempotency import check_idempotency_key, request_digest
from moorings.controller.keys import AccessKeyManager
from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.controller.measures import ControllerMetrics, collect_metrics
from moorings.controller.projects import ProjectService
from moorings.controller.queues import QueueService
from moorings.controller.reasons import NO_PARTITION, ReasonService, partition_of
from moorings.controller.run_cases import RunService
from moorings.controller.views import (
    ClaimView,
    DeviceView,
    Explanation,
    PartitionView,
    PoolView,
    describe_claim,
    device_view,
    partition_view,
    partitions_by_device,
    pool_view,
)
from moorings.controller.waiting import Waiters
from moorings.core.access import RUN_OWNER_PREFIXES, Caller, Role, check_admin, check_owner_access
from moorings.core.bindings import Binding
from moorings.core.claims import (
    ENDED,
    Claim,
    ClaimId,
    ClaimSpec,
    ClaimState,
    PartitionId,
    check_new_name,
    check_owner,
    check_spec,
)
from moorings.core.devices import PoolName, parse_device_id
from moorings.core.errors import MooringsError
from moorings.core.explain import explain_wait
from moorings.core.fleet import PoolState
from moorings.core.inputs import (
    CancelPendingClaim,
    CheckpointSaved,
    CreateClaim,
    DrainDevice,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    YieldClaim,
)
from moorings.core.instants import Timestamp
from moorings.core.options import StartOption, list_start_options
from moorings.core.partitions import Partition, PartitionState
from moorings.core.reasons import Reason
from moorings.core.records import to_plain_without_defaults
from moorings.ports.clock import Clock, Ids
from moorings.ports.engine import Engine
from moorings.ports.store import LOG_START, AccessKey, EventRow, IdempotencyRecord, PageQuery, Seq, Store
from moorings.wire.codec import format_time
from moorings.wire.shapes import FindingsBody
from moorings.workloads.appliance import appliance_priority

WAIT_TARGETS: Mapping[str, frozenset[ClaimState]] = {
    "GRANTED": frozenset(ClaimState) - {ClaimState.ANNOUNCED, ClaimState.PENDING},
    "READY": frozenset(ClaimState) - {ClaimState.ANNOUNCED, ClaimState.PENDING, ClaimState.GRANTED},
    "ENDED": ENDED,
}
DRAIN_REASON_CHARS_MAX = 500
YIELD_REASON_CHARS_MAX = 200


class Controller:
    """The use cases of one controller."""

    def __init__(
        self,
        *,
        loop: TurnLoop,
        store: Store,
        hardware: DriverManager,
        engines: Mapping[str, Engine],
        keys: AccessKeyManager,
        clock: Clock,
        ids: Ids,
        installation: str,
    ) -> None:
        self._loop = loop
        self._store = store
        self._hardware = hardware
        self._keys = keys
        self._clock = clock
        self._ids = ids
        self.installation = installation
        self.queues = QueueService(loop, clock)
        self.projects = ProjectService(loop, clock)
        self._reasons = ReasonService(loop, hardware, clock)
        self.runs = RunService(loop, store, engines, ids, self._reasons)
        self._doctor = Doctor(loop, store, clock, hardware.strays)
        self._claim_waits: Waiters[ClaimId] = Waiters()
        loop.listen(self._tell_waiting)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _tell_waiting(self, change: CommittedChange) -> None:
        """Wake the callers that wait for a change; after a reload all, because claims may have ended unseen."""
        self._claim_waits.wake(None if change.reloaded else [claim.id for claim in change.claims])

    async def _claim_until(self, claim: Claim, states: frozenset[ClaimState], wait_s: float) -> Claim:
        """The claim once it is in one of ``states``, or as it is when the time is up."""
        try:
            async with asyncio.timeout(max(wait_s, 0)):
                while claim.state not in states and not claim.ended:
                    held = self._loop.fleet.claims.get(claim.id)
                    if held is None:  # it has ended
                        held = await asyncio.to_thread(self._store.claim, claim.id)
                    if held is not None and held.version > claim.version:
                        claim = held
                    else:
                        await self._claim_waits.next(claim.id)
        except TimeoutError:
            return self._newer(claim)
        return claim

    # -- identity ----------------------------------------------------------------------------------------------------

    async def authenticate(self, secret: str, *, after_expiry: bool = False) -> Caller:
        """The holder of this access key; with ``after_expiry`` also if it has expired.

        Raises:
            MooringsError: ``auth.invalid``, ``auth.expired``.
        """
        return await self._keys.authenticate(secret, after_expiry=after_expiry)

    # -- claims ------------------------------------------------------------------------------------------------------

    async def create_claim(
        self,
        caller: Caller,
        spec: ClaimSpec,
        *,
        name: str | None,
        owner: str | None,
        key: str | None,
        since: Timestamp | None = None,
        wait_s: float = 0,
        until: str = "READY",
    ) -> ClaimView:
        """A new claim, or the earlier one of this caller's ``key``; waits up to ``wait_s`` for the state ``until``.

        Raises:
            MooringsError: ``claim.*``, ``name.invalid``, ``owner.*``, ``pool.unknown``, ``kind.unknown``, ``key.*``,
                ``auth.denied``, ``project.unknown``, ``project.not_member``, ``project.limit``, ``priority.denied``,
                ``quota.waiting``.
        """
        admin = caller.role is Role.ADMIN
        spec = replace(check_spec(spec), priority=appliance_priority(spec.kind, spec.priority, admin=admin))
        owner = check_owner(owner) if owner is not None else f"user/{caller.subject}"
        check_owner_access(caller, owner, "", "claim devices")
        if since is not None and caller.role is not Role.AGENT:
            detail = f"{caller.subject} ({caller.role}) may not say since when a claim waits"
            raise MooringsError(
                "auth.denied", detail, hint="leave waitingSince out: only a scheduler's agent may say it"
            )
        if owner.startswith(RUN_OWNER_PREFIXES):
            raise MooringsError("owner.denied", "claims of local runs are made by the controller", hint="moor run …")
        ident = ClaimId(self._ids.new("claim"))
        given = CreateClaim(
            id=ident,
            name=check_new_name(name) if name is not None else ident,
            owner=owner,
            subject=caller.subject,
            spec=spec,
            role=caller.role,
            since=max(Timestamp(0), since) if since is not None else None,
        )
        use = None
        if key is not None:
            digest = request_digest({"name": name, "owner": owner, "claim": to_plain_without_defaults(spec)})
            use = IdempotencyRecord(caller.subject, check_idempotency_key(key), digest, claim=ident)
        claim = await self._loop.post(given, use)
        assert isinstance(claim, Claim)
        return self._claim_view(await self._claim_until(claim, WAIT_TARGETS[until], wait_s))

    async def release_claim(
        self, caller: Caller, ident: str, *, wait_s: float = 0, only_waiting: bool = False
    ) -> ClaimView:
        """Release a claim, durably; waits up to ``wait_s`` until nothing is left of it.

        With ``only_waiting`` it is released only if it holds nothing; the turn that may grant it decides that, too.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``, ``claim.held_by_run``, ``claim.held``.
        """
        claim = await self._find_claim(ident)
        check_owner_access(caller, claim.owner, claim.subject, "release a claim")
        if not claim.ended:
            why = f"released by {caller.subject}"
            given = CancelPendingClaim(claim.id, why) if only_waiting else ReleaseClaim(claim.id, why)
            released = await self._loop.post(given)
            claim = released if isinstance(released, Claim) else await self._find_again(claim)
        return self._claim_view(await self._claim_until(claim, ENDED, wait_s))

    async def renew_claim(self, caller: Caller, ident: str) -> ClaimView:
        """Renew the lease of a claim.

        Raises:
            MooringsError: ``claim.unknown``, ``claim.no_lease``, ``owner.denied``.
        """
        claim = await self._find_claim(ident)
        check_owner_access(caller, claim.owner, claim.subject, "renew a lease")
        if claim.ended:
            raise MooringsError("claim.no_lease", f"claim {claim.id} is {claim.state}; there is nothing to renew")
        renewed = await self._loop.post(RenewClaim(claim.id))
        assert isinstance(renewed, Claim)
        return self._claim_view(renewed)

    async def yield_claim(self, caller: Caller, ident: str, why: str) -> ClaimView:
        """Give back the partition of a claim that was asked to yield; the claim then waits in its old place.

        Raises:
            MooringsError: ``claim.unknown``, ``claim.ended``, ``claim.not_asked``, ``claim.held_by_run``,
                ``owner.denied``, ``body.invalid`` (``why`` is too long).
        """
        claim = await self._find_claim(ident)
        check_owner_access(caller, claim.owner, claim.subject, "yield a claim")
        if len(why) > YIELD_REASON_CHARS_MAX:
            hint = f"use at most {YIELD_REASON_CHARS_MAX} characters"
            raise MooringsError("body.invalid", "the reason is too long", hint=hint)
        yielded = await self._loop.post(YieldClaim(claim.id, why.strip() or f"yielded by {caller.subject}"))
        assert isinstance(yielded, Claim)
        return self._claim_view(yielded)

    async def checkpoint(self, caller: Caller, ident: str, at: Timestamp | None = None) -> ClaimView:
        """Record that a claim's job has saved a checkpoint at that time, or now.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``.
        """
        claim = await self._find_claim(ident)
        check_owner_access(caller, claim.owner, claim.subject, "tell of a checkpoint")
        if not claim.ended:
            now = self._clock.now()
            seen = await self._loop.post(
                CheckpointSaved(claim.id, max(Timestamp(0), min(at if at is not None else now, now)))
            )
            claim = seen if isinstance(seen, Claim) else await self._find_again(claim)
        return self._claim_view(claim)

    async def get_claim(self, ident: str, *, wait_s: float = 0, until: str = "READY") -> ClaimView:
        """The claim with that id or name; waits up to ``wait_s`` for the state ``until``.

        Raises:
            MooringsError: ``claim.unknown``.
        """
        claim = await self._find_claim(ident)
        if wait_s > 0:
            claim = await self._claim_until(claim, WAIT_TARGETS[until], wait_s)
        return self._claim_view(claim)

    async def list_claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
    ) -> Sequence[ClaimView]:
        """Claims by arrival."""
        found = await asyncio.to_thread(self._store.claims, page, states=states, owner_prefix=owner_prefix, pool=pool)
        return [self._claim_view(self._newer(claim)) for claim in found]

    async def explain_claim(self, ident: str, *, when_for: Caller | None = None) -> Explanation:
        """Why a claim is in its state; with ``when_for``, the caller, also when a pending claim would start.

        Raises:
            MooringsError: ``claim.unknown``, ``forecast.busy``.
        """
        claim = await self._find_claim(ident)
        if not claim.ended and claim.id not in self._loop.fleet.claims:
            claim = await self._find_again(claim)
        if claim.state is ClaimState.PENDING and claim.id in self._loop.fleet.claims:
            wait = explain_wait(self._loop.fleet, claim, self._clock.now(), self._loop.policy)
            if when_for is None:
                return Explanation(claim, wait.reasons[0].message, wait.position, wait.reasons)
            starts = await self.projects.when(when_for, claim)
            now_is = self._loop.fleet.claims.get(claim.id)
            ways: Sequence[StartOption] = ()
            if now_is is not None and now_is.state is ClaimState.PENDING:  # it may have been granted meanwhile
                ways = list_start_options(self._loop.fleet, self._loop.policy, self._clock.now(), now_is)
            texts = tuple(way.message for way in ways)
            return Explanation(claim, wait.reasons[0].message, wait.position, wait.reasons, starts, texts)
        if claim.state is ClaimState.PENDING:  # the answer to its save was lost: memory is being read again
            soon = Reason("controller.reloading", "it was saved a moment ago, and the next turn takes it up")
            return Explanation(claim, soon.message, None, (soon,))
        reason = self._reasons.delay(claim) or claim.reason
        reasons = (reason,) if reason is not None else ()
        return Explanation(
            claim, describe_claim(claim, self._loop.fleet.partitions.get(partition_of(claim))), None, reasons
        )

    async def await_binding(self, caller: Caller, ident: str, wait_s: float) -> None:
        """Return when the claim may have a binding, or never will have, or after ``wait_s``.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``: at once, if the caller may not see the binding.
        """
        await self._claim_until(await self._claim_to_bind(caller, ident), WAIT_TARGETS["READY"], wait_s)

    async def claim_binding(self, caller: Caller, ident: str) -> Binding:
        """The binding for the claim's job; only its owner and admins may see it.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``, ``claim.not_ready``, ``partition.not_active``,
                ``driver.unavailable``.
        """
        claim = await self._claim_to_bind(caller, ident)
        partition = self._loop.fleet.partitions.get(partition_of(claim))
        if claim.state is not ClaimState.READY or partition is None:
            raise MooringsError(
                "claim.not_ready",
                f"claim {claim.id} is {claim.state}",
                hint="wait until it is READY",
                retryable=not claim.ended,
            )
        if partition.state is not PartitionState.ACTIVE:  # the driver may not know of the reset yet
            raise MooringsError(
                "partition.not_active",
                f"partition {partition.name} is {partition.state}",
                hint="wait until it is ACTIVE",
                retryable=True,
            )
        return await self._hardware.drivers[partition.pool].binding(partition_spec(partition, self.installation))

    async def _claim_to_bind(self, caller: Caller, ident: str) -> Claim:
        claim = await self._find_claim(ident)
        check_owner_access(caller, claim.owner, claim.subject, "read a binding")
        return claim

    async def _find_again(self, claim: Claim) -> Claim:
        """A claim that a turn did not know, from the database: it has ended, or another controller made it.

        Raises:
            MooringsError: ``store.fenced``: another controller leads, and nothing was done for the caller here.
        """
        await self._loop.confirm()
        return await self._find_claim(claim.id)

    async def _find_claim(self, ident: str) -> Claim:
        fleet = self._loop.fleet
        claim = fleet.claims.get(ClaimId(ident)) or fleet.claims.get(fleet.names.get(ident, ClaimId("")))
        if claim is None:
            claim = await asyncio.to_thread(self._store.claim, ident[:200])
        if claim is None:
            raise MooringsError("claim.unknown", f"there is no claim {ident[:80]!r}", hint="moor get claims --all")
        return self._newer(claim)

    def _newer(self, claim: Claim) -> Claim:
        """The claim in memory, if that is newer than what was read."""
        held = self._loop.fleet.claims.get(claim.id)
        return held if held is not None and held.version > claim.version else claim

    def _claim_view(self, claim: Claim) -> ClaimView:
        wait = self._reasons.wait(claim)
        reason = wait.reasons[0] if wait is not None else self._reasons.delay(claim) or claim.reason
        return ClaimView(
            claim,
            self._loop.fleet.partitions.get(partition_of(claim)),
            wait.position if wait is not None else None,
            reason,
        )

    # -- partitions, pools, devices ----------------------------------------------------------------------------------

    def list_partitions(self) -> Sequence[PartitionView]:
        """Existing partitions, by pool and address."""
        found = sorted(self._loop.fleet.partitions.values(), key=lambda p: (p.pool, p.block.start, p.id))
        return [partition_view(self._loop.fleet, partition) for partition in found]

    def get_partition(self, ident: str) -> PartitionView:
        """The partition with that id or name.

        Raises:
            MooringsError: ``partition.unknown``.
        """
        return partition_view(self._loop.fleet, self._find_partition(ident))

    async def reset_partition(self, caller: Caller, ident: str) -> PartitionView:
        """Reset a partition.

        Raises:
            MooringsError: ``partition.unknown``, ``partition.not_active``, ``owner.denied``, ``claim.held_by_run``.
        """
        partition = self._find_partition(ident)
        claim = self._loop.fleet.claims.get(partition.claim)
        if claim is not None:
            check_owner_access(caller, claim.owner, claim.subject, "reset a partition")
        else:
            check_admin(caller, "reset a partition that nobody holds")
        changed = await self._loop.post(ResetPartition(partition.id))
        assert isinstance(changed, Partition)
        return partition_view(self._loop.fleet, changed)

    def _find_partition(self, ident: str) -> Partition:
        fleet = self._loop.fleet
        partition = fleet.partitions.get(PartitionId(ident)) or fleet.partitions.get(
            fleet.partition_names.get(ident, NO_PARTITION)
        )
        if partition is None:
            raise MooringsError(
                "partition.unknown", f"there is no partition {ident[:80]!r}", hint="moor get partitions"
            )
        return partition

    def list_pools(self) -> Sequence[PoolView]:
        """Pools, in the order of the pools file."""
        return [pool_view(self._loop.fleet, state) for state in self._loop.fleet.pools.values()]

    def get_pool(self, name: str) -> PoolView:
        """The pool with that name.

        Raises:
            MooringsError: ``pool.unknown``.
        """
        return pool_view(self._loop.fleet, self._find_pool(name))

    def capacity(self, pool: str, size: int) -> int:
        """How many partitions of ``size`` could be formed now, exactly.

        Raises:
            MooringsError: ``pool.unknown``, ``claim.*`` if the pool has no partitions of that size.
        """
        state = self._find_pool(pool)
        never = state.pool.topology.why_not(size, max(size, 1))
        if never is not None:
            raise MooringsError(never.code, f"pool {pool}: {never.message}", hint=never.hint)
        return state.free.count(size)

    def _find_pool(self, name: str) -> PoolState:
        state = self._loop.fleet.pools.get(PoolName(name))
        if state is None:
            known = ", ".join(self._loop.fleet.pools)
            raise MooringsError("pool.unknown", f"there is no pool {name[:80]!r}", hint=f"pools: {known}")
        return state

    def list_devices(self, page: PageQuery, *, pool: str | None = None) -> Sequence[DeviceView]:
        """Devices by pool (in the order of the pools file) and index.

        Raises:
            MooringsError: ``pool.unknown``, ``device.unknown`` (of ``page.after``).
        """
        states = [self._find_pool(pool)] if pool is not None else list(self._loop.fleet.pools.values())
        first = 0
        if page.after is not None:
            name, index = parse_device_id(page.after)
            names = [state.pool.name for state in states]
            if name not in names:
                raise MooringsError("device.unknown", f"there is no device {page.after[:80]!r}")
            states, first = states[names.index(name) :], index + 1
        found: list[DeviceView] = []
        for state in states:
            held = partitions_by_device(self._loop.fleet, state)
            last = min(state.pool.topology.n_devices, first + page.limit - len(found))
            unheld = self._hardware.unheld(state.pool.name)
            found += [device_view(self._loop.fleet, state, at, held.get(at), unheld) for at in range(first, last)]
            first = 0
            if len(found) >= page.limit:
                break
        return found

    def get_device(self, ident: str) -> DeviceView:
        """The device with that id.

        Raises:
            MooringsError: ``device.unknown``.
        """
        state, index = self._find_device(ident)
        held, unheld = partitions_by_device(self._loop.fleet, state), self._hardware.unheld(state.pool.name)
        return device_view(self._loop.fleet, state, index, held.get(index), unheld)

    async def drain_device(self, caller: Caller, ident: str, reason: str) -> DeviceView:
        """Take a device out of service, after the partition it is in (if any) has gone.

        Raises:
            MooringsError: ``auth.denied``, ``device.unknown``, ``body.invalid`` (no reason).
        """
        check_admin(caller, "drain a device")
        state, index = self._find_device(ident)
        if not reason.strip() or len(reason) > DRAIN_REASON_CHARS_MAX:
            raise MooringsError("body.invalid", "a reason is needed", hint="say why, for the admins after you")
        await self._loop.post(DrainDevice(state.pool.name, index, f"{reason.strip()} ({caller.subject})"))
        return self.get_device(ident)

    async def resume_device(self, caller: Caller, ident: str) -> DeviceView:
        """Put a device back into service.

        Raises:
            MooringsError: ``auth.denied``, ``device.unknown``, ``state.illegal_move`` (it is in service).
        """
        check_admin(caller, "resume a device")
        state, index = self._find_device(ident)
        await self._loop.post(ResumeDevice(state.pool.name, index))
        return self.get_device(ident)

    def _find_device(self, ident: str) -> tuple[PoolState, int]:
        name, index = parse_device_id(ident)
        state = self._loop.fleet.pools.get(name)
        if state is None or index >= state.pool.topology.n_devices:
            raise MooringsError("device.unknown", f"there is no device {ident!r}", hint="moor get devices")
        return state, index

    # -- events ------------------------------------------------------------------------------------------------------

    async def list_events(
        self,
        after: Seq,
        limit: int,
        *,
        claim: str | None = None,
        run: str | None = None,
        names: Sequence[str] = (),
        whole: bool = False,
    ) -> Sequence[EventRow]:
        """Rows of the event log after a sequence number (0: from the oldest one left).

        With ``whole`` it is an error if events between that number and the first row have left the database.

        Raises:
            MooringsError: ``events.gone``: some of them have left the database.
        """
        rows = await asyncio.to_thread(self._store.events, after, limit, claim=claim, run=run, names=names)
        if whole and LOG_START < after < self._loop.archived:  # checked after the read: what left meanwhile counts
            raise MooringsError(
                "events.gone",
                f"events {after + 1} to {self._loop.archived} have left the database",
                hint=f"look at what is there now, then go on after {self._loop.archived}; the archives have the others",
            )
        return rows

    async def wait_events(self, after: Seq, timeout_s: float) -> None:
        """Return when the log may have gone beyond ``after``, or the time is up."""
        await self._loop.changed(after, timeout_s)

    def last_seq(self) -> Seq:
        """The last sequence number of the log."""
        return self._loop.seq

    # -- keys --------------------------------------------------------------------------------------------------------

    async def create_key(
        self, caller: Caller, subject: str, role: Role, owner_prefix: str | None, lifetime_s: float | None = None
    ) -> tuple[AccessKey, str]:
        """A new access key and its secret; without ``lifetime_s`` it gets the default lifetime, with 0 none.

        Raises:
            MooringsError: ``auth.denied``, ``key.invalid``.
        """
        check_admin(caller, "make access keys")
        return await asyncio.to_thread(self._keys.create, subject, role, owner_prefix, caller.subject, lifetime_s)

    async def rotate_key(
        self, caller: Caller, secret: str, ident: str, grace_s: float | None = None, lifetime_s: float | None = None
    ) -> tuple[AccessKey, str]:
        """Rotate an access key; returns it and the new secret. ``secret`` is what the caller presented.

        Raises:
            MooringsError: ``auth.denied``, ``key.unknown``, ``key.invalid``, ``key.replaced``.
        """
        return await asyncio.to_thread(self._keys.rotate, ident, caller, secret, grace_s, lifetime_s)

    async def list_keys(self, caller: Caller) -> Sequence[AccessKey]:
        """All access keys, oldest first.

        Raises:
            MooringsError: ``auth.denied``.
        """
        check_admin(caller, "list access keys")
        return await asyncio.to_thread(self._store.access_keys)

    async def revoke_key(self, caller: Caller, ident: str) -> None:
        """Revoke a key.

        Raises:
            MooringsError: ``auth.denied``, ``key.unknown``.
        """
        check_admin(caller, "revoke access keys")
        await asyncio.to_thread(self._keys.revoke, ident, caller.subject)

    # -- health ------------------------------------------------------------------------------------------------------

    def readiness(self) -> Reason | None:
        """Why requests that change something would fail now; None: they would not."""
        if self._loop.problem:
            return Reason("store.unavailable", f"the database cannot be used: {self._loop.problem}")
        return None

    async def findings(self, caller: Caller) -> FindingsBody:
        """The controller's checks of itself, and its time.

        Raises:
            MooringsError: ``auth.denied``.
        """
        check_admin(caller, "look into the controller")
        return FindingsBody(at=format_time(self._clock.now()), items=tuple(await self._doctor.look()))

    def measures(self) -> ControllerMetrics:
        """The metrics of the controller."""
        loop, strays = self._loop, sum(map(len, self._hardware.strays()))
        ready = not loop.problem
        now, policy = self._clock.now(), loop.policy
        return collect_metrics(
            loop.fleet, loop.runs, loop.meters, now, strays=strays, ready=ready, seq=loop.seq, policy=policy
        )
