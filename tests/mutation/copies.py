"""A copy of the package in which something is changed, and the tests that are run over it.

A copy, because the source must stay as it is while others work on it; on disk, because migrations and the supervisors
that tests start are read from there. Swapping functions in a running process was refused: it reaches neither, and would
prove something of the swap.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.mutation import keeper
from tests.mutation.source import Change, apply, locate
from tests.waiting import patient

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "moorings"
ENDED_WITH_FAILURES = 1  # of pytest; 2 to 5 mean that nothing was tested
LIMIT_S = patient(110)

# How a test says no. A NameError, or a module that cannot be imported, says only that the replacement makes no sense.
SAYS_NO = frozenset({"AssertionError", "Failed", "MooringsError", "TimeoutError"})


@dataclass(frozen=True, slots=True)
class Failure:
    """One test that failed: which, in which of its phases, and the names of its exception's classes."""

    test: str
    when: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What pytest said over the changed package.

    Attributes:
        status: its exit status.
        failures: the tests that failed.
        output: the end of what it printed.
        ended: what it left behind and was ended, a line each.
        cpu_s: what it took of a processor, with the processes that it started and waited for.
    """

    status: int
    failures: tuple[Failure, ...]
    output: str
    ended: tuple[str, ...] = ()
    cpu_s: float = 0.0

    def misses(self, test: str) -> bool:
        """Whether that test (or one of its parameters' variants) noticed that something is missing."""
        return self.status == ENDED_WITH_FAILURES and any(
            failure.test.startswith(test) and failure.when != "setup" and SAYS_NO.intersection(failure.kinds)
            for failure in self.failures
        )


class Copy:
    """A copy of the package, and the process that runs tests over it; ``close`` it, or enter it as a context.

    Args:
        folder: where to.
        environment: variables for the tests, more than this process has.

    Attributes:
        path: what is made there: a folder for ``PYTHONPATH`` with ``moorings`` in it.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = environment or {}
        self.path = folder / "src"
        shutil.copytree(PACKAGE, self.path / "moorings")  # with the compiled files: they carry the sources' times
        self._written_s = int(time.time())
        self._zygote: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that runs tests."""
        if self._zygote is not None:
            with self._zygote:
                assert self._zygote.stdin is not None
                self._zygote.stdin.close()
                self._zygote.wait()
            self._zygote = None

    @contextlib.contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """The change stands in the copy for as long as the block takes, where ``locate`` finds its place.

        Raises:
            ChangeMovedError: nothing was changed.
        """
        package = self.path / "moorings"  # not the source: the copy is of one moment, and stays so
        change = locate(package, change)
        path = package / change.file
        text = path.read_text("utf-8")
        changed = apply(text, change)
        try:
            self._write(path, changed)
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        self._written_s += 1  # by whole seconds Python knows whether what it has compiled is of this text
        os.utime(path, (self._written_s, self._written_s))

    def test(
        self,
        *tests: str,
        limit_s: float = LIMIT_S,
        cpu_s: float = LIMIT_S,
        options: Sequence[str] = ("--timeout=60",),
    ) -> Outcome:
        """Run tests over the copy as it is now; nothing that they started is left."""
        told, printed = self._folder / "failures.json", self._folder / "output"
        told.unlink(missing_ok=True)
        asked = {"tests": tests, "options": options, "limit_s": limit_s, "cpu_s": cpu_s, "folder": str(self._folder)}
        answer = self._ask(asked)
        status, spent_s = int(answer["status"]), float(answer["cpu_s"])
        output = printed.read_text("utf-8", "replace")
        ended = tuple(line for line in output.splitlines() if line.startswith(keeper.ENDED))
        if not told.exists():  # it took too long, or the package cannot be imported
            return Outcome(status, (), output[-8000:], ended, spent_s)
        report = json.loads(told.read_text("utf-8"))
        assert report["package"] == "" or Path(report["package"]).is_relative_to(self.path), report["package"]
        if status != keeper.TOO_LONG:  # pytest may still fail while it tidies up, because of what a failed test left
            status = int(report["status"])
        failures = tuple(Failure(one["test"], one["when"], tuple(one["kinds"])) for one in report["failures"])
        return Outcome(status, failures, output[-8000:], ended, spent_s)

    def _ask(self, asked: dict[str, object]) -> dict[str, Any]:
        if self._zygote is None:
            self._zygote = self._start()
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(asked) + "\n")
        self._zygote.stdin.flush()
        answer = self._zygote.stdout.readline()
        assert answer, f"the process that runs tests over the copy has ended: {self._zygote.wait()}"
        told: dict[str, Any] = json.loads(answer)
        return told

    def _start(self) -> subprocess.Popen[str]:
        # Tests that are named here all run, and without compiled files they would take twice as long.
        left_out = re.compile("(PYTEST_|COV_).*|MOORINGS_TESTS|PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not left_out.fullmatch(name)}
        if "PYTHONDONTWRITEBYTECODE" in os.environ:
            kept["PYTHONPYCACHEPREFIX"] = str(self._folder / "compiled")
        mine = {
            "MOORINGS_TESTS_PATIENCE": "0.25",  # many waits fail here
            "PYTHONPATH": f"{self.path}:{ROOT}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
        }
        return subprocess.Popen(
            (sys.executable, "-m", "tests.mutation.zygote"),
            env={**kept, **mine, **self._environment},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
