"""What is wrong after all that, and what happened to whom; pure.

It reads the programs' own diaries, the journal of the simulated hardware and Slurm's records: none of them passes
through the controller or the agent.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.lives import Life, Made, misused
from tests.slurm.kills.story import TASKS, Job, Kind, Story


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at the end.

    Attributes:
        jobs: Slurm's records of the jobs that it still knows.
        outputs: what each of those printed, by id.
        lives: of the jobs' programs.
        made: of the hardware; None: there is none.
        left: what is left of any job, each a sentence.
        cancelled: names of the jobs that were cancelled.
        held: of each claim that got a partition its owner (a start of a job), and from when to when, as RFC 3339.
        stopped: what the agent says of jobs that it ended; nobody has asked it to, nor is any job in another's way.
        drained: the reasons of nodes that were drained.
        freed: how often a job was stuck that Slurm holds until an admin lets it go.
    """

    jobs: Sequence[Mapping[str, str]]
    outputs: Mapping[str, str]
    lives: Sequence[Life]
    made: Sequence[Made] | None
    left: Sequence[str]
    cancelled: Collection[str]
    held: Sequence[tuple[str, str, str]] = ()
    stopped: Sequence[str] = ()
    drained: Sequence[str] = ()
    freed: int = 0


@dataclass
class Verdict:
    """What is wrong, each a sentence; what Slurm did to jobs, likewise; and how often what happened."""

    faults: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def judge(story: Story, seen: Seen) -> Verdict:
    """What is wrong, and what happened."""
    verdict = Verdict()
    verdict.counts.update({"jobs": story.starts, "kills": len(story.kills), "cancelled by the story": 0})
    verdict.faults += seen.left
    if seen.made is not None:
        verdict.faults += misused(seen.lives, seen.made)
        verdict.faults += _wrong_sizes(story, seen.lives)
        verdict.faults += seen.stopped
        held = sorted(seen.held)  # one after the other, where a killed slurmctld has forgotten that the job ran
        twice = [one[0] for one, then in itertools.pairwise(held) if one[0] == then[0] and then[1] < (one[2] or "9")]
        verdict.faults += (f"{owner} had two partitions at once" for owner in twice)
        verdict.faults += (f"a node was drained: {reason}" for reason in seen.drained if "moorings" in reason.lower())
    records = _by_name(seen.jobs)
    for job in story.jobs:
        doomed = job.name in seen.cancelled
        verdict.counts["cancelled by the story"] += job.starts * doomed
        for name in _names(job):
            _judge_job(verdict, job, name, records.get(name, []), seen, doomed=doomed)
    verdict.counts["programs"] = len(seen.lives)
    verdict.counts["held by Slurm, let go"] = seen.freed
    verdict.counts["nodes down or drained"] = len(seen.drained)
    return verdict


def _judge_job(
    verdict: Verdict, job: Job, name: str, records: Sequence[Mapping[str, str]], seen: Seen, *, doomed: bool
) -> None:
    """How one job ended, of which Slurm may have none or several records."""
    if not records:
        verdict.counts["forgotten by Slurm"] += 1
        return
    verdict.counts["submitted twice"] += len(records) - 1
    for record in records:
        state, id = record["JobState"], record["JobId"]
        verdict.counts[f"ended {state}"] += 1
        verdict.counts["requeued"] += int(record["Restarts"])
        said = seen.outputs.get(id, "")
        if state == "COMPLETED":
            ran = {life.step for life in seen.lives if life.name == name and life.start[0] == id and life.whole}
            if len(ran) < _programs(job):
                verdict.faults.append(
                    f"{name} ({id}) is COMPLETED, and of its programs only {sorted(ran)} came to their end"
                )
        elif state == "CANCELLED":
            verdict.counts["cancelled by Slurm"] += not doomed  # as by a slurmd that has just seen another of that id
        elif state == "FAILED" and (told := re.findall(r"moorings: .*", said)) and "waiting for" not in told[-1]:
            verdict.faults.append(f"{name} ({id}) is {state}, and was told: {told[-1]!r}")
        elif state in ("NODE_FAIL", "FAILED", "TIMEOUT"):
            lived = sorted(f"{life.step} {life.begun:.1f}-{life.last:.1f}" for life in seen.lives if life.name == name)
            times = f"{record.get('StartTime')} to {record.get('EndTime')} on {record.get('NodeList')}"
            verdict.lost.append(f"{name} ({id}, {job.kind}) is {state}: {times}; ran {lived}; printed {said[-300:]!r}")
        else:
            verdict.faults.append(f"{name} ({id}) is {state} {record.get('Reason')}")


def _wrong_sizes(story: Story, lives: Sequence[Life]) -> Iterator[str]:
    jobs = {name: job for job in story.jobs for name in _names(job)}
    for life in lives:
        size = jobs[life.name].size
        share = size // 2 if jobs[life.name].kind in (Kind.STEPS, Kind.TWO_AT_ONCE) else size
        if life.partition and len(life.devices) not in (size, share):
            yield f"{life.name} step {life.step} asked for {size} IPUs and had {sorted(life.devices)}"


def _names(job: Job) -> list[str]:
    return [f"{job.name}_{task}" for task in range(1, TASKS + 1)] if job.kind is Kind.ARRAY else [job.name]


def _programs(job: Job) -> int:
    """How many steps with their ranks come to an end."""
    return {Kind.BATCH: 1, Kind.ARRAY: 1, Kind.STEPS: 3, Kind.TWO_AT_ONCE: 2}[job.kind]


def _by_name(records: Sequence[Mapping[str, str]]) -> dict[str, list[Mapping[str, str]]]:
    """Records by name; one of an array that was never split stands for each of its tasks."""
    found: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        tasks = record.get("ArrayTaskId")
        for name in [record["JobName"]] if tasks is None else [f"{record['JobName']}_{n}" for n in _numbers(tasks)]:
            found.setdefault(name, []).append(record)
    return found


def _numbers(tasks: str) -> Iterator[int]:
    for part in tasks.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
