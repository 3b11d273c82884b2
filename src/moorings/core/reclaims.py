"""Reclaim: which borrowers have to yield so that a guaranteed claim has its devices, and lose least by it.

Whole claims are asked, never parts of one. Asked may be who borrowed (is in no cell) and said that it can yield, and
within the claim's own guarantee who has a lower priority. Of all places for the claim the one is taken that can be had
soonest (nobody is asked before it has run ``min_run_s``), then the one where the fewest device-seconds of work are
lost: each tenant's devices, times the time since its last checkpoint and what starting anew costs. One number decides,
not the count of claims: four claims of one device that have just saved lose less than one that did not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moorings.core.cells import DeviceCountMap, GuaranteedPlacement, GuaranteeMap, UsableGuarantees
from moorings.core.claims import ClaimId
from moorings.core.fleet import PoolState
from moorings.core.instants import Timestamp, add_seconds
from moorings.core.plans import Holder
from moorings.core.policy import Policy
from moorings.core.topology import Block

CHOICES_MAX: Final = 200_000  # tenants times devices; beyond, those that are cheapest one by one are taken
MAKING_S_MIN: Final = 1.0  # nobody is asked before there is something to give back


@dataclass(frozen=True, slots=True)
class ReclaimCandidate:
    """A place, who has to leave it, when all of them may be asked, and the device-seconds that are lost."""

    place: GuaranteedPlacement
    victims: tuple[Holder, ...]
    when: Timestamp
    lost: float

    @property
    def cost(self) -> tuple[Timestamp, float, int, int]:
        """What is compared: the least is best."""
        return (self.when, self.lost, len(self.place.cell), self.place.block.start if len(self.place.block) else 0)


class ReclaimCosts:
    """What is reckoned once a turn of the tenants of a pool.

    Attributes:
        now: the turn's time.
        holders: who holds each device, but those that were asked already; None: not reckoned.
    """

    def __init__(self, policy: Policy, now: Timestamp) -> None:
        self.now = now
        self.holders: dict[int, Holder] | None = None
        self._policy = policy
        self._prices: dict[ClaimId, tuple[Timestamp, float]] = {}

    def price(self, tenant: Holder) -> tuple[Timestamp, float]:
        """When a tenant may be asked, and the device-seconds it loses."""
        found = self._prices.get(tenant.claim)
        if found is None:
            found = self._prices[tenant.claim] = _reclaim_cost(tenant, self._policy, self.now)
        return found


@dataclass(frozen=True, slots=True)
class LimitDeficit:
    """What must be given back under limits of projects before a claim may have its devices, wherever they are.

    Attributes:
        owed: (project, devices): so many by whomever borrowed in that project, the nearest first.
        tenants: who holds what, in all pools.
    """

    owed: tuple[tuple[str, int], ...]
    tenants: Sequence[Holder]


def find_cheapest_reclaim(
    estate: GuaranteeMap,
    open_cells: UsableGuarantees,
    state: PoolState,
    size: int,
    over: int | None,
    tenants: Sequence[Holder],
    asked: Collection[ClaimId],
    policy: Policy,
    now: Timestamp,
    known: ReclaimCosts | None = None,
    overdraft: LimitDeficit | None = None,
) -> ReclaimCandidate | None:
    """The place in a pool that a guaranteed claim of ``size`` should be given; None: there is none.

    Args:
        estate: the pool's cells.
        open_cells: those the claim may use.
        state: the pool; what is kept for others is taken in its free map.
        size: devices.
        over: tenants within these cells with a priority below this may be asked; None: none of them.
        tenants: who holds what in the pool.
        asked: those that yield for somebody else already.
        policy: how long borrowers run at least, and what it costs to start anew.
        now: the turn's time.
        known: what was reckoned for the same tenants in this pool before, in the same turn.
        overdraft: what must be given back besides; None: no limit stands against the claim.
    """
    known = known if known is not None else ReclaimCosts(policy, now)
    due = _DeficitVictims(overdraft, asked, known) if overdraft is not None else None
    if isinstance(estate, DeviceCountMap):
        able = [tenant for tenant in tenants if tenant.claim not in asked]
        return _cheapest_by_count(estate, open_cells, state, size, over, able, known, due)
    best: ReclaimCandidate | None = None
    if known.holders is None:
        known.holders = holders_by_device(tenants, asked)
    holder = known.holders
    for place in estate.places(open_cells, size, over):
        inside_it = {one.claim: one for index in place.block if (one := holder.get(index)) is not None}
        victims = list(inside_it.values())
        if not all(_may_be_asked(tenant, place, over) for tenant in victims):
            continue
        inside = sum(1 for tenant in victims for index in tenant.block if index in place.block)
        free = sum(len(part) for part in state.free.free_within(place.block))
        if free + inside < size:
            continue  # something in it is kept for others, or out of service
        more = due.beside(victims) if due is not None else []
        if more is None:
            continue
        victims += more
        found = _wanted(place, victims, known)
        if best is None or found.cost < best.cost:
            best = found
    return best


def holders_by_device(tenants: Iterable[Holder], asked: Collection[ClaimId]) -> dict[int, Holder]:
    """Who holds each device of a pool, but those that were asked already."""
    found: dict[int, Holder] = {}
    for tenant in tenants:
        if tenant.claim not in asked:
            found.update(dict.fromkeys(tenant.block.members, tenant))
    return found


def _reclaim_cost(tenant: Holder, policy: Policy, now: Timestamp) -> tuple[Timestamp, float]:
    """When a tenant may be asked, and the device-seconds it loses."""
    if tenant.leaving:
        return now, 0.0
    if tenant.since is None:  # its partition is being made
        when = add_seconds(now, max(policy.min_run_s, MAKING_S_MIN))
    else:
        when = max(now, add_seconds(tenant.since, policy.min_run_s))
    return when, tenant.lost(now) + len(tenant.block) * policy.move_s


class _DeficitVictims:
    """Who else has to yield for the sake of limits."""

    def __init__(self, overdraft: LimitDeficit, asked: Collection[ClaimId], known: ReclaimCosts) -> None:
        self._owed = overdraft.owed
        able = [one for one in overdraft.tenants if _is_lent(one) and one.claim not in asked]
        self._known = known
        self._able = sorted(able, key=lambda one: (*known.price(one), one.claim))

    def beside(self, victims: Iterable[Holder]) -> list[Holder] | None:
        """Those that must yield beside ``victims``, as few and cheap as they are; None: they are not enough."""
        chosen = {tenant.claim: tenant for tenant in victims}
        more: list[Holder] = []
        for project, devices in self._owed:
            given = sum(len(one.block) for one in chosen.values() if not one.leaving and _is_part(one.project, project))
            rest = [one for one in self._able if one.claim not in chosen and _is_part(one.project, project)]
            found = _cheapest(rest, devices - given, self._known)
            if found is None:
                return None
            more += found
            chosen.update((one.claim, one) for one in found)
        return more


def _is_lent(tenant: Holder) -> bool:
    return tenant.cell is None and tenant.preemptible and not tenant.leaving


def _is_part(name: str, project: str) -> bool:
    return name == project or name.startswith(f"{project}/")


def _wanted(place: GuaranteedPlacement, victims: Iterable[Holder], known: ReclaimCosts) -> ReclaimCandidate:
    chosen = tuple(victims)
    when = max((known.price(tenant)[0] for tenant in chosen), default=known.now)
    return ReclaimCandidate(place, chosen, when, sum(known.price(tenant)[1] for tenant in chosen))


def _may_be_asked(tenant: Holder, place: GuaranteedPlacement, over: int | None) -> bool:
    if tenant.leaving:
        return True
    if not tenant.preemptible:
        return False
    if tenant.cell is None:
        return True
    return tenant.cell == place.cell and over is not None and tenant.priority < over


def _cheapest_by_count(
    estate: DeviceCountMap,
    open_cells: UsableGuarantees,
    state: PoolState,
    size: int,
    over: int | None,
    tenants: Sequence[Holder],
    known: ReclaimCosts,
    due: _DeficitVictims | None,
) -> ReclaimCandidate | None:
    """Where any devices do: the cheapest claims that together hold enough."""
    best: ReclaimCandidate | None = None
    held = {tenant.claim: tenant for tenant in tenants}
    for place in estate.places(open_cells, size, over):
        used = estate.within(open_cells, over) if over is not None else []
        worth = {one.claim: count for one, count in used if one.claim in held}
        own = [held[ident] for ident in worth]
        own.sort(key=lambda one: (not one.leaving, one.priority, known.price(one)))
        first = _enough(own, size - estate.left(open_cells), worth)
        if first is None:
            continue
        forced = due.beside(first) if due is not None else []
        if forced is None:
            continue
        first += forced
        free = state.free.free
        gained = sum(len(one.block) for one in first if one.pool == state.pool.name)
        others = [one for one in tenants if one.cell is None and (one.leaving or one.preemptible) and one not in first]
        others.sort(key=lambda one: (not one.leaving, *known.price(one), one.claim))
        more = _cheapest(others, size - free - gained, known)
        if more is None:
            continue
        victims = [*first, *more]
        here = [one for one in victims if one.pool == state.pool.name]
        devices = [index for part in state.free.free_within(_all(state)) for index in part][:size]
        devices += [index for one in here for index in one.block]
        block = Block.of(sorted(devices[:size]))
        found = _wanted(GuaranteedPlacement(place.owner, block, block), victims, known)
        if best is None or found.cost < best.cost:
            best = found
    return best


def _all(state: PoolState) -> Block:
    return Block(range(state.pool.topology.n_devices))


def _cheapest(tenants: Sequence[Holder], needed: int, known: ReclaimCosts) -> list[Holder] | None:
    """Those that together hold enough, can be asked soonest, and lose least; None: all are too few.

    Args:
        tenants: those that leave anyway, then the others by price.
        needed: devices.
        known: of each, when it may be asked and what it loses.
    """
    worth = {tenant.claim: len(tenant.block) for tenant in tenants}
    few = _enough(tenants, needed, worth)
    if not few or few[-1].leaving or len(tenants) * needed > CHOICES_MAX:
        return few
    gone = [tenant for tenant in few if tenant.leaving]
    last = max(known.price(tenant)[0] for tenant in few)
    able = [one for one in tenants if not one.leaving and known.price(one)[0] <= last]
    needed -= sum(worth[tenant.claim] for tenant in gone)
    # For each number of devices, up to what is needed: the least that is lost for them, and by whom (as bits).
    least: list[tuple[float, int] | None] = [(0.0, 0), *(None for _ in range(needed))]
    for number, tenant in enumerate(able):
        for have in range(needed - 1, -1, -1):
            before = least[have]
            if before is None:
                continue
            then = min(needed, have + worth[tenant.claim])
            lost = before[0] + known.price(tenant)[1]
            so_far = least[then]
            if so_far is None or lost < so_far[0]:
                least[then] = (lost, before[1] | 1 << number)
    best = least[needed]
    assert best is not None, "the first few were enough"
    return [*gone, *(tenant for number, tenant in enumerate(able) if best[1] >> number & 1)]


def _enough(tenants: Sequence[Holder], needed: int, worth: Mapping[ClaimId, int]) -> list[Holder] | None:
    """The first of them that together are worth enough, without those that are not needed; None: all are too few."""
    chosen: list[Holder] = []
    have = 0
    for tenant in tenants:
        if have >= needed:
            break
        chosen.append(tenant)
        have += worth[tenant.claim]
    if have < needed:
        return None
    for tenant in sorted(chosen, key=lambda one: -worth[one.claim]):
        if not tenant.leaving and have - worth[tenant.claim] >= needed:
            chosen.remove(tenant)
            have -= worth[tenant.claim]
    return chosen
