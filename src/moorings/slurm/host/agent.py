"""The agent of one Slurm cluster, beside slurmctld: keeps claims, jobs and the gate in step, and answers the nodes.

Slurm is the authority for what runs, the controller for who holds what; the agent remembers nothing that it could not
learn anew from the two, so it may be killed at any moment. What it does follows from levels, not from messages: lists
of jobs and claims every second or few, the offer as it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass

from moorings.client.requests import ClaimFilter
from moorings.core.bindings import Rendezvous
from moorings.core.errors import MooringsError
from moorings.core.reconcile import Streak
from moorings.slurm.commands import Commands
from moorings.slurm.formats import (
    LICENSE,
    RESERVATION,
    JobRecord,
    Phase,
    build_cancel,
    build_create_reservation,
    build_jobs,
    build_licenses,
    build_requeue,
    build_update_reservation,
    parse_jobs,
    parse_licenses,
)
from moorings.slurm.host.berths import Berths, RefusedError
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.gate import is_kept, to_reserve
from moorings.slurm.host.ledger import Start, announce, judge, may_live, queue_of, start_of
from moorings.slurm.host.nodes import BindReply, BindRequest, Status, reply_for
from moorings.slurm.listings import expand_hosts
from moorings.wire.shapes import ClaimBody, QueueBody, QueueRequest

log = logging.getLogger("moorings.slurm.agent")

LIST_S = 1.0  # between two lists of jobs
CLAIMS_S = 5.0  # between two lists of claims
TELL_S = 30.0  # a queue in which nothing changes is told so often
BELIEVED_S = 120.0  # and is believed for so long
OFFER_WAIT_S = 20.0
OFFER_LOST_S = 3.0  # without a word of the controller for so long, nothing may start
GATE_S = 5.0  # between two looks at the gate, if nothing happens
HELD_S = 20.0  # a node's question is held so long
LOOK_AGAIN_S = 3.0  # a job that has just been started may not be in the last list
PAUSE_S = 0.5
PORT_FIRST, PORTS = (
    20_000,
    20_000,
)  # where the tasks of a job meet: by job id, so that two jobs of a node do not collide


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent serves.

    Attributes:
        cluster: Slurm's ClusterName.
        pool: to place jobs in; empty: any of the kind.
        folder: IpuofDir; empty: jobs get variables.
        patience_s: how long a started job may wait for its partition.
    """

    cluster: str
    pool: str = ""
    folder: str = ""
    patience_s: float = 50.0


class Agent:
    """One cluster's agent; ``serve`` runs it, ``answer`` is what the door asks."""

    def __init__(self, settings: AgentSettings, slurm: Commands, calls: Calls) -> None:
        self._settings = settings
        self._slurm = slurm
        self._calls = calls
        self._berths = Berths(calls, settings.cluster, settings.pool, settings.patience_s, self._give_up)
        self._jobs: dict[int, JobRecord] = {}
        self._listings = 0
        self._listed = asyncio.Condition()
        self._look = asyncio.Event()
        self._gate = asyncio.Event()
        self._doubts: Mapping[str, Streak] = {}
        self._listed_at: float | None = None
        self._releasing: set[str] = set()
        self._known_claims = False
        self._told: QueueRequest | None = None
        self._told_at = 0.0
        self._offer: Mapping[int, int] | None = None
        self._version = ""
        self._heard_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    # -- its life ----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Work until cancelled; the gate is closed then, for nobody would see to what starts."""
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._watch_jobs, self._watch_claims, self._watch_offer, self._keep_gate):
                    group.create_task(work())
        finally:
            self._offer = None
            with contextlib.suppress(MooringsError):
                await self._set_gate()

    def _soon(self, work: Awaitable[None], what: str) -> None:
        async def done() -> None:
            try:
                await work
            except MooringsError as error:
                log.warning("agent.failed", extra={"what": what, "code": error.code, "detail": error.detail})

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- Slurm's jobs ------------------------------------------------------------------------------------------------

    async def _watch_jobs(self) -> None:
        while True:
            begun = _now()
            self._look.clear()
            with _told("slurm.list"):
                await self._list_jobs()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(begun + LIST_S - _now(), 0.05)):
                    await self._look.wait()

    async def _list_jobs(self) -> None:
        known = list(self._berths.claims.values())  # what comes while the list is made is judged by the next one
        begun = _now()
        jobs = parse_jobs(await self._slurm.ask(build_jobs(license_name=LICENSE)))
        self._jobs = {job.job_id: job for job in jobs}
        async with self._listed:
            self._listings += 1
            self._listed.notify_all()
        if self._known_claims:
            apart_s = begun - self._listed_at if self._listed_at is not None else 0.0
            self._listed_at = begun
            self._follow(known, apart_s)
        await self._tell()
        self._gate.set()

    def _follow(self, claims: list[ClaimBody], apart_s: float) -> None:
        judged = judge(self._jobs, claims, self._doubts, self._settings.cluster, apart_s)
        self._doubts = judged.doubts
        for job in judged.starts:
            self._berths.serve(job)
        for claim in claims:
            why = judged.releases.get(claim.id)
            if why is not None:
                self._release(claim, why)
            elif claim.id in judged.lost:
                self._soon(self._release_if_gone(claim, judged.lost[claim.id]), "job.ask")

    async def _release_if_gone(self, claim: ClaimBody, why: str) -> None:
        """Ask Slurm for that very job before its partition goes: an admin may have changed what the list goes by."""
        start = start_of(claim.owner)
        if start is not None:
            try:
                found = parse_jobs(await self._slurm.ask(build_jobs(jobs=[start.job_id])))
            except MooringsError as error:
                if error.code != "slurm.job_unknown":
                    raise
                found = []
            if any(job.job_id == start.job_id and may_live(start, job) for job in found):
                return
        self._release(claim, why)

    def _release(self, claim: ClaimBody, why: str) -> None:
        if claim.id in self._releasing:
            return
        self._releasing.add(claim.id)
        self._berths.forget(claim.owner)
        self._soon(self._release_claim(claim, why), "claim.release")

    async def _release_claim(self, claim: ClaimBody, why: str) -> None:
        try:
            await self._calls(lambda client: client.delete_claim(claim.id))
            self._berths.claims.pop(claim.owner, None)
            log.info("claim.released", extra={"claim": claim.id, "owner": claim.owner, "why": why})
        except MooringsError as error:
            if error.code != "claim.unknown":
                raise
            self._berths.claims.pop(claim.owner, None)
        finally:
            self._releasing.discard(claim.id)

    async def _give_up(self, job: JobRecord, message: str) -> None:
        """A job that waited for its partition in vain goes back into the queue; one that cannot is ended."""
        assert job.order is not None
        claim = self._berths.claims.get(Start.of(job, job.order).owner(self._settings.cluster))
        if claim is not None:
            self._release(claim, message)
        if job.batch and job.requeue:
            await self._slurm.ask(build_requeue(job.job_id))
        elif job.batch:
            await self._slurm.ask(build_cancel(job.job_id))

    # -- the controller's claims -------------------------------------------------------------------------------------

    async def _watch_claims(self) -> None:
        while True:
            with _told("claims.list"):
                await self._list_claims()
            await asyncio.sleep(CLAIMS_S if self._known_claims else PAUSE_S)

    async def _list_claims(self) -> None:
        before = dict(self._berths.claims)
        prefix = f"{queue_of(self._settings.cluster)}/"
        found = {c.owner: c for c in await self._calls(lambda client: client.claims(ClaimFilter(owner_prefix=prefix)))}
        claims = self._berths.claims
        for owner, claim in before.items():
            if owner not in found and claims.get(owner) is claim:
                del claims[owner]  # it ended, and nobody touched it while the list was made
        for owner, claim in found.items():
            if claim.state == "RELEASING":
                claims.pop(owner, None)
            elif claims.get(owner) is before.get(owner):
                claims[owner] = claim
        self._known_claims = True

    # -- what waits, and what may start ------------------------------------------------------------------------------

    async def _tell(self) -> None:
        told = announce(self._jobs, self._settings.cluster, self._settings.pool, BELIEVED_S)
        if told == self._told and _now() - self._told_at < TELL_S:
            return
        self._take(await self._calls(lambda client: client.tell_queue(told)))
        self._told, self._told_at = told, _now()

    async def _watch_offer(self) -> None:
        queue = queue_of(self._settings.cluster)
        while True:
            try:
                version = self._version
                self._take(
                    await self._calls(
                        lambda client, v=version: client.queue(queue, wait_s=OFFER_WAIT_S, version=v or None),  # type: ignore[misc]
                        waits=True,
                    )
                )
                continue
            except MooringsError as error:
                if error.code == "queue.unknown":  # the controller has been started anew
                    self._told = None
                    self._look.set()
                elif _now() - self._heard_at > OFFER_LOST_S and self._offer is not None:
                    log.warning("offer.lost", extra={"code": error.code, "detail": error.detail})
                    self._offer, self._version = None, ""
                    self._gate.set()
            await asyncio.sleep(PAUSE_S)

    def _take(self, body: QueueBody) -> None:
        """Believe an offer."""
        pools = [body.offer.get(self._settings.pool, {})] if self._settings.pool else list(body.offer.values())
        counts: dict[int, int] = {}
        for sizes in pools:
            for size, count in sizes.items():
                counts[int(size)] = counts.get(int(size), 0) + count
        self._heard_at = _now()
        self._version = body.version
        if counts != self._offer:
            log.debug("offer.taken", extra={"offer": str(counts)})
            self._offer = counts
            self._gate.set()

    # -- the gate ----------------------------------------------------------------------------------------------------

    async def _keep_gate(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATE_S):
                    await self._gate.wait()
            self._gate.clear()
            with _told("slurm.gate"):
                await self._set_gate()

    async def _set_gate(self) -> None:
        licenses = parse_licenses(await self._slurm.ask(build_licenses()))
        wanted = to_reserve(licenses, self._offer)
        if is_kept(licenses, wanted):
            return
        log.debug("gate.set", extra={"kept": str(wanted)})
        answer = await self._slurm.run(build_update_reservation(RESERVATION, wanted))
        if answer.code != 0:
            closed = to_reserve(licenses, None)
            await self._slurm.ask(build_create_reservation(RESERVATION, closed))
            log.warning("gate.made", extra={"detail": f"the reservation {RESERVATION} was missing: {answer.complaint}"})
            self._gate.set()

    # -- what nodes ask ----------------------------------------------------------------------------------------------

    async def answer(self, request: BindRequest) -> BindReply:
        """The answer to a node."""
        job = await self._find(request)
        if job is None or job.order is None:
            return BindReply(Status.REFUSED, f"Slurm knows of no running IPU job {request.job} on {request.node}")
        try:
            async with asyncio.timeout(HELD_S):
                binding = await asyncio.shield(self._berths.serve(job))
        except TimeoutError:
            return BindReply(Status.RETRY, "the partition is not ready yet")
        except asyncio.CancelledError:
            if asyncio.current_task() is not None and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return BindReply(Status.REFUSED, f"job {request.job} is over")
        except RefusedError as error:
            return BindReply(Status.REFUSED, error.detail)
        nodes = expand_hosts(job.nodes) if job.nodes_whole else (request.node,)
        meeting = Rendezvous(nodes[0], PORT_FIRST + job.job_id % PORTS)
        return reply_for(binding, meeting, self._settings.folder)

    async def _find(self, request: BindRequest) -> JobRecord | None:
        """The running job that a node asks for; one that has just been started is looked for once more."""
        until = _now() + LOOK_AGAIN_S
        while True:
            job = self._jobs.get(request.job)
            if job is not None and job.phase is Phase.LIVE and job.order is not None and _runs_on(job, request.node):
                return job
            seen = self._listings
            self._look.set()
            try:
                async with asyncio.timeout(max(until - _now(), 0)), self._listed:
                    await self._listed.wait_for(lambda: self._listings > seen)  # noqa: B023 - used before it changes
            except TimeoutError:
                return None


def _runs_on(job: JobRecord, node: str) -> bool:
    return not job.nodes_whole or node in expand_hosts(job.nodes)


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """A step that failed is told, and tried again at its next turn."""
    try:
        yield
    except MooringsError as error:
        log.warning("agent.failed", extra={"what": what, "code": error.code, "detail": error.detail})
