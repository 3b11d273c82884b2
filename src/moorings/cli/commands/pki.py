"""``moor pki``: makes, renews and shows the certificates of a secure installation, without the controller."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, examples, options
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.output import render_data, render_table
from moorings.cli.printing import make_printer, output_option, table_style
from moorings.pki.files import LOCAL_NAMES, client_key
from moorings.terminal.configuration import config_folder
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import API_VERSION

if TYPE_CHECKING:
    from moorings.pki.folder import CertificateEntry, CertificateStore

DAYS = 365
DAYS_MAX = 3650
SOON_DAYS = 30

pki = NounGroup(
    name="pki",
    help="Make and renew the certificates of controllers and clients.\n\n"
    "They lie in one folder (~/.config/moorings/pki, or --dir), which nobody else should read: with the authority's "
    "key anyone can make certificates for everybody.",
    epilog=examples(
        "moor pki init --name controller.example.org",
        "moor pki issue ann",
        "moor pki show",
        "moor pki rotate",
    ),
    no_args_is_help=True,
)
pki.subcommand_metavar = "COMMAND [ARGS]..."

_dir = click.option("--dir", "folder", metavar="DIR", help="The folder of certificates.")
_days = click.option(
    "--days",
    type=click.IntRange(1, DAYS_MAX),
    default=DAYS,
    metavar="N",
    help=f"How long certificates are good ({DAYS}).",
)
_key = click.option("--ca-key", metavar="FILE", help="The authority's key, where it is kept elsewhere.")
_name = click.option(
    "--name", "names", multiple=True, metavar="HOST", help="Host or address of a controller; may be repeated."
)


@pki.command("init", cls=MoorCommand, epilog=examples("moor pki init --name pod1.example.org --name 10.0.0.5"))
@click.argument("directory", metavar="[DIR]", required=False)
@_name
@options(_dir, _days)
@click.pass_obj
def init(
    session: CommandContext, *, directory: str | None, names: Sequence[str], folder: str | None, days: int
) -> None:
    """Make an authority, and the controllers' certificate.

    The certificate is good for the given names, this host's own name, and this machine's loopback addresses.
    """
    if directory is not None and folder is not None:
        raise UsageErrorWithHint("the folder is named twice", hint="say DIR or --dir DIR")
    found = _pki(session, directory or folder)
    usual = [socket.gethostname(), *LOCAL_NAMES] if not names else LOCAL_NAMES
    found.create(list(dict.fromkeys([*names, *usual])), _now(session), days)
    session.console.print_line(f"authority and controllers' certificate made in {found.folder}")
    session.console.info(
        f"Start the controller with --tls-cert {found.folder / 'server.pem'} --tls-key {found.folder / 'server.key'}"
    )
    session.console.info(f"and, for client certificates, --tls-client-ca {found.bundle}; see docs/how-to/tls.md.")


@pki.command("issue", cls=MoorCommand, epilog=examples("moor pki issue ann", "moor pki issue slurm-agent --days 90"))
@click.argument("subject")
@options(_dir, _days, _key)
@click.pass_obj
def issue(session: CommandContext, *, subject: str, folder: str | None, days: int, ca_key: str | None) -> None:
    """Issue a client certificate for the holder of SUBJECT's access key."""
    found = _pki(session, folder, ca_key)
    file = found.issue(subject, _now(session), days)
    _report_finished(session, found, but=file)
    session.console.print_line(f"certificate of {subject}: {file}")
    session.console.info(f"Hand over on a safe way: {file}, {client_key(found.folder, subject)} and {found.bundle}.")


@pki.command(
    "rotate",
    cls=MoorCommand,
    epilog=examples(
        "moor pki rotate",
        "moor pki rotate ann",
        "moor pki rotate --name pod2.example.org",
        "moor pki rotate --ca",
        "moor pki rotate --drop-old",
    ),
)
@click.argument("subjects", metavar="[SUBJECT]...", nargs=-1)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Another host or address for the controllers' certificate, beside those it has; may be repeated.",
)
@click.option("--only", is_flag=True, help="With --name: instead of those it has; loopback addresses stay.")
@click.option("--controllers", is_flag=True, help="The controllers' certificate, whenever it ends.")
@click.option("--all", "everything", is_flag=True, help="All certificates, whenever they end.")
@click.option("--ca", "authority", is_flag=True, help="A new authority; the old ones stay trusted beside it.")
@click.option("--drop-old", is_flag=True, help="Trust the newest authority alone.")
@options(_dir, _days, _key)
@click.pass_obj
def rotate(
    session: CommandContext,
    *,
    subjects: Sequence[str],
    names: Sequence[str],
    only: bool,
    controllers: bool,
    everything: bool,
    authority: bool,
    drop_old: bool,
    folder: str | None,
    days: int,
    ca_key: str | None,
) -> None:
    """Renew what ends within 30 days, what an old authority has signed, or what is named.

    To change the authority: --ca; give everybody the new ca.pem; rotate, and hand out the new certificates; --drop-old.
    A controller takes new files over by itself.
    """
    if sum([authority, drop_old, bool(subjects or names or controllers or everything)]) > 1:
        raise UsageErrorWithHint("--ca and --drop-old stand alone", hint="see 'moor pki rotate --help'")
    if only and not names:
        raise UsageErrorWithHint(
            "--only needs names", hint="say every name that is to stay with --name; loopback ones stay"
        )
    found, now, console = _pki(session, folder, ca_key), _now(session), session.console
    found.finish_pending()
    _report_finished(session, found)
    if authority:
        found.renew_authority(now)
        console.print_line(f"there is a new authority; {found.bundle} has it and the old ones")
        console.info("Give everybody that file, then 'moor pki rotate' renews the certificates.")
        return
    if drop_old:
        console.print_line(f"old authorities dropped: {found.drop_old_authorities()}")
        console.info(f"Give everybody {found.bundle}.")
        return
    named = bool(subjects or names or controllers)
    due = [entry for entry in found.entries() if entry.kind != "authority" and (everything or _is_due(entry, now))]
    renew_server = controllers or bool(names) or (not named and any(entry.kind == "server" for entry in due))
    clients = subjects or ([] if named else [entry.name for entry in due if entry.kind == "client"])
    if renew_server:
        hosts = found.renew_server(names, now, days, only=only)
        console.print_line(f"the controllers' certificate is new, for {', '.join(hosts)}")
    for subject in clients:
        found.renew_client(subject, now, days)
        console.print_line(f"the certificate of {subject} is new: hand it over with its key")
    if not renew_server and not clients:
        console.info(f"Nothing ends within {SOON_DAYS} days; --all renews everything.")


@pki.command("show", cls=MoorCommand, epilog=examples("moor pki show", "moor pki show -o json"))
@options(_dir, output_option)
@click.pass_obj
def show(session: CommandContext, *, folder: str | None, output: str | None) -> None:
    """Show the certificates, and warn of what ends within 30 days."""
    shown = make_printer(session, output, usual="table")
    now = _now(session)
    entries = _pki(session, folder).entries()
    if shown.form.name in ("json", "yaml"):
        data = {
            "apiVersion": API_VERSION,
            "kind": "CertificateList",
            "items": [_entry_data(entry, now) for entry in entries],
        }
        session.console.print_data(render_data(data, shown.form, table_style(session)))
    else:
        rows = [
            [
                entry.kind,
                entry.name,
                entry.serial[:16],
                f"{entry.not_after:%Y-%m-%d}",
                _state(entry, now),
                _names(entry),
            ]
            for entry in entries
        ]
        session.console.print_data(
            render_table(["KIND", "NAME", "SERIAL", "ENDS", "STATE", "HOSTS"], rows, table_style(session))
        )
    for entry in entries:
        if entry.days_left(now) < SOON_DAYS:
            session.console.warn(f"the certificate of {entry.kind} {entry.name} {_ends_text(entry, now)}")


def _pki(session: CommandContext, folder: str | None, authority_key: str | None = None) -> CertificateStore:
    from moorings.pki.folder import CertificateStore

    path = Path(folder).expanduser().absolute() if folder else config_folder(session.environment) / "pki"
    return CertificateStore(path, Path(authority_key).absolute() if authority_key else None)


def _report_finished(session: CommandContext, found: CertificateStore, but: Path | None = None) -> None:
    for file in found.finished:
        if file != but:
            session.console.print_line(f"completed an interrupted earlier run: {file} and its key are new")


def _now(session: CommandContext) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=session.now())


def _is_due(entry: CertificateEntry, now: datetime) -> bool:
    return entry.days_left(now) < SOON_DAYS or not entry.is_current or not entry.key_matches


def _state(entry: CertificateEntry, now: datetime) -> str:
    if not entry.key_matches:
        return "WRONG_KEY"
    if entry.days_left(now) < 0:
        return "EXPIRED"
    if entry.days_left(now) < SOON_DAYS:
        return "ENDS_SOON"
    return "VALID" if entry.is_current else "OLD_AUTHORITY"


def _ends_text(entry: CertificateEntry, now: datetime) -> str:
    days = entry.days_left(now)
    return (
        f"ends in {days} days: 'moor pki rotate' renews it" if days >= 0 else "has ended: 'moor pki rotate' renews it"
    )


def _names(entry: CertificateEntry) -> str:
    return ", ".join(entry.names)


def _entry_data(entry: CertificateEntry, now: datetime) -> dict[str, object]:
    fields = asdict(entry)
    return {
        "kind": fields["kind"],
        "name": fields["name"],
        "hosts": list(entry.names),
        "serial": entry.serial,
        "endsAt": f"{entry.not_after:%Y-%m-%dT%H:%M:%SZ}",
        "daysLeft": entry.days_left(now),
        "state": _state(entry, now),
        "file": str(entry.file),
    }
