"""The agent of one Slurm cluster, beside slurmctld: keeps claims, jobs and the gate in step, and answers the nodes.

Slurm is the authority for what runs, the controller for who holds what; the agent remembers nothing that it could not
learn anew from the two, so it may be killed at any moment. What it does follows from levels, not from messages: lists
of jobs and claims every second or few, the offer as it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass

from moorings.client.requests import ClaimFilter
from moorings.core.bindings import Rendezvous
from moorings.core.errors import MooringsError
from moorings.core.reconcile import Streak
from moorings.slurm.commands import Commands
from moorings.slurm.formats import (
    LICENSE,
    RESERVATION,
    JobLists,
    JobRecord,
    License,
    build_create_reservation,
    build_jobs,
    build_licenses,
    build_renew_reservation,
    build_requeue,
    build_update_reservation,
    parse_jobs,
    parse_licenses,
)
from moorings.slurm.host.berths import GONE, Berths, RefusedError
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.gate import is_kept, stay_ours, to_reserve, what_lacks
from moorings.slurm.host.ledger import Home, Start, announce, judge, may_live, start_of, uses_licenses
from moorings.slurm.host.nodes import BindReply, BindRequest, Status, reply_for
from moorings.slurm.host.offers import Offers
from moorings.slurm.host.preemptor import Preemptor
from moorings.slurm.host.reclaim import in_the_way
from moorings.slurm.host.reclaimer import Reclaimer
from moorings.slurm.host.troubles import Troubles
from moorings.slurm.listings import expand_hosts
from moorings.wire.shapes import ClaimBody

log = logging.getLogger("moorings.slurm.agent")

LIST_S = 1.0  # between two lists of jobs
FRESH_S = 5.0  # a list that is older says nothing to a node: ids come again when slurmctld has lost its state
LIST_PAUSE_S = 0.1  # at least, whoever asks: a list of a large queue keeps slurmctld busy
CLAIMS_S = 5.0  # between two lists of claims
BELIEVED_S = 120.0  # what is told of the queue is believed for so long
GATE_S = 5.0  # between two looks at the gate, if nothing happens
GATE_PAUSE_S = 0.1  # at least, whatever happens: each look and each change is a command of its own
RENEW_S = 86_400.0  # Slurm ends a reservation after 365 days, "infinite" or not
HELD_S = 20.0  # a node's question is held so long
PAUSE_S = 0.5
# Where the tasks of a job meet: by job id, so that two jobs of a node do not collide.
PORT_FIRST, PORTS = 20_000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent serves.

    Attributes:
        cluster: Slurm's ClusterName.
        instance: which Slurm of that name it is.
        pool: to place jobs in; empty: any of the kind.
        folder: IpuofDir; empty: jobs get variables.
        patience_s: how long a started job may wait for its partition.
    """

    cluster: str
    instance: str
    pool: str = ""
    folder: str = ""
    patience_s: float = 50.0


class Agent:
    """One cluster's agent; ``serve`` runs it, ``answer`` is what the door asks."""

    def __init__(self, settings: AgentSettings, slurm: Commands, calls: Calls) -> None:
        self._settings = settings
        self._home = Home(settings.cluster, settings.instance)
        self._slurm = slurm
        self._calls = calls
        self._troubles = Troubles()
        self._gate = asyncio.Event()
        self._look = asyncio.Event()
        self._offers = Offers(
            calls,
            self._home.queue,
            settings.instance,
            settings.pool,
            self._gate.set,
            self._look.set,
            self._troubles,
        )
        self._berths = Berths(
            calls, self._home, settings.pool, settings.patience_s, self._give_up, self._offers.recount
        )
        self._preemptor = Preemptor(slurm, calls, self._home, settings.pool, self._troubles)
        self._reclaimer = Reclaimer(slurm, calls, self._home, self._troubles)
        self._lists = JobLists()
        self._jobs: dict[int, JobRecord] = {}
        self._listed = asyncio.Condition()
        self._listed_at: float | None = None  # when the last good list was asked for
        self._judged_at: float | None = None
        self._doubts: Mapping[str, Streak] = {}
        self._releasing: set[str] = set()
        self._claims_known = asyncio.Event()
        self._renewed_at: float | None = None
        self._licenses: Mapping[str, License] = {}  # as last listed
        self._lack = ""
        self._strangers: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # -- its life ----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Work until cancelled; the gate is closed then, for nobody would see to what starts."""
        offers, preemptor, reclaimer = self._offers, self._preemptor, self._reclaimer
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._watch_jobs, self._watch_claims, self._keep_gate):
                    group.create_task(work())
                for other in (offers.serve_watching, offers.serve_telling, preemptor.serve_rules, preemptor.serve):
                    group.create_task(other())
                group.create_task(reclaimer.serve())
                group.create_task(reclaimer.serve_remarks())
        finally:
            offers.counts = None
            with self._troubles.told("slurm.gate"):
                await self._set_gate()

    def _soon(self, work: Awaitable[None], what: str) -> None:
        async def done() -> None:
            with self._troubles.told(what):
                await work

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- Slurm's jobs ------------------------------------------------------------------------------------------------

    async def _watch_jobs(self) -> None:
        while True:
            begun = _now()
            self._look.clear()
            with self._troubles.told("slurm.list"):
                await self._list_jobs()
            await asyncio.sleep(LIST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(begun + LIST_S - _now(), 0.0)):
                    await self._look.wait()

    async def _list_jobs(self) -> None:
        accepted = self._offers.accepted.is_set()
        # What comes while the list is made is judged by the next one.
        known = list(self._berths.claims.values()) if accepted else []
        begun = _now()
        answer = await self._slurm.ask(build_jobs(license_name=LICENSE, ended=False))
        jobs = {job.job_id: job for job in self._lists.parse(answer)}
        # Of those that ended only the ones that we work for: a busy cluster remembers thousands for minutes.
        owners = {claim.owner for claim in known if self._home.may_judge(claim.owner)}
        starts = map(start_of, {*owners, *self._berths.known})
        if missing := sorted({start.job_id for start in starts if start is not None} - jobs.keys()):
            jobs |= {job.job_id: job for job in await self._ask(build_jobs(jobs=missing))}
        self._jobs = jobs
        async with self._listed:
            self._listed_at = begun
            self._listed.notify_all()
        if not accepted or not self._offers.accepted.is_set():  # they may be the claims of another Slurm of this name
            self._doubts, self._judged_at = {}, None
        elif self._claims_known.is_set():
            apart_s = begun - self._judged_at if self._judged_at is not None else 0.0
            self._judged_at = begun
            self._reclaimer.look(jobs, known, self._offers.reasons, self._preemptor.rules.kill_wait_s)
            held = list(self._berths.claims.values())
            self._reclaimer.clear_the_way(in_the_way(jobs, held, self._offers.offered, self._licenses))
            self._follow(known, apart_s)
        rank = self._preemptor.rules.tier
        self._offers.tell(announce(self._jobs, self._home, self._settings.pool, BELIEVED_S, rank))
        if accepted:
            self._preemptor.look(self._jobs)
        self._gate.set()

    async def _ask(self, argv: Sequence[str]) -> list[JobRecord]:
        try:
            return parse_jobs(await self._slurm.ask(argv))
        except MooringsError as error:
            if error.code != "slurm.job_unknown":
                raise
            return []

    def _follow(self, claims: list[ClaimBody], apart_s: float) -> None:
        judged = judge(self._jobs, claims, self._doubts, self._home, apart_s)
        self._doubts = judged.doubts
        for job in judged.starts:
            self._berths.serve(job)
        for claim in claims:
            if claim.owner not in self._berths.claims:
                continue  # it went while the list was made
            why = judged.releases.get(claim.id)
            if why is not None and not self._reclaimer.keeps(claim.id):
                self._release(claim, why)
            elif claim.id in judged.lost and not self._offers.contested:
                self._soon(self._release_if_gone(claim, judged.lost[claim.id]), "job.ask")
        self._berths.tidy(self._jobs)

    async def _release_if_gone(self, claim: ClaimBody, why: str) -> None:
        """Ask Slurm for that very job before its partition goes: an admin may have changed what the list goes by."""
        start = start_of(claim.owner)
        if start is not None:
            found = await self._ask(build_jobs(jobs=[start.job_id]))
            if any(job.job_id == start.job_id and may_live(start, job) for job in found):
                return
        if self._offers.accepted.is_set() and not self._offers.contested:  # still, for Slurm may have taken its time
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
            log.info("claim.released", extra={"claim": claim.id, "owner": claim.owner, "why": why})
        except MooringsError as error:
            if error.code != "claim.unknown":
                raise
        finally:
            self._releasing.discard(claim.id)
        self._berths.drop(claim.owner)

    async def _give_up(self, job: JobRecord, message: str) -> bool:
        """Whether a job that waited for its partition in vain is back in the queue, or may be told that it gets none.

        Of one that is back the claim goes when Slurm says that this start is over. One that cannot go back ends by what
        its node is told, and so does a step of srun or salloc: cancelled, it would end without a word to its user.
        """
        assert job.order is not None
        owner = Start.of(job, job.order).owner(self._home)
        claim = self._berths.claims.get(owner)
        # Its claim has no devices: on the licenses it gives back the next one would wait in vain, too.
        self._berths.settled_at.pop(owner, None)
        with self._troubles.told("job.give_up") as good:
            await self._set_gate()
            if job.batch and job.requeue:
                await self._slurm.ask(build_requeue(job.target))
            elif claim is not None:
                await self._release_claim(claim, message)
        return bool(good)

    # -- the controller's claims -------------------------------------------------------------------------------------

    async def _watch_claims(self) -> None:
        while True:
            with self._troubles.told("claims.list"):
                await self._list_claims()
            await asyncio.sleep(CLAIMS_S if self._claims_known.is_set() else PAUSE_S)

    async def _list_claims(self) -> None:
        berths = self._berths
        before = dict(berths.claims)
        prefix = f"{self._home.queue}/"
        found = {c.owner: c for c in await self._calls(lambda client: client.claims(ClaimFilter(owner_prefix=prefix)))}
        self._tell_strangers(sorted(claim.name for claim in found.values() if not self._home.may_judge(claim.owner)))
        for owner in {*before, *found}:
            if berths.claims.get(owner) is not before.get(owner):
                continue  # somebody touched it while the list was made
            claim = found.get(owner)
            if claim is None or claim.state in GONE:
                berths.drop(owner)
            else:
                berths.note(claim)
        if not self._claims_known.is_set():
            self._claims_known.set()
            self._look.set()

    def _tell_strangers(self, names: list[str]) -> None:
        if names and names != self._strangers:
            detail = f"{len(names)} claims of another Slurm of this name, {names[0]} among them, are left alone"
            hint = "if that Slurm is gone for good, 'moor slurm doctor' lists them and 'moor delete claim' ends them"
            log.warning("claims.of_another", extra={"detail": detail, "hint": hint})
        self._strangers = names

    # -- the gate ----------------------------------------------------------------------------------------------------

    async def _keep_gate(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATE_S):
                    await self._gate.wait()
            self._gate.clear()
            with self._troubles.told("slurm.gate"):
                await self._set_gate()
                await self._renew()
            await asyncio.sleep(GATE_PAUSE_S)

    async def _set_gate(self) -> None:
        licenses = self._licenses = parse_licenses(await self._slurm.ask(build_licenses()))
        self._tell_lack(what_lacks(licenses, self._offers.counts))
        wanted = self._to_reserve(licenses)
        if is_kept(licenses, wanted):
            return
        log.debug("gate.set", extra={"kept": str(wanted)})
        answer = await self._slurm.run(build_update_reservation(RESERVATION, wanted))
        if answer.code != 0:
            closed = to_reserve(licenses, None)
            await self._slurm.ask(build_create_reservation(RESERVATION, closed))
            log.warning("gate.made", extra={"detail": f"the reservation {RESERVATION} was missing: {answer.complaint}"})
            self._gate.set()

    def _to_reserve(self, licenses: Mapping[str, License]) -> dict[str, int]:
        """What the reservation must hold, as far as offer and lists know."""
        offers = self._offers
        live, counted = set(), []
        for job in self._jobs.values():
            if job.order is not None and uses_licenses(job):
                owner = Start.of(job, job.order).owner(self._home)
                if LICENSE in job.licenses:  # an admin may have taken them
                    live.add(owner)
                settled_at = self._berths.settled_at.get(owner)
                if settled_at is not None and settled_at <= offers.asked_at:
                    counted.append(job.order.ipus)
        largest = max([offers.largest, *self._berths.awaiting(live)])
        young = self._listed_at is not None and _now() - self._listed_at <= FRESH_S
        if not young or not stay_ours(offers.held, largest, alone=offers.alone):
            return to_reserve(licenses, offers.counts, counted)
        bare = Counter(self._berths.in_use_beside(live, self._releasing))
        return to_reserve(licenses, offers.counts, held={size: n - bare[size] for size, n in offers.held.items()})

    async def _renew(self) -> None:
        if self._renewed_at is None or _now() - self._renewed_at > RENEW_S:
            await self._slurm.ask(build_renew_reservation(RESERVATION))
            self._renewed_at = _now()

    def _tell_lack(self, lack: str) -> None:
        if lack and lack != self._lack:
            log.error("gate.lacks", extra={"detail": lack, "hint": "moor slurm install --plan shows the line"})
        self._lack = lack

    # -- what nodes ask ----------------------------------------------------------------------------------------------

    async def answer(self, request: BindRequest) -> BindReply:
        """The answer to a node."""
        try:
            async with asyncio.timeout(HELD_S):
                job = await self._find(request)
                if job is None:
                    told = f"Slurm knows of no running IPU job {request.job} on {request.node}"
                    return BindReply(Status.REFUSED, told)
                if self._offers.refused:
                    return BindReply(Status.RETRY, self._why_not_yet())
                await self._offers.accepted.wait()
                await self._claims_known.wait()
                binding = await asyncio.shield(self._berths.serve(job))
        except TimeoutError:
            return BindReply(Status.RETRY, self._why_not_yet())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return BindReply(Status.RETRY, "the job has ended, or is asked for anew")
        except RefusedError as error:
            return BindReply(Status.REFUSED, error.detail)
        nodes = expand_hosts(job.nodes) if job.nodes_whole else (request.node,)
        meeting = Rendezvous(nodes[0], PORT_FIRST + job.job_id % PORTS)
        return reply_for(binding, meeting, self._settings.folder)

    def _why_not_yet(self) -> str:
        if self._offers.refused:
            return f"the controller serves another Slurm: {self._offers.refused}"
        if not self._claims_known.is_set() or not self._offers.accepted.is_set():
            return "the controller does not answer the agent"
        if self._listed_at is None or _now() - self._listed_at > HELD_S:
            return "Slurm does not answer the agent"
        return "the partition is not ready yet"

    async def _find(self, request: BindRequest) -> JobRecord | None:
        """The running job that a node asks for; None: Slurm, asked after the node asked us, knows no such job.

        One that is ending is none: requeued, it would get the claim of its next start. What a node says of the restarts
        is no proof, for the user may have had a say in it; that it does not fit is a reason to ask Slurm.
        """
        begun = _now()
        while True:
            job = self._jobs.get(request.job)
            seen = self._listed_at
            late_s = begun - seen if seen is not None else math.inf  # by how much the question came after the list
            if job is not None and _may_ask(job, request):
                if late_s <= 0 or (late_s <= FRESH_S and job.restarts == request.restart):
                    return job
            elif late_s <= 0:
                return None
            self._look.set()
            async with self._listed:
                await self._listed.wait_for(lambda: self._listed_at != seen)  # noqa: B023 - used before it changes


def _may_ask(job: JobRecord, request: BindRequest) -> bool:
    here = not job.nodes_whole or request.node in expand_hosts(job.nodes)
    return job.order is not None and uses_licenses(job) and here


def _now() -> float:
    return asyncio.get_running_loop().time()
