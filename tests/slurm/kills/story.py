"""What is to happen, drawn from a seed; pure."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from enum import StrEnum

SIZES = {1: 40, 2: 25, 4: 20, 8: 10, 16: 5}  # with weights
JOBS_PER_S = 2.2  # about as many as sixteen IPUs take
BEAT_S = 0.2
TASKS = 3  # of an array


class Kind(StrEnum):
    """What a job consists of."""

    BATCH = "batch"
    STEPS = "steps"
    TWO_AT_ONCE = "two_at_once"
    ARRAY = "array"


class Victim(StrEnum):
    """What is killed by SIGKILL, and started again."""

    AGENT = "agent"
    CONTROLLER = "controller"
    SLURMCTLD = "slurmctld"
    SLURMD = "slurmd"  # its steps live on
    NODE = "node"  # slurmd and all that runs there


OURS = (Victim.AGENT, Victim.CONTROLLER)


@dataclass(frozen=True, slots=True)
class Job:
    """A job; an array is one, with ``TASKS`` starts.

    Attributes:
        name: by which it is known throughout: slurmctld may give an id twice.
        at_s: when it is submitted, in seconds since the begin.
        kind: what it consists of.
        size: IPUs.
        beats: how long each of its programs runs, in ``BEAT_S``.
        user: whose it is.
        requeue: whether Slurm may start it again.
        stubborn: whether its programs ignore SIGTERM, so that they live until Slurm kills them.
        cancel_after_s: when it is cancelled, in seconds since it was submitted; None: it is not.
    """

    name: str
    at_s: float
    kind: Kind
    size: int
    beats: int
    user: str
    requeue: bool
    stubborn: bool
    cancel_after_s: float | None

    @property
    def starts(self) -> int:
        """How many jobs Slurm makes of it."""
        return TASKS if self.kind is Kind.ARRAY else 1


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill: when, in seconds since the begin, of what (with the number of its node), and how long it is away."""

    at_s: float
    victim: Victim
    node: int
    away_s: float


@dataclass(frozen=True, slots=True)
class Story:
    """All that happens."""

    seed: int
    jobs: tuple[Job, ...]
    kills: tuple[Kill, ...]

    @property
    def starts(self) -> int:
        """How many jobs Slurm makes of all."""
        return sum(job.starts for job in self.jobs)

    def without_ours(self) -> Story:
        """The control: what is killed is Slurm's."""
        return Story(self.seed, self.jobs, tuple(kill for kill in self.kills if kill.victim not in OURS))


def draw(seed: int, n_jobs: int, n_kills: int, n_nodes: int, *, power_cuts: bool = True) -> Story:
    """A story of ``n_jobs`` jobs, each task of an array counted, a third of them cancelled, and ``n_kills`` kills."""
    chance = random.Random(seed)
    length_s = n_jobs / JOBS_PER_S
    drafts: list[Job] = []
    left = n_jobs
    while left > 0:
        drafts.append(_job(chance, f"k{len(drafts)}", left, length_s))
        left -= drafts[-1].starts
    drafts.sort(key=lambda job: job.at_s)
    doomed = {job.name for job in chance.sample(drafts, len(drafts) // 3)}
    jobs = [job for job in drafts if job.name not in doomed]
    jobs += [_cancelled(chance, job) for job in drafts if job.name in doomed]
    victims = [*itertools.islice(itertools.cycle((*OURS, Victim.SLURMCTLD, *OURS, Victim.SLURMD)), n_kills)]
    at_s = sorted(chance.uniform(0.1, 1.05) * length_s for _ in victims)
    chance.shuffle(victims)
    cuts = itertools.cycle((False, True, False) if power_cuts else (False,))
    kills = [
        Kill(
            at,
            Victim.NODE if victim is Victim.SLURMD and next(cuts) else victim,
            chance.randint(1, n_nodes),
            chance.uniform(0.2, 3.0),
        )
        for at, victim in zip(at_s, victims, strict=True)
    ]
    return Story(seed, tuple(sorted(jobs, key=lambda job: job.at_s)), tuple(kills))


def _job(chance: random.Random, name: str, left: int, length_s: float) -> Job:
    kinds = {Kind.BATCH: 55, Kind.STEPS: 20, Kind.TWO_AT_ONCE: 15} | ({Kind.ARRAY: 10} if left >= TASKS else {})
    (kind,) = chance.choices([*kinds], [*kinds.values()])
    sizes = [size for size in SIZES if size > 1 or kind in (Kind.BATCH, Kind.ARRAY)]
    return Job(
        name=name,
        at_s=chance.uniform(0.0, length_s),
        kind=kind,
        size=chance.choices(sizes, [SIZES[size] for size in sizes])[0],
        beats=round(chance.uniform(0.5, 3.0) / BEAT_S / (2 if kind is Kind.STEPS else 1)),
        user=chance.choice(("games", "man")),
        requeue=chance.random() < 0.8,
        stubborn=chance.random() < 0.3,
        cancel_after_s=None,
    )


def _cancelled(chance: random.Random, job: Job) -> Job:
    """It, cancelled at once, while it starts, or later."""
    return replace(job, cancel_after_s=chance.uniform(0.0, chance.choice((0.05, 1.5, 6.0))))
