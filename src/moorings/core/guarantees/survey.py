"""Survey, the first stage of a plan: what projects hold, where their guaranteed blocks lie, and who enters a free one.

A borrower whose block lies in an unused guaranteed block of its project enters that: it keeps its devices, and no
longer counts as a borrower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from moorings.core.guarantees.guarantee_map import GuaranteeMap, UsableGuarantees, build_pool_guarantees
from moorings.core.guarantees.project_limits import ProjectLimits
from moorings.core.model.claims import ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Projects
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.core.placement.plans import Holder, SchedulingSnapshot


@dataclass(slots=True)
class Holdings:
    """What is held before the first claim is visited; empty without projects.

    Attributes:
        projects: all projects.
        limits: what projects and their users hold.
        maps: the guaranteed blocks of each pool with guarantees.
        holders: the holders in these pools, with the guaranteed blocks that they are in now.
        everywhere: the holders in all pools.
        entered: claims that enter a guaranteed block, or (None) leave one that their project no longer owns.
    """

    projects: Projects
    limits: ProjectLimits
    maps: dict[PoolName, GuaranteeMap] = field(default_factory=dict)
    holders: dict[PoolName, dict[ClaimId, Holder]] = field(default_factory=dict)
    everywhere: list[Holder] = field(default_factory=list)
    entered: list[tuple[ClaimId, Block | None]] = field(default_factory=list)

    def usable(self, project: str, pool: PoolName, size: int) -> UsableGuarantees:
        """The guaranteed blocks that a claim of so many devices may use under its project's limits."""
        return self.limits.usable_guarantees(project, size, self.projects.usable_guarantees(project, pool))


def survey_holders(snapshot: SchedulingSnapshot, policy: Policy, now: Timestamp) -> Holdings:
    """Count what is held, find the guaranteed blocks, and let borrowers enter free ones.

    Args:
        snapshot: the input of the plan.
        policy: gives the time after which no priority passes a holder.
        now: the turn's time.
    """
    projects = snapshot.projects
    found = Holdings(projects, ProjectLimits(projects))
    if not projects:
        return found
    by_pool: dict[PoolName, list[Holder]] = {}
    moving = {claim.id for claim in snapshot.moving_claims}
    for holder in (one.with_ageing_protection(policy.ageing_s) for one in snapshot.holders()):
        by_pool.setdefault(holder.pool, []).append(holder)
        found.limits.add_held(holder.project, holder.subject, len(holder.block))
        if holder.is_leaving and holder.claim not in moving:
            found.limits.add_leaving(holder)
    for name, state in snapshot.pools.items():
        holders = by_pool.get(name, [])
        blocks = build_pool_guarantees(projects, state, holders)
        if blocks is not None:
            found.maps[name] = blocks
            holders = [
                replace(one, guaranteed_block=None) if one.claim in blocks.uncovered_claims else one for one in holders
            ]
            # A cell that is no longer owed has no owner: else its claims would count for its next owner.
            found.entered += [(ident, None) for ident in sorted(blocks.uncovered_claims)]
        for holder in holders:
            if holder.is_firm:
                found.limits.add_firm(
                    holder.project, len(holder.block), blocks.devices_by_project(holder) if blocks else {}
                )
        if blocks is not None:
            found.holders[name] = {one.claim: one for one in holders}
            _enter_free_blocks(found, name, blocks, now)
            holders = list(found.holders[name].values())
        found.everywhere += holders
    return found


def _enter_free_blocks(found: Holdings, pool: PoolName, blocks: GuaranteeMap, now: Timestamp) -> None:
    """Let the borrowers of a pool enter free guaranteed blocks, the highest priority first."""
    holders = found.holders[pool]
    borrowers = [one for one in holders.values() if not one.is_firm and not one.is_leaving]
    for holder in sorted(borrowers, key=lambda one: (-one.priority, one.ready_at or now, one.claim)):
        place = blocks.find_placement(found.usable(holder.project, pool, len(holder.block)), holder.block)
        if place is not None:
            settled = holders[holder.claim] = replace(holder, guaranteed_block=place.cell)
            blocks.bind_holder(place, settled)
            found.limits.add_firm(holder.project, len(holder.block), blocks.devices_by_project(settled))
            found.entered.append((holder.claim, place.cell))
