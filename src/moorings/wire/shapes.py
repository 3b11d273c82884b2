"""The shapes of requests and responses, version 1. Adding a field is compatible; renaming one needs a new version.

Names end in ``Request`` (requests) or ``Body`` (responses). Times are RFC 3339 strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from moorings.wire.lazy_dataclass import dataclass

API_VERSION = "moorings/v1"


@dataclass(frozen=True, kw_only=True)
class CheckpointShape:
    """What the job promises about stopping: seconds, and a signal's name without SIG."""

    resumable: bool = False
    warn_signal: str | None = None
    warn_s: float = 120.0
    grace_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """``POST /v1/claims``: somebody's wish for a partition. ``owner`` defaults to ``user/<subject of the key>``.

    Of an agent alone: ``waiting_since`` (RFC 3339), its place in the queue is that of a claim made then; and
    ``person``, for whom it claims.
    """

    size: int
    accelerator: str = "ipu"
    name: str | None = None
    gcds: int = 1
    replicas_per_gcd: int = 1
    pool: str | None = None
    owner: str | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    project: str = "default"
    priority: int = 0
    time_limit_s: float | None = None
    preemptible: bool = False
    checkpoint: CheckpointShape = CheckpointShape()
    lease_s: float | None = None
    queue: str = "wait"
    waiting_since: str | None = None
    person: str | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionRequest:
    """``POST /v1/partitions``: a partition made by hand; it becomes a ``user/`` claim of the same name."""

    name: str
    size: int
    accelerator: str = "ipu"
    gcds: int = 1
    replicas_per_gcd: int = 1
    pool: str | None = None


@dataclass(frozen=True, kw_only=True)
class AcceleratorsShape:
    """Devices and model replicas of the whole job (replicas: one a task if not given)."""

    kind: str = "ipu"
    size: int = 1
    replicas: int | None = None
    pool: str | None = None
    resources: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ApplianceShape:
    """A job's part in a workflow of an appliance: ``compile`` or ``execute``."""

    kind: str
    workflow: str


@dataclass(frozen=True, kw_only=True)
class ResourcesShape:
    """CPUs and memory of one task; hosts of the job."""

    cpus: int = 1
    memory_bytes: int | None = None
    nodes: int = 1


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """A complete job, as in the job file but with nothing left to look up."""

    name: str
    command: tuple[str, ...]
    workdir: str
    environment: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1
    accelerators: AcceleratorsShape = AcceleratorsShape()
    resources: ResourcesShape = ResourcesShape()
    project: str = "default"
    priority: int = 0
    time_limit_s: float | None = None
    checkpoint: CheckpointShape = CheckpointShape()
    checkpoint_directory: str | None = None
    image: str | None = None
    labels: Mapping[str, str] | None = None
    lease_s: float | None = None
    appliance: ApplianceShape | None = None
    preemptible: bool | None = None
    resume_args: tuple[str, ...] | None = None
    retries: int | None = None
    setup: tuple[str, ...] | None = None
    terminal_keep_s: float | None = None
    after: tuple[str, ...] | None = None
    array: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubmitterShape:
    """The person who submits a run to Slurm: their uid there, and the SHA-256 of the token that its reports carry.

    ``token_digests``: of an array, one for each element, by index.
    """

    uid: int
    token_digest: str
    token_digests: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """``POST /v1/runs``: start a job; within ``claim``, which stays when the run has ended, if one is named.

    ``spool_entry``: the job as it was handed in to the root daemon of a machine that people share; ``spool_entries``:
    of an array, one for each element, by index. ``submitter``: the person submits it to Slurm once the run is made.
    """

    job: JobShape
    engine: str = "local"
    claim: str | None = None
    resume: str | None = None
    resume_from: str | None = None
    spool_entry: str | None = None
    spool_entries: tuple[str, ...] | None = None
    submitter: SubmitterShape | None = None


@dataclass(frozen=True, kw_only=True)
class SlurmJobShape:
    """A job of Slurm that carries the comment of a run, as a listing or the accounting shows it.

    ``state``: empty if Slurm knows the job no more. ``started``: it had nodes. ``ended_at``: None while it has not
    ended.
    """

    run: str
    attempt: int
    job: int
    uid: int
    state: str
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    started: bool = False
    ended_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReportedFileShape:
    """A small file of an attempt's folder, with when it was written."""

    name: str
    text: str
    modified_at: str


@dataclass(frozen=True, kw_only=True)
class ReportedOutputShape:
    """A part of a task's output, in Base64; ``offset``: where in the output it begins, in bytes."""

    task: int
    offset: int
    data: str


@dataclass(frozen=True, kw_only=True)
class RunReportRequest:
    """``POST /v1/runs/{id}/report``: what the folder of a run's attempt shows, and what its person sees in Slurm.

    ``present``: the names of all such files; others are there no more. ``job``: as the person's own squeue or sacct
    shows it. ``abandoned``: it was not submitted, and never will be.
    """

    attempt: int
    files: tuple[ReportedFileShape, ...] = ()
    present: tuple[str, ...] | None = None
    output: tuple[ReportedOutputShape, ...] = ()
    job: SlurmJobShape | None = None
    abandoned: bool = False


@dataclass(frozen=True, kw_only=True)
class SubmittedJobsRequest:
    """``POST /v1/queues/{kind}/{cluster}/jobs``: the jobs of runs in a complete listing of these users.

    ``accounted``: ended jobs in the accounting, of those that were to be looked up.
    """

    instance: str
    uids: tuple[int, ...] = ()
    jobs: tuple[SlurmJobShape, ...] = ()
    accounted: tuple[SlurmJobShape, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LabelsRequest:
    """``POST /v1/runs/{id}/labels``: labels to set; those of ``remove`` go."""

    labels: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PauseRequest:
    """``POST /v1/runs/{id}/pause``: how many seconds the run may take to save a checkpoint; else its ``warnS``."""

    save_timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ResumeRequest:
    """``POST /v1/runs/{id}/resume``: the checkpoint to resume from, by path or name; else the newest whole one."""

    resume_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class PriorityRequest:
    """``POST /v1/runs/{id}/priority``: higher is first; of an appliance's jobs it is less than 0 (-299 is P2)."""

    priority: int


@dataclass(frozen=True, kw_only=True)
class YieldRequest:
    """``POST /v1/claims/{id}/yield``: its job has stopped, as it was asked; why, for the log."""

    why: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """``POST /v1/claims/{id}/checkpoint``: its job has saved its state; now, if it does not say when."""

    at: str | None = None


@dataclass(frozen=True, kw_only=True)
class EstimateRequest:
    """``POST /v1/estimate``: when a claim would start that was made now; ``kind`` is that of the accelerator."""

    size: int
    kind: str = "ipu"
    pool: str | None = None
    gcds: int = 1
    project: str = "default"
    priority: int = 0
    time_limit_s: float | None = None
    preemptible: bool = False


@dataclass(frozen=True, kw_only=True)
class ShareShape:
    """What a project is guaranteed in one pool: how many blocks of each size (as text), of size 1 single devices."""

    pool: str
    blocks: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ProjectRequest:
    """``PUT /v1/projects/{name}``: all of a project; ``version`` is the one that is changed, without it a new one."""

    shares: tuple[ShareShape, ...] = ()
    weight: float = 1.0
    devices_max: int | None = None
    user_devices_max: int | None = None
    priority_max: int | None = None
    waiting_max: int | None = None
    waiting_bytes_max: int | None = None
    members: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    admins: tuple[str, ...] | None = None
    open: bool | None = None
    user_limits: Mapping[str, int] | None = None
    version: int | None = None


@dataclass(frozen=True, kw_only=True)
class DrainRequest:
    """``POST /v1/devices/{id}/drain``: why, for the humans after you."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class KeyRequest:
    """``POST /v1/keys``: an access key for ``subject``; an agent's names the owners it may act for."""

    subject: str
    role: str = "user"
    owner_prefix: str | None = None
    lifetime_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RotateRequest:
    """``POST /v1/keys/{id}/rotate``: how long the old secret still works; admins may give another lifetime."""

    grace_s: float | None = None
    lifetime_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class QueuedJobShape:
    """A job that waits in another scheduler; ``owner`` is that of the claim which will be made when it starts.

    ``preemptible``: that claim may be asked to yield.
    """

    owner: str
    size: int
    gcds: int = 1
    replicas_per_gcd: int = 1
    pool: str | None = None
    since: str | None = None
    time_limit_s: float | None = None
    project: str = "default"
    preemptible: bool | None = None


@dataclass(frozen=True, kw_only=True)
class QueueRequest:
    """``POST /v1/queues``: the first jobs that wait in another scheduler's queue, in its own order.

    The list replaces the one before, and is believed for ``for_s`` seconds. Meanwhile one of another ``instance`` is
    refused: two schedulers of one name must not take each other's claims for their own.
    """

    queue: str
    accelerator: str = "ipu"
    jobs: tuple[QueuedJobShape, ...] = ()
    for_s: float = 120.0
    instance: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReasonBody:
    """Why something waits or was refused."""

    code: str
    message: str
    blockers: tuple[str, ...] = ()
    until: str | None = None
    hint: str = ""

    @property
    def sentence(self) -> str:
        """The message, and until when at the latest, if that is known."""
        return f"{self.message}; until {self.until[:19]}Z at the latest" if self.until else self.message


@dataclass(frozen=True, kw_only=True)
class ClaimBody:
    """A claim. ``position`` is its place among the claims that wait (1 is next); ``devices`` is a folded list.

    ``cell`` are the devices of its project's guarantee that its own lie in; without one it borrows them.
    ``asked_until`` is by when it was asked to yield. ``person`` is for whom a program claims, by its word.
    """

    id: str
    name: str
    owner: str
    subject: str
    state: str
    accelerator: str
    size: int
    gcds: int
    replicas_per_gcd: int
    project: str
    priority: int
    preemptible: bool
    attempt: int
    created_at: str
    resources: Mapping[str, int] = field(default_factory=dict)
    checkpoint: CheckpointShape = CheckpointShape()
    pool: str | None = None
    partition: str | None = None
    partition_id: str | None = None
    devices: str | None = None
    time_limit_s: float | None = None
    lease_s: float | None = None
    lease_until: str | None = None
    position: int | None = None
    reason: ReasonBody | None = None
    granted_at: str | None = None
    ready_at: str | None = None
    ended_at: str | None = None
    cell: str | None = None
    asked_until: str | None = None
    machine: Mapping[str, int] | None = None
    person: str | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionBody:
    """A partition that exists, or is being made or removed."""

    id: str
    name: str
    claim: str
    owner: str
    pool: str
    accelerator: str
    size: int
    devices: str
    gcds: int
    replicas_per_gcd: int
    state: str
    since: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TopologyShape:
    """How a pool is wired."""

    type: str
    domains: int
    domain_size: int
    max_block: int
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PoolBody:
    """A pool: ``free`` devices could be given out now, ``largest`` is the largest partition that fits now.

    ``available`` holds, for each allowed size (as text), how many partitions of that size could be formed now.
    ``resources_used``: what claims hold of its secondary ``resources``; left out where it has none.
    """

    name: str
    accelerator: str
    driver: str
    reachable: bool
    devices: int
    free: int
    out_of_service: int
    largest: int
    waiting: int
    partitions: int
    topology: TopologyShape
    available: Mapping[str, int]
    resources: Mapping[str, int] = field(default_factory=dict)
    resources_used: Mapping[str, int] | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class CapacityBody:
    """``GET /v1/pools/{pool}/capacity?size=N``: how many partitions of that size could be formed now."""

    pool: str
    size: int
    partitions: int
    free: int
    largest: int


FOREIGN_REASON = "made outside Moorings"  # in the reason of a device; without it the partition may be ours, and a job's


@dataclass(frozen=True, kw_only=True)
class DeviceBody:
    """A device and who holds it."""

    id: str
    pool: str
    accelerator: str
    index: int
    domain: int
    state: str
    reason: str = ""
    since: str | None = None
    partition: str | None = None
    claim: str | None = None
    owner: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueuedJobBody:
    """A job that waits elsewhere, and why; ``offered`` if its scheduler may start it now.

    ``pool`` is the only one that it may be placed in, if it names one.
    """

    owner: str
    size: int
    offered: bool
    reason: ReasonBody | None = None
    pool: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueueBody:
    """Another scheduler's queue, as it was told, and what that scheduler may start now.

    ``offer`` holds, for each pool and each size (as text), how many partitions of that size it could have; ``held`` how
    many its claims hold, of those that it could have again at once: none that is being removed, or has a device that
    goes out of service. ``others_wait`` are the pools for whose devices somebody waits who is not of this queue, before
    or behind its jobs. ``version`` changes whenever one of the three does.
    ``next_up`` holds, for each pool, the owner of the job that gets what becomes free there next; a pool is left out
    where somebody else waits before all of them. ``contested_at`` is when a list of another instance was refused last,
    to a minute.
    """

    queue: str
    accelerator: str
    version: str
    offer: Mapping[str, Mapping[str, int]]
    jobs: tuple[QueuedJobBody, ...]
    until: str
    next_up: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    others_wait: tuple[str, ...] = ()
    instance: str | None = None
    contested_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointBody:
    """A checkpoint of a run, as last seen; ``rule`` says how it was judged, ``why`` why it is not whole."""

    run: str
    path: str
    step: int | None = None
    size_bytes: int
    written_at: str
    write_s: float | None = None
    whole: bool
    rule: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class PauseBody:
    """The pause of a run: who asked for it, and when. About ``stopsAt`` it is stopped, whatever it has saved.

    Once it is PAUSED there is no ``stopsAt``. ``resumesAt``: an attempt of it was lost, and it resumes by itself then.
    """

    by: str
    asked_at: str
    stops_at: str | None = None
    resumes_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class IdleBody:
    """That a run holds devices and has not worked since then, as of the last reading; it is not stopped for that.

    ``shownToAdmins``: it has been idle for that long.
    """

    since: str
    shown_to_admins: bool


@dataclass(frozen=True, kw_only=True)
class ArrayBody:
    """The place of a run in its array; ``limit``: how many ask for devices at once, left out if all do."""

    id: str
    index: int
    size: int
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class SubmissionBody:
    """What the person's ``moor`` needs to submit an attempt to Slurm; what is empty is Slurm's own default.

    ``python``: the Python on the nodes that looks at checkpoints. ``resume_since``: only checkpoints that were saved
    later may take the place of ``resume_from``.
    """

    attempt: int
    account: str = ""
    partition: str = ""
    qos: str = ""
    python: str = ""
    resume_from: str | None = None
    resume_step: int | None = None
    resume_since: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunReportBody:
    """The answer to a report: the run's state, and by task how many bytes of its output are known."""

    state: str
    output_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobOrderBody:
    """What an agent is to do with the jobs of a run, if its own listing shows that they are that user's.

    ``action``: ``warn`` or ``stop`` the tasks, ``end`` the job, or ``look_up`` the ended ``job`` in the accounting.
    """

    run: str
    attempt: int
    uid: int
    action: str
    job: int | None = None


@dataclass(frozen=True, kw_only=True)
class SubmittedJobsBody:
    """The answer to an agent's listing: users to list next, the runs of which to report jobs, and orders."""

    uids: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()
    orders: tuple[JobOrderBody, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunBody:
    """A run. ``reason`` says why it waits; ``partition`` is its partition's name while it has one.

    On an engine with a scheduler of its own ``claim`` is left out, for that scheduler has it, and ``reference`` is what
    it calls the run. ``notes``, in the answer that makes a run: what its engine does otherwise than the job file says.
    ``checkpoints`` are those that it has saved. ``resumedFrom`` is what its present attempt was given; ``resumePoint``
    is what its next one would be given, or a new run that resumes from it. ``submission``, in answers to its person:
    it waits to be submitted by their ``moor``.
    """

    id: str
    name: str
    engine: str
    subject: str
    state: str
    claim: str | None = None
    attempt: int
    job: JobShape
    created_at: str
    reference: str | None = None
    partition: str | None = None
    pool: str | None = None
    reason: ReasonBody | None = None
    position: int | None = None
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    task_codes: tuple[int | None, ...] = ()
    detail: str = ""
    notes: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    scheduled_at: str | None = None
    devices: str = ""
    checkpoints: tuple[CheckpointBody, ...] | None = None
    checkpoint_fault: str | None = None
    resumed_from: CheckpointBody | None = None
    resume_point: CheckpointBody | None = None
    pause: PauseBody | None = None
    retries_used: int | None = None
    idle: IdleBody | None = None
    array: ArrayBody | None = None
    submission: SubmissionBody | None = None


@dataclass(frozen=True, kw_only=True)
class TaskContainerBody:
    """The container of a task on Kubernetes, which a person's own ``kubectl`` reaches by their own rights."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, kw_only=True)
class TerminalBody:
    """Where the terminal of a run is: its supervisor's socket on the controller's machine, or a container.

    The supervisor (``moorings.wire.frames``) itself takes only the user of the run's processes, and root.
    """

    run: str
    attempt: int
    socket: str | None = None
    container: TaskContainerBody | None = None


@dataclass(frozen=True, kw_only=True)
class ApplianceJobBody:
    """A job of an appliance, in short: a list may hold thousands. Its run tells all of it, under the same id.

    ``systems`` is how many it needs, ``devices`` those of ``pool`` that it holds now. ``detail`` says how it ended.
    """

    id: str
    kind: str
    workflow: str
    subject: str
    state: str
    priority: int
    systems: int
    project: str = "default"
    pool: str | None = None
    devices: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: str
    scheduled_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True)
class EstimateBody:
    """When a claim starts at the latest, as things stand: all others run to their time limits, and nobody comes first.

    Without ``starts_at`` nobody can say, and ``why`` tells why.
    """

    starts_now: bool
    starts_at: str | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ExplanationBody:
    """Why a claim is where it is: every reason, what would change it, and when (where limits are known).

    ``estimate`` is there if it was asked for (``when=true``) and the claim waits, and with it ``options``: what
    would let it start now.
    """

    claim: str
    state: str
    summary: str
    position: int | None = None
    reasons: tuple[ReasonBody, ...] = ()
    estimate: EstimateBody | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProjectBody:
    """A project: what it is guaranteed, and what it may hold.

    Only admins see who its ``members`` and ``admins`` are and all of its ``user_limits``, and these themselves. To
    others ``user_limits_hidden`` says that there are some, and ``user_limits`` has what they may hold themselves.
    """

    name: str
    shares: tuple[ShareShape, ...]
    weight: float
    version: int
    devices_max: int | None = None
    user_devices_max: int | None = None
    priority_max: int | None = None
    waiting_max: int | None = None
    waiting_bytes_max: int | None = None
    members: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    admins: tuple[str, ...] | None = None
    open: bool | None = None
    user_limits: Mapping[str, int] | None = None
    user_limits_hidden: bool | None = None


@dataclass(frozen=True, kw_only=True)
class QuotaBody:
    """What a project is guaranteed in a pool, in devices and in blocks of each size, and how it stands.

    ``held`` are devices within a guarantee, ``borrowed`` those beside it, ``waiting`` claims that the pool could serve.
    All these count those of the projects below it, too. ``used_device_hours`` are of its own claims, in all pools; half
    of them are forgotten after each half-life. ``devices_max`` is for all pools together. ``pool`` is empty where the
    project has nothing in any.
    """

    project: str
    pool: str
    guaranteed: int
    blocks: Mapping[str, int]
    held: int
    borrowed: int
    waiting: int
    waiting_devices: int
    used_device_hours: float
    weight: float
    devices_max: int | None = None


@dataclass(frozen=True, kw_only=True)
class GcdBody:
    """What one GCD is given."""

    gcd: int
    devices: tuple[str, ...]
    file_name: str = ""
    file_text: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BindingBody:
    """``GET /v1/claims/{id}/binding``: what the claim's job is given; only its owner and admins see it."""

    partition: str
    api: Mapping[str, str]
    gcds: tuple[GcdBody, ...]


@dataclass(frozen=True, kw_only=True)
class KeyBody:
    """An access key; ``secret`` is there once, when it is made. ``oldSecretUntil``: until when the one before works.

    Without ``expiresAt`` it never expires.
    """

    id: str
    subject: str
    role: str
    owner_prefix: str
    created_at: str
    revoked_at: str | None = None
    expires_at: str | None = None
    rotated_at: str | None = None
    old_secret_until: str | None = None
    secret: str | None = None


@dataclass(frozen=True, kw_only=True)
class CallerBody:
    """``GET /v1/whoami``: the subject that a caller's access key, or the machine's kernel, proves, and its role.

    ``submits_to``: the engines to which people submit their jobs themselves.
    """

    subject: str
    role: str
    owner_prefix: str
    submits_to: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EventBody:
    """One row of the event log."""

    seq: int
    name: str
    at: str
    claim: str | None = None
    partition: str | None = None
    run: str | None = None
    pool: str | None = None
    device: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VersionBody:
    """``GET /version``."""

    version: str
    api_version: str
    installation: str


@dataclass(frozen=True, kw_only=True)
class FindingBody:
    """A check's result: ``verdict`` is PASS, WARN, FAIL or SKIP; ``fix`` says what to do, ``docs`` where to read on."""

    id: str
    verdict: str
    evidence: str
    fix: str = ""
    docs: str = ""


@dataclass(frozen=True, kw_only=True)
class FindingsBody:
    """``GET /v1/doctor``: what the controller finds when it looks at itself; ``at`` is its time."""

    at: str
    items: tuple[FindingBody, ...]


@dataclass(frozen=True, kw_only=True)
class ProblemBody:
    """An error, as RFC 9457 ``application/problem+json``: ``code`` is stable, ``hint`` says what to do."""

    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    retryable: bool = False
    request_id: str = ""
    type: str = "about:blank"
