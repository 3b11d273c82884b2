"""The commands that change partitions, while they run: they may take minutes, and a request is answered before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from moorings.core.model.driver_results import ObservedState
from moorings.core.model.topology import Block
from moorings.drivers.vipu.cli import VipuCli, unavailable_error

ANSWER_WAIT_S = 2.0  # a request still in progress by then is answered as accepted, if a listing shows it

EMPTY_BLOCK = Block(())

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A running command: the state of its partition meanwhile, and its devices."""

    seen: ObservedState
    block: Block
    task: asyncio.Task[str]

    async def stop(self) -> None:
        """End the command; its request may have been carried out."""
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def wait(self, is_accepted: Callable[[], Awaitable[bool]] | None) -> None:
        """Return when the command has ended or, asked every ``ANSWER_WAIT_S``, its request was accepted.

        Args:
            is_accepted: whether a listing shows that; None: it is accepted if the command runs.

        Raises:
            MooringsError: the command failed.
        """
        while not self.task.done():
            await asyncio.wait((self.task,), timeout=ANSWER_WAIT_S)
            if not self.task.done() and (is_accepted is None or await is_accepted()):
                return
        if self.task.cancelled():
            raise unavailable_error("the command was cancelled by a newer request")
        self.task.result()


class RunningCommands:
    """The running commands of a pool, by partition.

    Args:
        pool: its name, for the log.
        tool: the vendor's command.
        timeout_s: for each.
    """

    def __init__(self, pool: str, tool: VipuCli, timeout_s: float) -> None:
        self._pool = pool
        self._tool = tool
        self._timeout_s = timeout_s
        self._jobs: dict[str, RunningCommand] = {}

    def start(self, name: str, words: Sequence[str], seen: ObservedState, block: Block = EMPTY_BLOCK) -> RunningCommand:
        """Run a command for that partition."""
        task = asyncio.create_task(self._tool.run(words, self._timeout_s), name=f"vipu-{'-'.join(words[:3])}")
        job = self._jobs[name] = RunningCommand(seen, block, task)

        def ended(task: asyncio.Task[str]) -> None:
            if self._jobs.get(name) is job:
                del self._jobs[name]
            if not task.cancelled() and task.exception() is not None:
                _log.info("vipu.failed pool=%s partition=%s detail=%s", self._pool, name, task.exception())

        task.add_done_callback(ended)
        return job

    def get(self, name: str) -> RunningCommand | None:
        """Return the command for that partition."""
        return self._jobs.get(name)

    def states(self) -> dict[str, ObservedState]:
        """Return the state of each partition under a command."""
        return {name: job.seen for name, job in self._jobs.items()}

    def blocks(self) -> list[tuple[str, Block]]:
        """Return the partitions under a command, with their devices."""
        return [(name, job.block) for name, job in self._jobs.items()]

    async def close(self) -> None:
        """End all."""
        for job in list(self._jobs.values()):
            await job.stop()
