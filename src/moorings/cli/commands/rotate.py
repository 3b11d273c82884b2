"""``moor rotate``: a new secret for an access key, also in the credentials file if the old one is from there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, complete_names, examples, strip_nouns
from moorings.cli.printing import ResourcePrinter, make_printer, output_option
from moorings.cli.resources import KEYS
from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.terminal.configuration import credentials_file, read_private
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import parse_lifetime_s, parse_seconds
from moorings.wire.shapes import KeyBody, RotateRequest

rotate = NounGroup(
    name="rotate",
    help="Give an access key a new secret.",
    epilog=examples(
        "moor rotate key", "moor rotate key 3hq2abcdef --grace 0", "moor rotate key 3hq2abcdef --expires 90d"
    ),
    no_args_is_help=True,
)


@rotate.command("key", cls=MoorCommand)
@click.argument("ident", metavar="[KEY]", required=False, shell_complete=complete_names("key"))
@click.option(
    "--grace",
    metavar="DURATION",
    help="The old secret still works for so long, as 1h; 30d at most (1d).",
)
@click.option(
    "--expires",
    metavar="DURATION",
    help="Another lifetime, as 90d, or never; for admins (as long as before).",
)
@output_option
@click.pass_obj
def rotate_key(
    session: CommandContext, ident: str | None, *, grace: str | None, expires: str | None, output: str | None
) -> None:
    """Give the key in use, or as an admin any KEY, a new secret.

    The key stays the same one, and lives as long again as it was to live before. If it is from your credentials file,
    the new secret is written there; else it is shown, this once. Claims and runs of the key's holder continue.
    """
    shown = make_printer(session, output, usual="table")
    request = RotateRequest(
        grace_s=None if grace is None else parse_seconds(grace),
        lifetime_s=None if expires is None else parse_lifetime_s(expires),
    )
    secret = session.configuration.text("access_key")
    own = secret.split("_")[1] if secret.count("_") == 2 else ""
    chosen = own if ident is None else strip_nouns("key", [ident])[0]
    if not chosen:
        raise MooringsError("auth.missing", "there is no access key to rotate", hint="name one: moor rotate key KEY")
    if chosen == own and _from_file(session):
        _rotate_in_file(session, shown, chosen, request, secret)
    else:
        _show(shown, _rotate(session, chosen, request))


def _from_file(session: CommandContext) -> bool:
    origin = session.configuration.values["access_key"].origin
    return origin.startswith(f"{credentials_file(session.environment)} ")


def _rotate(session: CommandContext, ident: str, request: RotateRequest) -> KeyBody:
    with (
        session.new_client() as client
    ):  # a separate client: the warning that the old secret ends soon would be no news
        try:
            return client.rotate_key(ident, request)
        except MooringsError as error:
            if error.code == "controller.unreachable" and client.requests_sent:
                error.hint = "the old secret may have been replaced, and works until its grace is over: ask again"
            raise


def _rotate_in_file(
    session: CommandContext, shown: ResourcePrinter, ident: str, request: RotateRequest, secret: str
) -> None:
    path = credentials_file(session.environment).resolve()  # a link stays a link
    with _draft_of(path) as draft:  # before the secret is replaced: a read-only folder is reported in time
        _with_new_secret(path, secret, "")
        key = _rotate(session, ident, request)
        fresh = key.secret or ""
        try:
            # Read again: another moor may have written. Every context with this key gets the new secret: one key,
            # several addresses.
            _replace_file(draft, path, _with_new_secret(path, secret, fresh))
        except (OSError, MooringsError) as error:
            why = format_cause(error) if isinstance(error, OSError) else error.detail
            session.console.warn(f"{path} could not be written ({why}): put the new secret there yourself")
            _show(shown, key)
            return
    _test_secret(session, fresh)
    if shown.form.name == "table":
        session.console.print_line(f"key/{key.id} rotated{_until(key)}; the new secret is in {path}")
    else:
        shown.show_one(KEYS, replace(key, secret=None))


def _with_new_secret(path: Path, secret: str, fresh: str) -> str:
    """The text of the file with the new secret.

    Raises:
        MooringsError: ``config.invalid``, ``credentials.unsafe``.
    """
    text = read_private(path)
    if secret not in text:  # written with escapes, or changed by another moor
        raise MooringsError("config.invalid", f"{path} does not have the access key", hint="write it there as it is")
    return text.replace(secret, fresh)


@contextlib.contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """A private file beside ``path``; it is removed afterwards unless it was renamed to ``path``.

    Raises:
        MooringsError: ``config.invalid``.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise MooringsError(
            "config.invalid",
            f"{path} cannot be replaced: {format_cause(error)}",
            hint="nothing was changed; with MOORINGS_ACCESS_KEY_FILE the new secret is shown, not written",
        ) from error
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _replace_file(draft: Path, path: Path, text: str) -> None:
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _test_secret(session: CommandContext, secret: str) -> None:
    """Use the new secret once: from then on the old one cannot request another."""
    from moorings.client.client import Client
    from moorings.client.transport import Transport

    try:
        with Client(Transport(replace(session.build_endpoint(), access_key=secret))) as client:
            client.list_pools()
    except MooringsError as error:
        session.console.warn(f"the new secret could not be tested: {error.detail}")


def _show(shown: ResourcePrinter, key: KeyBody) -> None:
    if shown.form.name != "table":
        shown.show_one(KEYS, key)
        return
    console = shown.session.console
    console.info(f"key/{key.id} of {key.subject} ({key.role}) rotated{_until(key)}. Its new secret is shown only now:")
    console.print_line(key.secret or "")


def _until(key: KeyBody) -> str:
    works = f", works until {key.expires_at[:19]}Z" if key.expires_at is not None else ""
    old = key.old_secret_until or ""
    grace = (
        f"until {old[:19]}Z" if old > (key.rotated_at or "") else "no longer"
    )  # in one format, so they sort as times do
    return f"{works}; the old secret works {grace}"
