"""What the operator remembers of a job between two reconciles, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.ipujob.pods import Pod
from moorings.kubernetes.ipujob.types import COMPLETED, FAILED, IPUJob, IPUJobStatus
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.operator.actions import AcquirePartition, CreateLauncher, CreateWorker, JobAction
from moorings.kubernetes.operator.create_failures import CreateFailures
from moorings.kubernetes.operator.executor import UnobservedPods
from moorings.kubernetes.operator.plan import JobPartitions
from moorings.kubernetes.operator.status import RUNNING, is_same_but_messages
from moorings.kubernetes.operator.warning_events import WarnedEvents
from moorings.kubernetes.proxy_api.shapes import PartitionBody

# -- the last parsed version -------------------------------------------------------------------------------------------
# Most reconciles find the version that the last one found or wrote.

_PASSING = frozenset({"resourceVersion", "managedFields"})  # what every write changes


@dataclass(slots=True)
class ParsedJob:
    """The parsed form of one job.

    Attributes:
        found: the object.
        job: parsed from it.
    """

    found: KubeObject | None = None
    job: IPUJob | None = None

    def read(self, found: KubeObject, start_deadline_s: int | None) -> IPUJob:
        """The job of an object; parses only what changed.

        Args:
            found: the object.
            start_deadline_s: default for a job without its own.
        """
        if self.job is None or self.found is None or not _is_same(self.found, found):
            job = parse_ipujob(found)
            self.job = job if job.start_deadline_s is not None else replace(job, start_deadline_s=start_deadline_s)
            self.found = found
        return self.job

    def record_written(self, before: KubeObject, written: KubeObject, job: IPUJob) -> None:
        """Record that a status was written.

        Args:
            before: the object that ``job`` was parsed from.
            written: the API server's response.
            job: the job with that status.
        """
        if _beside_status(written) == _beside_status(before):  # no other change came in between
            self.found, self.job = written, job


def _is_same(one: KubeObject, other: KubeObject) -> bool:
    """Whether two objects are one version of one job. Its class's priority may have been filled in since."""
    if one is other:
        return True
    same = all(one["metadata"][name] == other["metadata"][name] for name in ("uid", "resourceVersion"))
    return same and one.get("spec") == other.get("spec")


def _beside_status(found: KubeObject) -> KubeObject:
    metadata = {name: value for name, value in found["metadata"].items() if name not in _PASSING}
    return {"metadata": metadata, "spec": found.get("spec")}


# -- partitions and status ---------------------------------------------------------------------------------------------

ABSENT_S = 10.0  # after it a partition that the proxy does not list, under living Pods, counts as gone


@dataclass(slots=True)
class PartitionMemory:
    """What is known of a job's partitions beside the proxy's list; times are of a monotonic clock, in seconds.

    Attributes:
        absent_since: instances with Pods whose partition is not listed.
        requested: instances requested, without Pods since; of the job's uid.
        cleaned: instances whose partition is new or was reset; of the job's uid.
    """

    absent_since: dict[int, float] = field(default_factory=dict)
    requested: dict[int, str] = field(default_factory=dict)
    cleaned: dict[int, str] = field(default_factory=dict)

    def observe(
        self,
        job: IPUJob,
        pods: Sequence[Pod],
        known: Mapping[int, PartitionBody],
        now: float,
        *,
        is_synced: bool,
        is_watching: bool,
    ) -> tuple[JobPartitions, float | None]:
        """The job's partitions, and when to look again for a partition that is missing under its Pods."""
        with_pods = {pod.instance for pod in pods}
        for kept in (self.requested, self.cleaned):
            for instance in [one for one, uid in kept.items() if uid != job.uid or one in with_pods]:
                del kept[instance]
        missing = with_pods - known.keys()
        current, again_s = is_synced, None
        for instance in self.absent_since.keys() - missing:
            del self.absent_since[instance]
        if missing and current:
            since = min(self.absent_since.setdefault(instance, now) for instance in missing)
            if now - since < ABSENT_S:
                current, again_s = False, ABSENT_S
        # A partition that this operator requested and whose creation the proxy saw was never used, even if not all
        # controllers respond.
        fresh = frozenset(one for one in self.requested if one in known and known[one].fresh) | self.cleaned.keys()
        return JobPartitions(known, current, is_watching, fresh), again_s

    def record_actions(self, job: IPUJob, acts: Sequence[JobAction]) -> list[int]:
        """Record what is about to be requested and used; returns the instance of each Pod that will be made."""
        claimed = [act.instance for act in acts if isinstance(act, AcquirePartition)]
        self.requested |= dict.fromkeys(claimed, job.uid)
        made = [_created(job, act) for act in acts if isinstance(act, CreateWorker | CreateLauncher)]
        for instance in (*claimed, *made):
            self.cleaned.pop(instance, None)
        for instance in made:
            self.requested.pop(instance, None)
        return made

    def record_unused(self, job: IPUJob, instances: Iterable[int]) -> None:
        """Record that clean partitions stay clean: their Pods were refused."""
        self.cleaned |= dict.fromkeys(instances, job.uid)


@dataclass(slots=True)
class ReconcileState:
    """The memory of one job between two reconciles."""

    unobserved: UnobservedPods = field(default_factory=UnobservedPods)
    written: KubeObject | None = None  # as we wrote it, until the watch has caught up
    written_at: float = -1e9
    read: ParsedJob = field(default_factory=ParsedJob)
    truncated_status: tuple[IPUJobStatus, IPUJobStatus] | None = (
        None  # what the API server stored of a status, and what we sent
    )
    differs_since: float | None = None
    partitions: PartitionMemory = field(default_factory=PartitionMemory)
    checked: tuple[str, int, str] = ("", -1, "")  # uid, generation, its errors
    refusals: CreateFailures = field(default_factory=CreateFailures)
    warned: WarnedEvents = field(default_factory=WarnedEvents)
    requeue_after_s: float | None = None

    def latest_version(self, seen: KubeObject) -> KubeObject:
        """The job as last seen, or as we wrote it since."""
        mine = self.written
        if (
            mine is not None
            and mine["metadata"]["uid"] == seen["metadata"]["uid"]
            and _resource_version(mine) > _resource_version(seen)
        ):
            return mine
        self.written = None
        return seen

    def write_delay_s(self, before: IPUJobStatus, after: IPUJobStatus, now: float, *, is_urgent: bool) -> float | None:
        """When to write a status: 0: now, else after so many seconds; None: it is unchanged."""
        since = self.differs_since
        found = write_delay_s(before, after, written_s=self.written_at, differs_s=since, now_s=now, is_urgent=is_urgent)
        if found is None:
            self.differs_since = None
        elif since is None:
            self.differs_since = now
        return found


def _created(job: IPUJob, act: CreateWorker | CreateLauncher) -> int:
    """The instance whose Pod it makes."""
    return act.number // job.workers if isinstance(act, CreateWorker) else act.instance


def _resource_version(found: KubeObject) -> int:
    """Later versions have larger numbers, as the API server promises now and has always done."""
    return int(found["metadata"]["resourceVersion"])


# -- when a status is written ------------------------------------------------------------------------------------------
# Each write costs the API server, so a status that is about to change again waits a moment, and a change of messages
# only waits longer. Nothing is lost: the difference at the end of the wait is written then.

SOON_S = 0.5  # a status that is about to change is not written yet
WORDS_S = 10.0  # least time between two writes that change only messages


def write_delay_s(
    before: IPUJobStatus,
    after: IPUJobStatus,
    *,
    written_s: float,
    differs_s: float | None,
    now_s: float,
    is_urgent: bool,
) -> float | None:
    """Seconds until a status is written: 0: now; None: it is unchanged.

    Args:
        before: as last written.
        after: as it should be.
        written_s: time of the last write; all times are of one monotonic clock.
        differs_s: since when it differs; None: it did not at the last look.
        now_s: the time.
        is_urgent: changes of messages are written soon, too.
    """
    if before == after:
        return None
    if after.state != before.state and after.state in (RUNNING, COMPLETED, FAILED):
        return 0.0
    if is_same_but_messages(before, after) and not is_urgent:
        due = written_s + WORDS_S
    else:
        due = (now_s if differs_s is None else differs_s) + SOON_S
    return max(due - now_s, 0.0)
