"""Guarantees, a stage of a plan: which claims are within a guarantee, and which free block that gives them.

``GuaranteeUse`` follows the pass: each grant uses up part of a guarantee, so a claim may be within one only until an
earlier claim has been served.
"""

from __future__ import annotations

from dataclasses import replace

from moorings.core.guarantees.guarantee_map import GuaranteedPlacement
from moorings.core.guarantees.survey import Holdings
from moorings.core.model.claims import Claim
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import Policy
from moorings.core.model.topology import Block
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.plans import holder_from_claim


class GuaranteeUse:
    """The guaranteed blocks of all pools while a pass over the queue uses them up.

    Attributes:
        survey: what is held, kept up to date with the grants of the pass.
    """

    def __init__(self, survey: Holdings, policy: Policy) -> None:
        self.survey = survey
        self._preempts = policy.preempt
        self._within: dict[tuple[PoolName, str, int, int], bool] = {}
        self._filled: set[tuple[PoolName, str, int]] = set()  # requests without a free place within their guarantee

    def is_within(self, claim: Claim, pool: PoolName) -> bool:
        """Whether a claim is within its project's guarantee in a pool."""
        spec, blocks = claim.spec, self.survey.maps.get(pool)
        if blocks is None or not spec.size:
            return False
        key = (pool, spec.project, spec.size, spec.priority)
        known = self._within.get(key)
        if known is None:
            usable = self.survey.usable(spec.project, pool, spec.size)
            known = self._within[key] = blocks.is_within(usable, spec.size, self.preemptible_below(claim))
        return known

    def preemptible_below(self, claim: Claim) -> int | None:
        """Claims of its own project with a priority below this may be preempted for it; None: none."""
        return claim.spec.priority if self._preempts else None

    def find_free_place(self, claim: Claim, state: PoolState) -> GuaranteedPlacement | None:
        """A free block within its project's guarantee; None: there is none."""
        spec, name = claim.spec, state.pool.name
        request = (name, spec.project, spec.size)
        if state.free.n_free < spec.size or request in self._filled:
            return None
        usable = self.survey.usable(spec.project, name, spec.size)
        for place in self.survey.maps[name].iter_placements(usable, spec.size, None):
            block = place.block if len(place.block) else state.free.find_block(spec.size)
            if block is not None and state.free.is_free(block):
                return replace(place, block=block)
        self._filled.add(request)
        return None

    def may_borrow(self, claim: Claim, pool: PoolName, block: Block) -> bool:
        """The lending check: a claim that cannot be preempted must leave room for every guarantee."""
        blocks = self.survey.maps.get(pool)
        return blocks is None or claim.spec.preemptible or blocks.passes_lending_check(block)

    def could_borrow(self, claim: Claim, pool: PoolName, block: Block) -> bool:
        """The lending check for a block once all its holders, and no others, have left."""
        blocks = self.survey.maps.get(pool)
        return blocks is None or claim.spec.preemptible or blocks.passes_lending_check_when_empty(block)

    def record(self, claim: Claim, pool: PoolName, block: Block, place: GuaranteedPlacement | None) -> Block | None:
        """Count a block as its project's; returns the guaranteed block around it, if any.

        Args:
            claim: the claim that gets the block, now or when its holders have left.
            pool: the pool.
            block: the block.
            place: its place within a guarantee; None: the claim borrows it.
        """
        if not self.survey.projects:
            return None
        project, limits = claim.spec.project, self.survey.limits
        limits.add_held(project, claim.user, len(block))
        blocks = self.survey.maps.get(pool)
        if place is None or blocks is None:
            if not claim.spec.preemptible:
                limits.add_firm(project, len(block))
                if blocks is not None:
                    blocks.add_firm_borrower(block)
                self._forget_within()
            return None
        cell = place.cell if len(place.cell) else block
        holder = replace(holder_from_claim(claim, pool, block), guaranteed_block=cell)
        blocks.bind_holder(GuaranteedPlacement(place.owner, cell, block), holder)
        limits.add_firm(project, len(block), blocks.devices_by_project(holder))
        self._forget_within()
        return cell

    def _forget_within(self) -> None:
        """Part of a guarantee is used: claims outside one stay outside; those within one are checked again."""
        self._within = {key: known for key, known in self._within.items() if not known}
