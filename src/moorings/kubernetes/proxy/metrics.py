"""``/metrics`` in Prometheus' text form. Labels are namespaces, states, controllers and routes: never a job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from moorings.kubernetes.proxy.partition_manager import PartitionManager

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.metrics_core import Metric

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S = 2.0
COST_PART = 50  # it takes at most one part in so many of the time
BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)


class ProxyMetrics:
    """The metrics of one proxy."""

    def __init__(self, keeper: PartitionManager) -> None:
        self._text = b""
        self._fresh_until = float("-inf")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ManagerCollector(keeper))
        ProcessCollector(registry=self._registry)
        self.requests = Histogram(
            "moorings_proxy_request_duration_seconds",
            "Requests until their answer began; watches aside.",
            ("method", "route", "status"),
            buckets=BOUNDS,
            registry=self._registry,
        )

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response."""
        self.requests.labels(method, route, status).observe(seconds)

    def text(self) -> bytes:
        """The exposition, cached for a moment: the path is open to all, and each text visits all partitions."""
        now = time.monotonic()
        if now >= self._fresh_until:
            self._text = generate_latest(self._registry)
            self._fresh_until = now + max(FRESH_S, COST_PART * (time.monotonic() - now))
        return self._text


def families() -> list[MetricWrapperBase | Metric]:
    """Every metric but those of the process, for the reference page; the values mean nothing."""
    keeper = PartitionManager("", {}, "", int)
    return [ProxyMetrics(keeper).requests, *_ManagerCollector(keeper).collect()]


class _ManagerCollector(Collector):
    """The metrics of a ``PartitionManager``."""

    def __init__(self, keeper: PartitionManager) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        keeper = self._keeper
        counts = Counter((one.namespace, one.state) for one in keeper.partitions().items)
        states = GaugeMetricFamily("moorings_proxy_partitions", "Partitions of jobs.", labels=("namespace", "state"))
        for labels, count in sorted(counts.items()):
            states.add_metric(labels, count)
        yield states
        used = GaugeMetricFamily("moorings_proxy_ipus_used", "IPUs that jobs hold.", labels=("namespace",))
        for namespace, count in sorted(keeper.usage.used.items()):
            used.add_metric((namespace,), count)
        yield used
        seconds = CounterMetricFamily(
            "moorings_proxy_ipu_seconds", "IPU-seconds held since the proxy started.", labels=("namespace",)
        )
        for namespace, held in sorted(keeper.usage.seconds(time.monotonic()).items()):
            seconds.add_metric((namespace,), held)
        yield seconds
        reachable = GaugeMetricFamily(
            "moorings_proxy_controller_reachable", "Whether a controller answers.", labels=("controller",)
        )
        for name, link in keeper.links.items():
            reachable.add_metric((name,), int(link.is_reachable))
        yield reachable
        aliases = GaugeMetricFamily(
            "moorings_proxy_controller_alias",
            "Whether a controller is one that an earlier entry of the list names; it is not asked.",
            labels=("controller",),
        )
        for name, link in keeper.links.items():
            aliases.add_metric((name,), int(bool(link.alias_of)))
        yield aliases
        foreign = GaugeMetricFamily(
            "moorings_proxy_foreign_claims",
            "Claims of another cluster that has the same clusterName; they are left alone.",
            labels=("controller",),
        )
        for name, link in keeper.links.items():
            foreign.add_metric((name,), link.foreign_claims)
        yield foreign
        yield GaugeMetricFamily("moorings_proxy_complete", "Whether all controllers answer.", int(keeper.is_complete))
