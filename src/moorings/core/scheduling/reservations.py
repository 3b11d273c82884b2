"""Reservations, a stage of a plan: the block that is reserved for the first claim of a pool that must wait (law 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moorings.core.model.claims import Claim
from moorings.core.model.devices import PoolName
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block, PowerOfTwo
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import NO_RELEASE, OUT_OF_SERVICE
from moorings.core.placement.release_times import FREE, EarliestBlock
from moorings.core.scheduling.backfill import reserve_device_count
from moorings.core.scheduling.draft import NO_BLOCK, PlanDraft
from moorings.core.scheduling.moves import may_be_passed


@dataclass(frozen=True, slots=True)
class ReservableBlock:
    """A choice: a block (empty: so many devices, ``spare`` of them left over) in a pool, and when it is empty."""

    state: PoolState
    block: Block
    until: Timestamp
    spare: int | None


class ReservableBlockSearch:
    """The search of one pass over the queue; it remembers the sizes of which no block will be empty."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft = draft
        self._hopeless: set[tuple[PoolName, int]] = set()

    def is_closed(self, pool: PoolName, size: int) -> bool:
        """Whether a pool can reserve nothing more for a size: it has a reservation, or no block would empty."""
        return (pool, size > 0) in self._draft.reserved or (pool, size) in self._hopeless

    def find(self, claim: Claim, pools: Iterable[PoolState]) -> ReservableBlock | None:
        """The block that is empty soonest, in a pool without a reservation; None: there is none.

        A claim without devices reserves only resources: it must not take the place of one that waits for a block.
        """
        best: tuple[Timestamp, int, ReservableBlock] | None = None
        for state in pools:
            found = self._find_in(claim, state)
            if found is not None and (best is None or found[:2] < best[:2]):
                best = found
        return None if best is None else best[2]

    def _find_in(self, claim: Claim, state: PoolState) -> tuple[Timestamp, int, ReservableBlock] | None:
        draft, name, size = self._draft, state.pool.name, claim.spec.size
        if state.unreachable_reason or self.is_closed(name, size):
            return None
        found: EarliestBlock | None = (
            draft.release_times(name).earliest_block(size) if size else (NO_BLOCK, NO_RELEASE, 0)
        )
        if found is None or found[1] >= OUT_OF_SERVICE:
            self._hopeless.add((name, size))
            return None
        block, until, held = found
        if size and not draft.guarantees.could_borrow(claim, name, block):
            return None  # a guarantee would bar it when the block is empty, and no other claim could use the block
        spare = None
        snapshot = draft.snapshot
        moving = any(one.kept is not None and one.kept.pool == name for one in snapshot.moving_claims)
        if size and not moving and may_be_passed(draft, claim, state):
            block = NO_BLOCK
        elif size and name in snapshot.movable_pools and isinstance(state.pool.topology, PowerOfTwo):
            block, until, spare = reserve_device_count(draft.release_times(name), size, block, until, draft.now)
        return until, held, ReservableBlock(state, block, Timestamp(0) if until == FREE else until, spare)
