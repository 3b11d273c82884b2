"""What a database that was turned back is told of the world before a controller leads from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.app.turned_back import BLIND_GAP, SEQ_GAP, Last, make_ready
from moorings.core.claims import ClaimState
from moorings.core.instants import SECOND, Instant, after
from moorings.core.partitions import PartitionState
from moorings.local.fence import Fence
from moorings.local.records import Identity, Status
from moorings.local.rundir import RunFolder
from moorings.ports.store import Changes, Epoch, Seq
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.testing.records import NEW, a_claim, a_partition, a_run
from moorings.workloads.runs import Phase, RunState
from tests.databases import open_new

NOW = Instant(1_795_250_000 * SECOND)
LAST = Last(Seq(700), Epoch(9))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = open_new(tmp_path / "moorings.db")
    yield opened
    opened.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def leave_status(runs: Path, run: str, attempt: int = 0) -> None:
    """What a supervisor leaves that has started a run and was killed with its machine."""
    folder = RunFolder(runs / run)
    folder.make()
    left = Status(attempt, Phase.RUNNING, "another-boot", Identity(2, 2), after(NOW, -60))
    folder.save_status(left, durable=False)


def test_no_partition_is_ever_made_again_under_an_id_that_was_used(store: SqlStore, runs: Path) -> None:
    """A claim that waited may have been served since: its job's partition has the mark the next one would get."""
    pending, held = a_claim(0), a_claim(1, state=ClaimState.READY, version=4, attempt=2)
    store.commit(store.lead("x", NOW), Changes(claims=[(pending, NEW), (held, NEW)]))
    assert make_ready(store, runs, LAST, NOW) == []
    first = {claim.id: claim for claim in store.load().claims}
    assert first[pending.id] == replace(pending, attempt=first[pending.id].attempt, version=2)
    assert first[pending.id].attempt >= 1000
    assert first[held.id].attempt >= 1002, "a block may have broken under it since"
    assert first[held.id].version == 5


def test_the_same_backup_restored_later_gives_other_ids_and_numbers(tmp_path: Path, runs: Path) -> None:
    seen = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        store = open_sqlite(tmp_path / str(number) / "moorings.db", installation="same")
        store.commit(store.lead("x", NOW), Changes(claims=[(a_claim(0), NEW)]))
        make_ready(store, runs, None, after(NOW, number))
        seen.append((store.load().claims[0].attempt, store.last_seq(), store.leader().epoch))
        store.close()
    assert all(later > earlier for earlier, later in zip(*seen, strict=True))


def test_an_attempt_fits_its_column_for_decades(store: SqlStore, runs: Path) -> None:
    store.commit(store.lead("x", NOW), Changes(claims=[(a_claim(0), NEW)]))
    make_ready(store, runs, LAST, after(NOW, 50 * 365 * 86_400))
    assert store.load().claims[0].attempt < 2**31


def test_what_was_reset_is_not_reset_again(store: SqlStore, runs: Path) -> None:
    """The reset was done since, and a job computes."""
    states = (PartitionState.RESETTING, PartitionState.PROVISIONING, PartitionState.REMOVING)
    made = [a_partition(number, state=state) for number, state in enumerate(states)]
    holders = [a_claim(number, state=ClaimState.READY) for number in range(3)]
    changes = Changes(claims=[(one, NEW) for one in holders], partitions=[(one, NEW) for one in made])
    store.commit(store.lead("x", NOW), changes)
    make_ready(store, runs, LAST, NOW)
    assert [one.state for one in store.load().partitions] == [PartitionState.ACTIVE, *states[1:]]


def test_a_waiting_run_that_has_started_since_is_taken_as_it_is(store: SqlStore, runs: Path) -> None:
    waiting = [(a_claim(number), a_run(number, state=RunState.WAITING, started_at=None)) for number in range(2)]
    changes = Changes(claims=[(claim, NEW) for claim, _ in waiting], runs=[(run, NEW) for _, run in waiting])
    store.commit(store.lead("x", NOW), changes)
    leave_status(runs, waiting[0][1].id)
    assert make_ready(store, runs, LAST, NOW) == [waiting[0][1].id]
    started, still = sorted(store.load().runs, key=lambda run: run.id)
    assert (started.state, started.started_at) == (RunState.RUNNING, after(NOW, -60))
    assert still.state is RunState.WAITING
    assert [claim.id for claim in store.load().claims] == [waiting[1][0].id], "it needs no second partition"


def test_a_run_that_waits_again_has_not_started_for_what_its_last_attempt_left(store: SqlStore, runs: Path) -> None:
    waiting = [(a_claim(number), a_run(number, attempt=1 - number, started_at=NOW)) for number in range(2)]
    changes = Changes(claims=[(claim, NEW) for claim, _ in waiting], runs=[(run, NEW) for _, run in waiting])
    store.commit(store.lead("x", NOW), changes)
    leave_status(runs, waiting[0][1].id)  # of attempt 0; attempt 1 waits
    leave_status(runs, waiting[1][1].id, attempt=3)  # it has come further since
    assert make_ready(store, runs, LAST, NOW) == [waiting[1][1].id]
    still, started = sorted(store.load().runs, key=lambda run: run.id)
    assert (still.state, still.attempt) == (RunState.WAITING, 1)
    assert (started.state, started.attempt) == (RunState.RUNNING, 3)


def test_numbers_only_rise(store: SqlStore, runs: Path) -> None:
    make_ready(store, runs, LAST, NOW)
    assert store.last_seq() > LAST.seq + SEQ_GAP
    assert store.leader().epoch > LAST.epoch


def test_where_nobody_knows_how_far_numbers_had_come_they_leap(store: SqlStore, runs: Path) -> None:
    make_ready(store, runs, None, NOW)
    assert store.last_seq() > BLIND_GAP
    assert store.leader().epoch > BLIND_GAP


@pytest.mark.parametrize("last", [LAST, None])
def test_the_next_leader_passes_the_fence_around_the_runs(store: SqlStore, runs: Path, last: Last | None) -> None:
    Fence(runs).set(Epoch(10**12), 0)
    make_ready(store, runs, last, NOW)
    assert store.leader().epoch > 10**12
