"""What Slurm says of a job's steps, and of the nodes of jobs and steps where the list of jobs cuts them.

Asked seldom, of one job at a time: the list of nodes of one in a thousand is longer than what the list of jobs shows.
"""

from __future__ import annotations

import re

from moorings.core.errors import MooringsError
from moorings.slurm.listings import Column, build_format, expand_hosts, given, is_whole, parse_rows

_NUMBER = re.compile(r"([0-9]{1,10})(\+|$)")  # 7, and 7+1 of a step of several programs
_STEP = (Column("job_id", "JobID", 12), Column("step", "StepID", 64))
_NODES_OF_STEP = (Column("job_id", "JobID", 12), Column("nodes", "Nodes", 65_536))
_NODES_OF_JOB = (Column("job_id", "JobID", 12), Column("nodes", "NodeList", 65_536))


def build_steps(job: int) -> list[str]:
    """Lists the steps of a job that have not ended."""
    return ["squeue", "--noheader", "--all", "--steps", f"--jobs={int(job)}", f"--Format={build_format(_STEP)}"]


def parse_steps(answer: bytes, job: int) -> frozenset[int]:
    """The numbers of the job's steps; its batch script and its shell have none.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    rows = parse_rows(answer, _STEP, source="squeue")  # of an array's first task those of all its tasks
    numbers = (row["step"].rpartition(".")[2] for row in rows if row["job_id"] == str(job))
    return frozenset(int(found[1]) for found in map(_NUMBER.match, numbers) if found is not None)


def build_nodes_of(job: int, step: int | None = None) -> list[str]:
    """Lists the nodes of a job, or of a step of it."""
    if step is None:
        return ["squeue", "--noheader", "--all", f"--jobs={int(job)}", f"--Format={build_format(_NODES_OF_JOB)}"]
    which = f"--steps={int(job)}.{int(step)}"
    return ["squeue", "--noheader", "--all", which, f"--Format={build_format(_NODES_OF_STEP)}"]


def parse_nodes_of(answer: bytes, job: int, step: int | None = None) -> tuple[str, ...]:
    """The nodes, in Slurm's order: the first task is on the first; none: Slurm does not know it.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    columns = _NODES_OF_JOB if step is None else _NODES_OF_STEP
    for row in parse_rows(answer, columns, source="squeue"):
        if row["job_id"] == str(job):
            if not is_whole(row["nodes"], columns[1].width):
                raise MooringsError("slurm.unreadable", f"the list of job {job}'s nodes was cut")
            return expand_hosts(given(row["nodes"]))
    return ()
