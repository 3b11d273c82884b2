"""``csctl``: ``moor wafer`` for people and scripts used to the vendor's command; installed only on request.

The installed file starts this module with the Python that has Moorings. A second console script was refused: every
machine with Moorings would then have a ``csctl``, also those with the vendor's.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.files import write_atomically

FILE_NAME = "csctl"
DEFAULT_SESSION = "default"
_VENDORS_DEFAULT = "job-operator"  # the vendor's namespace if none is given
_MARK = "# csctl of Moorings"
_NAMESPACE = re.compile(r"(?:-n|--namespace)(?:=(.*))?|-n(.+)", re.DOTALL)
_PASSED_OVER = re.compile(r"(?P<config>--csconfig|--config-path)(?:=.*)?|(?:-d|--debug)(?:=.*)?|-d\d+", re.DOTALL)
_JOINED = re.compile(r"(-[olp])=(.*)", re.DOTALL)  # -o=json, which the vendor's command reads as -o json


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The same command line for ``moor wafer``, and the notes to print about it.

    Raises:
        MooringsError: ``name.invalid``: a flag without its value.
    """
    words, notes, sessions = list(arguments), [], []
    translated: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            translated += [word, *words]
            break
        if (found := _NAMESPACE.fullmatch(word)) is not None:
            value = found[1] if found[1] is not None else found[2]
            sessions = [value if value is not None else _value(word, words)]
        elif (found := _PASSED_OVER.fullmatch(word)) is not None:
            if "=" not in word and not re.fullmatch(r"-d\d+", word):
                _value(word, words)
            if found["config"]:
                notes.append(f"{found['config']} is passed over: see 'moor config view' for where the controller is")
        elif (found := _JOINED.fullmatch(word)) is not None:
            translated += [found[1], found[2]]
        else:
            translated.append(word)
    asked = ["--session", DEFAULT_SESSION if sessions == [_VENDORS_DEFAULT] else sessions[0]] if sessions else []
    at = translated.index("--") if "--" in translated else len(translated)
    return [*translated[:at], *asked, *translated[at:]], notes


def _value(flag: str, words: list[str]) -> str:
    if not words:
        raise MooringsError("name.invalid", f"{flag} needs a value", hint="see 'csctl --help'")
    return words.pop(0)


def install(folder: Path) -> Path:
    """Write the file ``csctl`` into ``folder``, or replace it if it is ours; return its path.

    Raises:
        MooringsError: ``config.invalid``: the file is not ours, or cannot be written.
    """
    path = folder / FILE_NAME
    try:
        if (path.exists() or path.is_symlink()) and not _ours(path):
            raise MooringsError(
                "config.invalid", f"{path} is there already, and not ours", hint="name another folder, or remove it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, script(sys.executable).encode(), mode=0o755, durable=False)
    except OSError as error:
        raise MooringsError(
            "config.invalid", f"{path} cannot be written: {format_cause(error)}", hint="name another folder"
        ) from error
    return path


def script(python: str) -> str:
    """The file's text. ``-P``: modules in the current folder are not ours."""
    start = f"exec {shlex.quote(python)} -P -m moorings.cli.csctl"
    return f"#!/bin/sh\n{_MARK}, by 'moor wafer install-csctl'\n{start} \"$@\"\n"


def _ours(path: Path) -> bool:
    with path.open("rb") as file:
        return _MARK.encode() in file.read(200)


def main() -> int:
    """Run one command; return the exit code."""
    from moorings.cli.main import main as moor
    from moorings.terminal.console import Console
    from moorings.terminal.errors import error_lines, exit_code

    console = Console(os.environ)
    try:
        arguments, notes = translate(sys.argv[1:])
    except MooringsError as error:
        for line in error_lines(error):
            console.error(line)
        return exit_code(error)
    for note in notes:
        console.info(f"note: {note}")
    return moor(["wafer", *arguments])


if __name__ == "__main__":
    sys.exit(main())
