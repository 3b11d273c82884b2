"""What survives what: controllers and supervisors killed between any two steps, damaged folders, two at a time."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.engines.launch import parse_signal
from moorings.engines.processes import boot_id
from moorings.engines.run_folder import to_json
from moorings.local.engine import LocalEngine
from moorings.local.finalize import FinalizeResult, finalize_run
from moorings.local.records import CancelRecord, ProcessIdentity, SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.testing.engine_suite import (
    READY,
    error_of,
    make_order,
    observe_run,
    open_engine,
    read_output,
    wait_for_end,
    wait_for_output,
    wait_for_phase,
    with_contract,
)
from moorings.workloads.jobs import Resources
from moorings.workloads.runs import EndReason, RunId, RunPhase
from tests.unit.local.local_rig import EndlessClock, WallClock, alive, eventually
from tests.waiting import patient

# What outlives a KILLed supervisor: each has shed another mark, and ignores TERM.
LEFTOVERS = """
trap '' TERM
sleep 3601 &
env -i setsid sleep 3602 &
setsid sleep 3603 > /dev/null 2>&1 &
env -i sleep 3604 > /dev/null 2>&1 &
echo ready
exec sleep 3605
"""

SUBMITTER = """
import asyncio, sys
from pathlib import Path
from moorings.engines.launch import parse_signal
from moorings.local.engine import LocalEngine
from moorings.local.records import from_json
from moorings.ports.engine import RunSubmission
from tests.unit.local.local_rig import WallClock

async def main():
    order = from_json(RunSubmission, sys.argv[2])
    print("begin", flush=True)
    print(await LocalEngine(Path(sys.argv[1]), WallClock()).submit(order), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def submitter(rig, order):
    """Another controller, which submits that order: a process to be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, str(rig.runs), to_json(order)], stdout=subprocess.PIPE, text=True
    )


def kill(process):
    process.kill()
    process.wait()
    process.stdout.close()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def stranger():
    """A process that has nothing to do with any run."""
    process = subprocess.Popen(["/bin/sleep", "3600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


# -- controllers die


async def test_a_run_outlives_a_killed_controller(rig):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    controller = submitter(rig, order)
    assert controller.stdout.readline() == "begin\n"
    assert controller.stdout.readline() == f"{order.run}/0\n"
    kill(controller)
    async with open_engine(rig) as engine:
        assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
        assert await engine.submit(order) == f"{order.run}/0"
        await engine.cancel(order.run, "seen enough")
        assert (await wait_for_end(engine, order.run)).ending is EndReason.CANCELLED
        assert await read_output(engine, order.run) == b"ready\n"


@pytest.mark.parametrize("delay_ms", range(0, 75, 5))
async def test_a_controller_killed_at_any_moment_of_a_submit_starts_a_run_at_most_once(rig, delay_ms):
    order = make_order(rig.programs.prints("once"), rig.workdir)
    controller = submitter(rig, order)
    assert controller.stdout.readline() == "begin\n"
    await asyncio.sleep(delay_ms / 1000)  # the moment is what is varied
    kill(controller)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        assert (await wait_for_end(engine, order.run)).exit_code == 0
        assert await read_output(engine, order.run) == b"once\n"


async def test_an_order_whose_controller_died_before_it_started_anything_is_absent_and_may_be_submitted(rig, engine):
    order = make_order(rig.programs.prints("once"), rig.workdir)
    folder = rig.of(order.run)
    folder.create()
    assert (await observe_run(engine, order.run)).phase is RunPhase.ABSENT
    folder.save(order)
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)
    await engine.submit(order)
    await wait_for_end(engine, order.run)
    assert await read_output(engine, order.run) == b"once\n"


async def test_while_another_controller_submits_a_run_is_starting(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir)
    folder = rig.of(order.run)
    folder.create()
    with folder.hold_submit_lock(wait_s=0):
        folder.save(order)
        for _ in range(3):
            assert (await observe_run(engine, order.run)).phase is RunPhase.STARTING
            assert finalize_run(folder, order.run, WallClock().now()) is FinalizeResult.BUSY
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)


async def test_while_a_supervisor_has_not_said_anything_a_run_is_starting(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir)
    folder = rig.of(order.run)
    folder.create()
    with folder.hold_submit_lock(wait_s=0):
        folder.save(order)
        life = folder.acquire_liveness_lock()
    try:
        assert finalize_run(folder, order.run, WallClock().now()) is FinalizeResult.ALIVE
        assert (await observe_run(engine, order.run)).phase is RunPhase.STARTING
        await engine.submit(order)  # somebody is at it: nothing is started
    finally:
        os.close(life)
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)


async def test_a_run_cancelled_before_anything_was_started_ends_so_and_is_never_started(rig, engine):
    order = make_order(rig.programs.prints("never"), rig.workdir)
    folder = rig.of(order.run)
    folder.create()
    folder.save(order)
    await engine.cancel(order.run, "changed my mind")
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.task_codes, end.started_at, end.detail) == (
        EndReason.CANCELLED,
        (None,),
        None,
        "changed my mind",
    )
    await engine.submit(order)
    assert await read_output(engine, order.run) == b""
    assert not (folder.path / "logs").exists()


async def test_a_supervisor_that_finds_its_run_cancelled_starts_nothing(rig, engine):
    order = replace(make_order(rig.programs.prints("never"), rig.workdir), attempt=1)
    folder = rig.of(order.run)
    folder.create()
    folder.save(CancelRecord(1, "changed my mind"))
    await engine.submit(order)
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.task_codes, end.detail) == (EndReason.CANCELLED, (None,), "changed my mind")


# -- a disk that fills


async def test_a_job_that_writes_without_end_is_cut_and_runs_on(rig):
    engine = LocalEngine(rig.runs, WallClock(), 20_000)
    order = make_order(("/bin/sh", "-c", "yes & exec sleep 1000"), rig.workdir)
    await engine.submit(order)
    log = rig.of(order.run).log_path(0, 0)
    await eventually(lambda: b"the output is cut here, at 20000;" in log.read_bytes()[:30_000])
    await eventually(lambda: log.stat().st_size < 30_000)
    assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
    await engine.cancel(order.run, "seen enough")
    assert (await wait_for_end(engine, order.run)).ending is EndReason.CANCELLED
    assert log.stat().st_size < 30_000
    assert (await read_output(engine, order.run)).endswith(b"runs on]\n")
    await engine.close()


async def test_a_run_is_stopped_though_the_wish_cannot_be_written_down(rig, engine, monkeypatch):
    """Its own output may be what fills the disk."""
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalRunFolder, "save", full)
    await engine.cancel(order.run, "seen enough")
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.detail) == (EndReason.CANCELLED, "its supervisor was told to stop (SIGTERM)")


# -- supervisors die


async def start_leftovers(rig, engine):
    """A run of two tasks with four children each, all of them there."""
    order = make_order(("/bin/sh", rig.script("leftovers.sh", LEFTOVERS)), rig.workdir, tasks=2)
    await engine.submit(order)
    for rank in range(2):
        await wait_for_output(engine, order.run, READY, task=rank)
    await eventually(lambda: sum("sleep 36" in line for line in rig.left().values()) == 10)
    return order.run


def assert_lost(rig, run, end, *, tasks=2):
    assert rig.left() == {}
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.LOST, 137, (None,) * tasks)
    assert "supervisor" in end.detail
    assert not rig.of(run).bindings.exists()


async def test_a_run_whose_supervisor_was_killed_is_lost_when_nothing_of_it_is_left(rig, engine):
    run = await start_leftovers(rig, engine)
    os.kill(rig.status(run).supervisor.pid, signal.SIGKILL)
    assert_lost(rig, run, await wait_for_end(engine, run))


async def test_the_bindings_of_a_run_whose_supervisor_was_killed_are_gone(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    folder = rig.of(order.run)
    assert folder.bindings.exists()
    os.kill(rig.status(order.run).supervisor.pid, signal.SIGKILL)
    assert (await wait_for_end(engine, order.run)).ending is EndReason.LOST
    assert not folder.bindings.exists()


async def test_a_run_whose_supervisor_was_killed_while_nobody_looked_is_lost_too(rig, engine):
    run = await start_leftovers(rig, engine)
    # The session is no mark any more for one who did not see the supervisor die, and this one has no other.
    for pid in [pid for pid, line in rig.left().items() if "sleep 3604" in line]:
        os.kill(pid, signal.SIGKILL)
    await engine.close()
    os.kill(rig.status(run).supervisor.pid, signal.SIGKILL)
    async with open_engine(rig) as later:
        assert_lost(rig, run, await wait_for_end(later, run))


@pytest.mark.parametrize("delay_ms", [0, 2, 4, 8, 16, 32])
async def test_a_supervisor_killed_while_it_starts_tasks_leaves_none(rig, engine, delay_ms):
    order = make_order(rig.programs.ignores_term(), rig.workdir, tasks=24)
    folder = rig.of(order.run)
    submitting = asyncio.create_task(engine.submit(order))
    await eventually(folder.status.exists)
    await asyncio.sleep(delay_ms / 1000)  # the moment is what is varied
    os.kill(rig.status(order.run).supervisor.pid, signal.SIGKILL)
    await submitting
    assert_lost(rig, order.run, await wait_for_end(engine, order.run), tasks=24)


async def test_tasks_die_with_their_supervisor_before_anybody_looks(rig, engine):
    order = make_order(rig.programs.ignores_term(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    await engine.close()
    status = rig.status(order.run)
    os.kill(status.supervisor.pid, signal.SIGKILL)
    await eventually(lambda: not alive(status.tasks[0].pid))


async def test_a_lost_run_may_have_another_attempt(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    os.kill(rig.status(order.run).supervisor.pid, signal.SIGKILL)
    again = replace(order, attempt=1, job=replace(order.job, command=rig.programs.exits(0)))
    await eventually(lambda: not alive(rig.status(order.run).supervisor.pid))
    await engine.submit(again)  # whether or not anybody has looked at the first one since
    assert (await wait_for_end(engine, order.run)).ending is EndReason.EXITED


async def test_after_a_restart_of_the_machine_a_run_is_lost_and_no_stranger_is_killed(rig, engine, stranger):
    order = make_order(rig.programs.exits(0), rig.workdir)
    folder = rig.of(order.run)
    folder.create()
    folder.save(order)
    here = ProcessIdentity(stranger.pid, 1)
    folder.save(SupervisorStatus(0, RunPhase.RUNNING, "another-boot", here, tasks=(here,)), durable=True)
    assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
    end = await wait_for_end(engine, order.run)
    assert (end.ending, end.detail) == (EndReason.LOST, "the machine was restarted")
    assert stranger.poll() is None


async def test_a_stranger_who_got_the_process_id_of_a_task_is_not_killed(rig, engine, stranger):
    order = make_order(rig.programs.exits(0), rig.workdir)
    folder = rig.of(order.run)
    folder.create()
    folder.save(order)
    here = ProcessIdentity(stranger.pid, 1)  # that process began at another time
    folder.save(SupervisorStatus(0, RunPhase.RUNNING, boot_id(), here, tasks=(here,)), durable=True)
    assert (await wait_for_end(engine, order.run)).ending is EndReason.LOST
    assert stranger.poll() is None


async def test_a_supervisor_that_cannot_start_is_an_error_and_may_be_tried_again(rig, engine, monkeypatch):
    order = make_order(rig.programs.prints("once"), rig.workdir)
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        error = await error_of(engine.submit(order))
    assert (error.code, error.retryable) == ("engine.unavailable", True)
    assert "supervisor.log" in error.hint
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/no/such/python")
        assert (await error_of(engine.submit(order))).code == "engine.unavailable"
    await engine.submit(order)
    await wait_for_end(engine, order.run)
    assert await read_output(engine, order.run) == b"once\n"


# -- damage


@pytest.mark.parametrize("name", ["order.json", "status.json", "end.json"])
@pytest.mark.parametrize("content", [b"", b'{"attempt": 0, "rec', b"[]", b"\xff\xfe"])
async def test_nothing_follows_from_a_damaged_file(rig, engine, name, content):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    path = rig.of(order.run).path / name
    whole = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    for _ in range(2):
        assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
    if whole is None:
        path.unlink()
    else:
        path.write_bytes(whole)
    assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)


async def test_an_order_that_vanished_is_no_absence(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    path = rig.of(order.run).order
    aside = path.rename(path.with_name("aside"))
    assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
    aside.rename(path)
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)


def told(caplog, event):
    return [record for record in caplog.records if record.message == event]


@pytest.mark.parametrize("damaged", [["order.json"], ["status.json"], ["order.json", "status.json"]])
@pytest.mark.parametrize("remembered", [True, False])
async def test_a_run_with_damaged_records_can_be_cancelled_and_its_end_counts(rig, engine, damaged, remembered):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    for name in damaged:
        (rig.of(order.run).path / name).write_text("garbage")
    if not remembered:
        await engine.close()
    async with open_engine(rig) as later:
        here = engine if remembered else later
        assert (await observe_run(here, order.run)).phase is RunPhase.UNKNOWN
        assert await read_output(here, order.run, task=0) == b"ready\n"
        await here.cancel(order.run, "seen enough")
        end = await wait_for_end(here, order.run)
        assert (end.ending, end.exit_code, end.detail) == (EndReason.CANCELLED, 143, "seen enough")
        await eventually(lambda: rig.left() == {})
    async with open_engine(rig) as latest:
        assert await wait_for_end(latest, order.run) == end


@pytest.mark.parametrize("damaged", [["order.json"], ["status.json"], ["end.json"], ["order.json", "status.json"]])
@pytest.mark.parametrize("remembered", [True, False])
async def test_a_run_with_damaged_records_and_no_end_is_lost_when_nothing_of_it_is_left(
    rig, engine, damaged, remembered
):
    run = await start_leftovers(rig, engine)
    if not remembered:  # the session of its task is no mark then, and this one has no other
        for pid in [pid for pid, line in rig.left().items() if "sleep 3604" in line]:
            os.kill(pid, signal.SIGKILL)
        await engine.close()
    supervisor = rig.status(run).supervisor.pid
    for name in damaged:
        (rig.of(run).path / name).write_text("garbage")
    os.kill(supervisor, signal.SIGKILL)
    async with open_engine(rig) as later:
        end = await wait_for_end(engine if remembered else later, run)
        assert rig.left() == {}
        assert (end.ending, end.exit_code) == (EndReason.LOST, 137)
        assert all(str(rig.of(run).path / name) in end.detail for name in damaged) or damaged == ["end.json"]
        assert not rig.of(run).bindings.exists()
    async with open_engine(rig) as latest:
        assert await wait_for_end(latest, run) == end


async def test_a_run_whose_order_was_damaged_may_have_another_attempt(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    supervisor = rig.status(order.run).supervisor.pid
    rig.of(order.run).order.write_text("garbage")
    again = replace(order, attempt=1, job=replace(order.job, command=rig.programs.exits(0)))
    assert (await error_of(engine.submit(again))).code == "engine.unavailable"
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: is_idle(rig.of(order.run)))  # its lock is free a moment after it is gone
    await engine.submit(again)
    assert (await wait_for_end(engine, order.run)).ending is EndReason.EXITED


def is_idle(folder):
    with folder.keep_idle() as ours:
        return ours


async def test_damage_is_told_once_with_its_path(rig, engine, caplog):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    path = rig.of(order.run).status
    path.write_text("garbage")
    for _ in range(3):
        assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
        await engine.wait_for_change()
    (problem,) = told(caplog, "run.damaged")
    assert str(path) in problem.detail
    assert problem.hint
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)
    assert len(told(caplog, "run.damaged")) == 1


async def test_an_end_that_cannot_be_settled_is_told_once(rig, engine, caplog):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    folder = rig.of(order.run)
    folder.end.mkdir()  # nothing can be renamed onto a folder
    os.kill(rig.status(order.run).supervisor.pid, signal.SIGKILL)
    await eventually(lambda: rig.left() == {})
    async with asyncio.timeout(patient(60)):
        while not told(caplog, "run.unsettled"):
            assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
            await engine.wait_for_change()
    for _ in range(2):
        await observe_run(engine, order.run)
        await engine.wait_for_change()
    (problem,) = told(caplog, "run.unsettled")
    assert str(folder.path) in problem.detail + problem.hint
    folder.end.rmdir()
    assert (await wait_for_end(engine, order.run)).ending is EndReason.LOST


async def test_nothing_follows_from_a_record_that_cannot_be_read(rig, engine, caplog):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    folder = rig.of(order.run)
    status = rig.status(order.run)
    aside = folder.status.rename(folder.path / "aside")
    folder.status.symlink_to(folder.status)  # a loop: the file is there, and no look at it tells anything
    os.kill(status.supervisor.pid, signal.SIGKILL)
    await eventually(lambda: rig.left() == {})
    for _ in range(3):
        assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
        await engine.wait_for_change()
    (problem,) = told(caplog, "run.unreadable")
    assert str(folder.status) in problem.detail
    assert not folder.end.exists()
    aside.replace(folder.status)
    assert (await wait_for_end(engine, order.run)).ending is EndReason.LOST


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_run_whose_folder_is_gone_is_stopped_before_it_is_absent(rig, engine, caplog, remembered):
    caplog.set_level("INFO", "moorings.local")
    order = with_contract(make_order(rig.programs.ignores_term(), rig.workdir, tasks=2), grace_s=0.2)
    await engine.submit(order)
    for rank in range(2):
        await wait_for_output(engine, order.run, READY, task=rank)
    if not remembered:
        await engine.close()
    path = rig.of(order.run).path
    path.rename(rig.folder / "elsewhere")
    async with open_engine(rig) as later:
        here = engine if remembered else later
        assert (await observe_run(here, order.run)).phase is RunPhase.UNKNOWN
        await wait_for_phase(here, order.run, RunPhase.ABSENT)
        assert rig.left() == {}
        error = await error_of(read_output(here, order.run))
        assert error.code == "run.unknown"
        assert str(path) in error.detail
        assert error.hint
    (problem,) = told(caplog, "run.folder_gone")
    assert str(path) in problem.detail
    assert len(told(caplog, "run.cleared")) == 1


async def test_a_stopped_supervisor_of_a_folder_that_is_gone_is_stopped_too(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    os.kill(rig.status(order.run).supervisor.pid, signal.SIGSTOP)
    rig.of(order.run).path.rename(rig.folder / "elsewhere")
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)
    assert rig.left() == {}


async def test_a_run_whose_folder_was_emptied_is_stopped_and_its_end_counts(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_phase(engine, order.run, RunPhase.RUNNING)  # before, its supervisor would fill the new folder
    path = rig.of(order.run).path
    path.rename(rig.folder / "elsewhere")
    path.mkdir()
    assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
    assert (
        await wait_for_end(engine, order.run)
    ).ending is EndReason.CANCELLED  # the supervisor recorded it in the new folder
    assert [line for line in rig.left().values() if "supervisor" not in line] == []


async def test_what_outlived_supervisor_and_folder_is_killed_before_the_run_is_absent(rig, engine):
    run = await start_leftovers(rig, engine)
    supervisor = rig.status(run).supervisor.pid
    # Only the session and the log's path name this one, and both went with the folder.
    for pid in [pid for pid, line in rig.left().items() if "sleep 3604" in line or "sleep 3602" in line]:
        os.kill(pid, signal.SIGKILL)
    rig.of(run).path.rename(rig.folder / "elsewhere")
    os.kill(supervisor, signal.SIGKILL)
    await wait_for_phase(engine, run, RunPhase.ABSENT)
    assert rig.left() == {}


async def test_who_follows_the_output_is_told_when_the_folder_goes(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    following = asyncio.create_task(read_output(engine, order.run, follow=True))
    await asyncio.sleep(0)
    rig.of(order.run).path.rename(rig.folder / "elsewhere")
    assert (await error_of(following)).code == "run.unknown"
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)


async def test_a_run_of_which_something_is_left_is_not_started_anew_in_another_folder(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    rig.of(order.run).path.rename(rig.folder / "elsewhere")
    error = await error_of(engine.submit(order))
    assert (error.code, error.retryable) == ("engine.unavailable", True)
    await wait_for_phase(engine, order.run, RunPhase.ABSENT)
    await engine.submit(replace(order, job=replace(order.job, command=rig.programs.exits(0))))
    assert (await wait_for_end(engine, order.run)).exit_code == 0


async def test_nothing_is_stopped_because_the_disk_of_all_runs_is_not_there(rig, engine, caplog):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    await wait_for_output(engine, order.run, READY)
    aside = rig.runs.rename(rig.folder / "aside")
    rig.runs.mkdir()  # where the disk was mounted
    for _ in range(2):
        assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN
        await engine.wait_for_change()
    assert len(told(caplog, "runs.folder_gone")) == 1
    rig.runs.rmdir()
    aside.rename(rig.runs)
    assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
    await engine.cancel(order.run, "seen enough")
    assert (await wait_for_end(engine, order.run)).ending is EndReason.CANCELLED


async def test_without_the_folder_of_runs_nothing_is_known(rig, engine):
    rig.runs.rmdir()
    assert (await observe_run(engine, RunId("run-x"))).phase is RunPhase.UNKNOWN


async def test_an_id_that_cannot_be_ours_is_absent(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir)
    assert (await error_of(engine.submit(replace(order, run=RunId("../x"))))).code == "engine.rejected"
    assert (await observe_run(engine, RunId("../x"))).phase is RunPhase.ABSENT
    await engine.cancel(RunId("../x"), "nobody")


async def test_a_job_that_this_machine_cannot_run_is_rejected(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir)
    two_nodes = replace(order, job=replace(order.job, resources=Resources(nodes=2)))
    two_tasks = replace(order, job=replace(order.job, tasks=2))
    for wrong in (two_nodes, two_tasks):
        assert (await error_of(engine.submit(wrong))).code == "engine.rejected"
    assert (await observe_run(engine, order.run)).phase is RunPhase.ABSENT


async def test_a_disk_that_takes_nothing_is_an_error_and_may_be_tried_again(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir)
    (rig.runs / order.run).write_text("in the way")
    error = await error_of(engine.submit(order))
    assert (error.code, error.retryable) == ("engine.unavailable", True)
    assert (await observe_run(engine, order.run)).phase is RunPhase.UNKNOWN


# -- at the same time


async def test_an_attempt_waits_for_the_one_before(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    error = await error_of(engine.submit(replace(order, attempt=1)))
    assert (error.code, error.retryable) == ("engine.unavailable", True)
    assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
    await engine.cancel(order.run, "seen enough")
    await wait_for_end(engine, order.run)


async def test_the_end_of_a_run_wakes_whoever_waits(rig):
    async def news(waiting_for):
        engine = LocalEngine(rig.runs, EndlessClock())
        try:
            assert (await observe_run(engine, waiting_for)).phase is RunPhase.RUNNING
            while (await observe_run(engine, waiting_for)).phase is not RunPhase.ENDED:
                await engine.wait_for_change()
        finally:
            await engine.close()

    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        waiters = [asyncio.create_task(news(order.run)) for _ in range(2)]
        await asyncio.sleep(0)
        await engine.cancel(order.run, "seen enough")
        await asyncio.wait_for(asyncio.gather(*waiters), patient(60))


async def test_many_runs_at_once(rig, engine):
    orders = [make_order(rig.programs.exits(number), rig.workdir) for number in range(20)]
    await asyncio.gather(*(engine.submit(order) for order in orders))
    ends = [await wait_for_end(engine, order.run) for order in orders]
    assert [end.exit_code for end in ends] == list(range(20))
    sightings = await engine.observe([order.run for order in orders])
    assert [sighting.run for sighting in sightings] == [order.run for order in orders]


async def test_an_engine_that_lets_go_holds_nothing_and_stops_nothing(rig):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    before = open_files()
    async with open_engine(rig) as engine:
        await engine.submit(order)
        assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
    assert open_files() == before
    assert alive(rig.status(order.run).tasks[0].pid)
    async with open_engine(rig) as engine:
        await engine.cancel(order.run, "seen enough")
        await wait_for_end(engine, order.run)
    assert open_files() == before


async def test_a_cancel_is_found_even_if_nobody_nudges(rig, engine):
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    await engine.submit(order)
    rig.of(order.run).save(CancelRecord(0, "left on the doorstep"))
    assert (await wait_for_end(engine, order.run)).detail == "left on the doorstep"


async def test_a_task_that_is_not_there_has_no_output(rig, engine):
    order = make_order(rig.programs.exits(0), rig.workdir, tasks=2)
    await engine.submit(order)
    assert (await error_of(read_output(engine, order.run, task=2))).code == "engine.rejected"
    await wait_for_end(engine, order.run)


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1"])
def test_a_signal_has_a_name(name):
    assert parse_signal(name) == signal.SIGUSR1


@pytest.mark.parametrize("name", ["", "NOPE", "RTMIN", "10", "SIG"])
async def test_another_name_is_none(rig, engine, name):
    assert (await error_of(engine.signal(RunId("run-x"), name))).code == "engine.rejected"


def test_what_a_supervisor_needs_starts_without_the_servers_libraries():
    code = "import sys, json, moorings.local.supervisor; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    heavy = {"asyncio", "pydantic", "sqlalchemy", "fastapi", "structlog", "yaml", "click"}
    assert heavy.isdisjoint(loaded)
