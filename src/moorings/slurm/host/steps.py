"""What each step of a job gets of the job's partition: GCDs, and the address and port where its tasks meet.

A step of T tasks on a partition of G GCDs gets min(T, G) of them, one for each task, or for T > G all, each for several
tasks. It holds them until it ends. They are those that it would get alone (task r: GCD r * G // T), else the first that
no step holds; where too few are left it waits for other steps to end. A batch script and the shell of salloc are one
task and compute beside their steps: they hold nothing, as far as anybody can know.

Which steps have ended is asked of Slurm only where a step would have to wait: most jobs have one after the other.
What steps hold is written to a file: a restarted agent cannot ask a node what it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.slurm.host.ledger import Start, start_of

FOLDER = "moorings_steps"  # in StateSaveLocation, beside the instance's id
PORT_FIRST, PORTS = 20_000, 20_000
PORT_STRIDE = 7919  # no divisor of PORTS: the ports of a job's steps are spread over all
LOOK_S = 1.0  # between two questions which steps of a job have ended
FILE_BYTES_MAX = 1 << 20
STEPS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class StepShare:
    """What a step holds.

    Attributes:
        step: its number in the job.
        gcds: numbers of GCDs of the partition, in the order of the step's tasks.
        master: the node of its first task.
        port: where that task listens; no other step of the job has it.
    """

    step: int
    gcds: tuple[int, ...]
    master: str
    port: int


def first_port(job_id: int) -> int:
    """The port of a job's first step, and of its shells: by job, so that two jobs of a node do not collide."""
    return PORT_FIRST + job_id % PORTS


def share_out(tasks: int, n_gcds: int, held: Collection[StepShare]) -> tuple[int, ...] | None:
    """The GCDs that a step gets beside what others hold; None: too few are left.

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


def free_port(job_id: int, held: Collection[StepShare]) -> int:
    """A port that no other step of the job has."""
    ports, port = {share.port for share in held}, first_port(job_id)
    while port in ports:
        port = PORT_FIRST + (port - PORT_FIRST + PORT_STRIDE) % PORTS
    return port


class BusyError(MooringsError):
    """The step has to wait for other steps of its job."""


class Steps:
    """What the steps of all jobs hold.

    Args:
        folder: where that is written down, a file for each start of a job; None: nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._shares: dict[str, dict[int, StepShare]] = {}  # by owner of the claim, and step
        self._turns: dict[str, asyncio.Lock] = {}
        self._looked_at: dict[str, float] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._names: set[str] | None = None  # of the starts that were kept last; None: the folder was not looked at

    async def nodes(self, owner: str, find: Callable[[], Awaitable[tuple[str, ...]]]) -> tuple[str, ...]:
        """The nodes of a start of a job, which stay the same: asked for once, however many of them ask.

        Raises:
            MooringsError: Slurm does not answer.
        """
        async with self._turns.setdefault(owner, asyncio.Lock()):
            if owner not in self._nodes:
                self._nodes[owner] = await find()
            return self._nodes[owner]

    async def take(
        self,
        owner: str,
        step: int,
        tasks: int,
        n_gcds: int,
        find_master: Callable[[], Awaitable[str]],
        find_running: Callable[[], Awaitable[Collection[int]]],
    ) -> StepShare:
        """What a step holds from now on, or already does: each of its nodes asks.

        Args:
            owner: of the claim of this start of the job.
            step: its number.
            tasks: of the step, on all its nodes.
            n_gcds: of the partition.
            find_master: gives the node of its first task.
            find_running: gives the numbers of the job's steps that Slurm has now.

        Raises:
            BusyError: it has to wait.
            MooringsError: Slurm does not answer.
        """
        start = start_of(owner)
        assert start is not None
        async with self._turns.setdefault(owner, asyncio.Lock()):
            held = self._held(owner, start)
            if step in held:
                return held[step]
            gcds = share_out(tasks, n_gcds, held.values())
            now = asyncio.get_running_loop().time()
            if gcds is None and now - self._looked_at.get(owner, -LOOK_S) >= LOOK_S:
                self._looked_at[owner] = now
                running = await find_running()
                if step in running:  # the one that asks lives: a list without it is old, or not whole
                    for ended in held.keys() - set(running):
                        del held[ended]
                gcds = share_out(tasks, n_gcds, held.values())
            if gcds is None:
                raise BusyError("steps.busy", _told(min(tasks, n_gcds), n_gcds, held.values()))
            share = StepShare(step, gcds, await find_master(), free_port(start.job_id, held.values()))
            self._write(start, [*held.values(), share])
            held[step] = share
            return share

    def keep_only(self, owners: Collection[str]) -> None:
        """Forget what the steps of other starts held: their partitions have gone."""
        names = {_name(start) for start in map(start_of, owners) if start is not None}
        if names == self._names and self._shares.keys() <= set(owners):
            return
        self._names = names
        for known in (self._shares, self._turns, self._looked_at, self._nodes):
            for owner in known.keys() - set(owners):
                known.pop(owner)
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            for name in set(os.listdir(self._folder)) - names:  # noqa: PTH208 - names are all we need
                (self._folder / name).unlink()

    def _held(self, owner: str, start: Start) -> dict[int, StepShare]:
        if owner not in self._shares:
            self._shares[owner] = {share.step: share for share in self._read(start)}
        return self._shares[owner]

    def _read(self, start: Start) -> Sequence[StepShare]:
        if self._folder is None:
            return ()
        try:
            with (self._folder / _name(start)).open("rb") as file:
                items = json.loads(file.read(FILE_BYTES_MAX))
            return [
                StepShare(int(one["step"]), tuple(map(int, one["gcds"])), str(one["master"]), int(one["port"]))
                for one in items
            ]
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MooringsError(
                "slurm.unreadable",
                f"what the steps of job {start.job_id} hold cannot be read: {self._folder / _name(start)}: {error}",
                hint="once no step of the job runs, remove that file",
                retryable=True,
            ) from error

    def _write(self, start: Start, shares: Iterable[StepShare]) -> None:
        """No fsync: a power cut that loses this has ended slurmctld, too, which saves no sooner."""
        if self._folder is None:
            return
        path, draft = self._folder / _name(start), self._folder / f"{_name(start)}.draft"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with open(draft, "wb", opener=_private) as file:
                file.write(json.dumps([asdict(share) for share in shares]).encode())
            draft.replace(path)
        except OSError as error:
            raise MooringsError(
                "slurm.unreadable",
                f"{path} cannot be written: {error.strerror}",
                hint="a step starts once it is written down what it holds: see the disk of StateSaveLocation",
                retryable=True,
            ) from error


def _name(start: Start) -> str:
    return f"{start.job_id}-{start.nonce}-{start.restarts}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _told(wanted: int, n_gcds: int, held: Iterable[StepShare]) -> str:
    """Why a step waits, for its user."""
    holders = sorted((share for share in held if share.gcds), key=lambda share: share.step)
    words = [f"step {one.step} has {', '.join(map(str, one.gcds))}" for one in holders[:STEPS_SHOWN_MAX]]
    if len(holders) > STEPS_SHOWN_MAX:
        words.append(f"{len(holders) - STEPS_SHOWN_MAX} more steps have others")
    return f"this step waits for {wanted} of the job's {n_gcds} GCDs: {'; '.join(words)}"
