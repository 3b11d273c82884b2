"""The queue: who is next, what they get, what is kept for the first that must wait, and why the others wait.

``plan`` is the one decision function: the scheduler applies its grants, ``explain`` words its waits, a replay repeats
it. Order is priority, then arrival. The first claim of a pool that does not fit gets a reservation: the block that can
be emptied soonest is chosen for it and nobody later may enter it; they may pass it anywhere else (law 7).

A turn must cost what it decides, not what waits: claims that ask for the same devices stand in one line, and a line is
left as soon as the rest of it can get nothing. Refused: a walk over the whole queue. It decides the same (the tests
compare the two), but took milliseconds a turn with 10,000 waiting, and seconds where every large block has a broken
device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from moorings.core.announced import Announced, Offer
from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState, QueueMode
from moorings.core.devices import PoolName
from moorings.core.errors import MooringsError
from moorings.core.fleet import Devices, Fleet, PoolState, Reservation, Soonest, enough, holds, line_of
from moorings.core.instants import Instant, after
from moorings.core.placement import NEVER, OUT_OF_SERVICE, Hold, Trial, trial
from moorings.core.policy import Policy
from moorings.core.quantities import amount_text
from moorings.core.reasons import Reason
from moorings.core.topology import Block

BLOCKERS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim gets a block (None: it asked for no devices)."""

    claim: ClaimId
    pool: PoolName
    block: Block | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: so specific that nothing is left to choose while doing it."""

    grants: tuple[Grant, ...]
    reservations: tuple[Reservation, ...]
    offers: tuple[Offer, ...] = ()


def pools_for(spec: ClaimSpec, pools: Mapping[PoolName, PoolState]) -> list[PoolState]:
    """The pools that could serve it if they were empty, in the order of the pools file.

    Raises:
        MooringsError: ``pool.unknown``, ``kind.unknown``, ``claim.*``: no pool ever could; names the nearest miss.
    """
    if spec.pool is not None and spec.pool not in pools:
        raise MooringsError(
            "pool.unknown", f"there is no pool {spec.pool!r}", hint=f"pools: {', '.join(pools) or 'none'}"
        )
    named = [pools[spec.pool]] if spec.pool is not None else list(pools.values())
    of_kind = [state for state in named if state.pool.kind == spec.kind]
    if not of_kind:
        where = f"pool {spec.pool} has no" if spec.pool is not None else "no pool has"
        kinds = ", ".join(sorted({state.pool.kind for state in named}))
        raise MooringsError("kind.unknown", f"{where} accelerators of kind {spec.kind[:40]!r}", hint=f"kinds: {kinds}")
    able: list[PoolState] = []
    misses: list[tuple[PoolState, Reason]] = []
    for state in of_kind:
        miss = why_never(spec, state)
        if miss is None:
            able.append(state)
        else:
            misses.append((state, miss))
    if not able:
        state, miss = max(misses, key=lambda pair: pair[0].pool.topology.max_block)
        raise MooringsError(miss.code, f"pool {state.pool.name}: {miss.message}", hint=miss.hint)
    return able


def why_never(spec: ClaimSpec, state: PoolState) -> Reason | None:
    """Why a pool could not serve it even if it were empty, or None."""
    if spec.size:
        miss = state.pool.topology.why_not(spec.size, spec.gcds)
        if miss is not None:
            return miss
    offered = dict(state.pool.resources)
    for name, amount in sorted(spec.resources.items()):
        if offered.get(name, 0) < amount:
            has = amount_text(offered.get(name, 0))
            return Reason("claim.too_large", f"{amount_text(amount)} of {name!r} is more than the {has} it has")
    return None


_HOLDS = frozenset({ClaimState.GRANTED, ClaimState.READY, ClaimState.RECLAIMING})


class _Turn:
    """One pass over the queue on trial maps."""

    def __init__(
        self,
        pools: Mapping[PoolName, PoolState],
        trials: Mapping[PoolName, Trial],
        policy: Policy,
        now: Instant,
    ) -> None:
        self.pools = pools
        self.now = now
        self.trials = trials
        self.policy = policy
        self.grants: list[Grant] = []
        self.reservations: dict[tuple[PoolName, bool], Reservation] = {}  # one for devices, one for resources alone
        self.lent: list[Reservation] = []  # free blocks of announced jobs, which their own scheduler may start
        self.used = {name: dict(state.used) for name, state in pools.items()}
        self._granted: dict[PoolName, list[Hold]] = {name: [] for name in pools}
        self._hopeless: set[tuple[PoolName, int]] = set()  # sizes of which no block will ever be empty, as it looks now

    def serve(self, lines: Iterable[Iterator[Claim]]) -> None:
        """Visit the claims of all lines in the queue's order, but leave a line once the rest of it can get nothing.

        What is free only shrinks during a pass, and what is kept only grows: who asks for no less than one who got
        nothing gets nothing.
        """
        heads = [(claim.order, claim, rest) for rest in lines if (claim := next(rest, None)) is not None]
        heapify(heads)
        none_left: set[Devices] = set()  # whatever else is asked for with them
        while heads:
            _, claim, rest = heads[0]
            devices, resources = line_of(claim.spec)
            served = devices not in none_left and self._visit(claim)
            following = next(rest, None) if served else None
            if following is not None:
                heapreplace(heads, (following.order, following, rest))
                continue
            heappop(heads)
            if resources and not served and not self._may_be_had(claim.spec):
                none_left.add(devices)

    def _visit(self, claim: Claim) -> bool:
        """Grant it a block, or keep one for it; whether it got either."""
        able = self._pools(claim.spec)
        for state in able:
            grant = self._fit(claim, state)
            if grant is not None and claim.state is ClaimState.ANNOUNCED:
                self.lent.append(Reservation(claim.id, grant.pool, grant.block or Block(()), Instant(0)))
                return True
            if grant is not None:
                self.grants.append(grant)
                return True
        return self.policy.reserve and claim.spec.queue is QueueMode.WAIT and self._reserve(claim, able)

    def _may_be_had(self, spec: ClaimSpec) -> bool:
        """Whether who asks for the same devices and other resources may get what this one did not."""
        reserves = self.policy.reserve and spec.queue is QueueMode.WAIT
        return not spec.size or any(
            not state.problem
            and ((reserves and not self._keeps(state, spec.size)) or state.free.find(spec.size) is not None)
            for state in self.pools.values()
            if state.pool.kind == spec.kind and spec.pool in (None, state.pool.name)
        )

    def _pools(self, spec: ClaimSpec) -> list[PoolState]:
        """``pools_for`` without the refusal: a waiting claim's pool may have gone from the pools file."""
        try:
            return pools_for(spec, self.pools)
        except MooringsError:
            return []

    def _keeps(self, state: PoolState, size: int) -> bool:
        """Whether a pool can keep nothing more for claims of a size: it does so already, or no block would empty."""
        name = state.pool.name
        return (name, size > 0) in self.reservations or (name, size) in self._hopeless

    def _fit(self, claim: Claim, state: PoolState) -> Grant | None:
        spec, name = claim.spec, state.pool.name
        if state.problem or not enough(state.pool, self.used[name], spec.resources):
            return None
        block = None
        if spec.size:
            block = state.free.find(spec.size)
            if block is None:
                return None
            self.trials[name].take(block)
            until = after(self.now, spec.time_limit_s) if spec.time_limit_s is not None else NEVER
            self._granted[name].append(Hold(block, until))
        self._use(spec, name)
        return Grant(claim.id, name, block)

    def _reserve(self, claim: Claim, able: Iterable[PoolState]) -> bool:
        """Keep a block for it in the pool where that is soonest, of those that keep none yet.

        Who asks for no devices keeps only the resources: it must not take the place of one who waits for a block.
        """
        best: tuple[Instant, int, PoolState, Block] | None = None
        for state in able:
            if state.problem or self._keeps(state, claim.spec.size):
                continue
            found = self._soonest(state, claim.spec.size) if claim.spec.size else (Block(()), NEVER, 0)
            if found is None or found[1] >= OUT_OF_SERVICE:
                self._hopeless.add((state.pool.name, claim.spec.size))
                continue
            block, until, held = found
            if best is None or (until, held) < best[:2]:
                best = (until, held, state, block)
        if best is None:
            return False
        until, _, state, block = best
        for part in state.free.free_within(block) if len(block) else ():
            self.trials[state.pool.name].take(part)
        self._use(claim.spec, state.pool.name)
        kept = Reservation(claim.id, state.pool.name, block, until)
        self.reservations[state.pool.name, claim.spec.size > 0] = kept
        return True

    def _soonest(self, state: PoolState, size: int) -> tuple[Block, Instant, int] | None:
        """The block that can be emptied soonest, when, and how many of its devices are held."""
        granted = self._granted[state.pool.name]
        if granted:
            return soonest(state, size, granted, self.now).found
        return _remembered(state, size, self.now).found

    def offers(self, announced: Iterable[Announced]) -> Iterator[Offer]:
        """What each queue's scheduler may start: what is kept for its jobs, and for the first queue what is left.

        No device is offered twice. Of one queue's own jobs the order does not matter here: its scheduler chooses.
        """
        for number, told in enumerate(announced):
            for name, state in self.pools.items():
                if state.pool.kind != told.accelerator:
                    continue
                own = [r.block for r in self.lent if r.pool == name and r.claim.startswith(f"{told.queue}/")]
                with trial(state.free) as only:
                    if number:
                        for block in whole(state):
                            only.take(block)
                    for block in own:
                        only.release(block)
                    sizes = () if state.problem else state.pool.topology.sizes
                    counts = tuple((size, count) for size in sizes if (count := state.free.count(size)))
                yield Offer(told.queue, name, counts)

    def _use(self, spec: ClaimSpec, pool: PoolName) -> None:
        for name, amount in spec.resources.items():
            self.used[pool][name] = self.used[pool].get(name, 0) + amount


def whole(state: PoolState) -> list[Block]:
    """All that is free in a pool, as blocks that can be taken."""
    n_devices, step = state.pool.topology.n_devices, state.pool.topology.max_block
    starts = range(0, n_devices, step)
    return [block for at in starts for block in state.free.free_within(Block(range(at, min(at + step, n_devices))))]


def soonest(state: PoolState, size: int, granted: Iterable[Hold], now: Instant) -> Soonest:
    """The answer that ``PoolState.soonest`` remembers, worked out; with what this turn has granted in the pool."""
    held = [*holds(state, now), *granted]
    ends = [hold.until for hold in state.holds.values()]
    since = max((end for end in ends if end <= now), default=Instant(0))
    before = min((end for end in ends if end > now), default=NEVER)
    found = state.free.soonest(size, held)
    if found is None:
        return Soonest(None, since, before)
    block, until = found
    n_held = sum(len(hold.block) for hold in held if hold.block.overlaps(block))
    return Soonest((block, until, n_held), since, before)


def _remembered(state: PoolState, size: int, now: Instant) -> Soonest:
    known = state.soonest.get(size)
    if known is None or not known.since <= now < known.before:
        known = state.soonest[size] = soonest(state, size, (), now)
    return known


def next_up(fleet: Fleet, now: Instant) -> dict[PoolName, Claim]:
    """Who gets what becomes free next in each pool, if it is large enough: nobody who could use it waits before them.

    Announced jobs count like claims, also those that have only to be started: until then their block looks free, and
    is not. Who waits for devices of which some are out of service, whatever the block, could use nothing.
    """
    waiting = [fleet.claims[line[0][2]] for line in fleet.lines.values()]  # those behind them ask for the same
    waiting += [claim for told in fleet.announced.values() for claim in told.claims()]
    first: dict[PoolName, Claim] = {}
    for claim in sorted(waiting, key=lambda one: one.order):
        for name, state in fleet.pools.items():
            if name not in first and _could_use(claim.spec, state, now):
                first[name] = claim
    return first


def held_by(fleet: Fleet, told: Announced) -> dict[PoolName, dict[int, int]]:
    """How many partitions of each size a queue's claims hold, of those that can be had again at once.

    So none that is being removed or lost, none with a device that goes out of service, none while its driver is away.
    """
    held: dict[PoolName, dict[int, int]] = {}
    for partition in fleet.partitions.values():
        claim, state = fleet.claims.get(partition.claim), fleet.pools.get(partition.pool)
        if claim is None or claim.state not in _HOLDS or claim.partition != partition.id or not told.owns(claim.owner):
            continue
        if state is None or state.problem or any(index in state.out for index in partition.block):
            continue
        sizes = held.setdefault(partition.pool, {})
        sizes[partition.size] = sizes.get(partition.size, 0) + 1
    return {pool: dict(sorted(sizes.items())) for pool, sizes in sorted(held.items())}


def others_wait(fleet: Fleet, told: Announced) -> tuple[PoolName, ...]:
    """The pools for whose devices somebody waits who is not of that queue, whether or not he comes first."""
    waiting = [
        next((claim for order in line if not told.owns((claim := fleet.claims[order[2]]).owner)), None)
        for line in fleet.lines.values()
    ]
    waiting += [claim for other in fleet.announced.values() if other.queue != told.queue for claim in other.claims()]
    specs = [claim.spec for claim in waiting if claim is not None and claim.spec.size]
    return tuple(name for name, state in fleet.pools.items() if any(_is_for(spec, state) for spec in specs))


def _is_for(spec: ClaimSpec, state: PoolState) -> bool:
    """Whether a pool could serve it if it were empty."""
    if spec.kind != state.pool.kind or spec.pool not in (None, state.pool.name):
        return False
    return why_never(spec, state) is None


def _could_use(spec: ClaimSpec, state: PoolState, now: Instant) -> bool:
    """Whether a claim waits for devices of a pool, and a block there could be emptied for it."""
    if not spec.size or state.problem or not _is_for(spec, state):
        return False
    found = _remembered(state, spec.size, now).found
    return found is not None and found[1] < OUT_OF_SERVICE


def plan(
    pools: Mapping[PoolName, PoolState],
    lines: Iterable[Iterator[Claim]],
    policy: Policy,
    now: Instant,
    announced: Sequence[Announced] = (),
) -> Plan:
    """Who gets which block now, and what is kept for those who must wait.

    Args:
        pools: the pools; their free maps are as they were when this returns.
        lines: the claims in the queue, each line (``fleet.line_of``) first to last.
        policy: what the admin chose.
        now: the turn's time, from which the time limits of new grants count.
        announced: what other schedulers' queues told; their jobs stand in ``lines``.
    """
    with ExitStack() as stack:
        trials = {name: stack.enter_context(trial(state.free)) for name, state in pools.items()}
        turn = _Turn(pools, trials, policy, now)
        turn.serve(lines)
        reservations = (*turn.reservations.values(), *turn.lent)
        return Plan(tuple(turn.grants), reservations, tuple(turn.offers(announced)))


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a claim waits: its place (1 is next), and every reason, the weightiest first."""

    position: int
    reasons: tuple[Reason, ...]


def explain(fleet: Fleet, claim: Claim, now: Instant) -> Wait:
    """Why a pending claim of the fleet waits, from the same maps and reservations its turn saw."""
    position = bisect_left(fleet.queue, claim.order) + 1
    mine = next((r for r in fleet.reservations if r.claim == claim.id), None)
    try:
        able = pools_for(claim.spec, fleet.pools)
    except MooringsError as refusal:
        return Wait(position, (Reason(refusal.code, f"no pool can serve it now: {refusal.detail}", hint=refusal.hint),))
    reasons = [_why(fleet, claim, state) for state in able]
    if mine is not None:
        reasons.insert(0, _kept(fleet, mine, now))
    return Wait(position, tuple(reasons))


def unreachable(state: PoolState) -> Reason:
    """Why nothing goes on in a pool whose driver does not answer."""
    name = state.pool.name
    hint = f"its admins find out with 'moor describe pool {name}' and 'moor doctor'"
    return Reason("pool.unreachable", f"pool {name} cannot be reached: {state.problem}", hint=hint)


def _why(fleet: Fleet, claim: Claim, state: PoolState) -> Reason:
    spec, name = claim.spec, state.pool.name
    wants = f"waits for {_devices(spec.size)} in {name}"
    if state.problem:
        return unreachable(state)
    rivals = [r for r in fleet.reservations if r.pool == name and r.claim != claim.id]
    ahead = next((r for r in rivals if len(r.block)), None) if spec.size else next(iter(rivals), None)
    if (short := _short(state, spec)) is not None:
        return Reason("pool.resource_short", f"{wants}: {short}")
    if spec.size and state.free.find(spec.size) is None:
        return _no_room(fleet, state, spec, wants, ahead)
    if ahead is not None:
        until = ahead.until if 0 < ahead.until < NEVER else None
        kept = f"{wants}: what is free is kept for {_first(fleet, ahead)}"
        return Reason("queue.kept_for_other", kept, (ahead.claim,), until)
    return Reason("queue.next_turn", f"{wants}: it fits and is granted in the next turn")


def _short(state: PoolState, spec: ClaimSpec) -> str | None:
    """Which secondary resource a pool has too little left of, in words; None: of none."""
    name = next((name for name, amount in spec.resources.items() if not state.room({name: amount})), None)
    if name is None:
        return None
    offered = dict(state.pool.resources)[name]
    left = amount_text(offered - state.used.get(name, 0))
    return f"{amount_text(spec.resources[name])} of {name} asked, {left} of {amount_text(offered)} left"


def _first(fleet: Fleet, ahead: Reservation) -> str:
    keeper = fleet.claims.get(ahead.claim)
    return _called(fleet, ahead.claim) + (
        f", which comes first and needs {_devices(keeper.spec.size)}" if keeper else ""
    )


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _called(fleet: Fleet, ident: ClaimId) -> str:
    """A claim as a human knows it: its name, and whose it is."""
    claim = fleet.claims.get(ident)
    return f"{claim.name} ({claim.subject})" if claim is not None else ident


def _no_room(fleet: Fleet, state: PoolState, spec: ClaimSpec, wants: str, ahead: Reservation | None) -> Reason:
    free, largest = state.free.free, state.free.largest()
    scattered = free >= spec.size
    room = f"{free} free, largest block {largest}" if scattered else f"{free} of {state.pool.topology.n_devices} free"
    out = f", {len(state.out)} out of service" if state.out else ""
    first = f"; first in line is {_first(fleet, ahead)}" if ahead is not None else ""
    hint = f"with {_devices(largest)} or fewer it would fit now" if largest and ahead is None else ""
    return Reason(
        "pool.fragmented" if scattered else "pool.full",
        f"{wants}: {room}{out}{first}",
        (ahead.claim,) if ahead is not None else (),
        hint=hint,
    )


def _kept(fleet: Fleet, mine: Reservation, now: Instant) -> Reason:
    holders = _holders(fleet, mine)
    until = mine.until if now < mine.until < NEVER else None
    if not holders:
        return Reason("queue.reserved", _unheld(fleet, mine))
    shown = ", ".join(_called(fleet, holder) for holder in holders[:BLOCKERS_SHOWN])
    shown += " and others" if len(holders) > BLOCKERS_SHOWN else ""
    endless = [holder for holder in holders if fleet.claims[holder].spec.time_limit_s is None]
    limit = (
        "" if not endless else " (no time limit)" if len(endless) == len(holders) else " (some without a time limit)"
    )
    what = f"devices {mine.block} of {mine.pool} are kept for it, still held by {shown}{limit}"
    return Reason("queue.reserved", what, tuple(holders), until)


def _unheld(fleet: Fleet, mine: Reservation) -> str:
    """What is kept and held by no claim: devices that wait for other resources, or that the hardware still frees."""
    claim, pool = fleet.claims.get(mine.claim), fleet.pools[mine.pool]
    short = _short(pool, claim.spec) if claim is not None else None
    if not len(mine.block):
        return f"it is next: {short}" if short is not None else "it is next"
    free = sum(len(part) for part in pool.free.free_within(mine.block))
    state = "free and kept for it" if free == len(mine.block) else "being freed for it"
    return f"devices {mine.block} of {mine.pool} are {state}" + (f"; {short}" if short is not None else "")


def _holders(fleet: Fleet, mine: Reservation) -> Sequence[ClaimId]:
    """The unended claims on the devices that are kept."""
    return sorted(
        partition.claim
        for partition in fleet.partitions.values()
        if partition.pool == mine.pool and partition.block.overlaps(mine.block) and partition.claim in fleet.claims
    )
