"""How much is pending, and the limits on it: of each subject, and of each project with its subprojects.

A pending claim costs memory in the controller and space in the database, even if it is never served. Without limits one
access key could fill both. The counts are updated as claims and runs change, so a turn need not walk over everything
that is pending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moorings.core.model.access import Role
from moorings.core.model.errors import MooringsError
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Projects, lineage_of


@dataclass(frozen=True, slots=True)
class Amount:
    """How many are pending, and the size of their jobs' bodies in bytes."""

    count: int = 0
    body_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.body_bytes + other.body_bytes)

    def __neg__(self) -> Amount:
        return Amount(-self.count, -self.body_bytes)


NO_AMOUNT = Amount()


class Backlog:
    """How much is pending of each subject, and in each project with its subprojects.

    A turn in progress keeps its changes in another one: amounts may be negative there.
    """

    def __init__(self) -> None:
        self._subjects: dict[str, Amount] = {}
        self._projects: dict[str, Amount] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Backlog):
            return NotImplemented
        return (self._subjects, self._projects) == (other._subjects, other._projects)

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        return f"Backlog({self._subjects}, {self._projects})"

    def add(self, subject: str, project: str, amount: Amount) -> None:
        """Add an amount; it may be negative."""
        _add(self._subjects, subject, amount)
        for name in lineage_of(project):  # amounts are counted before limits are looked up
            _add(self._projects, name, amount)

    def for_subject(self, subject: str) -> Amount:
        """The pending amount of a subject."""
        return self._subjects.get(subject, NO_AMOUNT)

    def for_project(self, project: str) -> Amount:
        """The pending amount of a project and its subprojects."""
        return self._projects.get(project, NO_AMOUNT)


def _add(amounts: dict[str, Amount], name: str, amount: Amount) -> None:
    total = amounts.get(name, NO_AMOUNT) + amount
    if total == NO_AMOUNT:
        amounts.pop(name, None)
    else:
        amounts[name] = total


@dataclass(frozen=True, slots=True)
class BacklogEntry:
    """A new object that would be pending.

    Attributes:
        role: of the caller. Only users are limited: an agent's jobs have limits in their own scheduler, an admin sets
            the limits, and logs without roles (None) had none.
        noun: ``claims`` or ``runs``, for messages.
    """

    role: Role | None
    subject: str
    project: str
    noun: str
    body_bytes: int = 0


def check_backlog_limits(
    asked: BacklogEntry, of_subject: Amount, of_project: Callable[[str], Amount], projects: Projects, policy: Policy
) -> None:
    """Check that one more may be pending.

    Args:
        asked: the new object.
        of_subject: the pending amount of its subject.
        of_project: the pending amount of a project.
        projects: their own limits and those of their ancestors apply.
        policy: has the limits of each subject.

    Raises:
        MooringsError: ``quota.waiting``.
    """
    if asked.role is not Role.USER:
        return
    limits = (policy.waiting_max or None, policy.waiting_bytes_max or None)
    _check(asked, f"what {asked.subject} has waiting", of_subject, limits, "{} in the policy file")
    for name in projects.lineage(asked.project):
        project = projects.get(name)
        if project is not None:
            limits = (project.waiting_max, project.waiting_bytes_max)
            _check(asked, f"what waits in project {name}", of_project(name), limits, f"{{}} of project {name}")


def _check(asked: BacklogEntry, what: str, waits: Amount, limits: tuple[int | None, int | None], where: str) -> None:
    count_max, bytes_max = limits
    if count_max is not None and waits.count >= count_max:
        raise _limit_error(f"{what} is {waits.count} {asked.noun}, and may be {count_max}", where.format("waiting_max"))
    if bytes_max is not None and asked.body_bytes and waits.body_bytes + asked.body_bytes > bytes_max:
        raise _limit_error(
            f"{what} is {waits.body_bytes} bytes of jobs; with {asked.body_bytes} more it is above {bytes_max}",
            where.format("waiting_bytes_max"),
        )


def _limit_error(detail: str, setting: str) -> MooringsError:
    hint = f"wait until some have started, or cancel some; an admin can raise {setting}"
    return MooringsError("quota.waiting", detail, hint=hint)
