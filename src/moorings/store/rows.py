"""Records to rows and back, exactly.

A row is a tuple in the order of its table's columns, because drivers take and give that fastest; the parsers take a
row's values as arguments, so that the types of columns are written down once, here. Pure: no database access.

Text from outside (reasons, jobs, vendors' words) is stored as ASCII JSON: then a lone surrogate from a file name that
is not UTF-8, or a NUL, does not make a commit fail with all other records of its group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from moorings.core.model.access import Ownership, Role
from moorings.core.model.claims import (
    CheckpointContract,
    Claim,
    ClaimId,
    ClaimSpec,
    ClaimState,
    PartitionId,
    PoolBlock,
    QueueMode,
    claim_spec_payload,
)
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.events import EVENT_VERSION, Event
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.projects import Project, ProjectUsage
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.ports.store import AccessKey, Archive, Epoch, IdempotencyRecord, Leader, Seq
from moorings.ports.store import EventRow as Numbered
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.checkpoints import RunCheckpoint
from moorings.workloads.dependencies import RunHold
from moorings.workloads.environment import names_alone
from moorings.workloads.jobs import Accelerators, JobSpec, JobSummary, Resources, summarize_job
from moorings.workloads.runs import LossRecord, Run, RunId, RunPause, RunState, Submitter

Value = str | int | None
RowTuple = tuple[Value, ...]

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_NO_TEXT = _encode("")  # by far the most frequent reason


def _text(text: str) -> str:
    return _encode(text) if text else _NO_TEXT


def _instant(value: int | None) -> Timestamp | None:
    return None if value is None else Timestamp(value)


def _block(text: str) -> Block:
    return Block.parse(text) if text else Block.of([])


def _project_name(project: str | None) -> str | None:
    """A project in a column: only what may be the name of one, which every database can hold."""
    return project if project and project.isascii() and project.isprintable() else None


# --------------------------------------------------------------------------------------------------------------- claims


def claim_row(claim: Claim) -> RowTuple:
    """The row of ``claims``."""
    return (
        claim.id,
        claim.name,
        claim.owner,
        claim.subject,
        claim.arrival,
        claim.state.value,
        claim.version,
        claim.attempt,
        claim.broken,
        claim.pool,
        claim.partition,
        _spec_text(claim.spec),
        None if claim.reason is None else _reason_text(claim.reason),
        claim.granted_at,
        claim.ready_at,
        claim.ended_at,
        claim.lease_until,
        None if claim.cell is None else str(claim.cell),
        claim.checkpoint_at,
        claim.asked_until,
        None if claim.kept is None else claim.kept.pool,
        None if claim.kept is None else str(claim.kept.block),
        _project_name(claim.spec.project),
    )


def parse_claim(
    ident: str,
    name: str,
    owner: str,
    subject: str,
    arrival: int,
    state: str,
    version: int,
    attempt: int,
    broken: int,
    pool: str | None,
    partition: str | None,
    spec: str,
    reason: str | None,
    granted_at: int | None,
    ready_at: int | None,
    ended_at: int | None,
    lease_until: int | None,
    cell: str | None,
    checkpoint_at: int | None,
    asked_until: int | None,
    kept_pool: str | None,
    kept: str | None,
    project: str | None,  # the request has it too; its column is there for searches
) -> Claim:
    """The claim of a row of ``claims``."""
    return Claim(
        id=ClaimId(ident),
        name=name,
        owner=owner,
        subject=subject,
        spec=_spec_of(spec),
        state=ClaimState(state),
        arrival=Timestamp(arrival),
        version=version,
        attempt=attempt,
        broken=broken,
        pool=None if pool is None else PoolName(pool),
        partition=None if partition is None else PartitionId(partition),
        reason=None if reason is None else _reason_of(reason),
        granted_at=_instant(granted_at),
        ready_at=_instant(ready_at),
        ended_at=_instant(ended_at),
        lease_until=_instant(lease_until),
        cell=None if cell is None else _block(cell),
        checkpoint_at=_instant(checkpoint_at),
        asked_until=_instant(asked_until),
        kept=None if kept_pool is None or kept is None else PoolBlock(PoolName(kept_pool), _block(kept)),
    )


def _spec_text(spec: ClaimSpec) -> str:
    # Written out, not by dataclasses.asdict, which takes four times as long in every save of a claim.
    return _encode(claim_spec_payload(spec) | {"checkpoint": _contract(spec.checkpoint)})


def _spec_of(text: str) -> ClaimSpec:
    values = json.loads(text)
    values["checkpoint"] = CheckpointContract(**values["checkpoint"])
    values["queue"] = QueueMode(values["queue"])
    return ClaimSpec(**values)


def _contract(contract: CheckpointContract) -> Mapping[str, object]:
    return {
        "grace_s": contract.grace_s,
        "resumable": contract.resumable,
        "warn_s": contract.warn_s,
        "warn_signal": contract.warn_signal,
    }


def _reason_text(reason: Reason) -> str:
    return _encode(
        {
            "blockers": reason.blockers,
            "code": reason.code,
            "hint": reason.hint,
            "message": reason.message,
            "until": reason.until,
        }
    )


def _reason_of(text: str) -> Reason:
    values = json.loads(text)
    values["blockers"] = tuple(values["blockers"])
    return Reason(**values)


# ----------------------------------------------------------------------------------------------- partitions and devices


def partition_row(partition: Partition) -> RowTuple:
    """The row of ``partitions``."""
    return (
        partition.id,
        partition.name,
        partition.claim,
        partition.pool,
        str(partition.block),
        partition.gcds,
        partition.replicas_per_gcd,
        partition.state.value,
        partition.since,
        partition.version,
        _text(partition.reason),
    )


def parse_partition(
    ident: str,
    name: str,
    claim: str,
    pool: str,
    block: str,
    gcds: int,
    replicas_per_gcd: int,
    state: str,
    since: int,
    version: int,
    reason: str,
) -> Partition:
    """The partition of a row of ``partitions``."""
    return Partition(
        id=PartitionId(ident),
        name=name,
        claim=ClaimId(claim),
        pool=PoolName(pool),
        block=_block(block),
        gcds=gcds,
        replicas_per_gcd=replicas_per_gcd,
        state=PartitionState(state),
        since=Timestamp(since),
        version=version,
        reason=json.loads(reason),
    )


def partition_device_rows(partition: Partition) -> Iterator[RowTuple]:
    """The rows of ``partition_devices`` that a new partition needs, one a device."""
    pool, ident = partition.pool, partition.id
    return ((pool, index, ident) for index in partition.block)


def device_row(device: Device) -> RowTuple:
    """The row of ``devices``."""
    return (device.pool, device.index, device.state.value, _text(device.reason), device.since)


def parse_device(pool: str, index: int, state: str, reason: str, since: int) -> Device:
    """The device of a row of ``devices``."""
    return Device(PoolName(pool), index, DeviceState(state), json.loads(reason), Timestamp(since))


# ----------------------------------------------------------------------------------------------------------------- runs


def run_row(run: Run, job: JobSpec | None) -> RowTuple:
    """The row of ``runs``; with the whole job if the run is new, because the job is written once."""
    return (
        run.id,
        run.job.name,
        run.engine,
        run.subject,
        run.created_at,
        int(run.within),
        run.job.appliance.kind.value if run.job.appliance is not None else None,
        run.job.appliance.workflow if run.job.appliance is not None else None,
        _job_text(job) if job is not None else None,
        _encode(to_plain(run.job)) if job is not None else None,
        run.claim,
        run.state.value,
        run.version,
        run.attempt,
        run.reference,
        run.started_at,
        run.ended_at,
        run.exit_code,
        _encode(run.task_codes),
        _text(run.stop_reason),
        _text(run.detail),
        labels_text(run.labels),
        _checkpoints_text(run),
        _project_name(run.job.project),
    )


def _checkpoints_text(run: Run) -> str | None:
    later = {
        "chosen_at": run.chosen_at,
        "pause": to_plain(run.pause) if run.pause is not None else None,
        "loss_record": to_plain(run.loss_record) if run.loss_record is not None else None,
        "spool_entry": run.spool_entry or None,
        "submitter": to_plain(run.submitter) if run.submitter is not None else None,
        "hold": to_plain(run.hold) if run.hold is not None else None,
    }
    later = {name: value for name, value in later.items() if value is not None}
    if not run.checkpoints and not run.checkpoint_fault and run.resumed_from is None and not later:
        return None
    given = to_plain(run.resumed_from) if run.resumed_from is not None else None
    found = [to_plain(each) for each in run.checkpoints]
    return _encode({"found": found, "fault": run.checkpoint_fault, "resumed_from": given, **later})


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as stored; the text of one label is a substring, whatever other labels there are."""
    return _encode(labels)


def parse_run(
    ident: str,
    name: str,  # the job has it too; its column is there for searches
    engine: str,
    subject: str,
    created_at: int,
    within: int,
    kind: str | None,  # the job has these two, too
    workflow: str | None,
    job: str | None,  # only of a row without a head
    head: str | None,
    claim: str | None,
    state: str,
    version: int,
    attempt: int,
    reference: str | None,
    started_at: int | None,
    ended_at: int | None,
    exit_code: int | None,
    task_codes: str,
    stop_reason: str,
    detail: str,
    labels: str,
    checkpoints: str | None,
    project: str | None,  # as in a claim
) -> Run:
    """The run of a row of ``runs``."""
    saved = json.loads(checkpoints) if checkpoints is not None else {"found": [], "fault": "", "resumed_from": None}
    return Run(
        id=RunId(ident),
        job=_head_of(head, job),
        engine=engine,
        subject=subject,
        claim=ClaimId(claim) if claim is not None else None,
        state=RunState(state),
        created_at=Timestamp(created_at),
        within=bool(within),
        labels=json.loads(labels),
        version=version,
        attempt=attempt,
        reference=reference,
        started_at=_instant(started_at),
        ended_at=_instant(ended_at),
        exit_code=exit_code,
        task_codes=tuple(json.loads(task_codes)),
        stop_reason=json.loads(stop_reason),
        detail=json.loads(detail),
        checkpoints=tuple(from_plain(RunCheckpoint, each) for each in saved["found"]),
        checkpoint_fault=saved["fault"],
        resumed_from=from_plain(RunCheckpoint, saved["resumed_from"]) if saved["resumed_from"] is not None else None,
        chosen_at=_instant(saved.get("chosen_at")),
        pause=from_plain(RunPause, saved["pause"]) if "pause" in saved else None,
        loss_record=from_plain(LossRecord, saved["loss_record"]) if "loss_record" in saved else None,
        spool_entry=saved.get("spool_entry", ""),
        submitter=from_plain(Submitter, saved["submitter"]) if "submitter" in saved else None,
        hold=from_plain(RunHold, saved["hold"]) if "hold" in saved else None,
    )


def _job_text(job: JobSpec) -> str:
    wanted, resources = job.accelerators, job.resources
    part = job.appliance
    later = {
        "labels": dict(job.labels) or None,
        "lease_s": job.lease_s,
        "appliance": {"kind": part.kind.value, "workflow": part.workflow} if part is not None else None,
        "preemptible": job.preemptible or None,
        "resume_args": list(job.resume_args) or None,
        "retries": job.retries or None,
        "setup": list(job.setup) or None,
        "terminal_keep_s": job.terminal_keep_s,
        "after": list(job.after) or None,
        "array": job.array or None,
    }
    return _encode(
        {
            "accelerators": {
                "kind": wanted.kind,
                "pool": wanted.pool,
                "replicas": wanted.replicas,
                "size": wanted.size,
                **({"resources": dict(wanted.resources)} if wanted.resources else {}),
            },
            "checkpoint": _contract(job.checkpoint),
            "checkpoint_directory": job.checkpoint_directory,
            "command": job.command,
            "environment": names_alone(job.environment),
            "image": job.image,
            "name": job.name,
            "priority": job.priority,
            "project": job.project,
            "resources": {"cpus": resources.cpus, "memory_bytes": resources.memory_bytes, "nodes": resources.nodes},
            "tasks": job.tasks,
            "time_limit_s": job.time_limit_s,
            "workdir": job.workdir,
            **{name: value for name, value in later.items() if value is not None},
        }
    )


def _head_of(head: str | None, job: str | None) -> JobSummary:
    if head is not None:
        return from_plain(JobSummary, json.loads(head))
    assert job is not None, "a run has a job"
    return summarize_job(parse_job_text(job))  # its size counts as 0: the log, which replays read, has none either


def parse_job_text(text: str) -> JobSpec:
    """The job of a row of ``runs``."""
    values = json.loads(text)
    values["accelerators"] = Accelerators(**values["accelerators"])
    values["checkpoint"] = CheckpointContract(**values["checkpoint"])
    values["command"] = tuple(values["command"])
    values["resources"] = Resources(**values["resources"])
    for name in ("resume_args", "setup", "after"):
        if name in values:
            values[name] = tuple(values[name])
    if (part := values.get("appliance")) is not None:
        values["appliance"] = WorkflowPart(ApplianceJobType(part["kind"]), part["workflow"])
    return JobSpec(**values)


# ------------------------------------------------------------------------------------------------------------- projects


def project_row(project: Project) -> RowTuple:
    """The row of ``projects``."""
    values = to_plain(project)
    assert isinstance(values, dict)
    rest = {name: value for name, value in values.items() if name not in ("name", "version")}
    return (project.name, project.version, _encode(rest))


def parse_project(name: str, version: int, project: str) -> Project:
    """The project of a row of ``projects``."""
    return from_plain(Project, {**json.loads(project), "name": name, "version": version})


def usage_row(usage: ProjectUsage) -> RowTuple:
    """The row of ``project_usage``."""
    return (usage.project, usage.used, usage.at)


def parse_usage(project: str, used: int, at: int) -> ProjectUsage:
    """The usage of a row of ``project_usage``."""
    return ProjectUsage(project, used, Timestamp(at))


# --------------------------------------------------------------------------------------------------------------- events


def event_row(seq: int, event: Event) -> RowTuple:
    """The row of ``outbox``."""
    data = event.data
    if not data.isascii():
        # A lone surrogate, which no database accepts, becomes the JSON escape that means the same.
        data = data.encode(errors="backslashreplace").decode()
    return (
        seq,
        event.name,
        event.at,
        event.claim,
        event.partition,
        event.run,
        event.pool,
        event.device,
        EVENT_VERSION,
        data,
        event.ownership.subject,
        event.ownership.owner,
        _project_name(event.ownership.project),
    )


def parse_event(
    seq: int,
    name: str,
    at: int,
    claim: str | None,
    partition: str | None,
    run: str | None,
    pool: str | None,
    device: str | None,
    version: int,  # there is only one version so far; the next one will translate older data here
    data: str,
    subject: str | None,
    owner: str | None,
    project: str | None,
) -> Numbered:
    """The numbered event of a row of ``outbox``."""
    return Numbered(
        Seq(seq),
        Event(
            name=name,
            at=Timestamp(at),
            claim=claim,
            partition=partition,
            run=run,
            pool=pool,
            device=device,
            data=data,
            ownership=Ownership(subject, owner, project),
        ),
    )


def archive_values(archive: Archive) -> Mapping[str, Value]:
    """The values of a row of ``archives``, by column."""
    return {
        "last": archive.last,
        "first": archive.first,
        "digest": archive.digest,
        "holder": archive.controller_name,
        "at": archive.at,
    }


def parse_archive(last: int, first: int, digest: str, holder: str, at: int) -> Archive:
    """The archive of a row of ``archives``."""
    return Archive(Seq(first), Seq(last), digest, holder, Timestamp(at))


# --------------------------------------------------------------------------------------------------- leading and keys


def parse_leader(holder: str, url: str, url_epoch: int, epoch: int, led_at: int | None) -> Leader:
    """The leader in the row of ``installation``; an address of another epoch is another leader's."""
    return Leader(holder, url if url_epoch == epoch else "", Epoch(epoch), _instant(led_at))


def key_use_row(use: IdempotencyRecord) -> RowTuple:
    """The row of ``idempotency_keys``."""
    return (use.subject, use.key, use.digest, use.claim, use.run)


def parse_idempotency_record(
    subject: str, key: str, digest: str, claim: str | None, run: str | None
) -> IdempotencyRecord:
    """The key's use of a row of ``idempotency_keys``."""
    return IdempotencyRecord(
        subject, key, digest, None if claim is None else ClaimId(claim), None if run is None else RunId(run)
    )


def access_key_row(key: AccessKey) -> RowTuple:
    """The row of ``access_keys``."""
    head = (key.id, key.subject, key.role.value, key.owner_prefix, key.digest, key.created_at, key.revoked_at)
    return (*head, key.expires_at, key.rotated_at, key.previous_digest, key.previous_valid_until)


def parse_access_key(
    ident: str,
    subject: str,
    role: str,
    owner_prefix: str,
    digest: str,
    created_at: int,
    revoked_at: int | None,
    expires_at: int | None,
    rotated_at: int | None,
    old_digest: str | None,
    old_until: int | None,
) -> AccessKey:
    """The access key of a row of ``access_keys``."""
    return AccessKey(
        ident,
        subject,
        Role(role),
        owner_prefix,
        digest,
        Timestamp(created_at),
        _instant(revoked_at),
        _instant(expires_at),
        _instant(rotated_at),
        old_digest,
        _instant(old_until),
    )
