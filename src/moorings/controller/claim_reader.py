"""Claims as callers see them: found by id or name, in their newest version, with the reason of their state."""

from __future__ import annotations

import asyncio

from moorings.controller.loop import TurnLoop
from moorings.controller.reasons import ReasonService, partition_of
from moorings.controller.record_follower import RecordFollower
from moorings.controller.views import ClaimView
from moorings.core.model.claims import Claim
from moorings.core.model.errors import MooringsError
from moorings.ports.store import Store


class ClaimReader:
    """Reads claims from memory and, once they have ended, from the database."""

    def __init__(self, loop: TurnLoop, store: Store, reasons: ReasonService) -> None:
        self._loop = loop
        self._store = store
        self._reasons = reasons
        self.follower: RecordFollower[Claim] = RecordFollower(
            lambda claim: loop.fleet.claims.get(claim.id), store.get_claim
        )
        loop.subscribe(lambda change: self.follower.wake(change.claims, is_reload=change.is_reload))

    async def find(self, ident: str) -> Claim:
        """The claim with that id or name.

        Raises:
            MooringsError: ``claim.unknown``.
        """
        claim = self._loop.fleet.find_claim(ident)
        if claim is None:
            claim = await asyncio.to_thread(self._store.get_claim, ident[:200])
        if claim is None:
            raise MooringsError("claim.unknown", f"there is no claim {ident[:80]!r}", hint="moor get claims --all")
        return self.follower.newest_version(claim)

    async def find_again(self, claim: Claim) -> Claim:
        """A claim that a turn did not know, from the database: it has ended, or another controller made it.

        Raises:
            MooringsError: ``store.fenced``: another controller leads, and nothing was done for the caller here.
        """
        await self._loop.confirm_leadership()
        return await self.find(claim.id)

    def view(self, claim: Claim) -> ClaimView:
        """The claim with its partition, its position in the queue, and why it waits."""
        wait = self._reasons.explain_pending(claim)
        reason = wait.reasons[0] if wait is not None else self._reasons.driver_delay(claim) or claim.reason
        partition = self._loop.fleet.partitions.get(partition_of(claim))
        return ClaimView(claim, partition, wait.position if wait is not None else None, reason)
