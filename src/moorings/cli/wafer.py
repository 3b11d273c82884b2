"""Jobs of wafer-scale appliances in their users' terms: the columns, the phases, and the objects that scripts read.

An object has ``meta``, ``spec`` and ``status``, as with the vendor's command, so that a site's scripts keep working.
``shapes`` would be the wrong place: the API has runs, and these are a view of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.cli.kinds import NOTHING, ResourceKind, TableColumn, age, wide
from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.access import APPLIANCE_OWNER_PREFIX
from moorings.core.errors import MooringsError
from moorings.core.instants import Timestamp, seconds_between
from moorings.core.quantities import age_text
from moorings.core.topology import Block
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ApplianceJobBody, ClaimBody, LabelsRequest, RunBody
from moorings.workloads.appliance import AppliancePhase, appliance_phase, priority_bucket
from moorings.workloads.labels import check_labels

SESSION = "default"
SINGLE_QUERIES_MAX = 10  # up to this many reasons are requested one by one; for more, the whole queue is read


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJobMeta:
    """A job's identity: ``namespace`` is its session, which is its project."""

    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    create_time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJobSpec:
    """The request: ``priority_value`` is 0 (first) to 399."""

    type: str
    user: str
    workflow: str
    priority: str
    priority_value: int
    num_systems: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJobStatus:
    """The job's status: ``systems`` are those it holds now."""

    phase: str
    systems: tuple[str, ...] = ()
    schedule_time: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    position: int | None = None
    reason: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJob:
    """One job, as shown."""

    meta: WaferJobMeta
    spec: WaferJobSpec
    status: WaferJobStatus

    @property
    def queued(self) -> bool:
        """Whether it waits in the queue."""
        return self.status.phase == AppliancePhase.QUEUED


def job_from_list(body: ApplianceJobBody) -> WaferJob:
    """A job from a list; the list has no reason for its wait."""
    return WaferJob(
        meta=WaferJobMeta(name=body.id, namespace=body.project, labels=body.labels, create_time=body.created_at),
        spec=WaferJobSpec(
            type=body.kind,
            user=body.subject,
            workflow=body.workflow,
            priority=priority_bucket(body.priority),
            priority_value=max(-body.priority, 0),
            num_systems=body.systems,
        ),
        status=WaferJobStatus(
            phase=appliance_phase(body.state, scheduled=body.scheduled_at is not None),
            systems=system_names(body.pool, body.devices),
            schedule_time=body.scheduled_at,
            start_time=body.started_at,
            end_time=body.ended_at,
            reason=body.detail,
        ),
    )


def job_from_run(run: RunBody) -> WaferJob:
    """A job from all the data of its run.

    Raises:
        MooringsError: ``run.unknown``: it is not a job of an appliance.
    """
    part = run.job.appliance
    if part is None:
        raise MooringsError("run.unknown", f"{run.id} is no job of an appliance", hint="see 'moor get runs'")
    ended = run.ended_at is not None
    reason = run.detail if ended else run.reason.message if run.reason is not None else ""
    phase = appliance_phase(run.state, scheduled=run.scheduled_at is not None)
    return WaferJob(
        meta=WaferJobMeta(name=run.id, namespace=run.job.project, labels=run.labels, create_time=run.created_at),
        spec=WaferJobSpec(
            type=part.kind,
            user=run.subject,
            workflow=part.workflow,
            priority=priority_bucket(run.priority),
            priority_value=max(-run.priority, 0),
            num_systems=run.job.accelerators.size,
        ),
        status=WaferJobStatus(
            phase=phase,
            systems=system_names(run.pool, run.devices),
            schedule_time=run.scheduled_at,
            start_time=run.started_at,
            end_time=run.ended_at,
            position=None if ended else run.position,
            reason=reason or None,
            exit_code=run.exit_code,
        ),
    )


def system_names(pool: str | None, devices: str) -> tuple[str, ...]:
    """The systems in a list of devices, as ``moor drain device`` accepts them: ``cs:0``, ``cs:1``."""
    return tuple(f"{pool}:{index}" for index in Block.parse(devices).members) if pool and devices else ()


def systems_text(systems: Sequence[str]) -> str:
    """Systems of a pool in short form: ``cs:0-3,7``."""
    if not systems:
        return ""
    pool = systems[0].rpartition(":")[0]
    return f"{pool}:{Block.of([int(name.rpartition(':')[2]) for name in systems])}"


_RANKS: Mapping[str, int] = {AppliancePhase.RUNNING: 0, AppliancePhase.SCHEDULED: 1, AppliancePhase.QUEUED: 2}


def sort_jobs(jobs: Sequence[WaferJob]) -> list[WaferJob]:
    """Running jobs, then the queue in its order, then ended jobs; each oldest first."""

    def place(job: WaferJob) -> tuple[int, int, int, str]:
        rank = _RANKS.get(job.status.phase, 3)
        return rank, job.spec.priority_value if job.queued else 0, job.status.position or 0, job.meta.create_time

    return sorted(jobs, key=place)


def with_reasons(client: Client, jobs: Sequence[WaferJob]) -> list[WaferJob]:
    """Jobs, with reasons and places in the queue for those that wait."""
    waiting = [job.meta.name for job in jobs if job.queued]
    if len(waiting) <= SINGLE_QUERIES_MAX:
        told = {name: job_from_run(client.run(name)).status for name in waiting}
    else:
        claims = client.claims(ClaimFilter(state="PENDING", owner_prefix=APPLIANCE_OWNER_PREFIX))
        told = {claim.owner.removeprefix(APPLIANCE_OWNER_PREFIX): _queued_status(claim) for claim in claims}
    return [
        replace(job, status=replace(job.status, position=said.position, reason=said.reason))
        if job.queued and (said := told.get(job.meta.name)) is not None
        else job
        for job in jobs
    ]


def _queued_status(claim: ClaimBody) -> WaferJobStatus:
    reason = claim.reason.message if claim.reason is not None else None
    return WaferJobStatus(phase=AppliancePhase.QUEUED.value, position=claim.position, reason=reason)


# -- the table ---------------------------------------------------------------------------------------------------------


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels for a table: ``team=nlp,user=ann``."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def job_duration(status: WaferJobStatus, now: Timestamp) -> str:
    """How long a job has run, or ran."""
    if status.start_time is None:
        return NOTHING
    end = parse_time(status.end_time) if status.end_time is not None else now
    return age_text(seconds_between(parse_time(status.start_time), end))


def _reason(status: WaferJobStatus) -> str:
    place = f"position {status.position}" if status.position is not None else ""
    return f"{status.reason} ({place})" if status.reason and place else status.reason or place


JOBS: ResourceKind[WaferJob] = ResourceKind(
    "job",
    "jobs",
    (),
    "WaferJob",
    WaferJob,
    (
        TableColumn("SESSION", lambda job, _now: job.meta.namespace),
        TableColumn("NAME", lambda job, _now: job.meta.name),
        TableColumn("TYPE", lambda job, _now: job.spec.type),
        TableColumn("PRIORITY", lambda job, _now: job.spec.priority),
        TableColumn("AGE", lambda job, now: age(job.meta.create_time, now)),
        TableColumn("DURATION", lambda job, now: job_duration(job.status, now)),
        TableColumn("PHASE", lambda job, _now: job.status.phase),
        TableColumn("SYSTEMS", lambda job, _now: systems_text(job.status.systems)),
        TableColumn("USER", lambda job, _now: job.spec.user),
        TableColumn("LABELS", lambda job, _now: labels_text(job.meta.labels)),
        TableColumn("WORKFLOW", lambda job, _now: job.spec.workflow),
        TableColumn("DASHBOARD", lambda _job, _now: ""),  # none of our pages shows a job
        wide("VALUE", lambda job, _now: job.spec.priority_value),
        wide("WANTS", lambda job, _now: job.spec.num_systems),
        wide("REASON", lambda job, _now: _reason(job.status)),
    ),
    lambda job: job.meta.name,
)


# -- what people write -------------------------------------------------------------------------------------------------


def job_name(text: str) -> str:
    """A job's name, from ``NAME``, ``job/NAME``, ``SESSION/NAME``, or its Slurm step's name ``NAME-csxN``."""
    name = text.rpartition("/")[2]
    stem, mark, count = name.rpartition("-csx")
    return stem if mark and count.isascii() and count.isdigit() else name


def parse_selectors(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Labels to search for: ``key=value``, several joined by commas or given one by one.

    Raises:
        MooringsError: ``label.invalid``.
    """
    pairs = []
    for text in ",".join(texts).split(",") if texts else ():
        key, equals, value = text.partition("=")
        if not equals:
            raise MooringsError("label.invalid", f"{text[:80]!r} is not KEY=VALUE", hint="write -l team=nlp")
        check_labels({key: value})
        pairs.append((key, value))
    return tuple(pairs)


def parse_changes(texts: Sequence[str]) -> LabelsRequest:
    """Changes of labels: ``key=value`` sets one, ``key-`` removes one.

    Raises:
        MooringsError: ``label.invalid``.
    """
    wanted: dict[str, str] = {}
    gone: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and not text.endswith("-"):
            raise MooringsError(
                "label.invalid", f"{text[:80]!r} changes no label", hint="write KEY=VALUE to set one, KEY- to remove it"
            )
        key = key if equals else text[:-1]
        check_labels({key: value})
        if key in wanted or key in gone:
            raise MooringsError("label.invalid", f"label {key} is named twice", hint="say once what becomes of it")
        if equals:
            wanted[key] = value
        else:
            gone.append(key)
    return LabelsRequest(labels=wanted, remove=tuple(gone))
