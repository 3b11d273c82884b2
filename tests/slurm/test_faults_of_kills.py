"""Agent, controller, slurmctld and slurmd killed among jobs of which a third is cancelled, and whether the judge sees.

``python -m tests.slurm.kills`` plays it with any counts, beside a control of plain jobs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import sampling
from tests.lives import Life, Made, parse_diary
from tests.slurm.kills import acting
from tests.slurm.kills.judge import Seen, judge
from tests.slurm.kills.story import Job, Kind, Story, Victim, draw

JOBS, KILLS = 30, 6
SEED = int(sampling.tree()[:6], 16)

DIARY = """\
7 0 batch. begin 100.5 slurm_7 pod16:0,pod16:1
7 0 batch. alive 100.7 slurm_7 pod16:0,pod16:1
7 0 batch. end 100.9 slurm_7 pod16:0,pod16:1
"""
LIFE = Life("k0", ("7", "0"), "batch.", "slurm_7", frozenset({0, 1}), 100.5, 100.9, True)
MADE = Made("slurm_7", frozenset({0, 1}), 100.4, 101.5)
RECORD = {"JobId": "7", "JobName": "k0", "JobState": "COMPLETED", "Restarts": "0", "Reason": "None"}
STORY = Story(0, (Job("k0", 0.0, Kind.BATCH, 2, 2, "games", True, False, None),), ())
GOOD = Seen([RECORD], {}, [LIFE], [MADE], [], [], [("slurm/moorings/7/a/0", "T1", "T2")])


def test_a_diary_tells_of_each_program() -> None:
    assert parse_diary("k0", DIARY) == [LIFE]
    cut = replace(LIFE, last=100.7, whole=False)
    assert parse_diary("k0", DIARY[: DIARY.index("7 0 batch. end")]) == [cut]


def test_a_good_end_is_no_fault() -> None:
    assert judge(STORY, GOOD).faults == []


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (replace(GOOD, left=["claim slurm_7 is READY"]), "claim slurm_7 is READY"),
        (replace(GOOD, lives=[replace(LIFE, partition="", devices=frozenset())]), "ran without a partition"),
        (replace(GOOD, made=[]), "was not there all the time"),
        (replace(GOOD, made=[replace(MADE, ready=100.6)]), "was not there all the time"),
        (replace(GOOD, made=[replace(MADE, gone=100.8)]), "was not there all the time"),
        (replace(GOOD, made=[replace(MADE, devices=frozenset({0, 2}))]), "was not there all the time"),
        (replace(GOOD, lives=[LIFE, replace(LIFE, start=("8", "0"), begun=100.8)]), "both used devices [0, 1]"),
        (replace(GOOD, lives=[LIFE, replace(LIFE, step="0.0", partition="slurm_7_r1")]), "'slurm_7', 'slurm_7_r1'"),
        (replace(GOOD, lives=[replace(LIFE, devices=frozenset({0}))]), "asked for 2 IPUs"),
        (replace(GOOD, lives=[replace(LIFE, whole=False)]), "came to their end"),
        (replace(GOOD, held=[*GOOD.held, (GOOD.held[0][0], "T1.5", "")]), "two partitions at once"),
        (replace(GOOD, stopped=["msg=job.cancelled job=7"]), "job.cancelled"),
        (replace(GOOD, jobs=[RECORD | {"JobState": "PENDING", "Reason": "Licenses"}]), "PENDING Licenses"),
        (
            replace(
                GOOD, jobs=[RECORD | {"JobState": "FAILED"}], outputs={"7": "moorings: job 7 gets no partition: x\n"}
            ),
            "job 7 gets no partition",
        ),
        (replace(GOOD, drained=["n1 is IDLE+DRAIN: moorings: it does not ask"]), "it does not ask"),
    ],
)
def test_the_judge_sees(seen: Seen, told: str) -> None:
    assert told in "\n".join(judge(STORY, seen).faults)


def test_what_slurm_loses_is_counted_and_no_fault_of_ours() -> None:
    lost = judge(STORY, replace(GOOD, jobs=[], lives=[], made=[], held=[]))
    assert (lost.faults, lost.counts["forgotten by Slurm"]) == ([], 1)
    failed = judge(STORY, replace(GOOD, jobs=[RECORD | {"JobState": "NODE_FAIL"}]))
    assert (failed.faults, failed.counts["ended NODE_FAIL"]) == ([], 1)
    assert "k0 (7, batch) is NODE_FAIL" in failed.lost[0]


def test_a_story_is_its_seed_s_and_its_control_has_slurm_s_kills_alone() -> None:
    story = draw(3, 100, 24, 4)
    assert story == draw(3, 100, 24, 4) != draw(4, 100, 24, 4)
    assert story.starts == 100
    assert sum(job.cancel_after_s is not None for job in story.jobs) == len(story.jobs) // 3
    assert {kill.victim for kill in story.kills} == set(Victim)
    assert {kill.victim for kill in story.without_ours().kills} == {Victim.SLURMCTLD, Victim.SLURMD, Victim.NODE}


@pytest.mark.slow
def test_kills_among_jobs_leave_nothing(slurm_release: str) -> None:
    story = draw(SEED, JOBS, KILLS, acting.NODES, power_cuts=False)
    with acting.with_ipus(slurm_release) as stage:
        verdict = judge(story, stage.play(story))
    print(f"python -m tests.slurm.kills --jobs {JOBS} --kills {KILLS} --no-power-cuts --seed {SEED}")
    assert verdict.faults == []
    assert verdict.counts["ended COMPLETED"] > JOBS // 5, verdict.counts
