"""The table of Slurm's IPU jobs as last listed, and a current look at one of them for a node's request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.fixed_width import expand_hostlist
from moorings.slurm.formats import LICENSE, JobListParser, JobRecord, build_jobs, parse_jobs
from moorings.slurm.host.bind_protocol import BindRequest
from moorings.slurm.host.job_table import JobStart, uses_licenses
from moorings.slurm.host.plan import FRESH_S


class JobTable:
    """The list of jobs.

    Attributes:
        jobs: the last complete listing, by job id.
        listed_at: when it began, by the loop's clock; None: there was none.
        refresh_wanted: set: another listing is needed.
        accounts: whether Slurm checks that a job's account is its user's; else jobs are read without one.
    """

    def __init__(self, slurm: SlurmCommands) -> None:
        self.jobs: Mapping[int, JobRecord] = {}
        self.listed_at: float | None = None
        self.refresh_wanted = asyncio.Event()
        self.accounts = False
        self._slurm = slurm
        self._lists = JobListParser()
        self._listed = asyncio.Condition()

    async def refresh(self, starts: Callable[[], Iterable[JobStart]]) -> None:
        """List the jobs that have not ended, and those of ``starts`` that Slurm still knows.

        Of ended jobs only these are listed: a busy cluster remembers thousands for minutes.

        Args:
            starts: called after the first list, because some begin in the meantime.

        Raises:
            MooringsError: Slurm did not answer.
        """
        begun = _now()
        answer = await self._slurm.run_checked(build_jobs(license_name=LICENSE, ended=False))
        jobs = {job.job_id: job for job in self._lists.parse(answer, accounts=self.accounts)}
        if missing := sorted({start.job_id for start in starts()} - jobs.keys()):
            jobs |= {job.job_id: job for job in await self.query_jobs(missing)}
        self.jobs = jobs
        async with self._listed:
            self.listed_at = begun
            self._listed.notify_all()

    async def query_jobs(self, jobs: Sequence[int]) -> list[JobRecord]:
        """Return these jobs as they are now, without ids that Slurm does not know."""
        try:
            return parse_jobs(await self._slurm.run_checked(build_jobs(jobs=jobs)), accounts=self.accounts)
        except MooringsError as error:
            if error.code != "slurm.job_unknown":
                raise
            return []

    async def find_running(self, request: BindRequest) -> JobRecord | None:
        """Return the running job of a node's request; None: a listing after the request has no such job.

        A completing job does not count: requeued, it would get the claim of its next start. The node's restart count
        proves nothing, because the user can influence it; a mismatch is a reason to list again.
        """
        begun = _now()
        while True:
            job = self.jobs.get(request.job)
            seen = self.listed_at
            late_s = begun - seen if seen is not None else math.inf  # seconds from the listing to the request
            if job is not None and _may_ask(job, request):
                if late_s <= 0 or (late_s <= FRESH_S and job.restarts == request.restart):
                    return job
            elif late_s <= 0:
                return None
            self.refresh_wanted.set()
            async with self._listed:
                await self._listed.wait_for(lambda: self.listed_at != seen)  # noqa: B023 - used before it changes


def _may_ask(job: JobRecord, request: BindRequest) -> bool:
    here = not job.nodes_whole or request.node in expand_hostlist(job.nodes)
    return job.order is not None and uses_licenses(job) and here


def _now() -> float:
    return asyncio.get_running_loop().time()
