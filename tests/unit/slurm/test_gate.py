"""The gate lets Slurm start exactly what gets a partition: the licenses that are kept, from what is offered."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.devices import PoolName
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.core.placement.free_map import free_map_for
from moorings.slurm.formats import License
from moorings.slurm.host.license_gate import (
    describe_missing_licenses,
    gate_licenses,
    is_reserved,
    is_reusable_by_queue,
    to_reserve,
)

SIZES = (1, 2, 4, 8, 16, 32)
POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(2, 16, 32))


def licenses(used: dict[int, int], reserved: dict[int, int] | None = None) -> dict[str, License]:
    """As Slurm tells them of a pool of 32, with others' among them."""
    kept = reserved or {}
    own = {f"ipu_{size}": License(32, used.get(size, 0), kept.get(size, 0)) for size in SIZES}
    gate = {"moorings_gate": License(1, 0, 1)}
    return {"ipu": License(32, used.get(1, 0), 0), "matlab": License(5, 0, 0), "ipu_x": License(9, 0, 0)} | own | gate


def test_the_twins_are_told_from_all_other_licenses() -> None:
    assert gate_licenses(licenses({})) == {size: f"ipu_{size}" for size in SIZES}


def test_without_an_offer_nothing_may_start_not_even_on_what_jobs_give_back() -> None:
    held = to_reserve(licenses({1: 4, 2: 4, 4: 4}), None, [4])
    assert held == {f"ipu_{size}": 32 for size in SIZES} | {"moorings_gate": 1}


def test_more_in_use_than_there_is_reserves_nothing_rather_than_less() -> None:
    """An admin made the pool smaller while jobs run: a count below zero is none that Slurm takes."""
    assert to_reserve({"ipu_1": License(4, 8, 0)}, {1: 2}, [8]) == {"ipu_1": 0}


def test_a_start_that_the_offer_does_not_know_of_takes_from_it() -> None:
    """Others hold 16 of 32, a job of 8 was claimed, and another has just been started where there is room."""
    now = licenses({1: 16, 2: 16, 4: 16, 8: 16})
    offer = {1: 8, 2: 4, 4: 2, 8: 1}
    assert to_reserve(now, offer, [8])["ipu_8"] == 16, "in use 16, held 16: nothing is left to start"
    assert to_reserve(now, {}, [8, 8])["ipu_8"] == 32, "nor when it was claimed: the offer has shrunk by as much"
    assert to_reserve(now, offer, [8, 8])["ipu_8"] == 8, "and if the offer stands beside both, one of 8 may start"


def test_where_nothing_is_free_what_a_job_gives_back_is_held_before_it_ends() -> None:
    """Slurm starts the next job in the instant in which one ends, on a block that is being emptied for a larger one."""
    full = licenses(dict.fromkeys((1, 2), 32))
    kept = to_reserve(full, {}, [2] * 16)
    ended = licenses(dict.fromkeys((1, 2), 30), {size: kept[f"ipu_{size}"] for size in SIZES})
    assert ended["ipu_2"].free < 2
    kept = to_reserve(full, {2: 1, 1: 2}, [2] * 15)
    assert (kept["ipu_1"], kept["ipu_2"], kept["ipu_4"]) == (0, 0, 32), "a job that the offer does not know of took it"


def test_at_the_end_of_a_job_the_next_may_start_if_what_returns_stays_ours() -> None:
    """Others hold 8 of 32, three jobs of 8 the rest; one of them is over, and its claim is not released yet."""
    small = dict.fromkeys((1, 2, 4, 8), 16)
    kept = to_reserve(licenses(small), {}, [8, 8, 8])
    assert (kept["ipu_8"], kept["ipu_16"]) == (32, 32), "its licenses, until the partition is gone"
    kept = to_reserve(licenses(small), {}, held={8: 3})
    assert (kept["ipu_8"], kept["ipu_16"]) == (8, 32), "nobody else could get it"
    full = licenses(dict.fromkeys((1, 2, 4, 8), 24))
    assert to_reserve(full, {}, held={8: 3})["ipu_8"] == 8, "the next has begun, without a claim or with one that waits"
    assert to_reserve(full, {}, held={8: 2})["ipu_8"] == 16, "the partition is being removed"
    assert to_reserve(full, {8: 1, 4: 2, 2: 4, 1: 8}, held={8: 2})["ipu_8"] == 8, "it was"
    assert to_reserve(licenses({}), {}, held={8: 3})["ipu_8"] == 8
    assert to_reserve(full, None, held={8: 3})["ipu_8"] == 32, "nothing is known"


def test_what_returns_stays_ours_only_if_nobody_could_want_it_before() -> None:
    assert is_reusable_by_queue([8, 4, 4], 4, alone=True)
    assert is_reusable_by_queue([8, 4], 0, alone=True), "nobody waits"
    assert is_reusable_by_queue([], 16, alone=True), "nothing returns"
    assert not is_reusable_by_queue([8, 4], 4, alone=False)
    assert not is_reusable_by_queue([8, 4], 8, alone=True), (
        "a block is kept for it, which small jobs would take piece by piece"
    )


def test_what_slurm_conf_lacks_is_told() -> None:
    have = licenses({})
    assert describe_missing_licenses(have, {1: 32, 32: 1}) == ""
    assert describe_missing_licenses(have, None) == ""
    assert "lacks ipu_64" in describe_missing_licenses(have, {64: 1})
    assert "lacks moorings_gate" in describe_missing_licenses({"ipu": License(8, 0, 0)}, {})
    assert "more than ipu_1:32, ipu_32:32" in describe_missing_licenses(have, {1: 64, 2: 8, 32: 2})


def test_slurm_need_not_be_told_what_it_has() -> None:
    have = licenses({}, {1: 32, 2: 32})
    assert is_reserved(have, {"ipu_1": 32, "ipu_2": 32})
    assert not is_reserved(have, {"ipu_1": 32, "ipu_2": 31})
    assert not is_reserved(have, {"ipu_1": 32, "ipu_64": 1}), "the license is missing"


@given(
    held=st.lists(st.sampled_from(SIZES), max_size=8),
    others=st.lists(st.sampled_from(SIZES), max_size=4),
    wanted=st.lists(st.sampled_from(SIZES), max_size=10),
)
def test_all_that_slurm_can_start_fits_at_once_and_what_fits_can_be_started(
    held: list[int], others: list[int], wanted: list[int]
) -> None:
    """Slurm starts several jobs in one turn, by counts alone; then each must find a block, and none is kept waiting."""
    free = free_map_for(POD.topology)
    used = dict.fromkeys(SIZES, 0)
    counted = []
    for number, size in enumerate([*held, *others]):
        block = free.find_block(size)
        if block is not None:
            free.allocate(block)
            if number < len(held):
                used = {k: n + (size if k <= size else 0) for k, n in used.items()}
                counted.append(size)
    now = licenses(used)
    kept = to_reserve(now, {size: free.count_blocks(size) for size in SIZES}, counted)
    room = {size: now[f"ipu_{size}"].total - now[f"ipu_{size}"].used - kept[f"ipu_{size}"] for size in SIZES}
    started: list[Block] = []
    for size in wanted:
        fits = free.find_block(size)
        by_licenses = all(room[k] >= size for k in SIZES if k <= size)
        assert by_licenses == (fits is not None)
        if fits is not None:
            free.allocate(fits)
            started.append(fits)
            room = {k: n - (size if k <= size else 0) for k, n in room.items()}
    assert len({index for block in started for index in block}) == sum(map(len, started))


@given(
    live=st.lists(st.sampled_from(SIZES), max_size=6),
    over=st.lists(st.sampled_from(SIZES), max_size=6),
    foreign=st.lists(st.sampled_from(SIZES), max_size=3),
    wanted=st.lists(st.sampled_from(SIZES), max_size=14),
)
def test_who_starts_on_what_returns_gets_it_once_it_has_returned(
    live: list[int], over: list[int], foreign: list[int], wanted: list[int]
) -> None:
    """Slurm starts jobs one after the other beside strangers' partitions; what is ``over`` is gone only afterwards."""
    free = free_map_for(POD.topology)
    blocks: dict[str, list[Block]] = {"live": [], "over": [], "foreign": []}
    for what, sizes in (("foreign", foreign), ("live", live), ("over", over)):
        for size in sizes:
            block = free.find_block(size)
            if block is not None:
                free.allocate(block)
                blocks[what].append(block)
    held = Counter(len(block) for block in (*blocks["live"], *blocks["over"]))
    used = {k: sum(len(block) for block in blocks["live"] if len(block) >= k) for k in SIZES}
    kept = to_reserve(licenses(used), {size: free.count_blocks(size) for size in SIZES}, held=held)
    for block in blocks["over"]:
        free.release(block)
    for size in wanted:
        if not is_reusable_by_queue(held, size, alone=True):
            continue
        if all(used[k] + size + kept[f"ipu_{k}"] <= 32 for k in SIZES if k <= size):
            block = free.find_block(size)
            assert block is not None
            free.allocate(block)
            used = {k: n + (size if k <= size else 0) for k, n in used.items()}
