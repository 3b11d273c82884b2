"""What is to happen, drawn from a seed; pure."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from enum import StrEnum

SIZES = {1: 40, 2: 30, 4: 15, 8: 10, 16: 5}  # with weights
BEAT_S = 0.2


class Kind(StrEnum):
    """What a job consists of."""

    ONE = "one"  # a program
    SEVERAL = "several"  # two instances, a partition each
    FAILS_ONCE = "fails_once"  # started again by its policy
    TRAINING = "training"  # a launcher and two workers


class Victim(StrEnum):
    """What is killed by SIGKILL, and started again."""

    OPERATOR = "operator"  # the one that leads; another follows
    PROXY = "proxy"
    API_SERVER = "api server"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        name: its name.
        at_s: when it is made, in seconds since the begin.
        kind: what it consists of.
        size: IPUs of each instance.
        beats: how long each of its programs runs, in ``BEAT_S``.
        stubborn: whether its programs ignore SIGTERM, so that they live until kubelet kills them.
        delete_after_s: when it is deleted, in seconds since it was made; None: it is not.
    """

    name: str
    at_s: float
    kind: Kind
    size: int
    beats: int
    stubborn: bool
    delete_after_s: float | None

    @property
    def pods(self) -> tuple[str, ...]:
        """The Pods whose programs use the partition; workers of a launcher idle."""
        if self.kind is Kind.TRAINING:
            return (f"{self.name}-launcher",)
        return tuple(f"{self.name}-worker-{n}" for n in range(2 if self.kind is Kind.SEVERAL else 1))

    @property
    def runs(self) -> int:
        """How often each of their programs runs, where nothing is lost and nothing runs twice."""
        return 2 if self.kind is Kind.FAILS_ONCE else 1


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill: when, in seconds since the begin, of what, and how long it is away."""

    at_s: float
    victim: Victim
    away_s: float


@dataclass(frozen=True, slots=True)
class Story:
    """All that happens."""

    seed: int
    jobs: tuple[Job, ...]
    kills: tuple[Kill, ...]


def draw(seed: int, n_jobs: int, n_kills: int, jobs_per_s: float) -> Story:
    """A story of ``n_jobs`` jobs, a third of them deleted, and ``n_kills`` kills of each victim in turn."""
    chance = random.Random(seed)
    length_s = n_jobs / jobs_per_s
    doomed = {*chance.sample(range(n_jobs), n_jobs // 3)}
    jobs = [_job(chance, f"k{number}", length_s, doomed=number in doomed) for number in range(n_jobs)]
    victims = [*itertools.islice(itertools.cycle(Victim), n_kills)]
    chance.shuffle(victims)
    at_s = sorted(chance.uniform(0.05, 1.0) * length_s for _ in victims)
    kills = [Kill(at, victim, chance.uniform(0.2, 3.0)) for at, victim in zip(at_s, victims, strict=True)]
    return Story(seed, tuple(sorted(jobs, key=lambda job: job.at_s)), tuple(kills))


def _job(chance: random.Random, name: str, length_s: float, *, doomed: bool) -> Job:
    kinds = {Kind.ONE: 50, Kind.SEVERAL: 15, Kind.FAILS_ONCE: 15, Kind.TRAINING: 20}
    (kind,) = chance.choices([*kinds], [*kinds.values()])
    sizes = [size for size in SIZES if size > 1 or kind is not Kind.TRAINING]
    return Job(
        name=name,
        at_s=chance.uniform(0.0, length_s),
        kind=kind,
        size=chance.choices(sizes, [SIZES[size] for size in sizes])[0],
        beats=round(chance.uniform(0.5, 3.0) / BEAT_S),
        stubborn=chance.random() < 0.3,
        delete_after_s=chance.uniform(0.0, chance.choice((0.1, 5.0, 30.0))) if doomed else None,
    )
