"""The server for nodes: one line in, one line out, both munge credentials.

Any client that can connect may send anything, so everything is bounded: connections, in total and per machine, the
line, its time, and the log lines about it. Only root of one of the job's nodes gets a binding, and only root can read
it. Every user may ask why a job waits (``wait_reason``); that is answered at once, for that user's eyes only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from moorings.core.model.bindings import Binding, Rendezvous
from moorings.core.model.errors import MooringsError
from moorings.net.limits import ConnectionLimit
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.fixed_width import expand_hostlist
from moorings.slurm.formats import JobRecord
from moorings.slurm.host import plugin_heartbeat, wait_reason
from moorings.slurm.host.bind_protocol import (
    BATCH_STEP,
    CREDENTIAL_REQUEST_BYTES_MAX,
    INTERACTIVE_STEP,
    BindReply,
    BindRequest,
    BindStatus,
    build_reply,
    parse_request,
    reply_for,
)
from moorings.slurm.host.claim_table import NoPartitionError
from moorings.slurm.host.failure_log import RateLimitedWarnings
from moorings.slurm.host.job_listing import JobTable
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.host.queue_sync import QueueSync
from moorings.slurm.host.step_allocations import StepAllocations, first_port
from moorings.slurm.munge import Munge
from moorings.slurm.step_records import build_nodelist, build_steps, parse_nodes_of, parse_steps

CONNECTIONS_MAX = 2048
# Each slurmstepd asks once at its start, for all its tasks, and again if no agent listens: several jobs a core.
CONNECTIONS_PER_ADDRESS_MAX = 256
LINE_S_MAX = 5.0  # a line is sent at once, and received at once
COMPLAIN_S = 1.0
ROOT = 0

Answer = Callable[[BindRequest], Awaitable[BindReply]]
Why = Callable[[int, int], str | None]
"""Arguments: the user's uid, by munge, and the job id. Result: why it waits; None: nothing for this user."""
Note = Callable[[plugin_heartbeat.PluginHeartbeat], bool]
"""Result: whether it is recorded that a node's slurmd has loaded the plugin."""


def _of_none(_uid: int, _job: int) -> None:
    return None


def _not_noted(_heartbeat: plugin_heartbeat.PluginHeartbeat) -> bool:
    return False


class BindServer:
    """Listens for nodes and passes their requests to ``answer``.

    Args:
        munge: decodes and makes credentials.
        answer: answers a request.
        explain: returns why a job waits, for a user.
        note: records that a node has the plugin.
        connections_max: at the same time, in total.
        per_address_max: of them from one address.
        complain_s: seconds between two log lines of refusals for the same reason.
    """

    def __init__(
        self,
        munge: Munge,
        answer: Answer,
        explain: Why = _of_none,
        note: Note = _not_noted,
        *,
        connections_max: int = CONNECTIONS_MAX,
        per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX,
        complain_s: float = COMPLAIN_S,
    ) -> None:
        self._munge = munge
        self._answer = answer
        self._explain = explain
        self._note = note
        self._connections: ConnectionLimit[asyncio.StreamWriter] = ConnectionLimit(connections_max, per_address_max)
        self._complaints = RateLimitedWarnings("node.refused", complain_s)
        self._server: asyncio.Server | None = None

    async def open(self, host: str | None, port: int) -> int:
        """Listen; return the port.

        Raises:
            MooringsError: ``config.invalid``: the address is not available.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=CREDENTIAL_REQUEST_BYTES_MAX, backlog=512
            )
        except OSError as error:
            hint = "is another agent running? else choose another AgentPort in vipu.conf"
            raise MooringsError("config.invalid", f"port {port} cannot be had: {error.strerror}", hint=hint) from error
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = _address_of(writer)
        gone = self._connections.acquire(address, writer)
        try:
            if gone is not None:
                gone.transport.abort()
                complaint = (
                    f"too many connections at once, the last from {address}: one that had asked nothing was closed"
                )
                self._complaints.warn("door.crowded", complaint)
            if gone is not writer:
                await self._handle(reader, writer)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client has gone, or sends no line: it gets no answer
        except asyncio.CancelledError:
            pass  # the agent stops and the node asks again; asyncio would log a cancelled handler as a failure
        except MooringsError as error:
            self._complaints.warn(error.code, f"{error.detail}, from {address}")
        finally:
            await _end(writer)
            self._connections.release(writer)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(LINE_S_MAX):
            line = await reader.readuntil(b"\n")
        credential = await asyncio.to_thread(self._munge.decode, line.decode("ascii").strip())
        if credential.payload.startswith(wait_reason.GREETING):
            question = wait_reason.parse_request(credential.payload)
            reason = wait_reason.build_reply(question, self._explain(credential.uid, question.job))
            await self._send_sealed(writer, reason, credential.uid)
            return
        if credential.uid != ROOT:
            raise MooringsError("auth.denied", f"uid {credential.uid} asked for a job's binding: only root may")
        if credential.payload.startswith(plugin_heartbeat.GREETING):
            heartbeat = plugin_heartbeat.parse_request(credential.payload)
            await self._send_sealed(writer, plugin_heartbeat.build_reply(heartbeat, noted=self._note(heartbeat)), ROOT)
            return
        request = parse_request(credential.payload)
        if not self._connections.mark_busy(writer):
            return
        reply = await self._answer(request)
        try:
            payload = build_reply(request, reply)
        except MooringsError as error:  # the driver returned something that no node accepts
            payload = build_reply(request, BindReply(BindStatus.REFUSED, f"the binding cannot be used: {error.detail}"))
        await self._send_sealed(writer, payload, ROOT)

    async def _send_sealed(self, writer: asyncio.StreamWriter, payload: bytes, uid: int) -> None:
        sealed = await asyncio.to_thread(lambda: self._munge.encode(payload, for_uid=uid))
        writer.write(sealed.encode("ascii") + b"\n")


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a connection once the reply is sent, or its timeout is over."""
    writer.close()
    try:
        async with asyncio.timeout(LINE_S_MAX):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()  # does nothing if it is closed


def _address_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")  # None: already disconnected
    return str(peer[0]) if peer else ""


# -- answers -----------------------------------------------------------------------------------------------------------
# The agent's answers to a node's request for a step: not yet, never, or its part of the partition.

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
                job = await self._listing.find_running(request)
                if job is None:
                    message = f"Slurm knows of no running IPU job {request.job} on {request.node}"
                    return BindReply(BindStatus.REFUSED, message)
                assert job.order is not None
                self._steps.record_request(JobStart.of(job, job.order), request.node)
                if self._offers.refused:
                    return BindReply(BindStatus.RETRY, self._retry_reason())
                await self._offers.accepted.wait()
                await self._claims_listed.wait()
                binding = await asyncio.shield(self._serve(job))
                meeting, gcds = await self._allocate_step(job, request, len(binding.gcds))
        except TimeoutError:
            return BindReply(BindStatus.RETRY, self._retry_reason())
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

    async def _allocate_step(
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
            steps = parse_steps(await self._slurm.run_checked(build_steps([job.job_id])))
            return [step.number for step in steps if step.job_id == job.job_id and step.number is not None]

        share = await self._steps.allocate(start, request.step, request.tasks, n_gcds, find_master, find_running)
        return Rendezvous(share.master, share.port), share.gcds

    async def _nodes_of(self, job: int, step: int | None = None) -> tuple[str, ...]:
        nodes = parse_nodes_of(await self._slurm.run_checked(build_nodelist(job, step)), job, step)
        if not nodes:
            what = f"job {job}" if step is None else f"step {step} of job {job}"
            raise MooringsError("slurm.job_unknown", f"Slurm knows of no running {what}", retryable=True)
        return nodes

    def _retry_reason(self) -> str:
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
