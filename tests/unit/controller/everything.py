"""A log with every input, every event of a turn and every field that a log keeps: names in it are for ever.

Its data stands in ``released``: ``NAME.jsonl`` is the log, ``NAME.json`` its pools file and what the log holds, of each
field a value that is not its default, of each choice every member. Classes and fields may be renamed: a log that is not
replayed to the byte, or a name that is written no more, makes ``test_replay`` fail. The story is a fixed script: chance
would leave something out. With each release freeze another log::

    python -m tests.unit.controller.everything NAME
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from types import NoneType, UnionType
from typing import Final, NewType, Union, get_args, get_origin, get_type_hints

from moorings.controller.replay import TURN_EVENT
from moorings.controller.rewind_recovery import REWIND_EVENT, RecoveredState, StartedRun, UnrecordedRun, plan_recovery
from moorings.controller.turn_record import INPUTS, TurnContext, VolatileState
from moorings.core.model.access import Role
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimSpec, PartitionId, QueueMode
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.events import EVENTS, Event
from moorings.core.model.inputs import (
    CancelPendingClaim,
    CheckpointSaved,
    CreateClaim,
    DefragmentPool,
    DeleteProject,
    DrainDevice,
    DriverResultReceived,
    ForeignPartitionsListed,
    PoolReachability,
    QueueReported,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
    SetPriority,
    SetProject,
    StrayPartitionFound,
    YieldClaim,
)
from moorings.core.model.machine import machine_pool
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.pools import parse_pools
from moorings.core.model.projects import Project, ProjectShare, UserLimit
from moorings.core.model.queue_reports import QueuedJob, QueueReport
from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool
from moorings.core.placement.fleet import FleetChanges
from moorings.ports.store import Epoch, Seq
from moorings.workloads.appliance import APPLIANCE_KIND, ApplianceJobType, WorkflowPart
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.dependencies import AfterEnd, Dependency
from moorings.workloads.jobs import Accelerators, JobSpec, Resources, claim_spec_for
from moorings.workloads.run_turn import CancelRun, CreateRun, LabelRun, PauseRun, ResumeRun, RunIdled, RunRejected
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase, RunStatus, Submitter
from tests.unit.controller.recording import HOUR_S, RELEASED, Story, line_of

POOLS = """\
[[pool]]
name = "pod"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 2, domain_size = 8, max_block = 16 }
resources = { memory = "64G" }

[[pool]]
name = "cards"
kind = "gpu"
driver = "simulated"
topology = { type = "any-subset", domain_size = 6, max_block = 4 }

[[pool]]
name = "wafer"
kind = "csx"
driver = "simulated"
topology = { type = "catalogue", domain_size = 4, blocks = ["0", "1", "0-1", "2-3"] }
resources = { memory = "256G" }
"""
POD, CARDS, WAFER = PoolName("pod"), PoolName("cards"), PoolName("wafer")
WORKFLOW = "wflow-abcdefghijklmnopqrstuv"
NOT_OF_TURNS: Final = ("key.", "controller.")
UNWRITTEN: Final = {"environment", "workdir"}  # of a job: everybody may read the log
YIELDS = Policy(min_run_s=30.0, yield_s=60.0)
NOTHING_USUAL = Policy(
    reserve=False,
    backfill=False,
    making_s=5.0,
    fair_share=False,
    half_life_s=HOUR_S,
    min_run_s=1.0,
    yield_s=7.0,
    preempt=False,
    defragment=DefragmentMode.SUGGEST,
    move_s=9.0,
    moves_per_hour=3,
    patience_s=11.0,
    user_priority_max=100,
    agent_priority_max=50,
    waiting_max=50,
    waiting_bytes_max=1 << 20,
    ageing_s=HOUR_S,
)
CHECKPOINT = RunCheckpoint("/c/step-7.pt", 7, 9, Timestamp(1), True, CheckpointRule.ZIP, 1.5, "?")
CONTRACT = CheckpointContract(resumable=True, warn_signal="TERM", warn_s=60.0, grace_s=10.0)


class Everything(Story):
    """A fleet, and the events of its turns."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        super().__init__(tuple(pools))
        self._policy = YIELDS
        self._since = self._now

    def tell(self) -> None:
        """All of it."""
        self._projects()
        self._claims()
        self._hardware()
        self._devices()
        self._queues()
        self._runs_here()
        self._runs_elsewhere()
        self._lent()
        self._paused()
        self._moved()
        self._reload()
        self._turned_back()
        self._turn(
            *(ReleaseClaim(claim.id, "the end") for claim in self._unended()), StrayPartitionFound(POD, "m-last")
        )
        self._settle()

    # -- the parts of the story

    def _projects(self) -> None:
        lab = Project(
            name="lab",
            shares=(ProjectShare(POD, ((8, 1),)),),
            weight=2.0,
            devices_max=16,
            user_devices_max=16,
            members=("ann", "bob"),
            aliases=("slurm/one/lab",),
            priority_max=10,
            waiting_max=40,
            waiting_bytes_max=1 << 21,
            admins=("boss",),
            open=True,
            user_limits=(UserLimit("ann", 12),),
        )
        self._turn(SetProject(lab, None), SetProject(Project(name="brief"), None))
        self._turn(SetProject(replace(lab, version=4), 1), DeleteProject("brief"))

    def _claims(self) -> None:
        whole = ClaimSpec(
            kind="ipu",
            size=8,
            gcds=2,
            replicas_per_gcd=2,
            pool=POD,
            resources={"memory": 1 << 30},
            project="lab",
            priority=3,
            time_limit_s=HOUR_S,
            preemptible=True,
            checkpoint=CONTRACT,
            lease_s=600.0,
            machine={"cpus": 2},
            person="bob",
        )
        first = self._claim("all", whole, role=Role.USER, since=add_seconds(self._now, -HOUR_S))
        waits = self._claim("waits", ClaimSpec(kind="ipu", size=16, gcds=2), role=Role.ADMIN)
        drops = self._claim("drops", ClaimSpec(kind="ipu", size=16, gcds=2), role=Role.VIEWER)
        never = self._claim("never", ClaimSpec(kind="ipu", size=16, gcds=2, queue=QueueMode.NEVER))
        self._turn(first, waits, drops, never)
        self._settle()
        self._reload()  # with what is reserved
        self._turn(
            RenewClaim(first.id), CheckpointSaved(first.id, self._now), CancelPendingClaim(drops.id, "not needed")
        )
        self._policy = NOTHING_USUAL
        self._turn(*(SetPriority(waits.id, at, role) for at, role in enumerate(Role, 5)))
        self._policy = YIELDS
        self._turn(ResetPartition(self._partition_of(first.id).id))
        self._settle()
        self._now = add_seconds(self._now, 2 * HOUR_S)  # its lease runs out
        self._turn(ReleaseClaim(waits.id, "changed my mind"))
        self._settle()

    def _hardware(self) -> None:
        """Good and bad answers of drivers, in all their words."""
        seen = [self._claim(f"seen-{one.lower()}", ClaimSpec(kind="gpu", size=1)) for one in ResultCode]
        self._turn(*seen)
        ok, rejected, unavailable, broken = (self._partition_of(claim.id) for claim in seen)
        words = {
            ok: ResultCode.OK,
            rejected: ResultCode.REJECTED,
            unavailable: ResultCode.UNAVAILABLE,
            broken: ResultCode.BROKEN,
        }
        self._turn(*(self._answer(part, verdict, ObservedState.ACTIVE) for part, verdict in words.items()))
        self._settle()
        held = self._partition_of(seen[0].id)
        odd = [ObservedState.PROVISIONING, ObservedState.RESETTING, ObservedState.REMOVING, ObservedState.UNKNOWN]
        self._turn(
            *(self._answer(held, ResultCode.OK, one, "list") for one in odd), StrayPartitionFound(CARDS, "m-stray")
        )
        self._turn(self._answer(held, ResultCode.OK, ObservedState.ABSENT, "list"))  # lost
        self._turn(ReleaseClaim(seen[0].id, "lost"))
        self._turn(
            self._answer(self._partition_of(seen[0].id), ResultCode.BROKEN, ObservedState.ERROR)
        )  # cannot be removed
        self._turn(RetryRemoval(held.id))
        self._settle()
        blocks = {"theirs": Block.of([2, 3]), "other": Block.of([5])}
        self._turn(ForeignPartitionsListed(CARDS, blocks), PoolReachability(WAFER, "connection refused"))
        self._reload()
        self._turn(ForeignPartitionsListed(CARDS, {}), PoolReachability(WAFER, ""))

    def _devices(self) -> None:
        self._turn(DrainDevice(CARDS, 3, "fan"), DrainDevice(CARDS, 4, "fan"))
        back = [ResumeDevice(CARDS, index) for index in range(6)]
        self._turn(*back)
        self._turn(*(ReleaseClaim(claim.id, "over") for claim in self._unended()))
        self._settle()

    def _queues(self) -> None:
        spec = ClaimSpec(kind="ipu", size=4, project="lab", checkpoint=CONTRACT, queue=QueueMode.WAIT)
        whole = ClaimSpec(
            kind="ipu",
            size=4,
            gcds=2,
            replicas_per_gcd=2,
            pool=POD,
            resources={"memory": 1},
            project="lab",
            priority=1,
            time_limit_s=60.0,
            preemptible=True,
            checkpoint=CONTRACT,
            lease_s=60.0,
            queue=QueueMode.NEVER,
            machine={"cpus": 2},
            person="bob",
        )
        jobs = tuple(QueuedJob(f"slurm/one/{at}/n", one, self._now) for at, one in enumerate((spec, whole), 7))
        told = QueueReport("slurm/one", "ipu", jobs, add_seconds(self._now, HOUR_S), "00112233445566aa", self._now)
        self._turn(QueueReported(told))
        rival = replace(told, instance="ffffffffffffffff", rival=self._now)
        self._turn(QueueReported(rival), StrayPartitionFound(POD, "m-x"))
        self._reload()
        started = self._claim("job-7", spec, owner="slurm/one/7/n", role=Role.AGENT)
        self._turn(started)
        self._settle()
        self._now = add_seconds(self._now, 2 * HOUR_S)
        self._turn(ReleaseClaim(started.id, "the job has ended"))
        self._settle()

    def _runs_here(self) -> None:
        """Runs with claims: ended in every way, refused, cancelled, within a claim, of an appliance."""
        endings = list(EndReason)
        roles = dict(zip(endings, Role, strict=False))
        runs = [replace(self._run(f"ends-{one.lower()}", body_bytes=300), role=roles.get(one)) for one in endings]
        runs = [
            replace(run, resume_from=replace(CHECKPOINT, rule=rule))
            for run, rule in zip(runs, CheckpointRule, strict=True)
        ]
        self._turn(*runs)
        for run, ending in zip(runs, endings, strict=True):
            self._settle()
            end = EndRecord(ending, 9, (9, None), self._now, add_seconds(self._now, 1.0), f"it was {ending}")
            self._turn(RunStatus(run.id, RunPhase.STARTING), LabelRun(run.id, {"phase": "first", "old": None}))
            saved = RunCheckpoint("/c/step-7.pt", 7, 9, self._now, True, CheckpointRule.ZIP, 1.5)
            found = [replace(saved, rule=rule) for rule in CheckpointRule]
            torn = replace(saved, path="/c/step-8.pt", step=8, is_whole=False, why="it is cut off")
            self._turn(
                RunStatus(run.id, RunPhase.RUNNING, self._now, checkpoints=(torn, *found)),
                RunStatus(run.id, RunPhase.UNKNOWN, checkpoint_fault="it cannot be read"),
                *(RunIdled(run.id, 0, self._now, is_long=is_long) for is_long in (False, True)),
            )
            self._turn(RunStatus(run.id, RunPhase.ENDED, self._now, end, "as 7", "because", 0))
        refused, cancelled, absent = (self._run(name) for name in ("refused", "cancelled", "absent"))
        self._turn(refused, cancelled)
        self._settle()
        self._turn(RunRejected(refused.id, "no such command"), CancelRun(cancelled.id, "enough"))
        self._turn(RunStatus(cancelled.id, RunPhase.ABSENT), absent)
        self._turn(CancelRun(absent.id, "before it began"))
        self._settle()
        held = self._claim("held", ClaimSpec(kind=APPLIANCE_KIND, size=2, gcds=2, resources={"memory": 5}))
        self._turn(held)
        self._settle()
        within = self._whole_run("within", held.id)
        again = replace(within, id=RunId("run-twice"))  # refused, and in the log
        self._turn(within, again)
        compiles = replace(within.job, appliance=WorkflowPart(ApplianceJobType.COMPILE, WORKFLOW))
        self._turn(replace(within, id=RunId("run-compile"), claim=None, within=False, engine="elsewhere", job=compiles))
        done = EndRecord(EndReason.EXITED, 0, (0, 0))
        self._turn(RunStatus(within.id, RunPhase.ENDED, None, done), CancelRun(RunId("run-compile"), "over"))
        self._turn(
            RunStatus(RunId("run-compile"), RunPhase.ENDED, None, EndRecord(EndReason.CANCELLED, 143)),
            ReleaseClaim(held.id, "over"),
        )
        self._settle()
        self._dependents()

    def _dependents(self) -> None:
        """Runs that wait for the ends of others."""
        first = self._run("first")
        self._turn(first)
        self._settle()
        waits = [replace(self._run(f"after-{end}"), after=(Dependency(first.id, end),)) for end in AfterEnd]
        self._turn(*waits)
        done = EndRecord(EndReason.EXITED, 0, (0,))
        self._turn(RunStatus(first.id, RunPhase.ENDED, None, done))
        self._settle()
        self._turn(*(CancelRun(run.id, "enough") for run in waits))
        array = self._run("sweep", size=1)
        self._turn(replace(array, job=replace(array.job, array="0-2%1")))
        self._settle()
        last = replace(self._run("last"), after=(Dependency(array.id, AfterEnd.OK, left=3, has_failed=True),))
        self._turn(last)
        self._turn(*(CancelRun(RunId(f"{array.id}-{index}"), "enough") for index in (2, 1)))
        self._turn(CancelRun(RunId(f"{array.id}-0"), "enough"))
        self._turn(RunStatus(RunId(f"{array.id}-0"), RunPhase.ENDED, None, EndRecord(EndReason.CANCELLED, 143)))
        for run in waits:
            self._turn(RunStatus(run.id, RunPhase.ENDED, None, EndRecord(EndReason.CANCELLED, 143)))
        self._settle()

    def _runs_elsewhere(self) -> None:
        """Runs that wait in the queue of another scheduler."""
        run = replace(self._run("queued"), claim=None, engine="slurm")
        self._turn(run)
        self._turn(RunStatus(run.id, RunPhase.STARTING, None, None, "job 7", "Priority"))
        self._turn(RunStatus(run.id, RunPhase.RUNNING, self._now, None, "job 7"))
        self._turn(RunStatus(run.id, RunPhase.STARTING, None, None, "job 7", "its node failed"))
        self._turn(RunStatus(run.id, RunPhase.RUNNING, self._now, None, "job 7", "", 2))
        for rule in CheckpointRule:
            given = replace(CHECKPOINT, rule=rule)
            self._turn(
                RunStatus(
                    *(run.id, RunPhase.RUNNING, self._now, None, "job 7", "", 2), checkpoints=(), resumed_from=given
                )
            )
        self._turn(RunStatus(run.id, RunPhase.ENDED, None, EndRecord(EndReason.EXITED, 0, (0,)), "job 7", "", 2))

    def _lent(self) -> None:
        """What is lent and taken back: of a claim by hand, and of a run; a guarantee that comes after its claim."""
        lent = self._claim("lent", ClaimSpec(kind="ipu", size=8, preemptible=True, checkpoint=CONTRACT))
        borrows = self._run("borrows", size=8, preemptible=True)
        self._turn(lent, borrows)
        self._settle()
        self._turn(RunStatus(borrows.id, RunPhase.RUNNING, self._now))
        self._now = add_seconds(self._now, HOUR_S)
        owed = self._claim("owed", ClaimSpec(kind="ipu", size=8, project="lab"))
        more = self._claim("more", ClaimSpec(kind="ipu", size=8, project="more"))
        self._turn(SetProject(Project(name="more", shares=(ProjectShare(POD, ((8, 1),)),)), None))
        self._turn(owed, more)
        self._turn(YieldClaim(lent.id, "saved"))
        self._turn(RunStatus(borrows.id, RunPhase.ENDED, None, EndRecord(EndReason.YIELDED, 143, (143,))))
        self._settle()
        self._turn(ReleaseClaim(owed.id, "over"))
        self._settle()
        self._turn(SetProject(Project(name="default", shares=()), None), ReleaseClaim(more.id, "over"))
        self._settle()
        again = RunStatus(borrows.id, RunPhase.RUNNING, self._now, None, None, "", 1)
        self._turn(again, DeleteProject("more"))
        self._turn(SetProject(Project(name="lab"), 2))
        self._turn(
            SetProject(Project(name="default", shares=(ProjectShare(POD, ((8, 1),)),)), 1)
        )  # covers what is held
        self._turn(SetProject(Project(name="default"), 2))
        self._turn(CancelRun(borrows.id, "enough"))
        self._turn(RunStatus(borrows.id, RunPhase.ENDED, None, EndRecord(EndReason.CANCELLED, 143), attempt=1))
        self._turn(ReleaseClaim(lent.id, "over"))
        self._settle()

    def _paused(self) -> None:
        """Runs that their users pause and resume, with a checkpoint of their choice and without; one is lost."""
        works, waits, never = (self._run(name) for name in ("works", "waits", "never"))
        works, waits = (replace(run, job=replace(run.job, checkpoint_directory="/c")) for run in (works, waits))
        works = replace(works, job=replace(works.job, retries=1, checkpoint=replace(CONTRACT, resumable=True)))
        self._turn(works)
        self._settle()
        saved = replace(CHECKPOINT, is_whole=True, why="")
        self._turn(RunStatus(works.id, RunPhase.RUNNING, self._now, checkpoints=(saved,)))
        self._turn(
            waits,
            PauseRun(works.id, "the controller", 0.0, holds_retry=True),
            PauseRun(waits.id, "ann", 60.0, resumable=False),
            PauseRun(works.id, "ann", 60.0),
        )
        self._turn(PauseRun(never.id, "ann", 60.0))  # refused, and in the log
        stopped = EndRecord(EndReason.YIELDED, 143, (143,))
        self._turn(RunStatus(works.id, RunPhase.ENDED, None, stopped))
        self._settle()
        spec = claim_spec_for(works.job)
        whole = replace(claim_spec_for(self._whole_run("whole", works.claim or ClaimId("")).job), replicas_per_gcd=2)
        whole = replace(whole, machine={"cpus": 2}, person="bob")
        refused = [  # of a run that is not paused, and in the log
            ResumeRun(never.id, ClaimId("claim-none"), replace(whole, queue=mode), role, replace(saved, rule=rule))
            for mode, role, rule in zip_longest(QueueMode, Role, CheckpointRule, fillvalue=None)
            for mode, role, rule in [(mode or QueueMode.NEVER, role, rule or CheckpointRule.ZIP)]
        ]
        self._turn(
            ResumeRun(works.id, ClaimId("claim-works-again"), spec, Role.ADMIN, replace(saved, why="?")),
            ResumeRun(waits.id, ClaimId("claim-waits-again"), spec, Role.USER),
            *refused,
        )
        self._settle()
        lost = EndRecord(EndReason.LOST, 137, detail="its supervisor died")
        self._turn(RunStatus(works.id, RunPhase.ENDED, None, lost, attempt=1))
        self._turn(ResumeRun(works.id, ClaimId("claim-works-retried"), spec))
        self._settle()
        done = EndRecord(EndReason.EXITED, 0, (0,))
        self._turn(*(RunStatus(run.id, RunPhase.ENDED, None, done, attempt=n) for run, n in ((works, 2), (waits, 1))))
        self._settle()

    def _moved(self) -> None:
        """Claims that make room, by order and by policy."""
        few = [self._run(f"moves-{at}", size=4, preemptible=True) for at in range(4)]
        self._turn(*few)
        self._settle()
        self._turn(*(RunStatus(run.id, RunPhase.RUNNING, self._now) for run in few))
        over = [few[0], few[3]]
        for run in over:
            self._turn(RunStatus(run.id, RunPhase.ENDED, None, EndRecord(EndReason.EXITED, 0)))
        self._settle()
        self._policy = replace(YIELDS, defragment=DefragmentMode.ON)
        self._turn(DefragmentPool(8, POD, None, 0.5), StrayPartitionFound(POD, "m-y"))  # too costly
        self._turn(DefragmentPool(8, POD, None, 1e9))
        self._reload()
        wants = self._claim("room", ClaimSpec(kind="ipu", size=8))
        self._turn(wants, DefragmentPool(claim=ClaimId("claim-nobody")))
        for run in few[1:3]:
            self._turn(RunStatus(run.id, RunPhase.ENDED, None, EndRecord(EndReason.YIELDED, 143)))
        self._settle()
        self._policy = YIELDS
        for run in few[1:3]:
            self._turn(RunStatus(run.id, RunPhase.ENDED, None, EndRecord(EndReason.EXITED, 0), attempt=1))
        self._turn(ReleaseClaim(wants.id, "over"))
        self._settle()

    def _turned_back(self) -> None:
        """A database that went back: a run was started since, another lives in a claim that is known."""
        waits = self._run("waits", size=8)
        held = self._claim("kept", ClaimSpec(kind=APPLIANCE_KIND, size=2, resources={"memory": 5}))
        making = self._claim("making", ClaimSpec(kind="gpu", size=1))
        self._turn(held, waits, making)
        partition, made = self._partition_of(held.id), self._partition_of(making.id)
        job = self._whole_run("unknown", held.id).job
        on = StartedRun(2, self._now, partition.id, partition.name)
        within = UnrecordedRun(RunId("run-unknown"), held.id, replace(job, array="0-3"), "local", on, 400)
        job = replace(job, appliance=WorkflowPart(ApplianceJobType.COMPILE, WORKFLOW))
        other = UnrecordedRun(
            RunId("run-other"), making.id, job, "local", replace(on, partition=made.id, name=made.name), 400
        )
        started = StartedRun(1, self._now, PartitionId("elsewhere"), "there")
        self._now = add_seconds(self._now, 60.0)
        learned = RecoveredState(self._now, Epoch(7), Seq(len(self.events)), {waits.id: started}, (within, other))
        claims = sorted(self._fleet.claims.values(), key=lambda claim: (claim.arrival, claim.id))
        held_parts = sorted(self._fleet.partitions.values(), key=lambda one: one.id)
        unended = sorted(self._runs.by_id.values(), key=lambda run: (run.created_at, run.id))
        changes = plan_recovery(claims, held_parts, unended, learned)
        self._fleet.apply(
            FleetChanges(
                claims={claim.id: (claim, save.expected) for claim, save in changes.claims},
                partitions={one.id: (one, save.expected) for one, save in changes.partitions},
            )
        )
        self._runs.apply(run for run, _ in changes.runs)
        self.events += changes.events
        self._reload()
        done = EndRecord(EndReason.EXITED, 0)
        self._turn(RunStatus(waits.id, RunPhase.ENDED, None, done, attempt=1))
        self._turn(*(RunStatus(one.run, RunPhase.ENDED, None, done, attempt=2) for one in (within, other)))
        self._settle()

    # -- one step

    def _reload(self) -> None:
        """The records are read again, by a controller that continues after an answer was lost: it knows the rest."""
        before = self._fleet
        super()._reload()
        self._fleet.apply(before.volatile_state())
        self._fleet.last_arrival = before.last_arrival
        self._loaded = VolatileState.of(self._fleet)

    def _settle(self) -> None:
        """All that was ordered of hardware is done."""
        while waits := [one for one in self._fleet.partitions.values() if one.state in _ORDERED]:
            self._turn(*(self._answer(one) for one in sorted(waits, key=lambda one: one.id)))

    def _answer(
        self, of: Partition, verdict: ResultCode = ResultCode.OK, seen: ObservedState | None = None, order: str = ""
    ) -> DriverResultReceived:
        usual, then = _ORDERED.get(of.state, ("list", ObservedState.ACTIVE))
        return DriverResultReceived(
            of.id, of.version, order or usual, DriverResult(verdict, seen or then, "as ordered")
        )

    def _claim(
        self,
        name: str,
        spec: ClaimSpec,
        *,
        owner: str = "user/ann",
        role: Role | None = None,
        since: Timestamp | None = None,
    ) -> CreateClaim:
        ident = ClaimId(f"claim-{name}")
        return CreateClaim(id=ident, name=name, owner=owner, subject="ann", spec=spec, role=role, since=since)

    def _run(self, name: str, *, size: int = 4, preemptible: bool = False, body_bytes: int = 0) -> CreateRun:
        job = JobSpec(
            name=name,
            command=("train", name),
            workdir="/srv",
            accelerators=Accelerators(size=size),
            checkpoint=CONTRACT,
            labels={"old": "yes"},
            preemptible=preemptible,
        )
        claim = ClaimId(f"claim-of-{name}")
        return CreateRun(
            id=RunId(f"run-{name}"), claim=claim, job=job, engine="local", subject="ann", body_bytes=body_bytes
        )

    def _whole_run(self, name: str, claim: ClaimId) -> CreateRun:
        """A run of an appliance, with everything that a job can have."""
        job = JobSpec(
            name=name,
            command=("train", "--all"),
            workdir="/srv",
            tasks=2,
            accelerators=Accelerators(APPLIANCE_KIND, 2, 2, WAFER, {"memory": 5}),
            resources=Resources(2, 1 << 30, 2),
            project="lab",
            priority=2,
            time_limit_s=HOUR_S,
            checkpoint=CONTRACT,
            checkpoint_directory="/srv/saved",
            image="registry.example/train:1",
            labels={"team": "vision"},
            lease_s=600.0,
            appliance=WorkflowPart(ApplianceJobType.EXECUTE, WORKFLOW),
            preemptible=True,
            resume_args=("--resume", "{}"),
            retries=3,
            setup=("true",),
            terminal_keep_s=600.0,
            after=("run-before",),
        )
        ident = RunId(f"run-{name}")
        return CreateRun(
            id=ident,
            claim=claim,
            job=job,
            engine="local",
            subject="ann",
            within=True,
            role=Role.USER,
            body_bytes=900,
            resume_from=CHECKPOINT,
            spool_entry="1000-0123456789abcdef0123456789abcdef",
            spool_entries=("1000-0123456789abcdef0123456789abcdef",),
            submitter=Submitter(1000, "0" * 64),
            token_digests=("1" * 64,),
            machine={"cpus": 4},
            after=(*(Dependency("run-before", end, "SUCCEEDED") for end in (AfterEnd.OK, AfterEnd.ANY)),),
        )

    def _partition_of(self, claim: ClaimId) -> Partition:
        (found,) = (one for one in self._fleet.partitions.values() if one.claim == claim)
        return found

    def _unended(self) -> list[Claim]:
        alone = (one for one in self._fleet.claims.values() if self._runs.by_claim.get(one.id) is None)
        return sorted(alone, key=lambda one: one.id)


_ORDERED = {
    PartitionState.PROVISIONING: ("create", ObservedState.ACTIVE),
    PartitionState.RESETTING: ("reset", ObservedState.ACTIVE),
    PartitionState.REMOVING: ("remove", ObservedState.ABSENT),
}


# -- which fields a log can have, and which it has


@dataclass(frozen=True)
class Written:
    """A field that a log may keep: its path there, the default that says nothing, the members of a choice."""

    path: str
    default: object
    members: frozenset[str]


def written_fields() -> list[Written]:
    """Every field that a log may keep."""
    kinds: dict[str, type] = {"turn": TurnContext, "learned": RecoveredState, **INPUTS}
    found = (one for name, kind in sorted(kinds.items()) for one in _fields(kind, name))
    return [one for one in found if UNWRITTEN.isdisjoint(one.path.split("/"))]


def _fields(hint: object, path: str, default: object = None, *, later: bool = False) -> Iterator[Written]:
    """The fields below a path, and the path itself where it is no record."""
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    arguments = [one for one in get_args(hint) if one not in (NoneType, Ellipsis)]
    if get_origin(hint) in (Union, UnionType):
        yield from _fields(arguments[0], path, default, later=later)
    elif get_origin(hint) is tuple:
        yield from _fields(arguments[0], f"{path}/*")
    elif get_origin(hint) is Mapping:
        yield from _fields(arguments[1], f"{path}/*")
    elif isinstance(hint, type) and is_dataclass(hint) and hint is not Block:
        hints = get_type_hints(hint)
        for item in fields(hint):
            usual = None if item.default is MISSING else to_plain(item.default)
            yield from _fields(hints[item.name], f"{path}/{item.name}", usual, later=bool(item.metadata.get("later")))
    else:
        members = frozenset(map(str, hint)) if isinstance(hint, type) and issubclass(hint, StrEnum) else frozenset()
        yield Written(path, default, members - {str(default)} if later else members)


def values_of(data: object, path: str) -> Iterator[tuple[str, object]]:
    """The plain values in data of a log, by their paths."""
    if isinstance(data, dict):
        for key, item in data.items():
            yield from values_of(item, f"{path}/{key}")
    elif isinstance(data, list):
        for item in data:
            yield from values_of(item, f"{path}/*")
    else:
        yield path, data


def held(events: Sequence[Event]) -> dict[str, object]:
    """What a log holds: of each field a value that is not its default, or all members of a choice.

    Raises:
        AssertionError: something is in no turn of it.
    """
    found = paths_of(events)
    told: dict[str, object] = {}
    lacks = []
    for one in written_fields():
        said = values_at(found, one.path)
        telling = next((value for value in said if value != one.default), None)
        told[one.path] = sorted(one.members) if one.members else telling
        if telling is None or not one.members <= set(said):
            lacks.append(one)
    names = {event.name for event in events}
    lacking = [name for name in EVENTS if name not in names and not name.startswith(NOT_OF_TURNS)]
    assert not lacks, lacks
    assert not lacking, lacking
    return {"events": sorted(names), "fields": told}


def told_today() -> Everything:
    """The story as this code tells it."""
    story = Everything((*(entry.pool for entry in parse_pools(POOLS)), machine_pool({"cpus": 64})))
    story.tell()
    return story


def paths_of(events: Iterable[Event]) -> dict[str, list[object]]:
    """Every value that the decisions of a log hold, by its path; inputs are told apart by their names in the log."""
    found: dict[str, list[object]] = {}
    for event in events:
        if event.name == REWIND_EVENT:
            told = [("learned", json.loads(event.data))]
        elif event.name == TURN_EVENT:
            turn = json.loads(event.data)
            told = [*turn.pop("inputs"), ("turn", turn)]
        else:
            told = [(event.name, json.loads(event.data))]
        for name, data in told:
            for path, value in values_of(data, name):
                found.setdefault(path, []).append(value)
    return found


def values_at(found: Mapping[str, list[object]], path: str) -> list[object]:
    """The values of the paths that a path of ``Written`` stands for: ``*`` is any one name."""
    pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
    return [value for at, values in found.items() if pattern.fullmatch(at) for value in values]


def main(name: str) -> None:
    """Write the log that this code writes, and what it holds."""
    story = told_today()
    told = {"pools": POOLS, **held(story.events)}
    (RELEASED / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    (RELEASED / f"{name}.jsonl").write_text("".join(map(line_of, story.events)))


if __name__ == "__main__":
    main(sys.argv[1])
