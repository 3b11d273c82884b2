"""The input and output of a plan: values between the turn, the queue, and estimates and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.access import LOCAL_OWNER_PREFIX
from moorings.core.announced import Offer, QueueReport
from moorings.core.claims import LEAVING, PRIORITY_MAX, Claim, ClaimId, ClaimSpec, ClaimState, PoolBlock
from moorings.core.devices import PoolName
from moorings.core.errors import MooringsError
from moorings.core.fleet import PoolState, ReservedBlock
from moorings.core.instants import SECOND, Timestamp
from moorings.core.lines import ClassKey, PendingClassReader
from moorings.core.partitions import Partition
from moorings.core.projects import Projects
from moorings.core.serving import eligible_pools
from moorings.core.topology import Block


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim gets a block (None: it asked for no devices); ``cell``: the guaranteed block around it, if any."""

    claim: ClaimId
    pool: PoolName
    block: Block | None
    cell: Block | None = None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """``claim`` is asked to yield so that ``by`` can be served; ``to``: the block it moves to (None: it waits)."""

    claim: ClaimId
    by: ClaimId
    to: PoolBlock | None = None


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
    suggested: tuple[MovePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that holds a block, with the facts that matter to claims that need it.

    Attributes:
        project: its claim's.
        subject: its claim's user.
        priority: its claim's.
        cell: its guaranteed block; None: it borrowed its block.
        preemptible: may be asked to yield, once its partition is ready.
        movable: may be asked to move: it resumes from its checkpoint.
        resumable: is movable, or will be once it is ready.
        leaving: is asked already, or has ended.
        since: when its block was ready; None: it is not yet.
        saved: when its job last saved a checkpoint; None: never.
        waited_s: how long its claim had waited when it was granted; 0: it had yielded before.
    """

    claim: ClaimId
    pool: PoolName
    block: Block
    project: str = ""
    subject: str = ""
    priority: int = 0
    cell: Block | None = None
    preemptible: bool = False
    movable: bool = False
    resumable: bool = False
    leaving: bool = False
    since: Timestamp | None = None
    saved: Timestamp | None = None
    waited_s: float = 0.0

    @property
    def is_firm(self) -> bool:
        """Whether its block counts as taken for every guarantee: it cannot be preempted, or is within its own."""
        return self.cell is not None or not (self.preemptible or self.leaving)

    def lasting(self, ageing_s: float | None) -> Holder:
        """This holder, with the highest priority if it had waited that long for its block, so that none preempts it.

        Otherwise a higher priority would still pass an aged claim, after its grant.
        """
        return self if ageing_s is None or self.waited_s < ageing_s else replace(self, priority=PRIORITY_MAX)

    def lost(self, now: Timestamp) -> float:
        """Device-seconds of work since its last checkpoint, lost if it stops now."""
        since = max(self.since or now, self.saved or Timestamp(0))
        return len(self.block) * (now - since) / SECOND if since < now else 0.0


# A claim of Slurm belongs to one start of its job: it cannot resume elsewhere under that claim.
MOVABLE_OWNER_PREFIXES = (LOCAL_OWNER_PREFIX, "kubernetes/")


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
        cell=claim.cell if claim.cell is not None and claim.cell.overlaps(block) else None,  # an older release led
        preemptible=spec.preemptible and (runs or claim.state is ClaimState.GRANTED),
        movable=runs and resumable,
        resumable=resumable,
        leaving=claim.state in LEAVING,
        since=claim.ready_at,
        saved=claim.checkpoint_at,
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


def _no_tenants() -> Sequence[Holder]:
    return ()


@dataclass(slots=True)
class SchedulingSnapshot:
    """The input of a plan, which does not change it.

    Attributes:
        pools: the pools as the turn sees them.
        lines: the pending classes.
        announced: reports of other schedulers' queues; their jobs are in ``lines``.
        projects: all projects.
        shares: of each project, its decayed usage divided by its weight; the smaller is served first.
        tenants: finds the holders; called only if a claim may have to yield or move.
        kept: claims that were asked to move: their new blocks are reserved for them.
        moves_left: so many claims may still be asked to move now.
        movable: pools in which every holder can be moved.
        resumable: pools in which every holder can be moved, or can be once it is ready.
        able: cache of eligible pools by request; valid as long as the pools are the same.
    """

    pools: Mapping[PoolName, PoolState]
    lines: Iterable[tuple[ClassKey, PendingClassReader]]
    announced: Sequence[QueueReport] = ()
    projects: Projects = field(default_factory=Projects)
    shares: Mapping[str, float] = field(default_factory=dict)
    tenants: Callable[[], Sequence[Holder]] = _no_tenants
    kept: Sequence[Claim] = ()
    moves_left: int = 0
    movable: frozenset[PoolName] = frozenset()
    resumable: frozenset[PoolName] = frozenset()
    able: dict[tuple[object, ...], list[PoolState]] = field(default_factory=dict)

    @property
    def guarded(self) -> frozenset[PoolName]:
        """The pools with guarantees."""
        return frozenset(name for name in self.pools if self.projects.cells(name))

    def pools_of(self, spec: ClaimSpec) -> list[PoolState]:
        """``eligible_pools`` without the error: a pending claim's pool may have gone from the pools file."""
        key = (spec.kind, spec.pool, spec.size, spec.gcds, tuple(spec.resources.items()) if spec.resources else ())
        known = self.able.get(key)
        if known is None:
            try:
                known = eligible_pools(spec, self.pools)
            except MooringsError:
                known = []
            self.able[key] = known
        return known
