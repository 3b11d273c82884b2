"""For which claim others are moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.claims import CheckpointContract, Claim
from moorings.core.model.inputs import SetProject
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.topology import Block
from moorings.core.scheduling.moves import find_moves
from tests.unit.core.worlds import POD, World, drafted

MOVES = Policy(defragment=DefragmentMode.ON, move_s=1.0)


def scattered(policy: Policy, project: str = "") -> tuple[World, Claim, Claim]:
    """Two movable claims of four, one in each half of the pod."""
    world = World(POD, policy=policy)
    if project:
        world.step(SetProject(Project(name=project, shares=(ProjectShare(POD.name, ((4, 1),)),)), None))
    more = {"checkpoint": CheckpointContract(resumable=True), "project": project, "preemptible": True}
    one, gap, other = (world.ready(4, owner=f"local/{n}", **more) for n in range(3))
    world.end(gap)
    return world, one, other


@pytest.mark.parametrize(
    ("policy", "left", "moved"),
    [
        (MOVES, 9, True),
        (MOVES, 0, False),
        (replace(MOVES, defragment=DefragmentMode.OFF), 9, False),
        (replace(MOVES, defragment=DefragmentMode.SUGGEST), 0, True),  # a suggestion moves no claim
        (replace(MOVES, move_s=200_000.0), 9, False),  # dearer than the wait
    ],
)
def test_claims_are_moved_if_the_policy_allows_it_and_waiting_costs_more(
    policy: Policy, left: int, moved: bool
) -> None:
    world, _, other = scattered(policy)
    with drafted(world) as draft:
        found = find_moves(draft, world.pending(8), draft.snapshot.pools.values(), (), left)
        assert (found is not None) == moved
        if found is not None:
            relocation, _ = found
            assert len(relocation.block) == 8
            assert [(holder.claim, block) for holder, block in relocation.moves] == [(other.id, Block(range(4, 8)))]


def test_asked_holders_and_those_in_a_guaranteed_block_stay() -> None:
    world, one, other = scattered(MOVES, project="lab")
    with drafted(world) as draft:
        holders = draft.guarantees.survey.holders[POD.name]
        [inside] = [ident for ident, holder in holders.items() if holder.guaranteed_block is not None]
        [outside] = {one.id, other.id} - {inside}
        pools, wait = draft.snapshot.pools.values(), world.pending(8, preemptible=True)
        found = find_moves(draft, wait, pools, (), 9)
        assert found is not None
        assert [holder.claim for holder, _ in found[0].moves] == [outside]
        assert find_moves(draft, wait, pools, {outside}, 9) is None
        assert find_moves(draft, world.pending(8), pools, (), 9) is None, "only lent to claims that yield"
