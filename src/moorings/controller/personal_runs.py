"""The use cases of runs that people submit to another scheduler themselves: their reports, and agents' listings.

A report changes only its own run, and of an agent's listing only a job counts that carries the comment of a run and is
its submitter's (``ports.personal``). Claims stay with the agent: nothing here makes, keeps or ends one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moorings.controller.loop import TurnLoop
from moorings.core.model.access import Caller, Role, check_owner_access
from moorings.core.model.claims import check_owner
from moorings.core.model.errors import MooringsError
from moorings.core.model.queue_reports import check_instance_id
from moorings.ports.personal import ListedJob, ListingReply, PersonalEngine, PersonalJob, RunReport, SubmissionTarget
from moorings.workloads.runs import Run, RunId

UIDS_MAX = 10_000
LISTED_JOBS_MAX = 10_000


class PersonalRuns:
    """Reports and listings of such runs.

    Args:
        loop: has the runs that have not ended.
        engines: the engines that follow such runs, by name.
    """

    def __init__(self, loop: TurnLoop, engines: Mapping[str, PersonalEngine]) -> None:
        self._loop = loop
        self._engines = engines

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines to which people submit their jobs themselves."""
        return tuple(self._engines)

    def target(self, engine: str, project: str) -> SubmissionTarget | None:
        """Where people submit jobs of that project themselves; None: that engine submits its jobs."""
        found = self._engines.get(engine)
        return found.target_for(project) if found is not None else None

    async def report_run(self, caller: Caller, ident: str, report: RunReport) -> tuple[Run, Mapping[int, int]]:
        """Take in a report of a run; returns the run, and by task how many bytes of its output are known.

        Raises:
            MooringsError: ``run.unknown``, ``run.ended``, ``owner.denied``, ``report.invalid``, ``engine.unavailable``.
        """
        run = self._loop.runs.by_id.get(RunId(ident))
        is_theirs = run is not None and (caller.run == run.id or run.subject == caller.subject)
        if run is None or not (is_theirs or (caller.run is None and caller.role is Role.ADMIN)):
            detail = f"there is no run {ident[:80]!r}, or it has ended"
            raise MooringsError("run.unknown", detail, hint="moor get runs --all")
        engine = self._engines.get(run.engine)
        if engine is None or run.submitter is None:
            raise MooringsError("report.invalid", f"run {run.id} is not submitted by its person: nothing to report")
        if caller.run is not None:  # what Slurm says of a job, only its person can have seen
            report = replace(report, job=None, is_abandoned=False)
        return run, await engine.accept_report(_known(run), report)

    async def report_jobs(
        self,
        caller: Caller,
        queue: str,
        instance: str,
        uids: Sequence[int],
        jobs: Sequence[ListedJob],
        past: Sequence[ListedJob],
    ) -> ListingReply:
        """Take in an agent's complete listing of some users' jobs; returns what it is to do next.

        Raises:
            MooringsError: ``owner.invalid``, ``owner.denied``, ``queue.invalid``, ``report.invalid``.
        """
        check_owner(queue)
        check_instance_id(instance)
        check_owner_access(caller, queue, "", "tell what runs there")
        if len(uids) > UIDS_MAX or len(jobs) + len(past) > LISTED_JOBS_MAX:
            detail = f"{len(jobs) + len(past)} jobs of {len(uids)} users were told at once"
            raise MooringsError("report.invalid", detail, hint=f"at most {LISTED_JOBS_MAX} of {UIDS_MAX} are taken")
        engine = self._engines.get("slurm")
        if engine is None:
            return ListingReply((), (), ())
        runs = (self._loop.runs.by_id.get(job.run) for job in jobs)
        known = [_known(run) for run in runs if run is not None and run.submitter is not None]
        return await engine.accept_listing(f"{queue} {instance}", known, uids, jobs, past)


def _known(run: Run) -> PersonalJob:
    assert run.submitter is not None
    return PersonalJob(run.id, run.attempt, run.submitter, run.job.tasks)
