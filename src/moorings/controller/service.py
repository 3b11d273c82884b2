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
from moorings.controller.personal_runs import PersonalRuns
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
    sees_partition,
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
from moorings.core.model.owners import HIDDEN
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import to_plain_without_defaults
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import SEES_ALL, Visibility, check_may_manage, ownership_of
from moorings.core.placement.fleet import PoolState
from moorings.core.scheduling.explain import StartOption, explain_wait, list_start_options, redact_reason
from moorings.doctor.findings import build_finding_body
from moorings.ports.clock import Clock, Ids
from moorings.ports.engine import Engine
from moorings.ports.environments import RunEnvironments
from moorings.ports.personal import PersonalEngine
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
        environments: as in ``RunService``.
        people: finds the caller with a uid of this machine; None: only holders of access keys are known.
        handed_in, admins_only: as in ``RunService``.
        personal: those of the engines that follow jobs which people submit themselves.
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
        environments: RunEnvironments,
        people: Callable[[int], Awaitable[Caller]] | None = None,
        handed_in: Collection[str] = (),
        admins_only: Collection[str] = (),
        personal: Mapping[str, PersonalEngine] | None = None,
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
        self.personal_runs = PersonalRuns(loop, personal or {})
        self.runs = RunService(
            loop,
            store,
            engines,
            ids,
            self._reasons,
            environments,
            self.personal_runs,
            handed_in=handed_in,
            admins_only=admins_only,
        )
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
        if (since is not None or spec.person) and caller.role is not Role.AGENT:
            what, field = ("since when a claim waits", "waitingSince") if since is not None else ("for whom", "person")
            raise MooringsError(
                "auth.denied",
                f"{caller.subject} ({caller.role}) may not say {what}",
                hint=f"leave {field} out: only a scheduler's agent may say it",
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
            asked = to_plain_without_defaults(replace(spec, person=""))  # Slurm may hide its users from now on
            digest = request_digest({"name": name, "owner": owner, "claim": asked})
            use = IdempotencyRecord(caller.subject, check_idempotency_key(key), digest, claim=ident)
        claim = await self._loop.submit(given, use)
        assert isinstance(claim, Claim)
        return await self._claims.wait_and_view(caller, claim, WAIT_TARGETS[until], wait_s)

    async def release_claim(
        self, caller: Caller, ident: str, *, wait_s: float = 0, only_waiting: bool = False
    ) -> ClaimView:
        """Release a claim, durably; waits up to ``wait_s`` until nothing is left of it.

        With ``only_waiting`` it is released only if it holds nothing; the turn that may grant it decides that, too.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``, ``claim.held_by_run``, ``claim.held``.
        """
        claim = await self._claims.find(ident, self._claims.visible_to(caller))
        check_may_manage(caller, ownership_of(claim), self._loop.fleet.projects, "release a claim")
        if not claim.is_ended:
            why = f"released by {caller.subject}"
            given = CancelPendingClaim(claim.id, why) if only_waiting else ReleaseClaim(claim.id, why)
            released = await self._loop.submit(given)
            claim = released if isinstance(released, Claim) else await self._claims.find_again(claim)
        return await self._claims.wait_and_view(caller, claim, ENDED, wait_s)

    async def renew_claim(self, caller: Caller, ident: str) -> ClaimView:
        """Renew the lease of a claim.

        Raises:
            MooringsError: ``claim.unknown``, ``claim.no_lease``, ``owner.denied``.
        """
        claim = await self._claims.find(ident, self._claims.visible_to(caller))
        check_owner_access(caller, claim.owner, claim.subject, "renew a lease")
        if claim.is_ended:
            raise MooringsError("claim.no_lease", f"claim {claim.id} is {claim.state}; there is nothing to renew")
        renewed = await self._loop.submit(RenewClaim(claim.id))
        assert isinstance(renewed, Claim)
        return self._claims.view(renewed, self._claims.visible_to(caller))

    async def yield_claim(self, caller: Caller, ident: str, why: str) -> ClaimView:
        """Give back the partition of a claim that was asked to yield; the claim then waits in its old place.

        Raises:
            MooringsError: ``claim.unknown``, ``claim.ended``, ``claim.not_asked``, ``claim.held_by_run``,
                ``owner.denied``, ``body.invalid`` (``why`` is too long).
        """
        claim = await self._claims.find(ident, self._claims.visible_to(caller))
        check_owner_access(caller, claim.owner, claim.subject, "yield a claim")
        if len(why) > YIELD_REASON_CHARS_MAX:
            hint = f"use at most {YIELD_REASON_CHARS_MAX} characters"
            raise MooringsError("body.invalid", "the reason is too long", hint=hint)
        yielded = await self._loop.submit(YieldClaim(claim.id, why.strip() or f"yielded by {caller.subject}"))
        assert isinstance(yielded, Claim)
        return self._claims.view(yielded, self._claims.visible_to(caller))

    async def record_checkpoint(self, caller: Caller, ident: str, at: Timestamp | None = None) -> ClaimView:
        """Record that a claim's job has saved a checkpoint at that time, or now.

        Raises:
            MooringsError: ``claim.unknown``, ``owner.denied``.
        """
        claim = await self._claims.find(ident, self._claims.visible_to(caller))
        check_owner_access(caller, claim.owner, claim.subject, "tell of a checkpoint")
        if not claim.is_ended:
            now = self._clock.now()
            seen = await self._loop.submit(
                CheckpointSaved(claim.id, max(Timestamp(0), min(at if at is not None else now, now)))
            )
            claim = seen if isinstance(seen, Claim) else await self._claims.find_again(claim)
        return self._claims.view(claim, self._claims.visible_to(caller))

    async def get_claim(self, caller: Caller, ident: str, *, wait_s: float = 0, until: str = "READY") -> ClaimView:
        """The claim with that id or name; waits up to ``wait_s`` for the state ``until``.

        Raises:
            MooringsError: ``claim.unknown``.
        """
        claim = await self._claims.find(ident, self._claims.visible_to(caller))
        return await self._claims.wait_and_view(caller, claim, WAIT_TARGETS[until], wait_s)

    async def list_claims(
        self,
        caller: Caller,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
    ) -> Sequence[ClaimView]:
        """Claims by arrival; with ``owner_prefix`` no outlines, which would tell the owner."""
        visible = self._claims.visible_to(caller)
        of_people = visible.lists_people and states is not None and not states & ENDED
        outlined = (visible.sees_outlines or of_people) and owner_prefix is None
        found = await asyncio.to_thread(
            self._store.list_claims,
            page,
            states=states,
            owner_prefix=owner_prefix,
            pool=pool,
            visible=SEES_ALL if outlined else visible,
        )
        return [self._claims.view(self._claims.follower.newest_version(claim), visible) for claim in found]

    async def explain_claim(self, caller: Caller, ident: str, *, when: bool = False) -> Explanation:
        """Why a claim is in its state; with ``when`` also when a pending claim would start.

        Raises:
            MooringsError: ``claim.unknown``, ``forecast.busy``.
        """
        visible = self._claims.visible_to(caller)
        claim = await self._claims.find(ident, visible)
        if not claim.is_ended and claim.id not in self._loop.fleet.claims:
            claim = await self._claims.find_again(claim)
        if claim.state is ClaimState.PENDING and claim.id not in self._loop.fleet.claims:
            # The answer to its save was lost: memory is being read again.
            soon = Reason("controller.reloading", "it was saved a moment ago, and the next turn takes it up")
            return Explanation(claim, soon.message, None, (soon,))
        if not visible.includes_claim(claim):
            return self._outline_explanation(claim, visible)
        if claim.state is ClaimState.PENDING:
            wait = explain_wait(self._loop.fleet, claim, self._clock.now(), self._loop.policy, visible)
            if not when:
                return Explanation(claim, wait.reasons[0].message, wait.position, wait.reasons)
            starts = await self.projects.estimate_claim(caller, claim)
            now_is = self._loop.fleet.claims.get(claim.id)
            ways: Sequence[StartOption] = ()
            if now_is is not None and now_is.state is ClaimState.PENDING:  # it may have been granted meanwhile
                ways = list_start_options(self._loop.fleet, self._loop.policy, self._clock.now(), now_is, visible)
            texts = tuple(way.message for way in ways)
            return Explanation(claim, wait.reasons[0].message, wait.position, wait.reasons, starts, texts)
        reason = self._reasons.state_reason(claim, visible)
        reasons = (reason,) if reason is not None else ()
        partition = self._loop.fleet.partitions.get(partition_of(claim))
        shown = replace(claim, reason=redact_reason(self._loop.fleet, claim.reason, visible))
        return Explanation(claim, describe_claim(shown, partition), None, reasons)

    def _outline_explanation(self, claim: Claim, visible: Visibility) -> Explanation:
        view = self._claims.view(claim, visible)
        reasons = (replace(view.reason, message=HIDDEN, hint=""),) if view.reason is not None else ()
        return Explanation(claim, f"claim {claim.id} is {claim.state}", view.position, reasons)

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
        claim = await self._claims.find(ident, self._claims.visible_to(caller))
        check_owner_access(caller, claim.owner, claim.subject, "read a binding")
        return claim

    # -- partitions, pools, devices ----------------------------------------------------------------------------------

    def list_partitions(self, caller: Caller) -> Sequence[PartitionView]:
        """Existing partitions, by pool and address."""
        fleet, visible = self._loop.fleet, self._claims.visible_to(caller)
        found = sorted(fleet.partitions.values(), key=lambda p: (p.pool, p.block.start, p.id))
        return [
            partition_view(fleet, partition, visible)
            for partition in found
            if visible.sees_outlines or sees_partition(fleet, partition, visible)
        ]

    def get_partition(self, caller: Caller, ident: str) -> PartitionView:
        """The partition with that id or name.

        Raises:
            MooringsError: ``partition.unknown``.
        """
        visible = self._claims.visible_to(caller)
        return partition_view(self._loop.fleet, self._find_partition(ident, visible), visible)

    async def reset_partition(self, caller: Caller, ident: str) -> PartitionView:
        """Reset a partition.

        Raises:
            MooringsError: ``partition.unknown``, ``partition.not_active``, ``owner.denied``, ``claim.held_by_run``.
        """
        visible = self._claims.visible_to(caller)
        partition = self._find_partition(ident, visible)
        claim = self._loop.fleet.claims.get(partition.claim)
        if claim is not None:
            check_owner_access(caller, claim.owner, claim.subject, "reset a partition")
        else:
            check_admin(caller, "reset a partition that nobody holds")
        changed = await self._loop.submit(ResetPartition(partition.id))
        assert isinstance(changed, Partition)
        return partition_view(self._loop.fleet, changed, visible)

    def _find_partition(self, ident: str, visible: Visibility) -> Partition:
        """The partition with that id or name, if the caller sees it; its outline is found only by id."""
        fleet = self._loop.fleet
        partition = fleet.find_partition(ident)
        outlined = visible.sees_outlines and partition is not None and partition.id == ident
        if partition is None or not (outlined or sees_partition(fleet, partition, visible)):
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

    def list_devices(self, caller: Caller, page: PageQuery, *, pool: str | None = None) -> Sequence[DeviceView]:
        """Devices by pool (in the order of the pools file) and index.

        Raises:
            MooringsError: ``pool.unknown``, ``device.unknown`` (of ``page.after``).
        """
        states = [self._find_pool(pool)] if pool is not None else list(self._loop.fleet.pools.values())
        visible = self._claims.visible_to(caller)
        return device_views(self._loop.fleet, states, page, self._hardware.unrecorded_names, visible)

    def get_device(self, caller: Caller, ident: str) -> DeviceView:
        """The device with that id.

        Raises:
            MooringsError: ``device.unknown``.
        """
        state, index = self._find_device(ident)
        held, unheld = partitions_by_device(self._loop.fleet, state), self._hardware.unrecorded_names(state.pool.name)
        visible = self._claims.visible_to(caller)
        return device_view(self._loop.fleet, state, index, held.get(index), unheld, visible)

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
        return self.get_device(caller, ident)

    async def resume_device(self, caller: Caller, ident: str) -> DeviceView:
        """Put a device back into service.

        Raises:
            MooringsError: ``auth.denied``, ``device.unknown``, ``state.illegal_move`` (it is in service).
        """
        check_admin(caller, "resume a device")
        state, index = self._find_device(ident)
        await self._loop.submit(ResumeDevice(state.pool.name, index))
        return self.get_device(caller, ident)

    def _find_device(self, ident: str) -> tuple[PoolState, int]:
        name, index = parse_device_id(ident)
        state = self._loop.fleet.pools.get(name)
        if state is None or index >= state.pool.topology.n_devices:
            raise MooringsError("device.unknown", f"there is no device {ident!r}", hint="moor get devices")
        return state, index

    # -- events ------------------------------------------------------------------------------------------------------

    async def list_events(
        self,
        caller: Caller,
        after: Seq,
        limit: int,
        *,
        claim: str | None = None,
        run: str | None = None,
        names: Sequence[str] = (),
        whole: bool = False,
    ) -> Sequence[EventRow]:
        """Rows of the event log that the caller sees now, after a sequence number (0: from the oldest one left).

        With ``whole`` it is an error if events between that number and the first row have left the database.

        Raises:
            MooringsError: ``events.gone``: some of them have left the database.
        """
        visible = self._claims.visible_to(caller)
        rows = await asyncio.to_thread(
            self._store.list_events, after, limit, claim=claim, run=run, names=names, visible=visible
        )
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
