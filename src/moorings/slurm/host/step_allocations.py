"""Allocates a partition's GCDs to the steps of its job, with an address and a port where each step's tasks meet.

A step of T tasks on a partition of G GCDs gets min(T, G) of them: one for each task, or, for T > G, all of them, each
for several tasks. It holds them until it ends. They are the ones it would get alone (task r: GCD r * G // T), else the
first free ones; if too few are free, it waits for other steps to end. A batch script and the shell of salloc are one
task and may compute beside their steps: the agent cannot know, so they hold nothing.

Slurm is only asked which steps have ended when a step would have to wait: most jobs run one step after the other. The
allocations, and the nodes that have asked, are saved in a file: a restarted agent cannot ask a node for either.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.host.state_files import DRAFT, replace_file

FOLDER = "moorings_steps"  # in StateSaveLocation, beside the instance's id
PORT_FIRST, PORTS = 20_000, 20_000
PORT_STRIDE = 7919  # coprime to PORTS: the ports of a job's steps are spread over all
LOOK_S = 1.0  # between two lists of a job's steps
FILE_BYTES_MAX = 1 << 20
STEPS_SHOWN_MAX = 5
_NAME = re.compile(r"([0-9]{1,10})-([0-9a-f]{16})-([0-9]{1,10})(?:\.draft)?")

log = logging.getLogger("moorings.slurm.agent")


@dataclass(frozen=True, slots=True)
class StepAllocation:
    """The allocation of a step.

    Attributes:
        step: its number in the job.
        gcds: numbers of GCDs of the partition, in the order of the step's tasks.
        master: the node of its first task.
        port: that task's port; no other step of the job has it.
    """

    step: int
    gcds: tuple[int, ...]
    master: str
    port: int


def first_port(job_id: int) -> int:
    """Return the port of a job's first step and of its shells: by job, so that two jobs of a node do not collide."""
    return PORT_FIRST + job_id % PORTS


def choose_gcds(tasks: int, n_gcds: int, held: Collection[StepAllocation]) -> tuple[int, ...] | None:
    """Return a step's GCDs, apart from those that others hold; None: too few are free.

    Args:
        tasks: of the step, on all its nodes.
        n_gcds: of the partition.
        held: by the job's other steps.
    """
    alone = [rank * n_gcds // tasks for rank in range(tasks)] if tasks < n_gcds else list(range(n_gcds))
    busy = {gcd for share in held for gcd in share.gcds}
    gcds = alone
    if busy & set(alone):
        gcds = [gcd for gcd in range(n_gcds) if gcd not in busy][: len(alone)]
    return tuple(gcds) if len(gcds) == len(alone) else None


def free_port(job_id: int, held: Collection[StepAllocation]) -> int:
    """Return a port that no other step of the job has."""
    ports, port = {share.port for share in held}, first_port(job_id)
    while port in ports:
        port = PORT_FIRST + (port - PORT_FIRST + PORT_STRIDE) % PORTS
    return port


class BusyError(MooringsError):
    """The step must wait for other steps of its job."""


class StepAllocations:
    """The nodes that have asked, and the allocations of steps, by start of a job.

    Args:
        folder: of saved state, a file for each start; None: none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._asked: dict[JobStart, frozenset[str]] = {}
        self._early: dict[JobStart, set[str]] = {}  # the nodes that asked before ``track``
        self._unsaved: set[JobStart] = set()
        self._shares: dict[JobStart, dict[int, StepAllocation]] = {}  # by step number
        self._turns: dict[JobStart, asyncio.Lock] = {}
        self._looked_at: dict[JobStart, float] = {}
        self._nodes: dict[JobStart, tuple[str, ...]] = {}
        self._written = self._find()
        for start in self._written:
            with contextlib.suppress(MooringsError):  # logged when a step of it asks
                self._load(start)

    @property
    def asked(self) -> Mapping[JobStart, frozenset[str]]:
        """Return the nodes that have asked, by start; only of starts passed to ``track``."""
        return dict(self._asked)

    def track_start(self, start: JobStart) -> None:
        """Record from now on which nodes ask for that start, which has no partition yet."""
        if start not in self._asked:
            self._asked[start] = frozenset(self._early.pop(start, ()))
            self._unsaved.add(start)

    def record_request(self, start: JobStart, node: str) -> None:
        """Record a node's request."""
        known = self._asked.get(start)
        if known is None:
            self._early.setdefault(start, set()).add(node)
        elif node not in known:
            self._asked[start] = known | {node}
            self._unsaved.add(start)

    def save(self) -> None:
        """Save new requests. A start whose save fails is no longer tracked, so no node is judged by it."""
        for start in self._unsaved & self._asked.keys():
            shares = self._shares.get(start, {})
            try:
                self._write(start, self._asked[start], shares.values())
            except MooringsError as error:
                del self._asked[start]
                if not shares:
                    self._remove(start)
                log.warning("steps.unwritten", extra={"job": start.job_id, "detail": error.detail})
        self._unsaved.clear()

    async def nodes(self, start: JobStart, find: Callable[[], Awaitable[tuple[str, ...]]]) -> tuple[str, ...]:
        """Return the nodes of a start; they never change, so Slurm is asked once.

        Raises:
            MooringsError: Slurm does not answer.
        """
        async with self._turns.setdefault(start, asyncio.Lock()):
            if start not in self._nodes:
                self._nodes[start] = await find()
            return self._nodes[start]

    async def allocate(
        self,
        start: JobStart,
        step: int,
        tasks: int,
        n_gcds: int,
        find_master: Callable[[], Awaitable[str]],
        find_running: Callable[[], Awaitable[Collection[int]]],
    ) -> StepAllocation:
        """Allocate to a step, or return its allocation: each of its nodes asks.

        Args:
            start: of the job.
            step: its number.
            tasks: of the step, on all its nodes.
            n_gcds: of the partition.
            find_master: returns the node of its first task.
            find_running: returns the numbers of the job's current steps.

        Raises:
            BusyError: the step must wait.
            MooringsError: Slurm does not answer.
        """
        async with self._turns.setdefault(start, asyncio.Lock()):
            if start not in self._shares:
                self._load(start)
            held = self._shares.setdefault(start, {})
            if step in held:
                return held[step]
            gcds = choose_gcds(tasks, n_gcds, held.values())
            now = asyncio.get_running_loop().time()
            if gcds is None and now - self._looked_at.get(start, -LOOK_S) >= LOOK_S:
                self._looked_at[start] = now
                running = await find_running()
                if step in running:  # the requesting step is alive: a list without it is old, or incomplete
                    for ended in held.keys() - set(running):
                        del held[ended]
                gcds = choose_gcds(tasks, n_gcds, held.values())
            if gcds is None:
                raise BusyError("steps.busy", _busy_reason(min(tasks, n_gcds), n_gcds, held.values()))
            share = StepAllocation(step, gcds, await find_master(), free_port(start.job_id, held.values()))
            self._write(start, self._asked.get(start), [*held.values(), share])
            held[step] = share
            return share

    def retain(self, starts: Collection[JobStart]) -> None:
        """Forget other starts: they have ended."""
        for known in (self._turns, self._looked_at, self._nodes, self._early, self._asked, self._shares):
            for start in known.keys() - set(starts):
                known.pop(start)
        for start in self._written - set(starts):
            self._remove(start)

    def _find(self) -> set[JobStart]:
        """Return the starts with a saved file."""
        try:
            names = os.listdir(self._folder) if self._folder is not None else []  # noqa: PTH208 - names are all we need
        except OSError:
            return set()
        return {JobStart(int(found[1]), found[2], int(found[3])) for found in map(_NAME.fullmatch, names) if found}

    def _load(self, start: JobStart) -> None:
        if self._folder is None:
            return
        try:
            with (self._folder / _name(start)).open("rb") as file:
                saved = json.loads(file.read(FILE_BYTES_MAX))
            shares = [
                StepAllocation(int(one["step"]), tuple(map(int, one["gcds"])), str(one["master"]), int(one["port"]))
                for one in saved["steps"]
            ]
            asked = frozenset(map(str, saved["asked"])) if saved["asked"] is not None else None
        except FileNotFoundError:
            shares, asked = [], None  # only a draft, or no file
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MooringsError(
                "slurm.unreadable",
                f"what the steps of job {start.job_id} hold cannot be read: {self._folder / _name(start)}: {error}",
                hint="once no step of the job runs, remove that file",
                retryable=True,
            ) from error
        self._shares[start] = {share.step: share for share in shares}
        if asked is not None:
            self._asked[start] = asked

    def _write(self, start: JobStart, asked: Collection[str] | None, shares: Iterable[StepAllocation]) -> None:
        if self._folder is None:
            return
        path = self._folder / _name(start)
        record = {"asked": sorted(asked) if asked is not None else None, "steps": [asdict(share) for share in shares]}
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._written.add(start)
            replace_file(path, json.dumps(record).encode())
        except OSError as error:
            raise MooringsError(
                "slurm.unreadable",
                f"{path} cannot be written: {error.strerror}",
                hint="a step starts once it is written down what it holds: see the disk of StateSaveLocation",
                retryable=True,
            ) from error

    def _remove(self, start: JobStart) -> None:
        self._written.discard(start)
        if self._folder is not None:
            for path in (self._folder / _name(start), self._folder / f"{_name(start)}{DRAFT}"):
                with contextlib.suppress(OSError):
                    path.unlink()


def _name(start: JobStart) -> str:
    return f"{start.job_id}-{start.nonce}-{start.restarts}"


def _busy_reason(wanted: int, n_gcds: int, held: Iterable[StepAllocation]) -> str:
    """Return why a step waits, for its user."""
    holders = sorted((share for share in held if share.gcds), key=lambda share: share.step)
    words = [f"step {one.step} has {', '.join(map(str, one.gcds))}" for one in holders[:STEPS_SHOWN_MAX]]
    if len(holders) > STEPS_SHOWN_MAX:
        words.append(f"{len(holders) - STEPS_SHOWN_MAX} more steps have others")
    return f"this step waits for {wanted} of the job's {n_gcds} GCDs: {'; '.join(words)}"
