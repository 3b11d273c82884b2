"""The first access key: the user who starts a controller on a fresh data folder is its admin.

The key goes to a 0600 file of that user, in the form ``moor`` reads; it is never printed. It never expires: without it
no other could be made. A context that points to another controller is left alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from moorings.app.folders import replace_private_file
from moorings.cli.processes import user_subject
from moorings.controller.keys import AccessKeyManager
from moorings.core.model.access import Role
from moorings.core.model.errors import MooringsError
from moorings.pki.files import client_certificate, client_key

log = logging.getLogger("moorings.controller")

Contexts = dict[str, dict[str, str]]


async def ensure_admin(
    keys: AccessKeyManager, path: Path, context: str, url: str, certificate: Path | None = None
) -> None:
    """Ensure that the file has an admin's access key for the controller at ``url``.

    If the controller's ``certificate`` is in a folder made by ``moor pki init``, the file also names the files of it
    that the admin needs.

    A working key is kept (its address may have changed); a dead key for this very address (its data folder is gone) is
    replaced; a context that points elsewhere belongs to another controller: it is left alone, and the key goes to
    ``<context>-<port>``.

    Raises:
        MooringsError: ``config.invalid`` if the file cannot be read or written.
    """
    contexts = _read(path)
    known = contexts.get(context, {})
    if await _is_admin_key(keys, known.get("access_key", "")):
        now = {**_tls_files(certificate), **known, "server": url}
        if now != known:
            _write(path, contexts | {context: now})
        return
    if known.get("server", url) != url:
        log.info("credentials.kept", extra={"file": str(path), "context": context, "server": known["server"]})
        own = f"{context}-{urlsplit(url).port}"
        if own not in contexts or not await _is_admin_key(keys, contexts[own].get("access_key", "")):
            await _create_admin_key(keys, path, own, url, certificate)
        return
    await _create_admin_key(keys, path, context, url, certificate)


async def _create_admin_key(
    keys: AccessKeyManager, path: Path, context: str, url: str, certificate: Path | None
) -> None:
    _, secret = await asyncio.to_thread(keys.create, user_subject(), Role.ADMIN, None, "the first start", 0.0)
    _write(path, _read(path) | {context: {"server": url, "access_key": secret, **_tls_files(certificate)}})
    log.info("credentials.written", extra={"file": str(path), "context": context})


def _tls_files(certificate: Path | None) -> dict[str, str]:
    """The authority, certificate and key that this user needs, if they are beside the controller's certificate."""
    if certificate is None:
        return {}
    folder, subject = certificate.parent, user_subject()
    found = {"ca_file": folder / "ca.pem"}
    own = {"cert_file": client_certificate(folder, subject), "key_file": client_key(folder, subject)}
    if all(file.is_file() for file in own.values()):
        found |= own
    return {name: str(file) for name, file in found.items() if file.is_file()}


def _write(path: Path, contexts: Contexts) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private_file(path, _render(contexts))
    except OSError as error:
        raise MooringsError("config.invalid", f"{path} cannot be written: {error}") from error


async def _is_admin_key(keys: AccessKeyManager, secret: str) -> bool:
    try:
        return bool(secret) and (await keys.authenticate(secret)).role is Role.ADMIN
    except MooringsError:
        return False


def _read(path: Path) -> Contexts:
    if not path.exists():
        return {}
    try:
        top = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MooringsError("config.invalid", f"{path}: {error}", hint="mend or remove the file") from error
    found = top.get("contexts", {})
    tables = isinstance(found, dict) and all(isinstance(values, dict) for values in found.values())
    if not tables or set(top) - {"contexts"}:
        raise MooringsError("config.invalid", f"{path}: only [contexts.NAME] tables are known here")
    return {name: {key: str(value) for key, value in values.items()} for name, values in found.items()}


def _render(contexts: Contexts) -> str:
    """The file's text."""
    lines = ["# Access keys of this user, read by moor. Keep it 0600.\n"]
    for name, values in contexts.items():
        lines.append(f"\n[contexts.{_quoted(name)}]\n")
        lines += [f"{_key(key)} = {_quoted(value)}\n" for key, value in values.items()]
    return "".join(lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    """As TOML: a JSON string, but without lone surrogates and bare DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
