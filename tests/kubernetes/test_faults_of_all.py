"""Operators, proxy, API server and controller killed among jobs, a third of them deleted, and whether the judge sees.

``python -m tests.kubernetes.kills`` plays it with any counts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import sampling
from tests.kubernetes.kills.acting import staged
from tests.kubernetes.kills.judge import Seen, judge
from tests.kubernetes.kills.story import Job, Kind, Story, Victim, draw
from tests.lives import Life, Made

JOBS, KILLS, JOBS_PER_S = 24, 8, 0.6
SEED = int(sampling.tree()[:6], 16)

STORY = Story(0, (Job("k0", 0.0, Kind.ONE, 2, 2, False, None),), ())
LIFE = Life("k0", ("k0-worker-0", "0"), "k0-worker-0/a", "k0-u-0", frozenset({0, 1}), 100.5, 100.9, True)
MADE = Made("k0-u-0", frozenset({0, 1}), 100.4, 101.5)
GOOD = Seen({"k0": {"status": "Completed"}}, [LIFE], [MADE], [])
DELETED = Story(0, (replace(STORY.jobs[0], delete_after_s=1.0),), ())


def test_a_good_end_is_no_fault() -> None:
    assert judge(STORY, GOOD).faults == []
    assert judge(DELETED, replace(GOOD, statuses={}, lives=[replace(LIFE, whole=False)])).faults == []


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (replace(GOOD, left=["claim c is READY"]), "claim c is READY"),
        (replace(GOOD, lives=[replace(LIFE, partition="", devices=frozenset())]), "ran without a partition"),
        (replace(GOOD, made=[replace(MADE, gone=100.8)]), "was not there all the time"),
        (replace(GOOD, lives=[LIFE, replace(LIFE, step="k0-worker-0/b", begun=101.0, last=101.2)]), "ran 2 times"),
        (replace(GOOD, lives=[replace(LIFE, devices=frozenset({0}))]), "asked for 2 IPUs"),
        (replace(GOOD, lives=[replace(LIFE, whole=False)]), "did not come to its end"),
        (replace(GOOD, statuses={"k0": {"status": "Failed"}}), "k0 (one) is Failed"),
        (replace(GOOD, statuses={}), "k0 (one) is gone"),
    ],
)
def test_each_fault_is_seen(seen: Seen, told: str) -> None:
    assert told in "\n".join(judge(STORY, seen).faults)


def test_a_deleted_job_that_is_there_is_a_fault() -> None:
    assert "was deleted and is there" in judge(DELETED, GOOD).faults[0]


def test_a_story_is_its_seed_s() -> None:
    story = draw(3, 90, 24, 1.0)
    assert story == draw(3, 90, 24, 1.0) != draw(4, 90, 24, 1.0)
    assert sum(job.delete_after_s is not None for job in story.jobs) == 30
    assert {kill.victim for kill in story.kills} == set(Victim)


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.timeout(900)
def test_kills_among_jobs_leave_nothing() -> None:
    story = draw(SEED, JOBS, KILLS, JOBS_PER_S)
    with staged() as stage:
        verdict = judge(story, stage.play(story))
    print(f"python -m tests.kubernetes.kills --jobs {JOBS} --kills {KILLS} --jobs-per-s {JOBS_PER_S} --seed {SEED}")
    assert verdict.faults == []
    assert verdict.counts["Completed"] == JOBS - JOBS // 3
