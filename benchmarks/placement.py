"""Placement in-process: 1,024 domains of 64 devices, half full, mixed sizes.

Anchor: what we promise (place and release under 50 us, a count under 10 us). Bound: a heap push and pop in the same
interpreter, the least any ordered free list can cost.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time

from benchmarks.report import Report
from moorings.core.model.topology import Block, PowerOfTwo
from moorings.core.placement.free_map import BuddyMap

DOMAINS, DOMAIN_SIZE = 1024, 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 50_000
SEED = 7


def _half_full(chance: random.Random) -> tuple[BuddyMap, list[Block]]:
    """A map as a long life leaves it: filled to nine tenths at random, then released at random to a half."""
    free_map = BuddyMap(PowerOfTwo(DOMAINS, DOMAIN_SIZE, DOMAINS * DOMAIN_SIZE))
    live: list[Block] = []
    while free_map.n_free > DOMAINS * DOMAIN_SIZE // 10:
        block = free_map.find_block(chance.choice(SIZES))
        if block is None:
            break
        free_map.allocate(block)
        live.append(block)
    chance.shuffle(live)
    while free_map.n_free < DOMAINS * DOMAIN_SIZE // 2:
        free_map.release(live.pop())
    return free_map, live


def run() -> Report:
    """Measure."""
    chance = random.Random(SEED)
    free_map, live = _half_full(chance)
    pairs_us: list[float] = []
    counts_us: list[float] = []
    for _ in range(ROUNDS):
        size, victim = chance.choice(SIZES), chance.randrange(len(live))
        gone, live[victim] = live[victim], live[-1]
        live.pop()
        begun = time.perf_counter_ns()
        block = free_map.find_block(size)
        if block is not None:
            free_map.allocate(block)
        free_map.release(gone)
        pairs_us.append((time.perf_counter_ns() - begun) / 1000)
        if block is not None:
            live.append(block)
        begun = time.perf_counter_ns()
        free_map.count_blocks(size)
        counts_us.append((time.perf_counter_ns() - begun) / 1000)
    return Report(
        name="placement",
        figures={"place_release_us_p50": statistics.median(pairs_us), "count_us_p50": statistics.median(counts_us)},
        bounds={"place_release_us_p50": _heap_us(chance)},
        anchors={"place_release_us_p50": 50, "count_us_p50": 10},
        notes=(
            f"{DOMAINS} domains of {DOMAIN_SIZE}, {ROUNDS} rounds; p99 {_p99(pairs_us):.1f} us",
            "bound: a heap's push and pop",
        ),
    )


def _heap_us(chance: random.Random) -> float:
    heap = [chance.random() for _ in range(DOMAINS)]
    heapq.heapify(heap)
    taken: list[float] = []
    for _ in range(ROUNDS):
        value = chance.random()
        begun = time.perf_counter_ns()
        heapq.heappush(heap, value)
        heapq.heappop(heap)
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(taken)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
