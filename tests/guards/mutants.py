"""A copy of the package in which one guard at a time is missing, and the tests that are run over it.

A copy, because the source must stay as it is while others work on it; a process of its own, because what is imported
once stays imported; and whatever that process starts is ended with it (``keeper``), because a test that fails half-way
cleans nothing up. Swapping functions in the running process was refused: it reaches neither migrations nor the
supervisors that tests start, and would prove something of the swap.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.guards import keeper
from tests.guards.guard import Guard

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "moorings"
ENDED_WITH_FAILURES = 1  # of pytest; 2 to 5 mean that nothing was tested
PATIENCE_S = 110.0
_ENDING_S = 30.0  # for ``keeper`` to end what is left

# How a test says no. A NameError, or a module that cannot be imported, says only that the replacement makes no sense.
SAYS_NO = frozenset({"AssertionError", "Failed", "MooringsError", "TimeoutError"})

_KEEPER = (sys.executable, "-I", "-S", keeper.__file__)

# Only these plugins: the others are most of the time that a short test takes.
_PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "--timeout=60", "--hypothesis-profile=guards", "--tb=short"),
    *("-p", "no:cacheprovider", "-p", "anyio", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"),
    *("-p", "tests.guards.telling"),
)


class GuardMovedError(AssertionError):
    """The source no longer has the words that are to be taken out, or has them twice."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One test that failed: which, and the names of its exception's classes."""

    test: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What pytest said over the changed package.

    Attributes:
        status: its exit status.
        failures: the tests that failed.
        output: the end of what it printed.
        ended: what it left behind and was ended, a line each.
    """

    status: int
    failures: tuple[Failure, ...]
    output: str
    ended: tuple[str, ...] = ()

    def misses(self, test: str) -> bool:
        """Whether that test (or one of its parameters' variants) noticed that something is missing."""
        return self.status == ENDED_WITH_FAILURES and any(
            failure.test.startswith(test) and SAYS_NO.intersection(failure.kinds) for failure in self.failures
        )


class Copy:
    """A copy of the package.

    Args:
        folder: where to.

    Attributes:
        path: what is made there: a folder for ``PYTHONPATH`` with ``moorings`` in it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "src"
        self._told = folder / "told.json"
        self._storage = folder / "hypothesis"
        shutil.copytree(PACKAGE, self.path / "moorings")  # with the compiled files: they carry the sources' times

    def without(self, guard: Guard) -> contextlib.AbstractContextManager[None]:
        """The guard is missing for as long as the block takes; raises as ``changed`` does."""
        return self.changed(guard.what, guard.file, guard.old, guard.new)

    @contextlib.contextmanager
    def changed(self, what: str, file: str, old: str, new: str) -> Iterator[None]:
        """Other words stand in that file for as long as the block takes.

        Raises:
            GuardMovedError: nothing was changed.
        """
        path = self.path / "moorings" / file  # not the source: the copy is of one moment, and stays so
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise GuardMovedError(
                f"{file} has {text.count(old)} times what guards {what!r}: the guard moved. Put the words that are "
                f"there now into the table of guards, once and whole:\n{old}"
            )
        try:
            self._write(path, text.replace(old, new))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):  # it may be of the same second
            compiled.unlink()

    def test(self, *tests: str) -> Outcome:
        """Run tests over the copy as it is now; nothing that they started is left."""
        self._told.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        done = subprocess.run(
            (*_KEEPER, str(PATIENCE_S), *_PYTEST, *tests),
            env=kept
            | {
                "PYTHONPATH": str(self.path),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "GUARDS_TOLD": str(self._told),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(self._storage),
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S + _ENDING_S,
            check=False,
        )
        output = done.stdout[-6000:] + done.stderr[-2000:]
        assert done.returncode != keeper.TOO_LONG, f"it took more than {PATIENCE_S:g} s:\n{output}"
        assert self._told.exists(), output
        told = json.loads(self._told.read_text("utf-8"))
        assert Path(told["package"]).is_relative_to(self.path), f"{told['package']} was tested, not {self.path}"
        failures = tuple(Failure(one["test"], tuple(one["kinds"])) for one in told["failures"])
        ended = tuple(line for line in done.stderr.splitlines() if line.startswith(keeper.ENDED))
        return Outcome(done.returncode, failures, output, ended)
