"""The life of one controller's process, from outside: it runs, is stopped, or is dead.

A death is a ``kill -9``: every task of it ends where it is, and its clean-up code reaches nothing, because all its
connections to the outside lead through gates that ask ``ControllerInstance`` first. A task belongs to an instance by
its context, which it inherits from its parent task.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from moorings.core.model.timestamps import Timestamp
from moorings.testing.simulation.fault_plan import FaultPlan
from moorings.testing.simulation.virtual_time import VirtualLoop, WallClock

T = TypeVar("T")

LIFE: contextvars.ContextVar[ControllerInstance] = contextvars.ContextVar("life")
_PRUNE_AT = 256
STILL_S = 0.05  # how often a stopped process is checked for its continuation


class ControllerInstance:
    """One process of a controller.

    Attributes:
        name: ``controller-<number>``, for the story.
        is_dead: whether it was killed, or ended.
        ended: set once it is dead.
    """

    def __init__(self, number: int, loop: VirtualLoop) -> None:
        self.name = f"controller-{number}"
        self.is_dead = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._moving: asyncio.Future[None] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._prune_at = _PRUNE_AT
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process."""
        return self._loop.create_task(work, context=self.context)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Called for every child task."""
        self._tasks[task] = None
        if len(self._tasks) > self._prune_at:
            self._tasks = {one: None for one in self._tasks if not one.done()}
            self._prune_at = 2 * len(self._tasks) + _PRUNE_AT

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped."""
        return self._moving is not None

    def stop(self) -> None:
        """Stop it (SIGSTOP): sent messages travel on, no new ones are sent and no responses are taken."""
        if not self.is_dead and self._moving is None:
            self._moving = self._loop.create_future()

    def resume(self) -> None:
        """Continue as if nothing had happened (SIGCONT)."""
        if self._moving is not None:
            moving, self._moving = self._moving, None
            if not moving.done():
                moving.set_result(None)

    def kill(self) -> None:
        """Kill it at once."""
        if self.is_dead:
            return
        self.is_dead = True
        self.ended.set_result(None)
        if self._moving is not None and not self._moving.done():
            self._moving.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def wait_while_stopped(self) -> None:
        """Wait until the process runs.

        Raises:
            CancelledError: it is dead.
        """
        while self._moving is not None and not self.is_dead:
            await asyncio.shield(self._moving)
        if self.is_dead:
            raise asyncio.CancelledError

    async def await_answer(self, answer: asyncio.Future[T]) -> T:
        """Wait for a response from outside, and take it when the process runs."""
        result = await answer
        await self.wait_while_stopped()
        return result


class ProcessClock:
    """The machine's clock, for a process; a stopped process also sleeps on."""

    def __init__(self, life: ControllerInstance, clock: WallClock) -> None:
        self._life = life
        self._clock = clock

    def now(self) -> Timestamp:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        await self._life.wait_while_stopped()
        await asyncio.sleep(seconds)
        await self._life.wait_while_stopped()


class Threads:
    """Runs controllers' calls in threads: each whole, at a drawn moment; those of one executor one by one.

    The default executor has any number of threads.
    """

    def __init__(self, loop: VirtualLoop, odds: FaultPlan) -> None:
        self.loop = loop
        self.odds = odds
        self._queues: dict[Executor, deque[_Work]] = {}

    def __call__(self, executor: Executor | None, call: Callable[[], object], future: asyncio.Future[Any]) -> None:
        life = LIFE.get(None)
        if life is not None and life.is_dead:
            future.cancel()
            return
        work = _Work(self, executor, call, future, life)
        if executor is None:
            work.begin()
            return
        queue = self._queues.setdefault(executor, deque())
        queue.append(work)
        if len(queue) == 1:
            work.begin()

    def next(self, executor: Executor | None) -> None:
        """A thread of that executor is free."""
        if executor is None:
            return
        queue = self._queues[executor]
        queue.popleft()
        if queue:
            queue[0].begin()
        else:
            del self._queues[executor]


@dataclass(slots=True)
class _Work:
    """One call: if its process dies before its start, it is never run; if after, its result is lost."""

    threads: Threads
    executor: Executor | None
    call: Callable[[], object]
    future: asyncio.Future[Any]
    life: ControllerInstance | None

    def begin(self) -> None:
        self._later(self._carry_out)

    def _later(self, then: Callable[[], None]) -> None:
        self.threads.loop.call_later(self.threads.odds.store_s(), then)

    def _carry_out(self) -> None:
        if self.life is not None and self.life.is_dead:
            return
        if self.life is not None and self.life.is_stopped:
            self.threads.loop.call_later(STILL_S, self._carry_out)
            return
        try:
            result = self.call()
        except Exception as error:  # it is passed on, whatever it is
            self._later(partial(self._fail, error))
        else:
            self._later(partial(self._answer, result))

    def _answer(self, result: object) -> None:
        self.threads.next(self.executor)
        if self._heard:
            self.future.set_result(result)

    def _fail(self, error: Exception) -> None:
        self.threads.next(self.executor)
        if self._heard:
            self.future.set_exception(error)

    @property
    def _heard(self) -> bool:
        """Whether a caller still waits for the result."""
        return not self.future.done() and not (self.life is not None and self.life.is_dead)


def adopting(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    *,
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    """A task factory that assigns every task to its process; a dead process makes none.

    Raises:
        CancelledError: its process is dead.
    """
    life = context.get(LIFE) if context is not None else LIFE.get(None)
    if life is not None and life.is_dead:
        work.close()
        raise asyncio.CancelledError
    task = asyncio.Task(work, loop=loop, context=context)
    if life is not None:
        life.add_task(task)
    return task
