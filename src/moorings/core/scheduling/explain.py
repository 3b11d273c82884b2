"""Why a claim waits, and what would let it start now, from the same maps and reservations as its turn used (law 8).

The reasons name other claims only as far as their reader sees these; another is "another job of 4 devices".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from moorings.core.guarantees.guarantee_map import build_pool_guarantees
from moorings.core.guarantees.project_limits import ProjectLimits
from moorings.core.model.access import Ownership
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.machine import MACHINE_KIND, MACHINE_POOL, machine_amount_text
from moorings.core.model.owners import external_job_name
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project
from moorings.core.model.quantities import age_text, amount_text
from moorings.core.model.queue_reports import QueuedJob
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue
from moorings.core.model.visibility import SEES_ALL, Visibility
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.placement.fleet import Fleet, PoolState, ReservedBlock, add_amounts, machine_needs, short_resource
from moorings.core.placement.free_map import NO_RELEASE, savepoint
from moorings.core.placement.plans import Holder, list_holders_of
from moorings.core.scheduling.ageing import ageing_cutoff
from moorings.core.scheduling.relocation import find_relocation, movable_holders

BLOCKERS_SHOWN = 8
MOVES_SHOWN_MAX: Final = 8
HIDDEN_RECLAIM: Final = "its devices are needed for another job; it keeps its place and goes on later"
_NO_AGEING = Policy()


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """Why a claim waits: its position (1 is next), and all reasons, the most important first."""

    position: int
    reasons: tuple[Reason, ...]


def explain_wait(
    fleet: Fleet, claim: Claim, now: Timestamp, policy: Policy = _NO_AGEING, visible: Visibility = SEES_ALL
) -> WaitExplanation:
    """Why a pending claim of the fleet waits, from the same maps and reservations as its turn used.

    Args:
        fleet: as the turn left it.
        claim: the pending claim.
        now: the time.
        policy: the one in force.
        visible: what the reader sees.
    """
    position = bisect_left(fleet.queue, claim.queue_key) + 1
    mine = next((r for r in fleet.reserved_blocks if r.claim == claim.id), None)
    try:
        able = eligible_pools(claim.spec, fleet.pools)
    except MooringsError as refusal:
        return WaitExplanation(
            position, (Reason(refusal.code, f"no pool can serve it now: {refusal.detail}", hint=refusal.hint),)
        )
    reasons = [_why(fleet, claim, state, visible) for state in able]
    by = ageing_cutoff(policy, now)
    barred = _limit_reason(fleet, claim, by, visible)
    if barred is None and mine is None:
        barred = _guarantee_limit_reason(fleet, claim)
    if barred is None and any(reason.code == "queue.next_turn" for reason in reasons):
        barred = _limit_reason(fleet, claim, by, visible, any_order=True)
    if barred is not None:
        reasons = [barred, *(reason for reason in reasons if reason.code != "queue.next_turn")]
    elif mine is None and by is not None:
        pools = [state.pool.name for state in able]
        reasons[:0] = _behind_aged(fleet, claim, pools, by, policy.ageing_s or 0.0, visible)
    lacks_machine = reasons[0] == _machine_reason(fleet, claim, visible)  # its devices are free, or it needs none
    if mine is not None and not (lacks_machine and not _holders(fleet, mine)):
        reasons.insert(0, _reservation_reason(fleet, mine, now, visible))
    return WaitExplanation(position, tuple(reasons))


def _behind_aged(
    fleet: Fleet, claim: Claim, able: Collection[PoolName], by: Timestamp, ageing_s: float, visible: Visibility
) -> Iterator[Reason]:
    """The reason if a claim of lower priority comes first, because it arrived by then and still waits."""
    for kept in fleet.reserved_blocks:
        first = fleet.claims.get(kept.claim) or _announced(fleet, kept.claim)
        if kept.pool not in able or first is None or kept.claim == claim.id:
            continue
        if first.arrival <= by and first.spec.priority < claim.spec.priority:
            text = f"{_claim_label(fleet, first.id, visible)} comes first, whatever the priority: it has waited for"
            hint = "the policy's 'ageing' says for how long a higher priority goes first"
            shown = _shown(fleet, [first.id], visible)
            yield Reason("queue.aged", f"{text} {age_text(ageing_s)} or longer", shown, hint=hint)
            return


def _announced(fleet: Fleet, ident: ClaimId) -> Claim | None:
    return next((one for report in fleet.queue_reports.values() for one in report.to_claims() if one.id == ident), None)


def find_limit_reason(fleet: Fleet, claim: Claim, by: Timestamp | None = None) -> Reason | None:
    """The project limit that bars a claim from free devices; None: there is none.

    ``by``: no priority passes claims that arrived by then.
    """
    return _limit_reason(fleet, claim, by, SEES_ALL) or _guarantee_limit_reason(fleet, claim)


def _limit_reason(
    fleet: Fleet, claim: Claim, by: Timestamp | None, visible: Visibility, *, any_order: bool = False
) -> Reason | None:
    """The project limit that bars a claim.

    Args:
        fleet: as its last turn left it.
        claim: the pending claim.
        by: no priority passes claims that arrived by then.
        visible: what the reader sees.
        any_order: the claim fits and the turn did not serve it. So what is left under the limit is reserved for a later
            claim that comes first because its project used less.
    """
    projects, size = fleet.projects, claim.spec.size
    if not projects or not size:
        return None
    above = [project for name in projects.lineage(claim.spec.project) if (project := projects.get(name)) is not None]
    limited = [project for project in above if project.devices_max is not None or project.has_user_limits]
    for project in limited:
        holders = [tenant for tenant in list_holders(fleet) if project.name in projects.lineage(tenant.project)]
        held = sum(len(tenant.block) for tenant in holders)
        if project.devices_max is not None and held + size > project.devices_max:
            blockers = _shown(fleet, sorted(tenant.claim for tenant in holders), visible)
            return _limit(claim, f"project {project.name}", held, project.devices_max, blockers)
        own = [tenant for tenant in holders if tenant.subject == claim.user]
        mine, user_most = sum(len(tenant.block) for tenant in own), project.user_limit(claim.user)
        if user_most is not None and mine + size > user_most:
            who = f"{claim.subject} in project {project.name}"
            blockers = _shown(fleet, sorted(tenant.claim for tenant in own), visible)
            return _limit(claim, who, mine, user_most, blockers)
        for most, taken, subject, holder in (
            (project.devices_max, held, "", f"project {project.name}"),
            (user_most, mine, claim.user, f"{claim.subject} in project {project.name}"),
        ):
            first = _first_under(fleet, claim, project, most, taken, subject, by, any_order=any_order)
            if first is not None:
                left = f"what is left of the {most} devices of {holder}"
                text = f"{left} is kept for {_claim_label(fleet, first, visible)}, which comes first"
                return Reason("project.limit", text, _shown(fleet, [first], visible))
    return None


def _guarantee_limit_reason(fleet: Fleet, claim: Claim) -> Reason | None:
    """The project limit on devices that are not guaranteed and held by claims that cannot be preempted."""
    projects, spec = fleet.projects, claim.spec
    if not projects or not spec.size or spec.preemptible:
        return None
    limits = ProjectLimits(projects)
    every = list_holders(fleet)
    for state in fleet.pools.values():
        tenants = [tenant for tenant in every if tenant.pool == state.pool.name]
        estate = build_pool_guarantees(fleet.projects, state, tenants)
        for tenant in tenants:
            if tenant.is_firm:
                limits.add_firm(tenant.project, len(tenant.block), estate.devices_by_project(tenant) if estate else {})
    limit = limits.limit_exceeded_by_firm(spec.project, spec.size)
    if limit is None:
        return None
    name, most = limit
    promised = projects.guaranteed_devices(name)
    kept = f"{promised} of the {most} devices that project {name} may hold at once are guaranteed in it"
    if spec.size + promised > most:
        left = f"ask for {most - promised} or fewer, or " if most > promised else ""
        text = f"{kept}; beside them it never gets {spec.size} for a claim that cannot be asked to yield"
        return Reason("project.guaranteed", text, hint=f"{left}let it be asked to yield (preemptible)")
    text = f"{kept}; the others are only lent to claims that can be asked to yield, or are used"
    return Reason("project.guaranteed", text, hint="let it be asked to yield (preemptible), or wait")


def _first_under(
    fleet: Fleet,
    claim: Claim,
    project: Project,
    most: int | None,
    held: int,
    subject: str,
    by: Timestamp | None,
    *,
    any_order: bool,
) -> ClaimId | None:
    """The claim that waits under a limit of a project (or of a subject in it) and is served before this one."""
    if most is None:
        return None
    for other in _all_waiting(fleet) if any_order else _claims_ahead(fleet, claim, by):
        mine = not subject or other.user == subject
        lacks = held + other.spec.size > most >= other.spec.size
        if mine and lacks and project.name in fleet.projects.lineage(other.spec.project):
            return other.id
    return None


def _claims_ahead(fleet: Fleet, claim: Claim, by: Timestamp | None) -> Iterator[Claim]:
    """The claims with a higher priority or an earlier arrival, and the aged claims."""
    place = bisect_left(fleet.queue, claim.queue_key)
    passed = fleet.queue[place + 1 :] if by is not None and claim.arrival > by else ()
    aged = (order for order in passed if by is not None and order[1] <= by)
    return (fleet.claims[order[2]] for order in chain(fleet.queue[:place], aged))


def _all_waiting(fleet: Fleet) -> Iterator[Claim]:
    yield from fleet.pending_claims()
    for report in fleet.queue_reports.values():
        yield from report.to_claims()


def _limit(claim: Claim, who: str, held: int, most: int, blockers: tuple[ClaimId, ...]) -> Reason:
    text = f"{who} holds {held} of the {most} devices it may hold at once, and {claim.spec.size} more were asked for"
    hint = f"with {_devices(most - held)} or fewer it would not stand against it" if held < most else ""
    return Reason("project.limit", text, blockers[:BLOCKERS_SHOWN], hint=hint)


def list_holders(fleet: Fleet) -> list[Holder]:
    """All holders of a fleet."""
    return list_holders_of(fleet.partitions.values(), fleet.claims.get)


def is_guaranteed_to_others(fleet: Fleet, claim: Claim, state: PoolState) -> bool:
    """Whether free devices may not be lent to this claim because it is not preemptible."""
    block = state.free.find_block(claim.spec.size)
    if claim.spec.preemptible or block is None:
        return False
    estate = build_pool_guarantees(
        fleet.projects, state, [tenant for tenant in list_holders(fleet) if tenant.pool == state.pool.name]
    )
    return estate is not None and not estate.passes_lending_check(block)


def _could_ever_be_lent(fleet: Fleet, claim: Claim, state: PoolState) -> bool:
    """Whether an unused pool would have a block for it beside all guarantees."""
    estate, topology, size = build_pool_guarantees(fleet.projects, state, ()), state.pool.topology, claim.spec.size
    if estate is None:
        return True
    if isinstance(topology, Catalogue):
        return any(estate.passes_lending_check(block) for block in topology.blocks if len(block) == size)
    return estate.passes_lending_check(Block(range(size)))  # any aligned block will do there


def unreachable_reason(state: PoolState) -> Reason:
    """Why a pool serves no claims while its driver does not answer."""
    name = state.pool.name
    hint = f"its admins find out with 'moor describe pool {name}' and 'moor doctor'"
    return Reason("pool.unreachable", f"pool {name} cannot be reached: {state.unreachable_reason}", hint=hint)


def _why(fleet: Fleet, claim: Claim, state: PoolState, visible: Visibility) -> Reason:
    spec, name = claim.spec, state.pool.name
    wants = f"waits for {_devices(spec.size)} in {name}"
    if state.unreachable_reason:
        return unreachable_reason(state)
    if state.pool.kind == MACHINE_KIND:
        fits = "waits for CPUs of this machine: it fits and is granted in the next turn"
        return _machine_reason(fleet, claim, visible) or Reason("queue.next_turn", fits)
    rivals = [r for r in fleet.reserved_blocks if r.pool == name and r.claim != claim.id]
    ahead = next((r for r in rivals if len(r.block)), None) if spec.size else next(iter(rivals), None)
    if (short := _resource_shortage(state, spec)) is not None:
        return Reason("pool.resource_short", f"{wants}: {short}")
    if spec.size and state.free.find_block(spec.size) is None:
        return _fragmentation_reason(fleet, state, spec, wants, ahead, visible)
    if (machine := _machine_reason(fleet, claim, visible)) is not None:
        return machine
    if ahead is not None:
        until = ahead.until if 0 < ahead.until < NO_RELEASE else None
        kept = f"{wants}: what is free is kept for {_describe_first(fleet, ahead, visible)}"
        return Reason("queue.kept_for_other", kept, _shown(fleet, [ahead.claim], visible), until)
    if spec.size and is_guaranteed_to_others(fleet, claim, state):
        lent = (
            f"{wants}: what is free is guaranteed to other projects, and only lent to claims that can be asked to yield"
        )
        wait = ", or wait" if _could_ever_be_lent(fleet, claim, state) else ""
        return Reason("project.guaranteed", lent, hint=f"let it be asked to yield (preemptible){wait}")
    return Reason("queue.next_turn", f"{wants}: it fits and is granted in the next turn")


def _machine_reason(fleet: Fleet, claim: Claim, visible: Visibility) -> Reason | None:
    """Why the machine does not serve a claim now: it is full, or keeps the rest for another; None: it could."""
    wanted = machine_needs(claim.spec)
    machine = fleet.pools.get(MACHINE_POOL)
    if machine is None or not wanted:
        return None
    offered, used = dict(machine.pool.resources), machine.used_resources
    name = short_resource(machine.pool, used, wanted)
    if name is not None:
        left = amount_text(max(0, offered[name] - used.get(name, 0)))
        return Reason(
            "machine.full", f"{_wants_of_machine(name, wanted)}: {left} of {amount_text(offered[name])} are free"
        )
    kept = dict(used)
    for rival in fleet.reserved_blocks:
        keeper = fleet.claims.get(rival.claim)
        if keeper is None or keeper.id == claim.id:
            continue
        add_amounts(kept, machine_needs(keeper.spec), 1)
        name = short_resource(machine.pool, kept, wanted)
        if name is not None:
            first = f"{_claim_label(fleet, keeper.id, visible)}, which comes first"
            text = f"{_wants_of_machine(name, wanted)}: what is free is kept for {first}"
            return Reason("queue.kept_for_other", text, _shown(fleet, [keeper.id], visible))
    return None


def _wants_of_machine(name: str, wanted: Mapping[str, int]) -> str:
    return f"waits for {machine_amount_text(name, wanted[name])} of this machine"


def _resource_shortage(state: PoolState, spec: ClaimSpec) -> str | None:
    """The secondary resource that a pool lacks, in words; None: none."""
    name = next((name for name, amount in spec.resources.items() if not state.has_resources({name: amount})), None)
    if name is None:
        return None
    offered = dict(state.pool.resources)[name]
    left = amount_text(offered - state.used_resources.get(name, 0))
    return f"{amount_text(spec.resources[name])} of {name} asked, {left} of {amount_text(offered)} left"


def _describe_first(fleet: Fleet, ahead: ReservedBlock, visible: Visibility) -> str:
    keeper, label = fleet.claims.get(ahead.claim), _claim_label(fleet, ahead.claim, visible)
    if keeper is None:
        return label
    if not visible.includes_claim(keeper):  # its label says how many
        return f"{label}, which comes first"
    return f"{label}, which comes first and needs {_devices(keeper.spec.size)}"


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _claim_label(fleet: Fleet, ident: ClaimId, visible: Visibility) -> str:
    """The name that users know a claim by: the job of another scheduler, else its name and subject.

    The subject of another scheduler's job is its agent's, which means nothing to a user; that of an announced job is
    its owner. Of a claim that the reader does not see only the size is said.
    """
    claim = fleet.claims.get(ident)
    if not _is_shown(fleet, ident, visible):
        other = claim or _find_announced_job(fleet, ident)
        return f"another job of {_devices(other.spec.size)}" if other is not None and other.spec.size else "another job"
    if claim is None:
        return external_job_name(ident) or ident
    return external_job_name(claim.owner) or f"{claim.name} ({claim.subject})"


def _shown(fleet: Fleet, idents: Sequence[ClaimId], visible: Visibility) -> tuple[ClaimId, ...]:
    """Those of the claims that the reader sees."""
    return tuple(ident for ident in idents if _is_shown(fleet, ident, visible))


def _is_shown(fleet: Fleet, ident: ClaimId, visible: Visibility) -> bool:
    if visible.sees_all:
        return True
    claim = fleet.claims.get(ident)
    if claim is not None:
        return visible.includes_claim(claim)
    job = _find_announced_job(fleet, ident)
    return job is not None and visible.includes(Ownership(None, job.owner, job.spec.project))


def _find_announced_job(fleet: Fleet, ident: ClaimId) -> QueuedJob | None:
    """The announced job of that owner; quicker than ``_announced``, which makes claims of all jobs."""
    report = fleet.queue_reports.get("/".join(ident.split("/")[:2]))
    return next((job for job in report.jobs if job.owner == ident), None) if report is not None else None


def redact_reason(fleet: Fleet, reason: Reason | None, visible: Visibility) -> Reason | None:
    """The reason of a claim's state for a reader; a claim that asks for its devices is named only if it is seen."""
    if reason is None or reason.code != "claim.reclaiming" or visible.sees_all:
        return reason
    if reason.blockers and _shown(fleet, [ClaimId(ident) for ident in reason.blockers], visible) == reason.blockers:
        return reason
    return replace(reason, message=HIDDEN_RECLAIM, blockers=())


def _fragmentation_reason(
    fleet: Fleet, state: PoolState, spec: ClaimSpec, wants: str, ahead: ReservedBlock | None, visible: Visibility
) -> Reason:
    free, largest = state.free.n_free, state.free.largest_size()
    scattered = free >= spec.size
    room = f"{free} free, largest block {largest}" if scattered else f"{free} of {state.pool.topology.n_devices} free"
    out = f", {len(state.out_of_service)} out of service" if state.out_of_service else ""
    first = f"; first in line is {_describe_first(fleet, ahead, visible)}" if ahead is not None else ""
    hint = f"with {_devices(largest)} or fewer it would fit now" if largest and ahead is None else ""
    return Reason(
        "pool.fragmented" if scattered else "pool.full",
        f"{wants}: {room}{out}{first}",
        _shown(fleet, [ahead.claim], visible) if ahead is not None else (),
        hint=hint,
    )


def _reservation_reason(fleet: Fleet, mine: ReservedBlock, now: Timestamp, visible: Visibility) -> Reason:
    holders = _holders(fleet, mine)
    until = mine.until if now < mine.until < NO_RELEASE else None
    if not holders:
        first = next((r for r in fleet.reserved_blocks if r.claim != mine.claim and _is_before(r, mine)), None)
        if first is not None:
            label = _claim_label(fleet, first.claim, visible)
            text = f"devices {mine.block} of {mine.pool} are kept for {label}, and then for it"
            return Reason("queue.reserved", text, _shown(fleet, [first.claim], visible))
        return Reason("queue.reserved", _unheld_reason(fleet, mine))
    shown = ", ".join(_claim_label(fleet, holder, visible) for holder in holders[:BLOCKERS_SHOWN])
    shown += " and others" if len(holders) > BLOCKERS_SHOWN else ""
    endless = [holder for holder in holders if fleet.claims[holder].spec.time_limit_s is None]
    asked = [end for holder in holders if (end := fleet.claims[holder].asked_until) is not None]
    limit = ""
    if asked:
        limit = ", asked to yield" if len(asked) == len(holders) else f", {len(asked)} of them asked to yield"
        if len(asked) == len(holders):
            until = max(asked) if now < max(asked) else None
    elif endless and mine.until < NO_RELEASE:  # a holder without a time limit leaves in time only when asked to
        limit = ", to be asked to yield" if len(endless) == len(holders) else ", some of them to be asked to yield"
    elif endless:
        limit = " (no time limit)" if len(endless) == len(holders) else " (some without a time limit)"
    what = f"devices {mine.block} of {mine.pool} are kept for it, still held by {shown}{limit}"
    return Reason("queue.reserved", what, _shown(fleet, holders, visible), until)


def _is_before(other: ReservedBlock, mine: ReservedBlock) -> bool:
    """Whether another claim's reservation comes first: until it has ended, mine cannot be emptied."""
    return other.pool == mine.pool and mine.until >= NO_RELEASE > other.until and other.block.overlaps(mine.block)


def _unheld_reason(fleet: Fleet, mine: ReservedBlock) -> str:
    """A reserved block that no claim holds: it lacks other resources, is being freed, or is in foreign partitions."""
    claim, pool = fleet.claims.get(mine.claim), fleet.pools[mine.pool]
    short = _resource_shortage(pool, claim.spec) if claim is not None else None
    if not len(mine.block):
        if short is None and claim is not None and claim.spec.size and mine.until >= NO_RELEASE:  # it lets others pass
            return "it is next: others are moved for it as soon as enough devices are left over"
        return f"it is next: {short}" if short is not None else "it is next"
    free = sum(len(part) for part in pool.free.free_within(mine.block))
    foreign = sorted(name for name, block in pool.foreign_blocks.items() if block.overlaps(mine.block))
    if foreign:
        shown = ", ".join(foreign[:BLOCKERS_SHOWN]) + (" and others" if len(foreign) > BLOCKERS_SHOWN else "")
        state = f"kept for it, and in partitions that no claim holds: {shown}"
    else:
        state = "free and kept for it" if free == len(mine.block) else "being freed for it"
    return f"devices {mine.block} of {mine.pool} are {state}" + (f"; {short}" if short is not None else "")


def _holders(fleet: Fleet, mine: ReservedBlock) -> Sequence[ClaimId]:
    """The unended claims on the reserved devices."""
    return sorted(
        partition.claim
        for partition in fleet.partitions.values()
        if partition.pool == mine.pool and partition.block.overlaps(mine.block) and partition.claim in fleet.claims
    )


# -- what would let it start now: the same plan as serves it, with one thing changed -----------------------------------


@dataclass(frozen=True, slots=True)
class StartOption:
    """One way to start now: a stable code, and a sentence."""

    code: str
    message: str
    claims: tuple[ClaimId, ...] = ()


def list_start_options(
    fleet: Fleet, policy: Policy, now: Timestamp, claim: Claim, visible: Visibility = SEES_ALL
) -> tuple[StartOption, ...]:
    """The options, the least trouble first; empty: it can only wait."""
    try:
        able = [state for state in eligible_pools(claim.spec, fleet.pools) if not state.unreachable_reason]
    except MooringsError:
        return ()
    if _machine_reason(fleet, claim, visible) is not None:
        return ()  # other devices would not help
    return (
        *_smaller(fleet, claim, able, ageing_cutoff(policy, now)),
        *_relocation_options(fleet, policy, now, claim, able, visible),
    )


def _smaller(fleet: Fleet, claim: Claim, able: list[PoolState], by: Timestamp | None) -> Iterator[StartOption]:
    """With fewer devices, outside the blocks reserved for earlier claims."""
    best = 0
    for state in able:
        with savepoint(state.free) as only:
            for kept in fleet.reserved_blocks:
                if kept.pool == state.pool.name and kept.claim != claim.id and len(kept.block):
                    for part in state.free.free_within(kept.block):
                        only.allocate(part)
            sizes = sorted((size for size in state.pool.topology.sizes if best < size < claim.spec.size), reverse=True)
            found = (
                size for size in sizes if state.free.find_block(size) and _is_allowed(fleet, claim, state, size, by)
            )
            best = max(best, next(found, 0))
    if best:
        yield StartOption("smaller", f"it would start now with {best} device{'s' if best != 1 else ''}")


def _is_allowed(fleet: Fleet, claim: Claim, state: PoolState, size: int, by: Timestamp | None) -> bool:
    """Whether neither limits nor guarantees of others bar it from so many devices."""
    smaller = replace(claim, spec=replace(claim.spec, size=size))
    return find_limit_reason(fleet, smaller, by) is None and not is_guaranteed_to_others(fleet, smaller, state)


def _relocation_options(
    fleet: Fleet, policy: Policy, now: Timestamp, claim: Claim, able: list[PoolState], visible: Visibility
) -> Iterator[StartOption]:
    """With other claims moved, which ones: suggested whether or not the policy moves claims."""
    size = claim.spec.size
    for state in able:
        if not size or isinstance(state.pool.topology, AnySubset) or state.free.find_block(size) is not None:
            continue
        guaranteed = bool(fleet.projects.guaranteed_blocks(state.pool.name))
        tenants = movable_holders(list_holders(fleet), state.pool.name, guaranteed=guaranteed)
        room = find_relocation(state, size, tenants, now, policy.move_s, MOVES_SHOWN_MAX)
        if room is not None:
            moved = tuple(tenant.claim for tenant, _ in room.moves)
            names = ", ".join(
                fleet.claims[ident].name if _is_shown(fleet, ident, visible) else _claim_label(fleet, ident, visible)
                for ident in moved
            )
            moves = "went on elsewhere" if len(moved) == 1 else "all went on elsewhere"
            text = f"it would start now if {names} {moves}, which would lose {room.cost / 60:.0f} device-minutes"
            yield StartOption("moved", text, _shown(fleet, moved, visible))
            return
