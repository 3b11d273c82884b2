"""Reclaim: which borrowers must yield so that a guaranteed claim gets its devices, with the least lost work.

Whole claims are asked to yield, never parts of one. Eligible are preemptible borrowers (in no cell), and, within the
claim's own guarantee, claims of lower priority. Of all places for the claim, the one free soonest is taken (no claim is
asked before it has run ``min_run_s``), then the one that loses the fewest device-seconds of work: each holder's
devices, times the time since its last checkpoint plus the cost of a restart. One number decides, not the count of
claims: four claims of one device that have just saved lose less than one that did not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moorings.core.guarantees.guarantee_map import DeviceCountMap, GuaranteedPlacement, GuaranteeMap, UsableGuarantees
from moorings.core.guarantees.guarantee_use import GuaranteeUse
from moorings.core.guarantees.project_limits import LimitDeficits
from moorings.core.model.claims import Claim, ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.owners import is_within
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.plans import Holder

CHOICES_MAX: Final = 200_000  # holders times devices; beyond it, the cheapest are taken one by one
MAKING_S_MIN: Final = 1.0  # no claim is asked to yield before it has something to give back


@dataclass(frozen=True, slots=True)
class ReclaimCandidate:
    """A place, the holders that must leave it, when all of them may be asked, and the device-seconds lost."""

    place: GuaranteedPlacement
    victims: tuple[Holder, ...]
    possible_at: Timestamp
    lost_device_s: float

    @property
    def cost(self) -> tuple[Timestamp, float, int, int]:
        """The sort key: the least is best."""
        return (
            self.possible_at,
            self.lost_device_s,
            len(self.place.cell),
            self.place.block.start if len(self.place.block) else 0,
        )


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

    def reclaim_cost(self, tenant: Holder) -> tuple[Timestamp, float]:
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


class ReclaimSearch:
    """The search of one pass over the queue; it remembers costs, and requests without a result.

    Attributes:
        asked: holders that already yield or move for a claim.
    """

    def __init__(self, use: GuaranteeUse, policy: Policy, now: Timestamp) -> None:
        self.asked: set[ClaimId] = set()
        self._use = use
        self._costs: defaultdict[PoolName, ReclaimCosts] = defaultdict(lambda: ReclaimCosts(policy, now))
        self._hopeless: set[tuple[PoolName, str, int, int | None]] = set()  # requests without holders to reclaim from

    def ask(self, holder: Holder) -> None:
        """Record that a holder yields or moves."""
        self.asked.add(holder.claim)
        self._costs[holder.pool].holders = None

    def find(
        self, claim: Claim, pools: Iterable[PoolState], deficits: LimitDeficits
    ) -> tuple[ReclaimCandidate, PoolState] | None:
        """The cheapest place for a claim within its guarantee, and its pool; None: there is none.

        Args:
            claim: the claim.
            pools: the pools to look in; the claim is within its guarantee there.
            deficits: what must also be given back under limits of projects.
        """
        best: tuple[ReclaimCandidate, PoolState] | None = None
        for state in pools:
            found = self._find_in(claim, state, deficits)
            if found is not None and (best is None or found.cost < best[0].cost):
                best = (found, state)
        return best

    def _find_in(self, claim: Claim, state: PoolState, deficits: LimitDeficits) -> ReclaimCandidate | None:
        name, spec, survey = state.pool.name, claim.spec, self._use.survey
        over = self._use.preemptible_below(claim)
        request = (name, spec.project, spec.size, over)
        if request in self._hopeless:
            return None
        found = find_cheapest_reclaim(
            survey.maps[name],
            survey.usable(spec.project, name, spec.size),
            state,
            spec.size,
            over,
            list(survey.holders[name].values()),
            self.asked,
            self._costs[name],
            LimitDeficit(deficits, survey.everywhere) if deficits else None,
        )
        if found is None:
            self._hopeless.add(request)
        return found


def find_cheapest_reclaim(
    estate: GuaranteeMap,
    open_cells: UsableGuarantees,
    state: PoolState,
    size: int,
    preempt_below: int | None,
    tenants: Sequence[Holder],
    asked: Collection[ClaimId],
    known: ReclaimCosts,
    overdraft: LimitDeficit | None = None,
) -> ReclaimCandidate | None:
    """The place in a pool that a guaranteed claim of ``size`` should get; None: there is none.

    Args:
        estate: the pool's cells.
        open_cells: the cells that the claim may use.
        state: the pool; blocks reserved for others are taken in its free map.
        size: devices.
        preempt_below: holders within these cells with a priority below this may be asked; None: none of them.
        tenants: the holders in the pool.
        asked: holders that already yield for another claim.
        known: the costs of reclaiming from the holders in this pool.
        overdraft: what must also be given back under limits; None: no limit bars the claim.
    """
    due = _DeficitVictims(overdraft, asked, known) if overdraft is not None else None
    if isinstance(estate, DeviceCountMap):
        able = [tenant for tenant in tenants if tenant.claim not in asked]
        return _cheapest_by_count(estate, open_cells, state, size, preempt_below, able, known, due)
    best: ReclaimCandidate | None = None
    if known.holders is None:
        known.holders = holders_by_device(tenants, asked)
    holder = known.holders
    for place in estate.iter_placements(open_cells, size, preempt_below):
        inside_it = {one.claim: one for index in place.block if (one := holder.get(index)) is not None}
        victims = list(inside_it.values())
        if not all(_may_be_asked(tenant, place, preempt_below) for tenant in victims):
            continue
        inside = sum(1 for tenant in victims for index in tenant.block if index in place.block)
        free = sum(len(part) for part in state.free.free_within(place.block))
        if free + inside < size:
            continue  # something in it is reserved for others, or out of service
        more = due.additional_victims(victims) if due is not None else []
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
    if tenant.is_leaving:
        return now, 0.0
    if tenant.ready_at is None:  # its partition is being created
        when = add_seconds(now, max(policy.min_run_s, MAKING_S_MIN))
    else:
        when = max(now, add_seconds(tenant.ready_at, policy.min_run_s))
    return when, tenant.lost_device_s(now) + len(tenant.block) * policy.move_s


class _DeficitVictims:
    """Holders that must also yield because of limits."""

    def __init__(self, overdraft: LimitDeficit, asked: Collection[ClaimId], known: ReclaimCosts) -> None:
        self._owed = overdraft.owed
        able = [one for one in overdraft.tenants if _is_lent(one) and one.claim not in asked]
        self._known = known
        self._able = sorted(able, key=lambda one: (*known.reclaim_cost(one), one.claim))

    def additional_victims(self, victims: Iterable[Holder]) -> list[Holder] | None:
        """The cheapest holders that must yield beside ``victims``; None: they are not enough."""
        chosen = {tenant.claim: tenant for tenant in victims}
        more: list[Holder] = []
        for project, devices in self._owed:
            given = sum(
                len(one.block) for one in chosen.values() if not one.is_leaving and is_within(one.project, project)
            )
            rest = [one for one in self._able if one.claim not in chosen and is_within(one.project, project)]
            found = _cheapest(rest, devices - given, self._known)
            if found is None:
                return None
            more += found
            chosen.update((one.claim, one) for one in found)
        return more


def _is_lent(tenant: Holder) -> bool:
    return tenant.guaranteed_block is None and tenant.is_preemptible and not tenant.is_leaving


def _wanted(place: GuaranteedPlacement, victims: Iterable[Holder], known: ReclaimCosts) -> ReclaimCandidate:
    chosen = tuple(victims)
    when = max((known.reclaim_cost(tenant)[0] for tenant in chosen), default=known.now)
    return ReclaimCandidate(place, chosen, when, sum(known.reclaim_cost(tenant)[1] for tenant in chosen))


def _may_be_asked(tenant: Holder, place: GuaranteedPlacement, over: int | None) -> bool:
    if tenant.is_leaving:
        return True
    if not tenant.is_preemptible:
        return False
    if tenant.guaranteed_block is None:
        return True
    return tenant.guaranteed_block == place.cell and over is not None and tenant.priority < over


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
    for place in estate.iter_placements(open_cells, size, over):
        used = estate.preemptible_holders(open_cells, over) if over is not None else []
        worth = {one.claim: count for one, count in used if one.claim in held}
        own = [held[ident] for ident in worth]
        own.sort(key=lambda one: (not one.is_leaving, one.priority, known.reclaim_cost(one)))
        first = _enough(own, size - estate.unused_devices(open_cells), worth)
        if first is None:
            continue
        forced = due.additional_victims(first) if due is not None else []
        if forced is None:
            continue
        first += forced
        free = state.free.n_free
        gained = sum(len(one.block) for one in first if one.pool == state.pool.name)
        others = [
            one
            for one in tenants
            if one.guaranteed_block is None and (one.is_leaving or one.is_preemptible) and one not in first
        ]
        others.sort(key=lambda one: (not one.is_leaving, *known.reclaim_cost(one), one.claim))
        more = _cheapest(others, size - free - gained, known)
        if more is None:
            continue
        victims = [*first, *more]
        here = [one for one in victims if one.pool == state.pool.name]
        everything = Block(range(state.pool.topology.n_devices))
        devices = [index for part in state.free.free_within(everything) for index in part][:size]
        devices += [index for one in here for index in one.block]
        block = Block.of(sorted(devices[:size]))
        found = _wanted(GuaranteedPlacement(place.owner, block, block), victims, known)
        if best is None or found.cost < best.cost:
            best = found
    return best


def _cheapest(tenants: Sequence[Holder], needed: int, known: ReclaimCosts) -> list[Holder] | None:
    """The holders that together hold enough, can be asked soonest, and lose least; None: all together are too few.

    Args:
        tenants: those already leaving, then the others by cost.
        needed: devices.
        known: for each, when it may be asked and what it loses.
    """
    worth = {tenant.claim: len(tenant.block) for tenant in tenants}
    few = _enough(tenants, needed, worth)
    if not few or few[-1].is_leaving or len(tenants) * needed > CHOICES_MAX:
        return few
    gone = [tenant for tenant in few if tenant.is_leaving]
    last = max(known.reclaim_cost(tenant)[0] for tenant in few)
    able = [one for one in tenants if not one.is_leaving and known.reclaim_cost(one)[0] <= last]
    needed -= sum(worth[tenant.claim] for tenant in gone)
    # For each number of devices, up to the needed one: the least loss, and by which holders (as bits).
    least: list[tuple[float, int] | None] = [(0.0, 0), *(None for _ in range(needed))]
    for number, tenant in enumerate(able):
        for have in range(needed - 1, -1, -1):
            before = least[have]
            if before is None:
                continue
            then = min(needed, have + worth[tenant.claim])
            lost = before[0] + known.reclaim_cost(tenant)[1]
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
        if not tenant.is_leaving and have - worth[tenant.claim] >= needed:
            chosen.remove(tenant)
            have -= worth[tenant.claim]
    return chosen
