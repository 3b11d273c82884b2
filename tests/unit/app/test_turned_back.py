"""What a database that was turned back is told of the world before a controller leads from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.app.folders import PROTECT_FILE
from moorings.app.recovery import prepare_to_lead, protect_partitions, protection_reason, recover
from moorings.controller import rewind_recovery as readying
from moorings.controller.rewind_recovery import ATTEMPT_EPOCH, BLIND_GAP, SEQ_GAP, begin_leading
from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.claims import ClaimId, ClaimState, PartitionId
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import PartitionState
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.engines.fence import EPOCH_FILE, FileFence
from moorings.local.records import ProcessIdentity, RecordUnreadableError, SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Changes, Epoch, ExpectedVersion, LogPosition, Seq
from moorings.store.log_position import LogPositionFile
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.testing.builders import NEW, a_claim, a_job, a_partition, a_run, jobs_for
from moorings.workloads.dependencies import Dependency, RunHold
from moorings.workloads.runs import RunId, RunPause, RunPhase, RunState
from tests.databases import open_new

NOW = Timestamp(1_795_250_000 * SECOND)
NOTHING_STARTED = readying.EngineObservations(lambda _: None, lambda _: [], lambda: Epoch(0))
LAST = LogPosition(Seq(700), Epoch(9))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = open_new(tmp_path / "moorings.db")
    yield opened
    opened.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / EPOCH_FILE).touch()
    return folder


def leave_status(runs: Path, run: str, attempt: int = 0) -> None:
    """What a supervisor leaves that has started a run and was killed with its machine."""
    folder = LocalRunFolder(runs / run)
    folder.create()
    left = SupervisorStatus(attempt, RunPhase.RUNNING, "another-boot", ProcessIdentity(2, 2), add_seconds(NOW, -60))
    folder.save(left, durable=False)


def leave_order(runs: Path, run: str, name: str, partition: PartitionId | None, attempt: int = 0) -> None:
    """What was ordered of its engine; the release before did not write down the partition's id."""
    binding = Binding(name, {}, (GcdBinding(0, ()),))
    job = a_job(environment={"TOKEN": "secret"})
    LocalRunFolder(runs / run).save(RunSubmission(RunId(run), attempt, job, binding, partition=partition))


def test_no_partition_is_ever_made_again_under_an_id_that_was_used(store: SqlStore, runs: Path) -> None:
    """A claim that waited may have been served since: its job's partition has the mark the next one would get."""
    pending, held = a_claim(0), a_claim(1, state=ClaimState.READY, version=4, attempt=2)
    store.commit(store.begin_epoch("x", NOW), Changes(claims=[(pending, NEW), (held, NEW)]))
    assert recover(store, runs, LAST, NOW).started == {}
    first = {claim.id: claim for claim in store.load_unended().claims}
    assert first[pending.id] == replace(pending, attempt=first[pending.id].attempt, version=2)
    assert first[pending.id].attempt >= 1000
    assert first[held.id].attempt >= 1002, "a block may have broken under it since"
    assert first[held.id].version == 5


def test_the_same_backup_restored_later_gives_other_ids_and_numbers(tmp_path: Path, runs: Path) -> None:
    seen = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        store = open_sqlite(tmp_path / str(number) / "moorings.db", installation="same")
        store.commit(store.begin_epoch("x", NOW), Changes(claims=[(a_claim(0), NEW)]))
        recover(store, runs, None, add_seconds(NOW, number))
        seen.append((store.load_unended().claims[0].attempt, store.last_seq(), store.get_leader().epoch))
        store.close()
    assert all(later > earlier for earlier, later in zip(*seen, strict=True))


def test_an_attempt_fits_its_column_for_decades(store: SqlStore, runs: Path) -> None:
    store.commit(store.begin_epoch("x", NOW), Changes(claims=[(a_claim(0), NEW)]))
    recover(store, runs, LAST, add_seconds(NOW, 50 * 365 * 86_400))
    assert store.load_unended().claims[0].attempt < 2**31


def test_what_was_reset_is_not_reset_again(store: SqlStore, runs: Path) -> None:
    """The reset was done since, and a job computes."""
    states = (PartitionState.RESETTING, PartitionState.PROVISIONING, PartitionState.REMOVING)
    made = [a_partition(number, state=state) for number, state in enumerate(states)]
    holders = [a_claim(number, state=ClaimState.READY) for number in range(3)]
    changes = Changes(claims=[(one, NEW) for one in holders], partitions=[(one, NEW) for one in made])
    store.commit(store.begin_epoch("x", NOW), changes)
    recover(store, runs, LAST, NOW)
    assert [one.state for one in store.load_unended().partitions] == [PartitionState.ACTIVE, *states[1:]]


def test_a_waiting_run_that_has_started_since_is_taken_as_it_is(store: SqlStore, runs: Path) -> None:
    waiting = [(a_claim(number), a_run(number, state=RunState.WAITING, started_at=None)) for number in range(2)]
    changes = Changes(claims=[(claim, NEW) for claim, _ in waiting], runs=[(run, NEW) for _, run in waiting])
    changes.jobs = jobs_for(*(run for _, run in waiting))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, waiting[0][1].id)
    assert [*recover(store, runs, LAST, NOW).started] == [waiting[0][1].id]
    started, still = sorted(store.load_unended().runs, key=lambda run: run.id)
    assert (started.state, started.started_at) == (RunState.RUNNING, add_seconds(NOW, -60))
    assert still.state is RunState.WAITING
    assert [claim.id for claim in store.load_unended().claims] == [waiting[1][0].id], "it needs no second partition"


def test_a_run_whose_claim_was_granted_and_that_has_started_since_is_not_taken_for_one_that_waits(
    store: SqlStore, runs: Path
) -> None:
    """Law 3: a cancel of a run that waits gives its partition back at once, and this one computes on it."""
    claim = a_claim(0, state=ClaimState.GRANTED, partition=a_partition(0).id)
    run = a_run(0, state=RunState.WAITING, started_at=None)
    changes = Changes(claims=[(claim, NEW)], partitions=[(a_partition(0), NEW)], runs=[(run, NEW)], jobs=jobs_for(run))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, run.id)
    assert [*recover(store, runs, LAST, NOW).started] == [run.id]
    saved = store.load_unended()
    assert [one.state for one in saved.runs] == [RunState.RUNNING]
    assert [one.state for one in saved.claims] == [ClaimState.READY]
    assert [one.state for one in saved.partitions] == [PartitionState.ACTIVE], "or making it again might fail"


@pytest.mark.parametrize("on", [a_partition(7).id, None])
def test_a_run_that_was_started_on_another_partition_since_needs_none_of_its_claims(
    store: SqlStore, runs: Path, on: PartitionId | None
) -> None:
    """The block broke, or it has yielded and gone on elsewhere: the claim's partition, made or not, is in no use."""
    held = [a_partition(0), a_partition(1, state=PartitionState.ACTIVE)]
    states = [(ClaimState.GRANTED, RunState.WAITING), (ClaimState.READY, RunState.RUNNING)]
    claimed = [a_claim(at, state=state, partition=held[at].id) for at, (state, _) in enumerate(states)]
    known = [a_run(at, state=state) for at, (_, state) in enumerate(states)]
    changes = Changes(claims=[(one, NEW) for one in claimed], partitions=[(one, NEW) for one in held])
    changes.runs, changes.jobs = [(one, NEW) for one in known], jobs_for(*known)
    store.commit(store.begin_epoch("x", NOW), changes)
    for at, run in enumerate(known):
        leave_status(runs, run.id, attempt=at)
        leave_order(runs, run.id, "another", on, attempt=at)
    assert [*recover(store, runs, LAST, NOW).started] == [run.id for run in known]
    saved = store.load_unended()
    assert [(one.state, one.attempt) for one in saved.runs] == [(RunState.RUNNING, 0), (RunState.RUNNING, 1)]
    assert [one.state for one in saved.claims] == [ClaimState.RELEASING] * 2
    assert [one.state for one in saved.partitions] == [PartitionState.REMOVING] * 2


def test_a_claim_that_has_no_partition_any_more_ends_when_its_run_goes_on_elsewhere(
    store: SqlStore, runs: Path
) -> None:
    """Nothing of it is to be removed: no driver would ever say that it is gone."""
    claim = a_claim(0, state=ClaimState.YIELDING, partition=a_partition(0).id)
    run = a_run(0, state=RunState.WAITING, attempt=1)
    store.commit(store.begin_epoch("x", NOW), Changes(claims=[(claim, NEW)], runs=[(run, NEW)], jobs=jobs_for(run)))
    leave_status(runs, run.id, attempt=1)
    recover(store, runs, LAST, NOW)
    assert store.load_unended().claims == ()
    ended = store.get_claim(claim.id)
    assert ended is not None
    assert ended.state is ClaimState.RELEASED


def test_a_run_on_the_partition_that_its_records_know_goes_on(store: SqlStore, runs: Path) -> None:
    held, run = a_partition(0, state=PartitionState.ACTIVE), a_run(0, state=RunState.RUNNING, attempt=2)
    claim = a_claim(0, state=ClaimState.READY, partition=held.id, attempt=2)
    changes = Changes(claims=[(claim, NEW)], partitions=[(held, NEW)], runs=[(run, NEW)], jobs=jobs_for(run))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, run.id, attempt=2)
    assert recover(store, runs, LAST, NOW).started == {}
    saved = store.load_unended()
    assert (saved.runs, saved.partitions) == ((run,), (held,))


@pytest.fixture
def alive() -> Iterator[Callable[[Path, str], None]]:
    """Has a supervisor live, as far as its lock tells."""
    held: list[int] = []

    def hold(runs: Path, run: str) -> None:
        life = LocalRunFolder(runs / run).acquire_liveness_lock()
        assert life is not None
        held.append(life)

    yield hold
    for life in held:
        os.close(life)


@pytest.mark.parametrize("state", [ClaimState.READY, ClaimState.GRANTED, ClaimState.RECLAIMING])
def test_a_run_that_was_made_since_within_a_claim_is_in_the_records_again(
    store: SqlStore, runs: Path, alive: Callable[[Path, str], None], state: ClaimState
) -> None:
    """Laws 1, 3: nobody would know that its claim's partition is in use."""
    making = PartitionState.PROVISIONING if state is ClaimState.GRANTED else PartitionState.ACTIVE
    held, before = a_partition(0, state=making), a_run(0, state=RunState.RUNNING, within=True)
    claim = a_claim(0, state=state, partition=held.id)
    changes = Changes(claims=[(claim, NEW)], partitions=[(held, NEW)], runs=[(before, NEW)], jobs=jobs_for(before))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, before.id)
    for ident in ("run-since", "run-elsewhere", "run-dead"):
        leave_status(runs, ident)
        name, partition = (held.name, held.id) if ident != "run-elsewhere" else ("another", PartitionId("another"))
        leave_order(runs, ident, name, partition)
        if ident != "run-dead":
            alive(runs, ident)
    assert [one.run for one in recover(store, runs, LAST, NOW).within] == ["run-since"]
    saved = store.load_unended()
    assert [one.state for one in saved.partitions] == [PartitionState.ACTIVE]
    assert {run.id for run in saved.runs} == {before.id, "run-since"}
    found = next(run for run in saved.runs if run.id != before.id)
    assert (found.state, found.claim, found.within) == (RunState.RUNNING, claim.id, True)
    assert (found.subject, found.started_at) == (claim.subject, add_seconds(NOW, -60))
    assert store.get_jobs([found.id])[found.id] == a_job(environment={"TOKEN": ""}), "its value is not in the records"
    assert recover(store, runs, LAST, NOW).within == (), "and once"
    assert "secret" not in "".join(row.event.data for row in store.list_events(Seq(0), 1_000)), "law 10"


def test_a_run_within_the_claim_that_had_not_started_waits_for_the_one_that_came_since(
    store: SqlStore, runs: Path, alive: Callable[[Path, str], None]
) -> None:
    """Law 1: nothing of it is left, so it was ended before its start, and may not be started beside the other."""
    held, first = a_partition(0, state=PartitionState.ACTIVE), a_run(0, state=RunState.STARTING, within=True)
    claim = a_claim(0, state=ClaimState.READY, partition=held.id)
    changes = Changes(claims=[(claim, NEW)], partitions=[(held, NEW)], runs=[(first, NEW)], jobs=jobs_for(first))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, "run-since")
    leave_order(runs, "run-since", held.name, held.id)
    alive(runs, "run-since")
    recover(store, runs, LAST, NOW)
    states = {run.id: run.state for run in store.load_unended().runs}
    assert states == {first.id: RunState.WAITING, RunId("run-since"): RunState.RUNNING}


@pytest.mark.parametrize(
    "order",
    [
        RunSubmission(RunId("another"), 0, a_job(), Binding("p", {}, ())),
        RunSubmission(RunId("run-since"), 2**31, a_job(), Binding("p", {}, ())),
        RunSubmission(RunId("run-since"), -1, a_job(), Binding("p", {}, ())),
        None,  # a pipe, which nobody writes to
    ],
)
def test_what_a_living_run_has_written_over_its_own_order_is_not_believed(
    store: SqlStore, runs: Path, alive: Callable[[Path, str], None], order: RunSubmission | None
) -> None:
    leave_status(runs, "run-since")
    folder = LocalRunFolder(runs / "run-since")
    if order is None:
        os.mkfifo(folder.order)
    else:
        folder.save(order)
    alive(runs, "run-since")
    with pytest.raises(RecordUnreadableError):
        recover(store, runs, LAST, NOW)


@pytest.mark.parametrize("partition", [a_partition(7).id, None])  # None: the release before did not write it down
def test_a_run_of_another_claim_that_has_the_same_name_by_now_is_not_taken_for_one_of_the_first(
    store: SqlStore, runs: Path, alive: Callable[[Path, str], None], partition: PartitionId | None
) -> None:
    held = a_partition(0, state=PartitionState.ACTIVE)
    claim = a_claim(0, state=ClaimState.READY, partition=held.id)
    store.commit(store.begin_epoch("x", NOW), Changes(claims=[(claim, NEW)], partitions=[(held, NEW)]))
    leave_status(runs, "run-since")
    leave_order(runs, "run-since", held.name, partition)
    alive(runs, "run-since")
    assert recover(store, runs, LAST, NOW).within == ()


def test_the_same_copy_put_back_twice_gives_other_ids_also_where_it_was_made_ready_before(
    tmp_path: Path, runs: Path
) -> None:
    """And where the clock has been set back since: its claims have an attempt that is ahead of it."""
    made_ready = a_claim(0, attempt=(NOW - ATTEMPT_EPOCH) // SECOND)
    seen = [made_ready.attempt]
    for number, age_s in enumerate((20, 40, -600, -600)):
        (tmp_path / str(number)).mkdir()
        store = open_sqlite(tmp_path / str(number) / "moorings.db", installation="same")
        store.commit(store.begin_epoch("x", NOW), Changes(claims=[(made_ready, NEW)]))
        known = LogPosition(Seq(700 + 1_000 * number), Epoch(9 + 2 * number))
        readying.recover(store, NOTHING_STARTED, None, add_seconds(NOW, age_s), above=known)
        seen.append(store.load_unended().claims[0].attempt)
        store.close()
    assert len({*seen}) == 5
    assert min(seen) == made_ready.attempt


def test_a_run_that_waits_again_has_not_started_for_what_its_last_attempt_left(store: SqlStore, runs: Path) -> None:
    waiting = [(a_claim(number), a_run(number, attempt=1 - number, started_at=NOW)) for number in range(2)]
    changes = Changes(claims=[(claim, NEW) for claim, _ in waiting], runs=[(run, NEW) for _, run in waiting])
    changes.jobs = jobs_for(*(run for _, run in waiting))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, waiting[0][1].id)  # of attempt 0; attempt 1 waits
    leave_status(runs, waiting[1][1].id, attempt=3)  # it has come further since
    assert [*recover(store, runs, LAST, NOW).started] == [waiting[1][1].id]
    still, started = sorted(store.load_unended().runs, key=lambda run: run.id)
    assert (still.state, still.attempt) == (RunState.WAITING, 1)
    assert (started.state, started.attempt) == (RunState.RUNNING, 3)


def test_a_paused_run_that_was_resumed_since_is_paused_again(store: SqlStore, runs: Path) -> None:
    """Its new claim is in no record; what it has saved since is not lost."""
    pause = RunPause("ann", Timestamp(NOW - SECOND), 60.0, 0)
    paused = [a_run(number, state=RunState.PAUSED, attempt=1, started_at=NOW, pause=pause) for number in range(2)]
    gone = [a_claim(number, state=ClaimState.RELEASED, ended_at=NOW) for number in range(2)]
    changes = Changes(claims=[(claim, NEW) for claim in gone], runs=[(run, NEW) for run in paused])
    changes.jobs = jobs_for(*paused)
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, paused[0].id)  # of attempt 0, before it was paused
    leave_status(runs, paused[1].id, attempt=2)
    assert [*recover(store, runs, LAST, NOW).started] == [paused[1].id]
    still, again = sorted(store.load_unended().runs, key=lambda run: run.id)
    assert still == paused[0]
    assert (again.state, again.attempt) == (RunState.YIELDING, 2)
    assert again.pause == RunPause("ann", NOW, 60.0, 0)


def test_a_run_that_waited_for_another_and_has_started_since_is_stopped(store: SqlStore, runs: Path) -> None:
    """Its claim is in no record, so no devices can be recorded as its own."""
    hold = RunHold((Dependency("run-before"),), ClaimId("claim-later"), a_claim().spec)
    held = [a_run(number, claim=None, hold=hold) for number in range(3)]
    held[2] = replace(held[2], engine="slurm", hold=replace(hold, claim=None))  # its scheduler knows what it started
    store.commit(store.begin_epoch("x", NOW), Changes(runs=[(run, NEW) for run in held], jobs=jobs_for(*held)))
    for run in held[1:]:
        leave_status(runs, run.id)
    assert [*recover(store, runs, LAST, NOW).started] == [held[1].id]
    still, stops, queued = sorted(store.load_unended().runs, key=lambda run: run.id)
    assert [still, queued] == [held[0], held[2]]
    assert (stops.state, stops.hold) == (RunState.STOPPING, None)


def test_a_run_that_was_being_paused_and_was_resumed_since_runs(store: SqlStore, runs: Path) -> None:
    pause = RunPause("ann", Timestamp(NOW - SECOND), 60.0, 0)
    pausing = a_run(0, state=RunState.YIELDING, started_at=NOW, pause=pause)
    changes = Changes(claims=[(a_claim(0), NEW)], runs=[(pausing, NEW)], jobs=jobs_for(pausing))
    store.commit(store.begin_epoch("x", NOW), changes)
    leave_status(runs, pausing.id, attempt=1)
    recover(store, runs, LAST, NOW)
    (run,) = store.load_unended().runs
    assert (run.state, run.attempt, run.pause) == (RunState.RUNNING, 1, None)


def test_numbers_only_rise(store: SqlStore, runs: Path) -> None:
    recover(store, runs, LAST, NOW)
    assert store.last_seq() > LAST.seq + SEQ_GAP
    assert store.get_leader().epoch > LAST.epoch


def test_where_nobody_knows_how_far_numbers_had_come_they_leap(store: SqlStore, runs: Path) -> None:
    recover(store, runs, None, NOW)
    assert store.last_seq() > BLIND_GAP
    assert store.get_leader().epoch > BLIND_GAP


@pytest.mark.parametrize("last", [LAST, None])
def test_the_next_leader_passes_the_fence_around_the_runs(
    store: SqlStore, runs: Path, last: LogPosition | None
) -> None:
    FileFence(runs).raise_epoch(Epoch(10**12), 0)
    recover(store, runs, last, NOW)
    assert store.get_leader().epoch > 10**12


# -- found out by the controller itself --------------------------------------------------------------------------------


def marked(store: SqlStore, folder: Path) -> LogPositionFile:
    return LogPositionFile(folder, store.installation())


def go_on(store: SqlStore) -> None:
    store.commit(store.begin_epoch("x", NOW), Changes(claims=[(a_claim(0), NEW)]))


def test_a_database_that_went_on_is_led_from_as_it_is(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    go_on(store)
    marked(store, tmp_path).record_blocking(store.log_position())
    before = store.begin_epoch("y", NOW)
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert protection_reason(tmp_path) is None
    assert store.get_leader().epoch == before
    assert store.load_unended().claims == (a_claim(0),)
    assert marked(store, tmp_path).read() == store.log_position()


@pytest.mark.parametrize("back", [LogPosition(Seq(1), Epoch(0)), LogPosition(Seq(0), Epoch(1))])
def test_one_that_went_back_is_made_ready_and_nothing_is_removed(
    store: SqlStore, tmp_path: Path, runs: Path, back: LogPosition, caplog: pytest.LogCaptureFixture
) -> None:
    go_on(store)
    at = store.log_position()
    known = LogPosition(Seq(at.seq + back.seq), Epoch(at.epoch + back.epoch))
    marked(store, tmp_path).record_blocking(known)
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert "was turned back" in (protection_reason(tmp_path) or "")
    assert "store.turned_back" in caplog.messages
    assert store.load_unended().claims[0].attempt >= 1000, "made ready"
    assert known.is_covered_by(store.log_position())
    assert store.get_leader().epoch > known.epoch, "whoever led then is fenced off"
    caplog.clear()
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert caplog.messages == [], "and that once"
    assert protection_reason(tmp_path) is not None, "until an admin decides"


def test_what_died_while_it_made_it_ready_does_it_again(
    store: SqlStore, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers have risen by then, and look as if nothing had been."""
    go_on(store)
    marked(store, tmp_path).record_blocking(LogPosition(Seq(50), Epoch(1)))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("moorings.controller.rewind_recovery.plan_recovery", dies)
        with pytest.raises(KeyboardInterrupt):
            prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert store.log_position().seq > 50
    assert store.load_unended().claims[0].attempt == 0
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert store.load_unended().claims[0].attempt >= 1000


def test_an_earlier_leader_that_saves_meanwhile_has_it_recovered_again(
    store: SqlStore, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may save until it is fenced off: what was read before is then of no use, and nothing of it is saved."""
    go_on(store)
    claim = store.load_unended().claims[0]
    marked(store, tmp_path).record_blocking(LogPosition(Seq(50), Epoch(1)))

    def first(*given: object) -> Epoch:
        renewed = Changes(claims=[(replace(claim, version=claim.version + 1), ExpectedVersion(claim.version))])
        store.commit(store.get_leader().epoch, renewed)
        return begin_leading(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("moorings.controller.rewind_recovery.begin_leading", first)
        with pytest.raises(MooringsError) as failed:
            prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert (failed.value.code, failed.value.retryable) == ("store.conflict", True)
    assert store.load_unended().claims[0].attempt == 0
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert store.load_unended().claims[0].attempt >= 1000


def test_of_two_leaders_of_one_epoch_the_second_is_told_that_the_database_went_back(
    store: SqlStore, tmp_path: Path, runs: Path
) -> None:
    """The first ordered nothing, so nothing else was noted; it may sleep, and nobody would refuse what it saves."""
    go_on(store)
    mark = marked(store, tmp_path)
    mark.record_blocking(store.log_position())
    epoch = begin_leading(store, mark.read(), mark.record_blocking, "x", NOW)
    before = LogPosition(Seq(store.log_position().seq), Epoch(epoch - 1))
    assert not (mark.read() or before).is_covered_by(before)


def test_a_database_that_goes_back_after_it_was_looked_at_is_not_led_from(
    store: SqlStore, tmp_path: Path, runs: Path
) -> None:
    go_on(store)
    mark = marked(store, tmp_path)
    for events, epochs in ((2, 0), (0, 1)):
        at = store.log_position()
        with pytest.raises(MooringsError) as caught:
            begin_leading(
                store, LogPosition(Seq(at.seq + events), Epoch(at.epoch + epochs)), mark.record_blocking, "x", NOW
            )
        assert caught.value.code == "store.turned_back"
    assert mark.read() is None


def test_what_only_memory_has_seen_counts_too(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    """A standby: it looks on while another one leads, on another machine."""
    go_on(store)
    mark = marked(store, tmp_path)
    mark.record_blocking(store.log_position())
    mark.remember(LogPosition(Seq(store.last_seq() + 1), Epoch(1)))
    prepare_to_lead(store, tmp_path, runs, mark, NOW)
    assert protection_reason(tmp_path) is not None


def test_a_folder_without_a_mark_spares_what_it_does_not_know(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    go_on(store)
    mark = marked(store, tmp_path)
    mark.remember(store.log_position())  # it stood by for a while, beside a database that may have gone back before
    prepare_to_lead(store, tmp_path, runs, mark, NOW)
    assert "led from another" in (protection_reason(tmp_path) or "")
    assert store.load_unended().claims == (a_claim(0),), "its records are taken as they are"
    (tmp_path / PROTECT_FILE).unlink()
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert protection_reason(tmp_path) is None, "an admin has decided, once for all"


def test_a_new_installation_and_one_of_the_release_before_are_no_strangers(
    store: SqlStore, tmp_path: Path, runs: Path
) -> None:
    """The release before kept the epoch of its last leader beside the runs, and no mark."""
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert protection_reason(tmp_path) is None
    (tmp_path / "high-water").unlink()
    FileFence(runs).raise_epoch(store.begin_epoch("the release before", NOW), 0)
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert protection_reason(tmp_path) is None


def test_of_two_reasons_the_first_is_kept(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    go_on(store)
    protect_partitions(tmp_path, "a backup was restored")
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert protection_reason(tmp_path) == "a backup was restored"


def test_runs_that_cannot_be_read_keep_a_database_that_went_back_from_being_led(
    store: SqlStore, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(0, state=RunState.WAITING, started_at=None)
    store.commit(
        store.begin_epoch("x", NOW), Changes(claims=[(a_claim(0), NEW)], runs=[(run, NEW)], jobs=jobs_for(run))
    )

    def unreadable(*_: object) -> None:
        raise RecordUnreadableError("its disk does not answer")

    monkeypatch.setattr("moorings.app.recovery.find_started", unreadable)
    marked(store, tmp_path).record_blocking(LogPosition(Seq(50), Epoch(1)))
    with pytest.raises(MooringsError) as caught:
        prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    assert (caught.value.code, bool(caught.value.hint)) == ("config.invalid", True)
    assert protection_reason(tmp_path) is not None


def test_a_folder_that_is_not_that_of_its_runs_is_not_led_from(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    """Its disk is not mounted, or the setting was changed: every run would be taken for lost (law 3)."""
    go_on(store)
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(MooringsError) as caught:
        prepare_to_lead(store, tmp_path, elsewhere, marked(store, tmp_path), NOW)
    assert (caught.value.code, "mounted" in caught.value.hint) == ("config.invalid", True)
    assert not elsewhere.exists()
    runs.rename(elsewhere)
    prepare_to_lead(store, tmp_path, elsewhere, marked(store, tmp_path), NOW)


def test_nor_is_it_on_the_first_start_of_this_release(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    """There is no mark yet, and the setting is new: the folder that it names is empty, or not mounted."""
    go_on(store)
    with pytest.raises(MooringsError, match="is not the folder"):
        prepare_to_lead(store, tmp_path, tmp_path / "elsewhere", marked(store, tmp_path), NOW)
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)


def test_the_runs_of_another_installation_are_not_ours(store: SqlStore, tmp_path: Path, runs: Path) -> None:
    prepare_to_lead(store, tmp_path, runs, marked(store, tmp_path), NOW)
    (tmp_path / "new").mkdir()
    other = open_sqlite(tmp_path / "new" / "moorings.db", installation="other")
    with pytest.raises(MooringsError, match="has the runs of installation"):
        prepare_to_lead(other, tmp_path / "new", runs, marked(other, tmp_path / "new"), NOW)
    other.close()


def test_where_no_runs_are_here_no_folder_is_wanted(store: SqlStore, tmp_path: Path) -> None:
    go_on(store)
    for _ in range(2):
        prepare_to_lead(store, tmp_path, None, marked(store, tmp_path), NOW)
    assert not (tmp_path / "runs").exists()
    marked(store, tmp_path).record_blocking(LogPosition(Seq(50), Epoch(1)))
    prepare_to_lead(store, tmp_path, None, marked(store, tmp_path), NOW)
    assert store.load_unended().claims[0].attempt >= 1000


def test_a_new_installation_makes_the_folder_of_its_runs(store: SqlStore, tmp_path: Path) -> None:
    for _ in range(2):
        prepare_to_lead(store, tmp_path, tmp_path / "disk" / "runs", marked(store, tmp_path), NOW)
