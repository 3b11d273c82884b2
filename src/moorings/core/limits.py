"""Limits: how many devices projects and their subjects hold, and what stands against who asks for more.

A limit bounds what is held, by whomever, so those who borrowed in a project could keep its own parts from what they are
guaranteed. Two rules prevent that (law 6):

- Who is within a guarantee, and is kept from it only by a project's limit, has borrowers under that limit yield.
- Who cannot be asked to yield gets no more than the limit leaves beside all that is guaranteed under it: the lending
  check of limits. What is used of a guarantee further up counts like that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from moorings.core.cells import UsableGuarantees
from moorings.core.claims import Claim
from moorings.core.plans import Holder
from moorings.core.projects import Projects

_NOTHING: Final[Mapping[str, int]] = {}
LimitDeficits = tuple[tuple[str, int], ...]  # (project, devices) that must be given back there, the nearest first


class ProjectLimits:
    """What is held now, as a pass over the queue reckons it."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects
        self._held: dict[str, int] = {}
        self._held_by: dict[tuple[str, str], int] = {}
        self._leaving: dict[str, int] = {}  # of that, what is on its way back
        self._beside: dict[str, int] = {}  # of that, what is firm, and no part of what the project is guaranteed
        self._closed: set[tuple[str, str]] = set()  # limits of projects, and of their subjects
        self._limited: dict[str, tuple[tuple[int, str, int], ...]] = {}

    def hold(self, project: str, subject: str, devices: int) -> None:
        """Somebody holds so many more."""
        for each in self._projects.lineage(project):
            self._held[each] = self._held.get(each, 0) + devices
            key = (each, subject)
            self._held_by[key] = self._held_by.get(key, 0) + devices

    def leave(self, tenant: Holder) -> None:
        """Somebody who holds devices is about to give them back."""
        for each in self._projects.lineage(tenant.project):
            self._leaving[each] = self._leaving.get(each, 0) + len(tenant.block)

    def settle(self, project: str, devices: int, owners: Mapping[str, int] = _NOTHING) -> None:
        """Somebody's devices cannot be asked back; ``owners``: how many of them are of whose guarantee."""
        lineage = self._projects.lineage(project)
        for at, limited, _ in self._limits_of(project):
            inside = sum(owners.get(name, 0) for name in lineage[: at + 1])
            self._beside[limited] = self._beside.get(limited, 0) + devices - inside

    def _limits_of(self, project: str) -> tuple[tuple[int, str, int], ...]:
        """Which of its lineage have limits: place in the lineage, name, and what it may hold."""
        known = self._limited.get(project)
        if known is None:
            found = ((at, self._projects.get(name)) for at, name in enumerate(self._projects.lineage(project)))
            known = self._limited[project] = tuple(
                (at, one.name, one.devices_max) for at, one in found if one is not None and one.devices_max is not None
            )
        return known

    def bars(self, claim: Claim) -> bool:
        """Whether a limit stands against a claim, or what is left under it is kept for one before."""
        size = claim.spec.size
        return any(key in self._closed or held + size > most for most, held, key in self._against(claim))

    def close(self, claim: Claim) -> None:
        """Keep what is left under the nearest limit that a claim does not fit under: else others would fill it."""
        size = claim.spec.size
        for most, held, key in self._against(claim):
            if key in self._closed or held + size > most:
                if size <= most:
                    self._closed.add(key)
                return

    def _against(self, claim: Claim) -> Iterator[tuple[int, int, tuple[str, str]]]:
        """The limits that count for a claim: what they allow, what is held, and which it is."""
        subject = claim.user
        for name in self._projects.lineage(claim.spec.project) if claim.spec.size else ():
            project = self._projects.get(name)
            if project is not None and project.devices_max is not None:
                yield project.devices_max, self._held.get(name, 0), (name, "")
            if subject and project is not None and project.user_devices_max is not None:
                yield project.user_devices_max, self._held_by.get((name, subject), 0), (name, subject)

    def owed(self, claim: Claim) -> LimitDeficits | None:
        """What must be given back so that a claim fits under the limits of projects, beside what is on its way.

        None: a limit of its subject stands against it, or one that it could never keep; nobody has to yield for that.
        """
        size = claim.spec.size
        found: list[tuple[str, int]] = []
        for most, held, key in self._against(claim):
            name, subject = key
            if size > most or (subject and (key in self._closed or held + size > most)):
                return None
            if not subject:
                found.append((name, held - self._leaving.get(name, 0) + size - most))
        return tuple((name, devices) for name, devices in found if devices > 0)

    def against_settling(self, project: str, devices: int) -> tuple[str, int] | None:
        """The limit (whose, and how many) that has no room for so many firm devices beside what is guaranteed there."""
        found = (
            (name, most) for _, name, most in self._limits_of(project) if not self._leaves_room(name, most, devices)
        )
        return next(found, None)

    def reach(self, project: str, devices: int, cells: UsableGuarantees) -> UsableGuarantees:
        """Of the cells that a project may use those that its limits leave to it for so many devices."""
        for at, limited, most in self._limits_of(project):
            if not self._leaves_room(limited, most, devices):
                near = self._projects.lineage(project)[: at + 1]
                return [cell for cell in cells if cell[0] in near]
        return cells

    def _leaves_room(self, name: str, most: int, devices: int) -> bool:
        return self._beside.get(name, 0) + devices + self._projects.guaranteed(name) <= most
