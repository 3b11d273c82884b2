"""Steps of jobs, and the nodes of jobs and steps where a list is cut.

These commands run seldom: for a job whose steps request the same GCDs, for jobs with a node that has not requested its
partition, and for the one job in a thousand with more nodes than a list shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.slurm.fixed_width import FixedColumn, build_format, expand_hostlist, is_whole, parse_rows, value_or_empty

_NUMBER = re.compile(r"([0-9]{1,10})(\+|$)")  # 7, and 7+1 for a step of several programs
_BATCH = "batch"
_STEP = (
    FixedColumn("job_id", "JobID", 12),
    FixedColumn("step", "StepID", 64),
    FixedColumn("nodes", "Nodes", 1024),
)
_NODES_OF_STEP = (FixedColumn("job_id", "JobID", 12), FixedColumn("nodes", "Nodes", 65_536))
_NODES_OF_JOB = (FixedColumn("job_id", "JobID", 12), FixedColumn("nodes", "NodeList", 65_536))


@dataclass(frozen=True, slots=True)
class TaskStep:
    """A step with tasks.

    Attributes:
        job_id: its job.
        number: in the job; None: the batch script.
        nodes: its nodes; none if their list was cut: use ``build_nodelist``.
    """

    job_id: int
    number: int | None
    nodes: tuple[str, ...]


def build_steps(jobs: Iterable[int]) -> list[str]:
    """List the steps of jobs that have not ended."""
    which = f"--jobs={','.join(str(int(job)) for job in jobs)}"
    return ["squeue", "--noheader", "--all", "--steps", which, f"--Format={build_format(_STEP)}"]


def parse_steps(answer: bytes) -> list[TaskStep]:
    """Return the steps with tasks: neither salloc's shell, nor Slurm's steps for outside processes.

    For an array's first task, Slurm lists the steps of all its tasks.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = []
    for row in parse_rows(answer, _STEP, source="squeue"):
        name = row["step"].rpartition(".")[2]
        number = _NUMBER.match(name)
        if number is None and name != _BATCH:
            continue
        nodes = expand_hostlist(value_or_empty(row["nodes"])) if is_whole(row["nodes"], _STEP[2].width) else ()
        found.append(TaskStep(int(row["job_id"]), int(number[1]) if number is not None else None, nodes))
    return found


def build_nodelist(job: int, step: int | None = None) -> list[str]:
    """List the nodes of a job, or of one of its steps."""
    if step is None:
        return ["squeue", "--noheader", "--all", f"--jobs={int(job)}", f"--Format={build_format(_NODES_OF_JOB)}"]
    which = f"--steps={int(job)}.{int(step)}"
    return ["squeue", "--noheader", "--all", which, f"--Format={build_format(_NODES_OF_STEP)}"]


def parse_nodes_of(answer: bytes, job: int, step: int | None = None) -> tuple[str, ...]:
    """Return the nodes in Slurm's order, with the first task on the first; none: Slurm does not know the job.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    columns = _NODES_OF_JOB if step is None else _NODES_OF_STEP
    for row in parse_rows(answer, columns, source="squeue"):
        if row["job_id"] == str(job):
            if not is_whole(row["nodes"], columns[1].width):
                raise MooringsError("slurm.unreadable", f"the list of job {job}'s nodes was cut")
            return expand_hostlist(value_or_empty(row["nodes"]))
    return ()
