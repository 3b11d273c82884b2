"""Projects: who pays. A tree of guaranteed shares, weights, limits and members.

A project's name is its path: ``lab/vision`` is a child of ``lab``. What a project is guaranteed includes what its
children are. A guarantee is a promise of *partitions*, not of a number of devices: sixteen devices in sixteen corners
are no partition of 16. So a share names blocks, and shares are taken only if all their blocks fit the pool at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moorings.core.devices import PoolName
from moorings.core.instants import Instant


@dataclass(frozen=True, slots=True)
class Share:
    """What a project is guaranteed in one pool, at any time.

    Attributes:
        pool: in which pool.
        blocks: ``(size, count)`` by ascending size. In a pool whose devices go in any subset, single devices:
            ``((1, n),)``.
    """

    pool: PoolName
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One project, as it stands.

    Attributes:
        name: its path.
        shares: what it is guaranteed, at most one share a pool.
        weight: for the order among those who borrow: who has twice the weight may use twice as much.
        devices_max: so many devices it and its children hold at once, at most, in all pools together; None: no limit.
        user_devices_max: so many devices one subject holds in it and its children, at most; None: no limit.
        members: the subjects that may ask in its name, beside those of its parents; if neither has any, everybody.
        aliases: what other schedulers call it: ``slurm/<cluster>/<account>``, ``kubernetes/<cluster>/<namespace>``.
        version: counts its saves.
    """

    name: str
    shares: tuple[Share, ...] = ()
    weight: float = 1.0
    devices_max: int | None = None
    user_devices_max: int | None = None
    members: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    version: int = 1


@dataclass(frozen=True, slots=True)
class Usage:
    """What a project's ended attempts have used: device-microseconds, decayed as of ``at``."""

    project: str
    used: int
    at: Instant


class Projects:
    """All projects, as one value; empty: there are none, and whoever may ask at all may name any."""

    def __init__(self, projects: Iterable[Project] = ()) -> None:
        self._by_name = {project.name: project for project in sorted(projects, key=lambda one: one.name)}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def by_name(self) -> Mapping[str, Project]:
        """Every project, by name."""
        return self._by_name
