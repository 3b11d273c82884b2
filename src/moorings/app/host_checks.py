"""The checks of ``moor doctor`` for the controller's own machine: files, disk, processes. Values in, findings out.

``app.doctor`` collects the values in a process of its own, so that a disk that hangs does not hang the
command.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence

from moorings.cli.machine import PORT_TAKEN_REMEDY
from moorings.cli.processes import ControllerProcess
from moorings.client.transport import socket_path
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN, Finding

SPACE_BYTES_FAIL, SPACE_BYTES_WARN = 100 << 20, 1 << 30
INODES_FAIL, INODES_WARN = 1_000, 10_000
FILES_FAIL, FILES_WARN = 0.95, 0.8
SHOWN_MAX = 5


def check_private(check: str, path: str, mode: int, owner: int, me: int) -> Finding:
    """Whether a file or folder belongs to this user alone."""
    if owner != me:
        return Finding(check, FAIL, f"{path} belongs to user {owner}", f"chown it to user {me}")
    if stat.S_IMODE(mode) & 0o077:
        closed = 0o700 if stat.S_ISDIR(mode) else 0o600
        return Finding(check, FAIL, f"{path} has mode {stat.S_IMODE(mode):04o}", f"chmod {closed:o} {path}")
    return Finding(check, PASS, f"{path} has mode {stat.S_IMODE(mode):04o}")


def check_controller(running: ControllerProcess | None, stale: bool, lockers: Sequence[int]) -> Finding:
    """Whether the controller that the folder names holds the folder's lock.

    Args:
        running: the controller in ``controller.json``, if it is alive.
        stale: whether ``controller.json`` names a dead one.
        lockers: processes that hold the folder's lock.
    """
    check = "host.controller"
    if running is not None and not lockers:
        fix = "controller.lock was removed: stop it ('moor down') and start it again before a second one starts"
        return Finding(check, FAIL, f"process {running.pid} runs without holding the folder's lock", fix)
    if running is not None and socket_path(running.url) is not None:
        evidence = f"process {running.pid} takes no access keys: its port was another program's when it started"
        return Finding(check, WARN, evidence, PORT_TAKEN_REMEDY)
    if running is not None:
        return Finding(check, PASS, f"process {running.pid} at {running.url} holds the folder's lock")
    if lockers:
        fix = "wait until it has started; else see what it is, and its log"
        return Finding(check, WARN, f"process {lockers[0]} holds the lock and has not said where it listens", fix)
    if stale:
        return Finding(check, FAIL, "the controller did not shut down cleanly (killed, or power loss)", "moor up")
    return Finding(check, SKIP, "no controller runs on this folder", "moor up")


def check_pepper(hex_chars: int | None, wanted: int) -> Finding | None:
    """Whether the pepper is whole; None if there is no problem. ``hex_chars`` is None if unreadable."""
    if hex_chars == wanted:
        return None
    fix = "put it back from a backup; with a new one every access key is void"
    evidence = "it is no hexadecimal text" if hex_chars is None else f"it has {hex_chars} characters, not {wanted}"
    return Finding("host.pepper", FAIL, evidence, fix)


def check_database(answer: str | None, checked_s: float) -> Finding:
    """The result of SQLite's check of its file; None: it did not finish in time."""
    check = "host.database"
    if answer is None:
        return Finding(check, PASS, f"nothing wrong was found in {checked_s:g} s; it is too large to see all of it")
    if answer == "ok":
        return Finding(check, PASS, "SQLite's quick check finds it whole")
    fix = "stop the controller, keep a copy of the file, restore a backup ('moor restore')"
    return Finding(check, FAIL, f"it is damaged: {answer[:200]}", fix)


def check_revision(found: str, head: str, known: Sequence[str]) -> Finding:
    """Whether the tables have this release's schema."""
    check = "host.revision"
    if found == head:
        return Finding(check, PASS, f"the tables are of revision {found}")
    if found in known:
        return Finding(
            check,
            WARN,
            f"the tables are of revision {found}, and {head} is known",
            "restart the controller",
        )
    fix = "run the release that made it, or a newer one"
    return Finding(check, FAIL, f"the tables are of revision {found}, this release knows {head}", fix)


def check_space(free_bytes: int, free_inodes: int, inodes: int) -> Finding:
    """Whether the disk has free space; file systems without a fixed number of inodes report 0 of them."""
    check, fix = "host.space", "free some space, or see keep_runs_days; without it no claim is granted"
    evidence = f"{free_bytes / 1e9:.1f} GB and {free_inodes} inodes are free"
    few = inodes > 0 and free_inodes < INODES_WARN
    none = inodes > 0 and free_inodes < INODES_FAIL
    if free_bytes < SPACE_BYTES_FAIL or none:
        return Finding(check, FAIL, evidence, fix)
    if free_bytes < SPACE_BYTES_WARN or few:
        return Finding(check, WARN, evidence, fix)
    return Finding(check, PASS, evidence if inodes else f"{free_bytes / 1e9:.1f} GB are free")


def check_files(used: int, limit: int) -> Finding:
    """Whether the controller may open more files."""
    evidence, fix = (
        f"{used} of {limit} are open",
        "raise LimitNOFILE (systemd) or 'ulimit -n', and restart the controller",
    )
    if used >= limit * FILES_FAIL:
        return Finding("host.files", FAIL, evidence, fix)
    return Finding("host.files", WARN if used >= limit * FILES_WARN else PASS, evidence, fix)


def check_runs(in_use: Sequence[str], recorded: Sequence[str], restored: bool) -> Finding:
    """Whether the records contain each partition that this machine's processes use."""
    unknown = sorted(set(in_use) - set(recorded))
    if not unknown:
        return Finding("host.runs", PASS, f"jobs use {len(set(in_use))} partitions; the records know them all")
    partitions = ", ".join(unknown[:SHOWN_MAX])
    if restored:
        fix = "wait for their end, then 'moor restore --finish'"
        return Finding("host.runs", WARN, f"jobs of before the restore run on {partitions}", fix)
    fix = "their partitions are kept until they end; was a backup restored, or a data folder copied?"
    return Finding("host.runs", FAIL, f"jobs run on {partitions}, which no record knows", fix)


def check_restore(restoring: bool, protection_reason: str | None) -> Finding:
    """Whether a restore is unfinished; ``protection_reason``: why partitions without a record are left alone."""
    if restoring:
        return Finding("host.restore", FAIL, "a restore has begun and not ended", "moor restore FILE, again")
    if protection_reason is not None:
        fix = "see 'moor doctor --only partitions', then 'moor restore --finish'"
        evidence = f"unknown partitions are protected: {protection_reason}"
        return Finding("host.restore", WARN, evidence, fix)
    return Finding("host.restore", PASS, "no restore is unfinished")
