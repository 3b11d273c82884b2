"""A job is handed in to the root daemon of a machine that people share, by its person; the kernel says who that is.

The daemon starts only what was handed in. The controller is given the id of the entry, and says when.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.privileged import places

ANSWER_S = 30.0
ANSWER_BYTES_MAX = 1 << 20
BUSY_TRIES, BUSY_S = 20, 0.25  # the daemon refuses or closes what is too much of one person at once


def submit_socket(api_socket: str) -> Path:
    """The root daemon's socket for people, of the machine with that socket of the controller."""
    return Path(api_socket).parent.parent / places.SUBMIT


def hand_in(path: Path, job: object) -> str:
    """Hand a job in; returns the entry's id once it is on the daemon's disk.

    Args:
        path: the daemon's socket.
        job: the job, as plain data.

    Raises:
        MooringsError: ``spool.refused``; ``engine.unavailable``: the daemon cannot be asked.
    """
    return str(_call(path, {"op": "spool", "job": job})["entry"])


def hand_in_copies(path: Path, job: object, count: int) -> tuple[str, ...]:
    """Hand in the job of an array once for each of its runs; returns the entries' ids. All of them, or none.

    An entry is for one run. Which element that is, its supervisor finds by the id of the run.

    Raises:
        MooringsError: as ``hand_in``.
    """
    entries: list[str] = []
    try:
        for _ in range(count):
            entries.append(hand_in(path, job))  # noqa: PERF401 - those before are taken back
    except MooringsError:
        withdraw(path, *entries)
        raise
    return tuple(entries)


def withdraw(path: Path, *entries: str) -> None:
    """Take back jobs that no run was made of; what cannot be is forgotten by the daemon after a day."""
    for entry in entries:
        with contextlib.suppress(MooringsError):
            _call(path, {"op": "withdraw", "entry": entry})


def _call(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    for _ in range(BUSY_TRIES):
        try:
            answer = exchange(path, request, ANSWER_S, ANSWER_BYTES_MAX)
            found = dict(json.loads(answer)) if answer else None
        except (
            BrokenPipeError,
            ConnectionResetError,
            BlockingIOError,
        ):  # closed before it was read, or not accepted yet
            found = None
        except (OSError, ValueError) as error:
            hint = "is it running? The machine's admin starts it with 'moor up --system'"
            detail = f"this machine's root daemon cannot be asked at {path}: {format_cause(error)}"
            raise MooringsError("engine.unavailable", detail, hint=hint, retryable=True) from error
        if found is None or found.get("error") == "daemon.busy":
            time.sleep(BUSY_S)
        elif "error" in found:
            raise MooringsError("spool.refused", str(found.get("detail", "")), hint=str(found.get("hint", "")))
        else:
            return found
    detail = "this machine's root daemon answers too many other requests of yours"
    raise MooringsError("engine.unavailable", detail, hint="try again in a moment", retryable=True)


def exchange(path: Path, request: Mapping[str, Any], within_s: float, bytes_max: int) -> bytes:
    """The root daemon's answer to one request; empty: it closed the connection without one.

    Args:
        path: its socket: that of people, or the controller's.
        request: as plain data.
        within_s: for each step of the exchange.
        bytes_max: of the answer; what comes after some more than that is left unread.

    Raises:
        OSError: it cannot be asked.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(within_s)
        connected.connect(str(path))
        connected.sendall(json.dumps(request).encode())
        connected.shutdown(socket.SHUT_WR)
        answer = b""
        while len(answer) <= bytes_max and (part := connected.recv(1 << 16)):
            answer += part
        return answer
