"""The checks of ``moor doctor``: each gives PASS, WARN, FAIL or SKIP, with evidence and a fix.

Checks only read. Judging is separate from collecting: ``check_*`` are functions from observations to findings.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from moorings import __version__
from moorings.cli.resources import device_range, group_devices
from moorings.core.model.quantities import join_first
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN, Finding
from moorings.terminal.configuration import permission_hint
from moorings.wire.shapes import API_VERSION, FOREIGN_REASON, DeviceBody, PoolBody, VersionBody

SHOWN_MAX = 8
SKEW_S_WARN, SKEW_S_FAIL = 2.0, 60.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_clock(theirs: Timestamp, asked: Timestamp, answered: Timestamp) -> Finding:
    """Whether this machine's clock and the controller's agree; its response came between ``asked`` and ``answered``."""
    skew_s = max(seconds_between(theirs, asked), seconds_between(answered, theirs), 0.0)
    fix = "let both machines follow an NTP server: leases, ages and certificates go by the clock"
    if skew_s > SKEW_S_FAIL:
        return Finding("clock", FAIL, f"the clocks differ by {skew_s:.1f} s", fix)
    if skew_s > SKEW_S_WARN:
        return Finding("clock", WARN, f"the clocks differ by {skew_s:.1f} s", fix)
    return Finding("clock", PASS, "the clocks agree")


def check_credentials(path: Path, mode: int | None, owner: int, me: int) -> Finding:
    """Whether only this user can read the credentials file; ``mode`` is None where there is none."""
    if mode is None:
        return Finding(
            "credentials",
            SKIP,
            f"there is no {path}",
            "'moor up' makes one; or set MOORINGS_ACCESS_KEY_FILE",
        )
    if owner != me:
        return Finding("credentials", FAIL, f"{path} belongs to user {owner}", "keep a file of your own")
    if stat.S_IMODE(mode) & 0o077:
        return Finding("credentials", FAIL, f"{path} has mode {stat.S_IMODE(mode):04o}", permission_hint(path, mode))
    return Finding("credentials", PASS, f"{path} has mode {stat.S_IMODE(mode):04o}")


def check_transport(secure: bool, host: str) -> Finding:
    """Whether the access key travels in the clear."""
    if secure:
        return Finding("transport", PASS, f"https to {host}")
    if host in LOOPBACK:
        return Finding("transport", PASS, "plain http, but only on this machine")
    return Finding("transport", WARN, f"plain http to {host}: the access key travels in the clear", "use https://")


def check_login(files: Sequence[str], opened: Sequence[str]) -> Finding:
    """Whether this login opens device files that are closed to all but the jobs that were given them."""
    check = "devices.logins"
    if opened:
        fix = "close them to logins and cron, too: see 'Device files' in docs/how-to/share-one-machine.md"
        return Finding(check, FAIL, f"this login opens {join_first(opened, SHOWN_MAX)}, which belong to jobs", fix)
    if not files:
        return Finding(check, PASS, "this machine has no device files that belong to jobs")
    return Finding(check, PASS, f"{len(files)} device files that belong to jobs do not open here")


def check_version(version: VersionBody) -> Finding:
    """Whether the command and the controller speak the same API, and their releases are close."""
    if version.api_version != API_VERSION:
        evidence = f"the controller speaks {version.api_version}, this command {API_VERSION}"
        return Finding("version", FAIL, evidence, "install the controller's release of moor")
    theirs, ours = (text.split(".")[:2] for text in (version.version, __version__))
    if theirs != ours:
        evidence = f"the controller is {version.version}, this command {__version__}"
        return Finding("version", WARN, evidence, "install the same release of both")
    return Finding("version", PASS, f"controller {version.version}, command {__version__}")


def check_pools(pools: Sequence[PoolBody]) -> Iterator[Finding]:
    """Whether every pool's hardware answers."""
    if not pools:
        yield Finding("pools", FAIL, "no pool is defined", "name a pools file: moor up --pools FILE")
    for pool in pools:
        if pool.reachable:
            yield Finding(f"pools.{pool.name}", PASS, f"{pool.devices} devices, {pool.free} free")
        else:
            fix = f"is the hardware's controller of pool {pool.name} up, and is its address right in the pools file?"
            yield Finding(f"pools.{pool.name}", FAIL, f"it cannot be reached: {pool.problem}", fix)


def check_devices(devices: Iterable[DeviceBody]) -> Iterator[Finding]:
    """Devices out of service, or held by partitions made outside Moorings."""
    found = list(devices)
    out = [device for device in found if device.state != "IN_SERVICE"]
    broken = [device for device in out if device.state == "QUARANTINED"]
    foreign = [device for device in found if device.partition is not None and device.claim is None]
    if out:
        evidence = f"{len(out)} of {len(found)} are out of service: {_devices_text(out)}"
        fix = "look at 'moor get devices'; then 'moor resume device ID'"
        yield Finding("devices.service", WARN, evidence, fix if broken else "'moor resume device ID' brings them back")
    else:
        yield Finding("devices.service", PASS, f"all {len(found)} are in service")
    if foreign:
        outside = [device for device in foreign if FOREIGN_REASON in device.reason]
        sentences, fixes = [], []
        if outside:
            sentences.append(f"{len(outside)} are in partitions {FOREIGN_REASON}: {_partitions(outside)}")
            fixes.append(f"remove {_partitions(outside)} with the vendor's own tool, if nobody wants them")
        if len(outside) < len(foreign):
            rest = [device for device in foreign if device not in outside]
            sentences.append(f"{len(rest)} are in partitions that no record knows: {_partitions(rest)}")
            fixes.append(f"leave {_partitions(rest)}, jobs may run on them: see 'moor doctor --only partitions'")
        yield Finding("devices.foreign", WARN, "; ".join(sentences), "; ".join(fixes))
    else:
        yield Finding("devices.foreign", PASS, "no partition was made outside Moorings")


def _partitions(devices: Iterable[DeviceBody]) -> str:
    names = sorted({device.partition or "" for device in devices})
    return join_first(names, SHOWN_MAX)


def _devices_text(devices: Sequence[DeviceBody]) -> str:
    rows = group_devices(devices)
    shown = ", ".join(f"{device_range(row)} ({row[0].reason or row[0].state})" for row in rows[:SHOWN_MAX])
    return f"{shown}, ..." if len(rows) > SHOWN_MAX else shown
