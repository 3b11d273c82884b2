"""A long queue: 10,000 claims wait for devices that are all busy, and one partition is given back.

Part one, in this process: 64 domains of 64 devices. A turn is ``decide`` and ``apply`` for the driver's word that the
partition is gone, which frees its block and grants it again; what the commit of that turn costs is said beside it. The
bound is one pass over the same queue as sorted tuples, which fits sizes into a number and explains nothing.

Part two, over HTTP: a controller process with 1,024 domains, every one busy, and the same queue, all of it asked for by
POST. ``explain`` is asked of claims all along the queue; its bound is the version, the cheapest answer there is. The
bound of the memory is the same controller before the first claim.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import secrets
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims_http import Connection, request, start_controller
from benchmarks.report import Report
from moorings.controller.turn import KeyedInput, decide_turn
from moorings.controller.turn_record import AnyInput, TurnContext
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.inputs import CreateClaim, DriverResultReceived, ReleaseClaim
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.workloads.run_turn import RunRegistry

WAITING = 10_000
DOMAINS, DOMAINS_LARGE, DOMAIN_SIZE, MAX_BLOCK = 64, 1024, 64, 256
MEMORY_A_DOMAIN = 512 << 30
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARES = (8, 6, 6, 5, 8, 6, 6, 2, 1)  # of each size, among those who wait
SIZES_HELD = (1, 2, 4, 8, 16, 32, 64)
SIZES_HELD_LARGE = (8, 16, 32, 64)  # all are asked for over HTTP: with single devices that would take minutes
PRIORITIES = (0, 0, 0, 0, 10, 10, 100)
PROJECTS = 8
ROUNDS, ASKED, PAGES = 200, 400, 20
CREATED_AT_ONCE, CLIENTS = 256, 16
SEED = 11
GIB = 1 << 30

POOLS = f"""\
[[pool]]
name = "pod"
kind = "ipu"
driver = "simulated"
topology = {{ type = "power-of-two", domains = {DOMAINS_LARGE}, domain_size = {DOMAIN_SIZE}, max_block = {MAX_BLOCK} }}
resources = {{ memory = "{DOMAINS_LARGE * MEMORY_A_DOMAIN // GIB}G" }}
[pool.simulated]
provision_s = 0
provision_per_device_s = 0
remove_s = 0
remove_per_device_s = 0
"""


def run() -> Report:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        here = _turns(folder)
        served = _served(folder)
    return Report(
        name="queue_turn",
        figures={
            "turn_ms_p50": statistics.median(here.freed_ms),
            "explain_ms_p50": statistics.median(served.explain_ms),
            "rss_mb": served.rss_mb,
        },
        bounds={
            "turn_ms_p50": _tuples_ms(),
            "explain_ms_p50": statistics.median(served.version_ms),
            "rss_mb": served.empty_rss_mb,
        },
        anchors={"turn_ms_p50": 50, "explain_ms_p50": 100, "rss_mb": 400},
        notes=(
            f"{DOMAINS} domains of {DOMAIN_SIZE}, {WAITING} waiting, {ROUNDS} rounds; p99 {_p99(here.freed_ms):.1f} ms",
            f"its commit (SQLite, FULL): {statistics.median(here.commit_ms):.1f} ms",
            f"other turns: {_others(here)}",
            f"controller of {DOMAINS_LARGE} domains: {_others_served(served)}",
            "bounds: one pass over sorted tuples; GET /version; the controller before the first claim",
        ),
    )


def _others(here: _Turns) -> str:
    release, create, idle = map(statistics.median, (here.release_ms, here.create_ms, here.idle_ms))
    return f"release {release:.1f} ms, create {create:.1f} ms, nothing came in {idle:.1f} ms"


def _others_served(served: _Served) -> str:
    return (
        f"explain p99 {_p99(served.explain_ms):.1f} ms, page of 100 claims {statistics.median(served.page_ms):.1f} ms, "
        f"restart to first answer {served.restart_s:.1f} s, created a second with no more than 1,000 waiting "
        f"{served.first_per_s:.0f} claims and with 9,000 {served.last_per_s:.0f}"
    )


# -- who asks for what ----------------------------------------------------------------------------------------------


def _spec(chance: random.Random) -> ClaimSpec:
    """A claim that will wait."""
    size = chance.choices(SIZES, SHARES)[0]
    spanned = max(1, size // DOMAIN_SIZE)
    return ClaimSpec(
        kind="ipu",
        size=size,
        gcds=max(spanned, chance.choice((1, size))),
        resources={"memory": size * 4 * GIB} if chance.random() < 0.1 else {},
        project=f"project-{chance.randrange(PROJECTS)}",
        priority=chance.choice(PRIORITIES),
        time_limit_s=chance.choice((None, 3600.0, 4 * 3600.0, 86_400.0)),
        lease_s=3600.0 if chance.random() < 0.1 else None,
    )


def _holders(chance: random.Random, domains: int, sizes: Sequence[int]) -> Iterator[ClaimSpec]:
    """Claims that together fill every domain, each with one of these sizes."""
    for _ in range(domains):
        size = chance.choice(sizes)
        for _ in range(DOMAIN_SIZE // size):
            yield ClaimSpec(kind="ipu", size=size, time_limit_s=chance.choice((None, 3600.0, 86_400.0)))


# -- in this process ------------------------------------------------------------------------------------------------


class _Crowd:
    """A full fleet with a long queue, stepped as the loop steps it: decide, save, apply."""

    def __init__(self, store: SqlStore, chance: random.Random) -> None:
        resources = (("memory", DOMAINS * MEMORY_A_DOMAIN),)
        topology = PowerOfTwo(DOMAINS, DOMAIN_SIZE, MAX_BLOCK)
        self.fleet = Fleet([Pool(PoolName("pod"), "ipu", "simulated", topology, resources)])
        self.commit_ms = 0.0
        self._chance = chance
        self._store = store
        self._now = Timestamp(1_000_000 * SECOND)
        self._since = self._now
        self._epoch = store.begin_epoch("benchmark", self._now)
        self._runs = RunRegistry()
        self._created = 0
        holders = list(_holders(chance, DOMAINS, SIZES_HELD))
        for start in range(0, len(holders), CREATED_AT_ONCE):
            self.create(holders[start : start + CREATED_AT_ONCE])
            self.settle()
        assert self.fleet.pools[PoolName("pod")].free.n_free == 0, "the holders fill the pool"
        self.queue_up(WAITING)

    def step(self, *inputs: AnyInput) -> float:
        """Milliseconds of one turn, without its commit (``commit_ms``)."""
        self._now = Timestamp(self._now + SECOND // 100)
        demanded = [KeyedInput(given) for given in inputs]
        begun = time.perf_counter()
        outcome = decide_turn(self.fleet, self._runs, demanded, TurnContext(self._now, self._since, Policy()))
        decided = time.perf_counter()
        if outcome.changes:
            self._store.commit(self._epoch, outcome.changes)
        saved = time.perf_counter()
        self.fleet.apply(outcome.fleet)
        self._runs.apply(outcome.runs)
        self.commit_ms = (saved - decided) * 1000
        return (decided - begun + time.perf_counter() - saved) * 1000

    def create(self, specs: Sequence[ClaimSpec]) -> float:
        """Milliseconds of the turn in which these claims are asked for."""
        return self.step(*map(self._asks, specs))

    def _asks(self, spec: ClaimSpec) -> CreateClaim:
        self._created += 1
        ident, user = ClaimId(f"claim-{self._created}"), f"u{self._created % 64}"
        return CreateClaim(id=ident, name=ident, owner=f"user/{user}", subject=user, spec=spec)

    def queue_up(self, waiting: int) -> float:
        """Make the queue so long again; milliseconds of the last turn that this took."""
        took_ms = 0.0
        while len(self.fleet.queue) < waiting:
            missing = min(waiting - len(self.fleet.queue), CREATED_AT_ONCE)
            took_ms = self.create([_spec(self._chance) for _ in range(missing)])
        return took_ms

    def settle(self) -> None:
        """The driver makes every partition that was granted."""
        new = [p for p in self.fleet.partitions.values() if p.state is PartitionState.PROVISIONING]
        if new:
            self.step(*(_answered(partition, "create", ObservedState.ACTIVE) for partition in new))

    def ready(self) -> Claim:
        """Any claim that could be released."""
        found = [claim for claim in self.fleet.claims.values() if claim.state is ClaimState.READY]
        return self._chance.choice(found)


def _answered(partition: Partition, order: str, seen: ObservedState) -> DriverResultReceived:
    return DriverResultReceived(partition.id, partition.version, order, DriverResult(ResultCode.OK, seen))


@dataclass(frozen=True)
class _Turns:
    freed_ms: list[float]
    commit_ms: list[float]
    release_ms: list[float]
    create_ms: list[float]
    idle_ms: list[float]


def _turns(folder: Path) -> _Turns:
    store = open_sqlite(folder / "turns.db")
    try:
        crowd = _Crowd(store, random.Random(SEED))
        gc.collect()
        gc.freeze()  # as the controller does
        taken = _Turns([], [], [], [], [])
        for _ in range(ROUNDS):
            claim = crowd.ready()
            taken.release_ms.append(crowd.step(ReleaseClaim(claim.id, "done")))
            assert claim.partition is not None
            gone = crowd.fleet.partitions[claim.partition]
            taken.freed_ms.append(crowd.step(_answered(gone, "remove", ObservedState.ABSENT)))
            taken.commit_ms.append(crowd.commit_ms)
            crowd.settle()
            taken.create_ms.append(crowd.queue_up(WAITING))
            taken.idle_ms.append(crowd.step())
        return taken
    finally:
        gc.unfreeze()
        store.close()


def _tuples_ms() -> float:
    """The least a pass over the queue can be: every claim is a tuple that is there, in order, and free is a number."""
    chance = random.Random(SEED)
    queue = sorted((-spec.priority, at, spec.size) for at, spec in enumerate(_spec(chance) for _ in range(WAITING)))
    taken_ms = []
    for _ in range(ROUNDS):
        free, granted = chance.choice(SIZES_HELD), []
        begun = time.perf_counter()
        for place, (_, _, size) in enumerate(queue):
            if size <= free:
                free -= size
                granted.append(place)
        taken_ms.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken_ms)


# -- over HTTP ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Served:
    empty_rss_mb: float
    rss_mb: float
    first_per_s: float
    last_per_s: float
    explain_ms: list[float]
    version_ms: list[float]
    page_ms: list[float]
    restart_s: float


def _served(folder: Path) -> _Served:
    (folder / "pools.toml").write_text(POOLS)
    process, url, key = start_controller(folder)
    try:
        empty_rss_mb = _rss_mb(process.pid)
        asked = asyncio.run(_ask(url, key))
        rss_mb = _rss_mb(process.pid)
        _stop(process)
        begun = time.perf_counter()
        process, url, _ = start_controller(folder)
        asyncio.run(_first_answer(url, key))
        restart_s = time.perf_counter() - begun
    finally:
        _stop(process)
    return _Served(empty_rss_mb, rss_mb, *asked, restart_s)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def _rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


async def _connect(url: str) -> Connection:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def _get(connection: Connection, key: str, target: str) -> tuple[float, dict[str, object]]:
    """Milliseconds it took, and the answer."""
    begun = time.perf_counter()
    asked = f"GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"
    status, answer = await request(connection, asked.encode())
    took_ms = (time.perf_counter() - begun) * 1000
    if status != 200:
        raise SystemExit(f"GET {target}: {status} {answer[:300]!r}")
    return took_ms, json.loads(answer)


async def _first_answer(url: str, key: str) -> None:
    connection = await _connect(url)
    await _get(connection, key, "/v1/claims?limit=1")
    connection[1].close()


async def _create(connection: Connection, key: str, specs: list[ClaimSpec], made: list[tuple[float, str]]) -> None:
    """Ask for claims until there are no more to ask for; when each was answered, and its id."""
    shared = f"host: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    while specs:
        body = json.dumps(_body(specs.pop()))
        head = f"POST /v1/claims HTTP/1.1\r\n{shared}idempotency-key: {secrets.token_hex(8)}\r\n"
        status, answer = await request(connection, f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        if status != 201:
            raise SystemExit(f"POST /v1/claims: {status} {answer[:300]!r}")
        made.append((time.perf_counter(), str(json.loads(answer)["id"])))


def _body(spec: ClaimSpec) -> dict[str, object]:
    body = {"size": spec.size, "gcds": spec.gcds, "project": spec.project, "priority": spec.priority}
    body |= {"timeLimitS": spec.time_limit_s, "leaseS": spec.lease_s, "resources": dict(spec.resources)}
    return {name: value for name, value in body.items() if value is not None}


async def _ask(url: str, key: str) -> tuple[float, float, list[float], list[float], list[float]]:
    chance = random.Random(SEED)
    connections = [await _connect(url) for _ in range(CLIENTS)]

    async def create(specs: list[ClaimSpec]) -> list[tuple[float, str]]:
        made: list[tuple[float, str]] = []
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(_create(connection, key, specs, made))
        return made

    await create(list(_holders(chance, DOMAINS_LARGE, SIZES_HELD_LARGE)))
    waiting = await create([_spec(chance) for _ in range(WAITING)])
    await _all_waiting(connections[0], key)
    asked = [ident for _, ident in chance.sample(waiting, ASKED)]
    version_ms = [(await _get(connections[0], key, "/version"))[0] for _ in range(ASKED)]
    explain_ms = [(await _get(connections[0], key, f"/v1/claims/{ident}/explain"))[0] for ident in asked]
    page_ms = []
    target = "/v1/claims?state=PENDING&limit=100"
    for _ in range(PAGES):
        took_ms, answer = await _get(connections[0], key, target)
        page_ms.append(took_ms)
        target = f"/v1/claims?state=PENDING&limit=100&continue={answer['continue']}"
    for connection in connections:
        connection[1].close()
    thousand = 1000
    first_per_s = thousand / (waiting[thousand][0] - waiting[0][0])
    last_per_s = thousand / (waiting[-1][0] - waiting[-1 - thousand][0])
    return first_per_s, last_per_s, explain_ms, version_ms, page_ms


async def _all_waiting(connection: Connection, key: str) -> None:
    """See that what is measured is what is meant: every device is held and the whole queue waits."""
    _, pool = await _get(connection, key, "/v1/pools/pod")
    if (pool["free"], pool["waiting"]) != (0, WAITING):
        raise SystemExit(f"the pool is not as meant: {pool}")


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
