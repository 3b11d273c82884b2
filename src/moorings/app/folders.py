"""The data folder: made with the right modes, used by one controller at a time, telling others where that one listens.

The lock is held by ``flock`` for the life of the process, so no crash leaves it behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

from moorings import __version__
from moorings.core.errors import MooringsError

PEPPER_BYTES = 32
_NEW_PEPPER = "put the file back; removed, a new one is made and every access key is void"

DEFAULT_POOLS = """\
# The pools of this controller: which devices there are, how they are wired, and which driver talks to them.
# Change it and restart the controller. All settings: docs/reference/simulated.md

[[pool]]
name = "pod64"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 64, max_block = 64 }
"""


class DataFolder:
    """A locked data folder.

    Raises:
        MooringsError: ``controller.running`` if another controller holds it; ``config.invalid`` if it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_uid != os.getuid():
                raise MooringsError(
                    "config.invalid", f"{path} belongs to another user", hint="use a folder of your own"
                )
            path.chmod(0o700)
            self._lock = os.open(path / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MooringsError("config.invalid", f"the data folder {path} cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise MooringsError(
                "controller.running",
                f"another controller uses {path}{_who(path)}",
                hint="'moor status' shows it; 'moor down' stops it; or use another --data folder",
            ) from None

    def pepper(self) -> bytes:
        """The secret that access keys are digested with; made at the first start, kept outside the database.

        Raises:
            MooringsError: ``config.invalid``.
        """
        path = self.path / "pepper"
        if not path.exists():
            write_private(path, secrets.token_hex(PEPPER_BYTES))
        try:
            pepper = bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise MooringsError("config.invalid", f"{path} cannot be read: {error}", hint=_NEW_PEPPER) from error
        if len(pepper) != PEPPER_BYTES:
            raise MooringsError("config.invalid", f"{path} does not hold {PEPPER_BYTES} bytes", hint=_NEW_PEPPER)
        return pepper

    def pools_file(self, chosen: Path | None) -> Path:
        """The pools file: the chosen one, or the folder's own, made with the default pool if it is missing."""
        path = chosen or self.path / "pools.toml"
        if chosen is None and not path.exists():
            write_private(path, DEFAULT_POOLS)
        return path

    def announce(self, url: str) -> None:
        """Tell where this controller listens and which process it is (start ticks tell it from a later namesake)."""
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        told = {"pid": os.getpid(), "startTicks": ticks, "url": url, "version": __version__}
        write_private(self.path / "controller.json", json.dumps(told) + "\n")

    def close(self) -> None:
        """Take the announcement back and let the folder go."""
        (self.path / "controller.json").unlink(missing_ok=True)
        os.close(self._lock)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _who(path: Path) -> str:
    try:
        told = json.loads((path / "controller.json").read_text(encoding="utf-8"))
        return f" (process {int(told['pid'])}, {told['url']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
