"""The operator's metrics, for Prometheus: one registry for each operator, so that tests may have several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase

from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.kubernetes.ipujob.types import IPUJob, IPUJobStatus
from moorings.kubernetes.operator.status import RUNNING
from moorings.kubernetes.proxy_api.shapes import READY, PartitionBody

_LATENCIES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class OperatorMetrics:
    """The operator's metrics; ``text`` is the exposition.

    Args:
        jobs: counts the jobs by namespace and STATUS.
        partitions: all partitions.
        waiting: counts the jobs that wait for a reconcile.
        leads: whether this operator leads.
    """

    def __init__(
        self,
        *,
        jobs: Callable[[], Mapping[tuple[str, str], int]],
        partitions: Callable[[], Iterable[PartitionBody]],
        waiting: Callable[[], int],
        leads: Callable[[], bool],
    ) -> None:
        self._registry = CollectorRegistry()
        self._partitions = partitions
        self._jobs = jobs
        self._reconciles = Counter(
            "moorings_operator_reconciles", "Looks at a job, by how they ended.", ["result"], registry=self._registry
        )
        self._seconds = Histogram(
            "moorings_operator_reconcile_seconds", "How long a look at a job took.", registry=self._registry
        )
        self._writes = Counter("moorings_operator_status_writes", "Statuses written.", registry=self._registry)
        self._launch = Histogram(
            "moorings_operator_launch_seconds",
            "From a job's creation until it ran for the first time.",
            ["namespace"],
            buckets=_LATENCIES,
            registry=self._registry,
        )
        self._ipu_seconds = Counter(
            "moorings_operator_ipu_seconds", "IPUs held by jobs, times seconds.", ["namespace"], registry=self._registry
        )
        self._depth = Gauge("moorings_operator_queue_depth", "Jobs that wait to be looked at.", registry=self._registry)
        self._depth.set_function(lambda: float(waiting()))
        self._leading = Gauge("moorings_operator_leader", "Whether this operator leads.", registry=self._registry)
        self._leading.set_function(lambda: float(leads()))
        self._registry.register(self)

    def observe_reconcile(self, result: str, took_s: float) -> None:
        """Count a reconcile of a job: ``ok``, ``retry`` or ``error``."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(took_s)

    def observe_status_write(self, job: IPUJob, status: IPUJobStatus, now: Timestamp) -> None:
        """Count a saved status; ``job`` has the previous one."""
        self._writes.inc()
        first = all(one.type != RUNNING for one in job.status.conditions)
        if status.state == RUNNING and first:
            self._launch.labels(job.namespace).observe(max(seconds_between(job.created_at, now), 0.0))

    def add_ipu_seconds(self, elapsed_s: float) -> None:
        """Add this many seconds of use of the present partitions."""
        for one in self._partitions():
            if one.state == READY:
                self._ipu_seconds.labels(one.namespace).inc(one.ipus * elapsed_s)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The metrics that are computed at each scrape."""
        found = GaugeMetricFamily(
            "moorings_operator_partitions", "Partitions of jobs, by state.", labels=["namespace", "state"]
        )
        ipus = GaugeMetricFamily(
            "moorings_operator_ipus", "IPUs of jobs' partitions, by state.", labels=["namespace", "state"]
        )
        counts: dict[tuple[str, str], list[int]] = {}
        for one in self._partitions():
            count = counts.setdefault((one.namespace, one.state), [0, 0])
            count[0] += 1
            count[1] += one.ipus
        for labels, (number, size) in sorted(counts.items()):
            found.add_metric(labels, number)
            ipus.add_metric(labels, size)
        yield found
        yield ipus
        jobs = GaugeMetricFamily("moorings_operator_jobs", "IPUJobs, by STATUS.", labels=["namespace", "status"])
        for labels, number in sorted(self._jobs().items()):
            jobs.add_metric(labels, number)
        yield jobs

    def text(self) -> bytes:
        """The exposition text, format 0.0.4."""
        return generate_latest(self._registry)


def families() -> list[MetricWrapperBase | GaugeMetricFamily]:
    """Every metric, for the reference page; the values mean nothing."""
    empty = OperatorMetrics(jobs=dict, partitions=list, waiting=int, leads=bool)
    kept = [each for each in vars(empty).values() if isinstance(each, MetricWrapperBase)]
    return [*kept, *empty.collect()]
