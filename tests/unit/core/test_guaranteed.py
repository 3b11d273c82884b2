"""Guarantees while a pass uses them up."""

from __future__ import annotations

from moorings.core.model.inputs import SetProject
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.topology import Block
from tests.unit.core.worlds import POD, World, drafted


def guaranteed(*blocks: tuple[int, int]) -> World:
    world = World(POD)
    world.step(SetProject(Project(name="lab", shares=(ProjectShare(POD.name, blocks),)), None))
    return world


def test_a_claim_is_within_a_guarantee_until_that_is_used() -> None:
    world = guaranteed((8, 1))
    first, second = (world.pending(8, project="lab") for _ in range(2))
    with drafted(world) as draft:
        state = draft.snapshot.pools[POD.name]
        assert draft.guarantees.is_within(first, POD.name)
        assert draft.guarantees.is_within(second, POD.name)
        place = draft.guarantees.find_free_place(first, state)
        assert place is not None
        draft.grant(first, state, place.block, place)
        assert not draft.guarantees.is_within(second, POD.name)
        assert draft.plan().grants[0].cell == place.cell == Block(range(8))


def test_a_borrower_that_cannot_be_preempted_leaves_room_for_guarantees() -> None:
    world = guaranteed((8, 1))
    firm, lent = world.pending(8), world.pending(8, preemptible=True)
    with drafted(world) as draft:
        state = draft.snapshot.pools[POD.name]
        assert draft.guarantees.may_borrow(firm, POD.name, Block(range(8)))
        draft.grant(firm, state, Block(range(8)))
        rest = Block(range(8, 16))
        assert draft.guarantees.may_borrow(lent, POD.name, rest)
        assert not draft.guarantees.may_borrow(firm, POD.name, rest)
        assert not draft.guarantees.could_borrow(firm, POD.name, rest)
        assert draft.guarantees.could_borrow(firm, POD.name, Block(range(8))), "once its holder has left"
