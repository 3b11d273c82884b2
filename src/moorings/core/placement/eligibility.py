"""Which pools could serve a request if they were empty."""

from __future__ import annotations

from collections.abc import Mapping

from moorings.core.model.claims import ClaimSpec
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.machine import MACHINE_KIND, MACHINE_POOL, machine_amount_text
from moorings.core.model.quantities import amount_text
from moorings.core.model.reasons import Reason
from moorings.core.placement.fleet import PoolState, short_resource


def eligible_pools(spec: ClaimSpec, pools: Mapping[PoolName, PoolState]) -> list[PoolState]:
    """The pools that could serve it if they were empty, in the order of the pools file.

    Raises:
        MooringsError: ``pool.unknown``, ``kind.unknown``, ``claim.*``: no pool ever could; names the nearest miss.
    """
    if spec.pool is not None and spec.pool not in pools:
        raise MooringsError(
            "pool.unknown", f"there is no pool {spec.pool!r}", hint=f"pools: {', '.join(pools) or 'none'}"
        )
    machine = pools.get(MACHINE_POOL)
    if machine is not None and (miss := _too_little(spec.machine, machine)) is not None:
        raise MooringsError(miss.code, miss.message, hint=miss.hint)
    named = [pools[spec.pool]] if spec.pool is not None else list(pools.values())
    of_kind = [state for state in named if state.pool.kind == spec.kind]
    if not of_kind:
        where = f"pool {spec.pool} has no" if spec.pool is not None else "no pool has"
        kinds = ", ".join(sorted({state.pool.kind for state in named}))
        raise MooringsError("kind.unknown", f"{where} accelerators of kind {spec.kind[:40]!r}", hint=f"kinds: {kinds}")
    able: list[PoolState] = []
    misses: list[tuple[PoolState, Reason]] = []
    for state in of_kind:
        miss = ineligible_reason(spec, state)
        if miss is None:
            able.append(state)
        else:
            misses.append((state, miss))
    if not able:
        state, miss = max(misses, key=lambda pair: pair[0].pool.topology.max_block)
        where = "" if state.pool.kind == MACHINE_KIND else f"pool {state.pool.name}: "
        raise MooringsError(miss.code, f"{where}{miss.message}", hint=miss.hint)
    return able


def ineligible_reason(spec: ClaimSpec, state: PoolState) -> Reason | None:
    """Why a pool could not serve it even if it were empty; None: it could."""
    if spec.size:
        miss = state.pool.topology.ineligible_reason(spec.size, spec.gcds)
        if miss is not None:
            return miss
    return _too_little(spec.resources, state)


def _too_little(wanted: Mapping[str, int], state: PoolState) -> Reason | None:
    """Why a pool could not offer these secondary resources even if it were empty; None: it could."""
    # Most requests want none: looked at first, because a turn asks this of every class of waiting claims.
    name = short_resource(state.pool, {}, dict(sorted(wanted.items()))) if wanted else None
    if name is None:
        return None
    has, amount = dict(state.pool.resources).get(name, 0), wanted[name]
    if state.pool.kind == MACHINE_KIND:
        text = (
            f"{machine_amount_text(name, amount)} are more than the {amount_text(has)} that this machine has for jobs"
        )
        return Reason("claim.too_large", text, hint=f"ask for {amount_text(has)} or fewer for all tasks together")
    return Reason("claim.too_large", f"{amount_text(amount)} of {name!r} is more than the {amount_text(has)} it has")
