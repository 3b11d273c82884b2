"""Who sees a record: one rule, from the caller and the projects as they are now.

A record (a run, a claim, its partition, their logs and events) is seen by admins, by its subject, by members and admins
of its project or of an ancestor, by everybody if one of these is open, and by the key whose owner prefix covers its
owner. An empty list of members shows nothing, and neither does the project ``default``. To everybody else the record
does not exist.

The rule is a value, and not a function of one record, because lists and the event log are filtered in the database:
``store.visible`` makes a condition of the same fields. Membership at the time of the record was refused: who has left a
project would see its jobs for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moorings.core.model.access import Caller, Ownership, Role, check_admin, check_owner_access
from moorings.core.model.claims import Claim
from moorings.core.model.projects import DEFAULT_PROJECT, Project, Projects, project_changed_error


@dataclass(frozen=True, slots=True)
class Visibility:
    """What one caller sees now.

    Attributes:
        sees_all: every record.
        subject: the caller's own records; empty: none.
        owner_prefix: the records of this owner and of those below it, without a ``/`` at its end; empty: none.
        projects: the records of these projects.
        sees_outlines: also the claims and partitions of others, without names (``viewer``).
        lists_people: lists also have the claims of others that have not ended, with their subjects and without other
            names: for people of one machine, who see one another's processes all the same.
        acts_for_many: whether the owners below the prefix may be most of the installation's (``agent``).
    """

    sees_all: bool = False
    subject: str = ""
    owner_prefix: str = ""
    projects: frozenset[str] = frozenset()
    sees_outlines: bool = False
    lists_people: bool = False
    acts_for_many: bool = False

    def includes(self, of: Ownership) -> bool:
        """Whether the caller sees the record that is owned like this."""
        return self._includes(of.subject, of.owner, of.project)

    def includes_claim(self, claim: Claim) -> bool:
        """Whether the caller sees a claim, and the partition it holds."""
        return self._includes(claim.subject, claim.owner, claim.spec.project)

    def _includes(self, subject: str | None, owner: str | None, project: str | None) -> bool:
        if self.sees_all or (subject == self.subject != "") or project in self.projects:
            return True
        prefix = self.owner_prefix
        return owner is not None and prefix != "" and (owner == prefix or owner.startswith(prefix + "/"))


SEES_ALL = Visibility(sees_all=True)


def ownership_of(claim: Claim) -> Ownership:
    """Whose a claim is."""
    return Ownership(claim.subject, claim.owner, claim.spec.project)


def visible_to(caller: Caller, projects: Projects) -> Visibility:
    """What a caller sees, with the projects as they are now."""
    if caller.role is Role.ADMIN:
        return SEES_ALL
    acts = caller.role in (Role.USER, Role.AGENT)
    return Visibility(
        subject=caller.subject,
        owner_prefix=caller.owner_prefix.rstrip("/") if acts else "",
        projects=_projects_seen_by(caller.subject, projects),
        sees_outlines=caller.role is Role.VIEWER,
        lists_people=caller.uid is not None,
        acts_for_many=caller.role is Role.AGENT,
    )


def visible_to_subject(subject: str, projects: Projects) -> Visibility:
    """What a subject sees whatever its key, with the projects as they are now."""
    return Visibility(subject=subject, projects=_projects_seen_by(subject, projects))


def sees_project(visible: Visibility, projects: Projects, name: str) -> bool:
    """Whether the caller sees a project itself: it sees or may use what is in it, or acts for one of its aliases."""
    if visible.sees_all or name in visible.projects or name == DEFAULT_PROJECT:
        return True
    project = projects.get(name)
    if project is None:
        return False
    aliased = any(visible.includes(Ownership(owner=alias)) for alias in project.aliases)
    return aliased or projects.is_member(name, visible.subject)


def check_may_manage(caller: Caller, of: Ownership, projects: Projects, action: str) -> None:
    """Check that the caller may end, pause or reorder a record: as for its owner, or as an admin of its project.

    Raises:
        MooringsError: ``owner.denied``.
    """
    if caller.role is Role.USER and of.project is not None and projects.is_admin(of.project, caller.subject):
        return
    check_owner_access(caller, of.owner or "", of.subject or "", action)


def check_may_set_project(caller: Caller, project: Project, version: int | None, projects: Projects) -> None:
    """Check that the caller may save a project: an admin; or an admin of that project, if only its members change.

    Raises:
        MooringsError: ``auth.denied``, ``project.changed``.
    """
    known = projects.get(project.name)
    if caller.role is not Role.USER or known is None or not projects.is_admin(known.name, caller.subject):
        check_admin(caller, "change projects")
        return
    if version != known.version:  # what was compared below must be what the turn changes
        raise project_changed_error(project.name)
    if replace(project, members=known.members, version=known.version) != known:
        check_admin(caller, f"change more of project {project.name} than its members")


def _projects_seen_by(subject: str, projects: Projects) -> frozenset[str]:
    return frozenset(name for name in projects.with_named(subject) if name.partition("/")[0] != DEFAULT_PROJECT)
