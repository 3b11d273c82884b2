"""The effective settings of a data folder's controller, for other programs on its machine.

A running controller's command line and variables are read from ``/proc``, so that a backup or a doctor sees the pools
file it really uses. A file written by the controller was refused: it could be stale.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from moorings.app.logs import without_secrets
from moorings.app.settings import Settings, read_settings
from moorings.cli.processes import ControllerProcess, find_running
from moorings.core.model.errors import MooringsError
from moorings.wire.errors import ExitCode

_MODULE = "moorings.app.controller"
_TAKEN = ("MOORINGS_", "XDG_", "HOME", "STATE_DIRECTORY", "PG")


def read_effective_settings(data: Path, flags: Sequence[str] = ()) -> tuple[Settings, ControllerProcess | None]:
    """The settings of a folder's controller, and its process, if it runs.

    Args:
        data: the folder.
        flags: further flags for its start; a running one has its own.

    Raises:
        MooringsError: ``config.invalid``: they are unusable, or the folder is another user's.
    """
    running = find_running(data)
    found = _read_start_arguments(running.pid) if running is not None else None
    if found is None:
        return read_settings(["--data", str(data), *flags], os.environ), running
    arguments, environment, at = found
    return read_settings(arguments, environment, at), running


def _read_start_arguments(pid: int) -> tuple[list[str], Mapping[str, str], Path] | None:
    """Arguments, variables and working folder of a controller's process; None if they cannot be read."""
    try:
        words = _parts(pid, "cmdline")
        variables = dict(part.split("=", 1) for part in _parts(pid, "environ") if "=" in part)
        at = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None
    if _MODULE not in words:
        return None
    taken = {name: value for name, value in variables.items() if name.startswith(_TAKEN)}
    return words[words.index(_MODULE) + 1 :], taken, at


def _parts(pid: int, name: str) -> list[str]:
    return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes()).split("\0")[:-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the settings of a folder's controller as JSON, without the database's password (``moor diag``)."""
    parser = ArgumentParser(prog="moorings-settings")
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args(sys.argv[1:] if arguments is None else arguments).data.absolute()
    try:
        settings, running = read_effective_settings(data)
    except MooringsError as error:
        sys.stdout.write(json.dumps({"problem": error.detail, "code": error.code}) + "\n")
        return ExitCode.OK
    values: dict[str, object] = {item.name: getattr(settings, item.name) for item in fields(Settings)}
    values["database"] = without_secrets(settings.database)
    values["running"] = running.pid if running is not None else None
    sys.stdout.write(json.dumps(values, default=str, indent=2) + "\n")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
