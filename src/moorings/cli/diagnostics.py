"""The contents of a ``moor diag`` bundle: everything support asks for first, and no secret.

Each piece is collected by itself: if one fails, the bundle's README says so and the others are still there. Each piece
is bounded, so that the bundle of the largest site can still be sent. The output of jobs belongs to the users and is
left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path

from moorings import __version__
from moorings.cli.examination import examine
from moorings.cli.processes import LOG_NAME
from moorings.cli.redaction import REDACTED, Redaction, is_secret_name, password_of
from moorings.client.client import Client
from moorings.client.requests import ALL_EVENTS
from moorings.core.model.errors import MooringsError
from moorings.engines.environments import FOLDER as ENVIRONMENTS
from moorings.engines.environments import FolderEnvironments
from moorings.terminal.configuration import NAMES, RECORD_NAME, credentials_file
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode
from moorings.wire.shapes import RunBody

PIECE_BYTES_MAX = 5_000_000
LOG_BYTES = 2_000_000
ITEMS_MAX = 2_000
EVENTS = 2_000
ANSWER_S = 5.0
SETTINGS_S = 10.0
HIDDEN = ("environment",)  # of jobs: only the names are included

ABOUT = """\
What this is: facts about a Moorings installation, for people who help to find a fault. Made by 'moor diag'.

In it:
{inside}
Not in it: access keys, the pepper, passwords, values of jobs' environment variables, private keys and whatever else
looks like a secret (each is replaced by "[left out]"); the output of jobs; the database; other users' files.
Names of users, claims, jobs, partitions and hosts, and jobs' command lines, are in it. Look through it before you
send it on.
{missing}"""


@dataclass(slots=True)
class Bundle:
    """The pieces by file name, and why others are missing."""

    pieces: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def about(self) -> str:
        """The bundle's README."""
        width = max(map(len, self.pieces), default=0)
        lines = (f"  {name:{width}} {len(content):>9} bytes\n" for name, content in sorted(self.pieces.items()))
        inside = "".join(lines)
        missing = "".join(f"  {name:24} {why}\n" for name, why in sorted(self.missing.items()))
        return ABOUT.format(inside=inside, missing=f"\nCould not be had:\n{missing}" if missing else "")

    def tar(self) -> bytes:
        """As a compressed archive."""
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, content in sorted({**self.pieces, "README.txt": self.about().encode()}.items()):
                member = tarfile.TarInfo(f"moorings-diag/{name}")
                member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
                archive.addfile(member, io.BytesIO(content))
        return made.getvalue()


def collect_bundle(session: CommandContext, data: Path) -> Bundle:
    """The bundle of the configured controller, and of the data folder ``data`` on this machine."""
    runs: list[RunBody] = []
    client: Client | None = None
    bundle, unheard = Bundle(), ""
    with contextlib.ExitStack() as closing:
        try:
            client = closing.enter_context(session.new_client(timeout_s=ANSWER_S))
            runs = list(client.list_runs()[:ITEMS_MAX])
        except MooringsError as error:
            unheard = error.detail
        redaction = Redaction(_known_secrets(session, data, runs))
        if unheard:
            bundle.missing["controller"] = redaction.text(unheard)
        for name, piece in _pieces(session, data, client, runs):
            _add_piece(bundle, redaction, name, piece)
    return bundle


def _add_piece(bundle: Bundle, redaction: Redaction, name: str, piece: Callable[[], object]) -> None:
    try:
        made = piece()
    except MooringsError as error:
        bundle.missing[name] = redaction.text(error.detail)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        bundle.missing[name] = redaction.text(str(error))
    else:
        bundle.pieces[name] = _bounded(_text(made, redaction)).encode("utf-8", "replace")


def _text(made: object, redaction: Redaction) -> str:
    if isinstance(made, str):
        return redaction.text(made)
    return json.dumps(redaction.data(made, hidden=HIDDEN), indent=1, ensure_ascii=False, default=str) + "\n"


def _bounded(text: str) -> str:
    return text if len(text) <= PIECE_BYTES_MAX else f"{text[:PIECE_BYTES_MAX]}\n[the rest is left out: too long]\n"


def _pieces(
    session: CommandContext, data: Path, client: Client | None, runs: Sequence[RunBody]
) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "doctor.json", lambda: [encode(finding) for finding in examine(session, data)]
    yield "versions.json", _versions
    yield "machine.json", lambda: _machine(data)
    yield "command.json", lambda: _command(session)
    yield "settings.json", lambda: _settings(data)
    yield "pools.toml", lambda: _pools(data)
    yield "controller.json", lambda: (data / RECORD_NAME).read_text(encoding="utf-8", errors="replace")
    yield "controller.log", lambda: _tail(data / LOG_NAME)
    if client is None:
        return
    yield "controller/version.json", lambda: encode(client.version())
    yield "controller/metrics.txt", client.metrics
    yield "controller/pools.json", lambda: _items(client.list_pools())
    yield "controller/devices.json", lambda: _items(client.list_devices())
    yield "controller/partitions.json", lambda: _items(client.list_partitions())
    yield "controller/claims.json", lambda: _items(client.list_claims())
    yield "controller/runs.json", lambda: _items(runs)
    yield "controller/events.json", lambda: _items(client.last_events(ALL_EVENTS, EVENTS))


def _items(bodies: Sequence[object]) -> dict[str, object]:
    return {"of": len(bodies), "items": [encode(body) for body in bodies[:ITEMS_MAX]]}


def _known_secrets(session: CommandContext, data: Path, runs: Sequence[RunBody]) -> Iterator[str]:
    """Secret values to remove wherever they occur."""
    with contextlib.suppress(OSError):
        yield (data / "pepper").read_text(encoding="ascii", errors="replace").strip()
    with contextlib.suppress(OSError, ValueError):
        top = tomllib.loads(credentials_file(session.environment).read_text(encoding="utf-8"))
        yield from (str(context.get("access_key", "")) for context in top.get("contexts", {}).values())
    with contextlib.suppress(MooringsError):
        yield session.configuration.text("access_key")
        yield password_of(session.configuration.text("server"))
    yield from _secret_values(session.environment)
    yield from filter(None, map(password_of, session.environment.values()))
    with contextlib.suppress(OSError, ValueError):  # the answers have no values; those of an older controller do
        places = {folder.parent.name: folder.parent for folder in data.glob(f"*/{ENVIRONMENTS}")}
        for _, _, kept in islice(FolderEnvironments(places).all(), ITEMS_MAX):
            yield from _secret_values(kept)
    for run in runs:
        yield from _secret_values(run.job.environment)


def _secret_values(variables: Mapping[str, str]) -> Iterator[str]:
    return (value for name, value in variables.items() if is_secret_name(name))


def _versions() -> dict[str, object]:
    installed = sorted({f"{found.metadata['Name']} {found.version}" for found in distributions()})
    return {"moorings": __version__, "python": sys.version, "packages": installed}


def _machine(data: Path) -> dict[str, object]:
    facts: dict[str, object] = {"uname": " ".join(platform.uname()), "cores": os.cpu_count(), "load": os.getloadavg()}
    release = Path("/etc/os-release")
    for name, path in (("release", release), ("memory", Path("/proc/meminfo")), ("limits", Path("/proc/self/limits"))):
        with contextlib.suppress(OSError):
            facts[name] = path.read_text(encoding="utf-8", errors="replace").splitlines()[:30]
    with contextlib.suppress(OSError):
        disk = os.statvfs(data)
        facts["dataDisk"] = {"bytes": disk.f_blocks * disk.f_frsize, "free": disk.f_bavail * disk.f_frsize}
        facts["dataFiles"] = {
            entry.name: {"bytes": status.st_size, "mode": f"{status.st_mode & 0o7777:04o}", "user": status.st_uid}
            for entry in sorted(os.scandir(data), key=lambda entry: entry.name)
            for status in [entry.stat(follow_symlinks=False)]
        }
    return facts


def _command(session: CommandContext) -> dict[str, object]:
    values = session.configuration.values
    shown = {name: values[name] for name in NAMES if name in values}
    return {
        name: {"value": REDACTED if name == "access_key" else value.text, "origin": value.origin}
        for name, value in shown.items()
    }


def _settings(data: Path) -> object:
    argv = [sys.executable, "-m", "moorings.app.effective_settings", "--data", str(data)]
    done = subprocess.run(argv, capture_output=True, timeout=SETTINGS_S, check=True, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)


def _pools(data: Path) -> str:
    """The pools file that the settings name, or the folder's own."""
    settings = _settings(data)
    named = settings.get("pools") if isinstance(settings, dict) else None
    path = Path(named) if isinstance(named, str) else data / "pools.toml"
    return path.read_text(encoding="utf-8", errors="replace")


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        content = file.read(LOG_BYTES).decode("utf-8", "replace")
    return content if size <= LOG_BYTES else content.partition("\n")[2]  # the first line is cut
