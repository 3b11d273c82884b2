"""The judges judge: what is no crime breaks no law, and what is one does; fed with what the real core decided."""

from __future__ import annotations

from moorings.controller.turns import Outcome
from moorings.core.claims import Claim
from moorings.core.devices import PoolName
from moorings.core.fleet import FleetChanges
from moorings.core.projects import Project, Share
from moorings.core.topology import AnySubset, Pool
from moorings.testing.simulation.guarantees import Guarantees
from moorings.testing.simulation.ledger import Ledger
from moorings.testing.simulation.story import Story
from moorings.testing.simulation.virtual import SteadyClock, VirtualLoop
from tests.unit.core.worlds import World

HGX = Pool(PoolName("hgx"), "gpu", "simulated", AnySubset(6, 6))


class Court(World):
    """A fleet whose turns the judge of guarantees looks at."""

    def __init__(self) -> None:
        super().__init__(HGX)
        loop = VirtualLoop()
        self.story = Story(loop.time)
        self.ledger = Ledger(self.story)
        clock = SteadyClock(loop)
        self.judge = Guarantees(self.story, self.ledger, [HGX], self.policy, clock, clock)
        loop.close()

    def promise(self, name: str, devices: int | None) -> None:
        """An admin promises a project so many devices, under its first version; None: the project goes."""
        self.ledger.projects.pop(name, None)
        if devices is not None:
            self.ledger.projects[name] = Project(name=name, shares=(Share(HGX.name, ((1, devices),)),))
        self.looks()

    def looks(self) -> None:
        self.ledger.claims = dict(self.fleet.claims)
        self.ledger.partitions = dict(self.fleet.partitions)
        self.judge.decided(self.fleet, Outcome(changes=None, fleet=FleetChanges()))  # type: ignore[arg-type]

    def takes(self, size: int) -> Claim:
        """Somebody who cannot be asked to yield gets so many, for no project stands against it in this fleet."""
        claim = self.ready(size, kind="gpu")
        self.looks()
        return claim


def test_what_is_lent_for_good_beside_a_promise_breaks_it() -> None:
    court = Court()
    court.promise("ops", 5)
    court.takes(3)
    assert court.story.broken is not None
    assert "do not fit" in court.story.broken.message


def test_a_project_that_is_made_anew_is_another_promise() -> None:
    """It has the name and the version of the one that was deleted; what it is promised need not have fitted before."""
    court = Court()
    court.promise("ops", 3)
    court.takes(3)
    court.promise("ops", 5)
    assert court.story.broken is None


def test_what_is_lent_while_nothing_is_promised_breaks_no_later_promise() -> None:
    court = Court()
    court.promise("ops", 5)
    court.promise("ops", None)
    court.takes(3)
    court.promise("ops", 5)
    assert court.story.broken is None
    court.takes(1)
    assert court.story.broken is None
