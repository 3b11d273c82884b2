"""Which guards a run takes out: a seeded tenth, and those near what has changed lately.

All of them take a quarter of an hour. A tenth at each commit takes each guard out once in some ten commits, and a guard
is most likely to be lost where somebody works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.guards.guard import Guard
from tests.guards.guards import GUARDS
from tests.sampling import git, rank, tree, whole

SHARE = 0.1
AT_MOST = 100
COMMITS = 50
TEST = "tests/guards/test_guards.py::test_a_guard_is_missed["


def select(
    guards: Iterable[Guard], seed: str, changed: set[str], share: float = SHARE, at_most: int = AT_MOST
) -> list[Guard]:
    """Those to take out, in the order of the table: those that the seed draws, then near what has changed.

    Args:
        guards: all there are.
        seed: whether a guard is drawn depends on this and on its slug alone, not on the other guards.
        changed: paths below the checkout.
        share: what part is drawn.
        at_most: if more are near, the seed draws among them.
    """
    known = list(guards)
    ranks = {guard.slug: rank(guard.slug, seed) for guard in known}
    wanted = [guard for guard in known if is_near(guard, changed) or ranks[guard.slug] < share]
    wanted.sort(key=lambda guard: ranks[guard.slug])  # the drawn ones have the lowest
    taken = {guard.slug for guard in wanted[:at_most]}
    return [guard for guard in known if guard.slug in taken]


def is_near(guard: Guard, changed: set[str]) -> bool:
    """Whether its source or one of its tests is in a file that has changed."""
    files = {test.partition("::")[0] for test in guard.tests}
    return not changed.isdisjoint({f"src/moorings/{guard.file}", *files})


def load_changed(commits: int = COMMITS) -> set[str]:
    """The files that differ from that many commits ago, or from the first commit that is here."""
    lines = git("rev-list", "--first-parent", f"--max-count={commits + 1}", "HEAD")
    new = git("ls-files", "--others", "--exclude-standard")
    return {*git("diff", "--name-only", "--no-renames", lines[-1]), *new} if lines else set()


def selected() -> Sequence[Guard]:
    """Those that this run takes out."""
    return GUARDS if whole() else select(GUARDS, tree(), load_changed())


def drawn() -> Sequence[Guard]:
    """Those of them that the seed draws; all in a whole run."""
    return GUARDS if whole() else select(GUARDS, tree(), set())


def describe(n_run: int, n_known: int, n_near: int, n_commits: int, seed: str) -> str:
    """The line of the report; ``n_near`` are near what has changed in the last ``n_commits``."""
    if n_run == n_known:
        return f"guards: all {n_known}"
    return (
        f"guards: {n_run} of {n_known} (a tenth by seed {seed[:12]}; {n_near} are near what changed in the last "
        f"{n_commits} commits; {AT_MOST} at most); make test-all runs all"
    )


def count_commits() -> int:
    """How many of the last commits are here: a shallow clone has fewer."""
    return max(0, len(git("rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD")) - 1)
