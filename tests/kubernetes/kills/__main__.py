"""Play a story on real Kubernetes with a node, and print what became of it."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.kubernetes.kills.acting import staged
from tests.kubernetes.kills.judge import judge
from tests.kubernetes.kills.story import draw


def main() -> int:
    """Play it; 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.kills", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="a third of them is deleted (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=64, help="of operator, proxy, API server and controller")
    parser.add_argument("--jobs-per-s", type=float, default=1.2, help="as many as the node runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    given = parser.parse_args()
    story = draw(given.seed, given.jobs, given.kills, given.jobs_per_s)
    print(f"{len(story.jobs)} jobs, {len(story.kills)} kills, --seed {given.seed}", flush=True)
    begun = time.monotonic()
    with staged() as stage:
        verdict = judge(story, stage.play(story))
    verdict.counts["seconds"] = round(time.monotonic() - begun)
    for name, count in verdict.counts.items():
        print(f"{name:24}{count:>8}")
    print(f"wrong: {len(verdict.faults)}", *verdict.faults, sep="\n    ", flush=True)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
