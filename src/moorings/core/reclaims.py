"""Reclaim: which borrowers must yield so that a guaranteed claim gets its devices, with the least lost work.

Whole claims are asked to yield, never parts of one. Eligible are preemptible borrowers (in no cell), and, within the
claim's own guarantee, claims of lower priority. Of all places for the claim, the one free soonest is taken (no claim is
asked before it has run ``min_run_s``), then the one that loses the fewest device-seconds of work: each holder's
devices, times the time since its last checkpoint plus the cost of a restart. One number decides, not the count of
claims: four claims of one device that have just saved lose less than one that did not.
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

CHOICES_MAX: Final = 200_000  # holders times devices; beyond it, the cheapest are taken one by one
MAKING_S_MIN: Final = 1.0  # no claim is asked to yield before it has something to give back


@dataclass(frozen=True, slots=True)
class ReclaimCandidate:
    """A place, the holders that must leave it, when all of them may be asked, and the device-seconds lost."""

    place: GuaranteedPlacement
    victims: tuple[Holder, ...]
    when: Timestamp
    lost: float

    @property
    def cost(self) -> tuple[Timestamp, float, int, int]:
        """The sort key: the least is best."""
        return (self.when, self.lost, len(self.place.cell), self.place.block.start if len(self.place.block) else 0)


class ReclaimCosts:
    """The costs of reclaiming from the holders of a pool, computed once a turn.

    Attributes:
        now: the turn's time.
        holders: the holder of each device, except holders already asked; None: not computed yet.
    """

    def __init__(self, policy: Policy, now: Timestamp) -> None:
        self.now = now
        self.holders: dict[int, Holder] | None = None
        self._policy = policy
        self._prices: dict[ClaimId, tuple[Timestamp, float]] = {}

    def price(self, tenant: Holder) -> tuple[Timestamp, float]:
        """When a holder may be asked, and the device-seconds it loses."""
        found = self._prices.get(tenant.claim)
        if found is None:
            found = self._prices[tenant.claim] = _reclaim_cost(tenant, self._policy, self.now)
        return found


@dataclass(frozen=True, slots=True)
class LimitDeficit:
    """What must be given back under limits of projects before a claim may have its devices, wherever they are.

    Attributes:
        owed: (project, devices) that borrowers in that project must give back, the nearest first.
        tenants: the holders in all pools.
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
    """The place in a pool that a guaranteed claim of ``size`` should get; None: there is none.

    Args:
        estate: the pool's cells.
        open_cells: the cells that the claim may use.
        state: the pool; blocks reserved for others are taken in its free map.
        size: devices.
        over: holders within these cells with a priority below this may be asked; None: none of them.
        tenants: the holders in the pool.
        asked: holders that already yield for another claim.
        policy: gives the minimum run time of borrowers and the cost of a restart.
        now: the turn's time.
        known: costs computed earlier in this turn for the same holders in this pool.
        overdraft: what must also be given back under limits; None: no limit bars the claim.
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
            continue  # something in it is reserved for others, or out of service
        more = due.beside(victims) if due is not None else []
        if more is None:
            continue
        victims += more
        found = _wanted(place, victims, known)
        if best is None or found.cost < best.cost:
            best = found
    return best


def holders_by_device(tenants: Iterable[Holder], asked: Collection[ClaimId]) -> dict[int, Holder]:
    """The holder of each device of a pool, except holders already asked."""
    found: dict[int, Holder] = {}
    for tenant in tenants:
        if tenant.claim not in asked:
            found.update(dict.fromkeys(tenant.block.members, tenant))
    return found


def _reclaim_cost(tenant: Holder, policy: Policy, now: Timestamp) -> tuple[Timestamp, float]:
    """When a holder may be asked, and the device-seconds it loses."""
    if tenant.leaving:
        return now, 0.0
    if tenant.since is None:  # its partition is being created
        when = add_seconds(now, max(policy.min_run_s, MAKING_S_MIN))
    else:
        when = max(now, add_seconds(tenant.since, policy.min_run_s))
    return when, tenant.lost(now) + len(tenant.block) * policy.move_s


class _DeficitVictims:
    """Holders that must also yield because of limits."""

    def __init__(self, overdraft: LimitDeficit, asked: Collection[ClaimId], known: ReclaimCosts) -> None:
        self._owed = overdraft.owed
        able = [one for one in overdraft.tenants if _is_lent(one) and one.claim not in asked]
        self._known = known
        self._able = sorted(able, key=lambda one: (*known.price(one), one.claim))

    def beside(self, victims: Iterable[Holder]) -> list[Holder] | None:
        """The cheapest holders that must yield beside ``victims``; None: they are not enough."""
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
    """The cheapest claims that together hold enough, if any devices will do."""
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
    """The holders that together hold enough, can be asked soonest, and lose least; None: all together are too few.

    Args:
        tenants: those already leaving, then the others by cost.
        needed: devices.
        known: for each, when it may be asked and what it loses.
    """
    worth = {tenant.claim: len(tenant.block) for tenant in tenants}
    few = _enough(tenants, needed, worth)
    if not few or few[-1].leaving or len(tenants) * needed > CHOICES_MAX:
        return few
    gone = [tenant for tenant in few if tenant.leaving]
    last = max(known.price(tenant)[0] for tenant in few)
    able = [one for one in tenants if not one.leaving and known.price(one)[0] <= last]
    needed -= sum(worth[tenant.claim] for tenant in gone)
    # For each number of devices, up to the needed one: the least loss, and by which holders (as bits).
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
    """The first holders that together are worth enough, without superfluous ones; None: all together are too few."""
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
