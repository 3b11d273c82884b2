"""A started job's way to its partition: claim, wait until it is usable, fetch the binding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from moorings.client.requests import ClaimFilter
from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.claims import USABLE
from moorings.core.model.devices import DeviceId
from moorings.core.model.errors import MooringsError
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.job_table import ClusterIdentity, JobStart, has_ended, request_for, start_of
from moorings.wire.shapes import BindingBody, ClaimBody

log = logging.getLogger("moorings.slurm.agent")

HELD_S = 15.0  # the longest wait of one call
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
        home: the jobs' cluster.
        pool: for the jobs; empty: the controller chooses.
        patience_s: how long a start may wait for its partition.
        give_up: ends a job that has waited too long; false: that failed, and the job keeps waiting.
        on_settled: called whenever the outcome of a start's claim is known.

    Attributes:
        bindings: the tasks that return the binding of a start; kept to answer every step of the job.
        claims: the claims that have not ended, as last listed.
        settled_at: when a start got its claim, or its final refusal; by the loop's clock.
        is_private: whether claims must not name their users: so it is until Slurm's ``PrivateData`` is known.
    """

    calls: ControllerClient
    home: ClusterIdentity
    pool: str
    patience_s: float
    give_up: Callable[[JobRecord, str], Awaitable[bool]]
    on_settled: Callable[[], None]
    bindings: dict[str, asyncio.Task[Binding]] = field(default_factory=dict)
    claims: dict[str, ClaimBody] = field(default_factory=dict)
    settled_at: dict[str, float] = field(default_factory=dict)
    is_private: bool = True

    def get_binding(self, job: JobRecord) -> asyncio.Task[Binding]:
        """Return the task that gets the binding of a start; a second call returns the same task.

        The task raises NoPartitionError.
        """
        assert job.order is not None
        owner = JobStart.of(job, job.order).owner(self.home)
        work = self.bindings.get(owner)
        if work is None or (_failed(work) and self._holds_partition(owner)):
            work = self.bindings[owner] = asyncio.ensure_future(self._work(owner, job))
            work.add_done_callback(_consume_result)
        return work

    def forget(self, owner: str) -> None:
        """Forget a start that has ended; stop all work for it."""
        self.settled_at.pop(owner, None)
        work = self.bindings.pop(owner, None)
        if work is not None:
            work.cancel()

    def forget_finished(self, jobs: Mapping[int, JobRecord]) -> None:
        """Forget the starts that have ended by a complete listing: they may have no claim to release."""
        for owner in [*self.bindings, *(self.settled_at.keys() - self.bindings.keys())]:
            start = start_of(owner)
            if start is None:
                continue
            done = owner not in self.bindings or self.bindings[owner].done()
            missing = start.job_id not in jobs and done and owner not in self.claims  # one bad listing stops no work
            if missing or has_ended(start, jobs):
                self.forget(owner)

    def update(self, claim: ClaimBody) -> None:
        """Record a claim as it is now. A binding is valid as long as its claim holds the partition."""
        self.claims[claim.owner] = claim
        if claim.state not in USABLE:
            self._unbind(claim.owner)
        self._settle(claim.owner)

    def remove(self, owner: str) -> None:
        """Remove a claim that has ended."""
        self.claims.pop(owner, None)
        self._unbind(owner)

    def _unbind(self, owner: str) -> None:
        work = self.bindings.get(owner)
        if work is not None and work.done() and not work.cancelled() and work.exception() is None:
            del self.bindings[owner]  # the next step gets a new answer

    def _settle(self, owner: str) -> None:
        if owner not in self.settled_at:
            self.settled_at[owner] = _now()
            self.on_settled()

    async def _work(self, owner: str, job: JobRecord) -> Binding:
        patience_s = self.patience_s
        while True:
            binding, why = await self._bind_until(owner, job, patience_s)
            if binding is not None:
                return binding
            if self._holds_partition(
                owner
            ):  # law 3: its processes may have run for days, and this may be one more step
                log.warning("binding.awaited", extra={"owner": owner, "detail": why})
                patience_s = AGAIN_S
                continue
            message = f"no partition within {self.patience_s:g} s: {why}"
            self._settle(owner)
            if await self.give_up(job, message):  # first, or our refusal would end the job
                log.warning("start.given_up", extra={"owner": owner, "detail": message})
                raise NoPartitionError("wait.timeout", message)
            patience_s = AGAIN_S

    def _holds_partition(self, owner: str) -> bool:
        claim = self.claims.get(owner)
        return claim is not None and claim.state in USABLE

    async def _bind_until(self, owner: str, job: JobRecord, patience_s: float) -> tuple[Binding | None, str]:
        """Return the binding; after the timeout none, and why."""
        until = _now() + patience_s
        long_name = False
        pause_s = PAUSE_S
        why = "the controller did not answer"
        while (left := until - _now()) > 0:
            body = None
            try:
                # Create it without a wait: the agent must know the claim to count it and to release it.
                claim = self.claims.get(owner) or await self._create_claim(owner, job, long_name)
                if claim.state in WAITING_STATES:
                    body, claim = await self._await_binding(claim, min(HELD_S, left))
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
                    long_name = True  # an older job of this id still has the name, or another cluster's
                    continue
                if not error.retryable and not error.code.startswith("auth."):  # the key's errors are not the job's
                    self._settle(owner)
                    message = f"no partition for this job: {error.detail}"
                    raise NoPartitionError(error.code, message, hint=error.hint) from error
                why = error.detail
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        return None, why

    async def _create_claim(self, owner: str, job: JobRecord, long_name: bool) -> ClaimBody:
        """Return the claim of a start; a retry, also after a lost answer, returns the same claim.

        A slurmctld that was killed restarts a job that ended after its last save, and counts no restart. A claim that
        an agent released for the earlier run is not the claim of this one.
        """
        assert job.order is not None
        first = JobStart.of(job, job.order).idempotency_key(self.home) + ("/long" if long_name else "")
        request = request_for(job, self.home, self.pool, long_name=long_name, is_private=self.is_private)

        async def make(key: str) -> ClaimBody:
            nonlocal request
            try:
                return await self.calls(lambda client: client.create_claim(request, key))
            except MooringsError as error:
                if error.code == "body.invalid" and request.person is not None:
                    request = replace(request, person=None)  # a controller of an earlier release does not know it
                    return await make(key)
                if error.code != "key.conflict":
                    raise
                # The job's time limit changed: by an admin, or by 26.05, which runs it again.
                made = await self.calls(lambda client: client.list_claims(ClaimFilter(owner_prefix=owner, all=True)))
                if not made:
                    raise
                return made[-1]

        claim = await make(first)
        while released_by_agent(claim):
            claim = await make(f"{first}/{claim.id}")
        self._store(claim)
        self._settle(owner)
        return claim

    async def _await_binding(self, claim: ClaimBody, wait_s: float) -> tuple[BindingBody | None, ClaimBody]:
        """Return the binding of a waiting claim, from one long call, or none after the timeout; and the claim then."""
        body, refusal = None, None
        if self.calls.is_full:
            await asyncio.sleep(PAUSE_S_MAX)
        else:
            try:
                body = await self.calls(lambda client: client.binding(claim.id, wait_s=wait_s), waits=True)
            except MooringsError as error:
                if error.code == "controller.unreachable":
                    raise  # else the claim is read: it may hold its partition by now
                refusal = error
        if body is not None:
            found = replace(claim, state="READY", position=None, reason=None)
        else:
            found = await self.calls(lambda client: client.get_claim(claim.id))
        self._store(found)
        if refusal is not None and refusal.code != NOT_READY:
            raise refusal  # the next try must not follow at once
        return body, found

    def _store(self, claim: ClaimBody) -> None:
        if claim.state in ENDED_STATES:
            self.claims.pop(claim.owner, None)
        else:
            self.claims[claim.owner] = claim


def released_by_agent(claim: ClaimBody) -> bool:
    """Whether the creator of a claim also released it; a claim that an admin ended stays ended."""
    return (
        claim.state in ENDED_STATES
        and claim.reason is not None
        and claim.reason.message == f"released by {claim.subject}"
    )


def binding_of(body: BindingBody) -> Binding:
    """Return a binding from the controller's body."""
    gcds = tuple(
        GcdBinding(gcd.gcd, tuple(map(DeviceId, gcd.devices)), gcd.file_name, gcd.file_text, gcd.environment)
        for gcd in body.gcds
    )
    return Binding(body.partition, body.api, gcds)


def _failed(work: asyncio.Task[Binding]) -> bool:
    return work.done() and (work.cancelled() or work.exception() is not None)


def _consume_result(work: asyncio.Task[Binding]) -> None:
    """Retrieve the result: it may happen that no step ever asks for it."""
    if not work.cancelled():
        work.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
