"""Requests to Slurm about our own job, from a thread of ours: a client's main thread belongs to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from moorings.core.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import JobRecord, build_jobs, parse_jobs
from moorings.slurm.surrogate.step import build_remove

ASK_S = 20.0


def load_job(environment: Mapping[str, str], job: int) -> JobRecord:
    """Return the job as Slurm lists it now.

    Raises:
        MooringsError: ``slurm.job_unknown``, or one of ``SlurmCommands.ask``.
    """
    answer = asyncio.run(SlurmCommands(environment, timeout_s=ASK_S).ask(build_jobs(jobs=[job])))
    for record in parse_jobs(answer):  # one id may list the tasks of an array, or a job's components
        if record.job_id == job:
            return record
    raise MooringsError(
        "slurm.job_unknown", f"Slurm does not know job {job}", hint="is SLURM_JOB_ID another cluster's?"
    )


def remove_step(environment: Mapping[str, str], job: int, step: int) -> None:
    """End a step of the job; an ended one is not an error.

    Raises:
        MooringsError: one of ``SlurmCommands.run``.
    """
    asyncio.run(SlurmCommands(environment, timeout_s=ASK_S).run(build_remove(job, step)))
