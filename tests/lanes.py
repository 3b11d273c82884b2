"""Runs all tests in lanes that overlap: ``python -m tests.lanes`` is what ``make test`` and ``make test-all`` are.

Tests on real clusters mostly wait, and need one process that keeps its cluster; all others are spread over workers.
So Slurm, Kubernetes and the rest are lanes of their own, and Kubernetes is built beside them from minute 0 on. A lane's
output goes to ``.tools/test``; what failed, and what everything cost (``tests.costs``), is printed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import sampling
from tests.costs import GOOD_MS, Cost, dearest, folders, idle, over_budget, python_ms
from tests.mutation import keeper
from tests.waiting import patient

ROOT = sampling.ROOT
FOLDER = ROOT / ".tools" / "test"
LOOK_S = 60.0
FAILED_CHARS_MAX = 60_000
LIMIT_S = {True: 75 * 60.0, False: 4 * 3600.0}  # for a lane, by whether it is a sample: before CI ends it
GRACE_S = patient(10)  # for what ends by itself, once its lane has ended
SLOW_MAX = 3.0  # a budget grows with the machine's slowness, but not for ever

NAMES = ("kubernetes", "slurm", "rest", "check")

_PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "tests.costs", "-p", "no:cacheprovider", "--hypothesis-profile=gate"),
    *("-o", "faulthandler_timeout=1800"),  # says where a fixture hangs, before its lane is ended
)


@dataclass(slots=True)
class Lane:
    """Commands in order; those after one that fails are not started.

    Attributes:
        name: of the lane, and of its files.
        commands: what it runs.
        process: of the command at hand.
        status: its exit status, once it has ended.
        cpu_s: what its processes have used.
        tests: what each test cost, once it has ended.
        collected: how many tests there were to run; None, before, and where there are none.
    """

    name: str
    commands: Sequence[Sequence[str]]
    process: subprocess.Popen[bytes] | None = None
    status: int | None = None
    begun_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    tests: Mapping[str, Cost] = field(default_factory=dict)
    collected: int | None = None
    _at: int = -1

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return FOLDER / f"{self.name}.log"

    @property
    def costs(self) -> Path:
        """Where pytest writes what each test cost."""
        return FOLDER / f"{self.name}.json"

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the next command, or end."""
        self._at += 1
        self.begun_s = self.begun_s or time.monotonic()
        if self._at == len(self.commands):
            self._end(0)
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.commands[self._at], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def command_ended(self, status: int, environment: Mapping[str, str]) -> None:
        """Go on after the command at hand."""
        if status == 0:
            self.start(environment)
        else:
            self._end(status)

    def give_up(self) -> None:
        """End it, whatever it does: it has taken too long."""
        if self.process is not None:
            self.process.terminate()
        with self.log.open("ab") as log:
            log.write(f"\nlane {self.name} was ended: it took too long\n".encode())
        self._end(keeper.TOO_LONG)

    def _end(self, status: int) -> None:
        self.status, self.process = status, None
        self.wall_s = time.monotonic() - self.begun_s
        if self.costs.exists():
            read = json.loads(self.costs.read_text("utf-8"))
            self.collected = read["collected"]
            self.tests = {name: Cost(**one) for name, one in read["tests"].items()}

    def progress(self) -> str:
        """How far it is, in few words."""
        if self.status is not None:
            return f"{self.name} {'done' if self.status == 0 else 'FAILED'}"
        text = self.log.read_bytes() if self.log.exists() else b""
        marks = b"".join(re.findall(rb"^([.sxXFE]+)(?: +\[ *\d+%\])?$", text, re.MULTILINE))
        percents = re.findall(rb"\[ *(\d+)%\]", text)  # one comes with each 72nd test only
        far = f"{percents[-1].decode()} %" if percents else f"{len(marks)} tests" if marks else "begins"
        n_failed = marks.count(b"F") + marks.count(b"E")
        return f"{self.name} {far}{f' ({n_failed} failed)' if n_failed else ''}"

    def unproved(self) -> list[str]:
        """What is missing of the proof that it ran all its tests."""
        if self.status != 0 or not any("pytest" in word for command in self.commands for word in command):
            return []
        if self.collected is None:
            return [f"lane {self.name} ended well and says nothing of its tests"]
        if self.collected != len(self.tests) or not self.tests:
            return [f"lane {self.name} ran {len(self.tests)} of {self.collected} tests"]
        return []


def hypothesis_seed() -> int:
    """By which properties draw their examples."""
    return int(sampling.tree()[:8], 16)


def lanes(names: Sequence[str], *, sampled: bool) -> list[Lane]:
    """The lanes of those names; all, if none is named."""
    seed = f"--hypothesis-seed={hypothesis_seed()}"
    script = str(ROOT / "scripts" / "kubernetes.sh")
    kube = "--kube=turn" if sampled else "--kube=both"

    def pytest(name: str, *words: str) -> Sequence[str]:
        return (*_PYTEST, seed, "--costs", str(FOLDER / f"{name}.json"), *words)

    # A file is one worker's: what its tests share is made once. Many tests wait, so two workers leave cores idle. Files
    # stay in order: tests/unit is last, of many short ones; by default the long ones, of few tests, would be.
    files = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
    rest = ("tests", "--ignore=tests/slurm", "--ignore=tests/kubernetes", *files)
    found = [
        Lane("kubernetes", [[script], [script, "--helm"], pytest("kubernetes", "tests/kubernetes", kube)]),
        Lane("slurm", [pytest("slurm", "tests/slurm")]),
        Lane("rest", [pytest("rest", *rest)]),
        Lane("check", [["make", "--no-print-directory", "check"]]),
    ]
    return [lane for lane in found if not names or lane.name in names]


def main(arguments: Sequence[str]) -> int:
    """Run them; 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description="Run all tests, in lanes that overlap.")
    parser.add_argument("--sample", action="store_true", help="leave out what tests/gates.toml says; else run all")
    parser.add_argument("lanes", nargs="*", help="of kubernetes, slurm, rest, check; without a name: all")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.lanes) - set(NAMES)):
        parser.error(f"there is no lane {', '.join(unknown)}; there are {', '.join(NAMES)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            parser.error(f"another run of the tests of {ROOT} is going on, and writes into the same {FOLDER}")
        return run_all(lanes(asked.lanes, sampled=asked.sample), sampled=asked.sample, all_lanes=not asked.lanes)


def run_all(chosen: Sequence[Lane], *, sampled: bool, all_lanes: bool) -> int:
    """Run lanes beside each other and tell how it went; 0 if all is well."""
    for lane in chosen:
        lane.log.unlink(missing_ok=True)
        lane.costs.unlink(missing_ok=True)
    environment = {**os.environ, "MOORINGS_TESTS": "sample" if sampled else "whole"}
    begun_s, speed_ms = time.monotonic(), python_ms()
    extent = "a sample of the tests" if sampled else "all tests"
    print(f"{extent}, tree {sampling.tree()[:12]}; python -c pass takes {speed_ms:.0f} ms of CPU", flush=True)
    if sampling.git("status", "--porcelain"):
        print("something is not committed: the commit with it will draw another sample")
    variable = "MOORINGS_TESTS=sample " if sampled else ""
    print(f"a property again: {variable}pytest --hypothesis-profile=gate --hypothesis-seed={hypothesis_seed()} FILE")
    bad: list[str] = []
    keeper.adopt_orphans()  # so that nothing stays behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        orphans_s = run(chosen, environment, LIMIT_S[sampled])
    except (KeyboardInterrupt, SystemExit):
        bad, orphans_s = ["the run was stopped"], 0.0
    bad += [f"left behind: {line}" for line in end_all(chosen)]
    speed_ms = max(speed_ms, python_ms())
    if not bad and all_lanes:
        bad += idle({name: one for lane in chosen for name, one in lane.tests.items()}, sampling.table())
    return report(chosen, time.monotonic() - begun_s, speed_ms, bad, sampled=sampled, orphans_s=orphans_s)


def run(chosen: Sequence[Lane], environment: Mapping[str, str], limit_s: float) -> float:
    """Run lanes beside each other until all have ended; the CPU seconds of processes that left theirs."""
    began_s = said_s = time.monotonic()
    orphans_s = 0.0
    for lane in chosen:
        lane.start(environment)
    while any(lane.status is None for lane in chosen):
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.2)
        used_s = used.ru_utime + used.ru_stime
        for lane in chosen:
            if lane.process is not None and lane.process.pid == pid:
                lane.cpu_s += used_s
                lane.process.returncode = os.waitstatus_to_exitcode(status)
                lane.command_ended(lane.process.returncode, environment)
                break
            if lane.process is not None and time.monotonic() - lane.begun_s > limit_s:
                lane.give_up()
        else:
            orphans_s += used_s if pid else 0.0
        if time.monotonic() - said_s > LOOK_S:
            said_s = time.monotonic()
            progress = " · ".join(lane.progress() for lane in chosen)
            print(f"{int(said_s - began_s) // 60:3} min  {progress}", flush=True)
    return orphans_s


def end_all(chosen: Sequence[Lane]) -> list[str]:
    """End what still runs; a line for each process that is left behind once the lanes have ended."""
    running = [lane.process for lane in chosen if lane.process is not None]
    for process in running:
        process.terminate()
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
    give_up_s = time.monotonic() + GRACE_S
    while keeper.descendants() and time.monotonic() < give_up_s:
        time.sleep(0.1)
    path = FOLDER / "left"
    with path.open("wb") as output:
        keeper.end_descendants(output.fileno())
    return [line.removeprefix(keeper.ENDED) for line in path.read_text("utf-8", "replace").splitlines()]


def report(
    ran: Sequence[Lane], wall_s: float, speed_ms: float, bad: Sequence[str], *, sampled: bool, orphans_s: float = 0.0
) -> int:
    """Print what failed and what everything cost; 0 if all is well. ``bad``: what is known to be wrong besides."""
    for lane in ran:
        print(f"\n== lane {lane.name} {'passed' if lane.status == 0 else f'FAILED ({lane.status})'}: {lane.log}")
        print(_summary(lane) if lane.status == 0 else _failures(lane))
    tests = {name: one for lane in ran for name, one in lane.tests.items()}
    rows = sampling.table()
    print(f"\n{folders(tests, rows)}\n\n{dearest(tests)}")
    print("\nlane          CPU s  wall s  CPU s in no test (builds, collection)")
    for lane in ran:
        outside_s = lane.cpu_s - sum(one.cpu_s for one in lane.tests.values())
        print(f"{lane.name:12} {lane.cpu_s:6.0f} {lane.wall_s:7.0f} {outside_s:6.0f}")
    print(f"{'left a lane':12} {orphans_s:6.0f}")
    bad = [*(f"lane {lane.name}" for lane in ran if lane.status != 0), *bad]
    bad += [line for lane in ran for line in lane.unproved()]
    skipped = [name for name, one in tests.items() if one.smoke and one.outcome == "skipped"]
    bad += [f"{name} is smoke, and was skipped" for name in skipped]
    bad += over_budget(tests, rows, min(SLOW_MAX, max(1.0, speed_ms / GOOD_MS))) if sampled else []
    print(f"\n{int(wall_s) // 60} min {int(wall_s) % 60} s; python -c pass took {speed_ms:.0f} ms of CPU", end=" ")
    print(f"({GOOD_MS:.0f} on a good hour)")
    for line in bad:
        print(f"FAILED: {line}")
    outcomes = [one.outcome for one in tests.values()]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    print(counts, flush=True)
    return 1 if bad else 0


def _failures(lane: Lane) -> str:
    text = lane.log.read_text("utf-8", "replace") if lane.log.exists() else ""
    found = [at for at in (text.find("= ERRORS ="), text.find("= FAILURES =")) if at >= 0]
    return text[min(found) :][-FAILED_CHARS_MAX:] if found else text[-FAILED_CHARS_MAX // 6 :]


def _summary(lane: Lane) -> str:
    """The end of a log without the dots: what was skipped and why, what was left out, and the counts."""
    lines = lane.log.read_text("utf-8", "replace").splitlines()
    told = [line for line in lines if not re.fullmatch(r"[.sxX]+( +\[ *\d+%\])?", line)]
    return "\n".join([line for line in told[:-60] if line.startswith("SKIPPED")] + told[-60:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
