"""Seeded mutants: how much of the package the tests notice.

pick    write a new list, of the source as it is
run     run those of the list that were never run, and write down what notices them
verify  run those again that were noticed; fails if fewer than --share are (with --sample: by what `make test` runs);
        what the source has no more is told, and not counted
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.mutation import keeper, mutants
from tests.mutation.copies import Copy
from tests.mutation.mutants import Mutant
from tests.mutation.source import ChangeMovedError

CPU_S = 45.0
WALL_S = 120.0  # on two busy cores


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=["pick", "run", "verify"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--first", type=int, default=10_000, help="only that many")
    parser.add_argument("--sample", action="store_true", help="verify by what `make test` runs")
    parser.add_argument("--share", type=float, default=1.0, help="verify: how many must be noticed, of those that were")
    given = parser.parse_args()
    if given.do == "pick":
        mutants.save(mutants.pick(mutants.COUNT, mutants.SEED))
        return 0
    return (
        run(given.jobs, given.first)
        if given.do == "run"
        else verify(given.jobs, given.first, given.share, sampled=given.sample)
    )


def run(jobs: int, first: int) -> int:
    """Run those that were never run."""
    known = mutants.load()
    todo = [number for number, one in enumerate(known) if one.killed_by is None][:first]

    def keep(number: int, judged: Mutant) -> None:
        known[number] = judged
        mutants.save(known)

    return 1 if _judge_all([(number, known[number]) for number in todo], jobs, keep, {}) else 0


def verify(jobs: int, first: int, share: float, *, sampled: bool) -> int:
    """Run those again that were noticed."""
    todo = [(number, one) for number, one in enumerate(mutants.load()) if one.killed_by][:first]
    judged: list[Mutant] = []
    gone = _judge_all(todo, jobs, lambda _, one: judged.append(one), {"MOORINGS_TESTS": "sample"} if sampled else {})
    for one in judged:
        if not one.killed_by:
            print(f"not noticed any more: {one.change.file} {one.change.at}: {one.change.cut!r} -> {one.change.put!r}")
    noticed = sum(bool(one.killed_by) for one in judged)
    print(f"{noticed} of {len(judged)} are noticed ({100 * noticed / max(1, len(judged)):.1f} %); {gone} are gone")
    return 0 if judged and len(judged) + gone == len(todo) and noticed >= share * len(judged) else 1


def _judge_all(
    todo: Sequence[tuple[int, Mutant]], jobs: int, then: Callable[[int, Mutant], None], environment: Mapping[str, str]
) -> int:
    """Judge each; how many the source has no more."""
    lock = threading.Lock()
    waiting = iter(todo)
    gone: list[int] = []

    def work(folder: Path) -> None:
        with Copy(folder, environment) as copy:
            while True:
                with lock:
                    number, mutant = next(waiting, (-1, None))
                if mutant is None:
                    return
                began_s = time.monotonic()
                try:
                    judged = _judge(copy, mutant)
                except ChangeMovedError as error:
                    with lock:
                        gone.append(number)
                        print(f"{number:4} gone: {error}", flush=True)
                    continue
                with lock:
                    then(number, judged)
                    change = judged.change
                    print(f"{number:4} {time.monotonic() - began_s:6.1f} s  {change.file} {change.at}:", end=" ")
                    print(f"{change.cut[:60]!r} -> {change.put[:60]!r}: {judged.killed_by or 'SURVIVES'}", flush=True)

    with tempfile.TemporaryDirectory(prefix="moorings-mutants-") as top:
        threads = [threading.Thread(target=work, args=(Path(top) / str(number),)) for number in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return len(gone)


def _judge(copy: Copy, mutant: Mutant) -> Mutant:
    """What notices it: first the test that did before, then those that reach it, in growing batches."""
    files = mutants.reaching(mutant.change.file)
    before = [mutant.killed_by] if mutant.killed_by and "::" in mutant.killed_by else []
    killer = ""
    give_up_s, left_cpu_s = time.monotonic() + WALL_S, CPU_S
    batch, left = (1, [*before, *files]) if before else (4, files)
    with copy.changed(mutant.change):
        while left and not killer and left_cpu_s > 0 and time.monotonic() < give_up_s:
            some, left, batch = left[:batch], left[batch:], max(4, 2 * batch)
            limit_s = give_up_s - time.monotonic()
            outcome = copy.test(*some, limit_s=limit_s, cpu_s=left_cpu_s, options=("-x", "--timeout=60"))
            left_cpu_s -= outcome.cpu_s
            if outcome.failures:
                killer = outcome.failures[0].test
            elif outcome.status not in (0, 5, keeper.TOO_LONG) and some != before:  # the test may have another name now
                killer = f"pytest ends with {outcome.status}"
    if killer:  # a test that fails over the package as it is, too, notices nothing
        some = [killer] if "::" in killer else [*some, "--collect-only"]
        outcome = copy.test(*some, limit_s=WALL_S, options=("--timeout=60",))
        if outcome.status:
            print(f"{killer} fails over the package as it is, too ({outcome.status}):\n{outcome.output}", flush=True)
            killer = ""
    return mutants.with_verdict(mutant, killer, len(files))


if __name__ == "__main__":
    sys.exit(main())
