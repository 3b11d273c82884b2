"""A run that is asked to make room: warned, stopped, gone in time; and its next attempt continues."""

import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.files import write_atomically
from moorings.local.records import AttemptEnd, CancelRecord, YieldRecord
from moorings.local.supervisor import Supervisor
from moorings.testing.engine_suite import (
    READY,
    error_of,
    make_order,
    observe_run,
    read_output,
    wait_for_end,
    wait_for_output,
)
from moorings.workloads.runs import EndReason, RunPhase
from tests.unit.local.local_rig import WallClock, eventually

WHY = "its devices were lent and are needed for lab"

# Goes on from the file "saved"; when it is warned it saves what it has, and says that it wants to be run again.
RESUMES = """
n=$(cat saved 2>/dev/null || echo 0)
trap 'echo $((n + 1)) > saved.draft; mv saved.draft saved; exit 85' USR1
echo "from $n"
[ "$n" -lt 2 ] || exit 0
echo ready
while :; do sleep 3600 & wait; done
"""


def says_ready(log: Path) -> bool:
    return log.read_bytes().endswith(b"ready\n")


def within(seconds: float) -> Timestamp:
    return Timestamp(WallClock().now() + round(seconds * SECOND))


async def test_a_warned_job_saves_leaves_and_goes_on_with_all_its_output_kept(rig, engine):
    order = make_order(rig.programs.shell(RESUMES), rig.workdir)
    for attempt in range(2):
        await engine.submit(_attempt(order, attempt))
        log = rig.of(order.run).log_path(attempt, 0)
        await eventually(partial(says_ready, log))
        await engine.ask_to_yield(order.run, attempt, WHY, within(600))
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code, end.detail) == (EndReason.YIELDED, 85, WHY)
        assert (await observe_run(engine, order.run)).attempt == attempt
    await engine.submit(_attempt(order, 2))
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
    assert await read_output(engine, order.run) == b"from 0\nready\nfrom 1\nready\nfrom 2\n"


def _attempt(order, attempt):
    return replace(order, attempt=attempt)


@pytest.mark.parametrize("program", ["runs_until_stopped", "exits_zero_at_term"])
async def test_who_does_not_listen_is_told_to_end_in_time(rig, engine, program):
    order = make_order(getattr(rig.programs, program)(), rig.workdir)  # its grace period is longer than there is time
    contract = replace(order.job.checkpoint, warn_signal="USR1")  # TERM itself is no warning
    order = replace(order, job=replace(order.job, checkpoint=contract))
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    begun = time.monotonic()
    await engine.ask_to_yield(order.run, 0, WHY, within(8))  # a busy machine has half of it to end after TERM
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.YIELDED, 143)
    assert time.monotonic() - begun >= 3.9, "half of the time was for the warning"


async def test_who_ignores_everything_is_killed_when_the_time_is_over(rig, engine):
    order = make_order(rig.programs.ignores_term(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await engine.ask_to_yield(order.run, 0, WHY, within(2))
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.YIELDED, 137)


async def test_a_task_that_leaves_first_does_not_stop_one_that_still_saves(rig, engine):
    """TERM would end it before its checkpoint is written: it has a handler for the warning only."""
    script = f"""
    if [ "$RANK" = 1 ]; then trap 'exit 85' USR1; else
        trap 'until test -e {rig.workdir}/gate; do sleep 0.02; done; echo saved; exit 85' USR1; fi
    echo ready
    while :; do sleep 3600 & wait; done
    """
    order = make_order(rig.programs.shell(script), rig.workdir, tasks=2)
    await engine.submit(order)
    for rank in range(2):
        await wait_for_output(engine, order.run, READY, task=rank)
    other = rig.status(order.run).tasks[1].pid
    await engine.ask_to_yield(order.run, 0, WHY, within(600))
    await eventually(lambda: other not in rig.left())
    (rig.work / "gate").touch()
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.task_codes) == (EndReason.YIELDED, (85, 85))
    assert b"saved" in await read_output(engine, order.run, task=0)


async def test_who_is_done_when_asked_has_succeeded(rig, engine):
    script = "trap 'exit 0' USR1; echo ready; while :; do sleep 3600 & wait; done"
    order = make_order(rig.programs.shell(script), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await engine.ask_to_yield(order.run, 0, WHY, within(600))
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)


async def test_the_first_time_stays_and_another_attempt_is_not_meant(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await engine.ask_to_yield(order.run, 1, WHY, within(2))
    assert rig.of(order.run).read(YieldRecord, 0) is None
    await engine.ask_to_yield(order.run, 0, WHY, within(600))
    first = rig.of(order.run).read(YieldRecord, 0)
    await engine.ask_to_yield(order.run, 0, "again", within(900))
    assert rig.of(order.run).read(YieldRecord, 0) == first
    await engine.cancel(order.run, "ann asked")
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.detail) == (EndReason.CANCELLED, "ann asked")
    await engine.ask_to_yield(order.run, 0, WHY, within(2))
    assert await wait_for_end(engine, order.run) == end


async def test_nobody_is_asked_of_whom_nothing_is_known(rig, engine):
    stranger = make_order(rig.programs.runs_until_stopped(), rig.workdir).run
    await engine.ask_to_yield(stranger, 0, WHY, within(600))
    assert (await observe_run(engine, stranger)).phase is RunPhase.ABSENT
    assert not rig.of(stranger).path.exists()


async def test_an_order_that_cannot_be_written_is_tried_again(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    rig.of(order.run).yield_file.mkdir()  # nothing can be renamed onto a folder
    error = await error_of(engine.ask_to_yield(order.run, 0, WHY, within(600)))
    assert (error.code, error.retryable) == ("engine.unavailable", True)
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)


async def test_a_supervisor_that_knows_no_such_order_is_told_to_cancel_when_the_time_is_over(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    folder = rig.of(order.run)
    supervisor = rig.status(order.run).supervisor
    os.kill(supervisor.pid, signal.SIGSTOP)  # it sees the order no more than an older one would
    folder.save(YieldRecord(0, WHY, time.monotonic() - 60))
    await engine.ask_to_yield(order.run, 0, WHY, within(2))
    cancel = folder.read(CancelRecord, 0)
    os.kill(supervisor.pid, signal.SIGCONT)
    assert cancel is not None
    assert cancel.reason == WHY
    assert (await wait_for_end(engine, order.run)).exit_code == 143


def test_a_run_that_is_to_make_room_before_it_began_starts_nothing(rig):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    folder = rig.of(order.run)
    folder.path.mkdir(parents=True)
    folder.save(order)
    folder.save(YieldRecord(0, WHY, time.monotonic() + 600))
    supervisor = Supervisor(folder, order)
    supervisor.start()
    supervisor.record_end()
    end = folder.read(AttemptEnd, 0)
    assert end is not None
    assert (end.record.ending, end.record.exit_code, end.record.task_codes) == (EndReason.YIELDED, 143, (None,))
    assert not folder.log_path(0, 0).exists()


async def test_a_damaged_order_is_written_anew(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    write_atomically(rig.of(order.run).yield_file, b"{", durable=False)
    await engine.ask_to_yield(order.run, 0, WHY, within(2))
    assert (await wait_for_end(engine, order.run)).ending is EndReason.YIELDED
