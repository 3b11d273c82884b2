"""Where the line stands that loads the plugin: in ``plugstack.conf`` itself, or in a file that it takes in.

Configless Slurm (``enable_configless``) hands out ``plugstack.conf`` and no folder that it takes in, so the line stands
in the file itself wherever that file is ours. A site's own is left alone: where it takes ``plugstack.conf.d`` in, as
Debian's does, our line goes there. It must never be read twice, not for a moment: whoever says ``--ipus`` then makes
srun crash (22.05 to 26.05).
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

    FILE = "file"  # into plugstack.conf, which is ours
    FOLDER = "folder"  # into a file of ours, which plugstack.conf takes in
    SITE = "site"  # into the site's own plugstack.conf: the site writes it


@dataclass(frozen=True, slots=True)
class PluginLine:
    """A line that loads the plugin.

    Attributes:
        file: where it stands.
        path: of the plugin.
        arguments: that it gives.
    """

    file: Path
    path: str
    arguments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlugstackFiles:
    """What there is of plugstack files on a machine.

    Attributes:
        texts: of plugstack.conf, and of the files that it takes in.
        replaceable: of these, and of others at our paths, those that we wrote and nobody changed.
    """

    texts: Mapping[Path, str] = field(default_factory=dict)
    replaceable: Collection[Path] = frozenset()


def include_file_of(site: Site) -> Path:
    """Our own file with the line, in the folder that plugstack.conf may take in."""
    return site.folder / PLUGSTACK_FOLDER / PLUGSTACK_FILE


def plugin_lines(texts: Mapping[Path, str]) -> list[PluginLine]:
    """The lines that load the plugin: one, where all is well."""
    return [PluginLine(file, *line) for file, text in texts.items() for line in plugstack_lines(text, PLUGIN)]


def installed_arguments(texts: Mapping[Path, str]) -> tuple[str, int]:
    """Where nodes find the agent, and how many seconds they wait, as the line that loads the plugin has it.

    Empty, and 0: there is no such line, or it does not say.
    """
    arguments = next((line.arguments for line in plugin_lines(texts)), {})
    wait = arguments.get("wait", "")
    return arguments.get("agent", ""), int(wait) if re.fullmatch("[0-9]{1,4}", wait) else 0


def agent_uid_of(site: Site, line: PluginLine | None) -> int:
    """Whose word nodes take for the agent's, besides root's; where no line is seen SlurmUser's, as it is installed."""
    if line is None:
        return max(site.slurm_user[1], 0)
    told = line.arguments.get("agent_uid", "0")
    return int(told) if told.isdecimal() else 0


def is_handed_out(site: Site, line: PluginLine) -> bool:
    """Whether configless Slurm gives the line to its nodes: plugstack.conf beside slurm.conf, and nothing it takes in.

    24.11 and 26.05 also hand out a file that is taken in by its mere name; 22.05 does not.
    """
    return line.file == site.folder / "plugstack.conf"


def choose_location(site: Site, stack: PlugstackFiles) -> LineLocation:
    """Where the line belongs, so that it is read once, whatever is done about the site's own files."""
    loader = include_file_of(site)
    if site.plugstack not in stack.texts:
        return LineLocation.FILE
    takes_in = any(plugstack_includes(text, str(loader), str(file.parent)) for file, text in stack.texts.items())
    if site.plugstack in stack.replaceable:
        others = stack.texts.keys() - {site.plugstack, loader}  # theirs, which nothing else may take in
        changed = loader in stack.texts and loader not in stack.replaceable
        return LineLocation.FOLDER if takes_in and (others or changed) else LineLocation.FILE
    elsewhere = any(line.file != loader for line in plugin_lines(stack.texts))
    begun = loader in stack.texts or not site.configless
    return LineLocation.FOLDER if takes_in and begun and not elsewhere else LineLocation.SITE


def why_to_write(site: Site, stack: PlugstackFiles, path: Path, arguments: Mapping[str, str]) -> str:
    """Why the site must write the line into its own plugstack.conf; empty: it need not.

    Args:
        site: with that file.
        stack: what is there.
        path: of the plugin as it should be loaded.
        arguments: as it should have them; more than these are the site's own business.
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
