"""A rush: all pools are full of borrowed devices, and all projects request their guarantees at once.

Owners are away for a while, come back, request their whole guarantee, hold it for a while and release it. Borrowers
fill free devices and release nothing unless asked; a good part of them not even then. An admin has guaranteed half of
the devices and more, seldom changes that, and orders moves now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from moorings.core.model.access import Caller, Role
from moorings.core.model.block_packing import BlockCounts
from moorings.core.model.claims import ClaimSpec, QueueMode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import DefragmentPool
from moorings.core.model.projects import (
    DEFAULT_PROJECT,
    Project,
    ProjectShare,
    guaranteed_blocks_in,
    guaranteed_device_count,
)
from moorings.core.model.topology import AnySubset, Catalogue, Pool
from moorings.testing.simulation.clients import ROOT, VIEWER, Choices, ClientPool, NoAnswerError, SimulatedClient
from moorings.testing.simulation.context import SimulationContext

OWNERS = ("lab/vision", "ops", "lab")  # projects whose guarantees are requested
BORROWERS = (DEFAULT_PROJECT, "guests", "lab/sweeps", "lab/sweeps")  # projects of the claims that fill the pools
DEAF_OF = 0.4  # of borrowers' manual claims
CLAIMS_MAX = (3, 8, 8)  # of one borrower at a time, in one rush: so not all pools are always full
BY_HAND_OF = (0.1, 0.6, 0.6)  # of borrowers' claims, in one rush: only jobs can be moved
AWAY_S = (5.0, 30.0)
STAYS_S = (20.0, 45.0)  # beyond the time within which an owner must get its devices
LIMITED_OF = 0.5  # of all rushes: the lab's limit is little above its guarantee


def make_rush_clients(crowd: ClientPool) -> list[SimulatedClient]:
    """An admin, owners, borrowers with names of their own, and an onlooker."""
    chance = crowd.stage.odds.chance
    names = OWNERS[: chance.choice((2, 3))]
    owners = [GuaranteedClient(number, name, crowd) for number, name in enumerate(names)]
    borrowers = [
        BorrowingClient(number, Caller(subject, Role.USER, f"user/{subject}", f"k-{subject}"), crowd)
        for number, subject in enumerate(("eve", "flo", "gus", "hal")[: chance.choice((2, 3, 4))])
    ]
    most, by_hand_of = chance.choice(CLAIMS_MAX), chance.choice(BY_HAND_OF)
    for borrower in borrowers:
        borrower.claims_max, borrower.by_hand_of = most, by_hand_of
    return [AdminClient(0, ROOT, crowd), *owners, *borrowers, SimulatedClient(0, VIEWER, crowd)]


def make_projects(stage: SimulationContext) -> list[Project]:
    """The projects with their guarantees, each after the one it is part of."""
    chance = stage.odds.chance
    parts = [_parts(pool) for pool in stage.pools]
    lab = Project(
        name="lab",
        shares=tuple(ProjectShare(pool.name, lab) for pool, (lab, _) in zip(stage.pools, parts, strict=True)),
    )
    if chance.random() < LIMITED_OF:
        lab = replace(lab, devices_max=guaranteed_device_count(lab) + chance.choice((0, 1, 2, 4)))
    own = tuple(ProjectShare(pool.name, part) for pool, (_, part) in zip(stage.pools, parts, strict=True))
    return [
        lab,
        Project(name="lab/vision", shares=own),
        Project(name="lab/sweeps"),
        Project(name="ops", shares=own),
        Project(name="guests", weight=2.0),
    ]


def _parts(pool: Pool) -> tuple[BlockCounts, BlockCounts]:
    """The lab's guarantee in a pool, about half of it; and that of each other project, half of that."""
    n = pool.topology.n_devices
    if isinstance(pool.topology, AnySubset):
        return ((1, n // 2),), ((1, n // 4),)
    large, small = [size for size in pool.topology.sizes if size <= n // 2][-1:-3:-1]
    if isinstance(pool.topology, Catalogue):
        return ((small, 1), (large, 1)), ((small, 1),)
    return ((large, 1),), ((small, 1),)


class AdminClient(SimulatedClient):
    """The admin."""

    async def work(self) -> None:
        """Make guarantees, then act now and then."""
        for project in make_projects(self._stage):
            await self._promise(project)
        await super().work()

    async def _promise(self, project: Project) -> None:
        while project.name not in self._stage.ledger.projects:
            try:
                await self._crowd.ask(
                    self._who, f"promise {project.name}", lambda c: c.projects.set_project(self._caller, project, None)
                )
            except (NoAnswerError, MooringsError):
                await asyncio.sleep(self._chance.uniform(0, 2))

    def _choices(self) -> Choices:
        return (8, self._list_something), (4, self._explain), (12, self._resume), (6, self._move), (1, self._change)

    async def _move(self) -> None:
        """Move claims to make a block of a size free."""
        pool = self._chance.choice(self._stage.pools)
        held = sum(len(one.block) for one in self._stage.ledger.partitions.values() if one.pool == pool.name)
        sizes = [size for size in pool.topology.sizes if 1 < size <= pool.topology.n_devices - held]
        if not sizes:
            return
        order = DefragmentPool(size=self._chance.choice(sizes), pool=pool.name)
        dry_run = self._chance.random() < 0.3
        await self._crowd.ask(
            self._who,
            f"make room for {order.size} in {pool.name}",
            lambda c: c.projects.defragment(self._caller, order, dry_run=dry_run),
        )

    async def _change(self) -> None:
        """Give one of the others another weight, which changes no guarantee."""
        known = self._stage.ledger.projects.get(self._chance.choice(("guests", "ops")))
        if known is not None:
            changed = replace(known, weight=self._chance.choice((0.5, 1.0, 2.0)))
            await self._crowd.ask(
                self._who,
                f"weigh {known.name} {changed.weight:g}",
                lambda c: c.projects.set_project(self._caller, changed, known.version),
            )


class GuaranteedClient(SimulatedClient):
    """A client of a project with a guarantee: away, there, and away again."""

    def __init__(self, number: int, project: str, crowd: ClientPool) -> None:
        subject = project.rsplit("/", 1)[-1]
        super().__init__(number, Caller(subject, Role.USER, f"user/{subject}", f"k-{subject}"), crowd)
        self._of = project
        self._wanted: list[tuple[Pool, int]] = []

    async def work(self) -> None:
        """Request the whole guarantee, hold it, and release it."""
        bound_s = self._stage.sharing.policy.guarantee_bound_s
        while True:
            await asyncio.sleep(self._chance.uniform(*AWAY_S))
            self._wanted = [one for pool in self._stage.pools for one in self._due(pool)]
            while self._wanted:
                await self._try(self._create)
            await asyncio.sleep(bound_s + self._chance.uniform(*STAYS_S))
            await self._try(self._adopt)
            while self._claims:
                await self._try(self._release)

    async def _try(self, deed: Callable[[], Awaitable[object]]) -> None:
        try:
            await deed()
        except (NoAnswerError, MooringsError):
            await asyncio.sleep(self._chance.uniform(0, 1))

    async def _release(self) -> None:
        gone = [ident for ident in self._claims if ident not in self._stage.ledger.claims]
        for ident in gone:
            self._claims.remove(ident)
        await super()._release()

    def _due(self, pool: Pool) -> list[tuple[Pool, int]]:
        """The sizes to request in one pool."""
        project = self._stage.ledger.projects.get(self._of)
        blocks = guaranteed_blocks_in(project, pool.name) if project is not None else ()
        sizes = [size for size, count in blocks for _ in range(count)]
        if isinstance(pool.topology, AnySubset) and self._chance.random() < 0.5:
            sizes = [sum(sizes)] if sizes else []
        return [(pool, size) for size in sizes]

    def _spec(self) -> ClaimSpec:
        pool, size = self._wanted.pop()
        return ClaimSpec(
            kind=pool.kind,
            size=size,
            gcds=self._gcds(pool, size),
            pool=pool.name,
            queue=QueueMode.WAIT,
            project=self._of,
            preemptible=self._chance.random() < 0.3,
        )


class BorrowingClient(SimulatedClient):
    """A client that takes free devices, and holds them.

    Attributes:
        claims_max: at most this many at a time.
        by_hand_of: the fraction without a job.
    """

    ignore_yield_ratio = DEAF_OF
    claims_max = CLAIMS_MAX[-1]
    by_hand_of = BY_HAND_OF[-1]

    def _choices(self) -> Choices:
        return (
            *((20, self._borrow), (2, self._get), (2, self._list_something), (2, self._explain), (1, self._adopt)),
            *((1, self._release), (1, self._cancel), (1, self._save), (1, self._release_foreign)),
        )

    async def _borrow(self) -> None:
        mine = sum(one.subject == self._caller.subject for one in self._stage.ledger.claims.values())
        if mine < self.claims_max:
            await (self._create() if self._chance.random() < self.by_hand_of else self._start())

    def _project(self) -> str:
        known = self._stage.ledger.projects
        name = self._chance.choice(BORROWERS)
        return name if name in known else DEFAULT_PROJECT

    def _is_preemptible(self) -> bool:
        return self._chance.random() < 0.9

    def _spec(self) -> ClaimSpec:
        spec = super()._spec()
        if not spec.size:
            return spec
        return replace(spec, resources={}, lease_s=None, time_limit_s=None, queue=QueueMode.WAIT)
