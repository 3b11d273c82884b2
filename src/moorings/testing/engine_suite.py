"""The contract of ``ports.engine``, as tests for every engine.

An engine's test module subclasses ``EngineSuite`` and gives it a fixture ``rig``: a place where jobs can run, with
nothing running. The rig's own teardown ends whatever a test leaves running::

    class TestLocalEngine(EngineSuite):
        @pytest.fixture
        def rig(self, tmp_path): ...

``SuitePrograms`` has the jobs' programs: commands of a POSIX shell. An engine that only simulates processes may give
its own, as long as they behave as their names say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

from moorings.core.model.bindings import Binding, GcdBinding, no_devices_binding
from moorings.core.model.claims import CheckpointContract
from moorings.core.model.devices import PoolName, device_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.ports.engine import Engine, RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase, RunStatus

PATIENCE_S = 60.0  # for expected events; no test asserts how long they take
READY = b"ready"
WARNED = b"warned"

Command = tuple[str, ...]


class SuitePrograms:
    """Commands of jobs, for engines that run them in a POSIX shell."""

    def shell(self, script: str) -> Command:
        """A shell script."""
        return ("/bin/sh", "-c", script)

    def exits(self, code: int) -> Command:
        """Exits at once with that code."""
        return self.shell(f"exit {code}")

    def prints(self, text: str) -> Command:
        """Prints that line, then exits with 0."""
        return self.shell(f"echo '{text}'")

    def prints_variable(self, variable: str) -> Command:
        """Prints ``NAME=value`` of one of its variables, then exits with 0."""
        return self.shell(f'echo "{variable}=${variable}"')

    def kills_itself_with(self, signal_name: str) -> Command:
        """Kills itself with that signal."""
        return self.shell(f"kill -s {signal_name} $$")

    def runs_until_stopped(self) -> Command:
        """Prints ``ready``, and ends only at TERM."""
        return self.shell("echo ready; exec sleep 3600")

    def ignores_term(self) -> Command:
        """Prints ``ready``, and ends only at KILL."""
        return self.shell("trap '' TERM; echo ready; exec sleep 3600")

    def exits_zero_at_term(self) -> Command:
        """Prints ``ready``, and exits with 0 at TERM."""
        # The child first: one that is forked while TERM comes does not get it, and has its grace period.
        return self.shell("trap 'exit 0' TERM; sleep 3600 & echo ready; wait")

    def prints_signals(self) -> Command:
        """Prints ``ready``, then ``warned`` at each USR1, and ends only at TERM."""
        return self.shell("trap 'echo warned' USR1; echo ready; while :; do sleep 3600 & wait; done")

    def fails_in(self, rank: int, code: int) -> Command:
        """The task of that rank exits with that code; the others print ``ready`` and keep running."""
        return self.shell(f'[ "$RANK" = {rank} ] && exit {code}; echo ready; exec sleep 3600')


class EngineRig(Protocol):
    """A place where jobs run."""

    @property
    def programs(self) -> SuitePrograms:
        """The programs it can run."""
        ...

    @property
    def workdir(self) -> str:
        """A folder in which they can run."""
        ...

    async def open(self) -> Engine:
        """An engine for the place in its present state, as a new controller process makes it; several may be open."""
        ...


def make_order(command: Command, workdir: str, *, tasks: int = 1, time_limit_s: float | None = None) -> RunSubmission:
    """An order for a run with a fresh id; one device a task, and a grace period longer than any test.

    ``tasks`` is a power of two, so that every engine can serve the job.
    """
    partition = f"p-{uuid4().hex[:8]}"
    gcds = tuple(
        GcdBinding(
            gcd,
            (device_id(PoolName("pod"), gcd),),
            file_name=f"{partition}_gcd{gcd}_ipuof.conf",
            file_text=f'{{"gcd": {gcd}}}\n',
        )
        for gcd in range(tasks)
    )
    return RunSubmission(
        run=RunId(f"run-{uuid4().hex[:12]}"),
        attempt=0,
        job=JobSpec(
            name="suite",
            command=command,
            workdir=workdir,
            environment={"PATH": "/usr/bin:/bin"},
            tasks=tasks,
            accelerators=Accelerators(size=tasks),
            time_limit_s=time_limit_s,
            checkpoint=CheckpointContract(grace_s=600.0),
        ),
        binding=Binding(partition, {}, gcds),
    )


def with_contract(order: RunSubmission, *, warn_s: float = 0.0, grace_s: float = 600.0) -> RunSubmission:
    """The same with another checkpoint contract."""
    return replace(order, job=replace(order.job, checkpoint=CheckpointContract(warn_s=warn_s, grace_s=grace_s)))


def without_devices(order: RunSubmission) -> RunSubmission:
    """The same for a job that needs only CPUs and memory."""
    resources = Resources(cpus=1, memory_bytes=64 << 20)
    job = replace(order.job, accelerators=Accelerators(size=0), resources=resources)
    return replace(order, job=job, binding=no_devices_binding(order.job.tasks))


async def observe_run(engine: Engine, run: RunId) -> RunStatus:
    """The engine's status of one run."""
    (sighting,) = await engine.observe([run])
    return sighting


async def wait_for_phase(engine: Engine, run: RunId, phase: RunPhase) -> RunStatus:
    """Wait until the run is in that phase; return its status."""
    async with asyncio.timeout(PATIENCE_S):
        while (sighting := await observe_run(engine, run)).phase is not phase:
            assert sighting.phase is not RunPhase.ENDED, sighting
            await engine.wait_for_change()
    return sighting


async def wait_for_end(engine: Engine, run: RunId) -> EndRecord:
    """Wait for the end of the run; return its record."""
    sighting = await wait_for_phase(engine, run, RunPhase.ENDED)
    assert sighting.end is not None
    return sighting.end


async def read_output(engine: Engine, run: RunId, *, task: int | None = None, follow: bool = False) -> bytes:
    """All of a run's output."""
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([chunk async for chunk in engine.logs(run, task=task, follow=follow)])


async def wait_for_output(engine: Engine, run: RunId, text: bytes, *, task: int = 0) -> None:
    """Wait until a task has printed that text."""
    async with asyncio.timeout(PATIENCE_S):
        seen = b""
        async for chunk in engine.logs(run, task=task, follow=True):
            seen += chunk
            if text in seen:
                return
    raise AssertionError(f"the run ended without {text!r}: {seen!r}")


@asynccontextmanager
async def open_engine(rig: EngineRig) -> AsyncIterator[Engine]:
    """An engine that is closed at the end."""
    engine = await rig.open()
    try:
        yield engine
    finally:
        await engine.close()


async def error_of(demand: Awaitable[object]) -> MooringsError:
    """The error of a refused request."""
    try:
        answer = await demand
    except MooringsError as error:
        return error
    raise AssertionError(f"it was not refused: {answer!r}")


class EngineSuite:
    """The contract; see the module."""

    # -- starting

    async def test_a_run_that_was_never_submitted_is_absent(self, rig: EngineRig) -> None:
        async with open_engine(rig) as engine:
            stranger = RunId("run-nobody-knows")
            assert (await observe_run(engine, stranger)).phase is RunPhase.ABSENT
            await engine.cancel(stranger, "no longer wanted")
            assert await read_output(engine, stranger, follow=True) == b""
            assert (await observe_run(engine, stranger)).phase is RunPhase.ABSENT

    async def test_a_leader_that_was_replaced_starts_nothing(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.exits(0), rig.workdir)
        async with open_engine(rig) as old, open_engine(rig) as new:
            await old.fence_below(Epoch(6))
            await new.fence_below(Epoch(7))
            error = await error_of(old.submit(replace(order, epoch=Epoch(6))))
            assert (error.code, error.retryable) == ("engine.unavailable", True)
            assert (await observe_run(new, order.run)).phase is RunPhase.ABSENT
            await old.fence_below(Epoch(6))  # it does not know yet that it no longer leads
            await error_of(old.submit(replace(order, epoch=Epoch(6))))
            await new.submit(replace(order, epoch=Epoch(7)))
            assert (await wait_for_end(new, order.run)).exit_code == 0

    async def test_a_run_whose_tasks_exit_with_zero_has_exited_with_zero(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.exits(0), rig.workdir, tasks=2)
        async with open_engine(rig) as engine:
            assert await engine.submit(order)
            end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code, end.task_codes) == (EndReason.EXITED, 0, (0, 0))
        assert end.started_at is not None
        assert end.ended_at is not None
        assert end.started_at <= end.ended_at

    async def test_the_exit_code_is_the_tasks(self, rig: EngineRig) -> None:
        end = await run_to_end(rig, make_order(rig.programs.exits(42), rig.workdir))
        assert (end.ending, end.exit_code, end.task_codes) == (EndReason.EXITED, 42, (42,))

    async def test_a_task_killed_by_signal_n_counts_as_128_plus_n(self, rig: EngineRig) -> None:
        end = await run_to_end(rig, make_order(rig.programs.kills_itself_with("KILL"), rig.workdir))
        assert (end.ending, end.exit_code, end.task_codes) == (EndReason.EXITED, 137, (137,))

    async def test_when_one_task_fails_the_others_are_stopped_and_its_code_counts(self, rig: EngineRig) -> None:
        end = await run_to_end(rig, make_order(rig.programs.fails_in(2, 9), rig.workdir, tasks=4))
        assert (end.ending, end.exit_code, end.task_codes) == (EndReason.EXITED, 9, (143, 143, 9, 143))
        assert end.detail

    async def test_a_program_that_is_not_there_was_not_started(self, rig: EngineRig) -> None:
        end = await run_to_end(rig, make_order(("moorings-no-such-program", "--help"), rig.workdir))
        assert (end.ending, end.exit_code) == (EndReason.NOT_STARTED, 127)
        assert "moorings-no-such-program" in end.detail

    async def test_every_task_has_its_rank_and_its_run(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.prints_variable("RANK"), rig.workdir, tasks=4)
        named = make_order(rig.programs.prints_variable("MOORINGS_RUN_ID"), rig.workdir)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await engine.submit(named)
            for rank in range(4):
                assert await read_output(engine, order.run, task=rank, follow=True) == b"RANK=%d\n" % rank
            assert await read_output(engine, named.run, follow=True) == f"MOORINGS_RUN_ID={named.run}\n".encode()
            await wait_for_end(engine, order.run)
            await wait_for_end(engine, named.run)

    async def test_output_since_a_time_is_shown_or_refused(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.prints_variable("RANK"), rig.workdir)
        long_ago, far_ahead = Timestamp(1), Timestamp(1 << 52)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await wait_for_end(engine, order.run)
            try:
                shown = [
                    b"".join([chunk async for chunk in engine.logs(order.run, task=None, follow=False, since=since)])
                    for since in (long_ago, far_ahead)
                ]
            except MooringsError as error:
                assert error.code == "engine.rejected"  # noqa: PT017 - either is right
            else:
                assert shown == [b"RANK=0\n", b""]

    async def test_a_job_without_devices_runs_with_several_tasks(self, rig: EngineRig) -> None:
        order = without_devices(make_order(rig.programs.prints_variable("RANK"), rig.workdir, tasks=3))
        async with open_engine(rig) as engine:
            assert not [one for one in engine.check_job(order.job) if "device" in one]
            await engine.submit(order)
            for rank in range(3):
                assert await read_output(engine, order.run, task=rank, follow=True) == b"RANK=%d\n" % rank
            assert (await wait_for_end(engine, order.run)).task_codes == (0, 0, 0)

    # -- exactly once

    async def test_submitting_again_starts_nothing_anew(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.prints("once"), rig.workdir)
        async with open_engine(rig) as engine:
            first = await engine.submit(order)
            assert await engine.submit(order) == first
            end = await wait_for_end(engine, order.run)
            assert await engine.submit(order) == first
            assert await wait_for_end(engine, order.run) == end
            assert await read_output(engine, order.run) == b"once\n"

    async def test_many_who_submit_the_same_run_at_once_start_it_once(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.prints("once"), rig.workdir)
        async with open_engine(rig) as one, open_engine(rig) as other:
            await asyncio.gather(*(engine.submit(order) for engine in (one, other) for _ in range(4)))
            await wait_for_end(one, order.run)
            await wait_for_end(other, order.run)
            assert await read_output(other, order.run) == b"once\n"

    async def test_the_next_attempt_is_a_new_start_with_an_output_of_its_own(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.exits(3), rig.workdir)
        again = replace(order, attempt=1, job=replace(order.job, command=rig.programs.prints("again")))
        async with open_engine(rig) as engine:
            await engine.submit(order)
            assert (await wait_for_end(engine, order.run)).exit_code == 3
            await engine.submit(again)
            assert await read_output(engine, order.run, follow=True) == b"again\n"
            end = await wait_for_end(engine, order.run)
            assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
            await engine.submit(order)  # a late copy of the first order
            assert await wait_for_end(engine, order.run) == end

    # -- a new controller

    async def test_a_new_engine_finds_what_runs_and_what_has_ended(self, rig: EngineRig) -> None:
        lasting, short = (
            make_order(rig.programs.runs_until_stopped(), rig.workdir),
            make_order(rig.programs.exits(5), rig.workdir),
        )
        async with open_engine(rig) as old:
            await old.submit(lasting)
            await old.submit(short)
            await wait_for_phase(old, lasting.run, RunPhase.RUNNING)
            end = await wait_for_end(old, short.run)
        async with open_engine(rig) as new:
            first, second = await new.observe([short.run, lasting.run])
            assert (first.run, first.phase, first.end) == (short.run, RunPhase.ENDED, end)
            assert (second.run, second.phase) == (lasting.run, RunPhase.RUNNING)
            await new.cancel(lasting.run, "done with it")
            assert (await wait_for_end(new, lasting.run)).ending is EndReason.CANCELLED

    # -- stopping

    async def test_a_cancelled_run_is_stopped_and_says_why(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.runs_until_stopped(), rig.workdir, tasks=2)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await wait_for_phase(engine, order.run, RunPhase.RUNNING)
            await engine.cancel(order.run, "alice asked for it")
            await engine.cancel(order.run, "bob asked for it")
            end = await wait_for_end(engine, order.run)
            assert (end.ending, end.exit_code, end.task_codes) == (EndReason.CANCELLED, 143, (143, 143))
            assert "alice" in end.detail
            await engine.cancel(order.run, "too late")
            assert await wait_for_end(engine, order.run) == end

    async def test_a_cancelled_run_that_leaves_well_has_still_not_succeeded(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.exits_zero_at_term(), rig.workdir)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await wait_for_output(engine, order.run, READY)
            await engine.cancel(order.run, "enough")
            end = await wait_for_end(engine, order.run)
        assert (end.ending, end.task_codes) == (EndReason.CANCELLED, (0,))
        assert end.exit_code != 0

    async def test_a_task_that_ignores_term_is_killed_after_its_grace_period(self, rig: EngineRig) -> None:
        order = with_contract(make_order(rig.programs.ignores_term(), rig.workdir), grace_s=0.2)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await wait_for_output(engine, order.run, READY)
            await engine.cancel(order.run, "enough")
            end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.CANCELLED, 137)

    async def test_at_its_time_limit_a_run_is_stopped(self, rig: EngineRig) -> None:
        end = await run_to_end(rig, make_order(rig.programs.runs_until_stopped(), rig.workdir, time_limit_s=1.0))
        assert (end.ending, end.exit_code) == (EndReason.TIMED_OUT, 143)

    async def test_before_its_time_limit_a_run_is_warned(self, rig: EngineRig) -> None:
        order = with_contract(
            make_order(rig.programs.prints_signals(), rig.workdir, time_limit_s=3600.0), warn_s=3598.0
        )
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await wait_for_output(engine, order.run, WARNED)
            assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING
            await engine.cancel(order.run, "seen enough")
            await wait_for_end(engine, order.run)

    async def test_a_signal_reaches_every_task(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.prints_signals(), rig.workdir, tasks=2)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            await wait_for_phase(engine, order.run, RunPhase.RUNNING)  # a task may print before that is recorded
            for rank in range(2):
                await wait_for_output(engine, order.run, READY, task=rank)
            await engine.signal(order.run, "USR1")
            for rank in range(2):
                await wait_for_output(engine, order.run, WARNED, task=rank)
            await engine.cancel(order.run, "seen enough")
            await wait_for_end(engine, order.run)

    async def test_a_run_without_processes_takes_no_signal(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.exits(0), rig.workdir)
        async with open_engine(rig) as engine:
            assert (await error_of(engine.signal(order.run, "USR1"))).code == "run.not_running"
            await engine.submit(order)
            await wait_for_end(engine, order.run)
            assert (await error_of(engine.signal(order.run, "USR1"))).code == "run.not_running"

    # -- output

    async def test_the_output_of_several_tasks_says_whose_line_is_whose(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.prints("hello"), rig.workdir, tasks=4)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            merged = await read_output(engine, order.run, follow=True)
            assert sorted(merged.splitlines()) == [b"[%d] hello" % rank for rank in range(4)]
            assert await read_output(engine, order.run, task=1) == b"hello\n"
            await wait_for_end(engine, order.run)

    async def test_following_the_output_ends_with_the_run(self, rig: EngineRig) -> None:
        order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
        async with open_engine(rig) as engine:
            await engine.submit(order)
            following = asyncio.create_task(read_output(engine, order.run, follow=True))
            await wait_for_output(engine, order.run, READY)
            assert await read_output(engine, order.run) == b"ready\n"
            assert not following.done()
            await engine.cancel(order.run, "seen enough")
            assert await following == b"ready\n"
            assert (await observe_run(engine, order.run)).phase is RunPhase.ENDED


async def run_to_end(rig: EngineRig, order: RunSubmission) -> EndRecord:
    """Run an order undisturbed to its end."""
    async with open_engine(rig) as engine:
        await engine.submit(order)
        return await wait_for_end(engine, order.run)
