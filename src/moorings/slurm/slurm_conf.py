"""Reads Slurm's own text files for facts its commands do not show: ``slurm.conf`` and ``plugstack.conf``.

``scontrol show config`` is the truth where it works. It does not work on a site that still names ``select/vipu``,
because no stock Slurm can load that plugin, and it does not show plugstack files. This module never writes one.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

_PAIR = re.compile(r'([A-Za-z][A-Za-z0-9_]*)\s*[-+]?=\s*("[^"]*"|[^\s"]*)')
_OF_LISTS = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname")


def parse_slurm_conf(text: str) -> dict[str, str]:
    """Return the plain settings of a ``slurm.conf``, by names in lower case; the last of a name counts.

    Lines about nodes and partitions are left out; ``Include`` is not followed.
    """
    found: dict[str, str] = {}
    for line in _lines(text):
        pairs = _PAIR.findall(line)
        if pairs and pairs[0][0].lower() in _OF_LISTS:
            continue
        found |= {name.lower(): value.strip('"') for name, value in pairs}
    return found


def included_files(text: str, folder: str) -> list[str]:
    """Return the file patterns that a ``plugstack.conf`` includes; a relative one is resolved against ``folder``."""
    lines = (line.split() for line in _lines(text))
    return [str(PurePosixPath(folder) / words[1]) for words in lines if words[0].lower() == "include" and words[1:]]


def plugstack_includes(text: str, path: str, folder: str) -> bool:
    """Whether a ``plugstack.conf`` in ``folder`` includes the file ``path`` (absolute)."""
    return any(
        PurePosixPath(pattern).parent == PurePosixPath(path).parent and fnmatch.fnmatchcase(path, pattern)
        for pattern in included_files(text, folder)
    )


def plugstack_lines(text: str, name: str) -> list[tuple[str, dict[str, str]]]:
    """Return path and arguments of each line that loads the plugin file ``name``."""
    found = []
    for line in _lines(text):
        words = line.split()
        if len(words) >= 2 and words[0].lower() in ("optional", "required") and PurePosixPath(words[1]).name == name:
            arguments = {key: value for key, _, value in (word.partition("=") for word in words[2:])}
            found.append((words[1], arguments))
    return found


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").split("\n"):
        plain = line.split("#")[0].strip()
        if plain:
            yield plain
