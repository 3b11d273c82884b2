"""The simulator finds bugs: each law's guard is taken out of a copy of the source, and a law must be seen to break.

The figures in docs/explanation/simulation.md come from here (`-s` shows them). A guard that is not found any more is
an error: correct its entry.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutation.copies import Copy
from tests.mutation.source import Change
from tests.waiting import patient

TOTAL = 40_000
STEPS = 3_000


@dataclass(frozen=True)
class Guard:
    """What is taken out, and which laws may break then.

    ``first`` is the seed of the first episode; ``only``: the kinds of faults that may strike, none: as each seed draws.
    """

    name: str
    laws: tuple[int, ...]
    cuts: tuple[Change, ...]
    first: int = 1
    only: tuple[str, ...] = ()


GUARDS = (
    Guard(
        "what a grant takes is taken from the free map",
        (1,),
        (Change("core/placement/fleet.py", "Fleet._hold", "state.free.allocate(block)", ""),),
    ),
    Guard(
        "the fencing epoch is compared in every commit",
        (1,),
        (
            Change(
                "store/sql.py",
                "_allocate_seq",
                "connection.execute(_RAISE_SEQ_GUARDED, guards)",
                'connection.execute(_RAISE_SEQ, {"n_events": n_events})',
            ),
        ),
    ),
    Guard(
        "partitions with our mark that nobody holds are removed",
        (2,),
        (Change("controller/driver_manager.py", "DriverManager._reconcile", "judged.strays", "()"),),
    ),
    Guard(
        "memory is read again after a save whose answer was lost",
        (0, 1, 2, 5, 9),
        (Change("controller/loop.py", "TurnLoop.serve", "self._needs_reload = True", ""),),
    ),
    Guard(
        "a database that went back is made ready before anybody leads from it",
        (1, 2, 3, 4, 9),
        (
            Change(
                "controller/rewind_recovery.py",
                "recover_if_rewound",
                "known.is_covered_by(at) and not unready",
                "True",
            ),
        ),
        first=2,  # in the first episode the simulator stumbles over it before a law is broken
        only=("store_back",),
    ),
    Guard(
        "what the records of a database that went back learn is replayed",
        (9,),
        (Change("controller/replay.py", "Replay.replay_rows", "(TURN_EVENT, REWIND_EVENT)", "(TURN_EVENT,)"),),
        only=("store_back",),
    ),
    Guard(
        "what the records of a database that went back do not know is left alone until an admin decides",
        (3,),
        (
            Change(
                "controller/driver_manager.py",
                "DriverManager._is_spared",
                "self._in_use is None or not await self._in_use(stray.name)",
                "True",
            ),
        ),
        only=("store_back",),
    ),
    Guard(
        "nothing is saved in a database that has come less far than its leader knows",
        (1, 2, 3, 4, 9),
        (
            Change("store/sql.py", "", 'installation.c.seq >= bindparam("after")', 'bindparam("after") >= 0'),
            Change("controller/loop.py", "TurnLoop.load", "saved.seq < self.seq", "False"),
        ),
        only=("store_back",),
    ),
    Guard(
        "one bad listing ends nothing",
        (3,),
        (
            Change("core/reconcile.py", "", "LISTINGS_REQUIRED = 3", "LISTINGS_REQUIRED = 1"),
            Change("core/reconcile.py", "", "MISSING_S_MIN = 30.0", "MISSING_S_MIN = 0.0"),
        ),
        first=100,  # rare: from the first seed on it would take 75,000 steps
    ),
    Guard(
        "the demands of a turn that failed are tried alone",
        (2,),
        (
            Change(
                "controller/inbox.py",
                "Inbox.take",
                "1 if self._waiting and self._waiting[0].tries else INPUTS_A_TURN_MAX",
                "INPUTS_A_TURN_MAX",
            ),
        ),
        only=("poison",),
    ),
    Guard(
        "who was in a turn that failed by another's demand is tried again",
        (2,),
        (
            Change(
                "controller/inbox.py",
                "Inbox.retry_or_fail",
                'error.code == "internal.error" and len(failed) > 1',
                "False",
            ),
        ),
        only=("poison",),
    ),
    Guard(
        "ours gives way to a partition of others that took its name",
        (1,),
        (
            Change(
                "core/scheduling/turn_requests.py",
                "_yield_to_foreign",
                "partition.block.overlaps(block) or partition.name == name",
                "partition.block.overlaps(block)",
            ),
        ),
        only=("namesake",),
    ),
    Guard(
        "what others have made is not removed",
        (3,),
        (Change("core/reconcile.py", "reconcile_listing", "sighting.mark.startswith(ours)", "True"),),
    ),
    Guard(
        "a claim that is released has no lease to renew",
        (3,),
        (
            Change(
                "core/scheduling/turn_requests.py",
                "renew_claim",
                "claim is None or claim.spec.lease_s is None or claim.is_ended or claim.state is ClaimState.RELEASING",
                "claim is None or claim.spec.lease_s is None or claim.is_ended",
            ),
        ),
    ),
    Guard(
        "a run ends when the engine says that nothing of it runs",
        (3,),
        (
            Change(
                "workloads/run_turn.py", "RunTurn._cancel", "run.state in (RunState.WAITING, RunState.PAUSED)", "True"
            ),
        ),
    ),
    Guard(
        "a run in another scheduler's queue has ended when that says so",
        (3,),
        (Change("workloads/run_turn.py", "RunTurn._cancel", "run.is_queued", "False"),),
    ),
    Guard(
        "a run starts when its partition is ACTIVE",
        (4,),
        (
            Change(
                "workloads/run_turn.py",
                "RunTurn._apply_claim_change",
                "claim.state is ClaimState.READY",
                "claim.state in (ClaimState.GRANTED, ClaimState.READY)",
            ),
            Change(
                "controller/run_manager.py",
                "RunManager._start",
                "partition.state is not PartitionState.ACTIVE",
                "False",
            ),
            Change("drivers/simulated/driver.py", "SimulatedDriver.binding", "self._check_active(order, now)", ""),
        ),
    ),
    Guard(
        "a key is for one body only",
        (5,),
        (
            Change(
                "controller/loop.py",
                "TurnLoop._repeated_reply",
                "key is not None and key.digest != use.digest",
                "False",
            ),
        ),
        first=200,
    ),
    Guard(
        "what is lent for good leaves room for every guarantee",
        (6,),
        (
            Change(
                "core/guarantees/guarantee_use.py",
                "GuaranteeUse.may_borrow",
                "blocks is None or claim.spec.preemptible or blocks.passes_lending_check(block)",
                "True",
            ),
        ),
    ),
    Guard(
        "who borrowed has some time before it is asked to yield",
        (6,),
        (
            Change(
                "core/guarantees/reclaims.py",
                "_reclaim_cost",
                "max(now, add_seconds(tenant.ready_at, policy.min_run_s))",
                "now",
            ),
        ),
    ),
    Guard(
        "who is within a guarantee has borrowers yield",
        (6,),
        (
            Change(
                "core/scheduling/schedule.py",
                "_QueuePass._reclaim_for",
                "if found is None:",
                "True",
            ),
        ),
        first=4,  # the first rush
    ),
    Guard(
        "a person's claim is taken when its time to yield is over",
        (6,),
        (
            Change(
                "core/scheduling/turn_schedule.py",
                "_overdue_yields",
                "claim.state is ClaimState.RECLAIMING",
                "False",
            ),
        ),
        first=4,
    ),
    Guard(
        "a block is kept for the first that must wait",
        (7,),
        (
            Change(
                "core/scheduling/schedule.py",
                "_QueuePass._visit",
                "_VisitResult.ADMITTED if self.policy.reserve and self._reserve(claim, able) else _VisitResult.NO_DEVICES",  # noqa: E501
                "_VisitResult.NO_DEVICES",
            ),
        ),
    ),
    Guard(
        "every wait is explained",
        (8,),
        (Change("core/scheduling/explain.py", "explain_wait", "tuple(reasons)", "()"),),
    ),
    Guard(
        "until when devices are held is brought up to date with claims",
        (9,),
        (Change("core/placement/fleet.py", "Fleet._holds", "changed_partition_ids(changes)", "changes.partitions"),),
    ),
    Guard(
        "who has a new end is expected by then, though its old one passed in vain",
        (9,),
        (Change("core/placement/fleet.py", "PoolState.hold", "self.overdue.discard(ident)", ""),),
    ),
    Guard(
        "a partition that has gone is expected by nobody",
        (0, 9),
        (  # what goes was REMOVING, which is a new end: the second stands behind the first
            Change("core/placement/fleet.py", "PoolState.hold", "self.overdue.discard(ident)", ""),
            Change("core/placement/fleet.py", "Fleet._drop", "state.overdue.discard(partition.id)", ""),
        ),
    ),
    Guard(
        "nobody ends what is another's",
        (10,),
        (
            Change(
                "controller/service.py",
                "Controller.release_claim",
                'check_may_manage(caller, ownership_of(claim), self._loop.fleet.projects, "release a claim")',
                "",
            ),
        ),
    ),
)


@contextlib.contextmanager
def without(guard: Guard, folder: Path) -> Iterator[Path]:
    """A copy of the source, without that guard for as long as the block takes."""
    copy = Copy(folder)
    with contextlib.ExitStack() as cuts:
        for change in guard.cuts:
            cuts.enter_context(copy.changed(change))
        yield copy.path


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name.replace(" ", "-"))
def test_a_missing_guard_is_found(guard: Guard, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "moorings.testing.simulation")
    with without(guard, tmp_path) as source:
        told = subprocess.run(
            (
                *(*command, "--total", str(TOTAL), "--steps", str(STEPS), "--jobs", "1", "--first", str(guard.first)),
                *(word for kind in guard.only for word in ("--only", kind)),
            ),
            env={**os.environ, "PYTHONPATH": str(source)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=patient(110),
            check=False,
        )
    found = re.search(r"law (\d+) is broken in episode (\d+) at step (\d+): (.*)", told.stdout)
    assert found is not None, told.stdout[-2000:] + told.stderr[-4000:]
    law, episode, step = int(found[1]), int(found[2]), int(found[3])
    print(f"\n{guard.name}: law {law} after {(episode - guard.first) * STEPS + step} steps: {found[4][:120]}")
    assert law in guard.laws, found[0]
    assert told.returncode == 8
