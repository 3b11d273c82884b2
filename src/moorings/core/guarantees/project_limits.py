"""Limits: how many devices projects and their subjects hold, and which limit bars a request for more.

A limit bounds all devices held in a project, so borrowers there could keep its subprojects from their guarantees. Two
rules prevent that (law 6):

- If only a project's limit bars a claim within its guarantee, borrowers under that limit must yield.
- A claim that cannot be preempted gets no more than the limit leaves beside all guarantees under it: the lending check
  of limits. Its use of an ancestor's guarantee counts like borrowing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from moorings.core.guarantees.guarantee_map import UsableGuarantees
from moorings.core.model.claims import Claim
from moorings.core.model.projects import Projects
from moorings.core.placement.plans import Holder

_NOTHING: Final[Mapping[str, int]] = {}
LimitDeficits = tuple[tuple[str, int], ...]  # (project, devices) to be given back there, the nearest first


class ProjectLimits:
    """Devices held now, as one pass over the queue counts them."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects
        self._held: dict[str, int] = {}
        self._held_by: dict[tuple[str, str], int] = {}
        self._leaving: dict[str, int] = {}  # of the held devices, those being given back
        self._firm_beside_guarantee: dict[str, int] = {}  # of the held, those firm and outside the project's guarantees
        self._reserved_limits: set[tuple[str, str]] = set()  # limits of projects, and of their subjects
        self._limited: dict[str, tuple[tuple[int, str, int], ...]] = {}

    def add_held(self, project: str, subject: str, devices: int) -> None:
        """Add devices held in a project."""
        for each in self._projects.lineage(project):
            self._held[each] = self._held.get(each, 0) + devices
            key = (each, subject)
            self._held_by[key] = self._held_by.get(key, 0) + devices

    def add_leaving(self, tenant: Holder) -> None:
        """Record that a holder is about to give its devices back."""
        for each in self._projects.lineage(tenant.project):
            self._leaving[each] = self._leaving.get(each, 0) + len(tenant.block)

    def add_firm(self, project: str, devices: int, owners: Mapping[str, int] = _NOTHING) -> None:
        """Add devices that cannot be preempted; ``owners``: the number within each project's guarantee."""
        lineage = self._projects.lineage(project)
        for at, limited, _ in self._limits_of(project):
            inside = sum(owners.get(name, 0) for name in lineage[: at + 1])
            self._firm_beside_guarantee[limited] = self._firm_beside_guarantee.get(limited, 0) + devices - inside

    def _limits_of(self, project: str) -> tuple[tuple[int, str, int], ...]:
        """Its ancestors (and itself) with limits: place in the lineage, name, and limit."""
        known = self._limited.get(project)
        if known is None:
            found = ((at, self._projects.get(name)) for at, name in enumerate(self._projects.lineage(project)))
            known = self._limited[project] = tuple(
                (at, one.name, one.devices_max) for at, one in found if one is not None and one.devices_max is not None
            )
        return known

    def is_over_limit(self, claim: Claim) -> bool:
        """Whether a limit bars a claim, or what is left under a limit is reserved for an earlier claim."""
        size = claim.spec.size
        return any(key in self._reserved_limits or held + size > most for most, held, key in self._against(claim))

    def bars_user(self, claim: Claim) -> bool:
        """Whether a limit of its user bars a claim. The user of another scheduler's job is not known here: no limit."""
        return any(user and held + claim.spec.size > most for most, held, (_, user) in self._against(claim))

    def reserve_headroom(self, claim: Claim) -> None:
        """Reserve what is left under the nearest limit that bars a claim: otherwise others would fill it."""
        size = claim.spec.size
        for most, held, key in self._against(claim):
            if key in self._reserved_limits or held + size > most:
                if size <= most:
                    self._reserved_limits.add(key)
                return

    def _against(self, claim: Claim) -> Iterator[tuple[int, int, tuple[str, str]]]:
        """The limits that apply to a claim: the limit, what is held, and its key."""
        subject = claim.user
        for name in self._projects.lineage(claim.spec.project) if claim.spec.size else ():
            project = self._projects.get(name)
            if project is None:
                continue
            if project.devices_max is not None:
                yield project.devices_max, self._held.get(name, 0), (name, "")
            most = project.user_limit(subject)
            if most is not None:
                yield most, self._held_by.get((name, subject), 0), (name, subject)

    def required_releases(self, claim: Claim) -> LimitDeficits | None:
        """What must be given back, beyond what is leaving, so that a claim fits under the limits of projects.

        None: a limit of its subject bars it, or one that it could never fit under; no claim has to yield for that.
        """
        size = claim.spec.size
        found: list[tuple[str, int]] = []
        for most, held, key in self._against(claim):
            name, subject = key
            if size > most or (subject and (key in self._reserved_limits or held + size > most)):
                return None
            if not subject:
                found.append((name, held - self._leaving.get(name, 0) + size - most))
        return tuple((name, devices) for name, devices in found if devices > 0)

    def limit_exceeded_by_firm(self, project: str, devices: int) -> tuple[str, int] | None:
        """The limit (project and devices) without room for so many firm devices beside the guarantees under it."""
        found = (
            (name, most) for _, name, most in self._limits_of(project) if not self._leaves_room(name, most, devices)
        )
        return next(found, None)

    def usable_guarantees(self, project: str, devices: int, cells: UsableGuarantees) -> UsableGuarantees:
        """The cells that a project may use and that its limits allow for so many devices."""
        for at, limited, most in self._limits_of(project):
            if not self._leaves_room(limited, most, devices):
                near = self._projects.lineage(project)[: at + 1]
                return [cell for cell in cells if cell[0] in near]
        return cells

    def _leaves_room(self, name: str, most: int, devices: int) -> bool:
        return self._firm_beside_guarantee.get(name, 0) + devices + self._projects.guaranteed_devices(name) <= most
