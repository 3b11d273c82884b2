"""What the simulator found, told once more with real parts and few words, so that it stays found."""

from __future__ import annotations

from pathlib import Path

from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall
from moorings.workloads.runs import RunPhase, RunState
from tests.e2e.rig import ANN, job, running


async def test_a_run_that_is_cancelled_while_its_binding_is_fetched_never_starts(tmp_path: Path) -> None:
    """Laws 3 and 4: its partition is removed at once, for the engine knows nothing of it yet."""
    async with running(tmp_path) as rig:
        rig.driver().faults.add(
            Fault(kind=FaultKind.HANG, calls=frozenset({VendorCall.BINDING}), seconds=20.0, times=1)
        )
        run = (await rig.controller.runs.create_run(ANN, job("sleep", "1000"))).run
        runs = rig.assembly.loop.runs
        await rig.until(lambda: runs.by_id[run.id].state is RunState.STARTING)
        ended = await rig.controller.runs.cancel_run(ANN, run.id, wait_s=20)
        assert ended.run.state is RunState.CANCELLED
        await rig.until(lambda: not rig.assembly.running._acts)  # the binding has come
        (seen,) = await rig.assembly.running.engines["local"].observe([run.id])
        assert seen.phase is RunPhase.ABSENT
        await rig.nothing_left()
