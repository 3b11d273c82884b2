"""Large jobs that wait: what the controller keeps of them in memory, and how long it takes to start beside them.

667 runs with jobs of 250 KB, 167 MB together, wait for devices that are all held. The bound is the same controller
before the first of them, and its first start. Starts are told in CPU: beside others that are at work the time of the
clock says more of them.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from benchmarks.claims_http import _cpu_s, request, start_controller
from benchmarks.queue_turn import _connect, _first_answer, _get, _rss_mb, _stop
from benchmarks.report import Report

RUNS, VARIABLES, VALUE_CHARS = 667, 245, 1020
CLIENTS, PAGES = 8, 5

POOLS = """\
[[pool]]
name = "pod64"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 64, max_block = 64 }
"""


def run() -> Report:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        (folder / "pools.toml").write_text(POOLS)
        process, url, key = start_controller(folder)
        try:
            asyncio.run(_first_answer(url, key))
            first_cpu_s, empty_rss_mb = _cpu_s(process.pid), _rss_mb(process.pid)
            asyncio.run(_fill(url, key))
            rss_mb = _rss_mb(process.pid)
            _stop(process)
            process, url, _ = start_controller(folder)
            asyncio.run(_first_answer(url, key))
            restart_cpu_s, restarted_rss_mb = _cpu_s(process.pid), _rss_mb(process.pid)
            page_ms = asyncio.run(_pages(url, key))
        finally:
            _stop(process)
    return Report(
        name="large_jobs",
        figures={"rss_mb": rss_mb, "restarted_rss_mb": restarted_rss_mb, "restart_cpu_s": restart_cpu_s},
        bounds={"rss_mb": empty_rss_mb, "restarted_rss_mb": empty_rss_mb, "restart_cpu_s": first_cpu_s},
        anchors={"rss_mb": 150, "restarted_rss_mb": 150},
        notes=(
            f"{RUNS} runs of {len(json.dumps(_job()))} bytes wait",
            f"a page of 100 of them, whole: {page_ms:.0f} ms",
            "bounds: the controller before the first, and its first start",
        ),
    )


def _job() -> dict[str, object]:
    environment = {f"V{number}": f"{number:04}" + "x" * (VALUE_CHARS - 4) for number in range(VARIABLES)}
    return {"name": "large", "command": ["true"], "workdir": "/", "environment": environment}


async def _fill(url: str, key: str) -> None:
    left = list(range(RUNS))
    shared = f"host: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"

    async def post(path: str, body: object) -> None:
        connection = await _connect(url)
        text = json.dumps(body)
        whole = f"POST {path} HTTP/1.1\r\n{shared}content-length: {len(text)}\r\n\r\n{text}".encode()
        while left:
            left.pop()
            status, answer = await request(connection, whole)
            if status != 201:
                raise SystemExit(f"POST {path}: {status} {answer[:300]!r}")
        connection[1].close()

    everything, left[:] = left[:], [0]
    await post("/v1/claims?wait=30s", {"size": 64})
    left[:] = everything
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(post("/v1/runs", {"job": _job()}))


async def _pages(url: str, key: str) -> float:
    """Milliseconds a page of 100 runs takes."""
    connection = await _connect(url)
    taken_ms = [(await _get(connection, key, "/v1/runs?state=WAITING&limit=100"))[0] for _ in range(PAGES)]
    connection[1].close()
    return sum(taken_ms) / PAGES
