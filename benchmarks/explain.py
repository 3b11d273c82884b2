"""Why a claim waits, and a turn, where projects are guaranteed shares: 10,000 claims wait and 4,096 devices are busy.

64 domains of 64 devices. Four labs with three projects each are guaranteed half of the pool, with limits for all and
for users; what they do not use is lent. ``explain`` is asked of claims all along the queue. A turn is ``decide`` and
``apply`` for the driver's word that a partition is gone, which frees its block and grants it again, without its commit
(``queue_turn`` measures that one, and explain over HTTP).
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.report import Report
from moorings.controller.turn import KeyedInput, decide_turn
from moorings.controller.turn_record import AnyInput, TurnContext
from moorings.core.model.claims import ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, DriverResultReceived, ReleaseClaim, SetProject
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.core.scheduling.explain import explain_wait
from moorings.workloads.run_turn import RunRegistry

WAITING: Final = 10_000
DOMAINS, DOMAIN_SIZE, MAX_BLOCK = 64, 64, 256
POOL: Final = PoolName("pod")
LABS, GROUPS, USERS = 4, 3, 16
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARES: Final = (8, 6, 6, 5, 8, 6, 6, 2, 1)  # of each size, among those who wait
SIZES_HELD: Final = (8, 16, 32, 64)
PRIORITIES: Final = (0, 0, 0, 0, 10, 10, 100)
LIMITS_S: Final = (None, 3600.0, 4 * 3600.0, 86_400.0)
ROUNDS, ASKED, AT_ONCE = 200, 1000, 256
SEED: Final = 7


def run() -> Report:
    """Measure."""
    crowd = _Crowd(random.Random(SEED))
    gc.collect()
    gc.freeze()  # as the controller does
    try:
        explain_ms, told = crowd.explained()
        turns_ms, granted = crowd.turns()
    finally:
        gc.unfreeze()
    return Report(
        name="explain",
        figures={"explain_ms_p50": statistics.median(explain_ms), "turn_ms_p50": statistics.median(turns_ms)},
        anchors={"explain_ms_p50": 100, "turn_ms_p50": 50},
        notes=(
            f"{WAITING:,} waiting, {DOMAINS * DOMAIN_SIZE:,} devices busy, {LABS * (1 + GROUPS)} projects",
            f"explain: p99 {_p99(explain_ms):.2f} ms; {', '.join(f'{code} {n}' for code, n in told.most_common())}",
            f"turn: p99 {_p99(turns_ms):.1f} ms; {granted} claims were granted in {ROUNDS}",
        ),
    )


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _projects() -> list[Project]:
    """Labs and their groups: half of the pool is guaranteed, in blocks of a domain."""
    found: list[Project] = []
    for lab in range(LABS):
        name, domains = f"lab-{lab}", DOMAINS // LABS // 2
        shares = (ProjectShare(POOL, ((DOMAIN_SIZE, domains),)),)
        found.append(Project(name=name, shares=shares, devices_max=DOMAINS * DOMAIN_SIZE // 2))
        for group in range(GROUPS):
            shares = (ProjectShare(POOL, ((DOMAIN_SIZE, domains // (GROUPS + 1)),)),)
            most = 8 * DOMAIN_SIZE if group == 0 else None
            found.append(
                Project(name=f"{name}/group-{group}", shares=shares, weight=1.0 + group, user_devices_max=most)
            )
    return found


class _Crowd:
    """A full fleet with a long queue, stepped as the loop steps it, but without a store."""

    def __init__(self, chance: random.Random) -> None:
        self.fleet = Fleet([Pool(POOL, "ipu", "simulated", PowerOfTwo(DOMAINS, DOMAIN_SIZE, MAX_BLOCK))])
        self._chance = chance
        self._now = self._since = Timestamp(1_000_000 * SECOND)
        self._runs = RunRegistry()
        self._policy = Policy()
        self._created = 0
        projects = _projects()
        self._names = [project.name for project in projects]
        self._step(*(SetProject(project, None) for project in projects))
        while (free := self.fleet.pools[POOL].free).n_free:
            size = min(chance.choice(SIZES_HELD), free.largest_size())
            self._create([self._spec(size, priority=max(PRIORITIES), preemptible=True)])
            self._settle()
        self._queue_up()

    def explained(self) -> tuple[list[float], Counter[str]]:
        """Milliseconds of each answer, and which reasons came first."""
        took_ms, told = [], Counter[str]()
        for order in self._chance.sample(self.fleet.queue, ASKED):
            claim = self.fleet.claims[order[2]]
            begun = time.perf_counter()
            wait = explain_wait(self.fleet, claim, self._now)
            took_ms.append((time.perf_counter() - begun) * 1000)
            told[wait.reasons[0].code] += 1
        return took_ms, told

    def turns(self) -> tuple[list[float], int]:
        """Milliseconds of each turn in which a block comes free, and how many claims were granted in them."""
        took_ms, granted = [], 0
        for _ in range(ROUNDS):
            ready = [claim for claim in self.fleet.claims.values() if claim.state is ClaimState.READY]
            claim = self._chance.choice(ready)
            self._step(ReleaseClaim(claim.id, "done"))
            assert claim.partition is not None, f"{claim.id} is ready"
            gone = self.fleet.partitions[claim.partition]
            before = len(self.fleet.queue)
            took_ms.append(self._step(_answered(gone, "remove", ObservedState.ABSENT)))
            granted += before - len(self.fleet.queue)
            self._settle()
            self._queue_up()
        return took_ms, granted

    def _step(self, *inputs: AnyInput) -> float:
        """Milliseconds of one turn."""
        self._now = Timestamp(self._now + SECOND // 100)
        demanded = [KeyedInput(given) for given in inputs]
        begun = time.perf_counter()
        outcome = decide_turn(self.fleet, self._runs, demanded, TurnContext(self._now, self._since, self._policy))
        self.fleet.apply(outcome.fleet)
        self._runs.apply(outcome.runs)
        took_ms = (time.perf_counter() - begun) * 1000
        for reply in outcome.replies:
            if isinstance(reply, MooringsError):
                raise reply
        return took_ms

    def _spec(self, size: int, *, priority: int, preemptible: bool) -> ClaimSpec:
        gcds = max(1, size // DOMAIN_SIZE)
        project, limit_s = self._chance.choice(self._names), self._chance.choice(LIMITS_S)
        return ClaimSpec(
            kind="ipu", size=size, gcds=gcds, project=project, priority=priority, time_limit_s=limit_s,
            preemptible=preemptible,
        )  # fmt: skip

    def _create(self, specs: Iterable[ClaimSpec]) -> None:
        self._step(*map(self._asks, specs))

    def _asks(self, spec: ClaimSpec) -> CreateClaim:
        self._created += 1
        ident, user = ClaimId(f"claim-{self._created}"), f"u{self._created % USERS}"
        return CreateClaim(id=ident, name=ident, owner=f"local/{ident}", subject=user, spec=spec)

    def _queue_up(self) -> None:
        chance = self._chance
        while (missing := WAITING - len(self.fleet.queue)) > 0:
            sizes = chance.choices(SIZES, SHARES, k=min(missing, AT_ONCE))
            self._create(
                self._spec(size, priority=chance.choice(PRIORITIES), preemptible=chance.random() < 0.5)
                for size in sizes
            )
            self._settle()

    def _settle(self) -> None:
        """The driver makes every partition that was granted."""
        new = [p for p in self.fleet.partitions.values() if p.state is PartitionState.PROVISIONING]
        if new:
            self._step(*(_answered(partition, "create", ObservedState.ACTIVE) for partition in new))


def _answered(partition: Partition, order: str, seen: ObservedState) -> DriverResultReceived:
    return DriverResultReceived(partition.id, partition.version, order, DriverResult(ResultCode.OK, seen))
