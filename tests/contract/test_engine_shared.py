"""The engine of a shared machine keeps the contract of every engine, with the root daemon and a person."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.app.clock import SystemClock
from moorings.core.model.serialization import to_plain
from moorings.local.shared_engine import SharedEngine
from moorings.ports.engine import RunSubmission
from moorings.testing.engine_suite import EngineSuite, SuitePrograms
from tests.unit.privileged.rig import ANN, NEEDS_ROOT, PYTHON, RootRig

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
