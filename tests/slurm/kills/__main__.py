"""Play a story on real Slurm, with IPUs and as plain jobs, and print what became of both."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.slurm.cgroups import VERSIONS, why_not
from tests.slurm.kills import acting
from tests.slurm.kills.judge import Verdict, judge
from tests.slurm.kills.story import Story, draw
from tests.slurm.programs import RELEASE, SUITES


def main() -> int:
    """Play it; 1 if something is wrong with IPU jobs."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.kills", description=__doc__)
    parser.add_argument("--slurm-release", choices=[*SUITES], default=RELEASE)
    parser.add_argument("--jobs", type=int, default=470, help="a third of them is cancelled (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=48, help="of agent, controller, slurmctld and slurmd")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--no-power-cuts", action="store_true", help="no node is killed as a whole")
    parser.add_argument("--without-control", action="store_true", help="leave the plain jobs out")
    parser.add_argument("--cgroups", choices=VERSIONS, default="", help="nodes keep their jobs in cgroups")
    given = parser.parse_args()
    if given.cgroups and (reason := why_not(given.cgroups)):
        parser.error(reason)
    story = draw(given.seed, given.jobs, given.kills, acting.NODES, power_cuts=not given.no_power_cuts)
    print(
        f"Slurm {given.slurm_release}: {story.starts} jobs, {len(story.kills)} kills, --seed {given.seed}", flush=True
    )
    verdicts = {"--ipus": _play(given.slurm_release, given.cgroups, story, ipus=True)}
    if not given.without_control:
        verdicts["plain"] = _play(given.slurm_release, given.cgroups, story.without_ours(), ipus=False)
    print(table({name: verdict.counts for name, verdict in verdicts.items()}))
    for name, verdict in verdicts.items():
        print(f"not as its user wanted, of {name} jobs: {len(verdict.lost)}", *verdict.lost, sep="\n    ")
        print(f"wrong with {name} jobs: {len(verdict.faults)}", *verdict.faults, sep="\n    ", flush=True)
    return 1 if verdicts["--ipus"].faults else 0


def _play(release: str, cgroups: str, story: Story, *, ipus: bool) -> Verdict:
    begun = time.monotonic()
    with (acting.with_ipus if ipus else acting.plain)(release, cgroups) as stage:
        seen = stage.play(story)

    verdict = judge(story, seen)
    verdict.counts["seconds"] = round(time.monotonic() - begun)
    return verdict


def table(columns: dict[str, Counter[str]]) -> str:
    """How often what happened, a column each."""
    names = list(dict.fromkeys(name for counts in columns.values() for name in counts))
    rows: list[Sequence[str]] = [("", *columns)]
    rows += [(name, *(str(counts[name]) for counts in columns.values())) for name in names]
    return "\n".join(f"{row[0]:24}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
