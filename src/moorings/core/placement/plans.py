"""The input and output of a plan: values between the turn, the queue, and estimates and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.model.access import MOVABLE_OWNER_PREFIXES
from moorings.core.model.claims import LEAVING, PRIORITY_MAX, Claim, ClaimId, ClaimSpec, ClaimState, PoolBlock
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import Partition
from moorings.core.model.projects import Projects
from moorings.core.model.queue_reports import Offer, QueueReport
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Block
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.placement.fleet import PoolState, ReservedBlock
from moorings.core.placement.pending_classes import ClassKey, PendingClassReader


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim gets a block (None: it asked for no devices); ``cell``: the guaranteed block around it, if any."""

    claim: ClaimId
    pool: PoolName
    block: Block | None
    cell: Block | None = None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """``claim`` must yield so that ``for_claim`` is served; ``move_target``: the block it moves to (None: it waits)."""

    claim: ClaimId
    for_claim: ClaimId
    move_target: PoolBlock | None = None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves that would free a block for a claim: suggested, not done.

    Attributes:
        claim: the claim that the block is for.
        spot: the block that would be free.
        moves: which claims would move where.
        cost: device-seconds that would be lost.
    """

    claim: ClaimId
    spot: PoolBlock
    moves: tuple[Reclaim, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What to do now: so specific that nothing is left to choose while doing it."""

    grants: tuple[Grant, ...]
    reservations: tuple[ReservedBlock, ...]
    offers: tuple[Offer, ...] = ()
    reclaims: tuple[Reclaim, ...] = ()
    adopted: tuple[tuple[ClaimId, Block | None], ...] = ()  # claims that enter a cell, or (None) leave one
    suggested_moves: tuple[MovePlan, ...] = ()


def plan_payload(decided: SchedulePlan) -> dict[str, object]:
    """A decision, as in ``turn.decided``."""
    payload: dict[str, object] = {
        "grants": [[g.claim, g.pool, str(g.block) if g.block is not None else None] for g in decided.grants],
        "reservations": [[r.claim, r.pool, str(r.block), r.until] for r in decided.reservations],
    }
    if decided.adopted:
        payload["adopted"] = [[claim, str(cell) if cell is not None else None] for claim, cell in decided.adopted]
    if decided.reclaims:
        payload["reclaims"] = [
            [
                r.claim,
                r.for_claim,
                *([r.move_target.pool, str(r.move_target.block)] if r.move_target is not None else ()),
            ]
            for r in decided.reclaims
        ]
    return payload


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that holds a block, with the facts that matter to claims that need it.

    Attributes:
        project: its claim's.
        subject: its claim's user.
        priority: its claim's.
        guaranteed_block: its guaranteed block; None: it borrowed its block.
        is_preemptible: may be asked to yield, once its partition is ready.
        is_movable: may be asked to move: it resumes from its checkpoint.
        is_resumable: is movable, or will be once it is ready.
        is_leaving: is asked already, or has ended.
        ready_at: when its block was ready; None: it is not yet.
        checkpoint_at: when its job last saved a checkpoint; None: never.
        waited_s: how long its claim had waited when it was granted; 0: it had yielded before.
    """

    claim: ClaimId
    pool: PoolName
    block: Block
    project: str = ""
    subject: str = ""
    priority: int = 0
    guaranteed_block: Block | None = None
    is_preemptible: bool = False
    is_movable: bool = False
    is_resumable: bool = False
    is_leaving: bool = False
    ready_at: Timestamp | None = None
    checkpoint_at: Timestamp | None = None
    waited_s: float = 0.0

    @property
    def is_firm(self) -> bool:
        """Whether its block counts as taken for every guarantee: it cannot be preempted, or is within its own."""
        return self.guaranteed_block is not None or not (self.is_preemptible or self.is_leaving)

    def with_ageing_protection(self, ageing_s: float | None) -> Holder:
        """This holder, with the highest priority if it had waited that long for its block, so that none preempts it.

        Otherwise a higher priority would still pass an aged claim, after its grant.
        """
        return self if ageing_s is None or self.waited_s < ageing_s else replace(self, priority=PRIORITY_MAX)

    def lost_device_s(self, now: Timestamp) -> float:
        """Device-seconds of work since its last checkpoint, lost if it stops now."""
        since = max(self.ready_at or now, self.checkpoint_at or Timestamp(0))
        return len(self.block) * (now - since) / SECOND if since < now else 0.0


def holder_from_claim(claim: Claim, pool: PoolName, block: Block) -> Holder:
    """The holder of a block, from its claim."""
    runs = claim.state is ClaimState.READY and claim.kept is None
    spec = claim.spec
    resumable = spec.checkpoint.resumable and claim.owner.startswith(MOVABLE_OWNER_PREFIXES)
    return Holder(
        claim=claim.id,
        pool=pool,
        block=block,
        project=spec.project,
        subject=claim.user,
        priority=spec.priority,
        guaranteed_block=claim.cell
        if claim.cell is not None and claim.cell.overlaps(block)
        else None,  # an older release led
        is_preemptible=spec.preemptible and (runs or claim.state is ClaimState.GRANTED),
        is_movable=runs and resumable,
        is_resumable=resumable,
        is_leaving=claim.state in LEAVING,
        ready_at=claim.ready_at,
        checkpoint_at=claim.checkpoint_at,
        waited_s=waited_s(claim, claim.granted_at),
    )


def waited_s(claim: Claim, granted_at: Timestamp | None) -> float:
    """How long a claim had waited when it was granted, in seconds; 0: it has yielded, or was not granted."""
    return 0.0 if granted_at is None or claim.has_yielded else (granted_at - claim.arrival) / SECOND


def list_holders_of(partitions: Iterable[Partition], claim_of: Callable[[ClaimId], Claim | None]) -> list[Holder]:
    """The holders of these partitions, by their claims."""
    found = ((claim_of(partition.claim), partition) for partition in partitions)
    return [
        holder_from_claim(claim, partition.pool, partition.block)
        for claim, partition in found
        if claim is not None and claim.partition == partition.id
    ]


@dataclass(slots=True)
class SchedulingSnapshot:
    """The input of a plan, which does not change it.

    Attributes:
        pools: the pools as the turn sees them.
        classes: the pending classes.
        queue_reports: reports of other schedulers' queues; their jobs are in ``classes``.
        projects: all projects.
        shares: of each project, its decayed usage divided by its weight; the smaller is served first.
        holders: finds the holders; called only if a claim may have to yield or move.
        moving_claims: claims that were asked to move: their new blocks are reserved for them.
        moves_left: so many claims may still be asked to move now.
        movable_pools: pools in which every holder can be moved.
        resumable_pools: pools in which every holder can be moved, or can be once it is ready.
        pools_by_request: cache of eligible pools by request; valid as long as the pools are the same.
    """

    pools: Mapping[PoolName, PoolState]
    classes: Iterable[tuple[ClassKey, PendingClassReader]]
    queue_reports: Sequence[QueueReport] = ()
    projects: Projects = field(default_factory=Projects)
    shares: Mapping[str, float] = field(default_factory=dict)
    holders: Callable[[], Sequence[Holder]] = list
    moving_claims: Sequence[Claim] = ()
    moves_left: int = 0
    movable_pools: frozenset[PoolName] = frozenset()
    resumable_pools: frozenset[PoolName] = frozenset()
    pools_by_request: dict[tuple[object, ...], list[PoolState]] = field(default_factory=dict)

    @property
    def guaranteed_pools(self) -> frozenset[PoolName]:
        """The pools with guarantees."""
        return frozenset(name for name in self.pools if self.projects.guaranteed_blocks(name))

    def eligible_pools(self, spec: ClaimSpec) -> list[PoolState]:
        """``eligible_pools`` without the error: a pending claim's pool may have gone from the pools file."""
        more = (*spec.resources.items(), None, *spec.machine.items()) if spec.resources or spec.machine else ()
        key = (spec.kind, spec.pool, spec.size, spec.gcds, more)
        known = self.pools_by_request.get(key)
        if known is None:
            try:
                known = eligible_pools(spec, self.pools)
            except MooringsError:
                known = []
            self.pools_by_request[key] = known
        return known
