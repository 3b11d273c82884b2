"""The plan of a turn is the one that a walk over the whole queue makes, claim by claim, with nothing remembered.

``plan`` leaves a line of the queue once it knows that the rest of the line gets nothing. The reference below knows no
lines; on random fleets both decide the same, to the byte (law 9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.invariants import find_violations
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId, QueueMode
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import (
    CreateClaim,
    DrainDevice,
    DriverResultReceived,
    ForeignPartitionsListed,
    Input,
    PoolReachability,
    ReleaseClaim,
    ResumeDevice,
    SetProject,
)
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from moorings.core.placement.eligibility import eligible_pools, ineligible_reason
from moorings.core.placement.fleet import Fleet, FleetChanges, PoolState, ReservedBlock, has_resources_left
from moorings.core.placement.free_map import NO_RELEASE, OUT_OF_SERVICE, HeldBlock, savepoint
from moorings.core.placement.pending_classes import ClassKey, QueueKey
from moorings.core.placement.plans import Grant, SchedulePlan, plan_payload
from moorings.core.placement.release_times import FREE
from moorings.core.scheduling.backfill import BackfillWindow
from moorings.core.scheduling.explain import explain_wait
from moorings.core.scheduling.schedule import plan_schedule
from moorings.core.scheduling.turn import Turn
from moorings.core.scheduling.turn_schedule import build_snapshot
from moorings.core.scheduling.turn_state import TurnState
from tests.sampling import examples
from tests.unit.core.worlds import World

POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(2, 4, 8), (("memory", 9),))
POD2 = Pool(PoolName("pod2"), "ipu", "simulated", PowerOfTwo(1, 4, 4))
CROSS = Pool(PoolName("cross"), "gpu", "simulated", AnySubset(5, 4), (("memory", 9),))
RACK = Pool(
    PoolName("rack"),
    "gpu",
    "simulated",
    Catalogue(6, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 6, n))),
)
NOW = Timestamp(1_000 * SECOND)


# -- the reference -----------------------------------------------------------------------------------------------------


def soonest(topology: Topology, size: int, holds: Iterable[HeldBlock]) -> tuple[Timestamp, int, Block] | None:
    """When the block that empties soonest does, how many of its devices are held, and the block; of all blocks."""
    until: dict[int, Timestamp] = {}
    for one in holds:
        for index in one.block:
            until[index] = max(one.until, until.get(index, FREE))
    ends = [until.get(index, FREE) for index in range(topology.n_devices)]
    if isinstance(topology, AnySubset):
        if size > topology.n_devices:
            return None
        last = sorted(ends)[size - 1]
        able = sorted((end, -index) for index, end in enumerate(ends) if end <= last)[-size:]
        return last, sum(end != FREE for end, _ in able), Block.of([-index for _, index in able])
    blocks = topology.blocks if isinstance(topology, Catalogue) else ()
    if isinstance(topology, PowerOfTwo):
        blocks = tuple(Block(range(at, at + size)) for at in range(0, topology.n_devices - size + 1, size))
    asked = [block for block in blocks if len(block) == size]
    if not asked:
        return None
    cost = {block: (max(ends[i] for i in block), sum(ends[i] != FREE for i in block)) for block in asked}
    best = min(asked, key=lambda block: (*cost[block], block.start, tuple(block)))
    return *cost[best], best


def walk(
    pools: Mapping[PoolName, PoolState],
    held: Callable[[PoolState], Iterable[HeldBlock]],
    waiting: Iterable[Claim],
    policy: Policy,
    now: Timestamp,
) -> SchedulePlan:
    """The grants, found by a walk over every claim of the queue."""
    grants: list[Grant] = []
    kept: dict[tuple[PoolName, bool], ReservedBlock] = {}
    used = {name: dict(state.used_resources) for name, state in pools.items()}
    granted: dict[PoolName, list[HeldBlock]] = {name: [] for name in pools}
    windows: dict[PoolName, list[BackfillWindow]] = {name: [] for name in pools}

    def use(claim: Claim, state: PoolState) -> None:
        for name, amount in claim.spec.resources.items():
            used[state.pool.name][name] = used[state.pool.name].get(name, 0) + amount

    with ExitStack() as stack:
        trials = {name: stack.enter_context(savepoint(state.free)) for name, state in pools.items()}

        def fits(claim: Claim, state: PoolState) -> bool:
            spec, name = claim.spec, state.pool.name
            if state.unreachable_reason or not has_resources_left(state.pool, used[name], spec.resources):
                return False
            block = state.free.find_block(spec.size) if spec.size else None
            if spec.size and block is None:
                return False
            if block is not None:
                trials[name].allocate(block)
                until = add_seconds(now, spec.time_limit_s) if spec.time_limit_s is not None else NO_RELEASE
                granted[name].append(HeldBlock(block, until))
            use(claim, state)
            grants.append(Grant(claim.id, name, block))
            return True

        def fits_inside(claim: Claim, state: PoolState) -> bool:
            """Whether it ends before what is kept for another is needed, and a part of that is free."""
            spec, name = claim.spec, state.pool.name
            if state.unreachable_reason or not has_resources_left(state.pool, used[name], spec.resources):
                return False
            for one in windows[name]:
                left = one.remaining_s(now)
                ends = spec.time_limit_s is not None and spec.time_limit_s <= left and claim.owner.startswith("local/")
                block = one.find_block(spec.size) if ends else None
                if block is not None and spec.time_limit_s is not None:
                    one.allocate(block)
                    granted[name].append(HeldBlock(block, add_seconds(now, spec.time_limit_s)))
                    use(claim, state)
                    grants.append(Grant(claim.id, name, block))
                    return True
            return False

        def reserves(claim: Claim, able: list[PoolState]) -> None:
            found: list[tuple[Timestamp, int, int, Block]] = []
            for place, state in enumerate(able):
                if (state.pool.name, claim.spec.size > 0) in kept or state.unreachable_reason:
                    continue
                if claim.spec.size:
                    holds = list(chain(held(state), granted[state.pool.name]))
                    best = soonest(state.pool.topology, claim.spec.size, holds)
                else:
                    best = (NO_RELEASE, 0, Block(()))
                if best is not None and best[0] < OUT_OF_SERVICE:
                    found.append((best[0], best[1], place, best[2]))
            if not found:
                return
            until, _, place, block = min(found, key=lambda one: one[:3])
            state = able[place]
            until = max(until, Timestamp(0))
            reservation = ReservedBlock(claim.id, state.pool.name, block, until)
            if len(block):
                windows[state.pool.name].append(
                    BackfillWindow(reservation, state, trials[state.pool.name], policy.making_s)
                )
            use(claim, state)
            kept[state.pool.name, claim.spec.size > 0] = reservation

        for claim in waiting:
            try:
                able = eligible_pools(claim.spec, pools)
            except MooringsError:
                continue
            served = any(fits(claim, state) for state in able)
            if not served and claim.spec.size:
                served = any(fits_inside(claim, state) for state in able)
            if not served and policy.reserve and claim.spec.queue is QueueMode.WAIT:
                reserves(claim, able)
        return SchedulePlan(tuple(grants), tuple(kept.values()))


# -- random fleets -----------------------------------------------------------------------------------------------------

amounts = st.dictionaries(st.just("memory"), st.sampled_from([1, 1, 2, 4, 8]), max_size=1)
asked = st.sampled_from([1, 2, 4, 8])  # few, so that many stand in one line
specs = st.builds(
    ClaimSpec,
    kind=st.sampled_from(["ipu", "ipu", "gpu"]),
    size=asked,
    gcds=st.sampled_from([1, 2]),
    pool=st.sampled_from([None, None, None, None, PoolName("pod"), PoolName("gone")]),
    resources=amounts,
    priority=st.integers(-1, 1),
    time_limit_s=st.sampled_from([None, 20.0, 60.0]),
    lease_s=st.sampled_from([None, None, 5.0]),
    queue=st.sampled_from([QueueMode.WAIT, QueueMode.WAIT, QueueMode.NEVER]),
) | st.builds(
    ClaimSpec,
    kind=st.sampled_from(["ipu", "gpu"]),
    size=st.just(0),
    resources=st.fixed_dictionaries({"memory": st.sampled_from([1, 4, 8])}),
    priority=st.integers(-1, 1),
)


def claim_of(number: int, spec: ClaimSpec) -> Claim:
    lease = Timestamp(NOW + (number % 3 - 1) * SECOND) if spec.lease_s is not None else None
    ident = ClaimId(f"c{number:02}")
    arrival = Timestamp(NOW - 500 * SECOND + number)
    owner = "user/ann" if number % 4 == 0 else f"local/{ident}"
    return Claim(
        id=ident, name=ident, owner=owner, subject="ann", spec=spec, state=ClaimState.PENDING, arrival=arrival,
        lease_until=lease,
    )  # fmt: skip


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Pools that hold some partitions, broken devices and blocks made by others, and a queue."""
    pools = draw(
        st.lists(st.sampled_from([POD, POD2, CROSS, RACK]), min_size=1, max_size=3, unique_by=lambda pool: pool.name)
    )
    fleet = Fleet(pools)
    changes = FleetChanges()
    for index in draw(st.sets(st.integers(0, 3), max_size=2)):
        pool = draw(st.sampled_from(pools))
        changes.devices[pool.name, index] = Device(pool.name, index, DeviceState.DRAINED, "", NOW)
    for pool in pools:
        if draw(st.integers(0, 4)) == 0:
            changes.foreign[pool.name] = {"theirs": Block(range(2, 4))}
        if draw(st.integers(0, 4)) == 0:
            changes.problems[pool.name] = "down"
    fleet.apply(changes)
    for number, spec in enumerate(draw(st.lists(specs, max_size=10))):
        hold(fleet, claim_of(number, spec), draw(st.sampled_from([0, 30, 90])), draw(st.integers(0, 5)) == 0)
    waiting = [
        claim_of(10 + number, spec) for number, spec in enumerate(draw(st.lists(specs, min_size=4, max_size=24)))
    ]
    fleet.apply(FleetChanges(claims={claim.id: (claim, None) for claim in waiting}))
    return fleet


def hold(fleet: Fleet, claim: Claim, ago_s: float, removing: bool) -> None:
    """Let a claim hold a block of the first pool that has one free, since ``ago_s``."""
    for state in fleet.pools.values():
        block = state.free.find_block(claim.spec.size) if claim.spec.size in state.pool.topology.sizes else None
        if block is None or not state.has_resources(claim.spec.resources):
            continue
        partition = Partition(
            id=PartitionId(f"{claim.id}-0"), name=claim.name, claim=claim.id, pool=state.pool.name, block=block, gcds=1,
            replicas_per_gcd=1, state=PartitionState.REMOVING if removing else PartitionState.ACTIVE, since=NOW,
        )  # fmt: skip
        since = Timestamp(NOW - round(ago_s * SECOND))
        held = replace(
            claim, state=ClaimState.RELEASING if removing else ClaimState.READY, pool=state.pool.name,
            partition=partition.id, granted_at=since, ready_at=since,
        )  # fmt: skip
        fleet.apply(FleetChanges(claims={claim.id: (held, None)}, partitions={partition.id: (partition, None)}))
        return


def asks(spec: ClaimSpec, number: int) -> CreateClaim:
    ident = ClaimId(f"n{number:03}")
    return CreateClaim(
        id=ident, name=ident, owner=f"local/{ident}" if number % 2 else "user/bob", subject="bob", spec=spec
    )


ORDERS = {PartitionState.PROVISIONING: "create", PartitionState.REMOVING: "remove", PartitionState.ACTIVE: "list"}


def answers(fleet: Fleet, number: int, seen: ObservedState) -> Iterator[Input]:
    """The driver's word on some partition."""
    known = sorted(fleet.partitions.values(), key=lambda partition: partition.id)
    for partition in known[number % len(known) :][:1] if known else ():
        answer = DriverResult(ResultCode.OK, seen)
        yield DriverResultReceived(partition.id, partition.version, ORDERS.get(partition.state, "list"), answer)


def releases(fleet: Fleet, number: int) -> Iterator[Input]:
    known = sorted(fleet.claims)
    yield from (ReleaseClaim(ident, "done") for ident in (known[number % len(known) :][:1] if known else ()))


def hardware(fleet: Fleet, number: int, word: str) -> Iterator[Input]:
    """Something befalls the first of the pools."""
    pool = next(iter(fleet.pools))
    if word == "drain":
        yield DrainDevice(pool, number % 4, "hot")
    elif word == "resume":
        yield ResumeDevice(pool, number % 4)
    elif word == "foreign":
        yield ForeignPartitionsListed(pool, {"other": Block(range(number % 4, number % 4 + 1))} if number % 2 else {})
    else:
        yield PoolReachability(pool, word)


Happening = Callable[[Fleet, int], Iterator[Input]]
happenings: st.SearchStrategy[Happening] = st.one_of(
    specs.map(lambda spec: lambda _, number: iter([asks(spec, number)])),
    st.integers(0, 40).map(lambda one: lambda fleet, _: releases(fleet, one)),
    st.tuples(
        st.integers(0, 40),
        st.sampled_from([ObservedState.ACTIVE, ObservedState.ABSENT, ObservedState.ABSENT, ObservedState.ERROR]),
    ).map(lambda one: lambda fleet, _: answers(fleet, *one)),
    st.tuples(st.integers(0, 7), st.sampled_from(["drain", "resume", "foreign", "down", ""])).map(
        lambda one: lambda fleet, _: hardware(fleet, *one)
    ),
)
turns = st.lists(
    st.tuples(st.sampled_from([-5, 0, 1, 10, 30]), st.lists(happenings, max_size=4)), min_size=1, max_size=5
)


# -- both decide the same ----------------------------------------------------------------------------------------------


def held(turn: TurnState, state: PoolState) -> Iterator[HeldBlock]:
    """Everything in a pool that is not free, of all partitions and devices of a turn."""
    for partition in turn.list_partitions():
        claim = turn.claim(partition.claim)
        until = NO_RELEASE
        if claim is not None and claim.spec.time_limit_s is not None and claim.granted_at is not None:
            until = add_seconds(claim.ready_at or claim.granted_at, claim.spec.time_limit_s)
        if partition.state is PartitionState.REMOVING:
            until = Timestamp(0)
        elif until <= turn.now:
            until = NO_RELEASE
        if partition.pool == state.pool.name:
            yield HeldBlock(partition.block, until)
    yield from (HeldBlock(Block.single(index), OUT_OF_SERVICE) for index in state.out_of_service)
    yield from (HeldBlock(block, NO_RELEASE) for block in state.foreign_blocks.values())


def in_order(turn: TurnState, pools: Mapping[PoolName, PoolState]) -> Iterator[Claim]:
    """The queue as a turn has it, of all its claims: who has waited for long counts as of the highest priority."""
    known = turn.fleet.claims | {ident: claim for ident, (claim, _) in turn.changes.claims.items()}
    pending = [claim for claim in known.values() if claim.state is ClaimState.PENDING]
    highest: dict[str, int] = {}
    for claim in pending:
        if any(may_empty(turn, claim.spec, state) for state in pools.values()):
            highest[claim.spec.kind] = max(claim.spec.priority, highest.get(claim.spec.kind, claim.spec.priority))
    ageing_s = turn.policy.ageing_s

    def place(claim: Claim) -> QueueKey:
        has_aged = ageing_s is not None and claim.arrival <= add_seconds(turn.now, -ageing_s)
        own = claim.spec.priority
        return -max(own, highest.get(claim.spec.kind, own)) if has_aged else -own, claim.arrival, claim.id

    yield from sorted(pending, key=place)


def may_empty(turn: TurnState, spec: ClaimSpec, state: PoolState) -> bool:
    """Whether a pool could serve it some day, as things stand."""
    if state.unreachable_reason or spec.kind != state.pool.kind or ineligible_reason(spec, state) is not None:
        return False
    if spec.pool not in (None, state.pool.name):
        return False
    found = soonest(state.pool.topology, spec.size, held(turn, state)) if spec.size else (FREE, 0, Block(()))
    return found is not None and found[0] < OUT_OF_SERVICE


def expects_what_is_so(state: PoolState, holds: Iterable[HeldBlock]) -> bool:
    """Whether the ends that are kept up to date say of every size what those of all holds say."""
    holds = list(holds)
    for size in (1, 2, 3, 4, 8):
        found = state.release_times.earliest_block(size) if size in state.pool.topology.sizes else None
        expected = soonest(state.pool.topology, size, holds) if size in state.pool.topology.sizes else None
        if (found and (found[1], found[2], found[0])) != expected:
            return False
    return True


@settings(max_examples=examples(400))
@given(fleets(), turns, st.sampled_from([True, True, False]), st.sampled_from([None, 0.0, 499.999985, 510.0]))
def test_the_plan_is_that_of_a_walk_over_the_whole_queue(
    fleet: Fleet, given: list[tuple[int, list[Happening]]], reserve: bool, ageing_s: float | None
) -> None:
    policy = Policy(reserve=reserve, making_s=0.0, ageing_s=ageing_s)
    now, n_given = NOW, 0
    for passed_s, happened in given:
        now = Timestamp(now + passed_s * SECOND)
        with Turn(fleet, policy, now) as turn:
            for one in happened:
                n_given += 1
                for put in one(fleet, n_given):
                    turn.handle_input(put)
            turn.expire_leases(Timestamp(0))
            scene = build_snapshot(turn.state)
            assert all(expects_what_is_so(state, held(turn.state, state)) for state in scene.pools.values())
            expected = walk(scene.pools, partial(held, turn.state), in_order(turn.state, scene.pools), policy, now)
            decided = plan_schedule(scene, policy, now)
            assert all(expects_what_is_so(state, held(turn.state, state)) for state in scene.pools.values())
            assert decided == expected
            assert plan_payload(decided) == plan_payload(expected)
            turn.schedule()
            changes = turn.changes
        fleet.apply(changes)
        assert [finding for finding in find_violations(fleet) if finding.law == 7] == []


@given(fleets())
def test_the_queue_s_lines_and_leases_are_the_same_when_they_are_loaded_anew(fleet: Fleet) -> None:
    loaded = Fleet.load([state.pool for state in fleet.pools.values()], fleet.claims.values(), (), ())

    def lines(of: Fleet) -> dict[ClassKey, list[QueueKey]]:
        return {key: list(line) for key, line in of.pending_classes.items()}

    assert (loaded.queue, lines(loaded), loaded.lease_expiries) == (fleet.queue, lines(fleet), fleet.lease_expiries)
    for claim in list(fleet.claims.values()):
        fleet.apply(FleetChanges(claims={claim.id: (replace(claim, state=ClaimState.CANCELLED), claim.version)}))
    assert (fleet.queue, fleet.pending_classes, fleet.lease_expiries) == ([], {}, [])


def test_a_lease_lapses_when_it_has_run_out_and_not_before() -> None:
    fleet = Fleet([POD])
    claims = [claim_of(number, ClaimSpec(kind="ipu", size=1, lease_s=5.0)) for number in (5, 4, 3)]
    fleet.apply(FleetChanges(claims={claim.id: (claim, None) for claim in claims}))  # over since 1 s; in 1 s; now
    with Turn(fleet, Policy(), NOW) as turn:
        turn.expire_leases(Timestamp(0))
        assert [event.claim for event in turn.events if event.name == "claim.lapsed"] == ["c03", "c04"]


def test_what_is_remembered_of_the_soonest_block_is_forgotten_when_a_time_limit_passes() -> None:
    """Nothing changes but the time, which may also be set back."""
    fleet = Fleet([POD])
    short, long, waiting = (
        claim_of(n, ClaimSpec(kind="ipu", size=4, time_limit_s=s)) for n, s in enumerate((20, 60, 9))
    )
    hold(fleet, short, 0, removing=False)
    hold(fleet, long, 0, removing=False)
    fleet.apply(FleetChanges(claims={waiting.id: (waiting, None)}))

    def kept_at(passed_s: int) -> list[str]:
        with Turn(fleet, Policy(), Timestamp(NOW + passed_s * SECOND)) as turn:
            turn.schedule()
        fleet.apply(turn.changes)
        return [str(kept.block) for kept in fleet.reserved_blocks]

    assert [kept_at(s) for s in (1, 2, 20, 30, 60, 61, 30, 19)] == [
        *(["0-3"], ["0-3"]),  # the short one ends first
        *(["4-7"], ["4-7"]),  # it has not ended, and nobody knows when it will
        *(["0-3"], ["0-3"]),  # nor the other one
        *(["4-7"], ["0-3"]),  # the clock is set back
    ]


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        (FleetChanges(devices={(POD.name, 5): Device(POD.name, 5, DeviceState.DRAINED, "", NOW)}), []),
        (FleetChanges(foreign={POD.name: {"theirs": Block(range(3, 6))}}), ["0-7"]),
        (FleetChanges(removed_partitions={PartitionId("c01-0"): 1}), ["0-7"]),
    ],
)
def test_what_is_kept_follows_what_is_held(changed: FleetChanges, kept: list[str]) -> None:
    fleet = Fleet([POD])
    held, going = (claim_of(number, ClaimSpec(kind="ipu", size=2, time_limit_s=60)) for number in (0, 1))
    hold(fleet, held, 0, removing=False)
    hold(fleet, going, 0, removing=True)
    waiting = claim_of(2, ClaimSpec(kind="ipu", size=8, gcds=2))
    fleet.apply(FleetChanges(claims={waiting.id: (waiting, None)}))
    with Turn(fleet, Policy(), NOW) as turn:
        turn.schedule()
    assert [str(one.block) for one in turn.changes.reserved_blocks or ()] == ["0-7"]
    fleet.apply(changed)
    with Turn(fleet, Policy(), NOW) as turn:
        assert [str(one.block) for one in plan_schedule(build_snapshot(turn.state), Policy(), NOW).reservations] == kept


@pytest.mark.parametrize(
    ("put", "until"),
    [
        (DrainDevice(POD.name, 5, "hot"), OUT_OF_SERVICE),
        (ForeignPartitionsListed(POD.name, {"theirs": Block(range(3, 6))}), NO_RELEASE),
    ],
)
def test_a_turn_expects_what_its_own_changes_say(put: Input, until: Timestamp) -> None:
    fleet = Fleet([POD])
    hold(fleet, claim_of(0, ClaimSpec(kind="ipu", size=2, time_limit_s=60)), 0, removing=False)
    ends = fleet.pools[POD.name].release_times
    with Turn(fleet, Policy(), NOW) as turn:
        turn.handle_input(put)
        build_snapshot(turn.state)
        assert ends.earliest_block(8) == (Block(range(8)), until, 5 if until == NO_RELEASE else 3)
    assert ends.earliest_block(8) == (Block(range(8)), add_seconds(NOW, 60), 2)


def test_a_block_that_strangers_hold_is_not_said_to_be_freed() -> None:
    fleet = Fleet([POD])
    waiting = claim_of(0, ClaimSpec(kind="ipu", size=8, gcds=2))
    fleet.apply(FleetChanges(claims={waiting.id: (waiting, None)}))
    with Turn(fleet, Policy(), NOW) as turn:
        turn.handle_input(
            ForeignPartitionsListed(POD.name, {"theirs": Block(range(3, 6)), "spared": Block(range(6, 7))})
        )
        turn.schedule()
    fleet.apply(turn.changes)
    first = explain_wait(fleet, waiting, NOW).reasons[0]
    assert (first.code, first.message) == (
        "queue.reserved",
        "devices 0-7 of pod are kept for it, and in partitions that no claim holds: spared, theirs",
    )


def test_devices_that_wait_for_other_resources_are_not_said_to_be_in_use() -> None:
    fleet = Fleet([POD])
    greedy, waiting = (claim_of(n, ClaimSpec(kind="ipu", size=2, resources={"memory": 6})) for n in range(2))
    hold(fleet, greedy, 0, removing=False)
    fleet.apply(FleetChanges(claims={waiting.id: (waiting, None)}))
    with Turn(fleet, Policy(), NOW) as turn:
        turn.schedule()
    fleet.apply(turn.changes)
    assert [(reason.code, reason.message) for reason in explain_wait(fleet, waiting, NOW).reasons] == [
        ("queue.reserved", "devices 2-3 of pod are free and kept for it; 6 of memory asked, 3 of 9 left"),
        ("pool.resource_short", "waits for 2 devices in pod: 6 of memory asked, 3 of 9 left"),
    ]


def test_many_who_wait_for_memory_alone_end_no_turn() -> None:
    """Those of one project that ask for the same stand in lines of their own where a limit counts each user."""
    pool = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(1, 8, 8), (("memory", 9),))
    world = World(pool)
    world.step(SetProject(Project(name="default", user_devices_max=8), None))
    world.ready(8, owner="local/a", time_limit_s=900.0, resources={"memory": 5})
    world.step(replace(world.asks(8), owner="user/bob", subject="bob"))
    for user in ("bob", "cyd", "dan", "eve"):
        world.step(replace(world.asks(0, resources={"memory": 8}), owner=f"user/{user}", subject=user))
    assert len(list(world.fleet.pending_claims())) == 5
    told = [explain_wait(world.fleet, claim, world.now) for claim in world.fleet.pending_claims()]
    assert {one.code for wait in told for one in wait.reasons} == {"queue.reserved", "pool.full", "pool.resource_short"}
