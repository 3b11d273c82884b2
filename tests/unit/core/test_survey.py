"""The survey of a plan: what is held, and which borrowers enter guaranteed blocks of their projects."""

from __future__ import annotations

from moorings.core.model.projects import Project, Projects, ProjectShare
from moorings.core.model.topology import Block
from tests.unit.core.worlds import POD, World, drafted


def guaranteed(*blocks: tuple[int, int]) -> Projects:
    return Projects([Project(name="lab", shares=(ProjectShare(POD.name, blocks),))], [POD])


def test_a_borrower_enters_a_free_guaranteed_block_around_it() -> None:
    world = World(POD)
    inside = world.ready(4, project="lab", preemptible=True)
    outside = world.ready(4, project="other", preemptible=True)
    world.fleet.projects = guaranteed((4, 1))
    with drafted(world) as draft:
        survey = draft.guarantees.survey
        assert survey.entered == [(inside.id, Block(range(4)))]
        assert survey.holders[POD.name][inside.id].guaranteed_block == Block(range(4))
        assert survey.holders[POD.name][outside.id].guaranteed_block is None
        assert [one.claim for one in survey.everywhere] == [inside.id, outside.id]
        assert survey.maps[POD.name].passes_lending_check(Block(range(8, 16))), "the guarantee is in use"


def test_a_claim_leaves_a_block_that_its_project_no_longer_owns() -> None:
    world = World(POD)
    world.fleet.projects = guaranteed((8, 1))
    held = world.ready(4, project="lab", preemptible=True)
    assert held.cell == Block(range(8))
    world.fleet.projects = guaranteed((2, 1))
    with drafted(world) as draft:
        assert draft.guarantees.survey.entered == [(held.id, None)]
        assert draft.guarantees.survey.holders[POD.name][held.id].guaranteed_block is None


def test_without_projects_no_holder_is_looked_for() -> None:
    world = World(POD)
    world.ready(4)
    with drafted(world) as draft:
        assert (draft.guarantees.survey.everywhere, draft.guarantees.survey.maps) == ([], {})
