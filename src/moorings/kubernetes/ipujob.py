"""An IPUJob as a value: what a user asked for, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moorings.core.instants import Timestamp

GROUP = "graphcore.ai"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "IPUJob"
PLURAL = "ipujobs"
FINALIZER = "ipu.finalizers.graphcore.ai"
MANAGER = f"{GROUP}/ipu-operator"  # in `spec.managedBy`: we

KubeObject = dict[str, Any]  # a Kubernetes object, as its JSON has it


class RestartType(StrEnum):
    """Whether a job that has ended is started anew."""

    ALWAYS = "Always"  # however it ended
    ON_FAILURE = "OnFailure"  # if it failed, whatever the exit code
    NEVER = "Never"
    EXIT_CODE = "ExitCode"  # 1 to 127: it failed for good; 128 to 255: it is started anew


class CleanPodPolicy(StrEnum):
    """Which Pods go when the job has ended and will not start anew."""

    NONE = "None"
    WORKERS = "Workers"
    ALL = "All"  # also overrides the restart policy: nothing is started anew


class JobKind(StrEnum):
    """What a job is, told by what its spec has."""

    TRAINING = "training"  # a launcher runs a command over idle workers
    INTERACTIVE = "interactive"  # a launcher idles, for people to work in
    INFERENCE = "inference"  # workers run their own command, one partition an instance


class InstanceOutcome(StrEnum):
    """How an instance ended for good."""

    DONE = "Done"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of the status.

    Attributes:
        status: whether it holds; None: Unknown.
        reason: one word in CamelCase.
        changed_at: when ``status`` changed last.
        updated_at: when anything of it changed last; 0: that is not told.
        observed_generation: of the job that it is about; 0: that is not told.
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
    """How the start of one instance goes.

    Attributes:
        since: it has had its partition since then, and has not started.
        missed: start deadlines that it missed in a row.
        until: it asks for no partition before; None: it may ask.
        why: what kept it from starting when it missed the last deadline, as a sentence.
    """

    since: Timestamp | None = None
    missed: int = 0
    until: Timestamp | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """What has to be remembered of one instance.

    Attributes:
        restarts: how often it was started anew; Pods carry the number they were made under.
        failures: how many of them followed a failure; counts against the back-off limit.
        outcome: how it ended for good; empty while it has not.
        detail: why it failed.
        start: how its start goes.
        reason: that in one CamelCase word, where there is one that Kubernetes has (``DeadlineExceeded``).
        started_at: with a limit of active time: since when it has its partition; None while it has none.
        active_seconds: how long it had others before that one.
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
    """The status, as it was last written."""

    state: str = ""  # STATUS
    current: int = 0  # CURRENT: instances that have their Pods
    desired: int = 0  # DESIRED
    message: str = ""  # LASTMESSAGE
    conditions: tuple[Condition, ...] = ()
    partition_created: bool = False
    launcher: str = ""
    restart_count: int = 0
    starts_at: Timestamp | None = None  # by when it has its partitions, as is estimated while it waits
    certainty: str = ""  # how sure that is
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
        command: what the launcher runs (training); empty otherwise.
        args: its arguments, as in a container.
        launcher: other fields of the launcher that a user set (image, env, resources, volumeMounts...), as JSON.
        ttl_s: how long an interactive launcher idles; None for the other kinds.
        instances: how many are wanted; each has a partition of its own.
        ipus: size of each partition.
        workers: worker Pods of each instance, each with a GCD of its own.
        replicas: model replicas in each worker's GCD.
        template: Pod template of the workers, as JSON; never changed.
        backoff_limit: restarts after failures, at most.
        deleted: whether it is being deleted.
        active_deadline_s: how long an instance may be active before it fails; None: no limit.
        ttl_s_after_finished: how long the job is kept when it has ended; None: until somebody deletes it.
        priority_class: the PriorityClass that it names; empty: none.
        suspended: no Pods and no partition, until it is resumed.
        managed_by: which controller has it; empty: this one.
        preemptible: may be asked to give its partitions back; it goes on later.
        resumable: goes on from a checkpoint.
        start_deadline_s: how long an instance may hold a partition without starting; 0: without limit; None: the
            site's default.
        node_lost_s: how long a node may be silent before its programs are taken for lost; 0: for ever.
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
    restart: RestartType
    backoff_limit: int
    clean: CleanPodPolicy
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
        """Whether it is another controller's. One that has our finalizer is ours: it may have partitions."""
        return self.managed_by not in ("", MANAGER) and FINALIZER not in self.finalizers

    @property
    def has_launcher(self) -> bool:
        """Whether there is a launcher Pod an instance."""
        return self.kind is not JobKind.INFERENCE
