"""Collects the observations for ``moor doctor``, from three sides at once: this command, the controller, its machine.

Everything is bounded: each side works in a thread of its own, and a side without a result in time is reported as such.
So a controller that sends slowly, a disk that hangs and a silent name server cost seconds, not the command.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from moorings.cli.checks import (
    CheckStatus,
    Finding,
    check_certificate_expiry,
    check_client_certificate,
    check_clock,
    check_credentials,
    check_devices,
    check_pools,
    check_transport,
    check_version,
    failed_finding,
    parse_finding,
)
from moorings.cli.configuration import Configuration, credentials_file, data_folder
from moorings.cli.redaction import Redaction
from moorings.cli.session import CommandContext
from moorings.client.causes import format_cause
from moorings.client.client import Client
from moorings.client.keyfiles import key_problem
from moorings.client.transport import parse_server
from moorings.core.errors import MooringsError
from moorings.wire.codec import decode, parse_time
from moorings.wire.shapes import FindingBody

ALL_S = 8.0  # for everything; the documented limit is 10
ANSWER_S = 5.0  # for one response of the controller
DAY_S = 86_400
_REDACTION = Redaction()

_NEEDS_CONFIGURATION = ("version", "ready", "clock", "inside", "pools", "devices.service", "devices.foreign")


def examine(session: CommandContext, data: Path | None = None, limit_s: float = ALL_S) -> list[Finding]:
    """The findings, within ``limit_s`` seconds; ``data`` is the data folder of a controller on this machine."""
    folder = data or data_folder(session.environment)
    sides: dict[str, Callable[[], Iterator[Finding]]] = {
        "configuration": lambda: _check_configuration(session),
        "controller": lambda: _check_controller(session),
        "host": lambda: _check_host(folder),
    }
    told: queue.SimpleQueue[tuple[str, Finding | None]] = queue.SimpleQueue()
    for name, side in sides.items():
        threading.Thread(target=_collect, args=(name, side, told), daemon=True).start()
    found: dict[str, list[Finding]] = {name: [] for name in sides}
    open_, until = set(sides), time.monotonic() + limit_s
    while open_:
        try:
            name, finding = told.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            break
        if finding is None:
            open_.discard(name)
        else:
            found[name].append(finding)
    for name in open_:
        fix = "the missing checks did not answer; run the others with --only"
        found[name].append(Finding(name, CheckStatus.FAIL, f"not everything could be looked at in {limit_s:g} s", fix))
    return [finding for name in sides for finding in found[name]]


def _collect(
    name: str, side: Callable[[], Iterator[Finding]], told: queue.SimpleQueue[tuple[str, Finding | None]]
) -> None:
    try:
        for finding in side():  # people paste findings into tickets; an address may hold a password
            told.put((name, replace(finding, evidence=_REDACTION.text(finding.evidence))))
    except Exception as error:  # a fault in one check must not stop the others
        told.put((name, Finding(name, CheckStatus.FAIL, f"internal error in moor: {error!r}", "please report it")))
    finally:
        told.put((name, None))


# -- this command ------------------------------------------------------------------------------------------------------


def _check_configuration(session: CommandContext) -> Iterator[Finding]:
    path = credentials_file(session.environment)
    try:
        status = path.stat()
        yield check_credentials(path, status.st_mode, status.st_uid, os.geteuid())
    except OSError:
        yield check_credentials(path, None, 0, 0)
    try:
        values = session.configuration
        secure, host, _ = parse_server(values.text("server"))
    except MooringsError as error:
        yield failed_finding("configuration", error)
        return
    origin = values.values["server"].origin
    yield Finding("configuration", CheckStatus.PASS, f"server {values.text('server')} from {origin}")
    yield check_transport(secure, host)
    if values.text("cert_file"):
        yield from _run_check("certificate.client", lambda: [_check_client_certificate(values)])
    if secure:
        yield from _run_check("certificate.server", lambda: [_check_server_certificate(session)])


def _check_client_certificate(values: Configuration) -> Finding:
    from moorings.cli.pki.authority import parse_certificate

    file, key = values.text("cert_file"), values.text("key_file") or values.text("cert_file")
    try:
        facts, status = parse_certificate(Path(file).read_bytes()), Path(key).stat()
    except OSError as error:
        raise MooringsError("config.invalid", f"{error.filename} cannot be read: {format_cause(error)}") from error
    fault = key_problem(status.st_mode, status.st_uid, os.geteuid())
    days_left = int((facts.ends.timestamp() - time.time()) // DAY_S)
    return check_client_certificate(file, f"{key} {fault}" if fault else "", days_left)


def _check_server_certificate(session: CommandContext) -> Finding:
    from moorings.client.transport import Transport

    with Transport(session.endpoint_of(timeout_s=ANSWER_S)) as transport:
        ends_s = transport.certificate_ends()
    assert ends_s is not None, "https was asked for"
    fix = "its admin renews it: moor pki rotate"
    return check_certificate_expiry(
        "certificate.server", "the controller's certificate", int((ends_s - time.time()) // DAY_S), fix
    )


# -- the controller ----------------------------------------------------------------------------------------------------


def _check_controller(session: CommandContext) -> Iterator[Finding]:
    try:
        client = session.client_of(timeout_s=ANSWER_S)
    except MooringsError:  # reported by ``_check_configuration``
        yield from _skipped(("controller", *_NEEDS_CONFIGURATION), "the configuration cannot be used")
        return
    with client:
        try:
            version = client.version()
        except MooringsError as error:
            yield failed_finding("controller", error)
            yield from _skipped(_NEEDS_CONFIGURATION, "the controller cannot be reached")
            return
        yield Finding("controller", CheckStatus.PASS, f"{client.server} answers")
        yield check_version(version)
        yield from _run_check("ready", lambda: _ready(client.ready()))
        yield from _check_inside(session, client)
        yield from _run_check("pools", lambda: check_pools(client.pools()))
        yield from _run_check("devices", lambda: check_devices(client.devices()))


def _ready(_told: object) -> Iterable[Finding]:
    return [Finding("ready", CheckStatus.PASS, "the controller leads and its database can be written")]


def _check_inside(session: CommandContext, client: Client) -> Iterator[Finding]:
    asked = session.now()
    try:
        told = client.findings()
        theirs = parse_time(told.at)
    except MooringsError as error:
        if error.code in ("auth.denied", "path.unknown"):
            why = "only admins may look" if error.code == "auth.denied" else "the controller is of an older release"
            yield from _skipped(("inside", "clock"), why)
        else:
            yield failed_finding("inside", error)
            yield from _skipped(("clock",), "the controller has not told its time")
        return
    yield check_clock(theirs, asked, session.now())
    yield Finding("inside", CheckStatus.PASS, f"the controller has looked at itself: {len(told.items)} findings")
    yield from map(parse_finding, told.items)


def _run_check(check: str, ask: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from ask()
    except MooringsError as error:
        yield failed_finding(check, error)


def _skipped(checks: Iterable[str], why: str) -> Iterator[Finding]:
    return (Finding(check, CheckStatus.SKIP, why) for check in checks)


# -- its machine -------------------------------------------------------------------------------------------------------


def build_host_doctor(data: Path) -> list[str]:
    """The command that checks a controller's machine."""
    return [sys.executable, "-m", "moorings.app.doctor", "--data", str(data)]


def _check_host(data: Path) -> Iterator[Finding]:
    """Yields nothing where no controller has run: the command may be on a user's laptop."""
    if not data.is_dir():
        yield Finding(
            "host", CheckStatus.SKIP, f"there is no {data}: no controller runs here", "'--data' names another"
        )
        return
    with subprocess.Popen(
        build_host_doctor(data), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield parse_finding(decode(FindingBody, json.loads(line), where="finding"))
        _, complaint = process.communicate()
    if process.returncode != 0:
        words = complaint.decode("utf-8", "replace").strip().splitlines()
        told = words[-1][:200] if words else f"exit code {process.returncode}"
        yield Finding("host", CheckStatus.FAIL, f"this machine could not be looked at: {told}", "please report it")
