"""Projects: a tree of guaranteed shares, weights, limits and members, to which claims are charged.

A project's name is its path: ``lab/vision`` is a child of ``lab``. A project's guarantee includes its children's. A
guarantee is a promise of *partitions*, not of a number of devices: sixteen devices in sixteen corners are no partition
of 16. So a share names blocks, and shares are accepted only if all their blocks fit the pool at once (``block_packing``
says when they do).

If no project is defined, a claim may name any. Once one is defined, a claim must name a defined project or ``default``,
which is open to all and has no guarantee until it is defined.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from math import isfinite, isqrt
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from moorings.core.model.access import EXTERNAL_OWNER_PREFIXES
from moorings.core.model.block_packing import (
    BlockCounts,
    add_counts,
    blocks_text,
    guaranteeable_sizes,
    largest_fitting,
    remaining_in_pool,
    shortfall_in_pool,
    shortfall_within,
    subtract_blocks,
)
from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import join_first
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import DEVICES_MAX, Pool, Topology

DEFAULT_PROJECT: Final = "default"
PROJECTS_MAX: Final = 4096
DEPTH_MAX: Final = 8
WEIGHT_MAX: Final = 1e6
LIMIT_MAX: Final = 1 << 30
LIMIT_BYTES_MAX: Final = 1 << 40
MEMBERS_MAX: Final = 1000
MEMBER_CHARS_MAX: Final = 120
USER_LIMITS_MAX: Final = 4096
ALIASES_MAX: Final = 256

SIMILAR_NAME_CHARS: Final = 8  # similar names differ at most so much in length
SIMILAR_NAMES_MAX: Final = 500  # compare at most so many: any caller can send wrong names again and again

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?")  # as in a claim
_ALIAS = re.compile(
    r"(slurm|kubernetes)/(?!\.{1,2}/)[A-Za-z0-9._@+-]{1,120}/[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?"
)


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """A project's guarantee in one pool, at any time.

    Attributes:
        pool: the pool.
        blocks: ``(size, count)`` by ascending size. In a pool where any subset is a block, single devices:
            ``((1, n),)``.
    """

    pool: PoolName
    blocks: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(sorted(self.blocks)))  # equal promises are equal values


@dataclass(frozen=True, slots=True)
class UserLimit:
    """A limit of one person: devices that a subject holds in a project and its children, at most."""

    subject: str
    devices_max: int


_SUBJECT_OF_LIMIT = attrgetter("subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The record of one project.

    Attributes:
        name: its path.
        shares: its guarantees, at most one share a pool, by the pool's name.
        weight: for the order among borrowers: twice the weight may use twice as much.
        devices_max: devices that it and its children hold at once, at most, in all pools together; None: no limit.
        user_devices_max: devices that one subject holds in it and its children, at most; None: no limit.
        user_limits: for these subjects in place of it, by subject; ``user_limit`` has the limit of any subject.
        priority_max: the highest priority for its claims, except those of admins; None: as its nearest ancestor, else
            as the policy says for the role.
        waiting_max: with so many claims, or so many runs, pending in it and its children, users may add none; None: no
            limit.
        waiting_bytes_max: total size of the jobs of these runs, in bytes, at most; None: no limit.
        members: the subjects that may use it, beside its ancestors' members; all may, if these have neither members nor
            admins.
        admins: the subjects that may also end, pause and reorder what is in it and its children; each is a member, too.
        open: whether everybody sees what is in it and its children (``visibility``).
        aliases: its names in other schedulers: ``slurm/<cluster>/<account>``, ``kubernetes/<cluster>/<namespace>``.
        version: counts its saves.
    """

    name: str
    shares: tuple[ProjectShare, ...] = ()
    weight: float = 1.0
    devices_max: int | None = None
    user_devices_max: int | None = None
    members: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    version: int = 1
    priority_max: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    waiting_max: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    waiting_bytes_max: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    admins: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    open: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    user_limits: tuple[UserLimit, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        # Equal values must be the same bytes in a log: 2 and 2.0 are not.
        object.__setattr__(self, "shares", tuple(sorted(self.shares, key=lambda share: share.pool)))
        object.__setattr__(self, "weight", float(self.weight))
        object.__setattr__(self, "user_limits", tuple(sorted(self.user_limits, key=_SUBJECT_OF_LIMIT)))

    @property
    def has_user_limits(self) -> bool:
        """Whether it limits what a subject holds, any or some."""
        return self.user_devices_max is not None or bool(self.user_limits)

    def user_limit(self, subject: str) -> int | None:
        """Devices that a subject holds in it and its children, at most; None: no limit.

        The empty subject is the unknown user of another scheduler's job: no limit.
        """
        if not subject:
            return None
        at = bisect_left(self.user_limits, subject, key=_SUBJECT_OF_LIMIT)
        if at < len(self.user_limits) and self.user_limits[at].subject == subject:
            return self.user_limits[at].devices_max
        return self.user_devices_max


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    """The usage of a project's ended attempts: device-microseconds, decayed as of ``at``."""

    project: str
    used: int
    at: Timestamp


class Projects:
    """All projects, as one value; empty: none is defined, and a claim may name any.

    Args:
        projects: in any order.
        pools: the pools for which ``guaranteed_blocks`` works.
    """

    def __init__(self, projects: Iterable[Project] = (), pools: Iterable[Pool] = ()) -> None:
        self._by_name = {project.name: project for project in projects}
        self._pools = {pool.name: pool for pool in sorted(pools, key=lambda one: one.name)}
        self._cells: dict[PoolName, Mapping[str, BlockCounts]] = {}
        self._open: dict[tuple[str, PoolName], tuple[tuple[str, int, int], ...]] = {}
        self._lineages: dict[str, tuple[str, ...]] = {}
        self._subjects: dict[str, frozenset[str]] = {}  # of each project, members and admins

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Projects):
            return NotImplemented
        return self._by_name == other._by_name and self._pools == other._pools

    def __hash__(self) -> int:
        return hash((frozenset(self._by_name.values()), frozenset(self._pools)))

    def __repr__(self) -> str:
        return f"Projects({', '.join(self.by_name)})"

    @cached_property
    def by_name(self) -> Mapping[str, Project]:
        """Every project, by name, in the order of the names."""
        return MappingProxyType(dict(sorted(self._by_name.items())))

    def get(self, name: str) -> Project | None:
        """The project of that name; None: there is none."""
        return self._by_name.get(name)

    def with_project(self, project: Project) -> Projects:
        """All projects, with this one added or replacing the one of its name."""
        return Projects((self._by_name | {project.name: project}).values(), self._pools.values())

    def without(self, name: str) -> Projects:
        """All projects but that one."""
        return Projects((one for one in self._by_name.values() if one.name != name), self._pools.values())

    @cached_property
    def _children(self) -> dict[str, list[Project]]:
        found: dict[str, list[Project]] = {}
        for project in self.by_name.values():
            found.setdefault(parent_of(project.name), []).append(project)
        return found

    def children(self, name: str) -> tuple[Project, ...]:
        """The direct children of a project; for the empty name, the projects without a parent."""
        return tuple(self._children.get(name, ()))

    def lineage(self, name: str) -> tuple[str, ...]:
        """The name itself, then its ancestors up to the root.

        The name itself is included even if no such project is defined; all others are defined.
        """
        known = self._lineages.get(name)
        if known is None:
            known = tuple(one for one in lineage_of(name) if one == name or one in self._by_name)
            if name in self._by_name:  # there is no bound on undefined names
                self._lineages[name] = known
        return known

    @cached_property
    def _aliases(self) -> dict[str, str]:
        return {alias: project.name for project in self._by_name.values() for alias in project.aliases}

    def by_alias(self, alias: str) -> str | None:
        """The project with that alias; None: there is none."""
        return self._aliases.get(alias)

    def resolve(self, project: str, owner: str, subject: str = "") -> str:
        """The project of a claim of ``owner`` that names ``project``; ``subject`` asks for it.

        Owners of Slurm and Kubernetes name an account or a namespace of their own scheduler. An alias comes first, and
        an unknown name goes to ``default``: a stock scheduler's jobs must not fail because an account is not mapped.

        Raises:
            MooringsError: ``project.unknown``.
        """
        if not self._by_name:
            return project
        kind, _, rest = owner.partition("/")
        foreign = owner.startswith(EXTERNAL_OWNER_PREFIXES)  # the project is an account or a namespace
        if foreign:
            called = self.by_alias(f"{kind}/{rest.partition('/')[0]}/{project}")
            if called is not None:
                return called
        if project in self._by_name or project == DEFAULT_PROJECT:
            return project
        if foreign:
            return DEFAULT_PROJECT
        raise self.unknown_error(project, [name for name in self.by_name if self.is_member(name, subject)])

    def unknown_error(self, name: str, among: Iterable[str] | None = None) -> MooringsError:
        """The error for an unknown name; its hint has similar names, of these or, if None, of all."""
        near = _similar_names(name, self.by_name if among is None else among)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return MooringsError(
            "project.unknown", f"there is no project {name[:80]!r}", hint=f"{hint}see 'moor get projects'"
        )

    def is_member(self, project: str, subject: str) -> bool:
        """Whether a subject may use a project: as a member or an admin of it or of an ancestor.

        If none of these has either, every subject may.
        """
        open_to_all = True
        for name in self.lineage(project):
            named = self._members_and_admins(name)
            if subject in named:
                return True
            open_to_all = open_to_all and not named
        return open_to_all

    def _members_and_admins(self, name: str) -> frozenset[str]:
        known = self._subjects.get(name)
        if known is None:
            project = self._by_name.get(name)
            if project is None:
                return frozenset()
            known = self._subjects[name] = frozenset((*project.members, *project.admins))
        return known

    def is_admin(self, project: str, subject: str) -> bool:
        """Whether a subject is an admin of a project or of an ancestor."""
        known = map(self._by_name.get, self.lineage(project))
        return any(subject in one.admins for one in known if one is not None)

    def knows_people(self, project: Project, subject: str) -> bool:
        """Whether a subject may know who a project names: its own people, and the admins of its ancestors."""
        return subject in self._members_and_admins(project.name) or self.is_admin(project.name, subject)

    def with_named(self, subject: str) -> frozenset[str]:
        """The projects that are open, or name the subject as a member or an admin, and all below these."""
        rest = [self._by_name[name] for name in {*self._open_projects, *self._naming.get(subject, ())}]
        found: set[str] = set()
        while rest:
            project = rest.pop()
            if project.name not in found:
                found.add(project.name)
                rest += self.children(project.name)
        return frozenset(found)

    @cached_property
    def _open_projects(self) -> tuple[str, ...]:
        return tuple(name for name, project in self._by_name.items() if project.open)

    @cached_property
    def _naming(self) -> dict[str, list[str]]:
        """The projects that name each subject."""
        found: dict[str, list[str]] = {}
        for name, project in self._by_name.items():
            for subject in (*project.members, *project.admins):
                found.setdefault(subject, []).append(name)
        return found

    def guaranteed_devices(self, name: str) -> int:
        """Devices guaranteed to a project and its subprojects, in all pools together."""
        project = self._by_name.get(name)
        return guaranteed_device_count(project) if project is not None else 0

    def has_user_limit(self, name: str) -> bool:
        """Whether it or an ancestor limits what one subject holds."""
        known = map(self._by_name.get, self.lineage(name))
        return any(project is not None and project.has_user_limits for project in known)

    def priority_max(self, name: str) -> int | None:
        """The highest priority for a project's claims: its own setting, or its nearest ancestor's."""
        for one in self.lineage(name):
            project = self._by_name.get(one)
            if project is not None and project.priority_max is not None:
                return project.priority_max
        return None

    def by_weight(self, usage: Mapping[str, float]) -> dict[str, float]:
        """Of each project, its usage divided by its weight: among equal priorities, the smaller is served first."""
        weights = {name: project.weight for name, project in self._by_name.items()}
        return {name: amount / weights.get(name, 1.0) for name, amount in usage.items()}

    def exceeded_limit(self, name: str, size: int, user: str = "") -> tuple[str, int] | None:
        """The project whose limit is below ``size``, and that limit; None: there is none.

        Args:
            name: the claim's project.
            size: devices.
            user: whose limits apply to the claim; empty: those of no user.
        """
        for one in self.lineage(name):
            project = self._by_name.get(one)
            for most in (project.devices_max, project.user_limit(user)) if project else ():
                if most is not None and size > most:
                    return one, most
        return None

    def guaranteed_blocks(self, pool: PoolName) -> Mapping[str, BlockCounts]:
        """The own cells of each project that has some: ``(size, count)`` by ascending size.

        A project's own cells are what is left of its share after its children's. An unknown pool has none. If a pool
        has shrunk since the shares were accepted, sizes that it no longer has are left out, and the cells together may
        be more than fit.
        """
        known = self._cells.get(pool)
        if known is None:
            if pool not in self._pools:
                return MappingProxyType({})
            known = self._cells[pool] = MappingProxyType(self._own_blocks(pool, self._pools[pool].topology))
        return known

    def _own_blocks(self, pool: PoolName, topology: Topology) -> dict[str, BlockCounts]:
        sizes = frozenset(guaranteeable_sizes(topology))
        shares: dict[str, BlockCounts] = {}
        below: dict[str, list[BlockCounts]] = {}
        for name, project in self.by_name.items():
            blocks = tuple((size, count) for size, count in guaranteed_blocks_in(project, pool) if size in sizes)
            if blocks:
                shares[name] = blocks
                below.setdefault(parent_of(name), []).append(blocks)
        own = (
            (name, subtract_blocks(topology, blocks, add_counts(below.get(name, ()))))
            for name, blocks in shares.items()
        )
        return {name: blocks for name, blocks in own if blocks}

    def usable_guarantees(self, project: str, pool: PoolName) -> tuple[tuple[str, int, int], ...]:
        """The cells that a claim of ``project`` may use: (owner, size, count), its own first, then its ancestors'."""
        known = self._open.get((project, pool))
        if known is None:
            cells = self.guaranteed_blocks(pool)
            known = tuple((name, *cell) for name in self.lineage(project) for cell in cells.get(name, ()))
            if project in self._by_name and pool in self._pools:
                self._open[project, pool] = known
        return known


def lineage_of(name: str) -> Iterator[str]:
    """The project and all its ancestors, defined or not, the nearest first."""
    parts = name.split("/")
    return ("/".join(parts[:depth]) for depth in range(len(parts), 0, -1))


def parent_of(name: str) -> str:
    """The name of the parent project; empty: there is none."""
    return name.rpartition("/")[0]


def guaranteed_blocks_in(project: Project, pool: PoolName) -> BlockCounts:
    """A project's guarantee in a pool; empty: none."""
    return next((share.blocks for share in project.shares if share.pool == pool), ())


def guaranteed_device_count(project: Project) -> int:
    """Devices guaranteed to a project, in all pools together."""
    return sum(size * count for share in project.shares for size, count in share.blocks)


# -- checks of one project against the others ----------------------------------------------------------------------


def check_project(project: Project, projects: Projects, pools: Mapping[PoolName, Pool]) -> None:
    """Check that ``project`` is valid in itself and beside ``projects``, where it replaces the one of its name.

    Raises:
        MooringsError: ``project.invalid``, ``project.unknown`` (its parent), ``pool.unknown``,
            ``project.not_feasible``.
    """
    check_project_name(project.name)
    _check_numbers(project)
    _check_members(project)
    _check_user_limits(project)
    _check_aliases(project, projects)
    parent = parent_of(project.name)
    if parent and parent not in projects.by_name:
        raise MooringsError(
            "project.unknown",
            f"there is no project {parent!r} that {project.name!r} could be a part of",
            hint=f"create it first: moor create project {parent}",
        )
    if project.name not in projects.by_name and len(projects.by_name) >= PROJECTS_MAX:
        raise _invalid(f"there are {PROJECTS_MAX} projects, and no more are allowed", "delete one that nobody uses")
    for share in project.shares:
        _check_share(project, share, pools)
    promised, most = guaranteed_device_count(project), project.devices_max
    if most is not None and promised > most:
        raise _not_feasible(
            f"project {project.name!r} would be guaranteed {promised} devices, and may hold {most} at once",
            "guarantee less, or raise its devices_max",
        )
    _check_room_above(project, projects, pools)
    _check_room_below(project, projects, pools)


def check_project_name(name: str) -> None:
    """Check the name of a project.

    Raises:
        MooringsError: ``project.invalid``.
    """
    parts = name.split("/")
    if not _NAME.fullmatch(name) or not {"", ".", ".."}.isdisjoint(parts):
        raise _invalid(
            f"project name {name[:80]!r} is not allowed",
            "use up to 64 letters, digits, '.', '_' and '-', and '/' before each part of a project, as in lab/vision",
        )
    if len(parts) > DEPTH_MAX:
        raise _invalid(
            f"project {name!r} is {len(parts)} levels deep; at most {DEPTH_MAX} are allowed", "use fewer '/'"
        )


def check_deletable(name: str, projects: Projects) -> None:
    """Check that no other project depends on this one.

    Raises:
        MooringsError: ``project.unknown``, ``project.has_children``.
    """
    if name not in projects.by_name:
        raise projects.unknown_error(name)
    children = projects.children(name)
    if children:
        raise MooringsError(
            "project.has_children",
            f"project {name!r} has parts: {_names(children)}",
            hint="delete these first",
        )


def _check_numbers(project: Project) -> None:
    if not isfinite(project.weight) or not 0 < project.weight <= WEIGHT_MAX:
        raise _invalid(
            f"weight {project.weight:g} of project {project.name!r} is out of range",
            f"use a number above 0, at most {WEIGHT_MAX:g}; 1 is usual",
        )
    for what, most in (
        *(("devices_max", LIMIT_MAX), ("user_devices_max", LIMIT_MAX)),
        *(("waiting_max", LIMIT_MAX), ("waiting_bytes_max", LIMIT_BYTES_MAX)),
    ):
        limit: int | None = getattr(project, what)
        if limit is not None and not 0 <= limit <= most:
            raise _invalid(
                f"{what} = {limit} of project {project.name!r} is out of range",
                f"use 0 to {most}, or none for no limit",
            )
    if project.priority_max is not None and not 0 <= project.priority_max <= PRIORITY_MAX:
        raise _invalid(
            f"priority_max = {project.priority_max} of project {project.name!r} is out of range",
            f"use 0 to {PRIORITY_MAX}, or none",
        )


def project_changed_error(name: str) -> MooringsError:
    """The error for a change of a version of a project that is not the present one."""
    return MooringsError(
        "project.changed",
        f"project {name} was changed or deleted meanwhile",
        hint="look at it as it is now, then change it again",
    )


def _check_members(project: Project) -> None:
    if len(project.members) > MEMBERS_MAX:
        raise _invalid(
            f"project {project.name!r} would have {len(project.members)} members; at most {MEMBERS_MAX} are allowed",
            "without any, and without admins, everybody may use it",
        )
    if len(project.admins) > MEMBERS_MAX:
        raise _invalid(
            f"project {project.name!r} would have {len(project.admins)} admins; at most {MEMBERS_MAX} are allowed",
            "name those that look after its jobs",
        )
    for what, names in (("member", project.members), ("admin", project.admins)):
        for name in names:
            _check_subject_name(project, what, name)
    if project.name.partition("/")[0] == DEFAULT_PROJECT and (project.admins or project.open):
        raise _invalid(
            f"project {project.name!r} can have no admins, and cannot be open",
            f"what is in {DEFAULT_PROJECT!r} is its owner's alone: make another project",
        )


def _check_subject_name(project: Project, what: str, name: str) -> None:
    if not 1 <= len(name) <= MEMBER_CHARS_MAX or not name.isprintable():
        raise _invalid(
            f"{what} {name[:80]!r} of project {project.name!r} is no name of a subject",
            f"use 1 to {MEMBER_CHARS_MAX} characters, as in the subject of an access key",
        )


def _check_user_limits(project: Project) -> None:
    limits = project.user_limits
    if len(limits) > USER_LIMITS_MAX:
        raise _invalid(
            f"project {project.name!r} would limit {len(limits)} users; at most {USER_LIMITS_MAX} are allowed",
            "set user_devices_max to what most users may hold, and name only the others",
        )
    for at, limit in enumerate(limits):
        _check_subject_name(project, "user", limit.subject)
        if at and limits[at - 1].subject == limit.subject:
            raise _invalid(f"project {project.name!r} limits user {limit.subject!r} twice", "keep one of the limits")
        if not 0 <= limit.devices_max <= LIMIT_MAX:
            raise _invalid(
                f"the limit {limit.devices_max} of user {limit.subject!r} of project {project.name!r} is out of range",
                f"use 0 to {LIMIT_MAX}",
            )


def _check_aliases(project: Project, projects: Projects) -> None:
    if len(project.aliases) > ALIASES_MAX:
        raise _invalid(
            f"project {project.name!r} would have {len(project.aliases)} aliases; at most {ALIASES_MAX} are allowed",
            "unmapped accounts and namespaces go to the project of their name, or to default",
        )
    seen: set[str] = set()
    for alias in project.aliases:
        if not _ALIAS.fullmatch(alias) or not {"", ".", ".."}.isdisjoint(alias.split("/")):
            raise _invalid(
                f"alias {alias[:80]!r} of project {project.name!r} is not allowed",
                "write slurm/CLUSTER/ACCOUNT or kubernetes/CLUSTER/NAMESPACE",
            )
        other = projects.by_alias(alias)
        if alias in seen or other not in (None, project.name):
            raise _invalid(
                f"alias {alias!r} is given to {project.name!r} and to {other or project.name!r}",
                "an account or a namespace belongs to one project: take it away from one of them",
            )
        seen.add(alias)


def _check_share(project: Project, share: ProjectShare, pools: Mapping[PoolName, Pool]) -> None:
    pool = pools.get(share.pool)
    if pool is None:
        near = _similar_names(share.pool, pools)
        raise MooringsError(
            "pool.unknown",
            f"there is no pool {share.pool[:80]!r} that {project.name!r} could be guaranteed a part of",
            hint=f"did you mean {' or '.join(near)}?" if near else "see 'moor get pools'",
        )
    if sum(other.pool == share.pool for other in project.shares) > 1:
        raise _invalid(
            f"project {project.name!r} has two shares of pool {share.pool!r}", "write all its blocks in one share"
        )
    if not share.blocks:
        raise _invalid(f"the share of project {project.name!r} in pool {share.pool!r} is empty", "leave it out")
    sizes = guaranteeable_sizes(pool.topology)
    for at, (size, count) in enumerate(share.blocks):
        if size not in sizes:
            raise _invalid(
                f"pool {share.pool!r} has no blocks of {size} that project {project.name!r} could be guaranteed",
                "it has no blocks: guarantee single devices, size 1"
                if sizes == (1,)
                else f"its sizes are {', '.join(map(str, sizes[:32]))}{', ...' if len(sizes) > 32 else ''}",
            )
        if not 1 <= count <= DEVICES_MAX:
            raise _invalid(
                f"{count} blocks of {size} for project {project.name!r} in pool {share.pool!r} are out of range",
                f"use 1 to {DEVICES_MAX}",
            )
        if at and share.blocks[at - 1][0] == size:
            raise _invalid(
                f"the share of project {project.name!r} in pool {share.pool!r} names size {size} twice",
                "add the two counts",
            )


def _check_room_above(project: Project, projects: Projects, pools: Mapping[PoolName, Pool]) -> None:
    """Check that its shares and those of its siblings fit into its parent's, or into the pool."""
    before = projects.get(project.name)
    parent = projects.get(parent_of(project.name))
    siblings = [one for one in projects.children(parent_of(project.name)) if one.name != project.name]
    for share in project.shares:
        topology = pools[share.pool].topology
        if before is not None and not shortfall_within(
            topology, share.blocks, guaranteed_blocks_in(before, share.pool)
        ):
            continue  # no more than before: even if the pool has become too small, a share can be reduced
        others = add_counts(guaranteed_blocks_in(one, share.pool) for one in siblings)
        every = add_counts([others, share.blocks])
        if parent is None:
            lack, left = shortfall_in_pool(topology, every), remaining_in_pool(topology, others)
            what = f"pool {share.pool!r} cannot hold all guarantees together"
        else:
            room = guaranteed_blocks_in(parent, share.pool)
            lack, left = shortfall_within(topology, every, room), subtract_blocks(topology, room, others)
            what = f"{parent.name!r} does not have what its parts would be guaranteed in pool {share.pool!r}"
        if lack:
            fits = "guarantee fewer or smaller blocks"
            if left is not None:
                most = (
                    largest_fitting(topology, left, share.blocks) or left
                )  # of the requested blocks; if none fits, all that is left
                fits = f"beside the others {project.name!r} may have {blocks_text(topology, most)}"
            raise _not_feasible(
                f"{what} if {project.name!r} has {blocks_text(topology, share.blocks)}: {lack}",
                f"{fits}; or guarantee {parent.name!r} more" if parent is not None else fits,
            )


def _check_room_below(project: Project, projects: Projects, pools: Mapping[PoolName, Pool]) -> None:
    """Check that the shares of its children fit into its own."""
    children = projects.children(project.name)
    for name in sorted({share.pool for child in children for share in child.shares}):
        pool = pools.get(name)
        topology = pool.topology if pool is not None else None
        every = add_counts(guaranteed_blocks_in(child, name) for child in children)
        lack = shortfall_within(topology, every, guaranteed_blocks_in(project, name))
        if lack:
            holders = [child for child in children if guaranteed_blocks_in(child, name)]
            raise _not_feasible(
                f"the parts of {project.name!r} are guaranteed more in pool {name!r} than it would have: {lack}",
                f"{blocks_text(topology, every)} is enough; or reduce the guarantees of {_names(holders)} first",
            )


def _similar_names(name: str, names: Iterable[str]) -> list[str]:
    alike = (one for one in names if abs(len(one) - len(name)) <= SIMILAR_NAME_CHARS)
    return get_close_matches(name, list(islice(alike, SIMILAR_NAMES_MAX)), n=3)


def _names(projects: Iterable[Project]) -> str:
    return join_first(project.name for project in projects)


def _invalid(detail: str, hint: str) -> MooringsError:
    return MooringsError("project.invalid", detail, hint=hint)


def _not_feasible(detail: str, hint: str) -> MooringsError:
    return MooringsError("project.not_feasible", detail, hint=hint)


# -- decay of usage ------------------------------------------------------------------------------------------------
#
# In integers, because floating-point powers differ in their last digit from machine to machine, and a log must give the
# same decisions on all of them. 2**-x is looked up in pieces of eight binary digits of x.

_ONE: Final = 1 << 64
_LN2: Final = 12_786_308_645_202_655_660  # of _ONE: rounded
_DIGITS: Final = 40  # of a half-life: a third of a millisecond of ten years


def _powers() -> tuple[tuple[int, ...], ...]:
    root, roots = _ONE >> 1, []
    for _ in range(_DIGITS):
        root = isqrt(root * _ONE)  # half as far
        roots.append(root)
    tables = []
    for first in range(0, _DIGITS, 8):
        table = [_ONE]
        for root in reversed(roots[first : first + 8]):
            table += [one * root >> 64 for one in table]
        tables.append(tuple(table))
    return tuple(tables)


_POWERS: Final = _powers()


def decayed_usage(usage: ProjectUsage, now: Timestamp, half_life_s: float) -> int:
    """``usage`` decayed to ``now``, in device-microseconds: half after each half-life.

    If the clock was set back, it is not decayed.
    """
    whole, factor = _decay_factor(now - usage.at, half_life_s)
    return usage.used * factor >> (64 + whole)


def usage_now(
    known: Iterable[ProjectUsage], held: Iterable[tuple[str, int, Timestamp]], now: Timestamp, half_life_s: float
) -> dict[str, float]:
    """Of each project, its decayed usage with that of present holders, in device-microseconds.

    Args:
        known: the usage of projects.
        held: project, devices and since when, of each holder.
        now: the time.
        half_life_s: after which usage counts half.
    """
    used = {one.project: float(decayed_usage(one, now, half_life_s)) for one in known}
    for project, devices, since in held:
        used[project] = used.get(project, 0.0) + devices * max(0, now - since)
    return used


USED_MAX = (1 << 63) - 1  # what a database's number can hold


def add_usage(
    usage: ProjectUsage, devices: int, began: Timestamp, ended: Timestamp, half_life_s: float
) -> ProjectUsage:
    """``usage`` as of ``ended``, with ``devices`` used since ``began``.

    Earlier use in that time has decayed more by its end: of ``t`` seconds ``half_life / ln 2 * (1 - 2**-(t /
    half_life))`` are left. So it does not matter whether a long job is counted at once or piece by piece.
    """
    whole, factor = _decay_factor(ended - began, half_life_s)
    left = ((_ONE << whole) - factor) * _half_life(half_life_s) // (_LN2 << whole)
    added = devices * min(left, max(0, ended - began))
    return ProjectUsage(usage.project, min(decayed_usage(usage, ended, half_life_s) + added, USED_MAX), ended)


def _half_life(half_life_s: float) -> int:
    return max(1, round(half_life_s * SECOND))


def _decay_factor(elapsed: int, half_life_s: float) -> tuple[int, int]:
    """2**-(elapsed / half_life) as ``factor / _ONE / 2**whole``."""
    half_life = _half_life(half_life_s)
    whole, rest = divmod(max(0, elapsed), half_life)
    digits = (rest << _DIGITS) // half_life
    factor = _ONE
    for at, table in enumerate(_POWERS):
        factor = factor * table[digits >> (_DIGITS - 8 * (at + 1)) & 255] >> 64
    return min(whole, 1 << 10), factor
