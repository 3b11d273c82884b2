"""Which guards a run takes out: a seeded tenth, and those near what has changed lately.

All of them take a quarter of an hour. A tenth at each commit takes each guard out once in some ten commits, and a guard
is most likely to be lost where somebody works.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from tests.guards.guard import Guard
from tests.guards.guards import GUARDS
from tests.mutation.copies import ROOT
from tests.sampling import rank, tree, whole

SHARE = 0.1
AT_MOST = 150
COMMITS = 50
TEST = "tests/guards/test_guards.py::test_a_guard_is_missed["


def select(
    guards: Iterable[Guard], seed: str, changed: set[str], share: float = SHARE, at_most: int = AT_MOST
) -> list[Guard]:
    """Those to take out, in the order of the table: near what has changed, then those that the seed draws.

    Args:
        guards: all there are.
        seed: whether a guard is drawn depends on this and on its slug alone, not on the other guards.
        changed: paths below the checkout.
        share: what part is drawn.
        at_most: if there are more, the seed draws among them.
    """
    known = list(guards)
    ranks = {guard.slug: rank(guard.slug, seed) for guard in known}
    wanted = [guard for guard in known if is_near(guard, changed) or ranks[guard.slug] < share]
    wanted.sort(key=lambda guard: (not is_near(guard, changed), ranks[guard.slug]))
    taken = {guard.slug for guard in wanted[:at_most]}
    return [guard for guard in known if guard.slug in taken]


def is_near(guard: Guard, changed: set[str]) -> bool:
    """Whether its source or one of its tests is in a file that has changed."""
    files = {test.partition("::")[0] for test in guard.tests}
    return not changed.isdisjoint({f"src/moorings/{guard.file}", *files})


def load_changed(commits: int = COMMITS) -> set[str]:
    """The files that differ from that many commits ago, or from the first commit that is here."""
    lines = _git("rev-list", "--first-parent", f"--max-count={commits + 1}", "HEAD")
    return set(_git("diff", "--name-only", lines[-1])) if lines else set()


def _git(*arguments: str) -> list[str]:
    told = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return told.stdout.splitlines()


def selected() -> Sequence[Guard]:
    """Those that this run takes out."""
    return GUARDS if whole() else select(GUARDS, tree(), load_changed())


def describe(n_run: int, n_known: int, n_changed: int, seed: str) -> str:
    """The line of the report; ``n_changed`` is how many are near what has changed."""
    if n_run == n_known:
        return f"guards: all {n_known}"
    return (
        f"guards: {n_run} of {n_known} (a tenth by seed {seed[:12]}, and {n_changed} changed in the last {COMMITS} "
        f"commits, {AT_MOST} at most); make test-all runs all"
    )
