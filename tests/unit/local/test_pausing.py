"""A run that is paused: it is stopped as soon as it has saved, and others need not wait for that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.claims import CheckpointContract
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.engines import checkpoint_watch
from moorings.engines.checkpoint_watch import CheckpointWatch
from moorings.local.lifecycle import ObservedRun, RunLimits, SupervisorAction, YieldState, decide_next
from moorings.local.records import YieldRecord
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.testing.engine_suite import make_order, wait_for_end, wait_for_output
from moorings.workloads.runs import EndReason
from tests.unit.local.local_rig import WallClock
from tests.waiting import patient, until

WHY = "paused by ann"
ZIP = b"PK\x05\x06" + bytes(18)  # with nothing in it

# Saves when it is warned, and works on.
SAVES = """
save() { { printf 'PK\\005\\006'; head -c 18 /dev/zero; } > saves/draft; mv saves/draft saves/step-1.pt; }
trap save USR1
echo ready
while :; do sleep 0.1; done
"""


def within(seconds: float) -> Timestamp:
    return Timestamp(WallClock().now() + round(seconds * SECOND))


def saving(order: RunSubmission, *, grace_s: float = 600.0) -> RunSubmission:
    directory = Path(order.job.workdir) / "saves"
    directory.mkdir()
    contract = CheckpointContract(resumable=True, grace_s=grace_s)
    return replace(order, job=replace(order.job, checkpoint=contract, checkpoint_directory=str(directory)))


async def test_it_is_stopped_once_it_has_saved_long_before_its_time_is_over(rig, engine):
    order = saving(make_order(rig.programs.shell(SAVES), rig.workdir))
    await engine.submit(order)
    await wait_for_output(engine, order.run, b"ready\n")
    await engine.ask_to_yield(order.run, 0, WHY, within(3600), until_saved=True)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.detail) == (EndReason.YIELDED, WHY)
    found = rig.of(order.run).last_checkpoints()
    assert [(Path(each.path).name, each.is_whole) for each in found.found] == [("step-1.pt", True)]


async def test_one_that_saves_nothing_is_stopped_when_its_time_is_over(rig, engine):
    order = saving(make_order(rig.programs.runs_until_stopped(), rig.workdir))
    await engine.submit(order)
    await engine.ask_to_yield(order.run, 0, WHY, within(2), until_saved=True)
    assert (await wait_for_end(engine, order.run)).ending is EndReason.YIELDED


async def test_others_who_need_its_devices_do_not_wait_for_its_save(rig, engine):
    order = saving(make_order(rig.programs.runs_until_stopped(), rig.workdir))
    await engine.submit(order)
    await engine.ask_to_yield(order.run, 0, WHY, within(3600), until_saved=True)
    first = rig.of(order.run).read(YieldRecord, 0)
    await engine.ask_to_yield(order.run, 0, WHY, within(1800), until_saved=True)
    assert rig.of(order.run).read(YieldRecord, 0) == first, "the first time stays"
    await engine.ask_to_yield(order.run, 0, "needed for lab", within(2))
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.detail) == (EndReason.YIELDED, "needed for lab")


async def test_a_pause_gives_no_more_time_than_others_do(rig, engine):
    order = saving(make_order(rig.programs.runs_until_stopped(), rig.workdir))
    await engine.submit(order)
    await engine.ask_to_yield(order.run, 0, WHY, within(2), until_saved=True)
    await engine.ask_to_yield(order.run, 0, "needed for lab", within(3600))
    assert (await wait_for_end(engine, order.run)).ending is EndReason.YIELDED


LIMITS = RunLimits(None, warn_s=60.0, grace_s=30.0)
ASKED = YieldState(WHY, received_at_s=100.0, deadline_s=200.0, is_warned=True, until_saved=True)


def at(elapsed_s: float, asked: YieldState, *, has_saved: bool = False) -> SupervisorAction:
    observed = ObservedRun(elapsed_s, 1, has_no_processes=False, yielding=asked, has_saved=has_saved)
    return decide_next(observed, LIMITS).act


def test_what_was_saved_stops_only_a_run_that_is_paused():
    assert at(101, replace(ASKED, is_warned=False)) is SupervisorAction.WARN
    assert at(101, ASKED) is SupervisorAction.WAIT
    assert at(101, ASKED, has_saved=True) is SupervisorAction.STOP
    assert at(101, replace(ASKED, until_saved=False), has_saved=True) is SupervisorAction.WAIT
    assert at(171, ASKED) is SupervisorAction.STOP, "the grace period before its end"


def whole(folder: LocalRunFolder) -> list[str]:
    found = folder.last_checkpoints()
    return [each.path for each in found.found if each.is_whole] if found is not None else []


def expect_save(watch: CheckpointWatch) -> None:
    """Also on a machine that is so busy that the look before takes longer than a warning waits for it."""
    watch.expect_save()
    until(watch._has_baseline.is_set)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_S_MIN", 0.05), ("LOOK_S_MAX", 0.05), ("SAVE_LOOK_S", 0.05), ("SETTLED_S", 0.5)):
        monkeypatch.setattr(checkpoint_watch, name, seconds)


@pytest.fixture
def watched(tmp_path: Path, quick: None) -> Iterator[tuple[CheckpointWatch, Path]]:
    folder, saves = LocalRunFolder(tmp_path / "run"), tmp_path / "saves"
    folder.create()
    saves.mkdir()
    (saves / "step-1.pt").write_bytes(ZIP)
    watch = CheckpointWatch(folder, 0, str(saves), list)
    watch.start()
    until(lambda: len(whole(folder)) == 1)
    yield watch, saves
    watch.finish()


def test_only_a_new_whole_one_counts_and_only_when_its_folder_is_quiet(watched, monkeypatch):
    watch, saves = watched
    expect_save(watch)
    (saves / "step-2.pt").write_bytes(ZIP[:9])
    time.sleep(1.0)
    assert not watch.has_saved(), "step-1 was there before, and step-2 is torn"
    monkeypatch.setattr(checkpoint_watch, "SETTLED_S", 3600.0)
    (saves / "step-2.pt").write_bytes(ZIP)
    until(lambda: watch._saved_since_s is not None)
    quiet_since_s = watch._quiet_since_s
    (saves / "optimizer-step-2.pt").write_bytes(ZIP)  # the rest of it
    until(lambda: watch._quiet_since_s > quiet_since_s, what="the folder is not quiet when it changes")
    assert not watch.has_saved()
    monkeypatch.setattr(checkpoint_watch, "SETTLED_S", 0.5)
    until(watch.has_saved, patient(5))


def test_what_was_saved_before_the_warning_does_not_count(watched):
    watch, saves = watched
    (saves / "step-2.pt").write_bytes(ZIP)
    expect_save(watch)
    time.sleep(1.0)
    assert not watch.has_saved()
    (saves / "step-3.pt").write_bytes(ZIP)
    until(watch.has_saved, patient(5))


def test_without_a_rule_it_takes_longer_to_be_sure(watched, monkeypatch):
    monkeypatch.setattr(checkpoint_watch, "SETTLED_S_UNCHANGED", 3600.0)
    watch, saves = watched
    expect_save(watch)
    (saves / "step-2").mkdir()
    (saves / "step-2" / "model.bin").write_text("model")
    time.sleep(1.5)
    assert not watch.has_saved()


def test_a_folder_that_is_never_quiet_does_not_keep_it_running(watched):
    watch, saves = watched
    expect_save(watch)
    steps = iter(range(2, 1000))

    def saves_on() -> bool:
        (saves / f"step-{next(steps)}.pt").write_bytes(ZIP)
        return bool(watch.has_saved())

    until(saves_on, patient(5))


def test_one_without_a_rule_that_came_after_the_warning_is_not_trusted_when_its_writer_is_killed(watched, monkeypatch):
    monkeypatch.setattr(checkpoint_watch, "SETTLED_S_UNCHANGED", 3600.0)
    watch, saves = watched
    expect_save(watch)
    (saves / "step-2").mkdir()
    (saves / "step-2" / "model.bin").write_text("model, and no optimizer yet")
    folder = LocalRunFolder(saves.parent / "run")
    until(lambda: len(whole(folder)) == 2)
    watch.writer_was_killed()
    watch.finish()
    assert [Path(path).name for path in whole(folder)] == ["step-1.pt"]
