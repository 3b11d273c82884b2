"""One started job on its way to its partition: claim, wait until it may be used, fetch the binding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from moorings.client.requests import ClaimFilter
from moorings.core.bindings import Binding, GcdBinding
from moorings.core.claims import USABLE
from moorings.core.devices import DeviceId
from moorings.core.errors import MooringsError
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.calls import ControllerClient
from moorings.slurm.host.ledger import ClusterIdentity, JobStart, has_ended, request_for, start_of
from moorings.wire.shapes import BindingBody, ClaimBody

log = logging.getLogger("moorings.slurm.agent")

HELD_S = 15.0  # for so long one call waits for the partition
PAUSE_S, PAUSE_S_MAX = 0.25, 2.0
AGAIN_S = 5.0  # between two tries to give a job up
WAITING_STATES = ("PENDING", "GRANTED")
NOT_READY = "claim.not_ready"
ENDED_STATES = ("RELEASING", "RELEASED", "CANCELLED", "FAILED")


class NoPartitionError(MooringsError):
    """The job gets no partition; the message is for its user."""


@dataclass(slots=True)
class ClaimTable:
    """The starts that this agent serves, by the owner of their claim.

    Args:
        calls: to the controller.
        home: of the jobs.
        pool: to place them in; empty: the controller chooses.
        patience_s: how long a start may wait for its partition.
        give_up: what is done with a job that has waited in vain; false: it could not be done, and the job waits on.
        settled: told whenever it is known what became of a start's claim.

    Attributes:
        known: what gives the binding of a start; kept, so that every step of the job is answered from it.
        claims: the unended claims, as last seen.
        settled_at: since when a start has its claim, or is known to get none; by the loop's clock.
    """

    calls: ControllerClient
    home: ClusterIdentity
    pool: str
    patience_s: float
    give_up: Callable[[JobRecord, str], Awaitable[bool]]
    settled: Callable[[], None]
    known: dict[str, asyncio.Task[Binding]] = field(default_factory=dict)
    claims: dict[str, ClaimBody] = field(default_factory=dict)
    settled_at: dict[str, float] = field(default_factory=dict)

    def serve(self, job: JobRecord) -> asyncio.Task[Binding]:
        """The binding of a start, when there is one; asked twice, it is worked for once.

        The task raises RefusedError.
        """
        assert job.order is not None
        owner = JobStart.of(job, job.order).owner(self.home)
        work = self.known.get(owner)
        if work is None or (_failed(work) and self._holds(owner)):
            work = self.known[owner] = asyncio.ensure_future(self._work(owner, job))
            work.add_done_callback(_consume_result)
        return work

    def forget(self, owner: str) -> None:
        """Its start is over: nothing is asked for it any more."""
        self.settled_at.pop(owner, None)
        work = self.known.pop(owner, None)
        if work is not None:
            work.cancel()

    def tidy(self, jobs: Mapping[int, JobRecord]) -> None:
        """Forget what is over by a good listing: of a job that gets no partition there is no claim to release."""
        for owner in [*self.known, *(self.settled_at.keys() - self.known.keys())]:
            start = start_of(owner)
            if start is None:
                continue
            done = owner not in self.known or self.known[owner].done()
            missing = start.job_id not in jobs and done and owner not in self.claims  # one bad listing stops no work
            if missing or has_ended(start, jobs):
                self.forget(owner)

    def note(self, claim: ClaimBody) -> None:
        """Take in a claim as it is now. A binding is good as long as its claim holds the partition."""
        self.claims[claim.owner] = claim
        if claim.state not in USABLE:
            self._unbind(claim.owner)
        self._settle(claim.owner)

    def drop(self, owner: str) -> None:
        """A claim has ended."""
        self.claims.pop(owner, None)
        self._unbind(owner)

    def _unbind(self, owner: str) -> None:
        work = self.known.get(owner)
        if work is not None and work.done() and not work.cancelled() and work.exception() is None:
            del self.known[owner]  # the next step gets another answer

    def _settle(self, owner: str) -> None:
        if owner not in self.settled_at:
            self.settled_at[owner] = _now()
            self.settled()

    async def _work(self, owner: str, job: JobRecord) -> Binding:
        patience_s = self.patience_s
        while True:
            binding, why = await self._try(owner, job, patience_s)
            if binding is not None:
                return binding
            if self._holds(owner):  # law 3: its processes may have run for days, and this be one more step of it
                log.warning("binding.awaited", extra={"owner": owner, "detail": why})
                patience_s = AGAIN_S
                continue
            message = f"no partition within {self.patience_s:g} s: {why}"
            self._settle(owner)
            if await self.give_up(job, message):  # first, or the job would end by our refusal
                log.warning("start.given_up", extra={"owner": owner, "detail": message})
                raise NoPartitionError("wait.timeout", message)
            patience_s = AGAIN_S

    def _holds(self, owner: str) -> bool:
        claim = self.claims.get(owner)
        return claim is not None and claim.state in USABLE

    async def _try(self, owner: str, job: JobRecord, patience_s: float) -> tuple[Binding | None, str]:
        """The binding; none if the time is over, and why."""
        until = _now() + patience_s
        long_name = False
        pause_s = PAUSE_S
        why = "the controller did not answer"
        while (left := until - _now()) > 0:
            body = None
            try:
                # Made by a call that does not wait: what is made must be known, to be counted and to be released.
                claim = self.claims.get(owner) or await self._make(owner, job, long_name)
                if claim.state in WAITING_STATES:
                    body, claim = await self._await(claim, min(HELD_S, left))
                elif claim.state in USABLE:
                    body = await self.calls(lambda client, ident=claim.id: client.binding(ident))  # type: ignore[misc]
                if body is not None:
                    log.info("start.served", extra={"owner": owner, "partition": body.partition})
                    return binding_of(body), ""
                if claim.state in USABLE:
                    continue
                why = claim.reason.message if claim.reason is not None else f"its claim is {claim.state}"
                if claim.state not in WAITING_STATES:
                    self._settle(owner)
                    raise NoPartitionError(NOT_READY, f"no partition for this job: {why}")
            except MooringsError as error:
                if isinstance(error, NoPartitionError):
                    raise
                if error.code == "claim.name_taken" and not long_name:
                    long_name = True  # an older job of this id is not gone yet, or another cluster has one
                    continue
                if not error.retryable and not error.code.startswith("auth."):  # of our key, not of the job
                    self._settle(owner)
                    told = f"no partition for this job: {error.detail}"
                    raise NoPartitionError(error.code, told, hint=error.hint) from error
                why = error.detail
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        return None, why

    async def _make(self, owner: str, job: JobRecord, long_name: bool) -> ClaimBody:
        """The claim of a start; asked again, and after a lost answer, it is the same one.

        A slurmctld that was killed starts a job again that has ended since its last save, and counts no restart: the
        claim that an agent released for it is not what this run asks for.
        """
        assert job.order is not None
        first = JobStart.of(job, job.order).key(self.home) + ("/long" if long_name else "")
        request = request_for(job, self.home, self.pool, long_name=long_name)

        async def make(key: str) -> ClaimBody:
            try:
                return await self.calls(lambda client: client.create_claim(request, key))
            except MooringsError as error:
                if error.code != "key.conflict":
                    raise
                # The job's time limit has changed since: by an admin, or as 26.05 does that runs it again.
                made = await self.calls(lambda client: client.claims(ClaimFilter(owner_prefix=owner, all=True)))
                if not made:
                    raise
                return made[-1]

        claim = await make(first)
        while released_by_agent(claim):
            claim = await make(f"{first}/{claim.id}")
        self._see(claim)
        self._settle(owner)
        return claim

    async def _await(self, claim: ClaimBody, wait_s: float) -> tuple[BindingBody | None, ClaimBody]:
        """The binding of a claim that waits, in one call with that wait; none if it is over. And the claim by then."""
        body, refusal = None, None
        if self.calls.full:
            await asyncio.sleep(PAUSE_S_MAX)
        else:
            try:
                body = await self.calls(lambda client: client.binding(claim.id, wait_s=wait_s), waits=True)
            except MooringsError as error:
                if error.code == "controller.unreachable":
                    raise  # else the claim is asked for, which may have come to hold its partition
                refusal = error
        if body is not None:
            found = replace(claim, state="READY", position=None, reason=None)
        else:
            found = await self.calls(lambda client: client.claim(claim.id))
        self._see(found)
        if refusal is not None and refusal.code != NOT_READY:
            raise refusal  # the next try must not come at once
        return body, found

    def _see(self, claim: ClaimBody) -> None:
        if claim.state in ENDED_STATES:
            self.claims.pop(claim.owner, None)
        else:
            self.claims[claim.owner] = claim


def released_by_agent(claim: ClaimBody) -> bool:
    """Whether who made a claim ended it, too; one that an admin ended stays ended."""
    return (
        claim.state in ENDED_STATES
        and claim.reason is not None
        and claim.reason.message == f"released by {claim.subject}"
    )


def binding_of(body: BindingBody) -> Binding:
    """A binding as the controller told it."""
    gcds = tuple(
        GcdBinding(gcd.gcd, tuple(map(DeviceId, gcd.devices)), gcd.file_name, gcd.file_text, gcd.environment)
        for gcd in body.gcds
    )
    return Binding(body.partition, body.api, gcds)


def _failed(work: asyncio.Task[Binding]) -> bool:
    return work.done() and (work.cancelled() or work.exception() is not None)


def _consume_result(work: asyncio.Task[Binding]) -> None:
    """Take note of how it ended: no step may ever ask for it."""
    if not work.cancelled():
        work.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
