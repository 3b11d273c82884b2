"""Tracks runs' Pods and stores what they show at once: the tasks' states, their ends and their output.

A Pod may be deleted at any moment, by the operator too (the others, when one task has failed), and its end and its
output are lost with it. So ends are recorded and outputs copied from the moment that a container runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.engine.output import copy_output
from moorings.kubernetes.engine.run_folder import KubernetesAttempt, KubernetesRunFolder, SubmittedIPUJob, TaskStatus
from moorings.kubernetes.engine.run_status import merge_task, parse_task
from moorings.kubernetes.engine.submission import CONTAINER, AttemptKey, attempt_key_of
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.ports.clock import Clock
from moorings.workloads.runs import RunId

log = logging.getLogger("moorings.kubernetes.engine")

COPIES_AT_ONCE = 1000


@dataclass(slots=True)
class LiveAttempt:
    """The known state of an attempt that has not ended.

    Attributes:
        tasks: by rank.
        asked: its order; None: not read yet.
        restart: number of its job's restarts; tasks are those of the last start.
        deleted: the deletion of its IPUJob was seen.
        warned: it was warned that its time limit is near.
        stopped_at: when it was last told to stop.
    """

    tasks: dict[int, TaskStatus] = field(default_factory=dict)
    asked: SubmittedIPUJob | None = None
    restart: int = 0
    deleted: bool = False
    warned: bool = False
    stopped_at: Timestamp | None = None


class AttemptTracker:
    """Tracks the Pods of attempts.

    Args:
        folder: of the runs.
        calls: the source of outputs.
        clock: for waiting.
        news: called after each change.
    """

    def __init__(self, folder: Path, calls: PodStreams, clock: Clock, news: Callable[[], None]) -> None:
        self._folder = folder
        self._calls = calls
        self._clock = clock
        self._news = news
        self._lives: dict[AttemptKey, LiveAttempt] = {}
        self._loaded: set[AttemptKey] = set()
        self._done: set[AttemptKey] = set()
        self._copies: dict[str, tuple[AttemptKey, asyncio.Task[None]]] = {}  # by Pod's uid
        self._writing: asyncio.Queue[tuple[AttemptKey, int, TaskStatus]] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._copy_slots = asyncio.Semaphore(COPIES_AT_ONCE)

    def start(self) -> None:
        """Start, unless it has started."""
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="engine-ends")

    async def close(self) -> None:
        """Stop; the next tracker copies the rest."""
        tasks = [task for _, task in self._copies.values()]
        if self._writer is not None:
            tasks.append(self._writer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- known state ---------------------------------------------------------------------------------------------------

    async def load_attempt(self, run: RunId, attempt: KubernetesAttempt) -> LiveAttempt:
        """The known state of an attempt, including what an earlier controller recorded.

        Raises:
            OSError, ValueError: the record cannot be read.
        """
        which = (run, attempt.number)
        life = self._lives.setdefault(which, LiveAttempt())
        if which not in self._loaded:
            for rank, task in (await asyncio.to_thread(attempt.tasks)).items():
                life.tasks.setdefault(rank, task)
            self._loaded.add(which)
        return life

    def get_attempt(self, which: AttemptKey) -> LiveAttempt | None:
        """The known state of an attempt, if it was read or seen before."""
        return self._lives.get(which)

    def forget(self, run: RunId, number: int) -> None:
        """Drop an attempt whose end is recorded."""
        which = (run, number)
        self._done.add(which)
        self._lives.pop(which, None)
        self._loaded.discard(which)
        for uid in [uid for uid, (whose, _) in self._copies.items() if whose == which]:
            del self._copies[uid]

    def count_copies(self, run: RunId, number: int) -> int:
        """How many outputs of an attempt are still being copied."""
        return sum(which == (run, number) and not task.done() for which, task in self._copies.values())

    # -- events --------------------------------------------------------------------------------------------------------

    def observe_pod(self, pod: KubeObject) -> None:
        """Apply the present state of a Pod."""
        seen = parse_task(pod)
        which = attempt_key_of(pod)
        if seen is None or which is None or which in self._done:
            return
        life = self._lives.setdefault(which, LiveAttempt())
        if seen.restart < life.restart:
            return
        if seen.restart > life.restart:
            life.restart = seen.restart
            life.tasks.clear()
        before = life.tasks.get(seen.rank)
        now = life.tasks[seen.rank] = merge_task(before, seen.task)
        if now.over and now != before:
            self._writing.put_nowait((which, seen.rank, now))
        namespace = pod["metadata"]["namespace"]
        if now.began_at is not None and seen.uid not in self._copies:
            work = self._copy(which, namespace, seen.name, seen.rank)
            task = asyncio.create_task(work, name=f"output-{seen.name}")
            self._copies[seen.uid] = (which, task)
            task.add_done_callback(lambda _: self._news())
        self._news()

    async def _copy(self, which: AttemptKey, namespace: str, pod: str, rank: int) -> None:
        run, number = which
        folder = KubernetesRunFolder.find(self._folder, run)
        if folder is None:
            return
        attempt = folder.attempt(number)
        if not await asyncio.to_thread(attempt.log_path(rank).parent.is_dir):
            return
        if await asyncio.to_thread((attempt.path / "end.json").exists):
            return
        life = self._lives.get(which, LiveAttempt())

        def over() -> bool:
            task = life.tasks.get(rank)
            return task is None or task.over or which not in self._lives

        opened = partial(self._calls.stream_logs, namespace, pod, CONTAINER, follow=True)
        async with self._copy_slots:
            await copy_output(opened, attempt.log_path(rank), over, self._clock.sleep)

    async def _write(self) -> None:
        while True:
            (run, number), rank, task = await self._writing.get()
            folder = KubernetesRunFolder.find(self._folder, run)
            if folder is None:
                continue
            try:
                await asyncio.to_thread(folder.attempt(number).save_task, rank, task)
            except OSError as error:
                log.warning("run.unwritten", extra={"run": run, "detail": str(error)})
