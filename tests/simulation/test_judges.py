"""The judges judge: what is no crime breaks no law, and what is one does; fed with what the real core decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.controller.turn import TurnOutcome
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.events import Event
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Pool
from moorings.core.placement.fleet import FleetChanges
from moorings.ports.store import Changes, ExpectedVersion
from moorings.testing.simulation.committed_state import CommittedState
from moorings.testing.simulation.episode_log import EpisodeLog
from moorings.testing.simulation.guarantee_checker import GuaranteeChecker
from moorings.testing.simulation.virtual_time import SteadyClock, VirtualLoop
from tests.unit.core.worlds import POD, World

HGX = Pool(PoolName("hgx"), "gpu", "simulated", AnySubset(6, 6))


class Court(World):
    """A fleet whose turns the judge of guarantees looks at."""

    def __init__(self) -> None:
        super().__init__(HGX, POD)
        loop = VirtualLoop()
        self.story = EpisodeLog(loop.time)
        self.ledger = CommittedState(self.story)
        clock = SteadyClock(loop)
        self.judge = GuaranteeChecker(self.story, self.ledger, [HGX, POD], self.policy, clock, clock)
        loop.close()

    def promise(self, name: str, devices: int | None) -> None:
        """An admin promises a project so many devices, under its first version; None: the project goes."""
        self.ledger.projects.pop(name, None)
        if devices is not None:
            self.ledger.projects[name] = Project(name=name, shares=(ProjectShare(HGX.name, ((1, devices),)),))
        self.looks()

    def looks(self) -> None:
        self.ledger.claims = dict(self.fleet.claims)
        self.ledger.partitions = dict(self.fleet.partitions)
        self.judge.on_decision(self.fleet, TurnOutcome(changes=None, fleet=FleetChanges()))  # type: ignore[arg-type]

    def asks_back(self, claim: Claim, by: Claim) -> None:
        """A commit by which one is asked to yield to another."""
        asked = replace(claim, state=ClaimState.RECLAIMING, reason=Reason("claim.reclaiming", "", (by.id,)))
        event = Event(name="claim.reclaiming", at=add_seconds(self.now, 3_600), claim=claim.id)
        self.ledger.claims |= {one.id: one for one in (asked, by)}
        self.judge.on_commit(Changes(claims=[(asked, ExpectedVersion(1))], events=[event]))

    def takes(self, size: int) -> Claim:
        """A claim that is not preemptible gets so many: no project in this fleet prevents it."""
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


@pytest.mark.parametrize("limit", [None, 8])
def test_who_yields_for_what_is_guaranteed_elsewhere_is_under_a_limit_of_both(limit: int | None) -> None:
    """Without one nothing comes of it; with one what is held in any pool stands in the way."""
    court = Court()
    court.promise("ops", 5)
    court.ledger.projects["ops"] = replace(court.ledger.projects["ops"], devices_max=limit)
    spec = ClaimSpec(kind="ipu", size=2, project="ops", preemptible=True)
    claim = replace(court.create(2), spec=spec, state=ClaimState.READY, pool=POD.name)
    claim = replace(claim, ready_at=Timestamp(0))
    wanted = replace(claim, id=ClaimId("c2"), spec=replace(spec, kind="gpu", size=5), state=ClaimState.PENDING)
    court.asks_back(claim, wanted)
    assert (court.story.broken is None) == (limit is not None)
