"""What the controller needs of whatever runs processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from moorings.core.bindings import Binding
from moorings.core.claims import PartitionId
from moorings.core.instants import Timestamp
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId, RunStatus


@dataclass(frozen=True, slots=True)
class RunSubmission:
    """A run to be started on a partition that is ACTIVE.

    Attributes:
        run: its id; an order for a run that was started before starts nothing anew.
        attempt: 0 for the first start.
        job: the job, complete.
        binding: what the driver gave for its partition; empty for an engine that schedules, which gets one itself.
        resume_from: path of a checkpoint to continue from, or None.
        epoch: of the controller that orders it.
        partition: the id of its partition; None: it has none, or an engine that schedules sees to it.
    """

    run: RunId
    attempt: int
    job: JobSpec
    binding: Binding
    resume_from: str | None = None
    epoch: Epoch = Epoch(0)
    partition: PartitionId | None = None


class Engine(Protocol):
    """Runs jobs' processes. One contract and one conformance suite for every engine."""

    @property
    def name(self) -> str:
        """``local``, ``slurm`` or ``kubernetes``."""
        ...

    @property
    def schedules(self) -> bool:
        """Whether it has a scheduler of its own, which sees to partitions: runs are submitted without a claim."""
        ...

    def check(self, job: JobSpec) -> Sequence[str]:
        """What is different here from what the job file says, as sentences for whoever starts it; asks nobody.

        Raises:
            MooringsError: ``engine.rejected`` or a code of the engine's own: it can never run such a job.
        """
        ...

    async def fence(self, epoch: Epoch) -> None:
        """From now on start nothing for a controller that began to lead before this epoch.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable).
        """
        ...

    async def submit(self, order: RunSubmission) -> str:
        """Start a run, once, however often it is asked; the engine's reference to it.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable; also if a later controller has fenced this one off) or
                ``engine.rejected``.
        """
        ...

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        """What is seen of each of these runs, in their order."""
        ...

    async def cancel(self, run: RunId, reason: str) -> None:
        """Stop it: TERM, its grace period, KILL. Returns at once; idempotent; unknown or ended runs are no error."""
        ...

    async def ask_to_yield(self, run: RunId, attempt: int, reason: str, by: Timestamp) -> None:
        """Have it make room: the warning of its contract now, TERM its grace period before ``by``, KILL at ``by``.

        Returns at once; idempotent, the first ``by`` stays. Runs that are unknown, have ended or are at another attempt
        are no error. An engine that schedules is never asked: who yields there is for its scheduler to say.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable) or ``engine.rejected`` (it schedules).
        """
        ...

    async def saved_at(self, folder: str) -> Timestamp | None:
        """When a job last put something into its checkpoint folder; None: nothing is there, or it cannot be seen."""
        ...

    async def signal(self, run: RunId, signal_name: str) -> None:
        """Send a signal (``USR1``) to every task.

        Raises:
            MooringsError: ``run.not_running``.
        """
        ...

    def logs(self, run: RunId, *, task: int | None, follow: bool) -> AsyncIterator[bytes]:
        """The output of one task, or of all with each line prefixed ``[rank] `` if there are several.

        With ``follow`` it goes on until the run has ended; chunks are of whole lines where possible.
        """
        ...

    async def changed(self) -> None:
        """Returns when something about some run may have changed (at the latest after about a second)."""
        ...

    async def close(self) -> None:
        """Let go; the runs go on."""
        ...
