"""One started job on its way to its partition: claim, wait until it may be used, fetch the binding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from moorings.core.bindings import Binding, GcdBinding
from moorings.core.devices import DeviceId
from moorings.core.errors import MooringsError
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.ledger import Start, request_for
from moorings.wire.shapes import BindingBody, ClaimBody

log = logging.getLogger("moorings.slurm.agent")

HELD_S = 15.0  # for so long one call waits for the partition
PAUSE_S = 0.5
HOLDS = ("READY", "RECLAIMING", "MIGRATING")
WAITS = ("PENDING", "GRANTED")


class RefusedError(MooringsError):
    """The job gets no partition; the message is for its user."""


@dataclass(slots=True)
class Berth:
    """A start and what is known of its claim.

    Attributes:
        job: as Slurm had it when it started.
        work: gives the binding; kept, so that every step of the job is answered from it.
    """

    job: JobRecord
    work: asyncio.Task[Binding]


@dataclass(slots=True)
class Berths:
    """The starts that this agent serves, by the owner of their claim.

    Args:
        calls: to the controller.
        cluster: of the jobs.
        pool: to place them in; empty: the controller chooses.
        patience_s: how long a start may wait for its partition.
        give_up: what is done with a job that has waited in vain.
    """

    calls: Calls
    cluster: str
    pool: str
    patience_s: float
    give_up: Callable[[JobRecord, str], Awaitable[None]]
    known: dict[str, Berth] = field(default_factory=dict)
    claims: dict[str, ClaimBody] = field(default_factory=dict)  # unended, as last seen

    def serve(self, job: JobRecord) -> asyncio.Task[Binding]:
        """The binding of a start, when there is one; asked twice, it is worked for once.

        The task raises RefusedError.
        """
        assert job.order is not None
        owner = Start.of(job, job.order).owner(self.cluster)
        berth = self.known.get(owner)
        if berth is None:
            berth = self.known[owner] = Berth(job, asyncio.ensure_future(self._work(owner, job)))
            berth.work.add_done_callback(_seen)
        return berth.work

    def forget(self, owner: str) -> None:
        """Its start is over: nothing is asked for it any more."""
        berth = self.known.pop(owner, None)
        if berth is not None:
            berth.work.cancel()

    async def _work(self, owner: str, job: JobRecord) -> Binding:
        until = asyncio.get_running_loop().time() + self.patience_s
        long_name = False
        why = "the controller did not answer"
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                claim = await self._claim(owner, job, long_name, min(HELD_S, left))
                self.claims[owner] = claim
                if claim.state in HOLDS:
                    body = await self.calls(lambda client, ident=claim.id: client.binding(ident))  # type: ignore[misc]
                    log.info("start.served", extra={"owner": owner, "partition": claim.partition})
                    return binding_of(body)
                why = claim.reason.message if claim.reason is not None else f"its claim is {claim.state}"
                if claim.state not in WAITS:
                    raise RefusedError("claim.not_ready", f"no partition for this job: {why}")
            except MooringsError as error:
                if isinstance(error, RefusedError):
                    raise
                if error.code == "claim.name_taken" and not long_name:
                    long_name = True  # an older job of this id is not gone yet, or another cluster has one
                    continue
                if not error.retryable:
                    raise RefusedError(
                        error.code, f"no partition for this job: {error.detail}", hint=error.hint
                    ) from error
                why = error.detail
                await asyncio.sleep(PAUSE_S)
        message = f"no partition within {self.patience_s:g} s: {why}"
        log.warning("start.given_up", extra={"owner": owner, "detail": message})
        await self.give_up(job, message)
        raise RefusedError("wait.timeout", message)

    async def _claim(self, owner: str, job: JobRecord, long_name: bool, wait_s: float) -> ClaimBody:
        assert job.order is not None
        known = self.claims.get(owner)
        if known is not None:  # made before this agent was started, say: the job's limit may have been changed since
            return await self.calls(lambda client: client.claim(known.id, wait_s=wait_s, until="READY"), waits=True)
        key = Start.of(job, job.order).key(self.cluster) + ("/long" if long_name else "")
        request = request_for(job, self.cluster, self.pool, long_name=long_name)
        return await self.calls(lambda client: client.create_claim(request, key, wait_s=wait_s), waits=True)


def binding_of(body: BindingBody) -> Binding:
    """A binding as the controller told it."""
    gcds = tuple(
        GcdBinding(gcd.gcd, tuple(map(DeviceId, gcd.devices)), gcd.file_name, gcd.file_text, gcd.environment)
        for gcd in body.gcds
    )
    return Binding(body.partition, body.api, gcds)


def _seen(work: asyncio.Task[Binding]) -> None:
    """Take note of how it ended: no step may ever ask for it."""
    if not work.cancelled():
        work.exception()
