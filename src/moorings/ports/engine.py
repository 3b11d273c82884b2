"""The engine: the controller's interface to a system that runs processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moorings.core.model.bindings import Binding
from moorings.core.model.claims import PartitionId
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId, RunStatus, Submitter


@dataclass(frozen=True, slots=True)
class RunSubmission:
    """A run to be started on an ACTIVE partition.

    Attributes:
        run: its id; submitting a run again does not start it again.
        attempt: 0 for the first start.
        job: the job, complete.
        binding: from the driver of its partition; empty for an engine with its own scheduler, which gets one itself.
        resume_from: path of a checkpoint to resume from, or None.
        resume_step: the step of that checkpoint, as far as its name says it.
        resume_since: only checkpoints that were saved later may take its place; None: all.
        epoch: of the submitting controller.
        partition: the id of its partition; None: it has none, or the engine's own scheduler arranges it.
        spool_entry: of the job in the root daemon's spool, on a machine that people share; empty: it is in none.
        submitter: the person who submits it; None: the engine does.
    """

    run: RunId
    attempt: int
    job: JobSpec
    binding: Binding
    resume_from: str | None = None
    epoch: Epoch = Epoch(0)
    partition: PartitionId | None = None
    resume_step: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    resume_since: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    spool_entry: str = field(default="", metadata=OMIT_IF_DEFAULT)
    submitter: Submitter | None = field(default=None, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class TaskContainer:
    """The container of a task on Kubernetes."""

    namespace: str
    pod: str
    container: str


class Engine(Protocol):
    """Runs the processes of jobs. All engines have one contract and one conformance suite."""

    @property
    def name(self) -> str:
        """``local``, ``slurm`` or ``kubernetes``."""
        ...

    @property
    def has_scheduler(self) -> bool:
        """Whether it has its own scheduler, which arranges partitions: runs are submitted without a claim."""
        ...

    def check_job(self, job: JobSpec) -> Sequence[str]:
        """How this engine deviates from the job file, as sentences for the user; a check without IO.

        Raises:
            MooringsError: ``engine.rejected`` or a code of the engine's own: it can never run such a job.
        """
        ...

    async def fence_below(self, epoch: Epoch) -> None:
        """From now on reject submissions of controllers that began to lead before this epoch.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable).
        """
        ...

    async def submit(self, order: RunSubmission) -> str:
        """Start a run, exactly once however often it is submitted; returns the engine's reference to it.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable; also if a later controller has fenced this one off) or
                ``engine.rejected``.
        """
        ...

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        """The status of each of these runs, in their order."""
        ...

    async def cancel(self, run: RunId, reason: str) -> None:
        """Stop it: TERM, its grace period, KILL. Returns at once; idempotent; unknown or ended runs are no error."""
        ...

    async def ask_to_yield(
        self, run: RunId, attempt: int, reason: str, deadline: Timestamp, *, until_saved: bool = False
    ) -> None:
        """Make it yield: its contract's warning now, TERM a grace period before ``deadline``, KILL at ``deadline``.

        ``until_saved``: TERM as soon as it has saved a whole checkpoint. Returns at once; idempotent, the first
        ``deadline`` stays, but for an earlier one of a request without ``until_saved`` after one with it. Runs that are
        unknown, have ended or are at another attempt are no error. Never called for an engine with its own scheduler,
        which decides about preemption itself.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable) or ``engine.rejected`` (it has its own scheduler).
        """
        ...

    async def signal(self, run: RunId, signal_name: str) -> None:
        """Send a signal (``USR1``) to every task.

        Raises:
            MooringsError: ``run.not_running``.
        """
        ...

    async def find_terminal(self, run: RunId, *, attended: bool = False) -> str | TaskContainer:
        """The socket where a run's supervisor listens, on this machine; on Kubernetes the container of its task 0.

        By the socket it speaks ``wire.frames``.

        ``attended``: somebody is at its terminal now. An engine that cannot see that itself relies on it.

        Raises:
            MooringsError: ``run.not_running``, ``engine.unavailable``, or ``engine.rejected``: it has none.
        """
        ...

    def logs(
        self, run: RunId, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        """The output of one task, or of all with each line prefixed ``[rank] `` if there are several.

        With ``follow`` it continues until the run has ended; chunks are whole lines if possible. With ``since`` it
        begins with what was written after that time, and up to a few seconds before it.

        Raises:
            MooringsError: ``engine.rejected``: with ``since``, if it does not know when output was written.
        """
        ...

    async def wait_for_change(self) -> None:
        """Return when the status of some run may have changed (at the latest after about a second)."""
        ...

    async def close(self) -> None:
        """Close the connection; the runs are not affected."""
        ...
