"""``philly``: 60,000 jobs of Microsoft's Philly cluster on power-of-two pools, with and without moves.

Jobs of at most 64 devices by arrival, a reservation for the first that waits (EASY), backfill by exact run times.
Bound: the same policy where any devices do (no topology). ``MOORINGS_BENCH_DATA`` names the folder
with ``philly-60000.csv`` (Jeon et al., USENIX ATC 2019, CC-BY-4.0; as published with the Sia artifact).

Then its two halves, each in an empty cluster: ``patience`` was chosen on the first, the figures tell the second.
Also without time limits, as the trace was published: only there does patience change anything (the frontier).
"""

from __future__ import annotations

import csv
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from benchmarks.report import Report
from moorings.core.forecast.simulation import SimulatedJob, SimulationResult, simulate
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import DEFAULT_POLICY, DefragmentMode, Policy
from moorings.core.model.timestamps import DAY_S
from moorings.core.model.topology import AnySubset, Pool, PowerOfTwo, Topology

DOMAIN_SIZE = 64
DOMAINS = (7, 8)
LARGE = 16  # devices, and more
MOVE_S = 120.0
HOUR_S = 3600.0
UNLIMITED = 1_000_000  # moves an hour
HALVES = {"tuned": range(30_000), "judged": range(30_000, 60_000)}  # rows of the file
HALF_FULL = 12  # domains
PATIENCE_S = DEFAULT_POLICY.patience_s
PATIENCES_S = (0.0, 2 * DAY_S, PATIENCE_S, 14 * DAY_S)


@dataclass(frozen=True)
class _Run:
    mode: str
    simulated: SimulationResult
    took_s: float

    def wait_h(self, least: int = 1, most: int = DOMAIN_SIZE) -> float:
        """Mean wait of the jobs of these sizes."""
        waits = [course.wait_s for course in self.simulated.courses if least <= course.job.size <= most]
        return statistics.fmean(wait for wait in waits if wait is not None) / HOUR_S

    def moves_per_100(self) -> float:
        """Moves for every hundred jobs."""
        return 100 * self.simulated.moves / len(self.simulated.courses)


def run() -> Report:
    """Measure."""
    jobs = _jobs(range(60_000))
    figures: dict[str, float] = {}
    notes = [f"{len(jobs):,} jobs; mean wait in hours by size, for {', '.join(_MODES)}"]
    moves, took_s = [], []
    for domains in DOMAINS:
        runs = {mode: _replay(jobs, domains, mode) for mode in _MODES}
        n_devices = domains * DOMAIN_SIZE
        on, bound = runs["on"], runs["bound"]
        figures[f"large_wait_ratio_to_bound_{n_devices}"] = on.wait_h(LARGE) / bound.wait_h(LARGE)
        moves.append(on.moves_per_100())
        took_s.append(on.took_s)
        notes += _table(n_devices, list(runs.values()))
    figures["moves_per_100_jobs"] = statistics.fmean(moves)
    figures["simulated_s"] = max(took_s)
    for half, rows in HALVES.items():
        ratios, told = _half(half, _jobs(rows))
        figures |= ratios if half == "judged" else {}
        notes += told
    return Report(
        name="philly",
        figures=figures,
        bounds={name: 1 for name in figures if "_ratio_" in name},
        anchors={name: 1.02 if name.startswith("large") else 1.05 for name in figures if "_ratio_" in name}
        | {"simulated_s": 15},
        notes=tuple(notes),
    )


def _half(half: str, jobs: Sequence[SimulatedJob]) -> tuple[dict[str, float], list[str]]:
    """The ratios of one half of the file, and its frontier: what more patience does to large jobs and to all."""
    figures: dict[str, float] = {}
    notes = ["", f"{half}: {len(jobs):,} jobs; mean wait in hours, and its ratio to the bound's"]
    notes.append(
        f"{'devices':<10}{'limits':<8}{'moves':<16}{'all':>8}{'ratio':>8}{f'{LARGE}+':>8}{'ratio':>8}{'moves':>8}"
    )
    for domains in (*DOMAINS, HALF_FULL):
        n_devices = domains * DOMAIN_SIZE
        for limits in ("exact", "none"):
            given = jobs if limits == "exact" else [replace(job, limit_s=None) for job in jobs]
            bound = _replay(given, domains, "bound")
            runs = {"off": _replay(given, domains, "off")}
            for patience_s in PATIENCES_S if limits == "none" else (PATIENCE_S,):
                runs[f"patience {patience_s / DAY_S:g} d"] = _replay(given, domains, "on", patience_s)
            for name, one in {**runs, "bound": bound}.items():
                ratios = [one.wait_h(least) / bound.wait_h(least) for least in (1, LARGE)]
                waits = f"{one.wait_h():>8.2f}{ratios[0]:>8.3f}{one.wait_h(LARGE):>8.2f}{ratios[1]:>8.3f}"
                notes.append(f"{n_devices:<10}{limits:<8}{name:<16}{waits}{one.moves_per_100():>8.2f}")
            chosen = runs[f"patience {PATIENCE_S / DAY_S:g} d"]
            apart = "" if limits == "exact" else "_no_limits"
            figures[f"all_wait_ratio_to_bound_{n_devices}{apart}"] = chosen.wait_h() / bound.wait_h()
            if apart:
                figures[f"large_wait_ratio_to_bound_{n_devices}{apart}"] = chosen.wait_h(LARGE) / bound.wait_h(LARGE)
    return figures, notes


_MODES = ("off", "suggest", "on", "bound")


def _jobs(rows: range) -> list[SimulatedJob]:
    path = Path(os.environ.get("MOORINGS_BENCH_DATA", "")) / "philly-60000.csv"
    if not path.is_file():
        raise SystemExit("philly: MOORINGS_BENCH_DATA must name a folder that has philly-60000.csv")
    found: list[SimulatedJob] = []
    began: datetime | None = None
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number not in rows:
                continue
            at, size, runs_s = datetime.fromisoformat(row["timestamp"]), int(row["num_gpus"]), float(row["duration"])
            began = began or at
            if 1 <= size <= DOMAIN_SIZE and not size & (size - 1):
                arrives_s = (at - began).total_seconds()
                found.append(
                    SimulatedJob(name=f"job-{number}", arrives_s=arrives_s, runs_s=runs_s, size=size, limit_s=runs_s)
                )
    return found


def _replay(jobs: Sequence[SimulatedJob], domains: int, mode: str, patience_s: float = PATIENCE_S) -> _Run:
    n_devices = domains * DOMAIN_SIZE
    topology: Topology = PowerOfTwo(domains, DOMAIN_SIZE, DOMAIN_SIZE)
    if mode == "bound":
        topology = AnySubset(n_devices, DOMAIN_SIZE)
    policy = Policy(
        fair_share=False,
        making_s=0.0,
        move_s=MOVE_S,
        moves_per_hour=UNLIMITED,
        patience_s=patience_s,
        defragment=DefragmentMode(mode) if mode != "bound" else DefragmentMode.OFF,
    )
    begun = time.perf_counter()
    simulated = simulate([Pool(PoolName("pod"), "ipu", "simulated", topology)], jobs, policy)
    return _Run(mode, simulated, time.perf_counter() - begun)


def _table(n_devices: int, runs: Sequence[_Run]) -> list[str]:
    sizes = sorted({course.job.size for course in runs[0].simulated.courses})
    head = f"{n_devices} devices".ljust(14) + "".join(f"{size:>8}" for size in sizes)
    lines = [f"{head}{'all':>8}{f'{LARGE}+':>8}{'used':>8}{'moves':>8}{'took s':>8}"]
    for one in runs:
        waits = [*(one.wait_h(size, size) for size in sizes), one.wait_h(), one.wait_h(LARGE)]
        numbers = "".join(f"{wait:>8.2f}" for wait in waits)
        rest = f"{one.simulated.utilisation():>8.3f}{one.moves_per_100():>8.2f}{one.took_s:>8.1f}"
        lines.append(f"{one.mode:<14}{numbers}{rest}")
    return lines
