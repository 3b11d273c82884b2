"""Collects the observations for ``moor doctor``, from three sides at once: this command, the controller, its machine.

Everything is bounded: each side works in a thread of its own, and a side without a result in time is reported as such.
So a controller that sends slowly, a disk that hangs and a silent name server cost seconds, not the command.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from moorings.cli import machine
from moorings.cli.checks import (
    check_clock,
    check_credentials,
    check_devices,
    check_login,
    check_pools,
    check_transport,
    check_version,
)
from moorings.cli.redaction import Redaction
from moorings.client.client import Client
from moorings.client.error_text import format_cause
from moorings.client.keyfiles import key_problem
from moorings.client.transport import parse_server, socket_path
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import DAY_S
from moorings.doctor.findings import FAIL, PASS, SKIP, Finding, failed_finding, parse_finding, skipped_findings
from moorings.doctor.threads import run_concurrently
from moorings.pki.checks import check_certificate_expiry, check_client_certificate
from moorings.privileged import places
from moorings.privileged.devices import PATTERNS_FILE, closed_files, read_patterns
from moorings.terminal.configuration import Configuration, credentials_file, data_folder
from moorings.terminal.context import CommandContext
from moorings.wire.codec import decode, parse_time
from moorings.wire.shapes import FindingBody

ALL_S = 8.0  # for everything; the documented limit is 10
ANSWER_S = 5.0  # for one response of the controller
_REDACTION = Redaction()

_NEEDS_CONFIGURATION = ("version", "ready", "clock", "inside", "pools", "devices.service", "devices.foreign")


def examine(session: CommandContext, data: Path | None = None, limit_s: float = ALL_S) -> list[Finding]:
    """The findings, within ``limit_s`` seconds; ``data`` is the data folder of a controller on this machine."""
    folder = data or _usual_folder(session)
    sides: dict[str, Callable[[], Iterator[Finding]]] = {
        "configuration": lambda: _check_configuration(session),
        "devices.logins": _check_login,
        "controller": lambda: _check_controller(session),
        "host": lambda: _check_host(folder),
    }
    found: dict[str, list[Finding]] = {name: [] for name in sides}
    for name, finding in run_concurrently(sides, limit_s, partial(_late_finding, limit_s)):
        # People paste findings into tickets; an address may hold a password.
        found[name].append(replace(finding, evidence=_REDACTION.text(finding.evidence)))
    return [finding for name in sides for finding in found[name]]


def _late_finding(limit_s: float, name: str) -> Finding:
    fix = "the missing checks did not answer; run the others with --only"
    return Finding(name, FAIL, f"not everything could be looked at in {limit_s:g} s", fix)


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
        server = values.text("server")
        address = parse_server(server) if socket_path(server) is None else None
    except MooringsError as error:
        yield failed_finding("configuration", error)
        return
    origin = values.values["server"].origin
    yield Finding("configuration", PASS, f"server {server} from {origin}")
    if address is None:
        return
    secure, host, _ = address
    yield check_transport(secure, host)
    if values.text("cert_file"):
        yield from _run_check("certificate.client", lambda: [_check_client_certificate(values)])
    if secure:
        yield from _run_check("certificate.server", lambda: [_check_server_certificate(session)])


def _check_client_certificate(values: Configuration) -> Finding:
    from moorings.pki.authority import parse_certificate

    file, key = values.text("cert_file"), values.text("key_file") or values.text("cert_file")
    try:
        facts, status = parse_certificate(Path(file).read_bytes()), Path(key).stat()
    except OSError as error:
        raise MooringsError("config.invalid", f"{error.filename} cannot be read: {format_cause(error)}") from error
    fault = key_problem(status.st_mode, status.st_uid, os.geteuid())
    days_left = int((facts.not_after.timestamp() - time.time()) // DAY_S)
    return check_client_certificate(file, f"{key} {fault}" if fault else "", days_left)


def _check_server_certificate(session: CommandContext) -> Finding:
    from moorings.client.transport import Transport

    with Transport(session.build_endpoint(timeout_s=ANSWER_S)) as transport:
        ends_s = transport.certificate_expiry()
    assert ends_s is not None, "https was asked for"
    fix = "its admin renews it: moor pki rotate"
    return check_certificate_expiry(
        "certificate.server", "the controller's certificate", int((ends_s - time.time()) // DAY_S), fix
    )


def _check_login() -> Iterator[Finding]:
    """Yields nothing where no root daemon has run: then no device file belongs to jobs."""
    if not (places.SOCKETS / places.SUBMIT).exists():
        return
    try:
        files = closed_files(read_patterns())
    except (OSError, ValueError) as error:
        yield Finding("devices.logins", SKIP, f"{PATTERNS_FILE} cannot be read: {error}", "run it as root")
        return
    yield check_login(files, [path for path in files if _opens(path)])


def _opens(path: str) -> bool:
    """Whether this process may open a device file, if its device is there or not."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT)
    return True


# -- the controller ----------------------------------------------------------------------------------------------------


def _check_controller(session: CommandContext) -> Iterator[Finding]:
    try:
        client = session.new_client(timeout_s=ANSWER_S)
    except MooringsError:  # reported by ``_check_configuration``
        yield from skipped_findings(("controller", *_NEEDS_CONFIGURATION), "the configuration cannot be used")
        return
    with client:
        try:
            version = client.version()
        except MooringsError as error:
            yield failed_finding("controller", error)
            yield from skipped_findings(_NEEDS_CONFIGURATION, "the controller cannot be reached")
            return
        yield Finding("controller", PASS, f"{client.server} answers")
        yield check_version(version)
        yield from _run_check("ready", lambda: _ready(client.ready()))
        yield from _check_inside(session, client)
        yield from _run_check("pools", lambda: check_pools(client.list_pools()))
        yield from _run_check("devices", lambda: check_devices(client.list_devices()))


def _ready(_readiness: object) -> Iterable[Finding]:
    return [Finding("ready", PASS, "the controller leads and its database can be written")]


def _check_inside(session: CommandContext, client: Client) -> Iterator[Finding]:
    asked = session.now()
    try:
        findings = client.get_findings()
        theirs = parse_time(findings.at)
    except MooringsError as error:
        if error.code in ("auth.denied", "path.unknown"):
            why = "only admins may look" if error.code == "auth.denied" else "the controller is of an older release"
            yield from skipped_findings(("inside", "clock"), why)
        else:
            yield failed_finding("inside", error)
            yield from skipped_findings(("clock",), "the controller has not reported its time")
        return
    yield check_clock(theirs, asked, session.now())
    yield Finding("inside", PASS, f"the controller has checked itself: {len(findings.items)} findings")
    yield from map(parse_finding, findings.items)


def _run_check(check: str, find: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from find()
    except MooringsError as error:
        yield failed_finding(check, error)


# -- its machine -------------------------------------------------------------------------------------------------------


def _usual_folder(session: CommandContext) -> Path:
    """For root the shared machine's, if its daemon runs."""
    if os.geteuid() == 0 and machine.find_daemon() is not None:
        return places.DATA
    return data_folder(session.environment)


def build_host_doctor(data: Path) -> list[str]:
    """The command that checks a controller's machine."""
    return [sys.executable, "-m", "moorings.app.doctor", "--data", str(data)]


def _check_host(data: Path) -> Iterator[Finding]:
    """Yields nothing where no controller has run: the command may be on a user's laptop."""
    if not data.is_dir():
        yield Finding("host", SKIP, f"there is no {data}: no controller runs here", "'--data' names another")
        return
    with subprocess.Popen(
        build_host_doctor(data),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **machine.as_owner_of(data),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield parse_finding(decode(FindingBody, json.loads(line), where="finding"))
        _, complaint = process.communicate()
    if process.returncode != 0:
        words = complaint.decode("utf-8", "replace").strip().splitlines()
        problem = words[-1][:200] if words else f"exit code {process.returncode}"
        yield Finding("host", FAIL, f"this machine could not be looked at: {problem}", "please report it")
