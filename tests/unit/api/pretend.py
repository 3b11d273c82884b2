"""A controller that keeps everything in dictionaries: the interface of the use cases, without any of their sense.

It lets these tests look at HTTP alone. What the real one answers is tested with the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from moorings.controller.metrics import ControllerMetrics, Counters, collect_metrics
from moorings.controller.views import (
    ClaimView,
    DeviceView,
    EstimateView,
    Explanation,
    MovesView,
    PartitionView,
    PoolView,
    RunView,
    WhatIfView,
)
from moorings.core.forecast.whatif import PolicyComparison, StartComparison, YieldCount
from moorings.core.model.access import Caller, Role, check_admin
from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId, PoolBlock
from moorings.core.model.devices import Device, DeviceId, DeviceState, PoolName, parse_device_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import UNOWNED, Event
from moorings.core.model.inputs import DefragmentPool
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, Projects, check_deletable
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.core.scheduling.quotas import ProjectQuota
from moorings.ports.store import AccessKey, ApplianceJobQuery, EventRow, PageQuery, Seq
from moorings.workloads.jobs import JobSpec, summarize_job
from moorings.workloads.labels import apply_label_changes
from moorings.workloads.run_turn import RunRegistry
from moorings.workloads.runs import Run, RunId, RunPause, RunState, Submitter

START = Timestamp(1_700_000_000_000_000)
ADMIN, USER = "moor_admin_secret", "moor_ann_secret"
KEYS = {
    ADMIN: Caller("root", Role.ADMIN, "", "admin"),
    USER: Caller("ann", Role.USER, "user/ann", "ann"),
}


class PretendController:
    installation = "inst-1"

    def __init__(self) -> None:
        self.keys = dict(KEYS)
        self.expired: set[str] = set()
        self.claims: dict[str, Claim] = {}
        self.used: dict[tuple[str, str], str] = {}
        self.runs = PretendRuns(self)
        self.personal_runs = SimpleNamespace(engines=("slurm",))
        self.projects = PretendProjects(self)
        self.out: dict[str, Device] = {}
        self.rows: list[EventRow] = []
        self.unready: Reason | None = None
        self.seen: list[tuple[Any, ...]] = []
        self.output: list[bytes] = [b"[0] step 1\n", b"[1] step 1\n"]
        self.endless = False
        self.pool = Pool(PoolName("pod16"), "ipu", "simulated", PowerOfTwo(1, 16, 16), (("memory", 1 << 30),))
        self.people: dict[int, Caller] = {}
        self.waiting: list[asyncio.Event] = []
        self.waits_begun = asyncio.Event()
        self.waits_given_up = asyncio.Event()
        self.reads = 0
        self.failing: MooringsError | None = None
        self.meters = Counters()

    # -- what a test does to it ----------------------------------------------------------------------------------------

    def tell(self, name: str, **about: str) -> Seq:
        """Put one row into the log, and wake who waits."""
        seq = Seq(len(self.rows) + 1)
        self.rows.append(EventRow(seq, Event(name=name, at=START, ownership=UNOWNED, **about)))
        for event in self.waiting:
            event.set()
        return seq

    async def _news(self) -> None:
        event = asyncio.Event()
        self.waiting.append(event)
        self.waits_begun.set()
        try:
            await event.wait()
        except asyncio.CancelledError:
            self.waits_given_up.set()
            raise
        finally:
            self.waiting.remove(event)

    # -- identity ------------------------------------------------------------------------------------------------------

    async def authenticate(self, secret: str, *, after_expiry: bool = False) -> Caller:
        if secret not in self.keys:
            raise MooringsError("auth.invalid", "the access key is not valid")
        if secret in self.expired and not after_expiry:
            raise MooringsError("auth.expired", "the access key has expired")
        return self.keys[secret]

    async def identify_person(self, uid: int) -> Caller:
        if uid not in self.people:
            raise MooringsError("auth.denied", f"there is no account with uid {uid}")
        return self.people[uid]

    # -- claims --------------------------------------------------------------------------------------------------------

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
        self.seen.append((spec, name, owner, key, since, wait_s, until))
        if key is not None and (caller.subject, key) in self.used:
            return self._view(self.claims[self.used[caller.subject, key]])
        ident = ClaimId(f"claim-{len(self.claims) + 1:012}")
        self.claims[ident] = Claim(
            id=ident,
            name=name or ident,
            owner=owner or f"user/{caller.subject}",
            subject=caller.subject,
            spec=spec,
            state=ClaimState.PENDING,
            arrival=START if since is None else since,
        )
        if key is not None:
            self.used[caller.subject, key] = ident
        if wait_s:
            await self._wait(wait_s)
        return self._view(self.claims[ident])

    async def _wait(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._news()
        except TimeoutError:
            pass

    def grant(self, ident: str) -> None:
        claim = self.claims[ident]
        self.claims[ident] = replace(
            claim,
            state=ClaimState.READY,
            pool=PoolName("pod16"),
            partition=PartitionId(f"part-{ident}"),
            granted_at=START,
            ready_at=Timestamp(START + 1),
        )
        self.tell("claim.ready", claim=ident)

    def _view(self, claim: Claim) -> ClaimView:
        if claim.partition is None:
            waits = claim.state is ClaimState.PENDING
            reason = Reason("claim.no_room", "there is no room", ("claim-x",), Timestamp(START + 5), "wait")
            return ClaimView(claim, None, 1 if waits else None, reason if waits else None)
        return ClaimView(claim, self._partition(claim), None, None)

    def _partition(self, claim: Claim) -> Partition:
        assert claim.partition is not None
        number = list(self.claims).index(claim.id)
        return Partition(
            id=claim.partition,
            name=claim.name,
            claim=claim.id,
            pool=PoolName("pod16"),
            block=Block(range(number * claim.spec.size, (number + 1) * claim.spec.size)),
            gcds=claim.spec.gcds,
            replicas_per_gcd=claim.spec.replicas_per_gcd,
            state=PartitionState.ACTIVE,
            since=START,
        )

    def _claim(self, ident: str) -> Claim:
        for claim in self.claims.values():
            if ident in (claim.id, claim.name):
                return claim
        raise MooringsError("claim.unknown", f"there is no claim {ident!r}")

    async def release_claim(
        self, caller: Caller, ident: str, *, wait_s: float = 0, only_waiting: bool = False
    ) -> ClaimView:
        claim = self._claim(ident)
        if only_waiting and claim.state is not ClaimState.PENDING:
            raise MooringsError("claim.held", f"claim {ident} is {claim.state}")
        self.claims[claim.id] = replace(claim, state=ClaimState.RELEASED, partition=None, ended_at=START)
        return self._view(self.claims[claim.id])

    async def renew_claim(self, caller: Caller, ident: str) -> ClaimView:
        claim = self._claim(ident)
        if claim.spec.lease_s is None:
            raise MooringsError("claim.no_lease", f"claim {ident} has no lease")
        self.claims[claim.id] = replace(claim, lease_until=Timestamp(START + 60_000_000))
        return self._view(self.claims[claim.id])

    async def get_claim(self, caller: Caller, ident: str, *, wait_s: float = 0, until: str = "READY") -> ClaimView:
        claim = self._claim(ident)
        if wait_s and claim.state is ClaimState.PENDING:
            await self._wait(wait_s)
        return self._view(self.claims[claim.id])

    async def list_claims(
        self,
        caller: Caller,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
    ) -> Sequence[ClaimView]:
        self.seen.append((page, states, owner_prefix, pool))
        found = [
            claim
            for claim in self.claims.values()
            if (states is None or claim.state in states) and claim.owner.startswith(owner_prefix or "")
        ]
        return [self._view(claim) for claim in found if claim.id > (page.after or "")][: page.limit]

    async def yield_claim(self, caller: Caller, ident: str, why: str) -> ClaimView:
        claim = self._claim(ident)
        self.seen.append(("yield", why))
        if claim.state is not ClaimState.RECLAIMING:
            raise MooringsError("claim.not_asked", f"claim {ident} is {claim.state}")
        self.claims[claim.id] = replace(claim, state=ClaimState.YIELDING)
        return self._view(self.claims[claim.id])

    async def record_checkpoint(self, caller: Caller, ident: str, at: Timestamp | None = None) -> ClaimView:
        claim = self._claim(ident)
        self.seen.append(("checkpoint", at))
        return self._view(claim)

    async def explain_claim(self, caller: Caller, ident: str, *, when: bool = False) -> Explanation:
        claim = self._claim(ident)
        if self.endless:
            await self._news()
        starts = EstimateView(Timestamp(START + 60_000_000)) if when else None
        return Explanation(claim, "it waits", 1, (Reason("claim.no_room", "there is no room"),), starts)

    async def wait_for_binding(self, caller: Caller, ident: str, wait_s: float) -> None:
        self.seen.append(("binding", ident, wait_s))

    async def get_binding(self, caller: Caller, ident: str) -> Binding:
        gcd = GcdBinding(0, (DeviceId("pod16:0"),), "p_gcd0_ipuof.conf", "{}", {"A": "b"})
        return Binding(self._claim(ident).name, {"IPUOF_VIPU_API_HOST": "vipu"}, (gcd,))

    # -- partitions, pools, devices ------------------------------------------------------------------------------------

    def list_partitions(self, caller: Caller) -> Sequence[PartitionView]:
        held = [claim for claim in self.claims.values() if claim.partition is not None]
        return [PartitionView(self._partition(claim), claim.owner, "ipu") for claim in held]

    def get_partition(self, caller: Caller, ident: str) -> PartitionView:
        for view in self.list_partitions(caller):
            if ident in (view.partition.id, view.partition.name):
                return view
        raise MooringsError("partition.unknown", f"there is no partition {ident!r}")

    async def reset_partition(self, caller: Caller, ident: str) -> PartitionView:
        view = self.get_partition(caller, ident)
        return replace(view, partition=replace(view.partition, state=PartitionState.RESETTING))

    def list_pools(self) -> Sequence[PoolView]:
        return [self.get_pool("pod16")]

    def get_pool(self, name: str) -> PoolView:
        if name != "pod16":
            raise MooringsError("pool.unknown", f"there is no pool {name!r}")
        return PoolView(self.pool, 12, 0, 8, 1, 1, {1: 12, 8: 1}, reachable=True, problem="")

    def count_partitions(self, pool: str, size: int) -> int:
        return self.get_pool(pool).available.get(size, 0)

    def list_devices(self, caller: Caller, page: PageQuery, *, pool: str | None = None) -> Sequence[DeviceView]:
        first = 0 if page.after is None else parse_device_id(page.after)[1] + 1
        return [self.get_device(caller, f"pod16:{index}") for index in range(first, min(16, first + page.limit))]

    def get_device(self, caller: Caller, ident: str) -> DeviceView:
        pool, index = parse_device_id(ident)
        device = self.out.get(ident) or Device(pool, index, DeviceState.IN_SERVICE, "", Timestamp(0))
        in_service = device.state is DeviceState.IN_SERVICE
        return DeviceView(device, "ipu", 0, in_service=in_service, partition=None, claim=None, owner=None)

    async def drain_device(self, caller: Caller, ident: str, reason: str) -> DeviceView:
        check_admin(caller, "drain a device")
        pool, index = parse_device_id(ident)
        self.out[ident] = Device(pool, index, DeviceState.DRAINED, reason, START)
        return self.get_device(caller, ident)

    async def resume_device(self, caller: Caller, ident: str) -> DeviceView:
        check_admin(caller, "resume a device")
        self.out.pop(ident, None)
        return self.get_device(caller, ident)

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def _chunks(self, task: int | None, follow: bool) -> AsyncIterator[bytes]:
        for rank, chunk in enumerate(self.output):
            if task in (None, rank):
                yield chunk
        if follow and self.endless:
            await self._news()
            yield b"[0] step 2\n"

    # -- events --------------------------------------------------------------------------------------------------------

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
        self.reads += bool(limit)
        if self.failing is not None:
            raise self.failing

        def wanted(row: EventRow) -> bool:
            name = row.event.name
            named = not names or any(
                name == each or (each.endswith(".*") and name.startswith(each[:-1])) for each in names
            )
            return named and claim in (None, row.event.claim) and run in (None, row.event.run)

        return [row for row in self.rows[after:] if wanted(row)][:limit]

    async def wait_events(self, after: Seq, timeout_s: float) -> None:
        if len(self.rows) <= after:
            await self._wait(timeout_s)

    def last_seq(self) -> Seq:
        return Seq(len(self.rows))

    # -- keys and health -----------------------------------------------------------------------------------------------

    async def create_key(
        self, caller: Caller, subject: str, role: Role, owner_prefix: str | None, lifetime_s: float | None = None
    ) -> tuple[AccessKey, str]:
        check_admin(caller, "make access keys")
        secret = f"moor_{subject}_secret"
        expires_at = None if lifetime_s is None else add_seconds(START, lifetime_s)
        prefix = owner_prefix or f"user/{subject}"
        self.keys[secret] = Caller(subject, role, prefix, subject, expires_at)
        return AccessKey(subject, subject, role, prefix, "digest", START, expires_at=expires_at), secret

    async def rotate_key(
        self, caller: Caller, secret: str, ident: str, grace_s: float | None = None, lifetime_s: float | None = None
    ) -> tuple[AccessKey, str]:
        self.seen.append(("rotate", ident, secret, grace_s, lifetime_s))
        key = AccessKey(ident, caller.subject, caller.role, caller.owner_prefix, "new", START, rotated_at=START)
        return replace(
            key, previous_digest="digest", previous_valid_until=add_seconds(START, grace_s or 0)
        ), f"moor_{ident}_new"

    async def list_keys(self, caller: Caller) -> Sequence[AccessKey]:
        check_admin(caller, "list access keys")
        return [AccessKey(k.key_id, k.subject, k.role, k.owner_prefix, "digest", START) for k in self.keys.values()]

    async def revoke_key(self, caller: Caller, ident: str) -> None:
        check_admin(caller, "revoke access keys")
        for secret, known in list(self.keys.items()):
            if known.key_id == ident:
                del self.keys[secret]
                return
        raise MooringsError("key.unknown", f"there is no access key {ident!r}")

    def not_ready_reason(self) -> Reason | None:
        return self.unready

    def collect_metrics(self) -> ControllerMetrics:
        return collect_metrics(
            Fleet([self.pool]), RunRegistry(), self.meters, START, strays=0, ready=not self.unready, seq=7
        )


class PretendRuns:
    def __init__(self, whole: PretendController) -> None:
        self._whole = whole
        self.by_id: dict[str, Run] = {}
        self.jobs: dict[str, JobSpec] = {}

    async def create_run(
        self,
        caller: Caller,
        job: JobSpec,
        *,
        engine: str = "local",
        within: str | None = None,
        key: str | None = None,
        resume: str | None = None,
        resume_from: str | None = None,
        spool_entry: str | None = None,
        spool_entries: tuple[str, ...] = (),
        submitter: Submitter | None = None,
        token_digests: tuple[str, ...] = (),
    ) -> RunView:
        self._whole.seen.append((job, engine, key) if within is None else (job, engine, key, within))
        ident = RunId(f"run-{len(self.by_id) + 1:012}")
        self.by_id[ident] = Run(
            id=ident,
            job=summarize_job(job),
            engine=engine,
            subject=caller.subject,
            claim=ClaimId("claim-1"),
            state=RunState.WAITING,
            created_at=START,
            labels=job.labels,
        )
        self.jobs[ident] = job
        return replace(self._view(ident), position=1, reason=Reason("claim.no_room", "there is no room"))

    async def get_run(self, caller: Caller, ident: str, *, wait_s: float = 0) -> RunView:
        if ident not in self.by_id:
            raise MooringsError("run.unknown", f"there is no run {ident!r}")
        if wait_s:
            await self._whole._wait(wait_s)
        return self._view(ident)

    def _view(self, ident: str) -> RunView:
        return RunView(self.by_id[ident], None, None, None, None, job=self.jobs[ident])

    async def list_runs(
        self,
        caller: Caller,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        array: str | None = None,
    ) -> Sequence[RunView]:
        found = [run for run in self.by_id.values() if states is None or run.state in states]
        found = [run for run in found if array is None or (run.job.array is not None and run.job.array.id == array)]
        return [self._view(run.id) for run in found if run.id > (page.after or "")][: page.limit]

    async def cancel_run(self, caller: Caller, ident: str, *, wait_s: float = 0) -> RunView:
        view = await self.get_run(caller, ident)
        self.by_id[ident] = replace(
            view.run, state=RunState.CANCELLED, ended_at=START, exit_code=143, task_codes=(143, None)
        )
        return self._view(ident)

    async def pause_run(
        self, caller: Caller, ident: str, *, save_timeout_s: float | None = None, wait_s: float = 0
    ) -> RunView:
        view = await self.get_run(caller, ident)
        self._whole.seen.append(("pause", ident, save_timeout_s, wait_s))
        pause = RunPause(caller.subject, START, 60.0, 0)
        self.by_id[ident] = replace(view.run, state=RunState.PAUSED, attempt=1, pause=pause)
        return self._view(ident)

    async def resume_run(self, caller: Caller, ident: str, *, resume_from: str | None = None) -> RunView:
        view = await self.get_run(caller, ident)
        self._whole.seen.append(("resume", ident, resume_from))
        self.by_id[ident] = replace(view.run, state=RunState.WAITING, pause=None)
        return self._view(ident)

    async def logs(
        self, caller: Caller, ident: str, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        await self.get_run(caller, ident)
        return self._whole._chunks(task, follow)

    async def list_run_heads(
        self,
        caller: Caller,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        part: ApplianceJobQuery | None = None,
    ) -> Sequence[RunView]:
        if part is not None:
            self._whole.seen.append(part)  # type: ignore[arg-type]
        return await self.list_runs(caller, page, states=states, subject=subject)

    async def label_run(self, caller: Caller, ident: str, changes: Mapping[str, str | None]) -> RunView:
        run = (await self.get_run(caller, ident)).run
        self.by_id[ident] = replace(run, labels=apply_label_changes(run.labels, changes))
        return await self.get_run(caller, ident)

    async def set_run_priority(self, caller: Caller, ident: str, priority: int) -> RunView:
        run = (await self.get_run(caller, ident)).run
        self.by_id[ident] = replace(run, job=replace(run.job, priority=priority))
        return await self.get_run(caller, ident)


class PretendProjects:
    def __init__(self, whole: PretendController) -> None:
        self._whole = whole
        self.known = Projects()

    def list_projects(self, caller: Caller) -> Sequence[Project]:
        return list(self.known.by_name.values())

    def knows_people(self, caller: Caller, project: Project) -> bool:
        return caller.role is Role.ADMIN

    def get_project(self, caller: Caller, name: str) -> Project:
        project = self.known.get(name)
        if project is None:
            raise self.known.unknown_error(name)
        return project

    async def set_project(self, caller: Caller, project: Project, version: int | None) -> Project:
        check_admin(caller, "change projects")
        self._whole.seen.append((project, version))
        self.known = self.known.with_project(project)
        return project

    async def delete_project(self, caller: Caller, name: str) -> None:
        check_admin(caller, "delete projects")
        check_deletable(name, self.known)
        self.known = self.known.without(name)

    def list_quotas(self, caller: Caller) -> Sequence[ProjectQuota]:
        return [
            ProjectQuota(project=name, pool=PoolName("pod16"), blocks=((4, 2),), held=4, used_device_hours=1.23456)
            for name in self.known.by_name
        ]

    async def estimate(self, caller: Caller, spec: ClaimSpec) -> EstimateView:
        self._whole.seen.append(("estimate", spec))
        if self._whole.endless:
            await self._whole._news()
        return EstimateView(None, why="1 claim that holds devices has no time limit")

    async def defragment(self, caller: Caller, order: DefragmentPool, *, dry_run: bool) -> MovesView:
        if not dry_run:
            check_admin(caller, "move claims")
        self._whole.seen.append((order, dry_run))
        held = next(iter(self._whole.claims.values()))
        spot = PoolBlock(PoolName("pod16"), Block.parse("8-15"))
        return MovesView(spot, 480.0, ((held, Block.parse("8-11"), Block.parse("0-3")),))

    async def what_if(self, caller: Caller, other: Policy) -> WhatIfView:
        self._whole.seen.append(("whatif", other))
        if self._whole.endless:
            await self._whole._news()
        held = next(iter(self._whole.claims.values()))
        later = Timestamp(START + 60_000_000)
        changed = StartComparison(held.id, held.spec.size, None, later)
        found = PolicyComparison((changed,), (0, 0), (0, 1), ((), (YieldCount(held.id, 0, 1),)), (0.5, 0.75), 60.0)
        return WhatIfView(Timestamp(START), found, {held.id: held})
