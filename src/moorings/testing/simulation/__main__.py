"""``python -m moorings.testing.simulation``: run episodes, show what they reached; replay one, or minimise its faults.

Every episode is one seed. They share nothing, so one for each core runs at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from moorings.testing.simulation.episode import STEPS, EpisodeResult, simulate
from moorings.testing.simulation.fault_plan import KINDS
from moorings.testing.simulation.report import build_failure, build_table, total_reached, unreached

STORY_LINES = 60
LOST = 8  # the exit code of a broken law: violations
SHRINK_STEPS_MORE = 2_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if no law was broken and everything expected was reached."""
    asked = _parse(arguments)
    if asked.seed is not None:
        return _replay(asked)
    begun = time.monotonic()
    outcomes: list[EpisodeResult] = []
    steps = 0
    work = partial(simulate, steps=asked.steps, only=asked.only)
    with ProcessPoolExecutor(asked.jobs) as workers:
        wanted = -(-asked.total // asked.steps)
        for outcome in workers.map(work, range(asked.first, asked.first + wanted)):
            outcomes.append(outcome)
            steps += outcome.steps
            if outcome.broken is not None:
                _print(build_failure(outcome, asked.steps, asked.only, STORY_LINES))
                workers.shutdown(wait=False, cancel_futures=True)
                return LOST
    total = total_reached(outcomes)
    _print(build_table(total))
    seconds = time.monotonic() - begun
    virtual_h = sum(outcome.virtual_s for outcome in outcomes) / 3600
    summary = f"{steps:,} steps in {len(outcomes)} episodes ({virtual_h:.1f} virtual hours)"
    pace = f"{seconds:.0f} s: {steps / seconds:,.0f} steps/s on {asked.jobs} processes"
    _print(["", f"{summary} in {pace}; no law was broken"])
    never = unreached(total) if asked.only is None else []
    if never:
        _print([f"never reached: {', '.join(never)}"])
    return LOST if never else 0


def _replay(asked: argparse.Namespace) -> int:
    outcome = simulate(asked.seed, steps=asked.steps, until=asked.until, only=asked.only)
    if asked.story:
        _print(outcome.lines)
    if asked.shrink and outcome.broken is not None:
        asked.only = _shrunk(outcome, asked.steps)
        outcome = simulate(asked.seed, steps=asked.steps, only=asked.only)
    if outcome.broken is not None:
        _print(build_failure(outcome, asked.steps, asked.only, 0 if asked.story else STORY_LINES))
        return LOST
    _print([f"episode {asked.seed}: {outcome.steps:,} steps, no law was broken; digest {outcome.digest}"])
    return 0


def _shrunk(outcome: EpisodeResult, steps: int) -> tuple[str, ...]:
    """Fewer kinds of faults with which the same seed still breaks the same law: each kind in turn is left out.

    The story changes with every kind left out, so this finds a small cause, not the smallest.
    """
    assert outcome.broken is not None
    kept = [kind for kind in KINDS if kind in outcome.kinds]
    for kind in tuple(kept):
        fewer = [one for one in kept if one != kind]
        found = simulate(outcome.seed, steps=min(steps, outcome.broken.step + SHRINK_STEPS_MORE), only=fewer).broken
        if found is not None and found.law == outcome.broken.law:
            kept = fewer
    return tuple(kept)


def _print(lines: Iterable[str] | Iterator[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m moorings.testing.simulation", description=__doc__)
    parser.add_argument("--total", type=int, default=1_000_000, help="steps in all (default: a million)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of one episode (default: {STEPS:,})")
    parser.add_argument("--first", type=int, default=1, help="seed of the first episode (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--only", action="append", choices=KINDS, metavar="FAULT", help="only this kind of fault")
    parser.add_argument("--seed", type=int, help="run this one episode")
    parser.add_argument("--until", type=int, help="stop at this step")
    parser.add_argument("--story", action="store_true", help="show the last steps of the episode")
    parser.add_argument("--shrink", action="store_true", help="look for fewer kinds of faults that break the same law")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
