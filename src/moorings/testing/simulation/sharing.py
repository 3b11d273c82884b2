"""How the clients of an episode share their pools: a policy, and projects that admins make, change and delete.

About half of the episodes have projects. Most drawn guarantees fit beside each other; the others must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from moorings.core.model.block_packing import guaranteeable_sizes
from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import (
    DEFAULT_PROJECT,
    Project,
    ProjectShare,
    UserLimit,
    guaranteed_blocks_in,
    parent_of,
)
from moorings.core.model.topology import Pool

PROJECTS_OF = 0.5  # of all episodes
NAMES = ("lab", "lab/vision", "lab/vision/night", "lab/speech", "ops", "ops/sweeps", DEFAULT_PROJECT)
NOBODYS = "nobodys"  # a name without a project
ACCOUNTS = ("vision", "ops", "guests")  # of another scheduler
SUBJECTS = ("ann", "bob", "cyd")
PROJECTS_ENOUGH = 4
LIMITS_OF_SOME = (UserLimit("ann", 8), UserLimit("bob", 0))  # beside a limit for all


@dataclass(frozen=True, slots=True)
class Sharing:
    """An episode's policy, and whether its admins make projects."""

    policy: Policy
    projects: bool


def drawn_sharing(chance: random.Random, *, rush: bool = False) -> Sharing:
    """Draw for one episode: half of those without projects have the default policy; a rush has some."""
    projects = chance.random() < PROJECTS_OF or rush
    policy = Policy(
        backfill=chance.random() < 0.8,
        making_s=chance.choice((0.0, 1.0, 5.0, 30.0)),
        fair_share=chance.random() < 0.8,
        half_life_s=chance.choice((60.0, 3_600.0)),
        min_run_s=chance.choice((0.0, 1.0, 5.0)),
        yield_s=chance.choice((1.0, 3.0, 10.0)),
        preempt=chance.random() < 0.7,
        defragment=chance.choice((DefragmentMode.OFF, DefragmentMode.OFF, DefragmentMode.SUGGEST, DefragmentMode.ON)),
        move_s=chance.choice((0.0, 5.0)),
        moves_per_hour=chance.choice((5, 1_000)),
        user_priority_max=PRIORITY_MAX,
    )
    return Sharing(policy if projects or chance.random() < 0.5 else Policy(user_priority_max=PRIORITY_MAX), projects)


def drawn_name(chance: random.Random, known: Collection[str]) -> str:
    """The name of a project to make or change: mostly a new one while there are few."""
    new = [name for name in NAMES if name not in known and parent_of(name) in ("", *known)]
    if new and len(known) < PROJECTS_ENOUGH and chance.random() < 0.8:
        return chance.choice(new)
    return chance.choice(NAMES)


def drawn_project(chance: random.Random, name: str, pools: Sequence[Pool], known: Mapping[str, Project]) -> Project:
    """A project as an admin may define it; it need not be feasible."""
    parent = known.get(parent_of(name))
    shares = [share for pool in pools if (share := _drawn_share(chance, pool, parent, parent_of(name))) is not None]
    made = Project(
        name=name,
        shares=tuple(shares),
        weight=chance.choice((0.5, 1.0, 1.0, 2.0)),
        devices_max=chance.choice((1, 4, 8)) if chance.random() < 0.04 else None,
        user_devices_max=chance.choice((1, 4, 8)) if chance.random() < 0.04 else None,
        members=tuple(sorted(chance.sample(SUBJECTS, 2))) if chance.random() < 0.15 else (),
        aliases=(f"slurm/alpha/{chance.choice(ACCOUNTS)}",) if chance.random() < 0.4 else (),
    )
    return replace(made, user_limits=LIMITS_OF_SOME) if made.user_devices_max is not None else made


def _drawn_share(chance: random.Random, pool: Pool, parent: Project | None, above: str) -> ProjectShare | None:
    sizes, most = guaranteeable_sizes(pool.topology), pool.topology.n_devices
    if above and parent is not None and chance.random() < 0.9:  # else its guarantee is too large, now and then
        room = guaranteed_blocks_in(parent, pool.name)
        if not room:
            return None
        sizes = tuple(size for size in sizes if size <= room[-1][0])
        most = room[-1][0] * room[-1][1]
    if chance.random() < 0.2:
        return None
    if guaranteeable_sizes(pool.topology) == (1,):
        return ProjectShare(pool.name, ((1, chance.randint(1, most)),))
    blocks: dict[int, int] = {}
    for _ in range(chance.choice((1, 1, 2))):
        size = chance.choice(sizes)
        blocks[size] = blocks.get(size, 0) + chance.choice((1, 1, 2))
    return ProjectShare(pool.name, tuple(blocks.items()))
