"""Claims as callers see them: found by id or name, in their newest version, with the reason of their state."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from moorings.controller.loop import TurnLoop
from moorings.controller.reasons import ReasonService, partition_of
from moorings.controller.record_follower import RecordFollower
from moorings.controller.views import ClaimView
from moorings.core.model.access import Caller
from moorings.core.model.claims import Claim
from moorings.core.model.errors import MooringsError
from moorings.core.model.visibility import SEES_ALL, Visibility, visible_to
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

    def visible_to(self, caller: Caller) -> Visibility:
        """What a caller sees, with the projects as they are now."""
        return visible_to(caller, self._loop.fleet.projects)

    async def find(self, ident: str, visible: Visibility = SEES_ALL) -> Claim:
        """The claim with that id or name, if the caller sees it; its outline is found only by id.

        Raises:
            MooringsError: ``claim.unknown``: the same whether it does not exist or is not seen.
        """
        claim = self._loop.fleet.find_claim(ident)
        if claim is None or not visible.includes_claim(claim):
            claim = await asyncio.to_thread(self._store.get_claim, ident[:200], visible)
        if claim is None and visible.sees_outlines:
            claim = await asyncio.to_thread(self._store.get_claim, ident[:200])
            claim = claim if claim is not None and claim.id == ident else None
        if claim is None:
            raise _unknown(ident)
        return self.follower.newest_version(claim)

    async def find_again(self, claim: Claim) -> Claim:
        """A claim that a turn did not know, from the database: it has ended, or another controller made it.

        Raises:
            MooringsError: ``store.fenced``: another controller leads, and nothing was done for the caller here.
        """
        await self._loop.confirm_leadership()
        return await self.find(claim.id)

    def view(self, claim: Claim, visible: Visibility) -> ClaimView:
        """The claim with its partition, its position in the queue, and why it waits."""
        wait = self._reasons.explain_pending(claim, visible)
        reason = wait.reasons[0] if wait is not None else self._reasons.state_reason(claim, visible)
        partition = self._loop.fleet.partitions.get(partition_of(claim))
        outline = not visible.includes_claim(claim)
        position = wait.position if wait is not None else None
        return ClaimView(claim, partition, position, reason, is_outline=outline, shows_subject=visible.lists_people)

    async def wait_and_view(self, caller: Caller, claim: Claim, states: Container[object], wait_s: float) -> ClaimView:
        """The view of a claim once it is in one of ``states``, or as it is when the time is up.

        Raises:
            MooringsError: ``claim.unknown``: the caller does not see it any more.
        """
        if wait_s > 0:
            claim = await self.follower.wait_for(claim, states, wait_s)
        claim = self.follower.newest_version(claim)
        visible = self.visible_to(caller)
        if not visible.sees_outlines and not visible.includes_claim(claim):
            raise _unknown(claim.id)
        return self.view(claim, visible)


def _unknown(ident: str) -> MooringsError:
    return MooringsError("claim.unknown", f"there is no claim {ident[:80]!r}", hint="moor get claims --all")
