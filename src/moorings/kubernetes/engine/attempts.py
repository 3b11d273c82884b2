"""Tracks runs' Pods and stores what they show at once: the tasks' states, their ends and their output.

A Pod may be deleted at any moment, by the operator too (the others, when one task has failed), and its end and its
output are lost with it. So ends are recorded and outputs copied from the moment that a container runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.node_program import AttemptCheckpoints
from moorings.kubernetes.engine.checkpoint_containers import CHECKPOINTS
from moorings.kubernetes.engine.checkpoint_records import read_records
from moorings.kubernetes.engine.output import copy_output
from moorings.kubernetes.engine.run_folder import KubernetesAttempt, KubernetesRunFolder, SubmittedIPUJob, TaskStatus
from moorings.kubernetes.engine.run_status import ObservedTask, merge_task, parse_task
from moorings.kubernetes.engine.submission import CONTAINER, AttemptKey, attempt_key_of
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.ports.clock import Clock
from moorings.workloads.checkpoints import RunCheckpoint
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
        resumed_from: what its first task was given at its last start.
        deleted: the deletion of its IPUJob was seen.
        warned: the start that was warned that its time limit is near, by the uid of its first Pod.
        stopped_at: when it was last told to stop.
        attended_at: when somebody was last known to be at its terminal, or this controller first looked.
    """

    tasks: dict[int, TaskStatus] = field(default_factory=dict)
    asked: SubmittedIPUJob | None = None
    restart: int = 0
    resumed_from: RunCheckpoint | None = None
    deleted: bool = False
    warned: str | None = None
    stopped_at: Timestamp | None = None
    attended_at: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class _LivePod:
    """What is known by now of a Pod that was seen."""

    lives: Mapping[AttemptKey, LiveAttempt]
    which: AttemptKey
    seen: ObservedTask

    def _task(self) -> TaskStatus | None:
        life = self.lives.get(self.which)
        return life.tasks.get(self.seen.rank) if life is not None else None

    def over(self) -> bool:
        """Whether nothing of its task runs."""
        task = self._task()
        return task is None or task.over

    def replaced(self) -> bool:
        """Whether another Pod has its name."""
        task = self._task()
        return task is not None and task.uid not in (self.seen.uid, "")


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
        self._pods: dict[tuple[str, str], tuple[AttemptKey, int, str]] = {}  # by namespace and name
        self._done: set[AttemptKey] = set()
        # By Pod's uid; of what looks at checkpoints, with the name of that container.
        self._copies: dict[str, tuple[AttemptKey, asyncio.Task[None]]] = {}
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
        for output in [output for output, (key, _) in self._copies.items() if key == which]:
            del self._copies[output]

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
        if before is not None and before.uid not in (seen.uid, ""):  # the Pods before were stopped, and are gone
            life.tasks = {rank: task for rank, task in life.tasks.items() if not task.over}
            before = None
        if seen.rank == 0:
            life.resumed_from = seen.resumed_from
        namespace = pod["metadata"]["namespace"]
        self._pods[namespace, seen.name] = which, seen.rank, seen.uid
        now = life.tasks[seen.rank] = merge_task(before, seen.task)
        if now.over and now != before:
            self._writing.put_nowait((which, seen.rank, now))
        if now.began_at is not None and seen.uid not in self._copies:
            self._follow(which, seen.uid, self._copy(which, namespace, seen))
        if seen.sees_checkpoints and seen.rank == 0 and f"{seen.uid}/{CHECKPOINTS}" not in self._copies:
            self._follow(which, f"{seen.uid}/{CHECKPOINTS}", self._record_checkpoints(which, namespace, seen))
        self._news()

    def observe_gone(self, namespace: str, name: str) -> None:
        """A Pod is gone: nothing of its task runs, though nobody may have seen how it ended."""
        which, rank, uid = self._pods.pop((namespace, name), (None, 0, ""))
        life = self._lives.get(which) if which is not None else None
        task = life.tasks.get(rank) if life is not None else None
        if life is not None and which is not None and task is not None and task.uid == uid and not task.over:
            life.tasks[rank] = gone = replace(task, over=True, stopped=True)
            self._writing.put_nowait((which, rank, gone))

    def _follow(self, which: AttemptKey, output: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"output-{output}")
        self._copies[output] = (which, task)
        task.add_done_callback(lambda _: self._news())

    async def _copy(self, which: AttemptKey, namespace: str, seen: ObservedTask) -> None:
        attempt = await self._open_attempt(which)
        if attempt is None:
            return
        opened = partial(self._calls.stream_logs, namespace, seen.name, CONTAINER, follow=True)
        pod = _LivePod(self._lives, which, seen)
        try:
            start = await asyncio.to_thread(attempt.output_start, seen.rank, seen.uid)
        except (OSError, ValueError) as error:
            log.warning("run.unwritten", extra={"run": which[0], "detail": str(error)})
            return
        async with self._copy_slots:
            path = attempt.log_path(seen.rank)
            await copy_output(opened, path, start, pod.over, pod.replaced, self._clock.sleep)

    async def _record_checkpoints(self, which: AttemptKey, namespace: str, seen: ObservedTask) -> None:
        attempt = await self._open_attempt(which)
        if attempt is None:
            return
        opened = partial(self._calls.stream_logs, namespace, seen.name, CHECKPOINTS, follow=True, lines=1)
        pod = _LivePod(self._lives, which, seen)

        async def save(record: CheckpointRecord) -> None:
            store = AttemptCheckpoints(attempt.path, record.resumed_from)
            try:
                await asyncio.to_thread(store.save, record, durable=False)
            except OSError as error:
                log.warning("run.unwritten", extra={"run": which[0], "detail": str(error)})
            self._news()

        async with self._copy_slots:
            await read_records(opened, save, pod.over, pod.replaced, self._clock.sleep)

    async def _open_attempt(self, which: AttemptKey) -> KubernetesAttempt | None:
        """The folder of an attempt whose end is not recorded; None: there is none."""
        folder = KubernetesRunFolder.find(self._folder, which[0])
        if folder is None:
            return None
        attempt = folder.attempt(which[1])
        if not await asyncio.to_thread((attempt.path / "logs").is_dir):
            return None
        return None if await asyncio.to_thread((attempt.path / "end.json").exists) else attempt

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
