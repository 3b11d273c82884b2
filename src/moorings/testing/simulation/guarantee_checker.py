"""The checks of projects' guarantees (law 6): borrowers leave every guarantee satisfiable, and yield in time.

It computes each project's own guaranteed blocks and their places again, from the records alone, in the simplest way:
pools here are small. It does not look at the queue's decisions.

The wait of a claim counts only while nothing excusable stands in its way: every fault near its pool, every change of
projects and every holder that does not yield restarts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from moorings.controller.turn import TurnOutcome
from moorings.core.model.access import USER_OWNER_PREFIX
from moorings.core.model.claims import LEAVING, Claim, ClaimId, ClaimState, QueueMode
from moorings.core.model.devices import PoolName
from moorings.core.model.events import Event
from moorings.core.model.policy import Policy
from moorings.core.model.projects import (
    DEFAULT_PROJECT,
    Project,
    guaranteed_blocks_in,
    guaranteed_device_count,
    parent_of,
)
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, Topology
from moorings.core.placement.fleet import Fleet, PoolState
from moorings.ports.store import Changes
from moorings.testing.simulation.committed_state import CommittedState
from moorings.testing.simulation.episode_log import EpisodeLog
from moorings.testing.simulation.virtual_time import SteadyClock, WallClock
from moorings.workloads.runs import RunId

SLACK_S = 15.0  # for slow hardware, and a controller that takes time
HARMLESS_FAULTS = frozenset({"request_lost", "reply_lost", "other_body"})  # they delay only their caller
FAULT_S = 20.0  # how long a fault may delay things
FAULTS_S = {
    "answer_never": 90.0,
    "stall": 60.0,
    "store_away": 60.0,
    "engine_away": 60.0,
    "zombie_paused": 60.0,
    "store_back": 180.0,
    "namesake": 120.0,
}
VENDOR_FAULT_S = 120.0


@dataclass(slots=True)
class _GuaranteeState:
    """A pool from the view of its guarantees.

    Attributes:
        unbound: unused guaranteed blocks: how many, by owner and size.
        firm: devices that a block bound later cannot use.
        uncovered_claims: claims in a block of no project of theirs.
        is_feasible: whether all unbound blocks fit beside the firm devices.
    """

    unbound: Counter[tuple[str, int]]
    firm: set[int]
    uncovered_claims: set[ClaimId]
    is_feasible: bool


@dataclass(slots=True)
class _PreviousTurn:
    """A pool at the turn before: the inputs of its guarantees besides claims that come and go, and their state."""

    marks: tuple[object, ...] = ()
    sound: bool = False
    astray: set[ClaimId] = field(default_factory=set)


class GuaranteeChecker:
    """Checks every turn and commit.

    Args:
        story: records broken laws.
        ledger: the contents of the database.
        pools: the pools.
        policy: the minimum runtime and the time to yield of borrowers.
        clock: without jumps.
        wall: the controllers'.

    Attributes:
        given_back: claims whose holders have begun to report that they yield.
        alive: whether processes of a run live.
    """

    def __init__(
        self,
        story: EpisodeLog,
        ledger: CommittedState,
        pools: Sequence[Pool],
        policy: Policy,
        clock: SteadyClock,
        wall: WallClock,
    ) -> None:
        self.given_back: set[ClaimId] = set()
        self.alive: Callable[[RunId], bool] = lambda _: False
        self._story = story
        self._ledger = ledger
        self._pools = {pool.name: pool for pool in pools}
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._seen = {pool.name: _PreviousTurn() for pool in pools}
        self._calm_from = {pool.name: Timestamp(0) for pool in pools}
        self._since: dict[tuple[ClaimId, PoolName], Timestamp] = {}
        self.moved: set[ClaimId] = set()  # claims ever asked to move

    def on_fault(self, kind: str, what: str) -> None:
        """A fault occurs: it excuses delays."""
        if kind in HARMLESS_FAULTS:
            return
        vendor = kind.startswith("vendor_")
        until = add_seconds(self._clock.now(), VENDOR_FAULT_S if vendor else FAULTS_S.get(kind, FAULT_S))
        named = [name for name in self._pools if what.startswith(name)]
        for name in named or self._pools:
            self._calm_from[name] = max(self._calm_from[name], until)

    def reset(self) -> None:
        """The database was turned back: earlier observations no longer count."""
        self._seen = {name: _PreviousTurn() for name in self._pools}
        self._since.clear()

    # -- what is saved -----------------------------------------------------------------------------------------------

    def on_commit(self, changes: Changes) -> None:
        """Only a claim that may be asked is asked; none yields before its job has stopped, or its holder reports it."""
        claims = {claim.id: claim for claim, _ in changes.claims}
        for event in changes.events:
            claim = claims.get(ClaimId(event.claim or ""))
            if claim is not None and event.name == "claim.reclaiming":
                self._check_reclaim(event, claim, reconfigured=bool(changes.projects or changes.projects_removed))
            elif claim is not None and event.name == "claim.yielding":
                self._check_yield(event, claim)
        if changes.projects:
            self._feasible()

    def _check_reclaim(self, event: Event, claim: Claim, *, reconfigured: bool) -> None:
        self._story.count("asked to move" if claim.kept is not None else "asked to yield")
        if claim.kept is not None:
            self.moved.add(claim.id)
            if not claim.spec.checkpoint.resumable or claim.owner.startswith(USER_OWNER_PREFIX):
                self._story.break_law(3, f"claim {claim.id} was asked to move, and cannot go on from a checkpoint")
            return
        if not claim.spec.preemptible:
            self._story.break_law(3, f"claim {claim.id} was asked to yield, and did not agree to that")
        if claim.ready_at is None or event.at < add_seconds(claim.ready_at, self._policy.min_run_s):
            self._story.break_law(6, f"claim {claim.id} was asked at {event.at}, and was ready at {claim.ready_at}")
        by = next(
            (self._ledger.claims.get(ClaimId(one)) for one in (claim.reason.blockers if claim.reason else ())), None
        )
        if by is None or claim.pool is None or reconfigured:
            return
        if not self._is_guaranteed_where(claim, by, claim.pool):
            self._story.break_law(
                6, f"claim {claim.id} was asked to yield to {by.id}, which is guaranteed nothing there"
            )
        astray = claim.id in self._seen[claim.pool].astray
        if (
            claim.cell is not None
            and not astray
            and not (self._policy.preempt and by.spec.priority > claim.spec.priority)
        ):
            self._story.break_law(6, f"claim {claim.id} is within its guarantee and was asked to yield to {by.id}")

    def _is_guaranteed_where(self, claim: Claim, by: Claim, pool: PoolName) -> bool:
        """Whether the claim that makes another yield has a guarantee in its pool: in any, if a limit is above both."""
        lineage = self._lineage(by.spec.project)
        limited = {one.name for one in self._limits(by)}.intersection(self._lineage(claim.spec.project))
        cells = [self._own_cells(self._pools[name]) for name in (self._pools if limited else (pool,))]
        return any(own.get(name) for own in cells for name in lineage)

    def _check_yield(self, event: Event, claim: Claim) -> None:
        known = (*self._ledger.runs.values(), *self._ledger.ended_runs.values())
        runs = [run for run in known if run.claim == claim.id]
        in_time = (
            claim.owner.startswith(USER_OWNER_PREFIX)
            and claim.asked_until is not None
            and event.at >= claim.asked_until
        )
        for run in runs:
            if self.alive(run.id):
                self._story.break_law(3, f"claim {claim.id} gives back its partition, and run {run.id} is alive on it")
        if not runs and claim.id not in self.given_back and not in_time:
            self._story.break_law(3, f"claim {claim.id} was taken its partition; its holder has not yielded")
        self.given_back.discard(claim.id)

    def _feasible(self) -> None:
        """Guarantees fit: parts into their project, all together into the pool."""
        for name in self._ledger.projects:
            if parent_of(name) and parent_of(name) not in self._ledger.projects:
                self._story.break_law(6, f"project {name} is part of none")
        for pool in self._pools.values():
            if self._own_cells(pool) is None or not _fit(pool.topology, set(), self._promised(pool, "")):
                self._story.break_law(6, f"the guarantees in pool {pool.name} do not fit: {self._ledger.projects}")

    # -- what projects have ------------------------------------------------------------------------------------------

    def _lineage(self, name: str) -> list[str]:
        found = [name]
        while parent_of(name):
            name = parent_of(name)
            found += [name] if name in self._ledger.projects else []
        return found

    def _resolve_project(self, claim: Claim) -> str:
        """The project of a claim; a reported job names it as its own scheduler does."""
        named = claim.spec.project
        if claim.state is ClaimState.PENDING:
            return named
        alias = "/".join((*claim.owner.split("/")[:2], named))
        called = (one.name for one in self._ledger.projects.values() if alias in one.aliases)
        return next(called, named if named in self._ledger.projects else DEFAULT_PROJECT)

    def _comes_after(self, other: Claim, claim: Claim) -> bool:
        """Whether the other claim is surely served later: by priority, or as another of the same project."""
        if other.spec.priority != claim.spec.priority:
            return other.spec.priority < claim.spec.priority
        return self._resolve_project(other) == self._resolve_project(claim) and other.queue_key > claim.queue_key

    def _promised(self, pool: Pool, parent: str) -> list[int]:
        """The guaranteed blocks of the projects directly below one."""
        shares = [
            guaranteed_blocks_in(one, pool.name)
            for name, one in self._ledger.projects.items()
            if parent_of(name) == parent
        ]
        return [size for blocks in shares for size, count in blocks for _ in range(count)]

    def _own_cells(self, pool: Pool) -> dict[str, Counter[int]]:
        """For each project its share without its parts' shares; none, if the parts have more."""
        found: dict[str, Counter[int]] = {}
        for name, project in self._ledger.projects.items():
            left = [size for size, count in guaranteed_blocks_in(project, pool.name) for _ in range(count)]
            for size in sorted(self._promised(pool, name), reverse=True):
                able = [one for one in left if one >= size]
                if not able or (isinstance(pool.topology, Catalogue) and size not in able):
                    self._story.break_law(6, f"the parts of project {name} are promised more than it is: {size}")
                    return {}
                whole = min(able)
                left.remove(whole)
                while whole > size:
                    whole //= 2
                    left.append(whole)
            found[name] = Counter(left)
        return found

    def _estate(self, pool: Pool, state: PoolState, tenants: Sequence[tuple[Claim, Block]]) -> _GuaranteeState:
        own = self._own_cells(pool)
        unbound = Counter({(name, size): count for name, sizes in own.items() for size, count in sizes.items()})
        firm, astray = _out(state), set[ClaimId]()
        within: dict[Block, list[Claim]] = {}
        for claim, block in tenants:
            if claim.cell is not None:
                within.setdefault(claim.cell, []).append(claim)
                if not set(block) <= set(claim.cell) or not pool.topology.is_block(claim.cell):
                    self._story.break_law(6, f"claim {claim.id} has {block} in {claim.cell} of {pool.name}")
        bound: list[Block] = []
        for cell, claims in within.items():
            if isinstance(pool.topology, AnySubset):
                owed = self._count_out(unbound, claims[0], len(cell))
            else:
                owed = not any(cell.overlaps(other) for other in bound) and self._take_out(unbound, claims, len(cell))
            if owed:
                bound.append(cell)
                firm.update(cell)
            else:
                astray.update(claim.id for claim in claims)
        for claim, block in tenants:
            lent = claim.spec.preemptible and claim.state is not ClaimState.LOST
            if (claim.cell is None or claim.id in astray) and claim.state not in LEAVING and not lent:
                firm.update(block)
        sizes = [size for (_, size), count in unbound.items() for _ in range(count)]
        return _GuaranteeState(unbound, firm, astray, _fit(pool.topology, firm, sizes))

    def _count_out(self, unbound: Counter[tuple[str, int]], claim: Claim, size: int) -> bool:
        """For any-subset pools: count a claim for its own project, then for those above; return whether it fits."""
        lineage = self._lineage(claim.spec.project)
        if sum(unbound[name, 1] for name in lineage) < size:
            return False
        for name in lineage:
            used = min(size, unbound[name, 1])
            unbound[name, 1] -= used
            size -= used
        return True

    def _take_out(self, unbound: Counter[tuple[str, int]], claims: Sequence[Claim], size: int) -> bool:
        """A block belongs to the nearest project that all claims in it are part of; return whether one has it."""
        first, *others = (self._lineage(claim.spec.project) for claim in claims)
        common = (name for name in first if all(name in other for other in others))
        owner = next((name for name in common if unbound[name, size] > 0), None)
        if owner is not None:
            unbound[owner, size] -= 1
        return owner is not None

    # -- every turn --------------------------------------------------------------------------------------------------

    def on_decision(self, fleet: Fleet, outcome: TurnOutcome) -> None:
        """The leading controller has decided a turn on the ledger's records."""
        self._check_yield_deadlines(outcome)
        if not self._ledger.projects:  # all devices may count as firm: a later guarantee need not fit beside them
            self.reset()
            return
        held = ((self._ledger.claims.get(one.claim), one) for one in self._ledger.partitions.values())
        known = sorted(
            ((c, one) for c, one in held if c is not None and c.partition == one.id), key=lambda pair: pair[0].id
        )
        everywhere = [(claim, one.block) for claim, one in known]
        for name, pool in self._pools.items():
            state = fleet.pools[name]
            tenants = [(claim, one.block) for claim, one in known if one.pool == name]
            estate = self._estate(pool, state, tenants)
            self._check_guarantees_fit(pool, state, estate, tenants)
            self._check_bound(fleet, pool, state, estate, tenants, everywhere, outcome)

    def _check_yield_deadlines(self, outcome: TurnOutcome) -> None:
        """No manual holder keeps its partition beyond its time to yield, unless a job has to be stopped first."""
        now, held = self._wall.now(), {run.claim for run in self._ledger.runs.values()}
        for claim in self._ledger.claims.values():
            if (
                claim.state is not ClaimState.RECLAIMING
                or not claim.owner.startswith(USER_OWNER_PREFIX)
                or claim.id in held
            ):
                continue
            after_turn, until = outcome.fleet.claims.get(claim.id, (claim, None))[0], claim.asked_until
            if until is not None and until <= now:
                self._story.count("asked by hand, in vain")
                if after_turn.state is ClaimState.RECLAIMING:
                    self._story.break_law(6, f"claim {claim.id} was to yield until {until}; nobody takes it at {now}")

    def _check_guarantees_fit(
        self, pool: Pool, state: PoolState, estate: _GuaranteeState, tenants: Sequence[tuple[Claim, Block]]
    ) -> None:
        """What fitted at the turn before fits now, unless hardware or admins have changed the pool."""
        marks: tuple[object, ...] = (
            dict(self._ledger.projects),  # a project made again under its old name begins at version 1 again
            _out(state),
            {claim.id for claim, _ in tenants if claim.state is ClaimState.LOST},
            {claim.id for claim in self._ledger.claims.values() if claim.kept is not None},
        )
        seen = self._seen[pool.name]
        if seen.marks == marks and seen.sound:
            self._story.count("guarantees hold")
            if not estate.is_feasible:
                self._story.break_law(
                    6, f"the guarantees {+estate.unbound} do not fit beside {sorted(estate.firm)} of {pool.name}"
                )
            if estate.uncovered_claims - seen.astray:
                self._story.break_law(
                    6, f"{sorted(estate.uncovered_claims - seen.astray)} are in cells of {pool.name} that are no more"
                )
        # A block that is returned with a broken device inside, or a job whose partition is lost, is owed again, and
        # those devices are gone.
        lost = {index for claim, block in tenants if claim.state is ClaimState.LOST for index in block}
        gone = _out(state) | lost
        whole = not any(claim.cell is not None and not gone.isdisjoint(claim.cell) for claim, _ in tenants)
        self._seen[pool.name] = _PreviousTurn(marks, estate.is_feasible and whole, estate.uncovered_claims)

    def _check_bound(
        self,
        fleet: Fleet,
        pool: Pool,
        state: PoolState,
        estate: _GuaranteeState,
        tenants: Sequence[tuple[Claim, Block]],
        everywhere: Sequence[tuple[Claim, Block]],
        outcome: TurnOutcome,
    ) -> None:
        """A claim within a guarantee gets its devices in time; a claim under a limit may have to wait for all pools."""
        now = self._clock.now()
        calm = (
            estate.is_feasible
            and not _out(state)
            and not state.unreachable_reason
            and not self._held_up((pool.name,), tenants)
        )
        calm_everywhere = calm and not self._held_up(self._pools, everywhere)
        waiting = [claim for claim in self._ledger.claims.values() if claim.state is ClaimState.PENDING]
        waiting += [claim for report in fleet.queue_reports.values() for claim in report.to_claims()]
        bound_s = self._policy.guarantee_bound_s + SLACK_S
        for claim in waiting if calm else ():
            key = (claim.id, pool.name)
            after_turn = outcome.fleet.claims.get(claim.id, (claim, None))[0]
            limited = bool(self._limits(claim))
            is_due = after_turn.state is ClaimState.PENDING and self._is_due(claim, pool, estate, waiting, everywhere)
            if not is_due or (limited and not calm_everywhere):
                self._since.pop(key, None)
                continue
            began = self._since.setdefault(key, now)
            self._story.count("within its guarantee, waits")
            calm_from = max(self._calm_from.values()) if limited else self._calm_from[pool.name]
            waited_s = (now - max(began, calm_from)) / SECOND
            if waited_s > 1.0:
                self._story.count(f"within its guarantee, waits in calm{' under a limit' if limited else ''}")
            if waited_s > bound_s:
                report = f"{waited_s:.1f} s, where {bound_s:g} s are the most; {+estate.unbound}, {sorted(estate.firm)}"
                self._story.break_law(
                    6, f"claim {claim.id} is within its guarantee in {pool.name} and waits for {report}"
                )
        still = {claim.id for claim in waiting} if calm else set()
        for key in [key for key in self._since if key[1] == pool.name and key[0] not in still]:
            del self._since[key]

    def _held_up(self, pools: Collection[PoolName], tenants: Iterable[tuple[Claim, Block]]) -> bool:
        """Whether a holder is late to yield, a clock was set, or a claim is being moved."""
        now = self._wall.now()
        runs = {run.claim for run in self._ledger.runs.values()}
        for claim, _ in tenants:
            asked = claim.asked_until if claim.state is ClaimState.RECLAIMING else None
            if asked is not None:
                late = asked < now and claim.id not in runs and not claim.owner.startswith(USER_OWNER_PREFIX)
                if late or asked > add_seconds(now, self._policy.yield_s):
                    return True
            if claim.ready_at is not None and claim.ready_at > now:
                return True
        return any(claim.kept is not None and claim.kept.pool in pools for claim in self._ledger.claims.values())

    def _limits(self, claim: Claim) -> list[Project]:
        """The projects whose limits count for a claim, the nearest first."""
        known = (self._ledger.projects.get(name) for name in self._lineage(claim.spec.project))
        return [one for one in known if one is not None and (one.devices_max is not None or one.has_user_limits)]

    def _is_due(
        self,
        claim: Claim,
        pool: Pool,
        estate: _GuaranteeState,
        waiting: Sequence[Claim],
        everywhere: Sequence[tuple[Claim, Block]],
    ) -> bool:
        """Whether it is surely within a guarantee: enough unbound blocks are left for it and all that may come first.

        No claim yields for a user limit. For a top-level project with a limit, the blocks up to the limit are in reach
        if its whole guarantee fits under the limit beside the holders that will not yield.
        """
        spec, lineage = claim.spec, self._lineage(claim.spec.project)
        if claim.owner.startswith("slurm/") and claim.state is not ClaimState.PENDING:
            return False
        if spec.kind != pool.kind or spec.pool not in (None, pool.name) or not spec.size or spec.resources:
            return False
        if spec.queue is not QueueMode.WAIT or pool.topology.ineligible_reason(spec.size, spec.gcds) is not None:
            return False
        limits = self._limits(claim)
        if any(one.has_user_limits for one in limits):
            return False
        if not all(self._leaves_room(limit, everywhere) for limit in limits):
            return False
        if limits:
            lineage = lineage[: lineage.index(limits[0].name) + 1]
        rivals = [other for other in waiting if other.id != claim.id and not self._comes_after(other, claim)]
        return any(self._has_cell(claim, pool, estate, lineage[:count], rivals) for count in range(1, len(lineage) + 1))

    def _has_cell(
        self, claim: Claim, pool: Pool, estate: _GuaranteeState, near: Sequence[str], rivals: Sequence[Claim]
    ) -> bool:
        """Whether the nearest of its projects have a block for it beside all claims that may come first there."""
        spec = claim.spec
        first = [other for other in rivals if not set(near).isdisjoint(self._lineage(self._resolve_project(other)))]
        if isinstance(pool.topology, AnySubset):
            wanted = spec.size + sum(other.spec.size for other in first)
            return sum(estate.unbound[name, 1] for name in near) >= wanted
        whole = isinstance(pool.topology, Catalogue)
        able = sum(
            count
            for (owner, size), count in estate.unbound.items()
            if owner in near and (size == spec.size if whole else size >= spec.size)
        )
        return able > len(first)

    def _leaves_room(self, limit: Project, everywhere: Sequence[tuple[Claim, Block]]) -> bool:
        """Whether all guarantees under a limit fit there beside the holders that will not yield.

        Only for a top-level project: use of a guarantee further up does not count as part of it.
        """
        if parent_of(limit.name):
            return False
        beside = 0
        for claim, block in everywhere:
            if limit.name in self._lineage(claim.spec.project):
                owed = claim.cell is not None and claim.id not in self._seen[claim.pool].astray  # type: ignore[index]
                lent = claim.spec.preemptible and claim.state is not ClaimState.LOST
                beside += 0 if owed or lent else len(block)
        return limit.devices_max is None or guaranteed_device_count(limit) + beside <= limit.devices_max


def _out(state: PoolState) -> set[int]:
    """Unavailable devices."""
    return {*state.out_of_service, *(index for block in state.foreign_blocks.values() for index in block)}


def _fit(topology: Topology, taken: set[int], sizes: Iterable[int]) -> bool:
    """Whether disjoint blocks of these sizes exist beside the taken devices, by trying."""
    wanted = sorted(sizes, reverse=True)
    if isinstance(topology, AnySubset):
        return topology.n_devices - len(taken) >= sum(wanted)
    if isinstance(topology, Catalogue):
        return _found(topology.blocks, frozenset(taken), wanted)
    used = set(taken)
    for size in wanted:  # the largest first, each in the first free place: sizes divide each other
        starts = range(0, topology.n_devices // size * size, size)
        start = next((at for at in starts if used.isdisjoint(range(at, at + size))), None)
        if start is None:
            return False
        used.update(range(start, start + size))
    return True


def _found(blocks: Sequence[Block], taken: frozenset[int], wanted: Sequence[int]) -> bool:
    if not wanted:
        return True
    able = (block for block in blocks if len(block) == wanted[0] and taken.isdisjoint(block))
    return any(_found(blocks, taken | set(block), wanted[1:]) for block in able)
