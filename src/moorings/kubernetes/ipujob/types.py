"""An IPUJob as a value: the user's request with all defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.kube.api import ResourceType

GROUP = "graphcore.ai"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "IPUJob"
PLURAL = "ipujobs"
FINALIZER = "ipu.finalizers.graphcore.ai"
MANAGER = f"{GROUP}/ipu-operator"  # `spec.managedBy` of our own jobs

IPU_JOB = ResourceType(GROUP, VERSION, KIND, PLURAL)

COMPLETED, FAILED = "Completed", "Failed"  # the final values of the status
ENDED = (COMPLETED, FAILED)  # of a job that is not started again


class RestartType(StrEnum):
    """When a job that has ended starts again."""

    ALWAYS = "Always"  # after every end
    ON_FAILURE = "OnFailure"  # after a failure, whatever the exit code
    NEVER = "Never"
    EXIT_CODE = "ExitCode"  # 1 to 127: the failure is final; 128 to 255: it starts again


class CleanPodPolicy(StrEnum):
    """Which Pods are deleted when the job has ended and does not start again."""

    NONE = "None"
    WORKERS = "Workers"
    ALL = "All"  # also overrides the restart policy: nothing starts again


class JobKind(StrEnum):
    """The kind of a job, as its spec shows."""

    TRAINING = "training"  # a launcher runs a command over idle workers
    INTERACTIVE = "interactive"  # a launcher idles, for people to work in
    INFERENCE = "inference"  # workers run their own command, one partition an instance


class InstanceOutcome(StrEnum):
    """The final outcome of an instance."""

    DONE = "Done"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of the status.

    Attributes:
        status: whether it holds; None: Unknown.
        reason: one word in CamelCase.
        changed_at: when ``status`` last changed.
        updated_at: when any field last changed; 0: not recorded.
        observed_generation: generation of the job that it describes; 0: not recorded.
    """

    type: str
    status: bool | None
    reason: str
    message: str
    changed_at: Timestamp
    updated_at: Timestamp = Timestamp(0)
    observed_generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempts:
    """The start attempts of one instance.

    Attributes:
        since: when it got its partition, while it has not started.
        missed: start deadlines missed in a row.
        until: it requests no partition before this time; None: it may request one now.
        why: why it missed the last start deadline, as a sentence.
    """

    since: Timestamp | None = None
    missed: int = 0
    until: Timestamp | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """The stored state of one instance.

    Attributes:
        restarts: number of its restarts; Pods carry the number at their creation.
        failures: number of restarts after a failure; counts against the back-off limit.
        outcome: its final outcome; empty while it has none.
        detail: why it failed.
        start: its start attempts.
        reason: the failure as one CamelCase word, if Kubernetes has one (``DeadlineExceeded``).
        started_at: with a limit of active time: when it got its present partition; None while it has none.
        active_seconds: how long it had earlier partitions.
    """

    restarts: int = 0
    failures: int = 0
    outcome: InstanceOutcome | None = None
    detail: str = ""
    start: StartAttempts = StartAttempts()
    reason: str = ""
    started_at: Timestamp | None = None
    active_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IPUJobStatus:
    """The status, as last written."""

    state: str = ""  # STATUS
    current: int = 0  # CURRENT: instances that have their Pods
    desired: int = 0  # DESIRED
    message: str = ""  # LASTMESSAGE
    conditions: tuple[Condition, ...] = ()
    partition_created: bool = False
    launcher: str = ""
    restart_count: int = 0
    starts_at: Timestamp | None = None  # estimate while it waits: the time by which it has its partitions
    certainty: str = ""  # of that estimate
    started_at: Timestamp | None = None
    completed_at: Timestamp | None = None
    active: int = 0
    ready: int = 0
    workers_active: int = 0
    workers_succeeded: int = 0
    workers_failed: int = 0
    observed_generation: int = 0
    instances: Mapping[int, InstanceStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IPUJob:
    """One IPUJob.

    Attributes:
        command: command of the launcher (training); empty otherwise.
        args: its arguments, as in a container.
        launcher: other fields of the launcher that a user set (image, env, resources, volumeMounts...), as JSON.
        ttl_s: how long an interactive launcher idles; None for the other kinds.
        instances: number of requested instances; each has its own partition.
        ipus: size of each partition.
        workers: worker Pods of each instance, each with its own GCD.
        replicas: model replicas in each worker's GCD.
        template: Pod template of the workers, as JSON; never changed.
        backoff_limit: most restarts after failures.
        deleted: whether it is being deleted.
        active_deadline_s: how long an instance may be active before it fails; None: no limit.
        ttl_s_after_finished: how long the job is kept after its end; None: until a user deletes it.
        priority_class: name of its PriorityClass; empty: none.
        suspended: no Pods and no partition, until it is resumed.
        managed_by: name of the controller that manages it; empty: this one.
        preemptible: may be preempted: it then releases its partitions and resumes later.
        resumable: resumes from a checkpoint.
        start_deadline_s: how long an instance may hold a partition without starting; 0: without limit; None: the
            site's default.
        node_lost_s: how long a node may be not Ready before its programs count as lost; 0: for ever.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created_at: Timestamp
    deleted: bool
    finalizers: tuple[str, ...]
    kind: JobKind
    command: tuple[str, ...]
    args: tuple[str, ...]
    launcher: Mapping[str, Any]
    ttl_s: int | None
    instances: int
    ipus: int
    workers: int
    replicas: int
    template: Mapping[str, Any]
    restart_policy: RestartType
    backoff_limit: int
    clean_pod_policy: CleanPodPolicy
    release_on_finish: bool
    priority: int
    status: IPUJobStatus
    active_deadline_s: int | None = None
    ttl_s_after_finished: int | None = None
    priority_class: str = ""
    suspended: bool = False
    managed_by: str = ""
    preemptible: bool = False
    resumable: bool = False
    start_deadline_s: int | None = None
    node_lost_s: int = 0

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def managed_elsewhere(self) -> bool:
        """Whether another controller manages it. A job with our finalizer is ours: it may have partitions."""
        return self.managed_by not in ("", MANAGER) and FINALIZER not in self.finalizers

    @property
    def has_launcher(self) -> bool:
        """Whether each instance has a launcher Pod."""
        return self.kind is not JobKind.INFERENCE


DEADLINE_EXCEEDED = "DeadlineExceeded"  # a reason, as in a Job


class Certainty(StrEnum):
    """How sure an estimate is."""

    AT_LATEST = "AtLatest"  # as things stand: all keep to their time limits, and no later claim passes
    UNKNOWN = "Unknown"  # the controllers answered that they have no estimate


def needs_service(job: IPUJob) -> bool:
    """Whether the workers of an instance must find each other by themselves."""
    return not job.has_launcher and job.workers > 1
