"""The place of the line that loads the plugin: ``plugstack.conf`` itself, or an included file.

Configless Slurm (``enable_configless``) distributes ``plugstack.conf``, but no included folder. So the line stands in
the file itself wherever that file is ours. A site's own file is left alone: if it includes ``plugstack.conf.d``, as
Debian's does, our line goes there. The line must never be read twice, not even for a moment: then ``--ipus`` makes srun
crash (22.05 to 26.05).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from moorings.slurm.host.site import Site
from moorings.slurm.slurm_conf import plugstack_includes, plugstack_lines

PLUGIN = "moorings_spank.so"
PLUGSTACK_FILE = "moorings.conf"
PLUGSTACK_FOLDER = "plugstack.conf.d"


class LineLocation(StrEnum):
    """Where the line that loads the plugin belongs."""

    FILE = "file"  # in plugstack.conf, which is ours
    FOLDER = "folder"  # in a file of ours, included by plugstack.conf
    SITE = "site"  # in the site's own plugstack.conf: the site writes it


@dataclass(frozen=True, slots=True)
class PluginLine:
    """A line that loads the plugin.

    Attributes:
        file: its file.
        path: the plugin's.
        arguments: of the plugin.
    """

    file: Path
    path: str
    arguments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlugstackFiles:
    """The plugstack files of a machine.

    Attributes:
        texts: of plugstack.conf and its included files.
        replaceable: files of ours, among these or at our paths, that are unchanged.
    """

    texts: Mapping[Path, str] = field(default_factory=dict)
    replaceable: Collection[Path] = frozenset()


def include_file_of(site: Site) -> Path:
    """Return our own file with the line, in the folder that plugstack.conf may include."""
    return site.folder / PLUGSTACK_FOLDER / PLUGSTACK_FILE


def plugin_lines(texts: Mapping[Path, str]) -> list[PluginLine]:
    """Return the lines that load the plugin: one, if all is well."""
    return [PluginLine(file, *line) for file, text in texts.items() for line in plugstack_lines(text, PLUGIN)]


def installed_arguments(texts: Mapping[Path, str]) -> tuple[str, int]:
    """Return the agent's address and the wait of nodes in seconds, from the line that loads the plugin.

    Empty, and 0: there is no such line, or it has no such argument.
    """
    arguments = next((line.arguments for line in plugin_lines(texts)), {})
    wait = arguments.get("wait", "")
    return arguments.get("agent", ""), int(wait) if re.fullmatch("[0-9]{1,4}", wait) else 0


def agent_uid_of(site: Site, line: PluginLine | None) -> int:
    """Return the agent's uid that nodes trust besides root; without a visible line it is SlurmUser's, the default."""
    if line is None:
        return max(site.slurm_user[1], 0)
    uid = line.arguments.get("agent_uid", "0")
    return int(uid) if uid.isdecimal() else 0


def is_handed_out(site: Site, line: PluginLine) -> bool:
    """Whether configless Slurm gives the line to its nodes: only plugstack.conf beside slurm.conf, no included file.

    24.11 and 26.05 also distribute a file included by its bare name; 22.05 does not.
    """
    return line.file == site.folder / "plugstack.conf"


def choose_location(site: Site, stack: PlugstackFiles) -> LineLocation:
    """Return where the line belongs so that it is read once, whatever happens to the site's own files."""
    loader = include_file_of(site)
    if site.plugstack not in stack.texts:
        return LineLocation.FILE
    takes_in = any(plugstack_includes(text, str(loader), str(file.parent)) for file, text in stack.texts.items())
    if site.plugstack in stack.replaceable:
        others = stack.texts.keys() - {site.plugstack, loader}  # others' files, which only this one includes
        changed = loader in stack.texts and loader not in stack.replaceable
        return LineLocation.FOLDER if takes_in and (others or changed) else LineLocation.FILE
    elsewhere = any(line.file != loader for line in plugin_lines(stack.texts))
    begun = loader in stack.texts or not site.configless
    return LineLocation.FOLDER if takes_in and begun and not elsewhere else LineLocation.SITE


def why_to_write(site: Site, stack: PlugstackFiles, path: Path, arguments: Mapping[str, str]) -> str:
    """Return why the site must write the line into its own plugstack.conf; empty: it need not.

    Args:
        site: with that file.
        stack: its plugstack files.
        path: the plugin's desired path.
        arguments: the desired ones; more are the site's own choice.
    """
    place, lines = choose_location(site, stack), plugin_lines(stack.texts)
    if place is LineLocation.FILE:
        return ""
    if site.configless and not any(is_handed_out(site, line) for line in lines):
        why = "slurmctld hands out this file and not what it takes in (enable_configless)"
        if not lines:
            return why
        return f"{why}; and let it not take in {lines[0].file} any more: loaded twice, the plugin makes srun crash"
    if place is LineLocation.FOLDER:
        return ""
    if not lines:
        return "the site has a plugstack.conf: let it load the plugin"
    line = next((line for line in lines if line.file != include_file_of(site)), lines[0])
    if (line.path, {name: line.arguments.get(name) for name in arguments}) == (str(path), arguments):
        return ""
    return f"in place of the one in {line.file}, which differs"
