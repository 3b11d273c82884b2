"""Jobs of a wafer-scale appliance: their part in a workflow, their priorities and the names of their states.

One start of a user's program is one workflow: jobs that compile, which need no system, and jobs that execute, which
need N of them. Each is a run with a claim like any other, named ``wsjob-`` and 22 letters and digits. Names, states and
priorities are those that the users of such appliances know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from moorings.core.model.errors import MooringsError

APPLIANCE_KIND: Final = "csx"  # of its accelerators, in the pools file
NAME_CHARS = 22  # after the prefix
_WORKFLOW = re.compile(r"wflow-[a-z0-9]{22}")


class ApplianceJobType(StrEnum):
    """The type of an appliance's job."""

    COMPILE = "compile"
    EXECUTE = "execute"


class AppliancePhase(StrEnum):
    """The state of a job, in the words that users of such appliances know."""

    QUEUED = "QUEUED"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_PHASES: Final[Mapping[str, AppliancePhase]] = {  # by the state of the run, whose module may not be imported here
    "WAITING": AppliancePhase.QUEUED,
    "PAUSED": AppliancePhase.QUEUED,  # one of an appliance's workflow cannot be
    "STARTING": AppliancePhase.SCHEDULED,
    "RUNNING": AppliancePhase.RUNNING,
    "YIELDING": AppliancePhase.RUNNING,
    "STOPPING": AppliancePhase.RUNNING,  # its processes may still be there, and it still holds its systems
    "SUCCEEDED": AppliancePhase.SUCCEEDED,
    "FAILED": AppliancePhase.FAILED,
    "CANCELLED": AppliancePhase.CANCELLED,
    "TIMED_OUT": AppliancePhase.FAILED,
    "LOST": AppliancePhase.FAILED,
}


def appliance_phase(state: str, *, scheduled: bool) -> str:
    """The phase of a job whose run is in that state.

    Args:
        state: of the run; an unknown one (from a newer peer) is returned unchanged.
        scheduled: whether its claim was granted; its partition may still be in creation.
    """
    phase = _PHASES.get(state)
    if phase is None:
        return state
    return (AppliancePhase.SCHEDULED if phase is AppliancePhase.QUEUED and scheduled else phase).value


@dataclass(frozen=True, slots=True)
class WorkflowPart:
    """A job's part in a workflow.

    Attributes:
        kind: the type of the job.
        workflow: ``wflow-`` and 22 letters and digits; its jobs belong to one subject.
    """

    kind: ApplianceJobType
    workflow: str


def check_workflow_part(part: WorkflowPart) -> None:
    """Check the form of a job's workflow.

    Raises:
        MooringsError: ``job.invalid``.
    """
    if not _WORKFLOW.fullmatch(part.workflow):
        raise MooringsError(
            "job.invalid",
            f"{part.workflow[:80]!r} is not a workflow",
            hint="it is called wflow- and 22 lower-case letters and digits",
        )


# -- priorities: the lower number is first there, the higher one in our queue ------------------------------------------

BUCKETS: Final[Mapping[str, int]] = {"p1": 199, "p2": 299, "p3": 399}
DEFAULT_PRIORITY: Final = -BUCKETS["p2"]
ADMIN_PRIORITY_MAX: Final = 99  # numbers up to this one are P0, for admins only
_LOWEST: Final = 399
WORKFLOW_JOBS_MAX: Final = 1000  # of one start of a user's program


def parse_priority(text: str) -> int:
    """The priority in our queue for ``p1``, ``P2``, ``p0`` (the last of it) or a number from 0 (first) to 399.

    Raises:
        MooringsError: ``priority.invalid``.
    """
    number = ADMIN_PRIORITY_MAX if text.lower() == "p0" else BUCKETS.get(text.lower())
    if number is None and text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= _LOWEST:
        number = int(text)
    if number is None:
        raise MooringsError(
            "priority.invalid",
            f"{text[:40]!r} is not a priority",
            hint="use p1, p2 or p3; or a number: 0 to 99 (P0) for admins, to 199 P1, to 299 P2, to 399 P3",
        )
    return -number


def is_for_admins(priority: int) -> bool:
    """Whether only an admin may give this priority (of our queue) to an appliance's job: it is P0, or before that."""
    return priority >= -ADMIN_PRIORITY_MAX


def appliance_priority(kind: str, asked: int, *, is_admin: bool) -> int:
    """The priority of a claim for an appliance's systems outside its own jobs; for other kinds it is as requested.

    Without a priority (0) it gets the default bucket of an appliance.

    Raises:
        MooringsError: ``priority.denied``: only admins may use it.
    """
    if kind != APPLIANCE_KIND or is_admin:
        return asked
    if asked == 0:
        return DEFAULT_PRIORITY
    check_appliance_priority(asked, admin=is_admin)
    return asked


def check_appliance_priority(priority: int, *, admin: bool) -> None:
    """Check that the caller may use this priority (of our queue) in an appliance's queue.

    Raises:
        MooringsError: ``priority.denied``.
    """
    if is_for_admins(priority) and not admin:
        raise MooringsError(
            "priority.denied",
            f"priorities 0 to {ADMIN_PRIORITY_MAX} (P0) of an appliance, and what is before them, are for admins",
            hint="use p1, p2 or p3 (-199, -299, -399), or ask an admin",
        )


def priority_bucket(priority: int) -> str:
    """``P0`` to ``P3``, for a priority of our queue."""
    return f"P{min(max(-priority, 0) // 100, 3)}"
