"""What is wrong after all that; pure.

It reads the programs' own diaries, the journal of the simulated hardware and what the API server has: none of them
passes through operator, proxy or controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.kubernetes.kills.story import Job, Kind, Story
from tests.lives import Life, Made, misused

SKEW_S = 0.015  # a program's clock has hundredths


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at the end.

    Attributes:
        statuses: of the IPUJobs that are still there, by name.
        lives: of the jobs' programs.
        made: the partitions of the hardware.
        left: what is left of any job, each a sentence.
    """

    statuses: Mapping[str, Mapping[str, object]]
    lives: Sequence[Life]
    made: Sequence[Made]
    left: Sequence[str]


@dataclass
class Verdict:
    """What is wrong, each a sentence, and how often what happened."""

    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def judge(story: Story, seen: Seen) -> Verdict:
    """What is wrong, and what happened."""
    verdict = Verdict([*seen.left, *misused(seen.lives, seen.made, SKEW_S)])
    verdict.counts.update({"jobs": len(story.jobs), "programs": len(seen.lives), "partitions": len(seen.made)})
    verdict.counts.update(f"kills of {kill.victim}" for kill in story.kills)
    for job in story.jobs:
        lives = [life for life in seen.lives if life.name == job.name]
        verdict.faults += _wrong_lives(job, lives)
        status = seen.statuses.get(job.name)
        if job.delete_after_s is not None:
            verdict.counts["deleted"] += 1
            verdict.counts["deleted while it ran"] += bool(lives) and not all(life.whole for life in lives)
            if status is not None:
                verdict.faults.append(f"{job.name} was deleted and is there: {dict(status)}")
            continue
        state = status.get("status") if status is not None else "gone"
        verdict.counts[str(state)] += 1
        if state != "Completed":
            verdict.faults.append(f"{job.name} ({job.kind}) is {state}: {(status or {}).get('lastMessage')}")
        verdict.faults += _missing_lives(job, lives)
    return verdict


def _wrong_lives(job: Job, lives: Sequence[Life]) -> list[str]:
    """Programs that ran more often than they were to, or on a partition of another size."""
    runs = Counter(life.start[0] for life in lives)
    faults = [f"the program of {pod} ran {count} times" for pod, count in runs.items() if count > job.runs]
    wrong = (life for life in lives if life.partition and len(life.devices) != job.size)
    if job.kind is not Kind.TRAINING:  # a launcher is told no devices
        faults += [f"{life.step} asked for {job.size} IPUs and had {sorted(life.devices)}" for life in wrong]
    return faults


def _missing_lives(job: Job, lives: Sequence[Life]) -> list[str]:
    """Programs of a job that nobody deleted that did not come to their end."""
    whole = {life.start[0] for life in lives if life.whole}
    return [f"the program of {pod} did not come to its end" for pod in job.pods if pod not in whole]
