"""The controller's views as wire bodies: views in, shapes out, without decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from moorings.client.jobs import checkpoint_shape, job_shape
from moorings.controller.queues import QueueView
from moorings.controller.views import (
    HIDDEN_BREAK,
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
from moorings.core.forecast.whatif import CLAIMS_MAX
from moorings.core.model.access import Caller, Role
from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec
from moorings.core.model.devices import PoolName
from moorings.core.model.owners import HIDDEN
from moorings.core.model.partitions import Partition
from moorings.core.model.projects import Project
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Catalogue, PowerOfTwo, Topology
from moorings.core.scheduling.explain import HIDDEN_RECLAIM
from moorings.core.scheduling.quotas import ProjectQuota
from moorings.ports.engine import TaskContainer
from moorings.ports.personal import ListingReply, SubmissionTarget
from moorings.ports.store import AccessKey, EventRow
from moorings.wire.codec import format_time
from moorings.wire.forecasts import (
    DefragmentBody,
    MoveBody,
    WhatIfAskedBody,
    WhatIfBody,
    WhatIfClaimBody,
    WhatIfSideBody,
    WhatIfWaitBody,
)
from moorings.wire.shapes import (
    ApplianceJobBody,
    ArrayBody,
    BindingBody,
    CallerBody,
    CapacityBody,
    CheckpointBody,
    ClaimBody,
    DeviceBody,
    EstimateBody,
    EventBody,
    ExplanationBody,
    GcdBody,
    IdleBody,
    JobOrderBody,
    KeyBody,
    PartitionBody,
    PauseBody,
    PoolBody,
    ProjectBody,
    QueueBody,
    QueuedJobBody,
    QuotaBody,
    ReasonBody,
    RunBody,
    RunReportBody,
    ShareShape,
    SubmissionBody,
    SubmittedJobsBody,
    TaskContainerBody,
    TerminalBody,
    TopologyShape,
)
from moorings.workloads.arrays import ArrayPart
from moorings.workloads.checkpoints import RunCheckpoint
from moorings.workloads.environment import names_alone
from moorings.workloads.idleness import Idleness
from moorings.workloads.runs import Run, RunId, RunPause, RunState, own_checkpoints, resume_point, resume_since

# What the data of events says about claims that are not the event's own, and what others are told instead.
_OF_OTHERS: Mapping[str, Mapping[str, str | None]] = {
    "claim.reclaiming": {"for": None},
    "run.yielding": {"why": HIDDEN_RECLAIM},
    "device.quarantined": {"why": HIDDEN_BREAK},
}


def _time(at: Timestamp | None) -> str | None:
    return None if at is None else format_time(at)


def reason_body(reason: Reason | None) -> ReasonBody | None:
    """A reason, if there is one."""
    if reason is None:
        return None
    return ReasonBody(
        code=reason.code,
        message=reason.message,
        blockers=reason.blockers,
        until=_time(reason.until),
        hint=reason.hint,
    )


def claim_body(view: ClaimView) -> ClaimBody:
    """A claim, with the partition it holds; of an outline no name but its subject's, if that is shown."""
    claim, spec, partition = view.claim, view.claim.spec, view.partition
    body = _claim_body(view, claim, spec, partition)
    if not view.is_outline:
        return body
    reason = replace(body.reason, message=HIDDEN, blockers=(), hint="") if body.reason is not None else None
    subject = body.subject if view.shows_subject else HIDDEN
    person = body.person if view.shows_subject else None
    named = {"name": HIDDEN, "owner": HIDDEN, "subject": subject, "person": person, "project": HIDDEN, "reason": reason}
    return replace(body, partition=HIDDEN if partition is not None else None, **named)  # type: ignore[arg-type]  # mixed


def _claim_body(view: ClaimView, claim: Claim, spec: ClaimSpec, partition: Partition | None) -> ClaimBody:
    return ClaimBody(
        id=claim.id,
        name=claim.name,
        owner=claim.owner,
        subject=claim.subject,
        state=claim.state,
        accelerator=spec.kind,
        size=spec.size,
        gcds=spec.gcds,
        replicas_per_gcd=spec.replicas_per_gcd,
        project=spec.project,
        priority=spec.priority,
        preemptible=spec.preemptible,
        attempt=claim.attempt,
        created_at=format_time(claim.arrival),
        resources=spec.resources,
        checkpoint=checkpoint_shape(spec.checkpoint),
        pool=claim.pool or spec.pool,
        partition=partition.name if partition else None,
        partition_id=partition.id if partition else claim.partition,
        devices=str(partition.block) if partition else None,
        time_limit_s=spec.time_limit_s,
        lease_s=spec.lease_s,
        lease_until=_time(claim.lease_until),
        position=view.position,
        reason=reason_body(view.reason),
        granted_at=_time(claim.granted_at),
        ready_at=_time(claim.ready_at),
        ended_at=_time(claim.ended_at),
        cell=str(claim.cell) if claim.cell is not None else None,
        asked_until=_time(claim.asked_until),
        machine=spec.machine or None,
        person=spec.person or None,
    )


def explanation_body(explanation: Explanation) -> ExplanationBody:
    """Why a claim is in its state."""
    return ExplanationBody(
        claim=explanation.claim.id,
        state=explanation.claim.state,
        summary=explanation.summary,
        position=explanation.position,
        reasons=tuple(body for body in map(reason_body, explanation.reasons) if body),
        estimate=estimate_body(explanation.estimate) if explanation.estimate is not None else None,
        options=explanation.options,
    )


def estimate_body(view: EstimateView) -> EstimateBody:
    """When a claim would start."""
    return EstimateBody(starts_now=view.starts_now, starts_at=_time(view.starts_at), why=view.why)


def what_if_body(view: WhatIfView) -> WhatIfBody:
    """What another policy would change."""
    found = view.found
    sides = (_side(view, number) for number in range(2))
    return WhatIfBody(
        at=format_time(view.at),
        claims=tuple(
            WhatIfClaimBody(
                claim=_seen_id(view, one.claim),
                name=_seen_name(view, one.claim),
                project=_seen_project(view, one.claim),
                size=one.size,
                now_at=_time(one.now_at),
                then_at=_time(one.then_at),
            )
            for one in found.claims
        ),
        waits=tuple(
            WhatIfWaitBody(size=size, claims=count, now_s=round(now_s, 3), then_s=round(then_s, 3))
            for size, (now_s, then_s, count) in found.mean_wait_s(view.at).items()
        ),
        now=next(sides),
        then=next(sides),
        window_s=found.window_s,
        whole=found.is_complete,
    )


def _seen_id(view: WhatIfView, ident: ClaimId) -> str:
    return ident if ident in view.claims else HIDDEN


def _seen_name(view: WhatIfView, ident: ClaimId) -> str:
    return view.claims[ident].name if ident in view.claims else HIDDEN


def _seen_project(view: WhatIfView, ident: ClaimId) -> str:
    return view.claims[ident].spec.project if ident in view.claims else HIDDEN


def _side(view: WhatIfView, number: int) -> WhatIfSideBody:
    found = view.found
    return WhatIfSideBody(
        yields=found.yields[number],
        moves=found.moves[number],
        utilisation=round(found.utilisation[number], 4),
        asked=tuple(
            WhatIfAskedBody(
                claim=_seen_id(view, one.claim),
                name=_seen_name(view, one.claim),
                project=_seen_project(view, one.claim),
                yields=one.yields,
                moves=one.moves,
            )
            for one in found.yield_counts[number][:CLAIMS_MAX]
        ),
    )


def moves_body(view: MovesView) -> DefragmentBody:
    """The claims that move to free a block."""
    return DefragmentBody(
        pool=view.spot.pool,
        devices=str(view.spot.block),
        cost_s=round(view.cost, 3),
        moves=tuple(
            MoveBody(
                claim=claim.id if claim is not None else HIDDEN,
                name=claim.name if claim is not None else HIDDEN,
                project=claim.spec.project if claim is not None else HIDDEN,
                devices=str(block),
                to=str(to),
            )
            for claim, block, to in view.moves
        ),
    )


def binding_body(binding: Binding) -> BindingBody:
    """What a partition's job gets."""
    return BindingBody(partition=binding.partition, api=binding.api, gcds=tuple(map(_gcd, binding.gcds)))


def _gcd(gcd: GcdBinding) -> GcdBody:
    return GcdBody(
        gcd=gcd.gcd,
        devices=gcd.devices,
        file_name=gcd.file_name,
        file_text=gcd.file_text,
        environment=gcd.environment,
    )


def partition_body(view: PartitionView) -> PartitionBody:
    """A partition and its holder; of an outline no name."""
    partition = view.partition
    if view.is_outline:
        partition = replace(partition, name=HIDDEN, reason="")
    return PartitionBody(
        id=partition.id,
        name=partition.name,
        claim=partition.claim,
        owner=HIDDEN if view.is_outline else view.owner,
        pool=partition.pool,
        accelerator=view.kind,
        size=partition.size,
        devices=str(partition.block),
        gcds=partition.gcds,
        replicas_per_gcd=partition.replicas_per_gcd,
        state=partition.state,
        since=format_time(partition.since),
        reason=partition.reason,
    )


def pool_body(view: PoolView) -> PoolBody:
    """A pool and how much of it is free."""
    return PoolBody(
        name=view.pool.name,
        accelerator=view.pool.kind,
        driver=view.pool.driver,
        reachable=view.reachable,
        devices=view.pool.topology.n_devices,
        free=view.free,
        out_of_service=view.out_of_service,
        largest=view.largest,
        waiting=view.waiting,
        partitions=view.partitions,
        topology=topology_shape(view.pool.topology),
        available={str(size): count for size, count in view.available.items()},
        resources=dict(view.pool.resources),
        resources_used=dict(view.used_resources) if view.pool.resources else None,
        problem=view.problem,
    )


def topology_shape(topology: Topology) -> TopologyShape:
    """A pool's topology, in the words of the pools file."""
    match topology:
        case PowerOfTwo():
            return TopologyShape(
                type="power-of-two",
                domains=topology.domains,
                domain_size=topology.domain_size,
                max_block=topology.max_block,
            )
        case AnySubset():
            return TopologyShape(
                type="any-subset", domains=1, domain_size=topology.n_devices, max_block=topology.max_block
            )
        case Catalogue():
            return TopologyShape(
                type="catalogue",
                domains=1,
                domain_size=topology.n_devices,
                max_block=topology.max_block,
                blocks=tuple(map(str, topology.blocks)),
            )


def capacity_body(view: PoolView, size: int, partitions: int) -> CapacityBody:
    """The number of partitions of one size that could be formed now."""
    return CapacityBody(pool=view.pool.name, size=size, partitions=partitions, free=view.free, largest=view.largest)


def _by_size(counts: Mapping[PoolName, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {pool: {str(size): count for size, count in sizes.items()} for pool, sizes in counts.items()}


def queue_body(view: QueueView) -> QueueBody:
    """Another scheduler's queue and its offer."""
    return QueueBody(
        queue=view.report.queue,
        accelerator=view.report.accelerator,
        version=view.version,
        offer=_by_size(view.offer),
        held=_by_size(view.held),
        jobs=tuple(
            QueuedJobBody(
                owner=HIDDEN if item.is_hidden else item.job.owner,
                size=item.job.spec.size,
                offered=item.is_offered,
                reason=reason_body(item.reason),
                pool=item.job.spec.pool,
            )
            for item in view.jobs
        ),
        until=format_time(view.report.until),
        next_up=view.next_up,
        others_wait=tuple(view.others_wait),
        instance=view.report.instance or None,
        contested_at=_time(view.report.rival),
    )


def project_body(project: Project, reader: str, *, with_people: bool) -> ProjectBody:
    """A project for a reader; without its people only whether there are any, and the reader's own limit."""
    limits = {limit.subject: limit.devices_max for limit in project.user_limits}
    own = project.user_limit(reader) if limits else None
    if not with_people:
        limits = {reader: own} if own is not None else {}
    return ProjectBody(
        name=project.name,
        shares=tuple(ShareShape(pool=share.pool, blocks=_counts(share.blocks)) for share in project.shares),
        weight=project.weight,
        version=project.version,
        devices_max=project.devices_max,
        user_devices_max=project.user_devices_max,
        priority_max=project.priority_max,
        waiting_max=project.waiting_max,
        waiting_bytes_max=project.waiting_bytes_max,
        members=project.members if with_people or not project.members else (HIDDEN,),
        admins=(project.admins if with_people else (HIDDEN,)) if project.admins else None,
        open=project.open or None,
        aliases=project.aliases,
        user_limits=limits or None,
        user_limits_hidden=True if project.user_limits and not with_people else None,
    )


def quota_body(quota: ProjectQuota) -> QuotaBody:
    """A project's quota in a pool."""
    return QuotaBody(
        project=quota.project,
        pool=quota.pool,
        guaranteed=quota.guaranteed,
        blocks=_counts(quota.blocks),
        held=quota.held,
        borrowed=quota.borrowed,
        waiting=quota.waiting,
        waiting_devices=quota.waiting_devices,
        used_device_hours=round(quota.used_device_hours, 3),
        weight=quota.weight,
        devices_max=quota.devices_max,
    )


def _counts(blocks: Iterable[tuple[int, int]]) -> dict[str, int]:
    return {str(size): count for size, count in blocks}


def device_body(view: DeviceView) -> DeviceBody:
    """A device and its holder; one that was never out of service has no ``since``."""
    device = view.device
    return DeviceBody(
        id=device.id,
        pool=device.pool,
        accelerator=view.kind,
        index=device.index,
        domain=view.domain,
        state=device.state,
        reason=device.reason,
        since=_time(device.since) if device.since else None,
        partition=view.partition,
        claim=view.claim,
        owner=view.owner,
    )


def run_body(view: RunView) -> RunBody:
    """A run, with the partition its claim holds."""
    run, partition, point = view.run, view.partition, resume_point(view.run)
    assert view.job is not None, "who is shown a run is shown its job"
    job = job_shape(replace(view.job, environment=names_alone(view.job.environment)))
    return RunBody(
        id=run.id,
        name=run.job.name,
        engine=run.engine,
        subject=run.subject,
        state=run.state,
        claim=run.claim,
        attempt=run.attempt,
        job=job,
        created_at=format_time(run.created_at),
        reference=run.reference,
        partition=partition.name if partition else None,
        pool=(view.claim.pool if view.claim else None) or run.job.accelerators.pool,
        reason=reason_body(view.reason),
        position=view.position,
        started_at=_time(run.started_at),
        ended_at=_time(run.ended_at),
        exit_code=run.exit_code,
        task_codes=run.task_codes,
        detail=run.detail,
        notes=view.notes or None,
        labels=run.labels,
        priority=_priority(view),
        scheduled_at=_time(view.claim.granted_at) if view.claim else None,
        devices=str(partition.block) if partition else "",
        checkpoints=tuple(checkpoint_body(run.id, each) for each in own_checkpoints(run)) or None,
        checkpoint_fault=run.checkpoint_fault or None,
        resumed_from=checkpoint_body(run.id, run.resumed_from) if run.resumed_from is not None else None,
        resume_point=checkpoint_body(run.id, point) if point is not None else None,
        pause=_pause_body(run.pause, is_over=run.state is RunState.PAUSED) if run.pause is not None else None,
        retries_used=run.loss_record.count if run.loss_record is not None else None,
        idle=_idle_body(view.idleness) if view.idleness is not None else None,
        submission=_submission_body(run, view.submission) if view.submission is not None else None,
        array=_array_body(run.job.array) if run.job.array is not None else None,
    )


def _submission_body(run: Run, target: SubmissionTarget) -> SubmissionBody:
    given = run.resumed_from
    return SubmissionBody(
        attempt=run.attempt,
        account=target.account,
        partition=target.partition,
        qos=target.qos,
        python=target.python,
        resume_from=given.path if given is not None else None,
        resume_step=given.step if given is not None else None,
        resume_since=_time(resume_since(run)),
    )


def run_report_body(run: Run, known: Mapping[int, int]) -> RunReportBody:
    """The answer to a report of a run."""
    return RunReportBody(state=run.state, output_bytes={str(task): size for task, size in known.items()})


def terminal_body(run: Run, place: str | TaskContainer) -> TerminalBody:
    """Where the terminal of a run is."""
    if isinstance(place, str):
        return TerminalBody(run=run.id, attempt=run.attempt, socket=place)
    container = TaskContainerBody(namespace=place.namespace, pod=place.pod, container=place.container)
    return TerminalBody(run=run.id, attempt=run.attempt, container=container)


def submitted_jobs_body(reply: ListingReply) -> SubmittedJobsBody:
    """The answer to an agent's listing of people's jobs."""
    orders = tuple(
        JobOrderBody(run=each.run, attempt=each.attempt, uid=each.uid, action=each.action, job=each.job_id)
        for each in reply.orders
    )
    return SubmittedJobsBody(uids=tuple(reply.uids), runs=tuple(reply.runs), orders=orders)


def _priority(view: RunView) -> int:
    if view.run.pause is not None:
        return view.run.pause.priority
    return view.claim.spec.priority if view.claim else view.run.job.priority


def _pause_body(pause: RunPause, *, is_over: bool) -> PauseBody:
    stops_at = add_seconds(pause.asked_at, pause.timeout_s)
    return PauseBody(
        by=pause.by,
        asked_at=format_time(pause.asked_at),
        stops_at=None if is_over else format_time(stops_at),
        resumes_at=_time(pause.resume_at),
    )


def _array_body(part: ArrayPart) -> ArrayBody:
    return ArrayBody(id=part.id, index=part.index, size=part.size, limit=part.limit or None)


def _idle_body(idleness: Idleness) -> IdleBody:
    return IdleBody(since=format_time(idleness.since), shown_to_admins=idleness.is_long)


def checkpoint_body(run: RunId, found: RunCheckpoint) -> CheckpointBody:
    """A checkpoint of a run."""
    return CheckpointBody(
        run=run,
        path=found.path,
        step=found.step,
        size_bytes=found.size_bytes,
        written_at=format_time(found.written_at),
        write_s=found.write_s,
        whole=found.is_whole,
        rule=found.rule,
        why=found.why,
    )


def appliance_job_body(view: RunView) -> ApplianceJobBody:
    """A job of an appliance, in a list's short form."""
    run, part = view.run, view.run.job.appliance
    assert part is not None
    return ApplianceJobBody(
        id=run.id,
        kind=part.kind,
        workflow=part.workflow,
        subject=run.subject,
        state=run.state,
        priority=view.claim.spec.priority if view.claim else run.job.priority,
        systems=run.job.accelerators.size,
        project=run.job.project,
        pool=(view.claim.pool if view.claim else None) or run.job.accelerators.pool,
        devices=str(view.partition.block) if view.partition else "",
        labels=run.labels,
        created_at=format_time(run.created_at),
        scheduled_at=_time(view.claim.granted_at) if view.claim else None,
        started_at=_time(run.started_at),
        ended_at=_time(run.ended_at),
        detail=run.detail or None,
    )


def key_body(key: AccessKey, secret: str | None = None) -> KeyBody:
    """An access key; with its secret only in the response that made the key or the secret."""
    return KeyBody(
        id=key.id,
        subject=key.subject,
        role=key.role,
        owner_prefix=key.owner_prefix,
        created_at=format_time(key.created_at),
        revoked_at=_time(key.revoked_at),
        expires_at=_time(key.expires_at),
        rotated_at=_time(key.rotated_at),
        old_secret_until=_time(key.previous_valid_until),
        secret=secret,
    )


def caller_body(caller: Caller, submits_to: tuple[str, ...]) -> CallerBody:
    """The caller itself, and the engines to which people submit their jobs themselves."""
    return CallerBody(subject=caller.subject, role=caller.role, owner_prefix=caller.owner_prefix, submits_to=submits_to)


def event_body(row: EventRow, caller: Caller) -> EventBody:
    """One row of the event log; what its data says of others only for admins."""
    event = row.event
    data = json.loads(event.data)
    if caller.role is not Role.ADMIN:
        _hide_members(event.name, data)
        data |= {key: said for key, said in _OF_OTHERS.get(event.name, {}).items() if data.get(key)}
    return EventBody(
        seq=row.seq,
        name=event.name,
        at=format_time(event.at),
        claim=event.claim,
        partition=event.partition,
        run=event.run,
        pool=event.pool,
        device=event.device,
        data=data,
    )


def _hide_members(name: str, data: Any) -> None:  # noqa: ANN401 - what JSON holds
    """A project is in two events: its own, and the turn it was an input of."""
    projects = [data.get("is")] if name == "project.set" else []
    if name == "turn.decided":
        projects = [given.get("project") for _, given in data.get("inputs", ())]
    for project in projects:
        for names in ("members", "admins", "user_limits"):
            if isinstance(project, dict) and project.get(names):
                project[names] = [HIDDEN]
