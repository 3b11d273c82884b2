"""CPU of the command line: ``moor --version``, ``moor get partitions`` and ``moor motd`` against a live controller.

User and system CPU of the whole process, median. Bound: the same interpreter doing nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.claims_http import POOLS, start_controller
from benchmarks.report import Report

ROUNDS = 15


def run() -> Report:
    """Measure."""
    moor = str(Path(sys.executable).with_name("moor"))
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        (folder / "pools.toml").write_text(POOLS)
        process, _, _ = start_controller(folder)
        environment = {**os.environ, "MOORINGS_CREDENTIALS": str(folder / "credentials.toml")}
        try:
            version = _median_cpu_ms([moor, "--version"], environment)
            listing = _median_cpu_ms([moor, "get", "partitions"], environment)
            login = _median_cpu_ms([moor, "motd"], environment)
        finally:
            process.terminate()
            process.wait(20)
    nothing = _median_cpu_ms([sys.executable, "-c", "pass"], dict(os.environ))
    return Report(
        name="cli_start",
        figures={"version_cpu_ms": version, "get_cpu_ms": listing, "motd_cpu_ms": login},
        bounds={"version_cpu_ms": nothing, "get_cpu_ms": nothing, "motd_cpu_ms": nothing},
        anchors={"version_cpu_ms": 120, "get_cpu_ms": 250, "motd_cpu_ms": 250},
        notes=(f"median of {ROUNDS}; bound: python -c pass",),
    )


def _median_cpu_ms(command: list[str], environment: dict[str, str]) -> float:
    taken = [cpu_ms(command, environment) for _ in range(ROUNDS + 1)]
    return statistics.median(taken[1:])  # the first one writes bytecode


def cpu_ms(command: list[str], environment: dict[str, str]) -> float:
    """User and system CPU of one command; bytecode is written and read, as where Moorings is installed."""
    compiled = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, env=compiled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1000
