"""How much waits, and how much may: a quota for each subject, and for each project with its parts.

What waits costs the controller memory and the database space, whether or not it will ever be served. Without a quota
one access key could fill both for everybody. The counts are kept as claims and runs change, so that a turn need not
walk over what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from moorings.core.access import Role
from moorings.core.errors import MooringsError
from moorings.core.policy import Policy
from moorings.core.projects import Projects


@dataclass(frozen=True, slots=True)
class Amount:
    """How many wait, and how many bytes the bodies of their jobs have."""

    count: int = 0
    body_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.body_bytes + other.body_bytes)

    def __neg__(self) -> Amount:
        return Amount(-self.count, -self.body_bytes)


NO_AMOUNT = Amount()


class Backlog:
    """How much waits of each subject, and in the name of each project and its parts.

    In a turn under way one holds what the turn has changed: amounts may be negative there.
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
        """So much more waits; a negative amount: so much less."""
        _add(self._subjects, subject, amount)
        for name in _ancestors(project):
            _add(self._projects, name, amount)

    def of_subject(self, subject: str) -> Amount:
        """What waits of a subject."""
        return self._subjects.get(subject, NO_AMOUNT)

    def of_project(self, project: str) -> Amount:
        """What waits in the name of a project and its parts."""
        return self._projects.get(project, NO_AMOUNT)


def _add(amounts: dict[str, Amount], name: str, amount: Amount) -> None:
    total = amounts.get(name, NO_AMOUNT) + amount
    if total == NO_AMOUNT:
        amounts.pop(name, None)
    else:
        amounts[name] = total


def _ancestors(project: str) -> Iterator[str]:
    """The project, and all those above it, defined or not: what waits is counted before it is known who has a limit."""
    yield project
    for at, character in enumerate(project):
        if character == "/":
            yield project[:at]


@dataclass(frozen=True, slots=True)
class BacklogEntry:
    """Something new that would wait.

    Attributes:
        role: of who asks. Only what users ask for is limited: an agent's jobs have limits in their own scheduler, an
            admin sets these, and in logs of before (None) there were none.
        what: ``claims`` or ``runs``, for messages.
    """

    role: Role | None
    subject: str
    project: str
    what: str
    body_bytes: int = 0


def check_backlog_limits(
    asked: BacklogEntry, of_subject: Amount, of_project: Callable[[str], Amount], projects: Projects, policy: Policy
) -> None:
    """Nothing, if one more may wait.

    Args:
        asked: what is asked for.
        of_subject: what waits of its subject.
        of_project: what waits in the name of a project.
        projects: their own limits, and those of the projects above them, count.
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
        raise _limit_error(f"{what} is {waits.count} {asked.what}, and may be {count_max}", where.format("waiting_max"))
    if bytes_max is not None and asked.body_bytes and waits.body_bytes + asked.body_bytes > bytes_max:
        raise _limit_error(
            f"{what} is {waits.body_bytes} bytes of jobs; with {asked.body_bytes} more it is above {bytes_max}",
            where.format("waiting_bytes_max"),
        )


def _limit_error(detail: str, setting: str) -> MooringsError:
    hint = f"wait until some have started, or cancel some; an admin can raise {setting}"
    return MooringsError("quota.waiting", detail, hint=hint)
