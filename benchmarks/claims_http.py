"""Durable claims over HTTP: one controller process, SQLite FULL, loops running, simulated drivers with zero times.

A pair is a POST answered when GRANTED is durable and a DELETE answered when RELEASING is durable. 16 clients (one
process, raw sockets, so that they are not the bottleneck) keep one connection each. The bound is raw ``sqlite3`` in the
same run and on the same disk: one thread, two durable commits a pair, idempotency check, claim, devices, outbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from benchmarks.report import Report

CLIENTS = 16
WARM_S, MEASURED_S = 2.0, 8.0
BOUND_PAIRS = 2000

POOLS = """\
[[pool]]
name = "pod"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 4, domain_size = 64, max_block = 64 }
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
        (folder / "pools.toml").write_text(POOLS)
        process, url, key = start_controller(folder)
        try:
            out = subprocess.run(
                [sys.executable, "-m", "benchmarks.claims_http", url],
                input=key, capture_output=True, text=True, check=True, timeout=120,
            ).stdout  # fmt: skip
            cpu_s = _cpu_s(process.pid)
        finally:
            process.terminate()
            process.wait(20)
        measured = json.loads(out)
        bound = _raw_sqlite_pairs_per_s(folder)
    return Report(
        name="claims_http",
        figures={"pairs_per_s": measured["pairs_per_s"], "p99_ms": measured["p99_ms"]},
        bounds={"pairs_per_s": bound},
        anchors={"pairs_per_s": 800, "p99_ms": 80},
        notes=(
            f"{CLIENTS} clients, p50 {measured['p50_ms']:.1f} ms a pair, {measured['errors']} errors",
            f"CPU: clients {measured['cpu_share']:.0%} of a core, controller {_ms_a_pair(cpu_s, measured):.2f} ms/pair",
            "bound: raw sqlite3, FULL, one thread, in-process, two commits a pair",
        ),
    )


def _ms_a_pair(cpu_s: float, measured: dict[str, float]) -> float:
    return cpu_s / measured["pairs"] * 1000


def start_controller(folder: Path) -> tuple[subprocess.Popen[bytes], str, str]:
    """A controller on a fresh data folder below `folder`; its process, address and an access key."""
    credentials = folder / "credentials.toml"
    command = [sys.executable, "-m", "moorings.app.controller", "--data", str(folder / "data"), "--port", "0"]
    command += ["--pools", str(folder / "pools.toml"), "--credentials", str(credentials), "--log-level", "warning"]
    process = subprocess.Popen(command)
    told = folder / "data" / "controller.json"
    deadline = time.monotonic() + 30
    while not told.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the controller did not start")
        time.sleep(0.05)
    context = tomllib.loads(credentials.read_text())["contexts"]["default"]
    return process, context["server"], context["access_key"]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the clients' process -------------------------------------------------------------------------------------------


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def request(connection: Connection, given: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to a request, head and all."""
    reader, writer = connection
    writer.write(given)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
    return int(answer[9:12]), await reader.readexactly(length)


async def _client(url: str, key: str, until: float, pairs: list[tuple[float, float]], errors: list[str]) -> None:
    host, port = url.removeprefix("http://").split(":")
    connection = await asyncio.open_connection(host, int(port))
    shared = f"host: {host}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    body = '{"size":1}'
    while time.monotonic() < until:
        begun = time.monotonic()
        head = f"POST /v1/claims?wait=30s&for=GRANTED HTTP/1.1\r\n{shared}idempotency-key: {secrets.token_hex(8)}\r\n"
        status, answer = await request(connection, f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        if status not in (200, 201) or b'"state":"PENDING"' in answer:
            errors.append(answer.decode()[:200])
            continue
        ident = answer.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        status, answer = await request(connection, f"DELETE /v1/claims/{ident} HTTP/1.1\r\n{shared}\r\n".encode())
        if status != 200:
            errors.append(answer.decode()[:200])
        pairs.append((begun, time.monotonic()))
    connection[1].close()


async def _load(url: str, key: str) -> dict[str, float]:
    pairs: list[tuple[float, float]] = []
    errors: list[str] = []
    begun = time.monotonic()
    until = begun + WARM_S + MEASURED_S
    await asyncio.gather(*(_client(url, key, until, pairs, errors) for _ in range(CLIENTS)))
    took_ms = [(end - start) * 1000 for start, end in pairs if start >= begun + WARM_S]
    if errors:
        print(errors[:3], file=sys.stderr)
    return {
        "pairs": len(pairs),
        "pairs_per_s": len(took_ms) / (time.monotonic() - begun - WARM_S),
        "p50_ms": statistics.median(took_ms),
        "p99_ms": statistics.quantiles(took_ms, n=100)[98],
        "cpu_share": time.process_time() / (time.monotonic() - begun),
        "errors": len(errors),
    }


# -- the bound ------------------------------------------------------------------------------------------------------


def _raw_sqlite_pairs_per_s(folder: Path) -> float:
    """The same promises by hand: nothing but ``sqlite3``, no HTTP, no validation, no grouping."""
    database = sqlite3.connect(folder / "bound.db", isolation_level=None)
    database.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
        "CREATE TABLE claims (id TEXT PRIMARY KEY, state TEXT, spec TEXT);"
        "CREATE TABLE keys (subject TEXT, key TEXT, claim TEXT, PRIMARY KEY (subject, key)) WITHOUT ROWID;"
        "CREATE TABLE devices (device INTEGER PRIMARY KEY, claim TEXT);"
        "CREATE TABLE outbox (seq INTEGER PRIMARY KEY, name TEXT, data TEXT);"
    )
    begun = time.perf_counter()
    for number in range(BOUND_PAIRS):
        ident = f"claim-{number}"
        database.execute("BEGIN IMMEDIATE")
        database.execute("SELECT claim FROM keys WHERE subject='me' AND key=?", (ident,)).fetchone()
        database.execute("INSERT INTO claims VALUES (?, 'GRANTED', '{}')", (ident,))
        database.execute("INSERT INTO keys VALUES ('me', ?, ?)", (ident, ident))
        database.execute("INSERT INTO devices VALUES (?, ?)", (number % 64, ident))
        database.execute("INSERT INTO outbox (name, data) VALUES ('claim.granted', ?)", (ident,))
        database.execute("COMMIT")
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE claims SET state='RELEASING' WHERE id=?", (ident,))
        database.execute("DELETE FROM devices WHERE device=?", (number % 64,))
        database.execute("INSERT INTO outbox (name, data) VALUES ('claim.releasing', ?)", (ident,))
        database.execute("COMMIT")
    took = time.perf_counter() - begun
    database.close()
    return BOUND_PAIRS / took


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_load(sys.argv[1], sys.stdin.read().strip()))))
