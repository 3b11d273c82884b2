"""The laws under fire: the real controller, store and simulated driver in virtual time, a seed an episode.

A failure prints the end of the story and the command that plays it again. `make sim` runs a million steps.
"""

from __future__ import annotations

import pytest

from moorings.testing.simulation.episode import STEPS, EpisodeResult, simulate
from moorings.testing.simulation.report import build_failure, build_table, total_reached, unreached

EPISODES = 3  # of one test: at least 15,000 steps
TESTS = 14  # together at least 210,000
MEETINGS_MAX = 48
MEETING_STEPS = 2_500


def held(seed: int, steps: int) -> EpisodeResult:
    """An episode in which no law was broken."""
    outcome = simulate(seed, steps=steps)
    if outcome.broken is not None:
        pytest.fail("\n".join(build_failure(outcome, steps, None, 60)))
    assert outcome.steps >= steps
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 1 + TESTS * EPISODES, EPISODES))
def test_no_law_is_broken(first: int) -> None:
    for seed in range(first, first + EPISODES):
        held(seed, STEPS)


@pytest.mark.smoke
@pytest.mark.slow
def test_every_fault_every_state_and_every_event_is_met() -> None:
    """Else the other tests would prove less than they say; how many episodes it takes changes with the code."""
    outcomes: list[EpisodeResult] = []
    while len(outcomes) < MEETINGS_MAX and unreached(total_reached(outcomes)):
        outcomes.append(held(1_000 + len(outcomes), MEETING_STEPS))
    total = total_reached(outcomes)
    assert not unreached(total), "\n".join([*build_table(total), "", f"never met: {unreached(total)}"])
