"""Lists the jobs that people have submitted for runs, and carries out the controller's orders about them.

The controller says which users have such runs. A job counts for the run in its comment; whether it is that run's
submitter's is for the controller to judge, and again for this agent before it touches the job: it looks for the run and
the user of an order in its own listing, so a forged job id reaches no stranger's job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import (
    JobRecord,
    SlurmJobPhase,
    build_cancel,
    build_history,
    build_jobs,
    parse_history,
    parse_jobs,
)
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.personal.run_jobs import listed_job_shape, past_job_shape
from moorings.wire.shapes import JobOrderBody, SlurmJobShape, SubmittedJobsRequest

log = logging.getLogger("moorings.slurm.agent")

LIST_S = 2.0  # between two lists while people have runs
IDLE_S = 2.0  # between two questions whether they have
UNKNOWN_S = 60.0  # an older controller has no such runs
LOOK_UP = "look_up"
ACTIONS = ("warn", "stop", "end")
SIGNALS = {"warn": "USR1", "stop": "USR2"}  # to the batch script


class PersonalJobs:
    """The jobs of people's runs on one cluster.

    Args:
        slurm: its commands.
        calls: to the controller.
        queue: ``slurm/<cluster>``.
        instance: the id of this Slurm among those of that name.
        accepted: set while the controller accepts this Slurm.
        troubles: the log of failures.
    """

    def __init__(
        self,
        slurm: SlurmCommands,
        calls: ControllerClient,
        queue: str,
        instance: str,
        accepted: asyncio.Event,
        troubles: FailureLog,
    ) -> None:
        self._slurm = slurm
        self._calls = calls
        self._queue = queue
        self._instance = instance
        self._accepted = accepted
        self._troubles = troubles
        self._uids: Sequence[int] = ()
        self._runs: frozenset[str] = frozenset()
        self._lookups: Sequence[JobOrderBody] = ()
        self._has_runs = True

    async def serve(self) -> None:
        """Do so forever."""
        while True:
            await self._accepted.wait()
            known = self._runs
            with self._troubles.logged("runs.list"):
                await self._exchange()
            if self._runs <= known:  # else there are new ones, which were not looked for yet
                await asyncio.sleep(LIST_S if self._uids else IDLE_S if self._has_runs else UNKNOWN_S)

    async def _exchange(self) -> None:
        uids = self._uids
        jobs: list[JobRecord] = []
        if uids:
            jobs = parse_jobs(await self._slurm.run_checked(build_jobs(users=uids)))
        shapes = ((job, listed_job_shape(job)) for job in jobs if job.uid in uids)
        listed = {job.job_id: shape for job, shape in shapes if shape is not None and shape.run in self._runs}
        past = await self._look_up()
        request = SubmittedJobsRequest(
            instance=self._instance, uids=tuple(uids), jobs=tuple(listed.values()), accounted=tuple(past)
        )
        try:
            reply = await self._calls(lambda client: client.report_jobs(self._queue, request))
        except MooringsError as error:
            self._has_runs = error.code != "path.unknown"
            if self._has_runs:
                raise
            return
        self._has_runs = True
        self._uids, self._runs = reply.uids, frozenset(reply.runs)
        self._lookups = [order for order in reply.orders if order.action == LOOK_UP]
        by_attempt: dict[tuple[str, int, int], list[JobRecord]] = {}
        for job in jobs:
            shape = listed.get(job.job_id)
            if shape is not None:
                by_attempt.setdefault((shape.run, shape.attempt, shape.uid), []).append(job)
        for order in reply.orders:
            for job in by_attempt.get((order.run, order.attempt, order.uid), ()):
                await self._carry_out(order, job)

    async def _look_up(self) -> list[SlurmJobShape]:
        """The jobs to look up that have ended, by the accounting."""
        orders = {order.job: order for order in self._lookups if order.job}
        found: list[SlurmJobShape] = []
        if orders:
            with contextlib.suppress(MooringsError):  # there is no accounting, or it is down
                for past in parse_history(await self._slurm.run_checked(build_history(*orders))):
                    order = orders.get(past.job_id)
                    shape = past_job_shape(past, order.run, order.attempt, order.uid) if order is not None else None
                    found += [shape] if shape is not None else []
        return found

    async def _carry_out(self, order: JobOrderBody, job: JobRecord) -> None:
        if order.action not in ACTIONS:
            return
        signal = SIGNALS.get(order.action)
        if job.phase is SlurmJobPhase.ENDED or (order.action == "warn" and job.phase is not SlurmJobPhase.LIVE):
            return
        to_script = signal is not None and job.phase is SlurmJobPhase.LIVE
        argv = build_cancel(job.job_id, signal=signal, batch_only=True) if to_script else build_cancel(job.job_id)
        log.info("run.ordered", extra={"run": order.run, "job": job.job_id, "action": order.action})
        with self._troubles.logged("run.order"):
            await self._slurm.run_checked(argv)
