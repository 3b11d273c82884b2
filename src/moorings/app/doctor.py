"""``python -m moorings.app.doctor``: checks the controller's machine for ``moor doctor``; only reads.

One line of JSON a finding, written as soon as it is known, so that the reader has the others when a disk hangs. Each
check runs in a thread; a thread is awaited for at most ``CHECK_S``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from moorings.app.backup_create import DATABASE, read_database_state
from moorings.app.effective_settings import read_effective_settings
from moorings.app.folders import PEPPER_BYTES, PROTECT_FILE, RESTORE_PENDING_FILE
from moorings.app.host_checks import (
    check_controller,
    check_database,
    check_files,
    check_pepper,
    check_private,
    check_restore,
    check_revision,
    check_runs,
    check_space,
)
from moorings.app.recovery import protection_reason
from moorings.app.settings import Settings
from moorings.app.tls import is_loopback
from moorings.app.wiring import read_pools
from moorings.cli.processes import LOCK_NAME, ControllerProcess, find_lock_holders
from moorings.client.keyfiles import key_problem
from moorings.core.model.errors import MooringsError
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN, CheckStatus, Finding, failed_finding
from moorings.doctor.threads import run_concurrently
from moorings.local.live_runs import partitions_in_use
from moorings.local.records import RecordUnreadableError
from moorings.pki.checks import check_tls
from moorings.store.upgrade import HEAD
from moorings.terminal.configuration import RECORD_NAME
from moorings.wire.codec import encode

CHECK_S = 4.0
QUICK_CHECK_S = 3.0
_STEPS = 10_000  # of SQLite's machine, between checks of the clock


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the findings."""
    parser = ArgumentParser(prog="moorings-doctor")
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args(sys.argv[1:] if arguments is None else arguments).data.absolute()
    for finding in run_checks(data):
        sys.stdout.write(json.dumps(encode(finding)) + "\n")
        sys.stdout.flush()
    return 0


def run_checks(data: Path) -> Iterator[Finding]:
    """The findings, in the order in which they are known; within ``CHECK_S`` or little more."""
    if not data.exists():
        yield Finding("host.folder", SKIP, f"there is no {data}: no controller has run here", "moor up")
        return
    try:
        settings, running = read_effective_settings(data)
    except MooringsError as error:
        yield failed_finding("host.settings", error)
        return
    yield Finding("host.settings", PASS, "they can be used")
    parts = {name: partial(_run_check, name, check) for name, check in _checks(data, settings, running).items()}
    for _, finding in run_concurrently(parts, CHECK_S, _late_finding):
        yield finding


def _late_finding(name: str) -> Finding:
    return Finding(name, FAIL, f"no answer in {CHECK_S:g} s", "does its disk hang? see the kernel's log")


def _run_check(name: str, check: Callable[[], Finding]) -> Iterator[Finding]:
    try:
        yield check()
    except MooringsError as error:
        yield failed_finding(name, error)
    except (OSError, RecordUnreadableError, ValueError, sqlite3.Error) as error:
        yield Finding(name, FAIL, f"it cannot be looked at: {error}", "is it readable for this user?")


def _checks(data: Path, settings: Settings, running: ControllerProcess | None) -> dict[str, Callable[[], Finding]]:
    shared = settings.shared or data
    pools = settings.pools or shared / "pools.toml"
    checks: dict[str, Callable[[], Finding]] = {
        "host.folder": lambda: _private("host.folder", data),
        "host.controller": lambda: _controller(data, running),
        "host.pepper": lambda: _pepper(shared / "pepper"),
        "host.space": lambda: _space(data, settings.runs_folder),
        "host.pools": lambda: _pools(pools),
        "host.tls": lambda: _tls(settings, running),
        "host.restore": lambda: check_restore((data / RESTORE_PENDING_FILE).exists(), protection_reason(shared)),
    }
    if running is not None:
        checks["host.files"] = lambda: _files(running.pid)
    if not settings.database:
        checks["host.database"] = lambda: _database(data / DATABASE)
        checks["host.revision"] = lambda: _revision(data / DATABASE)
        checks["host.runs"] = lambda: _runs(data / DATABASE, shared, settings.runs_folder)
    return checks


def _private(check: str, path: Path) -> Finding:
    status = path.stat()
    return check_private(check, str(path), status.st_mode, status.st_uid, os.geteuid())


def _controller(data: Path, running: ControllerProcess | None) -> Finding:
    return check_controller(running, (data / RECORD_NAME).exists(), find_lock_holders(data / LOCK_NAME))


def _pepper(path: Path) -> Finding:
    if not path.exists():
        return Finding("host.pepper", FAIL, f"there is no {path}", "put it back from a backup")
    text = path.read_text(encoding="ascii", errors="replace").strip()
    try:
        bytes.fromhex(text)
        chars: int | None = len(text)
    except ValueError:
        chars = None
    return check_pepper(chars, PEPPER_BYTES * 2) or _private("host.pepper", path)


def _space(data: Path, runs: Path) -> Finding:
    """The place with less free space."""
    found = [os.statvfs(place) for place in (data, runs) if place.exists()]
    seen = [check_space(one.f_bavail * one.f_frsize, one.f_favail, one.f_files) for one in found]
    return max(seen, key=lambda finding: list(CheckStatus).index(finding.verdict))


def _pools(path: Path) -> Finding:
    entries = read_pools(path)
    return Finding("host.pools", PASS, f"{path} defines {', '.join(entry.pool.name for entry in entries)}")


def _tls(settings: Settings, running: ControllerProcess | None) -> Finding:
    if settings.tls_cert is None or settings.tls_key is None:
        if is_loopback(settings.host):
            return Finding("host.tls", PASS, "plain HTTP, to this machine alone")
        fix = "set tls_cert and tls_key; see docs/how-to/tls.md"
        return Finding("host.tls", WARN, f"plain HTTP to {settings.host}: keys travel in the clear", fix)
    from moorings.pki.authority import matches_key, parse_certificate

    certificate, status = settings.tls_cert.read_bytes(), settings.tls_key.stat()
    facts, now = parse_certificate(certificate), datetime.now(UTC)
    urls = filter(None, (settings.advertise, running.url if running is not None else ""))
    return check_tls(
        facts.names,
        sorted(filter(None, {urlsplit(url).hostname for url in urls})),  # a socket has none
        matches_key(certificate, settings.tls_key.read_bytes()),
        key_problem(status.st_mode, status.st_uid, os.geteuid()),
        (facts.not_after - now) // timedelta(days=1),
    )


def _files(pid: int) -> Finding:
    used = sum(1 for _ in os.scandir(f"/proc/{pid}/fd"))
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    limit = next(line.split()[3] for line in lines if line.startswith("Max open files"))
    return check_files(used, sys.maxsize if limit == "unlimited" else int(limit))


def _database(path: Path) -> Finding:
    private = _private("host.database", path)
    if private.verdict is not PASS:
        return private
    until = time.monotonic() + QUICK_CHECK_S
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=1)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
        try:
            answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return check_database(None, QUICK_CHECK_S)
        except sqlite3.DatabaseError as error:
            return check_database(str(error), QUICK_CHECK_S)
    return check_database(answer, QUICK_CHECK_S)


def _revision(path: Path) -> Finding:
    known = [f"{number:04d}" for number in range(1, int(HEAD) + 1)]
    return check_revision(read_database_state(path).revision, HEAD, known)


def _runs(database: Path, shared: Path, runs: Path) -> Finding:
    used = sorted(partitions_in_use(runs))
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=1)) as connection:
        connection.execute("PRAGMA query_only = ON")
        recorded = [str(name) for (name,) in connection.execute("SELECT name FROM partitions")]
    return check_runs(used, recorded, (shared / PROTECT_FILE).exists())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread that hangs in the kernel would keep a process alive after a normal return
