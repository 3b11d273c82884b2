"""Jobs that people submit to another scheduler themselves: what is reported of them, and the engine that follows them.

Two sources tell of such a job: the job itself and its person report with the run's token (``RunReport``), and the
scheduler's agent lists the jobs of these people (``ListedJob``). Only a listing proves that a job is that person's, and
only the scheduler's word ends a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from moorings.core.model.timestamps import Timestamp
from moorings.ports.engine import Engine
from moorings.workloads.runs import RunId, Submitter


@dataclass(frozen=True, slots=True)
class SubmissionTarget:
    """Where the jobs of a project go; what is empty is the scheduler's own default.

    Attributes:
        python: the Python on the nodes that looks at checkpoints.
    """

    account: str = ""
    partition: str = ""
    qos: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job that carries the comment of a run's attempt, as the scheduler lists or accounts it.

    Attributes:
        state: the scheduler's word; empty: it took the job, and knows it no more.
        restarts: how often it was requeued.
        exit_code: of its script; with ``exit_signal`` as wait(2) has them.
        was_started: it had nodes.
        ended_at: None: it has not ended.
    """

    run: RunId
    attempt: int
    job_id: int
    uid: int
    state: str
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    was_started: bool = False
    ended_at: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class ReportedFile:
    """A small file of an attempt's folder."""

    name: str
    text: str
    modified_at: Timestamp


@dataclass(frozen=True, slots=True)
class ReportedOutput:
    """A part of a task's output, which begins ``offset`` bytes from its start."""

    task: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What the folder of an attempt shows.

    Attributes:
        present: the names of all files; others are there no more. None: that is not said.
        job: its job in its person's own listing; None: not listed, or not by its person.
        is_abandoned: it was not submitted, and never will be.
    """

    attempt: int
    files: Sequence[ReportedFile] = ()
    present: Sequence[str] | None = None
    output: Sequence[ReportedOutput] = ()
    job: ListedJob | None = None
    is_abandoned: bool = False


class JobAction(StrEnum):
    """What is to be done with a job."""

    WARN = "warn"  # its tasks, so that they save
    STOP = "stop"  # its tasks, with their grace period
    END = "end"
    LOOK_UP = "look_up"  # in the accounting: it is listed no more


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What an agent is to do with the jobs of an attempt, if its own listing shows that they are that user's."""

    run: RunId
    attempt: int
    uid: int
    action: JobAction
    job_id: int | None = None  # to look up


@dataclass(frozen=True, slots=True)
class ListingReply:
    """What an agent is to do next: users to list, the runs of which it reports jobs, and orders."""

    uids: Sequence[int]
    runs: Sequence[RunId]
    orders: Sequence[JobOrder]


@dataclass(frozen=True, slots=True)
class PersonalJob:
    """What the controller knows of a run that its person submits, apart from what is reported of it."""

    run: RunId
    attempt: int
    submitter: Submitter
    tasks: int


class PersonalEngine(Engine, Protocol):
    """An engine that follows the jobs which people submit themselves."""

    def target_for(self, project: str) -> SubmissionTarget:
        """Where a project's jobs go."""
        ...

    async def accept_report(self, known: PersonalJob, report: RunReport) -> dict[int, int]:
        """Take a report of a run in; returns by task how many bytes of its output are known.

        Raises:
            MooringsError: ``report.invalid``, ``engine.unavailable``.
        """
        ...

    async def accept_listing(
        self,
        agent: str,
        known: Sequence[PersonalJob],
        uids: Sequence[int],
        jobs: Sequence[ListedJob],
        past: Sequence[ListedJob],
    ) -> ListingReply:
        """Take in a complete listing of the jobs of some users.

        Args:
            agent: which cluster has listed them: its name, and which one of that name.
            known: the runs of these jobs, as far as there are such.
            uids: the users.
            jobs: their jobs that carry the comment of a run.
            past: ended jobs in the accounting, of those that were to be looked up.

        Raises:
            MooringsError: ``engine.unavailable``.
        """
        ...
