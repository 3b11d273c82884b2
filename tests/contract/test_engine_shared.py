"""The engine of a shared machine keeps the contract of every engine, with the root daemon and a person."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moorings.app.clock import SystemClock
from moorings.app.maintenance import MaintenanceContext, _clean_spool, prune
from moorings.core.model.bindings import no_devices_binding
from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import add_seconds
from moorings.local.live_runs import find_started, list_live_runs, partitions_in_use
from moorings.local.shared_engine import UNUSED_S, SharedEngine
from moorings.ports.engine import RunSubmission
from moorings.privileged.daemon import STOPPED
from moorings.testing.engine_suite import EngineSuite, SuitePrograms
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import EndReason, RunId, RunPhase
from tests.unit.privileged.rig import ANN, NEEDS_ROOT, PYTHON, RootRig
from tests.waiting import until, until_async

pytestmark = NEEDS_ROOT
SOURCES = Path(__file__).resolve().parents[2] / "src"


class HandingIn(SharedEngine):
    """The engine, and before it the person's ``moor``."""

    def __init__(self, rig: SharedRig) -> None:
        super().__init__(rig.folder / "controller", rig.daemon.sockets / "control", SystemClock())
        self._rig = rig

    async def submit(self, order: RunSubmission) -> str:
        entry = await asyncio.to_thread(self._rig.entry, order)
        return await super().submit(replace(order, spool_entry=entry))


class SharedRig:
    """A shared machine with one person."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Other users may not look into the folder of the tests' own Python.
        code = (
            f"import sys; sys.path[:0] = [{str(SOURCES)!r}]\nfrom moorings.local.shared_supervisor import main; main()"
        )
        command = (str(PYTHON), "-c", code)
        self.daemon = RootRig(folder, f"moorings-test-{os.getpid()}", command)
        self.daemon.start()
        self._work = folder / "work"
        self._work.mkdir()
        shutil.chown(self._work, ANN, ANN)
        self._entries: dict[object, str] = {}
        self._lock = threading.Lock()

    def entry(self, order: RunSubmission) -> str:
        key = (order.run, order.job.command)  # people hand a job in once; the suite changes it between two attempts
        with self._lock:
            if key not in self._entries:
                answer = self.daemon.ask(ANN, "submit", {"op": "spool", "job": to_plain(order.job)})
                self._entries[key] = str(answer["entry"])
            return self._entries[key]

    @property
    def programs(self) -> SuitePrograms:
        return SuitePrograms()

    @property
    def workdir(self) -> str:
        return str(self._work)

    async def open(self) -> SharedEngine:
        return HandingIn(self)


class TestSharedEngine(EngineSuite):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[SharedRig]:
        made = SharedRig(tmp_path)
        yield made
        made.daemon.end()


async def has_ended(engine: SharedEngine, run: RunId) -> bool:
    (seen,) = await engine.observe([run])
    return seen.phase is RunPhase.ENDED


async def test_runs_that_were_stopped_with_all_others_are_lost(tmp_path: Path) -> None:
    """As by a shutdown, or by root who stops systemd's scope: TERM to every process of the job at once."""
    rig = SharedRig(tmp_path)
    try:
        engine = await rig.open()
        job = JobSpec(name="long", command=("/bin/sleep", "300"), workdir=rig.workdir, environment={"PATH": "/bin"})
        order = RunSubmission(RunId("run-00000000long"), 0, job, no_devices_binding(1))
        await engine.submit(order)

        async def runs() -> bool:
            (seen,) = await engine.observe([order.run])
            return seen.phase is RunPhase.RUNNING

        await until_async(runs)
        rig.daemon.sleeping.write_text("")
        for pid in rig.daemon.tree().job(f"{rig.entry(order)}.0").pids():
            os.kill(pid, signal.SIGTERM)
        await asyncio.to_thread(rig.daemon.wait)
        rig.daemon.sleeping.write_text("2\n")  # the next scope
        rig.daemon.start()
        await until_async(lambda: has_ended(engine, order.run))
        (seen,) = await engine.observe([order.run])
        assert seen.end is not None
        assert (seen.end.ending, seen.end.detail) == (EndReason.LOST, STOPPED)
    finally:
        rig.daemon.end()


async def submit_short(rig: SharedRig, engine: SharedEngine, run: str) -> RunSubmission:
    job = JobSpec(name="short", command=("/bin/true",), workdir=rig.workdir, environment={"PATH": "/bin"})
    order = RunSubmission(RunId(run), 0, job, no_devices_binding(1))
    await engine.submit(order)
    return order


async def test_an_old_run_is_forgotten_here_and_by_the_daemon(tmp_path: Path) -> None:
    rig = SharedRig(tmp_path)
    try:
        engine = await rig.open()
        order = await submit_short(rig, engine, "run-000000000old")
        runs, now = rig.folder / "controller", SystemClock().now()
        await until_async(lambda: has_ended(engine, order.run))
        spooled = rig.daemon.folder / "spool" / str(ANN) / rig.entry(order)
        assert prune(runs, now, (), engine.hold_ended) == [], "it ended later than that"
        later = add_seconds(SystemClock().now(), 1)
        assert prune(runs, later, {order.run}, engine.hold_ended) == []
        assert spooled.exists(), "the daemon was not asked to forget it yet"
        await asyncio.to_thread(until, lambda: prune(runs, later, (), engine.hold_ended) == [order.run])
        assert (await engine.observe([order.run]))[0].phase is RunPhase.ABSENT
        entry = rig.entry(order)
        await asyncio.to_thread(until, lambda: not (rig.daemon.folder / "jobs" / entry).exists())
        assert rig.daemon.state(entry)["state"] == "ABSENT"
    finally:
        rig.daemon.end()


async def test_what_lives_without_a_record_is_known_from_the_daemon(tmp_path: Path) -> None:
    """As after a backup was restored."""
    rig = SharedRig(tmp_path)
    runs = rig.folder / "controller"
    try:
        engine = await rig.open()
        await submit_short(rig, engine, "run-00000000done")
        job = JobSpec(name="long", command=("sleep", "300"), workdir=rig.workdir, environment={"PATH": "/bin"})
        order = RunSubmission(RunId("run-00000000long"), 3, job, replace(no_devices_binding(1), partition="p7"))
        await engine.submit(order)
        await until_async(lambda: has_ended(engine, RunId("run-00000000done")))
        ((found, trace),) = await asyncio.to_thread(list_live_runs, runs)
        assert (found.run, found.attempt, found.job, trace.attempt) == (order.run, 3, job, 3)
        assert await asyncio.to_thread(partitions_in_use, runs) == {"p7"}
        assert await asyncio.to_thread(list_live_runs, runs, {order.run}) == []
        started = find_started(runs, RunId("run-00000000done"))
        assert started is not None
        assert started.attempt == 0
    finally:
        rig.daemon.end()
    with pytest.raises(OSError, match="the root daemon does not answer"):  # nothing is concluded
        await asyncio.to_thread(partitions_in_use, runs)
    (runs / order.run / "run.json").write_text("{")
    with pytest.raises(OSError, match="damaged"):
        find_started(runs, order.run)


async def test_jobs_that_no_run_was_made_of_are_forgotten_after_a_day(tmp_path: Path) -> None:
    """As after a command that was killed between its two requests, or a run that was cancelled while it waited."""
    rig = SharedRig(tmp_path)
    try:
        engine = await rig.open()
        order = await submit_short(rig, engine, "run-0000000begun")
        await until_async(lambda: has_ended(engine, order.run))
        waits, unused, new = (rig.daemon.spool(ANN, name) for name in ("waits", "unused", "new"))
        begun, spool = rig.entry(order), rig.daemon.folder / "spool" / str(ANN)
        yesterday = SystemClock().now() / 1_000_000 - UNUSED_S - 1
        for entry in (begun, waits, unused):
            os.utime(spool / entry, (yesterday, yesterday))
        assert engine.forget_unused({waits}) == 1
        assert {path.name for path in spool.iterdir()} == {begun, waits, new}
        assert (engine.forget_unused({waits}), engine.forget_unused(())) == (0, 1)
    finally:
        rig.daemon.end()


@pytest.mark.parametrize("problem", ["", "memory and database differ"])
async def test_a_controller_that_knows_the_runs_has_them_forgotten(tmp_path: Path, problem: str) -> None:
    rig = SharedRig(tmp_path)
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            raise asyncio.CancelledError

    try:
        engine = await rig.open()
        waits, unused = (rig.daemon.spool(ANN, name) for name in ("waits", "unused"))
        for path in (rig.daemon.folder / "spool" / str(ANN)).iterdir():
            os.utime(path, (0, 0))
        loop = SimpleNamespace(problem=problem, runs=SimpleNamespace(by_id={1: SimpleNamespace(spool_entry=waits)}))
        assembly = SimpleNamespace(loop=loop, running=SimpleNamespace(engines={"local": engine}))
        nothing: Any = None
        clock: Any = SimpleNamespace(sleep=sleep)
        made: Any = lambda: assembly  # noqa: E731 - the context takes a function
        kept = MaintenanceContext(nothing, (), {}, tmp_path, "", tmp_path, tmp_path, clock, made)
        with pytest.raises(asyncio.CancelledError):
            await _clean_spool(kept)
        left = {path.name for path in (rig.daemon.folder / "spool" / str(ANN)).iterdir()}
        assert left == ({waits, unused} if problem else {waits})
    finally:
        rig.daemon.end()
