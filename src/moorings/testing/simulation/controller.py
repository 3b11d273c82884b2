"""One controller: the real loop, drivers, runs and use cases, joined as ``app`` joins them, behind gates.

``WatchedLoop`` is the real loop with an observer at its one decision; it changes no decision and no wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from moorings.controller.driver_manager import DriverManager
from moorings.controller.keys import AccessKeyManager
from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.controller.rewind_recovery import begin_leading
from moorings.controller.run_manager import RunManager
from moorings.controller.service import Controller
from moorings.controller.turn import AnyReply, KeyedInput, TurnOutcome
from moorings.controller.turn_record import AnyInput
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, ReleaseClaim, RenewClaim, SetPriority
from moorings.ports.store import Epoch, IdempotencyRecord, LogPosition
from moorings.testing.simulation.context import SimulationContext
from moorings.testing.simulation.engine import ENGINE_NAME as LOCAL
from moorings.testing.simulation.faulty import FaultyEngine, FaultyStore, faulty_drivers
from moorings.testing.simulation.invariant_checker import InvariantChecker
from moorings.testing.simulation.process import ControllerInstance, ProcessClock
from moorings.testing.simulation.scheduler import NAME as SCHEDULER
from moorings.workloads.run_turn import CancelRun, CreateRun, LabelRun

T = TypeVar("T")

AGAIN_EVERY = 3  # turns between decisions that are repeated
POISONABLE_INPUTS = (
    CreateClaim,
    ReleaseClaim,
    RenewClaim,
    SetPriority,
    CreateRun,
    CancelRun,
    LabelRun,
)  # inputs that may be poison


class PoisonError(Exception):
    """The fault ``poison``: an input that cannot be decided."""


def is_of_poison(error: MooringsError) -> bool:
    """Whether that is the error for the sender of a poisoned input."""
    return error.code == "internal.error" and PoisonError.__name__ in error.detail


class WatchedLoop(TurnLoop):
    """The real loop, with a check of each decision; some inputs are poison to it."""

    def __init__(
        self,
        stage: SimulationContext,
        life: ControllerInstance,
        witness: InvariantChecker,
        store: FaultyStore,
        epoch: Epoch,
    ) -> None:
        super().__init__(store, stage.pools, stage.sharing.policy, ProcessClock(life, stage.wall), epoch)
        self._stage = stage
        self._life = life
        self._witness = witness
        self._turns = 0
        self._poison: list[AnyInput] = []
        self.subscribe(self._turned)

    @property
    def leads(self) -> bool:
        """Whether no later controller has begun to lead."""
        ledger = self._stage.ledger  # a leader that has read further than the database notices that it was turned back
        return self._epoch == ledger.epoch and self.seq <= ledger.seq and not self._life.is_dead

    async def submit(self, given: AnyInput, key: IdempotencyRecord | None = None) -> AnyReply:
        try:
            return await super().submit(given, key)
        except MooringsError as error:
            if error.code == "internal.error" and not self._is_poison(given):
                self._stage.story.break_law(2, f"{given} was answered with the fault that another demand brought")
            raise

    def _meet_poison(self, demanded: Sequence[KeyedInput]) -> None:
        """Raise if one of them is poison; now and then make one poison where it may harm others."""
        able = [one.given for one in demanded if isinstance(one.given, POISONABLE_INPUTS)]
        if able and len(demanded) > 1 and self._stage.odds.draw_separate_fault("poison"):
            self._poison.append(chosen := self._stage.odds.apart.choice(able))
            self._stage.story.add_fault("poison", f"{type(chosen).__name__} in a turn of {len(demanded)}")
        if any(map(self._is_poison, able)):
            raise PoisonError

    def _is_poison(self, given: AnyInput) -> bool:
        return any(one is given for one in self._poison)  # this very input, not an equal one

    def decide(self, demanded: Sequence[KeyedInput]) -> TurnOutcome:
        self._meet_poison(demanded)
        outcome = super().decide(demanded)
        self._turns += 1
        if outcome.changes or demanded:
            inputs = ",".join(type(one.given).__name__ for one in demanded)
            self._stage.story.add_step("turn", f"{self._life.name} [{inputs}] {len(outcome.changes.events)} events")
        if self.leads:
            self._witness.on_decision(self.fleet, demanded, outcome)
            if not demanded:
                self._witness.on_idle_turn(self.fleet, outcome)
            if outcome.changes and self._turns % AGAIN_EVERY == 0:
                self._stage.story.count("decided again")
                self._witness.check_repeatable(self, list(demanded), outcome, self._serving_since, self._stage.pools)
        return outcome

    def _turned(self, change: CommittedChange) -> None:
        if self.leads:
            self._witness.on_turn(self, change)


class SimulatedController:
    """One life of a controller, from its start to its end.

    Attributes:
        life: its process.
        loop: its memory, once it is loaded.
        controller: its use cases, once it serves.
    """

    def __init__(
        self,
        number: int,
        stage: SimulationContext,
        witness: InvariantChecker,
        on_end: Callable[[SimulatedController, str], None],
    ) -> None:
        self.life = ControllerInstance(number, stage.loop)
        self.loop: WatchedLoop | None = None
        self.controller: Controller | None = None
        self._stage = stage
        self._witness = witness
        self._on_end = on_end
        self._main = self.life.spawn(self._run())
        self._main.add_done_callback(self._on_end_of_main)

    async def _run(self) -> None:
        stage, life = self._stage, self.life
        store = FaultyStore(stage, life, self._witness)
        clock = ProcessClock(life, stage.wall)
        mark = stage.rewinds.open_log_position() if stage.rewinds is not None else None
        if stage.rewinds is not None and mark is not None:
            await stage.loop.run_in_executor(None, stage.rewinds.recover_if_rewound, store, mark, clock.now())
            begin: Callable[[], Epoch] = partial(
                begin_leading, store, mark.read(), mark.record_blocking, life.name, clock.now()
            )
        else:
            begin = partial(store.begin_epoch, life.name, clock.now())
        epoch = await stage.loop.run_in_executor(None, begin)
        loop = WatchedLoop(stage, life, self._witness, store, epoch)
        hardware = DriverManager(
            loop,
            faulty_drivers(stage, life, self._witness),
            clock,
            stage.installation,
            in_use=self._is_in_use if stage.rewinds is not None else None,
            record_position=mark.record if mark is not None else None,
        )
        engines = {name: FaultyEngine(stage, life, name) for name in (LOCAL, SCHEDULER)}
        running = RunManager(loop, engines, hardware, clock, stage.ids, stage.installation, stage.environments)
        controller = Controller(
            loop=loop,
            store=store,
            hardware=hardware,
            engines=engines,
            keys=AccessKeyManager(store, clock, b"pepper"),
            clock=clock,
            ids=stage.ids,
            installation=stage.installation,
            environments=stage.environments,
        )
        await loop.load()
        self.loop, self.controller = loop, controller
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(loop.serve(), name="turns")
                group.create_task(hardware.serve(), name="hardware")
                group.create_task(running.serve(), name="running")
        finally:
            if mark is not None and not life.is_dead:
                mark.record_blocking(LogPosition(loop.seq, loop.epoch))

    @property
    def has_led(self) -> bool:
        """Whether it has read its memory: before, whatever fails is done again by the next one."""
        return self.loop is not None

    async def _is_in_use(self, partition: str) -> bool:
        assert self._stage.rewinds is not None
        return self._stage.rewinds.is_in_use(partition)

    def _on_end_of_main(self, main: asyncio.Task[None]) -> None:
        """The process ended: killed, fenced, or because it could not start."""
        error = None if main.cancelled() else main.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None:
            why = "killed"
        elif isinstance(error, MooringsError):
            why = error.code
        else:
            why = f"{type(error).__name__}: {error}"
        self.life.kill()
        self._on_end(self, why)

    def submit(self, use_case: Callable[[Controller], Coroutine[Any, Any, T]]) -> asyncio.Task[T] | None:
        """A request that reached it, in progress; None if it does not serve."""
        if self.controller is None or self.life.is_dead:
            return None
        return self.life.spawn(use_case(self.controller))
