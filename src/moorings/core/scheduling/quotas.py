"""Quotas: each project's guarantee, and what it holds, borrows and waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from moorings.core.model.block_packing import BlockCounts, add_counts, count_devices
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, guaranteed_blocks_in, parent_of, usage_now
from moorings.core.model.timestamps import HOUR_S, SECOND, Timestamp
from moorings.core.placement.fleet import Fleet
from moorings.core.placement.plans import Holder
from moorings.core.scheduling.explain import list_holders


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectQuota:
    """One project in one pool, with all its descendants (except ``used_device_hours``).

    Attributes:
        project: its path.
        pool: the pool; empty: it has nothing in any.
        blocks: its guarantee, ``(size, count)`` by ascending size.
        held: devices it holds within a guarantee, its own or an ancestor's.
        borrowed: devices it holds beside that.
        waiting: pending claims that may be served there; one that names no pool counts in all that could serve it.
        waiting_devices: devices these request.
        used_device_hours: decayed usage of its own claims in all pools, with present use.
        weight: the larger, the more it may use before others come first.
        devices_max: devices it holds at once, at most, in all pools together; None: no limit.
    """

    project: str
    pool: PoolName
    blocks: BlockCounts = ()
    held: int = 0
    borrowed: int = 0
    waiting: int = 0
    waiting_devices: int = 0
    used_device_hours: float = 0.0
    weight: float = 1.0
    devices_max: int | None = None

    @property
    def guaranteed(self) -> int:
        """Guaranteed devices."""
        return count_devices(self.blocks)


@dataclass(slots=True)
class _Counts:
    held: int = 0
    borrowed: int = 0
    waiting: int = 0
    waiting_devices: int = 0


def quota_rows(fleet: Fleet, now: Timestamp, policy: Policy) -> list[ProjectQuota]:
    """The quota of each project and pool: of all defined projects, and of others that hold or wait.

    A project has a row for each pool in which it has a guarantee, holds or waits for something, but at least one.
    """
    projects = fleet.projects
    tenants = list_holders(fleet)
    counts = {name: {share.pool: _Counts() for share in project.shares} for name, project in projects.by_name.items()}
    for tenant in tenants:
        for name in projects.lineage(tenant.project):
            of_pool = counts.setdefault(name, {}).setdefault(tenant.pool, _Counts())
            if tenant.guaranteed_block is not None:
                of_pool.held += len(tenant.block)
            else:
                of_pool.borrowed += len(tenant.block)
    for waits_for, pool, size, count in _waiting(fleet):
        for name in projects.lineage(waits_for):
            of_pool = counts.setdefault(name, {}).setdefault(pool, _Counts())
            of_pool.waiting += count
            of_pool.waiting_devices += size * count
    used = _usage_hours(fleet, tenants, now, policy)
    rows: list[ProjectQuota] = []
    for name, pools in sorted(counts.items()):
        known, hours = projects.get(name) or Project(name=name), used.get(name, 0.0)
        rows += [
            ProjectQuota(
                project=name,
                pool=pool,
                blocks=guaranteed_blocks_in(known, pool),
                held=counted.held,
                borrowed=counted.borrowed,
                waiting=counted.waiting,
                waiting_devices=counted.waiting_devices,
                used_device_hours=hours,
                weight=known.weight,
                devices_max=known.devices_max,
            )
            for pool, counted in sorted((pools or {PoolName(""): _Counts()}).items())
        ]
    return rows


def merge_hidden(rows: Iterable[ProjectQuota], is_shown: Callable[[str], bool], name: str) -> list[ProjectQuota]:
    """The shown rows, and for each pool one of that name with the sum of the others.

    A project's numbers include its parts', so only hidden projects without a parent are counted.
    """
    shown: list[ProjectQuota] = []
    hidden: dict[PoolName, ProjectQuota] = {}
    for row in rows:
        if is_shown(row.project):
            shown.append(row)
        elif not parent_of(row.project) and row.pool:
            sum_ = hidden.get(row.pool, ProjectQuota(project=name, pool=row.pool))
            hidden[row.pool] = replace(
                sum_,
                blocks=add_counts([sum_.blocks, row.blocks]),
                held=sum_.held + row.held,
                borrowed=sum_.borrowed + row.borrowed,
                waiting=sum_.waiting + row.waiting,
                waiting_devices=sum_.waiting_devices + row.waiting_devices,
            )
    return [*shown, *hidden.values()]


def _waiting(fleet: Fleet) -> Iterator[tuple[str, PoolName, int, int]]:
    """Pending claims: (project, pool, devices of each claim, claims)."""
    for ((kind, named, size, _, _), (project, _, _), _), line in fleet.pending_classes.items():
        able = [
            state.pool.name
            for state in fleet.pools.values()
            if state.pool.kind == kind and named in (None, state.pool.name)
        ]
        # Without projects, one class may hold claims of several names.
        parts = [(project, len(line))] if project else [(fleet.claims[order[2]].spec.project, 1) for order in line]
        for pool in able:
            yield from ((name, pool, size, count) for name, count in parts)


def _usage_hours(fleet: Fleet, tenants: list[Holder], now: Timestamp, policy: Policy) -> dict[str, float]:
    """Device-hours by project, as in the order among borrowers."""
    held = ((one.project, len(one.block), one.ready_at) for one in tenants if one.ready_at is not None)
    used = usage_now(fleet.usage.values(), held, now, policy.half_life_s)
    return {name: amount / SECOND / HOUR_S for name, amount in used.items()}
