"""What a run of the tests leaves out: ``make test`` runs a sample of what is dear, ``make test-all`` runs everything.

The sample is drawn by the tree that is tested, ``HEAD^{tree}``: the same on every machine, and another one with each
commit, so that in time everything runs. How large a share of a folder runs stands in ``tests/gates.toml``; tests marked
``smoke`` always run, those marked ``heavy`` never. Without ``MOORINGS_TESTS=sample`` nothing is left out: a test that
is named by hand runs.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("gates.toml")

# Read once, permanently: the tests' own surroundings have no variables of ours.
_SAMPLED = os.environ.get("MOORINGS_TESTS") == "sample"


@dataclass(frozen=True, slots=True)
class Row:
    """What the table says of a folder or a file.

    Attributes:
        cpu_s: the seconds of a processor that it may take in ``make test``, of a machine on a good hour.
        share: how much of it ``make test`` runs, from 0 to 1; None: as the folder around it.
    """

    cpu_s: float | None = None
    share: float | None = None


def whole() -> bool:
    """Whether nothing is to be left out."""
    return not _SAMPLED


@functools.cache
def tree() -> str:
    """The seed: the name of the tree that is tested; zeros in an archive that was unpacked without git."""
    return "".join(git("rev-parse", "HEAD^{tree}")) or "0" * 40


def git(*arguments: str) -> list[str]:
    """What git says, by lines; nothing, where there is no git.

    Raises:
        RuntimeError: git refuses. Its sample would be the same for ever.
    """
    if not (ROOT / ".git").exists():
        return []
    ours = ("-c", f"safe.directory={ROOT}")  # root tests another user's checkout, in a container
    done = subprocess.run(("git", *ours, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def rank(name: str, seed: str) -> float:
    """A number from 0 up to 1, drawn by the seed for that name alone; where a share is drawn, those below it."""
    return int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:6]) / 2**48


def examples(count: int) -> int:
    """How many examples a property is tried on: that many, or a third of them in a sample."""
    return count if whole() else max(10, count // 3)


@functools.cache
def table() -> Mapping[str, Row]:
    """The table, by path below ``tests``."""
    read = tomllib.loads(TABLE.read_text("utf-8"))
    return {path: Row(**row) for path, row in read.items()}


def share_of(path: str, rows: Mapping[str, Row]) -> float:
    """The share of a file below ``tests``: that of the longest path of the table which leads to it."""
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        row = rows.get("/".join(parts[:length]))
        if row is not None and row.share is not None:
            return row.share
    return 1.0


def divide(items: Iterable[pytest.Item], seed: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Which tests run, and which are left out."""
    run: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        share = 0.0 if is_heavy(item) else share_of(str(item.path.relative_to(ROOT / "tests")), table())
        kept = share >= 1 or item.get_closest_marker("smoke") is not None or rank(item.nodeid, seed) < share
        (run if kept else left).append(item)
    return run, left


def is_heavy(item: pytest.Item) -> bool:
    """Whether it is no part of any sample."""
    return item.get_closest_marker("heavy") is not None


class Sampling:
    """The plugin that leaves tests out, and says so."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._heavy = 0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):  # of xdist: the workers collect, another process reports
            session.config.workeroutput["sampled"] = [(*key, count) for key, count in self._counts.items()]
            session.config.workeroutput["heavy"] = self._heavy

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        output = getattr(node, "workeroutput", {})
        told = output.get("sampled", ())  # each has collected the same; one may have died
        self._heavy = self._heavy or output.get("heavy", 0)
        self._counts = self._counts or Counter({(folder, kept): count for folder, kept, count in told})

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        run, left = divide(items, tree())
        self._heavy = sum(map(is_heavy, items))
        for some, kept in ((run, True), (left, False)):
            self._counts.update((item.nodeid.split("/")[1], kept) for item in some)
        items[:] = run
        if left:
            config.hook.pytest_deselected(items=left)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"sample of tree {tree()[:12]}; make test-all runs everything")
        if self._heavy:
            terminalreporter.write_line(f"{self._heavy} heavy tests were not run: make test-all, or pytest -m heavy")
        for folder in sorted({folder for folder, kept in self._counts if not kept}):
            run, left = self._counts[folder, True], self._counts[folder, False]
            terminalreporter.write_line(
                f"  tests/{folder}: {run} of {run + left} tests ({100 * run / (run + left):.0f} %)"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what the sample has not; for ``tests/conftest.py``."""
    if _SAMPLED:
        config.pluginmanager.register(Sampling(), "moorings-sampling")
