"""``moor doctor``: is all well, and if not, what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import click

from moorings.cli.checks import (
    Finding,
    Verdict,
    check_credentials,
    check_devices,
    check_pools,
    check_transport,
    check_version,
    failed,
)
from moorings.cli.configuration import credentials_file
from moorings.cli.grammar import MoorCommand, examples
from moorings.cli.output import render_data, render_table
from moorings.cli.session import Session
from moorings.cli.showing import look_of, output_option, showing
from moorings.client.transport import parse_server
from moorings.core.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.errors import Exit
from moorings.wire.shapes import API_VERSION

TIMEOUT_S = 5.0

_NEEDS_CONFIGURATION = ("server", "version", "ready", "access", "pools", "devices.service", "devices.foreign")


@click.command(
    cls=MoorCommand,
    help="Check the installation, and say what to mend.\n\nOnly reads. The exit code is 8 if a check failed.",
    epilog=examples("moor doctor", "moor doctor -o json", "moor doctor --only pools"),
)
@click.option("--only", metavar="ID,...", help="Only checks whose id begins with one of these.")
@output_option
@click.pass_obj
def doctor(session: Session, *, only: str | None, output: str | None) -> int:
    """Check the installation, and say what to mend."""
    wanted = tuple(part.strip() for part in only.split(",")) if only else ("",)
    found = [finding for finding in _findings(session) if finding.id.startswith(wanted)]
    _show(session, found, output)
    return Exit.FINDINGS if any(finding.verdict is Verdict.FAIL for finding in found) else Exit.OK


def _show(session: Session, found: list[Finding], output: str | None) -> None:
    # The configuration may be what is broken: then the output it names is not asked for.
    shown = showing(session, output, usual="table")
    if shown.form.name in ("json", "yaml"):
        data = {"apiVersion": API_VERSION, "kind": "Findings", "items": [encode(finding) for finding in found]}
        session.console.data(render_data(data, shown.form, shown.look))
        return
    rows = [[finding.verdict, finding.id, finding.evidence] for finding in found]
    table = render_table(["RESULT", "CHECK", "EVIDENCE"], rows, look_of(session)).splitlines()
    session.console.data(table[0])
    for line, finding in zip(table[1:], found, strict=True):
        session.console.data(line)
        if finding.fix and finding.verdict is not Verdict.PASS:
            session.console.line(f"         fix: {finding.fix}")


def _findings(session: Session) -> Iterator[Finding]:
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
        yield failed("configuration", error)
        yield from _skipped(_NEEDS_CONFIGURATION, "the configuration cannot be used")
        return
    yield Finding(
        "configuration", Verdict.PASS, f"server {values.text('server')} from {values.values['server'].origin}"
    )
    yield check_transport(secure, host)
    yield from _controller_findings(session)


def _controller_findings(session: Session) -> Iterator[Finding]:
    with session.client_of(timeout_s=TIMEOUT_S) as client:
        try:
            version = client.version()
        except MooringsError as error:
            yield failed("controller", error)
            yield from _skipped(_NEEDS_CONFIGURATION[1:], "the controller cannot be reached")
            return
        yield Finding("controller", Verdict.PASS, f"{client.server} answers")
        yield check_version(version)
        yield from _asked("ready", lambda: _ready(client.ready()))
        yield from _asked("pools", lambda: check_pools(client.pools()))
        yield from _asked("devices", lambda: check_devices(client.devices()))


def _ready(_told: object) -> Iterable[Finding]:
    return [Finding("ready", Verdict.PASS, "the controller leads and its database can be written")]


def _asked(check: str, ask: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from ask()
    except MooringsError as error:
        yield failed(check, error)


def _skipped(checks: Iterable[str], why: str) -> Iterator[Finding]:
    return (Finding(check, Verdict.SKIP, why) for check in checks)
