"""What of this shell a job of ``moor run`` gets: by flags, files of variables, and where the job will run."""

from __future__ import annotations

import enum
import errno
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.client.transport import socket_path
from moorings.core.model.errors import MooringsError
from moorings.terminal.configuration import RECORD_NAME, data_folder
from moorings.workloads.environment import ALL, BASIC, ENVIRONMENT_CHARS_MAX, NONE, parse_env_file

_RECORD_BYTES_MAX = 1 << 16
_UTF8_BYTES_MAX = 4  # of a character


class JobPlace(enum.Enum):
    """Where a job will run, as seen from this command."""

    OWN = "this machine, by this user's controller"
    SHARED = "this machine, as this user, by the controller of all"
    ELSEWHERE = "somewhere else, or as somebody else"


def find_place(server: str, engine: str, environment: Mapping[str, str]) -> JobPlace:
    """Where the jobs of an engine behind that server run.

    An address is no proof of a machine: it may be a tunnel's. That a controller of this user's data folder listens
    there is one.
    """
    if engine != "local":
        return JobPlace.ELSEWHERE
    if socket_path(server) is not None:
        return JobPlace.SHARED
    record = data_folder(environment) / RECORD_NAME
    try:
        with record.open("rb") as file:
            is_ours = os.fstat(file.fileno()).st_uid == os.geteuid()
            url = str(json.loads(file.read(_RECORD_BYTES_MAX))["url"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return JobPlace.ELSEWHERE
    return JobPlace.OWN if is_ours and url.rstrip("/") == server.rstrip("/") else JobPlace.ELSEWHERE


def choose_export(place: JobPlace, engine: str) -> str:
    """Which variables travel if neither a flag nor the job file says it; an image has variables of its own."""
    if engine == "kubernetes":
        return NONE
    return ALL if place is JobPlace.OWN or engine == "slurm" else BASIC


def read_env_files(paths: Sequence[str], folder: Path, warn: Callable[[str], None]) -> dict[str, str]:
    """The variables of files of ``NAME=value`` lines; a later file wins.

    Args:
        paths: the files.
        folder: relative ones start from it.
        warn: gets a sentence about a file that others can read.

    Raises:
        MooringsError: ``job.invalid``, with file and line.
    """
    found: dict[str, str] = {}
    for each in paths:
        path = folder / each
        try:
            text, mode = read_regular_text(path, _UTF8_BYTES_MAX * ENVIRONMENT_CHARS_MAX)
        except (OSError, UnicodeDecodeError) as error:
            raise MooringsError("job.invalid", f"the file {path} cannot be read: {format_cause(error)}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            warn(f"other users can read {path}, and secrets in it: chmod 600 {path}")
        found |= parse_env_file(text, source=str(path))
    return found


def read_regular_text(path: Path, bytes_max: int) -> tuple[str, int]:
    """The text of a regular file, and its mode; ``O_NONBLOCK``, as opening a FIFO would wait for a writer for ever.

    Raises:
        OSError, UnicodeDecodeError: it is none, or none that can be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes")
    return content.decode(), mode


def named_variables(given: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """``NAME=VALUE`` unchanged, ``NAME`` with this shell's value.

    Raises:
        MooringsError: ``job.invalid``: there is no such variable.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in environment:
            raise MooringsError(
                "job.invalid", f"--env {name[:80]}: there is no such variable here", hint="give it as --env NAME=VALUE"
            )
        found[name] = value if equals else environment[name]
    return found
