"""The checker: examines hardware, processes, records and memory after every step, and reports the broken law.

It knows the true state (the machine itself, the processes themselves), not what a driver shows. Faults in the hardware
are excusable: a partition that broke or vanished by itself excuses its consequences, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest

from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.controller.turn import KeyedInput, TurnOutcome, decide_turn
from moorings.core.invariants import find_violations
from moorings.core.model.access import RUN_OWNER_PREFIXES
from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.claims import Claim, ClaimState, PartitionId, QueueMode
from moorings.core.model.devices import DeviceState, PoolName
from moorings.core.model.driver_results import DriverResult, PartitionSpec, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import RenewClaim
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.placement.fleet import Fleet, PoolState, has_resources_left
from moorings.core.placement.free_map import NO_RELEASE, free_map_for
from moorings.core.placement.pending_classes import NO_LIMIT_S, backfill_limit_s
from moorings.core.reconcile import mark_for
from moorings.core.scheduling.explain import explain_wait
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.drivers.simulated.faults import FaultKind
from moorings.drivers.simulated.partition import VendorState
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Changes
from moorings.testing.simulation.committed_state import CommittedState
from moorings.testing.simulation.episode_log import EpisodeLog
from moorings.testing.simulation.guarantee_checker import GuaranteeChecker
from moorings.testing.simulation.virtual_time import SteadyClock
from moorings.workloads.run_turn import RunRegistry
from moorings.workloads.runs import RunId, RunState

WHOLE_EVERY = 16  # turns between comparisons of the whole memory with the database's contents
ROWS_EVERY = 64  # turns between decisions repeated from the database's own rows
_MAY_HAVE_PAUSE = (RunState.YIELDING, RunState.STOPPING, RunState.PAUSED)
_MAY_START = (RunState.STARTING, RunState.YIELDING, RunState.STOPPING)  # the latter two during its submission
LEASE_SLACK_S = 2.0  # clocks that are set by less than this may shorten a lease by as much


@dataclass(slots=True)
class _WatchedPartition:
    """The partition of a run's processes; ``excused`` once it broke or vanished by itself."""

    pool: PoolName
    name: str
    mark: str
    block: Block
    troubles: int  # of its pool, until its processes started
    vanishes: bool  # it is going to
    excused: bool = False


class InvariantChecker:
    """Checks the laws.

    Args:
        story: records broken laws.
        ledger: the contents of the database.
        drivers: the hardware itself.
        clock: a clock that is never set.
        installation: part of every mark of ours.
        guarantees: the checker of law 6.
    """

    def __init__(
        self,
        story: EpisodeLog,
        ledger: CommittedState,
        drivers: Mapping[PoolName, SimulatedDriver],
        clock: SteadyClock,
        installation: str,
        guarantees: GuaranteeChecker,
    ) -> None:
        self.guarantees = guarantees
        self._story = story
        self._ledger = ledger
        self._drivers = drivers
        self._clock = clock
        self._installation = installation
        self._watched: dict[RunId, _WatchedPartition] = {}
        self._refused: set[str] = set()
        self._claims_heard: dict[str, Timestamp] = {}
        self._doubt_until = Timestamp(0)
        self._turns = 0
        self.alive: Callable[[RunId], bool] = lambda _: False
        self.rows: Callable[[], None] = lambda: None
        self.spares: Callable[[], bool] = lambda: False

    # -- hardware and processes ------------------------------------------------------------------------------------

    def check_processes(self) -> None:
        """After every step: every process has its partition, ACTIVE and isolated (laws 3, 4)."""
        if not self._watched:
            return
        now = self._clock.now()
        for run, watched in list(self._watched.items()):
            if not self.alive(run):
                del self._watched[run]
            elif not watched.excused:
                self._check_process(run, watched, now)

    def _check_process(self, run: RunId, watched: _WatchedPartition, now: Timestamp) -> None:
        driver = self._drivers[watched.pool]
        held = driver.hardware.find_partition(watched.name, now)
        if held is not None and held.mark == watched.mark:
            state, watched.vanishes = held.state(now), held.vanishes_at is not None
            if state is VendorState.ERROR:
                watched.excused = True
            elif state is not VendorState.ACTIVE:
                self._story.break_law(3, f"run {run} is alive and its partition {watched.name} is {state}")
        elif watched.vanishes or self._spontaneous_losses(watched.pool) > watched.troubles:
            watched.excused = True
        else:
            self._story.break_law(3, f"run {run} is alive and its partition {watched.name} was removed")

    def _spontaneous_losses(self, pool: PoolName) -> int:
        """How often partitions of a pool have vanished without an order."""
        struck = self._drivers[pool].faults.injected_counts
        return struck[FaultKind.RESTART] + struck[FaultKind.VANISHES]

    def on_run_start(self, order: RunSubmission) -> None:
        """A run's first process starts at this moment (law 4)."""
        records = self._ledger.state_for(order.epoch)
        run = records.runs.get(order.run)
        claim = records.claims.get(run.claim) if run is not None and run.claim is not None else None
        ident = claim.partition if claim is not None else None
        partition = records.partitions.get(ident) if ident is not None else None
        if run is None or run.state not in _MAY_START:
            found = run.state if run is not None else "not there any more"
            self._story.break_law(4, f"run {order.run} starts; in the records it is {found}")
            return
        if claim is not None and not claim.spec.size and claim.state is ClaimState.READY:
            return  # it asked for no devices
        if partition is None:
            found = claim.state if claim is not None else "not there any more"
            self._story.break_law(4, f"run {order.run} starts on {order.binding.partition!r}; its claim is {found}")
            return
        now = self._clock.now()
        driver = self._drivers[partition.pool]
        mark = mark_for(self._installation, partition.id)
        held = driver.hardware.find_partition(partition.name, now)
        ours = held if held is not None and held.mark == mark else None
        watched = _WatchedPartition(
            *(partition.pool, partition.name, mark, partition.block),
            troubles=self._spontaneous_losses(partition.pool),
            vanishes=ours is not None and ours.vanishes_at is not None,
        )
        state = ours.state(now) if ours is not None else None
        if state is VendorState.ERROR or (ours is None and partition.state is PartitionState.ACTIVE):
            watched.excused = True  # it broke or vanished since it was seen ACTIVE: no controller could know
        elif state is not VendorState.ACTIVE:
            self._story.break_law(4, f"run {order.run} starts and its partition {partition.name} is {state}")
        self._check_isolation(order.run, watched)
        self._watched[order.run] = watched

    def on_run_queued(self, order: RunSubmission) -> None:
        """A run enters the queue of an engine's scheduler: it asked for that and has not ended (law 3)."""
        run = self._ledger.state_for(order.epoch).runs.get(order.run)
        waits_there = run is not None and run.claim is None and run.reference is None and run.hold is None
        if not waits_there or order.binding != NO_BINDING:
            self._story.break_law(3, f"run {order.run} was submitted with {order.binding}; in the records it is {run}")

    def _check_isolation(self, run: RunId, watched: _WatchedPartition) -> None:
        for other, its in self._watched.items():
            if its.pool == watched.pool and its.block.overlaps(watched.block) and self.alive(other):
                self._story.break_law(1, f"runs {other} and {run} are alive on devices of {watched.block}")

    def on_create(self, pool: Pool, order: PartitionSpec) -> None:
        """An order to make a partition reaches the hardware: its devices are no other live partition's (law 1)."""
        ident = order.mark.rsplit("/", 1)[-1]
        self._ledger.ordered.add(PartitionId(ident))
        if PartitionId(ident) not in self._ledger.partitions:
            return  # a late one; its partition is removed as an orphan
        marks = {mark_for(self._installation, p.id) for p in self._ledger.partitions.values()} - {order.mark}
        for held in self._drivers[pool.name].hardware.partitions(self._clock.now()):
            if held.mark in marks and held.block.overlaps(order.block):
                self._story.break_law(1, f"{order.name} is to be made on {order.block}, which {held.name} holds")

    def is_spared(self, mark: str) -> bool:
        """Whether removing or resetting a partition is forbidden: it has no record any more, and no admin has decided.

        Its claim was live when the database was turned back.
        """
        return self.spares() and PartitionId(mark.rsplit("/", 1)[-1]) in self._ledger.unknown

    def on_remove(self, what: str, mark: str, *, spared: bool) -> None:
        """An order to remove or reset a partition reaches the hardware: no process is on it (law 3).

        ``spared``: that order is forbidden.
        """
        if not mark.startswith(mark_for(self._installation, PartitionId(""))):
            self._story.break_law(3, f"{what} reached the hardware, and somebody else made that partition")
        if spared:
            self._story.break_law(3, f"{what} reached the hardware; it was held when the database went back")
        for run, watched in self._watched.items():
            if watched.mark == mark and self.alive(run):
                self._story.break_law(3, f"{what} reached the hardware, and run {run} is alive on it")

    def on_driver_result(self, mark: str, answer: DriverResult) -> None:
        """The hardware's response to an order."""
        if answer.verdict in (ResultCode.BROKEN, ResultCode.REJECTED):
            self._refused.add(mark)

    def set_doubt_until(self, until: Timestamp) -> None:
        """Working hardware may be taken for broken until then: it was unreachable, or showed ERROR."""
        self._doubt_until = max(self._doubt_until, until)

    # -- what is saved ---------------------------------------------------------------------------------------------

    def on_commit(self, changes: Changes) -> None:
        """A commit was done: no run ends with live processes, no claim is lost or expires without cause."""
        for run, _ in changes.runs:
            if (run.is_ended or run.state is RunState.PAUSED) and self.alive(run.id):
                self._story.break_law(3, f"run {run.id} was recorded as {run.state} and its processes are alive")
        self.guarantees.on_commit(changes)
        for claim, _ in changes.claims:
            if claim.state is ClaimState.LOST:
                self._lost(claim)
        for event in changes.events:
            if event.claim is not None and event.name in ("claim.created", "claim.renewed"):
                self._claims_heard[event.claim] = self._clock.now()
            elif event.claim is not None and event.name == "claim.lapsed":
                self._lapsed(event.claim)

    def _lost(self, claim: Claim) -> None:
        mark = mark_for(self._installation, claim.partition) if claim.partition is not None else ""
        partition = self._ledger.partitions.get(claim.partition) if claim.partition is not None else None
        now = self._clock.now()
        if partition is None or mark in self._refused or now <= self._doubt_until:
            return
        held = self._drivers[partition.pool].hardware.find_partition(partition.name, now)
        if held is not None and held.mark == mark and held.state(now) is VendorState.ACTIVE:
            self._story.break_law(3, f"claim {claim.id} was given up as lost and its partition {held.name} is ACTIVE")

    def _lapsed(self, ident: str) -> None:
        claim = self._ledger.claims.get(ident) or self._ledger.ended_claims.get(ident)  # type: ignore[call-overload]
        heard = self._claims_heard.get(ident)
        if claim is None or heard is None or claim.spec.lease_s is None:
            return
        passed_s = (self._clock.now() - heard) / 1e6
        if passed_s < claim.spec.lease_s - LEASE_SLACK_S:
            self._story.break_law(3, f"claim {ident} lapsed {passed_s:.1f} s into a lease of {claim.spec.lease_s:g} s")

    # -- what is decided ---------------------------------------------------------------------------------------------

    def on_decision(self, fleet: Fleet, demanded: Sequence[KeyedInput], outcome: TurnOutcome) -> None:
        """The leading controller has decided a turn, which is not saved yet."""
        self.guarantees.on_decision(fleet, outcome)
        for one, reply in zip(demanded, outcome.replies, strict=True):
            if isinstance(one.given, RenewClaim) and isinstance(reply, Claim):
                before = fleet.claims.get(one.given.claim)
                if before is not None and before.state is ClaimState.RELEASING:
                    self._story.break_law(
                        3, f"claim {reply.id} was renewed, and what it holds is being removed: {before}"
                    )
        if outcome.fleet.foreign:
            self._check_foreign_conflicts(fleet, outcome)

    def _check_foreign_conflicts(self, fleet: Fleet, outcome: TurnOutcome) -> None:
        """Our partition that is still to be made does not wait for a name or devices taken from outside (law 1)."""
        changed = {ident: partition for ident, (partition, _) in outcome.fleet.partitions.items()}
        for ident, ours in {**fleet.partitions, **changed}.items():
            if ours.state is not PartitionState.PROVISIONING or ident in outcome.fleet.removed_partitions:
                continue
            for name, block in outcome.fleet.foreign.get(ours.pool, {}).items():
                new = fleet.pools[ours.pool].foreign_blocks.get(name) != block
                if new and (name == ours.name or block.overlaps(ours.block)):
                    expected = f"{ours.name} on {ours.block} is to be made"
                    self._story.break_law(1, f"{expected}, and somebody else has {name} on {block} of {ours.pool}")

    # -- what a controller believes --------------------------------------------------------------------------------

    def on_turn(self, loop: TurnLoop, change: CommittedChange) -> None:
        """A turn of the leading controller is in its memory: check the laws, the records, the queue, the reasons."""
        self._turns += 1
        fleet = loop.fleet
        for finding in find_violations(fleet):
            self._story.break_law(finding.law, finding.message)
        if change.is_reload or self._turns % WHOLE_EVERY == 0:
            self._same(fleet, loop.runs)
        else:
            self._same_changed(fleet, loop.runs, change)
        if not change.is_reload:  # the next turn decides the reserved blocks
            self._not_overtaken(loop, change)
            self._first_has_a_block(fleet)
        self._reasons(fleet, loop.clock.now(), change.is_reload or self._turns % WHOLE_EVERY == 0)
        if self._turns % ROWS_EVERY == 0:
            self.rows()

    def _same(self, fleet: Fleet, runs: RunRegistry) -> None:
        devices = {
            (name, index): one for name, state in fleet.pools.items() for index, one in state.out_of_service.items()
        }
        pairs = (
            ("claims", fleet.claims, self._ledger.claims),
            ("partitions", fleet.partitions, self._ledger.partitions),
            ("runs", runs.by_id, self._ledger.runs),
            ("devices", devices, self._ledger.devices),
            ("projects", dict(fleet.projects.by_name), self._ledger.projects),
            ("usage", fleet.usage, self._ledger.usage),
        )
        self._one_claim_a_run()
        self._within_array_limits()
        for run in self._ledger.runs.values():
            if run.pause is not None and run.state not in _MAY_HAVE_PAUSE:
                self._story.break_law(2, f"run {run.id} is {run.state}, and still has {run.pause}")
            if run.hold is not None and not all(each.run in self._ledger.runs for each in run.hold.after):
                self._story.break_law(7, f"run {run.id} {run.hold.reason}, and one of them has ended")
        for what, held, saved in pairs:
            if held != saved:
                self._story.break_law(2, f"memory's {what} are not the database's: {held} in memory, {saved} saved")

    def _within_array_limits(self) -> None:
        """No more elements of an array ask for devices, or hold some, than its limit says."""
        parts = [run.job.array for run in self._ledger.runs.values() if run.job.array is not None and run.hold is None]
        for (array, limit), count in Counter((part.id, part.limit) for part in parts).items():
            if 0 < limit < count:
                self._story.break_law(7, f"{count} elements of array {array} ask for devices, and may be {limit}")

    def _one_claim_a_run(self) -> None:
        """A run's own claims but the present one are being released, and all of a paused run's (law 2)."""
        if self.spares():  # the database was turned back: some claims of runs are orphans until they are swept
            return
        present = {run.claim for run in self._ledger.runs.values() if run.state is not RunState.PAUSED}
        for claim in self._ledger.claims.values():
            held = claim.state is not ClaimState.RELEASING
            if held and claim.owner.startswith(RUN_OWNER_PREFIXES) and claim.id not in present:
                self._story.break_law(2, f"claim {claim.id} of {claim.owner} is {claim.state}, and no run has it")

    def _same_changed(self, fleet: Fleet, runs: RunRegistry, change: CommittedChange) -> None:
        pairs = (
            *((fleet.claims.get(one.id), self._ledger.claims.get(one.id)) for one in change.claims),
            *((fleet.partitions.get(one.id), self._ledger.partitions.get(one.id)) for one in change.partitions),
            *((runs.by_id.get(one.id), self._ledger.runs.get(one.id)) for one in change.runs),
        )
        for held, saved in pairs:
            if held != saved:
                self._story.break_law(2, f"{held} in memory, {saved} saved")
        counts = (len(fleet.claims), len(fleet.partitions), len(runs.by_id))
        saved_counts = (len(self._ledger.claims), len(self._ledger.partitions), len(self._ledger.runs))
        if counts != saved_counts:
            self._story.break_law(2, f"{counts} claims, partitions and runs in memory, {saved_counts} saved")

    def _not_overtaken(self, loop: TurnLoop, change: CommittedChange) -> None:
        """No reserved block was given to a claim behind its own (law 7)."""
        fleet, policy = loop.fleet, loop.policy
        made = [one for one in change.partitions if one.state is PartitionState.PROVISIONING and one.version == 1]
        announced = (
            {claim.id: claim for report in fleet.queue_reports.values() for claim in report.to_claims()} if made else {}
        )
        for partition in made:
            claim = fleet.claims.get(partition.claim)
            for kept in fleet.reserved_blocks:
                keeper = fleet.claims.get(kept.claim) or announced.get(kept.claim)
                if claim is None or keeper is None or kept.pool != partition.pool:
                    continue
                limit_s = backfill_limit_s(claim)
                ends = (
                    add_seconds(claim.granted_at, limit_s) if limit_s < NO_LIMIT_S and claim.granted_at else NO_RELEASE
                )
                if policy.backfill and add_seconds(ends, policy.making_s) <= kept.until < NO_RELEASE:
                    continue  # backfill: it uses the reserved block only until that is needed
                if self._is_behind(claim, keeper, fleet) and kept.block.overlaps(partition.block):
                    self._story.break_law(7, f"claim {claim.id} got {partition.block}, which is kept for {keeper.id}")

    def _is_behind(self, claim: Claim, keeper: Claim, fleet: Fleet) -> bool:
        """Whether a granted claim surely stands behind another: with projects that is known only for some."""
        if claim.id in self.guarantees.moved:
            return False  # it has its place already
        if not fleet.projects:
            return claim.queue_key > keeper.queue_key
        if claim.cell is not None or ClaimState.ANNOUNCED in (claim.state, keeper.state):
            return False
        if claim.spec.priority != keeper.spec.priority:
            return claim.spec.priority < keeper.spec.priority
        return claim.spec.project == keeper.spec.project and claim.queue_key > keeper.queue_key

    def _first_has_a_block(self, fleet: Fleet) -> None:
        """The first claim that must wait has a reserved block, if any pool could ever give one (law 7)."""
        if fleet.projects:
            self._all_but_those_behind_have(fleet)
            return
        first = _first(fleet)
        if first is None or any(kept.claim == first.id for kept in fleet.reserved_blocks):
            return
        for state in _able(first, fleet):
            if not state.unreachable_reason and _could_ever(state, first):
                self._story.break_law(
                    7, f"claim {first.id} is first, waits for {state.pool.name}, and no block is kept"
                )

    def _all_but_those_behind_have(self, fleet: Fleet) -> None:
        """With projects, too: a waiting claim without a reserved block stands behind one that has one there."""
        having = {kept.claim for kept in fleet.reserved_blocks}
        keepers = {kept.pool: fleet.claims[kept.claim] for kept in fleet.reserved_blocks if kept.claim in fleet.claims}
        announced = {kept.pool for kept in fleet.reserved_blocks if kept.claim not in fleet.claims}
        for claim in fleet.pending_claims():
            if claim.spec.queue is not QueueMode.WAIT or claim.id in having or not claim.spec.size:
                continue
            if _limited(claim, fleet):
                continue
            for state in _able(claim, fleet):
                name = state.pool.name
                if state.unreachable_reason or name in announced or not _could_ever(state, claim):
                    continue
                keeper = keepers.get(name)
                promised = not claim.spec.preemptible and bool(fleet.projects.guaranteed_blocks(name))
                if keeper is None and not promised:  # else a guarantee may prevent its reserved block
                    self._story.break_law(
                        7, f"claim {claim.id} waits for {name}, and no block is kept there for anybody"
                    )
                elif keeper is not None and not promised and self._surely_before(claim, keeper, fleet):
                    self._story.break_law(
                        7, f"claim {claim.id} waits for {name}; kept is a block for {keeper.id} behind it"
                    )

    def _surely_before(self, claim: Claim, keeper: Claim, fleet: Fleet) -> bool:
        """Whether a claim stands before another, if neither may be within a guarantee."""
        lineages = [fleet.projects.lineage(one.spec.project) for one in (claim, keeper)]
        projects = [fleet.projects.get(name) for lineage in lineages for name in lineage]
        if keeper.kept is not None or not keeper.spec.size or any(one is not None and one.shares for one in projects):
            return False
        if claim.spec.priority != keeper.spec.priority:
            return claim.spec.priority > keeper.spec.priority
        return claim.spec.project == keeper.spec.project and claim.queue_key < keeper.queue_key

    def on_idle_turn(self, fleet: Fleet, outcome: TurnOutcome) -> None:
        """A turn decided without inputs: the first in the queue does not wait for free devices (law 7)."""
        if fleet.projects or fleet.moving_claims:
            return  # the reserved blocks decide who is first
        first = _first(fleet)
        if first is None or first.state is ClaimState.ANNOUNCED or first.id in outcome.fleet.claims:
            return
        for state in _able(first, fleet):
            fits = not first.spec.size or state.free.find_block(first.spec.size) is not None
            if (
                fits
                and not state.unreachable_reason
                and has_resources_left(state.pool, state.used_resources, first.spec.resources)
            ):
                self._story.break_law(7, f"claim {first.id} is first, fits into {state.pool.name}, and is not served")

    def _reasons(self, fleet: Fleet, now: Timestamp, every: bool) -> None:
        """Every wait has a reason (law 8)."""
        waiting = list(fleet.pending_claims())
        if not every and waiting:
            waiting = [waiting[self._turns % len(waiting)]]
        for claim in waiting:
            wait = explain_wait(fleet, claim, now)
            for reason in wait.reasons[:1]:
                self._story.count(f"reason {reason.code}")
            if not wait.reasons or any(not reason.message or not reason.code for reason in wait.reasons):
                self._story.break_law(8, f"claim {claim.id} waits, and nobody can say why: {wait}")

    # -- the same decision again -----------------------------------------------------------------------------------

    def check_repeatable(
        self,
        loop: TurnLoop,
        demanded: list[KeyedInput],
        outcome: TurnOutcome,
        since: Timestamp,
        pools: tuple[Pool, ...],
    ) -> None:
        """The same inputs on a fleet made again from the records give the same decision, byte for byte (law 9)."""
        fleet = Fleet.load(
            pools,
            sorted(self._ledger.claims.values(), key=lambda claim: claim.id),
            sorted(self._ledger.partitions.values(), key=lambda partition: partition.id),
            self._ledger.devices.values(),
            self._ledger.projects.values(),
            self._ledger.usage.values(),
        )
        fleet.apply(loop.fleet.volatile_state())
        fleet.last_arrival = loop.fleet.last_arrival
        runs = RunRegistry(sorted(self._ledger.runs.values(), key=lambda run: run.id))
        repeated = decide_turn(fleet, runs, demanded, loop.turn_context(loop.clock.now()))
        if repeated.changes != outcome.changes:
            self._story.break_law(9, f"decided again: {_difference(repeated.changes, outcome.changes)}")
        if [_comparable(one) for one in repeated.replies] != [_comparable(one) for one in outcome.replies]:
            self._story.break_law(9, f"answered again: {repeated.replies} and not {outcome.replies}")
        for (what, derived), (_, held) in zip(_derived(fleet), _derived(loop.fleet), strict=True):
            if derived != held:
                self._story.break_law(9, f"{what}: memory has {held}, and made anew from the records it is {derived}")


def _derived(fleet: Fleet) -> Iterator[tuple[str, object]]:
    """A fleet's derived forms of its records, beside those in the laws, each with its name."""
    yield "names of claims", fleet.claim_ids_by_name
    yield "names of partitions", fleet.partition_ids_by_name
    yield "leases", fleet.lease_expiries
    yield "those asked to move", fleet.moving_claims
    yield "those asked to yield", fleet.claims_asked_to_yield
    for name, state in fleet.pools.items():
        yield f"holds of {name}", state.held_blocks
        yield f"ends of {name} that passed in vain", state.overdue
        due = {
            one
            for one in state.due_releases
            if one[1] in state.held_blocks and state.held_blocks[one[1]].until == one[0]
        }
        yield f"ends of {name} to come", {one for one in due if one[1] not in state.overdue}
        yield (
            f"ends of {name}",
            [state.release_times.release_time(index) for index in range(state.pool.topology.n_devices)],
        )


def _difference(again: Changes, first: Changes) -> str:
    """The first difference."""
    for field in fields(Changes):
        pairs = zip_longest(getattr(again, field.name), getattr(first, field.name))
        for one, other in pairs:
            if one != other:
                return f"{field.name}: {one} and not {other}"
    return ""


def _comparable(reply: object) -> object:
    return (reply.code, reply.detail, reply.hint) if isinstance(reply, MooringsError) else reply


def _first(fleet: Fleet) -> Claim | None:
    """The first waiting claim, here or in another scheduler's queue; there, claims that never fit are skipped."""
    waiting = [next((claim for claim in fleet.pending_claims() if claim.spec.queue is QueueMode.WAIT), None)]
    waiting += [
        claim
        for report in fleet.queue_reports.values()
        for claim in report.to_claims()
        if _served_one_day(claim, fleet)
    ]
    return min((claim for claim in waiting if claim is not None), key=lambda claim: claim.queue_key, default=None)


def _limited(claim: Claim, fleet: Fleet) -> bool:
    """Whether a limit of its project may stop it."""
    known = (fleet.projects.get(name) for name in fleet.projects.lineage(claim.spec.project))
    return any(one is not None and (one.devices_max is not None or one.has_user_limits) for one in known)


def _served_one_day(claim: Claim, fleet: Fleet) -> bool:
    return any(_could_ever(state, claim) for state in _able(claim, fleet))


def _able(claim: Claim, fleet: Fleet) -> list[PoolState]:
    try:
        return eligible_pools(claim.spec, fleet.pools)
    except MooringsError:
        return []


def _could_ever(state: PoolState, claim: Claim) -> bool:
    """Whether the devices in service, if all were free, hold a block for it."""
    if not claim.spec.size:
        return True
    whole = free_map_for(state.pool.topology)
    for index, device in state.out_of_service.items():
        assert device.state is not DeviceState.IN_SERVICE
        whole.allocate(Block.single(index))
    return whole.find_block(claim.spec.size) is not None


def left_over(partitions: Mapping[PartitionId, Partition]) -> str:
    """The partitions, for a message."""
    return ", ".join(f"{one.id} ({one.state}: {one.reason})" for one in partitions.values())
