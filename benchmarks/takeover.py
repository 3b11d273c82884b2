"""How long an installation of two controllers grants nothing when the one that leads is killed, or hangs.

From the signal until a claim is granted through the other's address: detection, the new leader's start, and the
request itself. Bound: the same signal to a process that holds nothing but the advisory lock, until a session that waits
for it has it.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from benchmarks.report import Report
from moorings.store.leader_lock import SILENCE_S
from tests.e2e.processes import POOLS, Twin
from tests.postgresql import PostgresqlServer, find_programs
from tests.waiting import until

ROUNDS = 5
LOCK = 1  # of the bound's own
_HOLD = f"""
import sys, time, psycopg
session = psycopg.connect(sys.argv[1], autocommit=True)
session.execute("SET idle_session_timeout = '{SILENCE_S:g}s'")
session.execute("SELECT pg_advisory_lock({LOCK})")
print("held", flush=True)
while True:
    time.sleep(0.5)
    session.execute("SELECT 1")
"""


def run() -> Report:
    """Measure."""
    figures: dict[str, float] = {}
    bounds: dict[str, float] = {}
    server = PostgresqlServer(find_programs())
    try:
        for name, number in (("killed_s", signal.SIGKILL), ("hung_s", signal.SIGSTOP)):
            figures[name], figures[f"{name}_max"] = _takeovers(server, number)
            bounds[name] = statistics.median(_lock_passes(server, number) for _ in range(ROUNDS))
    finally:
        server.remove()
    return Report(
        name="takeover",
        figures=figures,
        bounds=bounds,
        anchors={"killed_s": 5, "killed_s_max": 5, "hung_s": 5, "hung_s_max": 5},
        notes=(
            f"median and worst of {ROUNDS}: from the signal to the leader until the other address has granted a claim",
            "bound: the bare advisory lock passes from one process to another",
        ),
    )


def _takeovers(server: PostgresqlServer, number: signal.Signals) -> tuple[float, float]:
    """Median and worst, in seconds; the controllers take turns."""
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder, url, pair = Path(name), server.url(server.make_database()), []
        for own in ("one", "two"):
            (folder / own).mkdir()
            pair.append(Twin(folder / own, POOLS, database=url, shared=folder / "shared"))
            pair[-1].start()
            until(lambda: pair[0].leads)
        taken = []
        try:
            for _ in range(ROUNDS):
                leader, other = pair
                assert leader.process is not None
                time.sleep(1)  # as long as it takes to be at rest again
                begun = time.monotonic()
                leader.process.send_signal(number)
                status, body = 0, dict[str, str]()
                while status != 201:
                    status, body = other.ask("POST", "/v1/claims", {"size": 1})
                taken.append(time.monotonic() - begun)
                other.ask("DELETE", f"/v1/claims/{body['id']}")
                leader.kill()
                leader.start()
                pair.reverse()
        finally:
            for controller in pair:
                controller.kill()
    return statistics.median(taken), max(taken)


def _lock_passes(server: PostgresqlServer, number: signal.Signals) -> float:
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, server.admin_url], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder, psycopg.connect(server.admin_url, autocommit=True) as session:
        holder.stdout.readline()
        begun = time.monotonic()
        holder.send_signal(number)
        session.execute(f"SELECT pg_advisory_lock({LOCK})")
        taken = time.monotonic() - begun
        holder.kill()
    return taken
