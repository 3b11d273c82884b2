"""One episode: a seed's machines, clients and faults, its controllers, and the final checks.

It runs for a number of steps. Then faults and clients stop, time passes, and everything must settle: pending claims are
served or explained, released ones are gone, and nothing is left in hardware, memory or database.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorings.controller.replay import Replay
from moorings.core.model.claims import ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import add_seconds
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo
from moorings.core.scheduling.explain import explain_wait
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.ports.store import Seq
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.testing.simulation.clients import ROOT, ClientPool, NoAnswerError, UseCase, make_clients
from moorings.testing.simulation.committed_state import CommittedState
from moorings.testing.simulation.context import SimulationContext
from moorings.testing.simulation.controller import PoisonError, SimulatedController
from moorings.testing.simulation.engine import SimulatedCluster
from moorings.testing.simulation.environments import SimulatedEnvironments
from moorings.testing.simulation.episode_log import BrokenLaw, EpisodeLog
from moorings.testing.simulation.fault_injector import FaultInjector
from moorings.testing.simulation.fault_plan import FaultPlan
from moorings.testing.simulation.guarantee_checker import GuaranteeChecker
from moorings.testing.simulation.guarantee_rush import make_rush_clients
from moorings.testing.simulation.invariant_checker import InvariantChecker, left_over
from moorings.testing.simulation.pauses import RETRIES, PausingAdmin, has_pauses
from moorings.testing.simulation.process import Threads, adopting
from moorings.testing.simulation.rewind import RewindableDatabase
from moorings.testing.simulation.scheduler import SimulatedScheduler
from moorings.testing.simulation.sharing import drawn_sharing
from moorings.testing.simulation.virtual_time import SeededIds, SteadyClock, StuckError, VirtualLoop, WallClock
from moorings.workloads.runs import EndReason

INSTALLATION = "simulatedsea"
DATABASE = "moorings.db"
FINISH_S = (5.0, 60.0)  # until an admin ends the protection of partitions without a record
STEPS = 5_000  # of an episode, by default
RESTART_S_MAX = 3.0
CLIENTS_MAX = 14
SETTLE_S = 90.0
OVERDUE_S = 60.0  # after the time of a retry
DRAIN_S = 1_200.0  # in virtual time
EVENTS_A_READ = 1_000
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a database there costs no disk; where there is none, the temporary folder

POOLS = (
    Pool(PoolName("pod16"), "ipu", "simulated", PowerOfTwo(1, 16, 16)),
    Pool(PoolName("pod8x4"), "ipu", "simulated", PowerOfTwo(2, 4, 8)),
    Pool(PoolName("hgx"), "gpu", "simulated", AnySubset(6, 6), (("memory", 8),)),
    Pool(
        PoolName("rack"),
        "csx",
        "simulated",
        Catalogue(
            6, (*(Block.of([i]) for i in range(6)), *(Block.of([i, i + 1]) for i in range(5)), Block.of(range(6)))
        ),
        (("memory", 6),),
    ),
)


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of an episode.

    Attributes:
        digest: of its whole story.
        lines: its last lines, for humans.
    """

    seed: int
    steps: int
    virtual_s: float
    reached: Counter[str]
    broken: BrokenLaw | None
    digest: str
    lines: tuple[str, ...]
    kinds: frozenset[str]


def simulate(
    seed: int, *, steps: int = STEPS, until: int | None = None, only: Collection[str] | None = None
) -> EpisodeResult:
    """Run one episode.

    Args:
        seed: of all random numbers.
        steps: how many before the final checks.
        until: stop at this step.
        only: the kinds of faults that may occur; None: some of all, drawn.
    """
    folder = Path(tempfile.mkdtemp(prefix="moorings-simulation-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    loop = VirtualLoop()
    try:
        with _complaints() as complaints:
            episode = Episode(seed, steps, until, only, folder, loop, complaints)
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(episode.run())
            except StuckError:
                episode.story.break_law(0, "nothing can happen any more, and somebody still waits")
            finally:
                episode.close()
            return episode.outcome()
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)


class _LogHandler(logging.Handler):
    """Checks the controllers' log for messages that must not occur."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.hear: Callable[[logging.LogRecord], None] = lambda _: None

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(record)


@contextmanager
def _complaints() -> Iterator[_LogHandler]:
    """The controllers' log, for the simulator only."""
    logger, handler = logging.getLogger("moorings"), _LogHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


FORBIDDEN_LOGS = ("turn.failed", "driver.fault", "engine.fault", "claim.orphaned")


class Episode:
    """The parts of one episode, joined."""

    def __init__(
        self,
        seed: int,
        steps: int,
        until: int | None,
        only: Collection[str] | None,
        folder: Path,
        loop: VirtualLoop,
        complaints: _LogHandler,
    ) -> None:
        self._seed = seed
        self._steps = steps
        self.story = EpisodeLog(loop.time, until)
        self._odds = odds = FaultPlan(seed, only)
        loop.threads = Threads(loop, odds)
        loop.set_task_factory(adopting)
        loop.set_exception_handler(self._check_loop_error)
        complaints.hear = self._check_log
        self._store = _new_store(folder)
        steady = SteadyClock(loop)
        pools = tuple(sorted(odds.chance.sample(POOLS, odds.chance.choice((1, 2, 3))), key=POOLS.index))
        drivers = {pool.name: SimulatedDriver(pool, _settings(odds), folder / pool.name, steady) for pool in pools}
        ledger = CommittedState(self.story)
        sharing, wall = drawn_sharing(odds.chance, rush=odds.rush), WallClock(loop)
        guarantees = GuaranteeChecker(self.story, ledger, pools, sharing.policy, steady, wall)
        self.story.on_fault = guarantees.on_fault
        self._witness = witness = InvariantChecker(self.story, ledger, drivers, steady, INSTALLATION, guarantees)
        cluster = SimulatedCluster(loop, odds, steady, wall, witness.on_run_start)
        scheduler = SimulatedScheduler(loop, odds, steady, wall, witness.on_run_queued)
        guarantees.alive = witness.alive = lambda run: run in cluster.live or run in scheduler.live
        witness.rows = lambda: ledger.compare(self._store.load_unended())
        self._enough = asyncio.Event()
        self.story.after_step = self._check
        past: RewindableDatabase | None = None
        if odds.has_rewinds:
            past = RewindableDatabase(self.story, ledger, folder / DATABASE, cluster, INSTALLATION, self._after_a_while)
        witness.spares = lambda: past is not None and past.is_sparing
        self._stage = SimulationContext(
            loop=loop,
            odds=odds,
            story=self.story,
            ledger=ledger,
            pools=pools,
            store=self._store,
            drivers=drivers,
            cluster=cluster,
            scheduler=scheduler,
            wall=wall,
            steady=steady,
            ids=SeededIds(odds.chance),
            installation=INSTALLATION,
            sharing=sharing,
            yielded_claims=guarantees.given_back,
            rewinds=past,
            environments=SimulatedEnvironments(),
        )
        self._numbers = itertools.count(1)
        self._leader: SimulatedController | None = None
        self._rivals: list[SimulatedController] = []
        self._over: asyncio.Future[None] = loop.create_future()
        self.story.on_end = self._stop
        self._crowd = ClientPool(self._stage, self._serving, RETRIES if has_pauses(seed) else 0)
        self._trouble = FaultInjector(self._stage, witness, self)

    def _check(self) -> None:
        self._witness.check_processes()
        if self.story.steps >= self._steps:
            self._enough.set()

    def outcome(self) -> EpisodeResult:
        """The result."""
        story = self.story
        for name, driver in self._stage.drivers.items():
            for kind, count in driver.faults.injected_counts.items():
                story.reached[f"struck {kind}"] += count
            story.reached[f"pool {name}"] += 1
        return EpisodeResult(
            seed=self._seed,
            steps=story.steps,
            virtual_s=self._stage.loop.time(),
            reached=story.reached,
            broken=story.broken,
            digest=story.digest(),
            lines=tuple(story.lines()),
            kinds=self._odds.kinds,
        )

    def close(self) -> None:
        """Close database and hardware."""
        self._store.close()
        for driver in self._stage.drivers.values():
            driver.hardware.close()

    # -- controllers -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a controller, which leads from then on."""
        if not self.story.is_over:
            self._leader = SimulatedController(next(self._numbers), self._stage, self._witness, self._ended)

    def _ended(self, world: SimulatedController, why: str) -> None:
        self.story.add_line(world.life.name, f"ended: {why}")
        self.story.count(f"ended {why if '.' in why else why.split(':')[0]}")
        may_end = {"killed", "store.unavailable", "store.fenced"}
        if self._odds.has_rewinds:
            may_end.add("store.turned_back")
        if not world.has_led:
            may_end.add("store.conflict")  # of a recovery: an earlier leader may save until it is fenced off
        if why not in may_end:
            self.story.break_law(0, f"{world.life.name} ended: {why}")
        if world in self._rivals:
            self._rivals.remove(world)
        if world is self._leader:
            if why == "store.fenced":
                self.story.break_law(0, f"{world.life.name} leads and is fenced off")
            self._leader = None
            self._stage.loop.call_later(self._odds.chance.uniform(0, RESTART_S_MAX), self._begin)

    def _serving(self) -> SimulatedController | None:
        if self._rivals and self._odds.chance.random() < 0.3:
            return self._odds.chance.choice(self._rivals)
        return self._leader

    def crash(self, why: str) -> None:
        """Kill the leader; another one starts in its place."""
        if self._leader is not None:
            self.story.add_fault(why, self._leader.life.name)
            self._leader.life.kill()

    def stall(self, lasts_s: float) -> None:
        """Stop the leader for a while."""
        if self._leader is not None and not self._leader.life.is_stopped:
            self.story.add_fault("stall", f"{self._leader.life.name} for {lasts_s:.1f} s")
            self._leader.life.stop()
            self._stage.loop.call_later(lasts_s, self._leader.life.resume)

    def turn_back(self, *, down: bool) -> None:
        """Turn the database back to the remembered state; ``down``: the leader dies at that moment."""
        assert self._stage.rewinds is not None
        if down and self._leader is not None:
            self._leader.life.kill()
        gone = self._stage.rewinds.restore_snapshot()
        self._witness.guarantees.reset()
        self.story.add_fault("store_back", f"by {gone} events{', while nobody leads' if down else ''}")

    def _after_a_while(self, do: Callable[[], None]) -> None:
        self._stage.loop.call_later(self._odds.chance.uniform(*FINISH_S), do)

    def rival(self, stopped_s: float, lasts_s: float) -> None:
        """Start another leader while the old one is still alive, stopped for a while at first."""
        old = self._leader
        if old is None or old.controller is None:
            return
        self.story.add_fault("zombie_paused" if stopped_s else "zombie", f"{old.life.name} for {lasts_s:.1f} s")
        self._rivals.append(old)
        if stopped_s:
            old.life.stop()
            self._stage.loop.call_later(stopped_s, old.life.resume)
        self._stage.loop.call_later(stopped_s + lasts_s, old.life.kill)
        self._begin()

    # -- what is never right -----------------------------------------------------------------------------------------

    def _check_log(self, record: logging.LogRecord) -> None:
        self.story.count(f"log {record.getMessage()}")
        raised = record.exc_info[1] if record.exc_info else None
        if isinstance(raised, PoisonError):
            return  # the affected client checks this
        foreign = raised is not None or "MooringsError" not in getattr(record, "detail", "")
        if record.getMessage() in FORBIDDEN_LOGS and foreign:
            detail = getattr(record, "detail", "") or getattr(record, "claim", "")
            self.story.break_law(0, f"{record.getMessage()}: {raised!r} {detail}")

    def _check_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError) or "was destroyed" in context.get("message", ""):
            return
        self.story.break_law(0, f"{context.get('message')}: {error!r}")

    def _stop(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    # -- the course --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the whole episode, or until a law is broken."""
        course = asyncio.create_task(self._run_phases())
        await asyncio.wait((course, self._over), return_when=asyncio.FIRST_COMPLETED)
        if course.done() and not course.cancelled() and course.exception() is not None:
            self.story.break_law(0, f"the reckoning failed: {course.exception()!r}")
        self.story.is_over = True
        course.cancel()
        for world in (*self._rivals, *([self._leader] if self._leader is not None else [])):
            world.life.kill()
        self._trouble.stop()
        self._stage.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _run_phases(self) -> None:
        self._begin()
        self._trouble.start()
        people = (
            make_rush_clients(self._crowd)
            if self._odds.rush
            else make_clients(self._crowd, self._odds.chance.randint(6, CLIENTS_MAX))
        )
        clients = [asyncio.create_task(client.work()) for client in people]
        if has_pauses(self._seed):
            clients.append(asyncio.create_task(PausingAdmin(self._crowd, self._seed).work()))
        await self._enough.wait()
        for client in clients:
            client.cancel()
        self._trouble.stop()
        for world in (*self._rivals, *([self._leader] if self._leader is not None else [])):
            world.life.resume()
        self.story.add_line("RECKONING", "faults and clients stop")
        await self._final_checks()

    async def _final_checks(self) -> None:
        await asyncio.sleep(SETTLE_S)
        await self._heal()
        await asyncio.sleep(SETTLE_S)
        self._served_or_explained()
        await self._release_all()
        self._nothing_left()
        self._ended_once()

    def _controller(self) -> SimulatedController:
        assert self._leader is not None
        return self._leader

    async def _request(self, what: str, use_case: UseCase[object]) -> None:
        try:
            await self._crowd.ask("root", what, use_case)
        except (NoAnswerError, MooringsError):
            return

    async def _heal(self) -> None:
        """An admin puts everything back into service."""
        for device in sorted(self._stage.ledger.devices.values(), key=lambda one: one.id):
            ident = device.id
            await self._request(f"resume {ident}", _resuming(ident))

    def _served_or_explained(self) -> None:
        loop = self._controller().loop
        if loop is None:
            self.story.break_law(0, "no controller serves, long after the last fault")
            return
        overdue = add_seconds(loop.clock.now(), -OVERDUE_S)
        for run in loop.runs.by_id.values():
            if run.pause is not None and run.pause.resume_at is not None and run.pause.resume_at < overdue:
                self.story.break_law(7, f"run {run.id} was to be retried at {run.pause.resume_at}, and is {run.state}")
        for claim in loop.fleet.pending_claims():
            wait = explain_wait(loop.fleet, claim, loop.clock.now())
            if wait.reasons[0].code == "queue.next_turn":
                self.story.break_law(7, f"claim {claim.id} fits, and was not served in {SETTLE_S:g} quiet seconds")
        for state in loop.fleet.pools.values():
            if state.unreachable_reason:
                self.story.break_law(
                    8, f"pool {state.pool.name} answers, and is called unreachable: {state.unreachable_reason}"
                )

    async def _release_all(self) -> None:
        ledger = self._stage.ledger
        deadline_s = self._stage.loop.time() + DRAIN_S
        for cluster in (self._stage.cluster, self._stage.scheduler):
            for run in [run for run in cluster.live if run not in ledger.runs]:
                cluster.end_run(run, EndReason.EXITED, 0, "no record knows it: its person has ended it")
        while (ledger.claims or ledger.runs or ledger.partitions) and self._stage.loop.time() < deadline_s:
            for run in sorted(ledger.runs):
                await self._request(f"cancel {run}", _cancelling(run))
            for claim in sorted(ledger.claims):
                if ledger.claims.get(claim) is not None and ledger.claims[claim].state is not ClaimState.RELEASING:
                    await self._request(f"release {claim}", _releasing(claim))
            await self._heal()
            await asyncio.sleep(40.0)
        for project in sorted(ledger.projects, reverse=True):  # a project's parts before the project
            await self._request(f"delete project {project}", _deleting(project))
        await asyncio.sleep(SETTLE_S)

    def _nothing_left(self) -> None:
        """Nothing leaks, and the free maps are consistent."""
        ledger, now = self._stage.ledger, self._stage.steady.now()
        if ledger.projects:
            self.story.break_law(2, f"projects that nobody uses cannot be deleted: {sorted(ledger.projects)}")
        if ledger.claims or ledger.runs or ledger.partitions:
            rest = f"{sorted(ledger.claims)} {sorted(ledger.runs)} {left_over(ledger.partitions)}"
            self.story.break_law(2, f"not at rest long after everything was released: {rest}")
        for name, driver in self._stage.drivers.items():
            for held in driver.hardware.partitions(now):
                self.story.break_law(2, f"{held.name} ({held.mark}) is left on {held.block} of {name}")
        if live := [*self._stage.cluster.live, *self._stage.scheduler.live]:
            self.story.break_law(3, f"processes are left of {sorted(live)}")
        loop = self._controller().loop
        assert loop is not None
        for state in loop.fleet.pools.values():
            if state.free.n_free != state.pool.topology.n_devices - len(state.out_of_service) or any(
                state.used_resources.values()
            ):
                self.story.break_law(
                    2,
                    f"pool {state.pool.name}: {state.free.n_free} free, {state.out_of_service}, {state.used_resources}",
                )

    def _ended_once(self) -> None:
        """Every claim and run has one end in the log, which has no gaps and can be replayed (law 9)."""
        replay = Replay(self._stage.pools)
        ends: Counter[str] = Counter()
        made: set[str] = set()
        last = Seq(0)
        while rows := self._store.list_events(last, EVENTS_A_READ):
            for difference in replay.replay_rows(rows):
                self.story.break_law(
                    9, f"replayed, the turn that ended with event {difference.seq} is another: {difference}"
                )
            for row in rows:
                if not self._stage.ledger.follows(row.seq, last):
                    self.story.break_law(9, f"event {row.seq} follows {last}")
                last = row.seq
                event = row.event
                if event.name in ("claim.cancelled", "claim.released", "claim.failed"):
                    ends[event.claim or ""] += 1
                elif event.name == "run.ended":
                    ends[event.run or ""] += 1
                elif event.name in ("claim.created", "run.created"):
                    made.add((event.run if event.name == "run.created" else event.claim) or "")
        for ident in sorted(made | set(ends)):
            if ends[ident] != 1 or ident not in made:
                self.story.break_law(3, f"{ident} ended {ends[ident]} times in the event log")


def _resuming(device: str) -> UseCase[object]:
    return lambda controller: controller.resume_device(ROOT, device)


def _cancelling(run: str) -> UseCase[object]:
    return lambda controller: controller.runs.cancel_run(ROOT, run)


def _releasing(claim: str) -> UseCase[object]:
    return lambda controller: controller.release_claim(ROOT, claim)


def _deleting(project: str) -> UseCase[object]:
    return lambda controller: controller.projects.delete_project(ROOT, project)


def _new_store(folder: Path) -> SqlStore:
    return open_sqlite(folder / DATABASE, installation=INSTALLATION)


def _settings(odds: FaultPlan) -> SimulatedSettings:
    """The speed of this episode's hardware: instant, the default, or slow."""
    pace = odds.chance.choice((0.0, 1.0, 10.0))
    usual = SimulatedSettings()
    return SimulatedSettings(
        provision_s=usual.provision_s * pace,
        provision_per_device_s=usual.provision_per_device_s * pace,
        reset_s=usual.reset_s * pace,
        reset_per_device_s=usual.reset_per_device_s * pace,
        remove_s=usual.remove_s * pace,
        remove_per_device_s=usual.remove_per_device_s * pace,
        seed=odds.chance.randrange(1 << 32),
    )
