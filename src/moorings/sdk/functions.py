"""Functions that run as jobs: the function, its arguments and its results lie in files that only their person can use.

::

    <folder>/                      0700
        <run or array> -> <entry>  so that another program finds the results by the run's id
        <entry>/                   0700
            call.json              the submitter's Python and its import path
            function               pickled
            arguments-<index>      pickled, for each element of an array; one run has the index 0
            result-<index>-<rank>  a line of JSON, and the pickled value or exception of one task

Nothing of this goes through the controller or onto a command line but the entry's path. A pickle is code: it is loaded
only from a regular file of this user that no other user can write. The nodes see this folder under the same path.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import secrets
import shutil
import stat
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from moorings.core.model.errors import MooringsError
from moorings.engines.run_folder import RunFolder
from moorings.files import write_atomically

TASK_PROGRAM = Path(__file__).with_name("function_task.py")
KEEP_ANSWERED_S = 30 * 86_400.0  # after the last result of all, as the folders of runs on Slurm
KEEP_S = 366 * 86_400.0  # without all results: no time limit is longer

_ENTRY = re.compile(r"[0-9a-f]{16}")
VALUE, EXCEPTION, FAULT = "value", "exception", "fault"  # the outcomes of a call; FAULT: what happened cannot be sent


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How one call of a function ended.

    Attributes:
        kind: ``VALUE``, ``EXCEPTION`` or ``FAULT``.
        value: the value, or the exception; None of a fault.
        text: the remote traceback, or what cannot be sent and why.
    """

    kind: str
    value: Any = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class FunctionEntry:
    """The folder of one submission.

    Attributes:
        path: absolute.
    """

    path: Path

    @property
    def command(self) -> tuple[str, ...]:
        """The command of its job: this very Python, which has the same packages."""
        return (sys.executable, "-u", str(TASK_PROGRAM), str(self.path))

    def save(self, function: Callable[..., object], calls: Sequence[Sequence[object]], tasks: int) -> None:
        """Write function and arguments.

        Args:
            function: the function.
            calls: the arguments of each call.
            tasks: the tasks of each run; each calls the function.

        Raises:
            MooringsError: ``function.refused``: it cannot be pickled, or the folder not be written.
        """
        pickled = [_dump(function, "the function"), *(_dump(tuple(call), "an argument") for call in calls)]
        header = {
            "python": list(sys.version_info[:2]),
            "implementation": sys.implementation.name,
            "path": [os.path.abspath(folder) for folder in sys.path],  # noqa: PTH100 - "" is the current folder
            "results": len(calls) * tasks,
        }
        try:
            _make_private(self.path.parent)
            self.path.mkdir(mode=0o700)
            _write(self.path / "call.json", json.dumps(header).encode())
            _write(self.path / "function", pickled[0])
            for index, content in enumerate(pickled[1:]):
                _write(self.path / f"arguments-{index}", content)
            _prune(self.path.parent)
        except OSError as error:
            self.remove()
            raise _refused(f"{self.path} cannot be written: {error.strerror}") from error

    def link(self, run: str) -> None:
        """Let a run or an array be found by its id.

        Raises:
            MooringsError: ``engine.rejected``: this cannot be one.
        """
        if not RunFolder.id_pattern.fullmatch(run):  # the controller says it
            raise MooringsError("engine.rejected", f"{run[:80]!r} cannot be the id of a run")
        with contextlib.suppress(OSError):  # this program has the path
            (self.path.parent / run).symlink_to(self.path.name)

    def remove(self) -> None:
        """Remove it: there is no run of it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def read_outcome(self, index: int, rank: int) -> CallOutcome | None:
        """How a call ended; None: it has not.

        Raises:
            MooringsError: ``function.refused``: the file may be another user's.
        """
        try:
            content = read_own(self.path / f"result-{index}-{rank}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(f"a result in {self.path} cannot be read: {error.strerror or error}") from error
        line, _, pickled = content.partition(b"\n")
        header: Mapping[str, str] = json.loads(line)
        if header["kind"] == FAULT:
            return CallOutcome(FAULT, text=header["text"])
        try:
            return CallOutcome(header["kind"], pickle.loads(pickled), header["text"])  # noqa: S301 - this user's own file
        except Exception as error:
            what = f"what the function returned cannot be loaded here: {type(error).__name__}: {error}"
            return CallOutcome(FAULT, text="\n".join(filter(None, (what, header["text"]))))


def new_entry(folder: Path) -> FunctionEntry:
    """A path for a new submission, below the folder of functions; nothing is written yet."""
    return FunctionEntry(folder.absolute() / secrets.token_hex(8))


def find_entry(folder: Path, run: str) -> FunctionEntry | None:
    """The submission of a run or an array; None: it was not made of a function, or elsewhere.

    Its results are code: it must be in this folder, whatever the controller says its id is, and this user's alone.
    """
    if not RunFolder.id_pattern.fullmatch(run):
        return None
    folder = folder.absolute()
    try:
        path = folder / (folder / run).readlink().name
        return FunctionEntry(path) if _ENTRY.fullmatch(path.name) and _is_private(path) else None
    except OSError:
        return None


def call_function(path: Path, index: int, rank: int) -> int:
    """Call the function of an entry in a task of its job; returns the exit code.

    The result of an earlier attempt is removed first: only the last one's counts.

    Args:
        path: the entry.
        index: of the arguments.
        rank: of the task.
    """
    result = path / f"result-{index}-{rank}"
    result.unlink(missing_ok=True)
    try:
        function, arguments = (pickle.loads(read_own(path / name)) for name in ("function", f"arguments-{index}"))  # noqa: S301 - this user's own files
        value = function(*arguments)
    except BaseException as error:
        own = error.__traceback__.tb_next if error.__traceback__ is not None else None
        text = "".join(traceback.format_exception(type(error), error, own))
        sys.stderr.write(text)
        if isinstance(error, Exception):
            _write_outcome(result, EXCEPTION, error.with_traceback(None), text)
        else:  # SystemExit, say: raised again, it would end the submitter
            _write_outcome_fault(result, text)
        return 1
    return 0 if _write_outcome(result, VALUE, value, "") else 1


def read_own(path: Path) -> bytes:
    """The content of a regular file of this user that no other user can write.

    Raises:
        OSError: it is none, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{path} may be written by another user: a pickle is code")
        return file.read()


def _write_outcome(path: Path, kind: str, value: object, text: str) -> bool:
    """Write a value or an exception; if it cannot be pickled, that. Returns whether it could."""
    try:
        pickled = _load_cloudpickle().dumps(value)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        said = f"the function returned a {type(value).__qualname__}, which cannot be pickled: {why}"
        _write_outcome_fault(path, text or said)
        if kind == VALUE:
            sys.stderr.write(f"{said}\n")
        return False
    _write(path, json.dumps({"kind": kind, "text": text}).encode() + b"\n" + pickled)
    return True


def _write_outcome_fault(path: Path, text: str) -> None:
    _write(path, json.dumps({"kind": FAULT, "text": text}).encode() + b"\n")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content, mode=0o600)


def _dump(value: object, what: str) -> bytes:
    try:
        return bytes(_load_cloudpickle().dumps(value))
    except MooringsError:
        raise
    except Exception as error:
        raise _refused(f"{what} cannot be pickled: {type(error).__name__}: {error}") from error


def _load_cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install 'moorings[python]'; commands need no further package"
        raise _refused("functions are sent by cloudpickle, which is not installed here", hint) from error
    module: ModuleType = cloudpickle
    return module


def _refused(detail: str, hint: str = "") -> MooringsError:
    return MooringsError("function.refused", detail, hint=hint)


def _is_private(folder: Path) -> bool:
    """Whether it is a folder that only this user can write; OSError: it is not there."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise _refused(f"{folder} is no folder that only you can write", f"chmod 700 {folder}")


def _prune(folder: Path) -> None:
    """Remove old entries, and the links to them."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if path.is_symlink():
                if not path.exists():
                    path.unlink()
                continue
            age_s = now - path.stat().st_mtime
            if age_s > KEEP_S or (age_s > KEEP_ANSWERED_S and _is_answered(path)):
                shutil.rmtree(path)


def _is_answered(entry: Path) -> bool:
    wanted: int = json.loads(read_own(entry / "call.json"))["results"]
    return sum(path.name.startswith("result-") for path in entry.iterdir()) >= wanted
