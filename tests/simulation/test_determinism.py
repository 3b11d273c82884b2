"""Same seed, same story: whatever the process, its hash seed and its memory addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from moorings.testing.simulation.episode import simulate
from moorings.testing.simulation.fault_plan import APART_EVERY, KINDS, SEPARATE_FAULTS, FaultPlan
from moorings.testing.simulation.report import build_failure

SEED, STEPS = 7, 800


def digest_of(seed: int, hash_seed: str, folder: Path) -> str:
    told = subprocess.run(
        (sys.executable, "-m", "moorings.testing.simulation", "--seed", str(seed), "--steps", str(STEPS)),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout.rsplit("digest ", 1)[1].strip()


def test_a_seed_tells_the_same_story_in_every_process(tmp_path: Path) -> None:
    first = digest_of(SEED, "0", tmp_path)
    assert digest_of(SEED, "4711", tmp_path) == first
    assert digest_of(SEED + 1, "0", tmp_path) != first


def test_a_story_can_be_stopped_at_a_step_and_is_the_same_until_there() -> None:
    whole = simulate(SEED, steps=STEPS)
    part = simulate(SEED, steps=STEPS, until=300)
    again = simulate(SEED, steps=STEPS, until=300)
    assert whole.broken is None, "\n".join(build_failure(whole, STEPS, None, 60))
    assert part.steps == 300
    assert part.digest == again.digest != whole.digest


def test_without_faults_nothing_strikes_and_all_is_served() -> None:
    outcome = simulate(SEED, steps=STEPS, only=())
    assert outcome.broken is None, "\n".join(build_failure(outcome, STEPS, (), 60))
    assert not [what for what in outcome.reached if what.startswith("fault ")]
    assert outcome.reached["run SUCCEEDED"]
    assert outcome.reached["claim RELEASED"]


def test_only_the_kinds_that_were_asked_for_strike() -> None:
    chosen = {"reply_lost", "store_refuses", "listing_lost"}
    outcome = simulate(SEED, steps=STEPS, only=chosen)
    assert outcome.broken is None, "\n".join(build_failure(outcome, STEPS, sorted(chosen), 60))
    struck = {what.removeprefix("fault ") for what in outcome.reached if what.startswith("fault ")}
    assert struck
    assert struck <= chosen <= set(KINDS)


def test_kinds_that_strike_apart_change_no_other_seed() -> None:
    for seed in range(1, 1 + 2 * APART_EVERY):
        odds = FaultPlan(seed)
        before = odds.chance.getstate()
        struck = {kind for kind in ("poison", "namesake") for _ in range(100) if odds.draw_separate_fault(kind)}
        assert struck == {kind for kind in ("poison", "namesake") if seed % APART_EVERY == SEPARATE_FAULTS[kind]}
        assert odds.chance.getstate() == before
