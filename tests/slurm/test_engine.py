"""The engine ``slurm`` keeps the contract of every engine, with real jobs that have IPUs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from moorings.local.fence import Fence
from moorings.local.logs import TaskLog, read_logs
from moorings.slurm.commands import Commands
from moorings.slurm.engine.engine import SlurmEngine
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.testing.engine_suite import EngineSuite, Programs
from tests.slurm.ipus import IpuSite, ipu_site
from tests.unit.local.local_rig import WallClock


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release) as made:
        yield made


class SlurmRig:
    """A folder for runs that the nodes see, and engines for it."""

    programs = Programs()

    def __init__(self, site: IpuSite, folder: Path) -> None:
        self.site = site
        self.runs = folder / "runs"
        self.work = folder / "work"
        for made in (self.runs, self.work):
            made.mkdir()

    @property
    def workdir(self) -> str:
        return str(self.work)

    async def open(self) -> SlurmEngine:
        clock = WallClock()

        def read(
            files: Sequence[tuple[Path, bytes]], ended: Callable[[], Awaitable[bool]] | None
        ) -> AsyncIterator[bytes]:
            return read_logs([TaskLog(*one) for one in files], ended=ended, pause=clock.sleep)

        settings = SlurmEngineSettings(self.runs)
        return SlurmEngine(settings, Commands(self.site.cluster.env), clock, Fence(self.runs), read)


@pytest.fixture
def rig(site: IpuSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    folder = site.cluster.work / tmp_path_factory.mktemp("runs").name
    folder.mkdir()
    yield SlurmRig(site, folder)
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    site.settle()


class TestSlurmEngine(EngineSuite):
    pass
