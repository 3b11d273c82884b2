"""The highest priority that a caller may request."""

from __future__ import annotations

from moorings.core.access import Role
from moorings.core.errors import MooringsError
from moorings.core.policy import Policy
from moorings.core.projects import Projects


def max_priority(role: Role | None, project: str, projects: Projects, policy: Policy) -> int | None:
    """The highest priority that may be requested; None: unlimited.

    Args:
        role: of the caller; None: the claim is from before there were limits, or of the controller itself.
        project: the project of the request.
        projects: the project's own maximum, or that of its nearest ancestor, replaces the role's.
        policy: has the maximum of each role.
    """
    if role is None or role is Role.ADMIN:
        return None
    own = projects.priority_max(project)
    if own is not None:
        return own
    return policy.agent_priority_max if role is Role.AGENT else policy.user_priority_max


def check_priority(asked: int, most: int | None, project: str) -> None:
    """Check that a priority is at most ``most``.

    Raises:
        MooringsError: ``priority.denied``.
    """
    if most is not None and asked > most:
        raise MooringsError(
            "priority.denied",
            f"priority {asked} is above {most}, the highest that you may ask for in project {project}",
            hint=f"ask for {most} or less; it would go before everybody who waits, so an admin must allow it: "
            f"moor set project {project} --priority-max {asked}",
        )
