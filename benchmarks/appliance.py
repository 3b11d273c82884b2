"""A wafer-scale appliance with a long queue, what its list costs, and what showing a job in Slurm adds to it.

Part one, in this process: a turn in which a job's systems come free and the next job is granted, with 10,000 jobs in
the queue. Part two, over HTTP: a controller process to which 16 clients (one other process) send those 10,000 jobs; an
answer is sent when the job is durable. The bound is raw ``sqlite3`` on the same disk, one durable commit a job. Then
the whole list is asked for with ``moor wafer get jobs``. Part three, on real Slurm (``benchmarks.surrogates``).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import secrets
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.claims_http import request, start_controller
from benchmarks.report import Report
from benchmarks.surrogates import added_s
from moorings.client.jobs import job_shape
from moorings.client.requests import build_body
from moorings.controller.turn import KeyedInput, decide_turn
from moorings.controller.turn_record import AnyInput, TurnContext
from moorings.core.model.claims import ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.inputs import DriverResultReceived
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Pool
from moorings.core.placement.fleet import Fleet
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.wire.shapes import RunRequest
from moorings.workloads.appliance import BUCKETS, ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.run_turn import CreateRun, RunRegistry
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase, RunState, RunStatus

WAITING = 10_000
SYSTEMS = 16
MEMORY_GI = 503  # of the management node: two compile and two execute jobs of one system each
COMPILE_GI, EXECUTE_GI = 67, 32
ROUNDS, CLIENTS, LISTED, AT_ONCE = 200, 16, 9, 256
SEED = 11
GIB = 1 << 30

POOLS = f"""\
[[pool]]
name = "cs"
kind = "csx"
driver = "simulated"
topology = {{ type = "any-subset", domain_size = {SYSTEMS} }}
resources = {{ memory = "{MEMORY_GI}G" }}
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
        freed_ms, create_ms = _turns(folder)
        accepted_per_s, listing_s, json_s = _served(folder)
        bound_per_s = _raw_sqlite_jobs_per_s(folder)
        bare_s = _bare_command_s()
    surrogate = added_s()
    return Report(
        name="appliance",
        figures={
            "surrogate_added_s_p50": surrogate.added_s,
            "accepted_per_s": accepted_per_s,
            "turn_ms_p50": statistics.median(freed_ms),
            "listing_s_p50": listing_s,
        },
        bounds={"surrogate_added_s_p50": 0.0, "accepted_per_s": bound_per_s, "listing_s_p50": bare_s},
        anchors={"surrogate_added_s_p50": 0.2, "accepted_per_s": 200, "turn_ms_p50": 100, "listing_s_p50": 1.0},
        notes=(
            f"{WAITING} jobs in the queue of {SYSTEMS} systems; {ROUNDS} rounds; turn p99 {_p99(freed_ms):.1f} ms",
            f"a turn that takes one more job {statistics.median(create_ms):.1f} ms",
            f"{CLIENTS} clients; bound: raw sqlite3, FULL, one thread, in-process, one commit a job",
            f"the list: `moor wafer get jobs`, all of it; -o json {json_s:.2f} s; bound: `moor --version`",
            *surrogate.notes,
        ),
    )


def _job(chance: random.Random, workflow: str, folder: str = "/") -> JobSpec:
    """A job as the appliance's own client sends it, but it keeps what it gets for as long as there is that folder."""
    kind = chance.choice((ApplianceJobType.COMPILE, ApplianceJobType.EXECUTE, ApplianceJobType.EXECUTE))
    compiles = kind is ApplianceJobType.COMPILE
    return JobSpec(
        name="train-gpt2",
        command=("sh", "-c", 'while [ -d "$0" ]; do sleep 0.5; done', folder),
        workdir="/tmp",
        environment={"PATH": "/usr/bin:/bin", "HOME": "/home/ann", "LANG": "C.UTF-8"},
        accelerators=Accelerators(
            "csx",
            0 if compiles else chance.choice((1, 1, 1, 2, 4)),
            resources={"memory": (COMPILE_GI if compiles else EXECUTE_GI) * GIB},
        ),
        priority=-chance.choice(tuple(BUCKETS.values())),
        time_limit_s=chance.choice((None, 3600.0, 86_400.0)),
        labels={"model": "gpt2", "SLURM_JOB_ID": str(chance.randrange(100_000))},
        lease_s=86_400.0,  # nobody renews it here
        appliance=WorkflowPart(kind, workflow),
    )


def _workflow(number: int) -> str:
    return f"wflow-{number:022d}"


# -- in this process ------------------------------------------------------------------------------------------------


class _Queue:
    """A busy appliance with a long queue, stepped as the loop steps it: decide, save, apply."""

    def __init__(self, store: SqlStore, chance: random.Random) -> None:
        pool = Pool(PoolName("cs"), "csx", "simulated", AnySubset(SYSTEMS, SYSTEMS), (("memory", MEMORY_GI * GIB),))
        self.fleet, self.runs = Fleet([pool]), RunRegistry()
        self._chance, self._store = chance, store
        self._now = self._since = Timestamp(1_000_000 * SECOND)
        self._epoch = store.begin_epoch("benchmark", self._now)
        self._created = 0
        self.fill()

    def step(self, *inputs: AnyInput) -> float:
        """Milliseconds of one turn, without its commit."""
        self._now = Timestamp(self._now + SECOND // 100)
        demanded = [KeyedInput(given) for given in inputs]
        begun = time.perf_counter()
        outcome = decide_turn(self.fleet, self.runs, demanded, TurnContext(self._now, self._since, Policy()))
        decided = time.perf_counter()
        if outcome.changes:
            self._store.commit(self._epoch, outcome.changes)
        saved = time.perf_counter()
        self.fleet.apply(outcome.fleet)
        self.runs.apply(outcome.runs)
        return (decided - begun + time.perf_counter() - saved) * 1000

    def fill(self) -> float:
        """Make the queue so long again; milliseconds of the last turn that this took."""
        took_ms = 0.0
        while len(self.fleet.queue) < WAITING:
            missing = min(WAITING - len(self.fleet.queue), AT_ONCE)
            took_ms = self.step(*(self._asks() for _ in range(missing)))
            self.settle()
        return took_ms

    def _asks(self) -> CreateRun:
        self._created += 1
        return CreateRun(
            id=RunId(f"wsjob-{self._created:022d}"),
            claim=ClaimId(f"claim-{self._created}"),
            job=_job(self._chance, _workflow(self._created)),
            engine="local",
            subject=f"u{self._created % 64}",
        )

    def settle(self) -> None:
        """The driver makes every partition that was granted, and the engine starts what runs there."""
        new = [one for one in self.fleet.partitions.values() if one.state is PartitionState.PROVISIONING]
        if new:
            self.step(*(_answered(partition, "create", ObservedState.ACTIVE) for partition in new))
        starting = [one for one in self.runs.by_id.values() if one.state is RunState.STARTING]
        if starting:
            self.step(*(RunStatus(one.id, RunPhase.RUNNING, started_at=self._now) for one in starting))

    def end_one(self) -> float:
        """A job ends; milliseconds of the turn in which its systems are free and go to the next, if it had any."""
        running = [one for one in self.runs.by_id.values() if one.state is RunState.RUNNING]
        ended = self._chance.choice(running)
        assert ended.claim is not None
        held = self.fleet.claims[ended.claim].partition
        took_ms = self.step(RunStatus(ended.id, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, 0, (0,))))
        if held is None:
            return took_ms  # a compile job has none: the next one is granted at once
        return self.step(_answered(self.fleet.partitions[held], "remove", ObservedState.ABSENT))


def _answered(partition: Partition, order: str, seen: ObservedState) -> DriverResultReceived:
    return DriverResultReceived(partition.id, partition.version, order, DriverResult(ResultCode.OK, seen))


def _turns(folder: Path) -> tuple[list[float], list[float]]:
    store = open_sqlite(folder / "turns.db")
    freed_ms: list[float] = []
    create_ms: list[float] = []
    try:
        queue = _Queue(store, random.Random(SEED))
        gc.collect()
        gc.freeze()  # as the controller does
        for _ in range(ROUNDS):
            freed_ms.append(queue.end_one())
            queue.settle()
            create_ms.append(queue.fill())
    finally:
        gc.unfreeze()
        store.close()
    return freed_ms, create_ms


# -- over HTTP ------------------------------------------------------------------------------------------------------


def _served(folder: Path) -> tuple[float, float, float]:
    """Jobs accepted a second; seconds of the whole list as a table, and as JSON."""
    (folder / "pools.toml").write_text(POOLS)
    process, url, key = start_controller(folder)
    try:
        out = subprocess.run(
            [sys.executable, "-m", "benchmarks.appliance", url, str(folder)],
            input=key, capture_output=True, text=True, check=True, timeout=300,
        ).stdout  # fmt: skip
        environment = {**os.environ, "MOORINGS_CREDENTIALS": str(folder / "credentials.toml")}
        table_s = _command_s(["wafer", "get", "jobs"], environment, lines=WAITING)
        json_s = _command_s(["wafer", "get", "jobs", "-o", "json"], environment, lines=WAITING)
    finally:
        process.terminate()
        process.wait(20)
    return json.loads(out)["accepted_per_s"], table_s, json_s


def _command_s(words: list[str], environment: dict[str, str], lines: int) -> float:
    """Median seconds of a command that prints at least so many lines."""
    times = []
    for _ in range(LISTED):
        begun = time.perf_counter()
        out = subprocess.run(
            [sys.executable, "-m", "moorings.cli.main", *words],
            env=environment, capture_output=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        times.append(time.perf_counter() - begun)
        if out.count(b"\n") < lines:
            raise SystemExit(f"moor {' '.join(words)} printed fewer than {lines} lines")
    return statistics.median(times)


def _bare_command_s() -> float:
    return _command_s(["--version"], dict(os.environ), lines=1)


async def _send(url: str, key: str, jobs: list[JobSpec]) -> None:
    host, port = url.removeprefix("http://").split(":")
    connection = await asyncio.open_connection(host, int(port))
    shared = f"host: {host}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    while jobs:
        job = jobs.pop()
        body = build_body(RunRequest(job=job_shape(job)))
        head = f"POST /v1/runs HTTP/1.1\r\n{shared}idempotency-key: {secrets.token_hex(8)}\r\n"
        status, answer = await request(connection, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if status != 201:
            raise SystemExit(f"POST /v1/runs: {status} {answer[:300]!r}")
    connection[1].close()


async def _load(url: str, folder: str, key: str) -> dict[str, float]:
    chance = random.Random(SEED)
    jobs = [_job(chance, _workflow(number), folder) for number in range(WAITING)]
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(_send(url, key, jobs))
    return {"accepted_per_s": WAITING / (time.perf_counter() - begun)}


# -- the bound ------------------------------------------------------------------------------------------------------


def _raw_sqlite_jobs_per_s(folder: Path) -> float:
    """The same promise by hand: job, claim, key and events of a job in one durable commit."""
    database = sqlite3.connect(folder / "bound.db", isolation_level=None)
    database.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
        "CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT, job TEXT);"
        "CREATE TABLE claims (id TEXT PRIMARY KEY, state TEXT, spec TEXT);"
        "CREATE TABLE keys (subject TEXT, key TEXT, run TEXT, PRIMARY KEY (subject, key)) WITHOUT ROWID;"
        "CREATE TABLE outbox (seq INTEGER PRIMARY KEY, name TEXT, data TEXT);"
    )
    job = build_body(RunRequest(job=job_shape(_job(random.Random(SEED), _workflow(0))))).decode()
    count = 2000
    begun = time.perf_counter()
    for number in range(count):
        ident = f"wsjob-{number:022d}"
        database.execute("BEGIN IMMEDIATE")
        database.execute("SELECT run FROM keys WHERE subject='me' AND key=?", (ident,)).fetchone()
        database.execute("INSERT INTO runs VALUES (?, 'WAITING', ?)", (ident, job))
        database.execute("INSERT INTO claims VALUES (?, 'PENDING', '{}')", (ident,))
        database.execute("INSERT INTO keys VALUES ('me', ?, ?)", (ident, ident))
        database.execute("INSERT INTO outbox (name, data) VALUES ('run.created', ?)", (ident,))
        database.execute("INSERT INTO outbox (name, data) VALUES ('turn.decided', ?)", (job,))
        database.execute("COMMIT")
    took = time.perf_counter() - begun
    database.close()
    return count / took


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_load(sys.argv[1], sys.argv[2], sys.stdin.read().strip()))))
