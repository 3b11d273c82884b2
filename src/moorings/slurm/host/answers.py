"""The agent's answers to a node's request for a step: not yet, never, or its part of the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from moorings.core.bindings import Binding, Rendezvous
from moorings.core.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.berths import NoPartitionError
from moorings.slurm.host.ledger import JobStart
from moorings.slurm.host.listing import JobTable
from moorings.slurm.host.nodes import BATCH_STEP, INTERACTIVE_STEP, BindReply, BindRequest, BindStatus, reply_for
from moorings.slurm.host.offers import QueueSync
from moorings.slurm.host.steps import StepAllocations, first_port
from moorings.slurm.listings import expand_hostlist
from moorings.slurm.steps import build_nodelist, build_steps, parse_nodes_of, parse_steps

LONG_POLL_S = 20.0  # the longest wait for an answer


class BindHandler:
    """Answers requests of nodes.

    Args:
        slurm: its commands.
        listing: the jobs of Slurm.
        offers: whether the controller accepts this Slurm.
        steps: which nodes have asked, and the allocations of steps.
        claims_listed: set once the controller's claims are known.
        serve: returns the binding of a start.
        folder: IpuofDir; empty: jobs get variables.
    """

    def __init__(
        self,
        slurm: SlurmCommands,
        listing: JobTable,
        offers: QueueSync,
        steps: StepAllocations,
        claims_listed: asyncio.Event,
        serve: Callable[[JobRecord], asyncio.Task[Binding]],
        folder: str,
    ) -> None:
        self._slurm = slurm
        self._listing = listing
        self._offers = offers
        self._steps = steps
        self._claims_listed = claims_listed
        self._serve = serve
        self._folder = folder

    async def answer(self, request: BindRequest) -> BindReply:
        """Answer a node's request."""
        try:
            async with asyncio.timeout(LONG_POLL_S):
                job = await self._listing.find(request)
                if job is None:
                    told = f"Slurm knows of no running IPU job {request.job} on {request.node}"
                    return BindReply(BindStatus.REFUSED, told)
                assert job.order is not None
                self._steps.record_request(JobStart.of(job, job.order), request.node)
                if self._offers.refused:
                    return BindReply(BindStatus.RETRY, self._why_not_yet())
                await self._offers.accepted.wait()
                await self._claims_listed.wait()
                binding = await asyncio.shield(self._serve(job))
                meeting, gcds = await self._share(job, request, len(binding.gcds))
        except TimeoutError:
            return BindReply(BindStatus.RETRY, self._why_not_yet())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return BindReply(BindStatus.RETRY, "the job has ended, or is asked for anew")
        except NoPartitionError as error:
            return BindReply(BindStatus.REFUSED, error.detail)
        except MooringsError as error:  # other steps have its GCDs, or Slurm does not answer: the node asks again
            return BindReply(BindStatus.RETRY, error.detail)
        return reply_for(binding, meeting, self._folder, gcds)

    async def _share(
        self, job: JobRecord, request: BindRequest, n_gcds: int
    ) -> tuple[Rendezvous, tuple[int, ...] | None]:
        """Return the rendezvous of a step's tasks, and the GCDs of the step; None: all.

        Raises:
            NoPartitionError: the job does not run on that node.
            MooringsError: the step must wait for others, or Slurm does not answer.
        """
        assert job.order is not None
        start = JobStart.of(job, job.order)
        if job.nodes_whole:
            nodes = expand_hostlist(job.nodes)
        else:
            nodes = await self._steps.nodes(start, lambda: self._nodes_of(job.job_id))
        if request.node not in nodes:
            raise NoPartitionError("auth.denied", f"job {job.job_id} does not run on {request.node}")
        if request.tasks is None or request.nodes is None or request.step in (BATCH_STEP, INTERACTIVE_STEP):
            return Rendezvous(nodes[0], first_port(job.job_id)), None

        async def find_master() -> str:
            if request.nodes == 1:
                return request.node
            return (nodes if request.nodes == len(nodes) else await self._nodes_of(job.job_id, request.step))[0]

        async def find_running() -> Collection[int]:
            steps = parse_steps(await self._slurm.ask(build_steps([job.job_id])))
            return [step.number for step in steps if step.job_id == job.job_id and step.number is not None]

        share = await self._steps.take(start, request.step, request.tasks, n_gcds, find_master, find_running)
        return Rendezvous(share.master, share.port), share.gcds

    async def _nodes_of(self, job: int, step: int | None = None) -> tuple[str, ...]:
        nodes = parse_nodes_of(await self._slurm.ask(build_nodelist(job, step)), job, step)
        if not nodes:
            what = f"job {job}" if step is None else f"step {step} of job {job}"
            raise MooringsError("slurm.job_unknown", f"Slurm knows of no running {what}", retryable=True)
        return nodes

    def _why_not_yet(self) -> str:
        if self._offers.refused:
            return f"the controller serves another Slurm: {self._offers.refused}"
        if not self._claims_listed.is_set() or not self._offers.accepted.is_set():
            return "the controller does not answer the agent"
        listed_at = self._listing.listed_at
        if listed_at is None or _now() - listed_at > LONG_POLL_S:
            return "Slurm does not answer the agent"
        return "the partition is not ready yet"


def _now() -> float:
    return asyncio.get_running_loop().time()
