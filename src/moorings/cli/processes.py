"""The controller on this machine as a process: started apart from the terminal, known again by its start time, stopped.

The controller writes ``controller.json`` into its data folder while it runs. A process id alone would not do: after a
crash another program may have it, so the start ticks of ``/proc/<pid>/stat`` must agree.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from moorings.cli.configuration import DEFAULT_CONTEXT
from moorings.core.errors import MooringsError
from moorings.wire.errors import ERRORS

LOG_NAME = "controller.log"
RECORD_NAME = "controller.json"
LOG_LINES_SHOWN = 12
LOOK_AGAIN_S = 0.05  # a process's start and end cannot be awaited from outside

_CODE = re.compile(r"\(([a-z_]+\.[a-z_]+)\)$")


@dataclass(frozen=True, slots=True)
class Running:
    """A controller that runs here."""

    pid: int
    start_ticks: int
    url: str
    version: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How a controller is to be started.

    Attributes:
        data: its data folder.
        host: address to listen on.
        port: port to listen on.
        pools: its pools file, or None for its own default.
        credentials: where its first access key goes.
        context: under which name.
    """

    data: Path
    host: str
    port: int
    pools: Path | None
    credentials: Path
    context: str = DEFAULT_CONTEXT


def build_argv(launch: Launch) -> list[str]:
    """The controller's command line; no secret is on it."""
    argv = [sys.executable, "-m", "moorings.app.controller", "--data", str(launch.data)]
    argv += ["--host", launch.host, "--port", str(launch.port), "--credentials", str(launch.credentials)]
    argv += ["--context", launch.context] if launch.context != DEFAULT_CONTEXT else []
    return argv + (["--pools", str(launch.pools)] if launch.pools is not None else [])


def parse_record(text: str) -> Running | None:
    """The controller that a ``controller.json`` names; None if it cannot be read."""
    try:
        told = json.loads(text)
        return Running(int(told["pid"]), int(told["startTicks"]), str(told["url"]), str(told["version"]))
    except (ValueError, KeyError, TypeError):
        return None


def parse_start_ticks(stat: str) -> int:
    """Field 22 of ``/proc/<pid>/stat`` (proc(5)): when it started, in clock ticks since boot.

    The second field is the program's name and may hold spaces and brackets, so what is behind its end is counted.
    """
    return int(stat.rpartition(")")[2].split()[19])


def find_running(data: Path) -> Running | None:
    """The controller that uses a data folder now."""
    try:
        running = parse_record((data / RECORD_NAME).read_text(encoding="utf-8"))
    except OSError:
        return None
    return running if running is not None and is_alive(running) else None


def is_alive(running: Running) -> bool:
    """Whether that very process lives (a zombie does not)."""
    try:
        stat = Path(f"/proc/{running.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return parse_start_ticks(stat) == running.start_ticks and stat.rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError, IndexError):
        return False


def start(launch: Launch) -> subprocess.Popen[bytes]:
    """Start a controller in a session of its own, its output in ``controller.log``.

    Raises:
        MooringsError: ``config.invalid``: the data folder cannot be used.
    """
    try:
        launch.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        launch.credentials.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(launch.data / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MooringsError(
            "config.invalid",
            f"the data folder cannot be used: {error}",
            hint="name another with --data or MOORINGS_DATA",
        ) from error
    try:
        return subprocess.Popen(
            build_argv(launch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(log)


def await_record(process: subprocess.Popen[bytes], data: Path, limit_s: float) -> Running | None:
    """The started controller once it has said where it listens; None if the time is up.

    Raises:
        MooringsError: its own error, with the last lines of its log: it died. ``controller.running``:
            another was quicker.
    """
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        running = find_running(data)
        if running is not None and running.pid == process.pid:
            return running
        code = process.poll()
        if code is not None:
            if running is not None:
                raise MooringsError(
                    "controller.running", f"another controller uses {data}: process {running.pid}, {running.url}"
                )
            raise died(data, code)
        time.sleep(LOOK_AGAIN_S)
    return None


def died(data: Path, code: int) -> MooringsError:
    """What to say of a controller that ended while it was being started: its own error, else its last words."""
    lines = last_lines(data / LOG_NAME, LOG_LINES_SHOWN)
    told = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    hint = next((line.removeprefix("hint: ") for line in reversed(lines) if line.startswith("hint: ")), "")
    how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
    detail = told or f"its last words: {' | '.join(lines) or 'none'}"
    log = f"all of its log: {data / LOG_NAME}"
    named = _CODE.search(told)
    return MooringsError(
        named[1] if named and named[1] in ERRORS else "internal.error",
        f"the controller ended {how}: {detail}",
        hint=f"{hint}; {log}" if hint else log,
    )


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log; empty if there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except OSError:
        return []


def stop(running: Running, limit_s: float) -> bool:
    """Ask a controller to end; whether it has within the limit.

    Raises:
        MooringsError: ``auth.denied``: it belongs to somebody else.
    """
    try:
        os.kill(running.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise MooringsError("auth.denied", f"process {running.pid} belongs to another user") from error
    until = time.monotonic() + limit_s
    while is_alive(running):
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True
