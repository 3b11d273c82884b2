"""The plan while a pass over the queue makes it: what is given away so far, and the decisions.

Free maps and release times change under savepoints, so each stage sees what earlier ones took; ``roll_back`` restores
them.
"""

from __future__ import annotations

from moorings.core.guarantees.guarantee_map import GuaranteedPlacement
from moorings.core.guarantees.guarantee_use import GuaranteeUse
from moorings.core.guarantees.survey import survey_holders
from moorings.core.model.claims import Claim, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.machine import MACHINE_POOL
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.core.placement.fleet import PoolState, ReservedBlock, add_amounts, has_resources_left
from moorings.core.placement.free_map import NO_RELEASE, Savepoint
from moorings.core.placement.pending_classes import NO_LIMIT_S
from moorings.core.placement.plans import Grant, MovePlan, Reclaim, SchedulePlan, SchedulingSnapshot
from moorings.core.placement.release_times import DeferredReleaseTimes, ReleaseTimes
from moorings.core.scheduling.backfill import BackfillWindow, BackfillWindows
from moorings.core.scheduling.offers import build_offers

NO_BLOCK = Block(())


class PlanDraft:
    """A plan in progress.

    Attributes:
        snapshot: the input of the plan.
        policy: the policy in force.
        now: the turn's time.
        guarantees: the guarantees, as used so far.
        windows: the blocks reserved so far.
        reserved: reservations of claims that wait, by pool and whether they are for devices.
        promised: blocks reserved for claims that others yield or move for, and for moved claims.
    """

    def __init__(self, snapshot: SchedulingSnapshot, policy: Policy, now: Timestamp) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.guarantees = GuaranteeUse(survey_holders(snapshot, policy, now), policy)
        self.windows = BackfillWindows(policy, now)
        self.reserved: dict[tuple[PoolName, bool], ReservedBlock] = {}
        self.promised: list[ReservedBlock] = []
        self.reclaims: list[Reclaim] = []
        self.suggested: list[MovePlan] = []
        self._grants: list[Grant] = []
        self._lent: list[ReservedBlock] = []  # free blocks for announced jobs, which their own scheduler may start
        self._used = {
            name: dict(state.used_resources) for name, state in snapshot.pools.items() if state.used_resources
        }
        self._machine = snapshot.pools.get(MACHINE_POOL)
        self._free = {name: Savepoint(state.free) for name, state in snapshot.pools.items()}
        self._ends = {name: DeferredReleaseTimes(state.release_times) for name, state in snapshot.pools.items()}

    def release_times(self, pool: PoolName) -> ReleaseTimes:
        """The release times of a pool, with the grants and promises so far."""
        return self._ends[pool].flush()

    def is_usable(self, state: PoolState, spec: ClaimSpec) -> bool:
        """Whether a pool can be reached and it, and the machine, have the secondary resources left."""
        if state.unreachable_reason or not self._has_machine_left(spec):
            return False
        return not spec.resources or has_resources_left(state.pool, self._used.get(state.pool.name, {}), spec.resources)

    def _has_machine_left(self, spec: ClaimSpec) -> bool:
        if not spec.machine or self._machine is None:
            return True
        return has_resources_left(self._machine.pool, self._used.get(MACHINE_POOL, {}), spec.machine)

    def use(self, spec: ClaimSpec, pool: PoolName, sign: int = 1) -> None:
        """Count the secondary resources of a claim as used (or not, with -1)."""
        if spec.resources:
            add_amounts(self._used.setdefault(pool, {}), spec.resources, sign)
        self.use_machine(spec, sign)

    def use_machine(self, spec: ClaimSpec, sign: int = 1) -> None:
        """Count what a claim with devices needs of the machine as used (or not, with -1)."""
        if spec.machine and self._machine is not None:
            add_amounts(self._used.setdefault(MACHINE_POOL, {}), spec.machine, sign)

    def grant(
        self,
        claim: Claim,
        state: PoolState,
        block: Block | None,
        place: GuaranteedPlacement | None = None,
        *,
        inside: BackfillWindow | None = None,
    ) -> None:
        """Give a claim a block: a grant, or, for another scheduler's job, a loan until that scheduler starts it.

        Args:
            claim: the claim.
            state: the pool.
            block: a free block; None: the claim asks for no devices.
            place: its place within a guarantee; None: the claim borrows it.
            inside: the reserved block that it is a part of.
        """
        name, spec = state.pool.name, claim.spec
        self.windows.forget()
        cell = None
        if block is not None:
            if inside is not None:
                inside.allocate(block)
            else:
                self._free[name].allocate(block)
            until = add_seconds(self.now, spec.time_limit_s) if spec.time_limit_s is not None else NO_RELEASE
            self._ends[name].put(block, until)
            cell = self.guarantees.record(claim, name, block, place)
        self.use(spec, name)
        if claim.state is ClaimState.ANNOUNCED:
            self._lent.append(ReservedBlock(claim.id, name, block or NO_BLOCK, Timestamp(0)))
        else:
            self._grants.append(Grant(claim.id, name, block, cell))

    def take(self, state: PoolState, block: Block) -> None:
        """Take the free devices of a block, which a claim is about to move to."""
        for part in state.free.free_within(block):
            self._free[state.pool.name].allocate(part)

    def promise(self, claim: Claim, state: PoolState, block: Block, until: Timestamp) -> None:
        """Reserve a block that is being emptied for a claim; no other claim may use it meanwhile.

        A claim that did would run for a time before it may be asked to yield, and so would the next.
        """
        name = state.pool.name
        reservation = ReservedBlock(claim.id, name, block, until)
        self.promised.append(reservation)
        self.windows.add(name, BackfillWindow(reservation, state, self._free[name], NO_LIMIT_S))
        self._ends[name].put(block, NO_RELEASE)

    def reserve(self, claim: Claim, state: PoolState, block: Block, until: Timestamp, spare: int | None) -> None:
        """Reserve a block (or a number of devices, if empty) for a claim that waits; for ``spare`` see the window."""
        name, spec = state.pool.name, claim.spec
        reservation = self.reserved[name, spec.size > 0] = ReservedBlock(claim.id, name, block, until)
        if spec.size:
            window = BackfillWindow(reservation, state, self._free[name], self.policy.making_s, spare)
            self.windows.add(name, window)
        self.use(spec, name)

    def plan(self) -> SchedulePlan:
        """The decisions as a plan."""
        snapshot = self.snapshot
        return SchedulePlan(
            tuple(self._grants),
            (*self.reserved.values(), *self.promised, *self._lent),
            tuple(build_offers(snapshot.queue_reports, snapshot.pools, self._lent, snapshot.guaranteed_pools)),
            tuple(self.reclaims),
            tuple(self.guarantees.survey.entered),
            tuple(self.suggested),
        )

    def roll_back(self) -> None:
        """Restore free maps and release times."""
        for ends in self._ends.values():
            ends.rollback()
        for free in self._free.values():
            free.rollback()
