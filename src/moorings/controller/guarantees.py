"""Metrics of guarantees, counted on demand: what projects hold, and which claims are owed devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from moorings.core.cells import GuaranteeMap, build_guarantee_map
from moorings.core.claims import Claim, ClaimState
from moorings.core.devices import PoolName
from moorings.core.explain import list_holders
from moorings.core.fleet import Fleet
from moorings.core.instants import SECOND, Timestamp
from moorings.core.plans import Holder
from moorings.core.policy import Policy
from moorings.core.quotas import quota_rows

PROJECTS_MEASURED_MAX: Final = 128  # labels must stay few: the projects highest in the tree


@dataclass(frozen=True, slots=True)
class GuaranteeMetrics:
    """The metrics; every pool is there.

    Attributes:
        devices: by (project, pool, ``guaranteed|held|borrowed``); of defined projects, with their subprojects.
        overdue: claims that were asked to yield or move and missed the deadline, by pool.
        owed: pending claims within their projects' guarantees, each counted by itself, by pool.
        oldest_s: how long the first of them has waited, by pool; 0 if there is none.
        bound_s: the time within which such a claim gets its devices, plus the time the hardware takes.
    """

    devices: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    overdue: Mapping[str, int] = field(default_factory=dict)
    owed: Mapping[str, int] = field(default_factory=dict)
    oldest_s: Mapping[str, float] = field(default_factory=dict)
    bound_s: float = 0.0


def collect_guarantee_metrics(fleet: Fleet, policy: Policy, now: Timestamp) -> GuaranteeMetrics:
    """The metrics of this moment."""
    overdue = dict.fromkeys(map(str, fleet.pools), 0)
    for claim in map(fleet.claims.get, fleet.asked):
        if claim is not None and claim.pool in overdue and _is_overdue(claim, now):
            overdue[claim.pool] += 1
    owed, oldest_s = _due_claims(fleet, policy, now)
    return GuaranteeMetrics(_devices(fleet, policy, now), overdue, owed, oldest_s, policy.bound_s)


def _is_overdue(claim: Claim, now: Timestamp) -> bool:
    return claim.state is ClaimState.RECLAIMING and claim.asked_until is not None and claim.asked_until < now


def _devices(fleet: Fleet, policy: Policy, now: Timestamp) -> dict[tuple[str, str, str], int]:
    names = sorted(fleet.projects.by_name, key=lambda name: (name.count("/"), name))[:PROJECTS_MEASURED_MAX]
    measured = set(names)
    found: dict[tuple[str, str, str], int] = {}
    for row in quota_rows(fleet, now, policy) if measured else ():
        if row.project in measured and row.pool in fleet.pools:
            for use, count in (("guaranteed", row.guaranteed), ("held", row.held), ("borrowed", row.borrowed)):
                found[row.project, row.pool, use] = count
    return found


def _due_claims(fleet: Fleet, policy: Policy, now: Timestamp) -> tuple[dict[str, int], dict[str, float]]:
    owed = dict.fromkeys(map(str, fleet.pools), 0)
    oldest_s = dict.fromkeys(owed, 0.0)
    tenants = list_holders(fleet) if fleet.projects else []
    estates = {name: estate for name in fleet.pools if (estate := _estate(fleet, name, tenants)) is not None}
    if not estates:
        return owed, oldest_s
    held = _held(fleet, tenants)
    known: dict[tuple[PoolName, str, int, int], bool] = {}
    barred: dict[tuple[str, str, int], bool] = {}
    for claim in fleet.waiting():
        spec = claim.spec
        who = (spec.project, claim.user, spec.size)
        if who not in barred:
            barred[who] = not spec.size or _is_over_user_limit(fleet, claim, held)
        if barred[who]:
            continue
        for name, estate in estates.items():
            if fleet.pools[name].pool.kind != spec.kind or spec.pool not in (None, name):
                continue
            asks = (name, spec.project, spec.size, spec.priority)
            if asks not in known:
                cells = fleet.projects.open_cells(spec.project, name)
                known[asks] = estate.may_use(cells, spec.size, spec.priority if policy.preempt else None)
            if known[asks]:
                owed[name] += 1
                oldest_s[name] = max(oldest_s[name], (now - claim.arrival) / SECOND)
    return owed, oldest_s


def _estate(fleet: Fleet, name: PoolName, tenants: list[Holder]) -> GuaranteeMap | None:
    cells, state = fleet.projects.cells(name), fleet.pools[name]
    if not cells:
        return None
    here = [tenant for tenant in tenants if tenant.pool == name]
    owners = {tenant.project: fleet.projects.lineage(tenant.project) for tenant in here}
    out = {*state.out, *(index for theirs in state.foreign.values() for index in theirs)}
    return build_guarantee_map(state.pool, cells, here, out, owners)


def _held(fleet: Fleet, tenants: list[Holder]) -> dict[tuple[str, str], int]:
    """Devices that users hold in each project and its parts."""
    held: dict[tuple[str, str], int] = {}
    for tenant in tenants:
        for name in fleet.projects.lineage(tenant.project):
            held[name, tenant.subject] = held.get((name, tenant.subject), 0) + len(tenant.block)
    return held


def _is_over_user_limit(fleet: Fleet, claim: Claim, held: Mapping[tuple[str, str], int]) -> bool:
    """Whether its user may hold no more. The user of another scheduler's job is not known here, so it has no limit."""
    if not claim.user:
        return False
    above = (fleet.projects.get(name) for name in fleet.projects.lineage(claim.spec.project))
    limits = ((one.name, one.user_devices_max) for one in above if one is not None)
    size = claim.spec.size
    return any(most is not None and held.get((name, claim.user), 0) + size > most for name, most in limits)
