"""For which jobs nothing is kept: what is known exactly, and what is learned by trying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.instants import SECOND, Instant
from moorings.slurm.formats import JobRecord, License
from moorings.slurm.host.ledger import Start, announce
from moorings.slurm.host.withheld import (
    PAUSE_MAX_S,
    PAUSE_S,
    REFUSED_S,
    UNSEEN_S,
    Queue,
    Standing,
    follow,
    on_trial,
    open_for,
    whys,
)
from moorings.slurm.needs import JobNeeds, Needs
from tests.unit.slurm.test_ledger import HOME, NONCE, a_job, by_id

NOW = Instant(1_795_400_000 * SECOND)
LICENSES = {"ipu_1": License(4, 0, 4), "ipu_2": License(4, 0, 4), "ipu_4": License(4, 0, 4)}
OPEN = dict.fromkeys(LICENSES, 0)
OFFERED = frozenset({Start(1, NONCE, 0).owner(HOME)})
TAKEN: dict[str, Any] = {"licenses": {"ipu": 4, "matlab": 2}}


def owner(job_id: int) -> str:
    return Start(job_id, NONCE, 0).owner(HOME)


def waiting(job_id: int = 1, reason: str = "Licenses", **more: Any) -> JobRecord:
    return a_job(job_id, "PENDING", reason=reason, **more)


def a_queue(*jobs: JobRecord, **more: Any) -> Queue:
    return Queue(**{"home": HOME, "jobs": by_id(*jobs), "offered": OFFERED, "licenses": LICENSES, **more})


def listed(queue: Queue, before: Mapping[str, Standing], at_s: float) -> dict[str, Standing]:
    return follow(queue, before, at_s, at_s, NOW)


def announced(queue: Queue, standings: Mapping[str, Standing]) -> list[str]:
    keep = (set(whys(standings)), on_trial(standings))
    return [job.owner for job in announce(queue.jobs, HOME, "", 120, lambda _: 1, *keep).jobs]


# -- what is known exactly ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matlab", "lacks"),
    [
        (License(2, 0, 0), False),
        (License(2, 1, 0), True),
        (License(2, 0, 2), False),  # reserved, perhaps for this very job
        (License(1, 3, 0), True),
    ],
)
def test_another_license_in_use(matlab: License, lacks: bool) -> None:
    queue = a_queue(waiting(**TAKEN), waiting(2), licenses={**LICENSES, "matlab": matlab})
    found = listed(queue, {}, 0.0)
    assert announced(queue, found) == [owner(2)] if lacks else [owner(1), owner(2)]
    assert ("license matlab:2" in whys(found).get(owner(1), "")) == lacks


def test_once_the_license_is_free_devices_are_kept_at_once() -> None:
    queue = a_queue(waiting(**TAKEN), licenses={**LICENSES, "matlab": License(2, 2, 0)})
    found = listed(queue, {}, 0.0)
    queue = replace(queue, licenses={**LICENSES, "matlab": License(2, 0, 0)})
    assert announced(queue, listed(queue, found, 1.0)) == [owner(1)]


def test_own_licenses_and_those_that_slurm_does_not_tell_of_do_not_count() -> None:
    queue = a_queue(waiting(licenses={"ipu": 4, "ipu_4": 4, "moorings_gate": 1, "remote@server": 9}))
    assert listed(replace(queue, licenses={**LICENSES, "ipu": License(4, 4, 0)}), {}, 0.0) == {}


@pytest.mark.parametrize(
    ("required", "cpus", "nodes_max", "why"),
    [
        (("n4",), 16, 1, "16 CPUs of n4, of which jobs without IPUs leave 3"),
        (("n4",), 3, 1, ""),
        (("n4", "n3"), 20, 2, "20 CPUs of n3,n4"),
        (("n4", "n3"), 20, 3, ""),  # another node may have the rest
        (("n1",), 1, 1, "the node n1"),
        (("n1", "n3"), 1, 9, "the node n1"),
        (("n9",), 64, 1, ""),  # of which nothing is known
        (("n4", "n9"), 64, 2, ""),
        (("n4",), None, 1, ""),
        ((), 64, 1, ""),
    ],
)
def test_required_nodes(required: tuple[str, ...], cpus: int | None, nodes_max: int, why: str) -> None:
    needs = Needs({1: JobNeeds(required, cpus, nodes_max, ())}, {"n1": 0, "n3": 16, "n4": 3})
    found = whys(listed(a_queue(waiting(), needs=needs), {}, 0.0))
    assert why in found.get(owner(1), "")
    assert bool(why) == bool(found)


# -- what is learned by trying -----------------------------------------------------------------------------------------


def tried(queue: Queue, at_s: float = 0.0) -> Mapping[str, Standing]:
    found = open_for(queue, listed(queue, {}, at_s), OPEN, at_s)
    assert on_trial(found) == {owner(1)}
    return found


def test_only_a_job_that_slurm_may_start_is_tried() -> None:
    queue = a_queue(waiting(), waiting(2))
    assert open_for(queue, {}, dict.fromkeys(LICENSES, 1), 0.0) == {}, "others have started on it"
    assert on_trial(open_for(replace(queue, offered=frozenset()), {}, OPEN, 0.0)) == set()
    both = replace(queue, offered=frozenset({owner(1), owner(2)}))
    assert on_trial(open_for(both, {}, OPEN, 0.0)) == {owner(1)}, "there are 4 for the first of them"


@pytest.mark.parametrize(("reason", "patience_s"), [("Licenses", UNSEEN_S), ("", UNSEEN_S), ("Resources", REFUSED_S)])
def test_free_devices_are_kept_for_a_moment_whatever_slurm_says(reason: str, patience_s: float) -> None:
    known = tried(a_queue(waiting()))
    queue = a_queue(waiting(reason=reason))
    known = listed(queue, known, patience_s - 1)
    assert announced(queue, known) == [owner(1)]
    known = listed(queue, known, patience_s)
    assert announced(queue, known) == []
    assert "once" in whys(known)[owner(1)]
    assert ("said Resources" in whys(known)[owner(1)]) == (reason == "Resources")


def test_devices_that_others_took_were_refused() -> None:
    """Slurm looks at its first job first."""
    gone = a_queue(waiting(), offered=frozenset())
    known = tried(a_queue(waiting()), at_s=5.0)
    assert announced(gone, follow(gone, known, 5.0, 5.1, NOW)) == [owner(1)], "the list was asked for before"
    assert announced(gone, follow(gone, known, 5.1, 5.2, NOW)) == []


def test_a_job_that_starts_is_forgotten() -> None:
    assert listed(a_queue(a_job(1)), tried(a_queue(waiting())), 1.0) == {}
    again = waiting(restarts=1)
    assert listed(a_queue(again), tried(a_queue(waiting())), 1.0) == {}


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    free, gone, at_s = a_queue(waiting()), a_queue(waiting(), offered=frozenset()), 0.0
    known: Mapping[str, Standing] = {}
    pauses = []
    for _ in range(7):
        known = listed(gone, open_for(free, known, OPEN, at_s), at_s + 1)
        begun = at_s = at_s + 1
        assert announced(gone, known) == []
        assert open_for(free, known, OPEN, at_s) == known, "nothing is tried in the pause"
        while not announced(gone, known):
            at_s += 1
            known = listed(gone, known, at_s)
        pauses.append(at_s - begun)
    assert pauses == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S, *[PAUSE_MAX_S] * 3]


@pytest.mark.parametrize(
    "changed",
    [{"partition": "other"}, {"limit_s": 60.0}, {"licenses": {"ipu": 4}}, {"array_tasks": "2-9"}],
    ids=str,
)
def test_a_job_that_was_changed_is_tried_at_once(changed: dict[str, Any]) -> None:
    gone = a_queue(waiting(), offered=frozenset())
    known = listed(gone, tried(a_queue(waiting())), 1.0)
    assert announced(gone, listed(gone, known, 2.0)) == []
    queue = a_queue(waiting(**changed))
    assert announced(queue, listed(queue, known, 2.0)) == [owner(1)]


def test_so_is_one_whose_nodes_were_changed() -> None:
    before, after = (Needs({1: JobNeeds((), 4, 1, (words,))}, {}) for words in ("n[1-4]", "n1"))
    gone = a_queue(waiting(), offered=frozenset(), needs=before)
    known = listed(gone, tried(a_queue(waiting(), needs=before)), 1.0)
    assert announced(gone, known) == []
    gone = replace(gone, needs=after)
    assert announced(gone, listed(gone, known, 2.0)) == [owner(1)]


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency", "BeginTime"])
def test_a_job_whose_turn_it_is_not_has_refused_nothing(reason: str) -> None:
    queue = a_queue(waiting(reason=reason), offered=frozenset())
    known = listed(queue, tried(a_queue(waiting())), 1.0)
    assert known == {}
    assert announced(queue, known) == []
