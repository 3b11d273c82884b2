"""How much longer ``moor run --engine slurm --detach`` takes than ``sbatch``: as a user, in turns, on one cluster."""

from __future__ import annotations

import statistics
import time

from tests.slurm.ipus import ipu_site
from tests.slurm.programs import RELEASE
from tests.slurm.test_own_runs import ANN, Person, finish, follow_people

ROUNDS = 15


def submit_ms() -> tuple[float, float]:
    """The medians of what ``moor run`` takes beyond ``sbatch``, and of ``sbatch``, in milliseconds."""
    with ipu_site(RELEASE, accounting=True) as site:
        follow_people(site)
        person = Person(site, ANN)
        added, plain = [], []
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            code, _, said = finish(person.call("sbatch", "--output=/dev/null", "--chdir=/", "--wrap=true"))
            assert code == 0, said
            submitted = time.perf_counter()
            code, _, said = finish(person.run("--detach", "--size", "0", "--", "true"))
            assert code == 0, said
            plain.append(1000 * (submitted - begun))
            added.append(1000 * (time.perf_counter() - submitted) - plain[-1])
            site.cluster.settle()
        return statistics.median(added[1:]), statistics.median(plain[1:])  # the first compiles
