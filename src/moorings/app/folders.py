"""A controller's folders, made with the right modes; the lock and the address of the one controller of a data folder.

``flock`` holds the lock for the life of the process, so no crash leaves it behind.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import time
from pathlib import Path

from moorings import __version__
from moorings.cli.processes import owner_hint
from moorings.core.model.errors import MooringsError
from moorings.files import lock_file, write_atomically

PEPPER_BYTES = 32
RUNS = "runs"  # in the data folder, unless a setting says otherwise
KUBERNETES_RUNS = "kubernetes-runs"  # in the data folder
ARCHIVE = "archive"  # likewise, for records that have left the database
PROTECT_FILE = "restored.json"  # while it exists, partitions without a record are left alone (``app.backup``)
RESTORE_PENDING_FILE = "restoring.json"  # a restore is unfinished: the folder's contents are unusable
DRAFT_AGE_S_MAX = 60.0  # a draft older than that is of a killed writer; a younger one may still be in use
_DRAFT = re.compile(r"\.(controller\.json|pepper|pools\.toml)\.\d+\.tmp")
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
        MooringsError: ``controller.running`` if another controller holds the lock; ``config.invalid`` if the folder is
            unusable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _create_private(path)
        try:
            lock = lock_file(path / "controller.lock")
        except OSError as error:
            raise MooringsError("config.invalid", f"the data folder {path} cannot be used: {error}") from error
        if lock is None:
            raise MooringsError(
                "controller.running",
                f"another controller uses {path}{_controller_text(path)}",
                hint="'moor status' shows it; 'moor down' stops it; or use another --data folder",
            )
        self._lock = lock
        for draft in path.iterdir():
            if _DRAFT.fullmatch(draft.name):  # of a controller killed while writing; it may hold the pepper
                draft.unlink(missing_ok=True)

    def write_address(self, url: str) -> None:
        """Publish the controller's address and process (start ticks identify it if the process id is reused)."""
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        record = {"pid": os.getpid(), "startTicks": ticks, "url": url, "version": __version__}
        replace_private_file(self.path / "controller.json", json.dumps(record) + "\n")

    def close(self) -> None:
        """Remove the published address and unlock the folder."""
        (self.path / "controller.json").unlink(missing_ok=True)
        os.close(self._lock)


class SharedFolder:
    """The part of an installation that its controllers share; the data folder, if there is only one controller.

    Args:
        path: the folder; made if missing.

    Raises:
        MooringsError: ``config.invalid`` if it is unusable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _create_private(path)

    def pepper(self) -> bytes:
        """The secret for the digests of access keys; made at the first start, kept outside the database.

        Raises:
            MooringsError: ``config.invalid``.
        """
        path = self.path / "pepper"
        if not path.exists():
            create_private_file(path, secrets.token_hex(PEPPER_BYTES))
        try:
            pepper = bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise MooringsError("config.invalid", f"{path} cannot be read: {error}", hint=_NEW_PEPPER) from error
        if len(pepper) != PEPPER_BYTES:
            raise MooringsError("config.invalid", f"{path} does not hold {PEPPER_BYTES} bytes", hint=_NEW_PEPPER)
        return pepper

    def pools_file(self, chosen: Path | None) -> Path:
        """The pools file: the chosen one, or the folder's own, made with the default pool if missing."""
        path = chosen or self.path / "pools.toml"
        if chosen is None and not path.exists():
            create_private_file(path, DEFAULT_POOLS)
        return path

    def check_installation(self, installation: str, *, led: bool, local_runs: bool) -> None:
        """Check that this folder belongs to the database; a new folder is assigned to it.

        A leader without the folder of its runs would take their jobs for dead and their partitions for free (law 3).

        Args:
            installation: the id in the database.
            led: whether a controller has led from it before.
            local_runs: whether jobs run as processes of this machine.

        Raises:
            MooringsError: ``config.invalid``.
        """
        path = self.path / "installation"
        known = path.read_text(encoding="ascii").strip() if path.exists() else ""
        if not known and (not led or not local_runs):
            create_private_file(path, installation + "\n")
        elif not known:
            raise MooringsError(
                "config.invalid",
                f"{self.path} is new, but controllers of installation {installation} used another shared folder",
                hint="use that folder with --shared; on another machine, copy its pepper and set local_runs = false",
            )
        elif known != installation:
            raise MooringsError(
                "config.invalid",
                f"{self.path} belongs to installation {known[:40]!r}, and the database to {installation}",
                hint="each installation has a folder of its own: choose it with --shared",
            )


def runs_folders(data: Path, runs: Path, slurm: Path | None) -> dict[str, Path]:
    """The folders of runs, by engine.

    Args:
        data: folder of the installation.
        runs: of the runs of this machine.
        slurm: of the runs on Slurm, if there is such an engine.
    """
    found = {"local": runs, "kubernetes": data / KUBERNETES_RUNS}
    return found | ({"slurm": slurm} if slurm is not None else {})


def _create_private(path: Path) -> None:
    """Make a folder that only its owner can use.

    Raises:
        MooringsError: ``config.invalid``.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = path.stat().st_uid
        if owner != os.getuid():
            hint = owner_hint(owner) or "use a folder of your own"
            raise MooringsError("config.invalid", f"{path} belongs to another user", hint=hint)
        path.chmod(0o700)
    except OSError as error:
        raise MooringsError("config.invalid", f"the folder {path} cannot be used: {error}") from error


def create_private_file(path: Path, text: str) -> None:
    """Write a file that only its owner can read, unless it exists: of two concurrent writers one wins."""
    with contextlib.suppress(FileExistsError):
        _write_private(path, text, replace=False)


def replace_private_file(path: Path, text: str) -> None:
    """Replace a file that only its owner can read, whole or not at all."""
    _write_private(path, text, replace=True)


def _write_private(path: Path, text: str, *, replace: bool) -> None:
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # it may hold a secret, and will not be finished
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > DRAFT_AGE_S_MAX:
                old.unlink()
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_atomically(path, text.encode(), replace=replace, temporary=draft)


def _controller_text(path: Path) -> str:
    try:
        record = json.loads((path / "controller.json").read_text(encoding="utf-8"))
        return f" (process {int(record['pid'])}, {record['url']})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""
