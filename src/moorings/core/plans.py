"""What a turn is planned from, and what a plan says: values between the turn, the queue and those who ask "what if"."""

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
    """A claim gets a block (None: it asked for no devices); ``cell``: of its project's guarantee, around it."""

    claim: ClaimId
    pool: PoolName
    block: Block | None
    cell: Block | None = None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The holder of ``claim`` is asked to yield, for the sake of ``by``; ``to``: it is moved there (None: it waits)."""

    claim: ClaimId
    by: ClaimId
    to: PoolBlock | None = None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What would have to move to make room for a claim: suggested, not done.

    Attributes:
        claim: for whom.
        spot: the room that this would make.
        moves: who would go where.
        cost: device-seconds that this would lose.
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
    adopted: tuple[tuple[ClaimId, Block | None], ...] = ()  # who is within a guarantee from now on, or (None) no more
    suggested: tuple[MovePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a block, as far as it matters to those who want it.

    Attributes:
        project: its claim's.
        subject: its claim's user.
        priority: its claim's.
        cell: the cell of a guarantee that it is in; None: it borrowed its block.
        preemptible: may be asked to yield, once its partition is ready.
        movable: may be asked to go on elsewhere: it goes on from its checkpoint.
        resumable: is movable, or will be once it is ready.
        leaving: is asked already, or has ended.
        since: when its claim got the block ready; None: it has not.
        saved: when its job last saved its state; None: never.
        waited_s: how long its claim had waited when it got the block; 0: it had yielded before.
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
        """Whether its block counts as taken for every guarantee: it cannot be asked, or is within its own."""
        return self.cell is not None or not (self.preemptible or self.leaving)

    def lasting(self, ageing_s: float | None) -> Holder:
        """As those see it that look for a lower priority than theirs: who waited that long for its block keeps it.

        Else a higher priority would pass it after all.
        """
        return self if ageing_s is None or self.waited_s < ageing_s else replace(self, priority=PRIORITY_MAX)

    def lost(self, now: Timestamp) -> float:
        """Device-seconds of work since its last checkpoint, which are lost if it stops now."""
        since = max(self.since or now, self.saved or Timestamp(0))
        return len(self.block) * (now - since) / SECOND if since < now else 0.0


# A started job of Slurm has its claim for one start: it cannot go on in it elsewhere.
MOVABLE_OWNER_PREFIXES = (LOCAL_OWNER_PREFIX, "kubernetes/")


def holder_from_claim(claim: Claim, pool: PoolName, block: Block) -> Holder:
    """How a claim that holds a block looks to those who want it."""
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
    """Who holds what, by the partitions there are and the claims that have them."""
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
    """What a plan looks at; it leaves all of it as it was.

    Attributes:
        pools: the pools as the turn has them.
        lines: who waits, line by line.
        announced: what other schedulers' queues told; their jobs stand in ``lines``.
        projects: who pays.
        shares: of each project, its decayed use for its weight; who has less is served first.
        tenants: who holds what; asked for only if somebody may have to yield or move.
        kept: claims that were asked to move: their new places are theirs.
        moves_left: so many claims may still be asked to move now.
        movable: pools of which every tenant can be moved.
        resumable: pools of which every tenant can be, or will be once it is ready.
        able: which pools could serve what, as far as it was asked: the same as long as the pools are the same.
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
        """The pools in which shares are guaranteed."""
        return frozenset(name for name in self.pools if self.projects.cells(name))

    def pools_of(self, spec: ClaimSpec) -> list[PoolState]:
        """``pools_for`` without the refusal: a waiting claim's pool may have gone from the pools file."""
        key = (spec.kind, spec.pool, spec.size, spec.gcds, tuple(spec.resources.items()) if spec.resources else ())
        known = self.able.get(key)
        if known is None:
            try:
                known = eligible_pools(spec, self.pools)
            except MooringsError:
                known = []
            self.able[key] = known
        return known
