"""What is old leaves for the archives: archives and database are one log, and nothing is lost or made twice."""

from __future__ import annotations

import asyncio
import gzip
import json
import stat
from dataclasses import dataclass
from typing import Any, cast

import pytest

from moorings.controller.loop import TurnLoop
from moorings.controller.replay import Replay
from moorings.controller.retention import RemovedCounts, Retention
from moorings.core.model.claims import ClaimId
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import ReleaseClaim
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.ports.store import Changes, EventRow, IdempotencyRecord, Seq, Store
from moorings.store.archive import ArchiveFolder, list_archive_files, read_events
from moorings.testing.builders import NEW, NOW, a_run, jobs_for
from moorings.workloads.runs import RunState
from tests.databases import open_new
from tests.unit.controller.test_replay import POOL, answer, claim

DAY = 86_400 * SECOND
A_FILE = 10  # events, at least


@dataclass
class Clock:
    """Stands still."""

    instant: int = NOW

    def now(self) -> Timestamp:
        return Timestamp(self.instant)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


class Rig:
    """A loop whose turns are taken one by one, with its retention."""

    def __init__(self, tmp_path, store: Store) -> None:
        self.store, self.clock, self.folder = store, Clock(), tmp_path / "archive"
        self.begin()

    def begin(self, store: Store | None = None, archives: Any = None) -> None:
        """As a new process does."""
        store = store or self.store
        epoch = self.store.begin_epoch("test", self.clock.now())
        self.loop = TurnLoop(store, [POOL], Policy(), self.clock, epoch)
        self.retention = Retention(
            loop=self.loop,
            store=store,
            archives=archives or ArchiveFolder(self.folder),
            clock=self.clock,
            holder="here",
            keep_days=30,
            events_a_file=A_FILE,
        )

    async def turn(self, *inputs: Any) -> None:
        self.clock.instant += SECOND
        for given in inputs:
            self.loop.submit_nowait(given)
        await self.loop.turn()

    async def live(self, first: int, last: int) -> None:
        """Claims come, get their partitions, and go."""
        await self.loop.load()
        for number in range(first, last):
            await self.turn(claim(number, 4))
            await self.turn(*(answer(one) for one in self.loop.fleet.partitions.values()))
            await self.turn(ReleaseClaim(ClaimId(f"claim-{number}"), "done"))
            await self.turn(*(answer(one) for one in self.loop.fleet.partitions.values()))

    def kept(self) -> list[EventRow]:
        return list(self.store.list_events(Seq(0), 100_000))

    def archived(self) -> list[EventRow]:
        return [row for one in list_archive_files(self.folder) for row in read_events(one)]

    def whole(self) -> list[EventRow]:
        """Archives and database as one log, as a replay reads them."""
        before = self.archived()
        return [*before, *(row for row in self.kept() if not before or row.seq > before[-1].seq)]

    def drafts(self) -> list[str]:
        return [path.name for path in self.folder.glob(".*")]

    async def end(self) -> None:
        self.loop.close()


@pytest.fixture
async def rig(tmp_path):
    rig = Rig(tmp_path, open_new(tmp_path / "moorings.db"))
    yield rig
    await rig.end()
    rig.store.close()


async def test_archives_and_database_are_one_log_byte_for_byte(rig):
    await rig.live(0, 10)
    log = rig.kept()
    rig.clock.instant += 40 * DAY
    await rig.live(10, 12)
    log = rig.kept()
    swept = await rig.retention.archive_and_delete()
    assert swept == RemovedCounts(events=len(rig.archived()), runs=0, claims=10)
    assert swept.events > 40
    assert rig.kept()[0].seq == swept.events + 1
    assert rig.whole() == log
    replay = Replay([POOL])
    assert list(replay.replay_rows(rig.whole())) == []
    assert replay.turns > 40
    for one in list_archive_files(rig.folder):  # whole turns, and no more than it takes
        rows = list(read_events(one))
        assert rows[-1].event.name == "turn.decided"
        assert A_FILE <= len(rows) < A_FILE + 6
        assert stat.S_IMODE(one.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(rig.folder.stat().st_mode) == 0o700
    assert [(one.first, one.last) for one in list_archive_files(rig.folder)] == [
        (archive.first, archive.last) for archive in rig.store.archives()
    ]
    assert await rig.retention.archive_and_delete() == RemovedCounts()


async def test_what_is_young_stays(rig):
    await rig.live(0, 10)
    log = rig.kept()
    rig.clock.instant += 29 * DAY
    assert await rig.retention.archive_and_delete() == RemovedCounts()
    assert (rig.kept(), rig.folder.exists()) == (log, False)


async def test_records_that_have_left_stand_in_an_archive(rig):
    await rig.live(0, 3)
    run = a_run(1, state=RunState.FAILED, ended_at=NOW, exit_code=3, claim=None)
    (job,) = (jobs := jobs_for(run)).values()
    rig.store.commit(rig.loop.epoch, Changes(runs=[(run, NEW)], jobs=jobs))
    before = rig.store.get_claim("claim-1")
    assert before is not None
    rig.clock.instant += 40 * DAY
    swept = await rig.retention.archive_and_delete()
    assert (swept.runs, swept.claims) == (1, 3)
    assert (rig.store.get_claim("claim-1"), rig.store.get_run(run.id)) == (None, None)
    (path,) = rig.folder.glob("ended-*.jsonl.gz")
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    assert [sorted(line) for line in lines] == [["job", "run"], ["claim"], ["claim"], ["claim"]]
    assert lines[0]["run"]["exit_code"] == 3
    assert lines[0]["job"]["command"] == list(job.command), "all of it, though the record has its head alone"
    assert lines[2]["claim"]["ended_at"] == before.ended_at


async def test_a_key_whose_claim_has_left_makes_no_second_one(rig):
    await rig.loop.load()
    use = IdempotencyRecord("ann", "once", "digest", claim=ClaimId("claim-1"))
    run = a_run(1, state=RunState.FAILED, ended_at=NOW, claim=None)
    of_run = IdempotencyRecord("ann", "run", "digest", run=run.id)

    async def post(number, key):
        reply = asyncio.ensure_future(rig.loop.submit(claim(number, 4), key))
        await asyncio.sleep(0)
        await rig.turn()
        return await reply

    assert (await post(1, use)).id == "claim-1"
    rig.store.commit(rig.loop.epoch, Changes(runs=[(run, NEW)], jobs=jobs_for(run), keys=[of_run]))
    await rig.loop.load()
    await rig.turn(*(answer(one) for one in rig.loop.fleet.partitions.values()))
    await rig.turn(ReleaseClaim(ClaimId("claim-1"), "done"))
    await rig.turn(*(answer(one) for one in rig.loop.fleet.partitions.values()))
    assert (await post(2, use)).id == "claim-1"
    rig.clock.instant += 40 * DAY
    assert (await rig.retention.archive_and_delete()).claims == 1
    for key, code in ((use, "claim.archived"), (of_run, "run.archived")):
        with pytest.raises(MooringsError) as caught:
            await post(3, key)
        assert caught.value.code == code
        assert caught.value.hint
    assert rig.loop.fleet.claims == {}
    assert (await post(3, IdempotencyRecord("ann", "other", "digest", claim=ClaimId("claim-3")))).id == "claim-3"


async def test_what_cannot_be_archived_stays(rig):
    await rig.live(0, 10)
    log = rig.kept()
    rig.clock.instant += 40 * DAY
    rig.folder.touch()
    with pytest.raises(MooringsError) as caught:
        await rig.retention.archive_and_delete()
    assert caught.value.code == "archive.failed"
    assert caught.value.hint
    assert rig.kept() == log
    assert rig.store.get_claim("claim-1") is not None


async def test_an_archive_is_never_written_over_by_another_one(rig):
    await rig.live(0, 10)
    log = rig.kept()
    first, last = rig.store.next_archive_range(A_FILE, Timestamp(rig.clock.instant + DAY))
    rig.folder.mkdir()
    there = rig.folder / f"events-{first:019d}-{last:019d}.jsonl.gz"
    there.write_bytes(b"of another time line")
    rig.clock.instant += 40 * DAY
    with pytest.raises(MooringsError, match="another file of that name") as caught:
        await rig.retention.archive_and_delete()
    assert caught.value.code == "archive.failed"
    assert there.read_bytes() == b"of another time line"
    assert rig.kept() == log
    assert rig.drafts() == []


async def test_who_leads_no_longer_removes_nothing(rig):
    await rig.live(0, 10)
    rig.clock.instant += 40 * DAY
    rig.store.begin_epoch("another", NOW)
    log = rig.kept()
    with pytest.raises(MooringsError) as caught:
        await rig.retention.archive_and_delete()
    assert caught.value.code == "store.fenced"
    assert rig.kept() == log


class KilledError(Exception):
    """Where a process would be no more."""


class Doomed:
    """A store, or archives, of a process that is killed before or behind its nth call."""

    def __init__(self, real: Any, left: list[int]) -> None:
        self._real, self._left = real, left

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._tick()
            found = real(*arguments, **named)
            self._tick()
            return found

        return call if callable(real) else real

    def _tick(self) -> None:
        self._left[0] -= 1
        if self._left[0] < 0:
            raise KilledError


async def test_killed_anywhere_it_loses_nothing_and_does_nothing_twice(rig, monkeypatch):
    monkeypatch.setattr("moorings.controller.retention.ROWS_AT_ONCE", 7)
    kills, n_claims = 0, 0
    while True:
        await rig.live(n_claims, n_claims + 2)
        n_claims += 2
        rig.clock.instant += 40 * DAY
        left = [kills]
        rig.begin(cast("Store", Doomed(rig.store, left)), Doomed(ArchiveFolder(rig.folder), left))
        log = rig.whole()
        try:
            await rig.retention.archive_and_delete()
        except KilledError:
            kills += 1
        else:
            break
        finally:
            await rig.end()
        assert rig.whole() == log
        rig.folder.mkdir(exist_ok=True)
        (rig.folder / ".draft-half").write_bytes(b"half")
        rig.begin()
        log = rig.whole()
        await rig.retention.archive_and_delete()
        assert rig.whole() == log
        assert len(rig.archived()) + len(rig.kept()) == len(log)
    assert kills > 20  # before and behind each call
    assert rig.drafts() == []
    assert list(Replay([POOL]).replay_rows(rig.whole())) == []
