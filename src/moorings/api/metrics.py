"""``/metrics`` in Prometheus' text format: the controller's numbers, collected at each request.

They are in a registry of their own. Labels are pools, projects (the first 128 of the tree), states, sizes, results and
routes: never a user, a claim or a raw path, so the number of series is bounded, and users' names are not revealed. It
is open like ``/healthz``: a monitoring system needs no access key. ``deploy/prometheus`` relies on the names, units and
labels.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import moorings
from moorings.api.limits import Slots
from moorings.controller.metrics import ControllerMetrics, Counters, DurationHistogram, GuaranteeMetrics

if TYPE_CHECKING:
    from moorings.controller.service import Controller

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CACHE_S = 0.5  # a second request within this time gets the same text: counting 10,000 claims is costly
REQUEST_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
UNROUTED = "none"

_LEADS, _READY = "Whether this controller leads (schedules).", "Whether changes can be saved."

LabelsT = TypeVar("LabelsT", bound=tuple[str, ...])


class RequestMetrics:
    """The API's responses, by method, route and status, and the time until each began."""

    def __init__(self) -> None:
        self.answered: dict[tuple[str, str, int], DurationHistogram] = {}
        self.in_progress = 0

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response; ``route`` is the template, empty if no route served it."""
        key = (method, route, status) if route else ("other", UNROUTED, status)
        found = self.answered.get(key)
        if found is None:
            found = self.answered[key] = DurationHistogram(REQUEST_BOUNDS)
        found.observe(seconds)


class MetricsPage:
    """The text of ``/metrics`` for one controller.

    Args:
        controller: the source of the numbers.
        requests: the API's responses.
        seats: the slots of clients, by their label.
    """

    def __init__(self, controller: Controller, requests: RequestMetrics, seats: Mapping[str, Slots]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ControllerCollector(controller))
        self._registry.register(_ServerCollector(requests, seats))
        ProcessCollector(registry=self._registry)
        self._text = b""
        self._stale_at = float("-inf")

    def text(self) -> bytes:
        """The text, at most ``CACHE_S`` old. Called in the loop's thread: only memory is read."""
        now = asyncio.get_running_loop().time()
        if now >= self._stale_at:
            self._text, self._stale_at = generate_latest(self._registry), now + CACHE_S
        return self._text


def build_info() -> Metric:
    """The running release, and its Python."""
    info = GaugeMetricFamily("moorings_build_info", "Always 1; tells the release.", labels=("version", "python"))
    info.add_metric((moorings.__version__, platform.python_version()), 1)
    return info


def standby_text(*, ready: bool) -> bytes:
    """The text of a standby: its own process, and that it does not lead.

    The leader's numbers are scraped from the leader: forwarded, every number would be there twice.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StandbyCollector(ready))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def metric_families() -> list[Metric]:
    """Every family, for the reference page: its name, kind, labels and meaning; the numbers are placeholders."""
    empty = ControllerMetrics(
        claims={},
        devices={},
        partitions={},
        possible={},
        largest={},
        waiting={},
        oldest_wait_s={},
        reachable={},
        runs={},
        idle={},
        strays=0,
        ready=False,
        seq=0,
        meters=Counters(),
    )
    return [*_standing(empty), *_ServerCollector(RequestMetrics(), {}).collect()]


class _StandbyCollector(Collector):
    """The numbers of a standby."""

    def __init__(self, ready: bool) -> None:
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        yield build_info()
        yield GaugeMetricFamily("moorings_leader", _LEADS, 0)
        yield GaugeMetricFamily("moorings_ready", _READY, int(self._ready))


class _ControllerCollector(Collector):
    """The controller's own numbers."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from _standing(self._controller.collect_metrics())


def _standing(seen: ControllerMetrics) -> Iterator[Metric]:
    yield build_info()
    yield GaugeMetricFamily("moorings_leader", _LEADS, 1)
    yield GaugeMetricFamily("moorings_ready", _READY, int(seen.ready))
    yield CounterMetricFamily("moorings_events", "Sequence number of the last event of the log.", seen.seq)
    yield from _gauges(seen)
    yield from _counter_families(seen)


def _gauges(seen: ControllerMetrics) -> Iterator[Metric]:
    by_state = ("pool", "state")
    yield _gauge("moorings_claims", "Claims that have not ended.", by_state, seen.claims)
    yield _gauge("moorings_devices", "Devices.", by_state, seen.devices)
    yield _gauge("moorings_partitions", "Partitions.", by_state, seen.partitions)
    possible = {(pool, str(size)): count for (pool, size), count in seen.possible.items()}
    yield _gauge("moorings_possible_partitions", "Partitions that could be formed now.", ("pool", "size"), possible)
    yield _gauge("moorings_largest_free_block", "Devices of the largest free block.", ("pool",), _one(seen.largest))
    yield _gauge("moorings_queue_claims", "Claims that wait; pool any: for some pool.", ("pool",), _one(seen.waiting))
    yield _gauge(
        "moorings_queue_oldest_wait_seconds",
        "How long the claim that came first has waited.",
        ("pool",),
        _one(seen.oldest_wait_s),
    )
    yield from _guarantees(seen.guarantees)
    yield _gauge("moorings_pool_reachable", "Whether the pool's driver answers.", ("pool",), _one(seen.reachable))
    yield _gauge("moorings_runs", "Runs that have not ended.", ("state",), _one(seen.runs))
    yield _gauge("moorings_idle_devices", "Devices of runs that are idle.", ("pool",), _one(seen.idle))
    yield GaugeMetricFamily("moorings_stray_partitions", "Partitions with our mark that nobody holds.", seen.strays)


def _guarantees(seen: GuaranteeMetrics) -> Iterator[Metric]:
    labels = ("project", "pool", "use")
    yield _gauge("moorings_project_devices", "Devices of a project with its parts, by their use.", labels, seen.devices)
    overdue = "Claims that were asked to yield or to move, and have not in time."
    yield _gauge("moorings_reclaims_overdue", overdue, ("pool",), _one(seen.overdue))
    owed = "Claims that wait for what their projects are guaranteed."
    yield _gauge("moorings_guarantee_claims", owed, ("pool",), _one(seen.due_claims))
    oldest = "How long the first of them has waited."
    yield _gauge("moorings_guarantee_oldest_wait_seconds", oldest, ("pool",), _one(seen.oldest_s))
    bound = "Within which the policy gives a guarantee back."
    yield GaugeMetricFamily("moorings_guarantee_bound_seconds", bound, seen.bound_s)


def _counter_families(seen: ControllerMetrics) -> Iterator[Metric]:
    meters = seen.meters
    turns = HistogramMetricFamily("moorings_turn_duration_seconds", "Deciding a turn, without saving it.")
    turns.add_metric((), *_buckets(meters.turns))
    yield turns
    commits = HistogramMetricFamily("moorings_commit_duration_seconds", "Saving a turn in the database.")
    commits.add_metric((), *_buckets(meters.commits))
    yield commits
    failures = CounterMetricFamily("moorings_turn_failures", "Turns that could not be saved.", labels=("code",))
    for code, count in sorted(meters.failures.items()):
        failures.add_metric((code,), count)
    yield failures
    orders = HistogramMetricFamily(
        "moorings_driver_order_duration_seconds",
        "Answers of drivers; result unavailable: tried again.",
        labels=("pool", "order", "result"),
    )
    for labels, durations in sorted(meters.orders.items()):
        orders.add_metric(labels, *_buckets(durations))
    yield orders


class _ServerCollector(Collector):
    """The clients' requests, and what they hold."""

    def __init__(self, requests: RequestMetrics, seats: Mapping[str, Slots]) -> None:
        self._requests = requests
        self._seats = seats

    def collect(self) -> Iterator[Metric]:
        answers = HistogramMetricFamily(
            "moorings_http_request_duration_seconds",
            "Requests until their answer began, waits they asked for included.",
            labels=("method", "route", "status"),
        )
        for (method, route, status), durations in sorted(self._requests.answered.items()):
            answers.add_metric((method, route, str(status)), *_buckets(durations))
        yield answers
        yield GaugeMetricFamily(
            "moorings_http_requests_in_progress", "Requests that are served or wait.", self._requests.in_progress
        )
        yield _gauge(
            "moorings_seats_taken",
            "Waiting answers and streams that clients hold.",
            ("kind",),
            {(kind,): seats.n_held for kind, seats in self._seats.items()},
        )
        yield _gauge(
            "moorings_seats",
            "Waiting answers and streams that clients may hold at most.",
            ("kind",),
            {(kind,): seats.total for kind, seats in self._seats.items()},
        )


def _one(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(label,): value for label, value in values.items()}


def _gauge(name: str, about: str, labels: Iterable[str], values: Mapping[LabelsT, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=tuple(labels))
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _buckets(durations: DurationHistogram) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, as Prometheus requires."""
    total, made = 0, []
    for bound, count in zip((*map(str, durations.bounds), "+Inf"), durations.counts, strict=True):
        total += count
        made.append((bound, float(total)))
    return made, durations.total_s
