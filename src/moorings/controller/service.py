"""The use cases of a controller, one method each; every interface (HTTP, and later others) calls these.

Each checks form and caller (before anything is queued), submits an input to the loop, and returns a view. Nothing is
decided here, and only the loop writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from moorings.controller.claim_reader import ClaimReader
from moorings.controller.doctor import Doctor
from moorings.controller.driver_manager import DriverManager, partition_spec
from moorings.controller.idempotency import check_idempotency_key, request_digest
from moorings.controller.keys import AccessKeyManager
from moorings.controller.loop import TurnLoop
from moorings.controller.metrics import ControllerMetrics, collect_metrics
from moorings.controller.projects import ProjectService
from moorings.controller.queues import QueueService
from moorings.controller.reasons import ReasonService, partition_of
from moorings.controller.run_service import RunService
from moorings.controller.views import (
    ClaimView,
    DeviceView,
    Explanation,
    PartitionView,
    PoolView,
    describe_claim,
    device_view,
    device_views,
    partition_view,
    partitions_by_device,
    pool_view,
)
from moorings.core.model.access import RUN_OWNER_PREFIXES, Caller, Role, check_admin, check_owner_access
from moorings.core.model.bindings import Binding
from moorings.core.model.claims import (
    ENDED,
    Claim,
    ClaimId,
    ClaimSpec,
    ClaimState,
    check_new_name,
    check_owner,
    check_spec,
)
from moorings.core.model.devices import PoolName, parse_device_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import (
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
from moorings.core.model.machine import MACHINE_KIND
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import to_plain_without_defaults
from moorings.core.model.timestamps import Timestamp
from moorings.core.placement.fleet import PoolState
from moorings.core.scheduling.explain import StartOption, explain_wait, list_start_options
from moorings.doctor.findings import build_finding_body
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
    """The use cases of one controller.

    Args:
        people: finds the caller with a uid of this machine; None: only holders of access keys are known.
        handed_in: as in ``RunService``.
    """

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
        people: Callable[[int], Awaitable[Caller]] | None = None,
        handed_in: Collection[str] = (),
    ) -> None:
        self._loop = loop
        self._store = store
        self._hardware = hardware
        self._keys = keys
        self._clock = clock
        self._ids = ids
        self._people = people
        self.installation = installation
        self.queues = QueueService(loop, clock)
        self.projects = ProjectService(loop, clock)
        self._reasons = ReasonService(loop, hardware, clock)
        self.runs = RunService(loop, store, engines, ids, self._reasons, handed_in)
        self._doctor = Doctor(loop, store, clock, hardware.stray_partitions)
        self._claims = ClaimReader(loop, store, self._reasons)

    # -- identity ----------------------------------------------------------------------------------------------------

    async def authenticate(self, secret: str, *, after_expiry: bool = False) -> Caller:
        """The holder of this access key; with ``after_expiry`` also if it has expired.

        Raises:
            MooringsError: ``auth.invalid``, ``auth.expired``.
        """
        return await self._keys.authenticate(secret, after_expiry=after_expiry)

    async def identify_person(self, uid: int) -> Caller:
        """The person of this machine with that uid, which the kernel must have said.

        Raises:
            MooringsError: ``auth.denied``: no account that may have jobs; ``auth.missing``: only keys count here.
        """
        if self._people is None:
            raise MooringsError("auth.missing", "the request carries no access key", hint="this controller needs one")
        return await self._people(uid)

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
        spec = replace(check_spec(spec), priority=appliance_priority(spec.kind, spec.priority, is_admin=admin))
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
        claim = await self._loop.submit(given, use)
        assert isinstance(claim, Claim)
        return self._claims.view(await self._claims.follower.wait_for(claim, WAIT_TARGETS[until], wait_s))

    async def release_claim(
        self, caller: Caller, ident: str, *, wait_s: float = 0, only_waiting: bool = False
    ) -> ClaimView:
        """Release a claim, durably; waits up to ``wait_s`` until nothing is left of it.

        With ``only_waiting`` it is released only if it holds nothing; the turn that may grant it decides that, too.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``, ``claim.held_by_run``, ``claim.held``.
        """
        claim = await self._claims.find(ident)
        check_owner_access(caller, claim.owner, claim.subject, "release a claim")
        if not claim.is_ended:
            why = f"released by {caller.subject}"
            given = CancelPendingClaim(claim.id, why) if only_waiting else ReleaseClaim(claim.id, why)
            released = await self._loop.submit(given)
            claim = released if isinstance(released, Claim) else await self._claims.find_again(claim)
        return self._claims.view(await self._claims.follower.wait_for(claim, ENDED, wait_s))

    async def renew_claim(self, caller: Caller, ident: str) -> ClaimView:
        """Renew the lease of a claim.

        Raises:
            MooringsError: ``claim.unknown``, ``claim.no_lease``, ``owner.denied``.
        """
        claim = await self._claims.find(ident)
        check_owner_access(caller, claim.owner, claim.subject, "renew a lease")
        if claim.is_ended:
            raise MooringsError("claim.no_lease", f"claim {claim.id} is {claim.state}; there is nothing to renew")
        renewed = await self._loop.submit(RenewClaim(claim.id))
        assert isinstance(renewed, Claim)
        return self._claims.view(renewed)

    async def yield_claim(self, caller: Caller, ident: str, why: str) -> ClaimView:
        """Give back the partition of a claim that was asked to yield; the claim then waits in its old place.

        Raises:
            MooringsError: ``claim.unknown``, ``claim.ended``, ``claim.not_asked``, ``claim.held_by_run``,
                ``owner.denied``, ``body.invalid`` (``why`` is too long).
        """
        claim = await self._claims.find(ident)
        check_owner_access(caller, claim.owner, claim.subject, "yield a claim")
        if len(why) > YIELD_REASON_CHARS_MAX:
            hint = f"use at most {YIELD_REASON_CHARS_MAX} characters"
            raise MooringsError("body.invalid", "the reason is too long", hint=hint)
        yielded = await self._loop.submit(YieldClaim(claim.id, why.strip() or f"yielded by {caller.subject}"))
        assert isinstance(yielded, Claim)
        return self._claims.view(yielded)

    async def record_checkpoint(self, caller: Caller, ident: str, at: Timestamp | None = None) -> ClaimView:
        """Record that a claim's job has saved a checkpoint at that time, or now.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``.
        """
        claim = await self._claims.find(ident)
        check_owner_access(caller, claim.owner, claim.subject, "tell of a checkpoint")
        if not claim.is_ended:
            now = self._clock.now()
            seen = await self._loop.submit(
                CheckpointSaved(claim.id, max(Timestamp(0), min(at if at is not None else now, now)))
            )
            claim = seen if isinstance(seen, Claim) else await self._claims.find_again(claim)
        return self._claims.view(claim)

    async def get_claim(self, ident: str, *, wait_s: float = 0, until: str = "READY") -> ClaimView:
        """The claim with that id or name; waits up to ``wait_s`` for the state ``until``.

        Raises:
            MooringsError: ``claim.unknown``.
        """
        claim = await self._claims.find(ident)
        if wait_s > 0:
            claim = await self._claims.follower.wait_for(claim, WAIT_TARGETS[until], wait_s)
        return self._claims.view(claim)

    async def list_claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
    ) -> Sequence[ClaimView]:
        """Claims by arrival."""
        found = await asyncio.to_thread(
            self._store.list_claims, page, states=states, owner_prefix=owner_prefix, pool=pool
        )
        return [self._claims.view(self._claims.follower.newest_version(claim)) for claim in found]

    async def explain_claim(self, ident: str, *, when_for: Caller | None = None) -> Explanation:
        """Why a claim is in its state; with ``when_for``, the caller, also when a pending claim would start.

        Raises:
            MooringsError: ``claim.unknown``, ``forecast.busy``.
        """
        claim = await self._claims.find(ident)
        if not claim.is_ended and claim.id not in self._loop.fleet.claims:
            claim = await self._claims.find_again(claim)
        if claim.state is ClaimState.PENDING and claim.id in self._loop.fleet.claims:
            wait = explain_wait(self._loop.fleet, claim, self._clock.now(), self._loop.policy)
            if when_for is None:
                return Explanation(claim, wait.reasons[0].message, wait.position, wait.reasons)
            starts = await self.projects.estimate_claim(when_for, claim)
            now_is = self._loop.fleet.claims.get(claim.id)
            ways: Sequence[StartOption] = ()
            if now_is is not None and now_is.state is ClaimState.PENDING:  # it may have been granted meanwhile
                ways = list_start_options(self._loop.fleet, self._loop.policy, self._clock.now(), now_is)
            texts = tuple(way.message for way in ways)
            return Explanation(claim, wait.reasons[0].message, wait.position, wait.reasons, starts, texts)
        if claim.state is ClaimState.PENDING:  # the answer to its save was lost: memory is being read again
            soon = Reason("controller.reloading", "it was saved a moment ago, and the next turn takes it up")
            return Explanation(claim, soon.message, None, (soon,))
        reason = self._reasons.driver_delay(claim) or claim.reason
        reasons = (reason,) if reason is not None else ()
        return Explanation(
            claim, describe_claim(claim, self._loop.fleet.partitions.get(partition_of(claim))), None, reasons
        )

    async def wait_for_binding(self, caller: Caller, ident: str, wait_s: float) -> None:
        """Return when the claim may have a binding, or never will have, or after ``wait_s``.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``: at once, if the caller may not see the binding.
        """
        await self._claims.follower.wait_for(await self._claim_to_bind(caller, ident), WAIT_TARGETS["READY"], wait_s)

    async def get_binding(self, caller: Caller, ident: str) -> Binding:
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
                retryable=not claim.is_ended,
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
        claim = await self._claims.find(ident)
        check_owner_access(caller, claim.owner, claim.subject, "read a binding")
        return claim

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
        changed = await self._loop.submit(ResetPartition(partition.id))
        assert isinstance(changed, Partition)
        return partition_view(self._loop.fleet, changed)

    def _find_partition(self, ident: str) -> Partition:
        partition = self._loop.fleet.find_partition(ident)
        if partition is None:
            raise MooringsError(
                "partition.unknown", f"there is no partition {ident[:80]!r}", hint="moor get partitions"
            )
        return partition

    def list_pools(self) -> Sequence[PoolView]:
        """Pools, in the order of the pools file; the machine, which has no devices, is only found by its name."""
        states = self._loop.fleet.pools.values()
        return [pool_view(self._loop.fleet, state) for state in states if state.pool.kind != MACHINE_KIND]

    def get_pool(self, name: str) -> PoolView:
        """The pool with that name.

        Raises:
            MooringsError: ``pool.unknown``.
        """
        return pool_view(self._loop.fleet, self._find_pool(name))

    def count_partitions(self, pool: str, size: int) -> int:
        """How many partitions of ``size`` could be formed now, exactly.

        Raises:
            MooringsError: ``pool.unknown``, ``claim.*`` if the pool has no partitions of that size.
        """
        state = self._find_pool(pool)
        never = state.pool.topology.ineligible_reason(size, max(size, 1))
        if never is not None:
            raise MooringsError(never.code, f"pool {pool}: {never.message}", hint=never.hint)
        return state.free.count_blocks(size)

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
        return device_views(self._loop.fleet, states, page, self._hardware.unrecorded_names)

    def get_device(self, ident: str) -> DeviceView:
        """The device with that id.

        Raises:
            MooringsError: ``device.unknown``.
        """
        state, index = self._find_device(ident)
        held, unheld = partitions_by_device(self._loop.fleet, state), self._hardware.unrecorded_names(state.pool.name)
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
        await self._loop.submit(DrainDevice(state.pool.name, index, f"{reason.strip()} ({caller.subject})"))
        return self.get_device(ident)

    async def resume_device(self, caller: Caller, ident: str) -> DeviceView:
        """Put a device back into service.

        Raises:
            MooringsError: ``auth.denied``, ``device.unknown``, ``state.illegal_move`` (it is in service).
        """
        check_admin(caller, "resume a device")
        state, index = self._find_device(ident)
        await self._loop.submit(ResumeDevice(state.pool.name, index))
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
        rows = await asyncio.to_thread(self._store.list_events, after, limit, claim=claim, run=run, names=names)
        if whole and LOG_START < after < self._loop.archived:  # checked after the read: what left meanwhile counts
            raise MooringsError(
                "events.gone",
                f"events {after + 1} to {self._loop.archived} have left the database",
                hint=f"look at what is there now, then go on after {self._loop.archived}; the archives have the others",
            )
        return rows

    async def wait_events(self, after: Seq, timeout_s: float) -> None:
        """Return when the log may have gone beyond ``after``, or the time is up."""
        await self._loop.wait_for_change(after, timeout_s)

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

    def not_ready_reason(self) -> Reason | None:
        """Why requests that change something would fail now; None: they would not."""
        if self._loop.problem:
            return Reason("store.unavailable", f"the database cannot be used: {self._loop.problem}")
        return None

    async def run_doctor(self, caller: Caller) -> FindingsBody:
        """The controller's checks of itself, and its time.

        Raises:
            MooringsError: ``auth.denied``.
        """
        check_admin(caller, "look into the controller")
        return FindingsBody(
            at=format_time(self._clock.now()), items=tuple(map(build_finding_body, await self._doctor.run_checks()))
        )

    def collect_metrics(self) -> ControllerMetrics:
        """The metrics of the controller."""
        loop, strays = self._loop, sum(map(len, self._hardware.stray_partitions()))
        ready = not loop.problem
        now, policy = self._clock.now(), loop.policy
        return collect_metrics(
            loop.fleet, loop.runs, loop.meters, now, strays=strays, ready=ready, seq=loop.seq, policy=policy
        )
