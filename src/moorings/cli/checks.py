"""The checks of ``moor doctor``: each gives PASS, WARN, FAIL or SKIP, with evidence and a fix.

Checks only read. Judging is separate from collecting: ``check_*`` are functions from observations to findings.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from moorings import __version__
from moorings.cli.configuration import permission_hint
from moorings.cli.kinds import device_range, group_devices
from moorings.core.errors import MooringsError
from moorings.core.instants import Timestamp, seconds_between
from moorings.wire.checks import FOREIGN_REASON
from moorings.wire.shapes import API_VERSION, DeviceBody, FindingBody, PoolBody, VersionBody

SHOWN_MAX = 8
SKEW_S_WARN, SKEW_S_FAIL = 2.0, 60.0
CERTIFICATE_DAYS_WARN = 30
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class CheckStatus(StrEnum):
    """The result of a check."""

    PASS = "PASS"  # noqa: S105 - no password
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result: its id, verdict, evidence, and how to mend it."""

    id: str
    verdict: CheckStatus
    evidence: str
    fix: str = ""


def parse_finding(body: FindingBody) -> Finding:
    """The finding in a controller's response."""
    verdict = (
        CheckStatus(body.verdict) if body.verdict in set(CheckStatus) else CheckStatus.WARN
    )  # a newer release may have more
    return Finding(body.id, verdict, body.evidence, body.fix)


def check_clock(theirs: Timestamp, asked: Timestamp, answered: Timestamp) -> Finding:
    """Whether this machine's clock and the controller's agree; its response came between ``asked`` and ``answered``."""
    skew_s = max(seconds_between(theirs, asked), seconds_between(answered, theirs), 0.0)
    fix = "let both machines follow an NTP server: leases, ages and certificates go by the clock"
    if skew_s > SKEW_S_FAIL:
        return Finding("clock", CheckStatus.FAIL, f"the clocks differ by {skew_s:.1f} s", fix)
    if skew_s > SKEW_S_WARN:
        return Finding("clock", CheckStatus.WARN, f"the clocks differ by {skew_s:.1f} s", fix)
    return Finding("clock", CheckStatus.PASS, "the clocks agree")


def failed_finding(check: str, error: MooringsError) -> Finding:
    """The finding for an error during a check."""
    return Finding(check, CheckStatus.FAIL, error.detail, error.hint)


def check_credentials(path: Path, mode: int | None, owner: int, me: int) -> Finding:
    """Whether only this user can read the credentials file; ``mode`` is None where there is none."""
    if mode is None:
        return Finding(
            "credentials",
            CheckStatus.SKIP,
            f"there is no {path}",
            "'moor up' makes one; or set MOORINGS_ACCESS_KEY_FILE",
        )
    if owner != me:
        return Finding("credentials", CheckStatus.FAIL, f"{path} belongs to user {owner}", "keep a file of your own")
    if stat.S_IMODE(mode) & 0o077:
        return Finding(
            "credentials", CheckStatus.FAIL, f"{path} has mode {stat.S_IMODE(mode):04o}", permission_hint(path, mode)
        )
    return Finding("credentials", CheckStatus.PASS, f"{path} has mode {stat.S_IMODE(mode):04o}")


def check_transport(secure: bool, host: str) -> Finding:
    """Whether the access key travels in the clear."""
    if secure:
        return Finding("transport", CheckStatus.PASS, f"https to {host}")
    if host in LOOPBACK:
        return Finding("transport", CheckStatus.PASS, "plain http, but only on this machine")
    return Finding(
        "transport", CheckStatus.WARN, f"plain http to {host}: the access key travels in the clear", "use https://"
    )


def check_certificate_expiry(check: str, whose: str, days_left: int, fix: str) -> Finding:
    """Whether a certificate is valid for long enough; ``days_left`` is negative if it has expired."""
    if days_left < 0:
        return Finding(check, CheckStatus.FAIL, f"{whose} has ended {-days_left} days ago", fix)
    if days_left < CERTIFICATE_DAYS_WARN:
        return Finding(check, CheckStatus.WARN, f"{whose} ends in {days_left} days", fix)
    return Finding(check, CheckStatus.PASS, f"{whose} is good for {days_left} days")


def check_client_certificate(file: str, problem: str, days_left: int) -> Finding:
    """Whether this command's client certificate is valid for long enough.

    Args:
        file: its path.
        problem: the fault of its key's file; empty: none.
        days_left: until it expires.
    """
    if problem:
        return Finding("certificate.client", CheckStatus.FAIL, problem, "chmod 600 the key, and have a new one issued")
    fix = "ask an admin to renew it: moor pki rotate SUBJECT"
    return check_certificate_expiry("certificate.client", f"the certificate {file}", days_left, fix)


def check_version(version: VersionBody) -> Finding:
    """Whether the command and the controller speak the same API, and their releases are close."""
    if version.api_version != API_VERSION:
        evidence = f"the controller speaks {version.api_version}, this command {API_VERSION}"
        return Finding("version", CheckStatus.FAIL, evidence, "install the controller's release of moor")
    theirs, ours = (text.split(".")[:2] for text in (version.version, __version__))
    if theirs != ours:
        evidence = f"the controller is {version.version}, this command {__version__}"
        return Finding("version", CheckStatus.WARN, evidence, "install the same release of both")
    return Finding("version", CheckStatus.PASS, f"controller {version.version}, command {__version__}")


def check_pools(pools: Sequence[PoolBody]) -> Iterator[Finding]:
    """Whether every pool's hardware answers."""
    if not pools:
        yield Finding("pools", CheckStatus.FAIL, "no pool is defined", "name a pools file: moor up --pools FILE")
    for pool in pools:
        if pool.reachable:
            yield Finding(f"pools.{pool.name}", CheckStatus.PASS, f"{pool.devices} devices, {pool.free} free")
        else:
            fix = f"is the hardware's controller of pool {pool.name} up, and is its address right in the pools file?"
            yield Finding(f"pools.{pool.name}", CheckStatus.FAIL, f"it cannot be reached: {pool.problem}", fix)


def check_devices(devices: Iterable[DeviceBody]) -> Iterator[Finding]:
    """Devices out of service, or held by partitions made outside Moorings."""
    found = list(devices)
    out = [device for device in found if device.state != "IN_SERVICE"]
    broken = [device for device in out if device.state == "QUARANTINED"]
    foreign = [device for device in found if device.partition is not None and device.claim is None]
    if out:
        evidence = f"{len(out)} of {len(found)} are out of service: {_devices_text(out)}"
        fix = "look at 'moor get devices'; then 'moor resume device ID'"
        yield Finding(
            "devices.service", CheckStatus.WARN, evidence, fix if broken else "'moor resume device ID' brings them back"
        )
    else:
        yield Finding("devices.service", CheckStatus.PASS, f"all {len(found)} are in service")
    if foreign:
        outside = [device for device in foreign if FOREIGN_REASON in device.reason]
        told, fixes = [], []
        if outside:
            told.append(f"{len(outside)} are in partitions {FOREIGN_REASON}: {_partitions(outside)}")
            fixes.append(f"remove {_partitions(outside)} with the vendor's own tool, if nobody wants them")
        if len(outside) < len(foreign):
            rest = [device for device in foreign if device not in outside]
            told.append(f"{len(rest)} are in partitions that no record knows: {_partitions(rest)}")
            fixes.append(f"leave {_partitions(rest)}, jobs may run on them: see 'moor doctor --only partitions'")
        yield Finding("devices.foreign", CheckStatus.WARN, "; ".join(told), "; ".join(fixes))
    else:
        yield Finding("devices.foreign", CheckStatus.PASS, "no partition was made outside Moorings")


def _partitions(devices: Iterable[DeviceBody]) -> str:
    names = sorted({device.partition or "" for device in devices})
    return ", ".join(names[:SHOWN_MAX]) + (f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else "")


def _devices_text(devices: Sequence[DeviceBody]) -> str:
    rows = group_devices(devices)
    shown = ", ".join(f"{device_range(row)} ({row[0].reason or row[0].state})" for row in rows[:SHOWN_MAX])
    return f"{shown}, ..." if len(rows) > SHOWN_MAX else shown
