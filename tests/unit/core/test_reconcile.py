"""What follows from listings: nothing from one bad one, and nothing ever for what is not ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import Claim
from moorings.core.model.driver_results import ListedPartition, ObservedState
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.topology import Block
from moorings.core.reconcile import (
    LISTINGS_REQUIRED,
    MISSING_S_MIN,
    ListingHistory,
    ReconcileResult,
    find_orphans,
    mark_for,
    reconcile_listing,
)
from moorings.testing.builders import a_claim, a_partition
from tests.cases import cases

HERE = "inst1"
BLOCK = Block.parse("32-35")


def partition(number: int = 0, state: PartitionState = PartitionState.ACTIVE) -> Partition:
    return a_partition(number, state=state)


def sighting_of(partition: Partition, seen: ObservedState = ObservedState.ACTIVE, raw: str = "") -> ListedPartition:
    return ListedPartition(partition.name, seen, partition.block, mark_for(HERE, partition.id), raw)


def stray(name: str = "forgotten", installation: str = HERE, ident: str = "part-gone") -> ListedPartition:
    return ListedPartition(name, ObservedState.ACTIVE, BLOCK, mark_for(installation, ident))  # type: ignore[arg-type]


def look(
    partitions: Collection[Partition],
    sightings: Sequence[ListedPartition],
    memory: ListingHistory | None = None,
    ordered: Collection[Partition] = (),
    apart_s: float = MISSING_S_MIN / 2,
) -> ReconcileResult:
    return reconcile_listing(
        partitions, frozenset(p.id for p in ordered), sightings, memory or ListingHistory(), HERE, apart_s
    )


def looks(
    times: int,
    partitions: Collection[Partition],
    sightings: Sequence[ListedPartition],
    ordered: Collection[Partition] = (),
    memory: ListingHistory | None = None,
    apart_s: float = MISSING_S_MIN / 2,
) -> ReconcileResult:
    """The judgement on the last of so many equal listings."""
    judged = look(partitions, sightings, memory, ordered, apart_s)
    for _ in range(times - 1):
        judged = look(partitions, sightings, judged.memory, ordered, apart_s)
    return judged


def answers(judged: ReconcileResult) -> dict[str, ObservedState]:
    return {str(ident): answer.seen for ident, answer in judged.results}


# -- what is missing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [PartitionState.ACTIVE, PartitionState.RESETTING])
def test_an_empty_listing_ends_nothing_before_it_came_three_times(state):
    mine = [partition(0, state), partition(1, state)]
    assert answers(looks(1, mine, [])) == {}
    assert answers(looks(2, mine, [])) == {}
    assert answers(looks(3, mine, [])) == {"part-0000": ObservedState.ABSENT, "part-0001": ObservedState.ABSENT}


def test_a_partial_listing_ends_nothing_before_it_came_three_times():
    seen, missed = partition(0), partition(1)
    assert answers(looks(2, [seen, missed], [sighting_of(seen)])) == {}
    judged = looks(3, [seen, missed], [sighting_of(seen)])
    assert answers(judged) == {"part-0001": ObservedState.ABSENT}
    assert judged.results[0][1].detail == f"it was missing in 3 listings in a row, for {MISSING_S_MIN:.0f} s"


def test_many_bad_listings_in_a_moment_are_one_bad_moment():
    mine = partition()
    assert answers(looks(40, [mine], [], apart_s=MISSING_S_MIN / 50)) == {}
    assert answers(looks(40, [mine], [sighting_of(mine, ObservedState.ERROR)], apart_s=MISSING_S_MIN / 50)) == {}
    assert answers(looks(60, [mine], [], apart_s=MISSING_S_MIN / 50)) == {"part-0000": ObservedState.ABSENT}
    assert answers(looks(60, [mine], [sighting_of(mine, ObservedState.ERROR)], apart_s=MISSING_S_MIN / 50)) == {
        "part-0000": ObservedState.ERROR
    }


def test_a_long_pause_before_the_first_bad_listing_proves_nothing():
    mine = partition()
    judged = looks(3, [mine], [], memory=look([mine], [], apart_s=1000).memory, apart_s=0.1)
    assert answers(judged) == {}


def test_the_count_begins_anew_when_it_is_seen_again():
    mine = partition()
    judged = look([mine], [sighting_of(mine)], looks(2, [mine], []).memory)
    assert judged.memory.missing == {}
    assert answers(looks(2, [mine], [], memory=judged.memory)) == {}


def test_seen_as_unknown_is_not_missing():
    mine = partition()
    assert answers(looks(5, [mine], [sighting_of(mine, ObservedState.UNKNOWN)])) == {}


@given(st.lists(st.sampled_from(PartitionState), max_size=4), st.integers(1, LISTINGS_REQUIRED - 1), st.booleans())
def test_fewer_listings_than_needed_end_nothing_whatever_the_states(states, times, ordered):
    mine = [partition(number, state) for number, state in enumerate(states)]
    judged = looks(times, mine, [], mine if ordered else [])
    assert judged.results == ()
    assert judged.strays == ()
    assert {p.state for p in mine if p.id in judged.to_repeat} <= {PartitionState.REMOVING}


def test_an_order_to_make_it_that_left_no_trace_is_given_again():
    mine = partition(state=PartitionState.PROVISIONING)
    assert looks(2, [mine], [], [mine]).to_repeat == ()
    assert looks(3, [mine], [], [mine]).to_repeat == (mine.id,)
    assert answers(looks(3, [mine], [], [mine])) == {}


def test_an_order_to_make_it_that_is_still_on_its_way_is_not_given_twice():
    mine = partition(state=PartitionState.PROVISIONING)
    assert looks(5, [mine], []).to_repeat == ()


def test_a_removal_is_confirmed_by_the_driver_itself_not_by_a_listing():
    mine = partition(state=PartitionState.REMOVING)
    judged = look([mine], [], ordered=[mine])
    assert judged.to_repeat == (mine.id,)
    assert judged.results == ()


def test_a_partition_in_error_is_not_missed():
    mine = partition(state=PartitionState.ERROR)
    judged = looks(5, [mine], [], [mine])
    assert (judged.results, judged.to_repeat) == ((), ())


# -- what is there -------------------------------------------------------------------------------------------------


@cases("seen", ObservedState)
@cases("state", PartitionState)
def test_a_sighting_says_something_only_where_it_matters(state, seen):
    mine = partition(state=state)
    telling = {
        PartitionState.PROVISIONING: {ObservedState.ACTIVE, ObservedState.ERROR},
        PartitionState.RESETTING: {ObservedState.ACTIVE},
    }.get(state, set())
    judged = look([mine], [sighting_of(mine, seen)], ordered=[mine])
    assert answers(judged) == ({str(mine.id): seen} if seen in telling else {})
    assert (judged.to_repeat, judged.strays, judged.foreign) == ((), (), {})


def test_active_before_the_driver_took_the_reset_is_the_state_before_the_reset():
    mine = partition(state=PartitionState.RESETTING)
    assert answers(look([mine], [sighting_of(mine, ObservedState.ACTIVE)])) == {}
    assert answers(look([mine], [sighting_of(mine, ObservedState.ACTIVE)], ordered=[mine])) == {
        "part-0000": ObservedState.ACTIVE
    }


def test_the_vendors_own_word_is_passed_on():
    mine = partition(state=PartitionState.PROVISIONING)
    judged = look([mine], [sighting_of(mine, ObservedState.ERROR, raw="LINK_DOWN")])
    assert judged.results[0][1].detail == "the driver reports LINK_DOWN"


def test_a_partition_is_known_by_its_mark_not_by_its_name():
    mine = partition(state=PartitionState.PROVISIONING)
    renamed = ListedPartition("another-name", ObservedState.ERROR, mine.block, mark_for(HERE, mine.id))
    namesake = ListedPartition(mine.name, ObservedState.ERROR, mine.block)
    assert answers(look([mine], [renamed])) == {"part-0000": ObservedState.ERROR}
    assert answers(look([mine], [namesake])) == {}


# -- what is not wanted --------------------------------------------------------------------------------------------


def test_a_stray_with_our_mark_is_removed_after_three_listings():
    assert looks(1, [], [stray()]).strays == ()
    assert looks(2, [], [stray()]).strays == ()
    judged = looks(3, [], [stray()])
    assert judged.strays == (stray(),)
    assert judged.foreign == {"forgotten": stray().block}, "until it has gone its devices are not free"
    assert looks(4, [], [replace(stray(), state=ObservedState.REMOVING)]).strays == ()


@pytest.mark.parametrize("state", [PartitionState.ACTIVE, PartitionState.RESETTING])
def test_a_live_job_s_partition_must_be_in_error_five_times_in_a_row(state):
    mine = partition(state=state)
    seen = [sighting_of(mine, ObservedState.ERROR)]
    assert answers(looks(4, [mine], seen, [mine])) == {}
    well = look([mine], [sighting_of(mine)], looks(4, [mine], seen, [mine]).memory)
    assert answers(looks(4, [mine], seen, [mine], memory=well.memory)) == {}
    assert answers(looks(5, [mine], seen, [mine])) == {str(mine.id): ObservedState.ERROR}


@pytest.mark.parametrize("seen", [ObservedState.ACTIVE, ObservedState.ERROR])
def test_a_removal_that_the_driver_forgot_is_ordered_again(seen):
    mine = partition(state=PartitionState.REMOVING)
    assert looks(2, [mine], [sighting_of(mine, seen)], [mine]).to_repeat == ()
    assert looks(3, [mine], [sighting_of(mine, seen)], [mine]).to_repeat == (mine.id,)
    assert looks(9, [mine], [sighting_of(mine, ObservedState.REMOVING)], [mine]).to_repeat == ()


def test_strays_come_in_the_same_order_however_they_are_listed():
    listing = [stray("b", ident="part-b"), stray("a", ident="part-a"), stray("c", ident="part-c")]
    one, other = looks(3, [], listing), looks(3, [], listing[::-1])
    assert len(one.strays) == 3
    assert one.strays == other.strays
    assert list(one.foreign) == list(other.foreign)


def test_a_stray_that_was_gone_for_a_moment_is_counted_anew():
    gone = look([], [], looks(2, [], [stray()]).memory)
    assert looks(2, [], [stray()], memory=gone.memory).strays == ()


def test_a_stray_that_somebody_holds_after_all_is_none():
    mine = partition()
    before = looks(2, [], [sighting_of(mine)]).memory
    judged = look([mine], [sighting_of(mine)], before)
    assert (judged.strays, judged.memory.strays) == ((), {})


@pytest.mark.parametrize(
    "mark", ["", "somebody", "moorings/", "moorings/inst2/part-1", "moorings/inst10/part-1", "inst1/x"]
)
def test_what_does_not_carry_our_mark_is_never_removed(mark):
    other = ListedPartition("theirs", ObservedState.ACTIVE, BLOCK, mark)
    judged = looks(5, [], [other])
    assert judged.strays == ()
    assert judged.foreign == {"theirs": BLOCK}


def test_what_is_ours_is_not_foreign():
    assert look([partition()], [sighting_of(partition())]).foreign == {}


def test_the_devices_of_a_stray_are_given_to_nobody_from_its_first_sighting():
    """After a restore a job may run on it, and the first claims are granted before it was seen three times."""
    judged = look([partition()], [sighting_of(partition()), stray()])
    assert (judged.strays, judged.foreign) == ((), {"forgotten": BLOCK})


marks = st.sampled_from(
    ["", "x", *(mark_for(where, f"part-000{n}") for where in (HERE, "inst2") for n in range(3))]  # type: ignore[arg-type]
)
listings = st.lists(
    st.builds(ListedPartition, st.uuids().map(str), st.sampled_from(ObservedState), st.just(BLOCK), marks), max_size=6
)


@given(st.lists(listings, min_size=1, max_size=6), st.sets(st.integers(0, 3)), st.sampled_from(PartitionState))
def test_whatever_is_listed_only_our_own_unheld_partitions_are_removed(seen, numbers, state):
    mine = [partition(number, state) for number in sorted(numbers)]
    held = {mark_for(HERE, p.id) for p in mine}
    judged, memory = None, ListingHistory()
    for sightings in seen:
        judged = look(mine, sightings, memory, mine)
        memory = judged.memory
        removable = {s.name for s in sightings if s.mark.startswith(f"moorings/{HERE}/") and s.mark not in held}
        assert {stray.name for stray in judged.strays} <= removable
        strangers = {s.name for s in sightings if not s.mark.startswith(f"moorings/{HERE}/")}
        assert strangers <= set(judged.foreign) <= strangers | removable
        assert {ident for ident, _ in judged.results} <= {p.id for p in mine}
        assert set(judged.to_repeat) <= {p.id for p in mine}


def test_a_judgement_leaves_the_memory_it_began_from_as_it_was():
    memory = looks(2, [partition()], [stray()]).memory
    before = (dict(memory.missing), dict(memory.strays))
    look([partition()], [stray()], memory)
    assert (memory.missing, memory.strays) == before


# -- claims whose owner is gone ------------------------------------------------------------------------------------


def owned(*owners: str) -> list[Claim]:
    return [a_claim(number, owner=owner) for number, owner in enumerate(owners)]


ALL, NONE = frozenset({"local/a", "local/b"}), frozenset[str]()


@pytest.mark.parametrize("alive", [[], [NONE], [NONE, NONE]], ids=["never", "once", "twice"])
def test_fewer_than_three_listings_end_no_claim(alive):
    assert find_orphans(owned("local/a", "local/b"), "local/", alive) == ()


def test_a_claim_in_none_of_three_listings_is_an_orphan():
    assert find_orphans(owned("local/a", "local/b"), "local/", [NONE] * 3) == ("claim-0000", "claim-0001")


@pytest.mark.parametrize("partial", [[ALL, NONE, NONE], [NONE, ALL, NONE], [NONE, NONE, ALL]])
def test_one_listing_that_knows_it_is_enough(partial):
    assert find_orphans(owned("local/a"), "local/", partial) == ()


def test_only_the_last_three_listings_count():
    assert find_orphans(owned("local/a"), "local/", [ALL, NONE, NONE, NONE]) == ("claim-0000",)


def test_a_partial_listing_ends_only_who_is_missing_in_all():
    assert find_orphans(owned("local/a", "local/c"), "local/", [ALL] * 3) == ("claim-0001",)


def test_claims_of_others_are_not_ours_to_end():
    others = owned("user/ann", "slurm/alpha/1", "slurm/alphabet/1", "locale/a")
    assert find_orphans(others, "local/", [NONE] * 3) == ()
    assert find_orphans(others, "slurm/alpha/", [NONE] * 3) == ("claim-0001",)


@given(st.lists(st.sets(st.sampled_from("abcd")), max_size=6), st.sets(st.sampled_from("abcd")))
def test_nobody_is_ended_who_was_alive_in_the_last_three_listings(alive, owners):
    listings = [frozenset(f"local/{name}" for name in names) for names in alive]
    found = find_orphans(owned(*(f"local/{name}" for name in sorted(owners))), "local/", listings)
    lately = set().union(*alive[-3:])
    gone = [f"claim-{n:04d}" for n, name in enumerate(sorted(owners)) if name not in lately]
    assert list(found) == (gone if len(alive) >= 3 else [])
