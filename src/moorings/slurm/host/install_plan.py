"""The decisions of an installation for Slurm: which files, with which content, and which action on each.

Each file is ours alone, or was missing before. A file of the site is never rewritten, nor is an edited file of ours.
``plugstack`` decides where the line that loads the plugin belongs. The manifest identifies a file of ours by its
digests: the current one and the next one, so that after a kill between the two every file of ours is still recognised.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.plugstack import (
    PLUGIN,
    LineLocation,
    PlugstackFiles,
    choose_location,
    include_file_of,
    plugin_lines,
    why_to_write,
)
from moorings.slurm.host.site import Site, sizes_up_to
from moorings.slurm.host.vipu_conf import AGENT_PORT, FILE_NAME

SUBMIT, LIMITS, JOB_SUBMIT = "moorings_submit.lua", "moorings_limits.lua", "job_submit.lua"
MANIFEST = "installed.json"
MANIFEST_BYTES_MAX = 1 << 20
WAIT_MAX_S = 3600  # more than the maximum of ApiTimeout
_MADE = "Made by 'moor slurm install'"


class FileAction(StrEnum):
    """The action on one file."""

    CREATE = "create"
    UPDATE = "update"
    SAME = "same"
    KEEP = "keep"  # it is the site's, or was edited
    REMOVE = "remove"
    GONE = "gone"  # it was ours and no longer exists


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """The desired state of a file.

    Attributes:
        path: absolute.
        content: the whole content.
        why: its purpose.
        mode: permission bits.
        once: created if missing, and never changed afterwards: the site fills it in.
        owner: uid of its owner when created; None: the creating user.
        defers_to_site: only for a site without such a file: the site's own is left alone, also with --force.
    """

    path: Path
    content: bytes
    why: str
    mode: int = 0o644
    once: bool = False
    defers_to_site: bool = False
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class InstallStep:
    """The action on one file, and its reason; ``wanted`` is the file to write."""

    action: FileAction
    path: Path
    why: str
    wanted: DesiredFile | None = None


@dataclass(frozen=True, slots=True)
class InstallManifest:
    """The manifest of files that we wrote: for each path the digests that identify a file as ours."""

    digests: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """An admin's choices.

    Attributes:
        library: folder of the plugin and the manifest, the same on all machines.
        agent: ``HOST[,HOST2]:PORT`` where nodes reach the agent.
        agent_uid: the agent's uid; nodes only trust it and root.
        ipus: devices of the pool; ``largest``: of the largest partition for one job; ``domain``: devices wired as
        one; a larger partition needs a task for each domain (None: unknown, and not checked at submit).
        wait_s: how long a job's start waits for its partition.
        feature: the feature of nodes for IPU jobs in slurm.conf; empty: no node has it, and jobs do not request it.
    """

    library: Path
    agent: str
    agent_uid: int
    ipus: int
    largest: int
    domain: int | None
    wait_s: int
    feature: str = ""


def digest_of(content: bytes) -> str:
    """Return the digest that identifies a file's content."""
    return hashlib.sha256(content).hexdigest()


def build_files(
    site: Site,
    choices: InstallOptions,
    plugin: bytes,
    sources: Mapping[str, bytes],
    stack: PlugstackFiles | None = None,
) -> list[DesiredFile]:
    """Return the files of an installation in the order of writing: no file refers to a later one.

    Args:
        site: the Slurm to install for.
        choices: the admin's.
        plugin: the compiled plugin.
        sources: the Lua files, by name.
        stack: the plugstack files of this machine; None: there are none.
    """
    folder = site.folder
    filled = "how the agent reaches the controller: fill it in"
    user = site.slurm_user[1]
    return [
        build_plugin_file(site, choices.library, plugin),
        DesiredFile(folder / LIMITS, build_limits(site, choices), "which sizes a job may ask for"),
        DesiredFile(folder / SUBMIT, sources[SUBMIT], "turns --ipus into licenses"),
        DesiredFile(folder / FILE_NAME, build_vipu_conf(choices), filled, 0o600, once=True, owner=max(user, 0)),
        DesiredFile(
            folder / JOB_SUBMIT, sources[JOB_SUBMIT], "what slurmctld calls; it only calls ours", defers_to_site=True
        ),
        *_plugstack_files(site, choices, stack or PlugstackFiles()),
    ]


def build_plugin_file(site: Site, library: Path, plugin: bytes) -> DesiredFile:
    """Return the plugin's file: the only one to install where slurmctld distributes the others."""
    return DesiredFile(library / PLUGIN, plugin, f"--ipus and --num-replicas, for Slurm {site.version}", 0o755)


def _plugstack_files(site: Site, choices: InstallOptions, stack: PlugstackFiles) -> list[DesiredFile]:
    name, user = site.slurm_user
    agent = f"{name}({user})" if choices.agent_uid == user else f"uid {choices.agent_uid}"
    line = f"# {_MADE}.\n{build_plugin_line(site, choices)}\n".encode()
    why = f"loads the plugin; the agent runs as {agent}"
    place = choose_location(site, stack)
    files = [DesiredFile(include_file_of(site), line, why)] if place is LineLocation.FOLDER else []
    if place is LineLocation.FOLDER and site.plugstack in stack.replaceable:  # it includes others' files, too
        return [*files, DesiredFile(site.plugstack, stack.texts[site.plugstack].encode(), "takes plugstack.conf.d in")]
    return [*files, DesiredFile(site.plugstack, line, why, defers_to_site=True)]


def retired_files(site: Site, stack: PlugstackFiles) -> list[Path]:
    """Return our files of earlier installations without use in this one: our line, if another line loads the plugin."""
    loader, place = include_file_of(site), choose_location(site, stack)
    elsewhere = any(line.file != loader for line in plugin_lines(stack.texts))
    return [loader] if place is LineLocation.FILE or (place is LineLocation.SITE and elsewhere) else []


def build_plugin_line(site: Site, choices: InstallOptions) -> str:
    """Return the line that loads the plugin, with its arguments. It is world-readable and holds no secret."""
    # `optional`: an object of another release only costs an error message; `required` would break every command.
    words = (f"{name}={value}" for name, value in _arguments(site, choices).items())
    return f"optional {choices.library / PLUGIN} {' '.join(words)}"


def _arguments(site: Site, choices: InstallOptions) -> dict[str, str]:
    found = {"agent": choices.agent, "max": str(choices.largest), "wait": str(choices.wait_s)}
    found |= {"munge_socket": site.munge_socket} if site.munge_socket else {}
    return found | ({"agent_uid": str(choices.agent_uid)} if choices.agent_uid else {})


def build_limits(site: Site, choices: InstallOptions) -> bytes:
    """Return the Lua table with the limits of the submit script."""
    sizes = ", ".join(str(size) for size in sizes_up_to(choices.largest))
    entries = [f"max = {choices.largest},", f"sizes = {{ {sizes} }},"]
    entries += [f"domain = {choices.domain},"] if choices.domain is not None else []
    entries += [] if site.job_requeue else ["requeue = false,"]
    entries += [f'feature = "{choices.feature}",'] if choices.feature else []  # of the nodes with the plugin
    entries.append(f"admins = {{ {site.slurm_user[1]} }},")  # allowed to change such jobs, besides root
    lines = "".join(f"    {entry}\n" for entry in entries)
    return f"-- {_MADE}.\nreturn {{\n{lines}}}\n".encode()


_ONCE = re.compile(rb"\brequeue\s*=\s*false\b")


def parse_requeue(limits: bytes) -> bool:
    """Whether a batch job without --requeue or --no-requeue may start again, by the submit script's table."""
    return not any(_ONCE.search(line.split(b"--")[0]) for line in limits.split(b"\n"))


_FEATURE = re.compile(rb"\bfeature\s*=\s*\"")


def parse_feature(limits: bytes) -> bool:
    """Whether that table limits IPU jobs to nodes with a feature."""
    return any(_FEATURE.search(line.split(b"--")[0]) for line in limits.split(b"\n"))


VIPU_CONF = b"""\
# How the Moorings agent reaches its controller. Keep it 0600, and its owner whom the agent runs as (SlurmUser): an
# access key is in it.
# docs/how-to/slurm-install.md tells all keys.
ApiHost=127.0.0.1
ApiPort=8090
MaxIpusPerJob=256
#IpuofDir=/var/spool/ipuof
#ApiUser=slurm
#ApiAccessKeyFile=/etc/slurm/vipu.key
#IsSecure=yes
#ClientCertFile=/etc/moorings/pki/slurm.crt
#ClientKeyFile=/etc/moorings/pki/slurm.key
#ServerCertFile=/etc/moorings/pki/ca.crt
"""
_PORT = re.compile(rb"AgentPort=[0-9]{1,5}\n")


def build_vipu_conf(choices: InstallOptions) -> bytes:
    """Return the vipu.conf to fill in; its agent listens on the port that nodes use."""
    port = choices.agent.rpartition(":")[2]
    return VIPU_CONF if port == str(AGENT_PORT) else VIPU_CONF + f"AgentPort={port}\n".encode()


def is_template(conf: bytes) -> bool:
    """Whether a vipu.conf is still as installed."""
    return conf.startswith(VIPU_CONF) and (conf == VIPU_CONF or bool(_PORT.fullmatch(conf[len(VIPU_CONF) :])))


@dataclass(frozen=True, slots=True)
class OwnLine:
    """Lines that a site must add to an existing file of its own."""

    file: Path
    lines: tuple[str, ...]
    why: str


def lines_for_site(site: Site, choices: InstallOptions, script: bytes | None, stack: PlugstackFiles) -> list[OwnLine]:
    """Return the lines for the admin to add to the site's own ``job_submit.lua`` and ``plugstack.conf``.

    Args:
        site: the Slurm to install for.
        choices: the admin's.
        script: its ``job_submit.lua``; None: there is none.
        stack: its plugstack files.
    """
    lines = []
    if script is not None and not calls_our_script(script):
        why = "the site has a job_submit.lua: let its two functions call ours first"
        lines.append(OwnLine(site.folder / JOB_SUBMIT, (_PATH.format(folder=site.folder), *_CALLS), why))
    why = why_to_write(site, stack, choices.library / PLUGIN, _arguments(site, choices))
    if why:
        file = site.folder / "plugstack.conf" if site.configless else site.plugstack
        lines.append(OwnLine(file, (build_plugin_line(site, choices),), why))
    return lines


def calls_our_script(script: bytes) -> bool:
    """Whether a job_submit.lua loads our script."""
    return any(
        SUBMIT.removesuffix(".lua").encode() in line.split(b"--")[0] for line in script.replace(b"\r", b"").split(b"\n")
    )


_PATH = 'package.path = "{folder}/?.lua;" .. package.path'
_CALLS = (
    'local moorings = require("moorings_submit")',
    "-- first in slurm_job_submit(desc, parts, uid):",
    "    local rc = moorings.submit(desc, parts, uid)",
    "    if rc ~= slurm.SUCCESS then return rc end",
    "-- first in slurm_job_modify(desc, job, parts, uid):",
    "    local rc = moorings.modify(desc, job, parts, uid)",
    "    if rc ~= slurm.SUCCESS then return rc end",
)


# -- actions -----------------------------------------------------------------------------------------------------------


def plan_install(
    wanted: Sequence[DesiredFile],
    on_disk: Mapping[Path, str | None],
    manifest: InstallManifest,
    *,
    force: bool = False,
    retired: Sequence[Path] = (),
) -> list[InstallStep]:
    """Return the action on each file, in order; removals of unneeded files come last.

    Args:
        wanted: the files.
        on_disk: the digest of each existing file; None: not a regular file.
        manifest: the files that we wrote before.
        force: also replace edited files, and others' files at our paths.
        retired: unneeded files of an earlier installation.
    """
    steps = [_step(file, on_disk, manifest.digests.get(file.path, ()), force=force) for file in wanted]
    return steps + [_away(path, on_disk, manifest) for path in retired if path in manifest.digests]


def _away(path: Path, on_disk: Mapping[Path, str | None], manifest: InstallManifest) -> InstallStep:
    if path not in on_disk:
        return InstallStep(FileAction.GONE, path, "its line stands in plugstack.conf")
    if on_disk[path] in manifest.digests[path]:
        return InstallStep(FileAction.REMOVE, path, "its line stands in plugstack.conf")
    return InstallStep(
        FileAction.KEEP, path, "it was changed by hand; its line stands in plugstack.conf, so remove it yourself"
    )


def _step(file: DesiredFile, on_disk: Mapping[Path, str | None], ours: tuple[str, ...], *, force: bool) -> InstallStep:
    if file.path not in on_disk:
        return InstallStep(FileAction.CREATE, file.path, file.why, file)
    now = on_disk[file.path]
    if file.once:
        return InstallStep(FileAction.SAME, file.path, file.why)
    if now == digest_of(file.content):
        return InstallStep(FileAction.SAME, file.path, file.why, file)
    if now is None:
        return InstallStep(FileAction.KEEP, file.path, "it is no plain file")
    if now in ours:
        return InstallStep(FileAction.UPDATE, file.path, file.why, file)
    if file.defers_to_site and not ours:
        return InstallStep(FileAction.KEEP, file.path, "the site has its own")
    origin = "it was changed by hand" if ours else "it is not ours"
    if force:
        return InstallStep(FileAction.UPDATE, file.path, f"{origin}, and --force was given", file)
    return InstallStep(FileAction.KEEP, file.path, f"{origin}; --force replaces it")


def plan_uninstall(on_disk: Mapping[Path, str | None], manifest: InstallManifest) -> list[InstallStep]:
    """Return the action on each file that we wrote, in reverse order: no file refers to a removed one."""
    steps = []
    for path, ours in reversed([*manifest.digests.items()]):
        if path not in on_disk:
            steps.append(InstallStep(FileAction.GONE, path, "somebody removed it"))
        elif on_disk[path] in ours:
            steps.append(InstallStep(FileAction.REMOVE, path, "we wrote it"))
        else:
            steps.append(
                InstallStep(FileAction.KEEP, path, "it was changed by hand: remove it yourself if it is not needed")
            )
    return steps


def check_uninstall(job_submit: Sequence[str], script: bytes | None, conf: Path) -> None:
    """Raise if slurmctld still needs a file to remove: without its script it refuses every job.

    Raises:
        MooringsError: ``slurm.refused``.
    """
    if "lua" in job_submit and script is not None and calls_our_script(script):
        raise MooringsError(
            "slurm.refused",
            f"{conf} has JobSubmitPlugins={','.join(job_submit)}, and its job_submit.lua calls ours",
            hint="take our lines out of job_submit.lua, or 'lua' out of JobSubmitPlugins, restart slurmctld, and "
            "uninstall then; without its script slurmctld would refuse every job",
        )


def check_wait(wait_s: int, patience_s: int, conf: Path) -> None:
    """Raise unless the agent gives a job up before its node does, so that the node learns why.

    Args:
        wait_s: the plugin's.
        patience_s: ApiTimeout.
        conf: the path of vipu.conf.

    Raises:
        MooringsError: ``config.invalid``.
    """
    if wait_s <= patience_s:
        problem = (
            f"nodes would wait {wait_s} s for a partition, and {conf} lets the agent wait ApiTimeout={patience_s} s"
        )
        hint = f"say --wait {min(patience_s + 10, WAIT_MAX_S)} on every machine, or make ApiTimeout less"
        raise MooringsError("config.invalid", problem, hint=hint)


# -- the manifest ------------------------------------------------------------------------------------------------------


def with_steps(manifest: InstallManifest, steps: Sequence[InstallStep]) -> InstallManifest:
    """Return the manifest from before the steps: it has each file's current and next digest."""
    digests = dict(manifest.digests)
    for step in steps:
        if step.wanted is not None and step.action in (FileAction.CREATE, FileAction.UPDATE):
            new = digest_of(step.wanted.content)
            # Appended again, so that the order is that of the last installation.
            digests[step.path] = (*[old for old in digests.pop(step.path, ()) if old != new][-2:], new)
        elif step.wanted is not None and step.path in digests:
            digests[step.path] = digests.pop(step.path)
    return InstallManifest(digests)


def without_files(manifest: InstallManifest, gone: Collection[Path]) -> InstallManifest:
    """Return the manifest without these files."""
    return InstallManifest({path: ours for path, ours in manifest.digests.items() if path not in gone})


def build_manifest(manifest: InstallManifest) -> bytes:
    """Return the manifest as a file's content."""
    files = [{"path": str(path), "sha256": list(ours)} for path, ours in manifest.digests.items()]
    return (json.dumps({"version": 1, "files": files}, indent=1) + "\n").encode()


def parse_manifest(content: bytes, source: str) -> InstallManifest:
    """Parse a manifest file.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    try:
        manifest = json.loads(content)
        digests = {Path(file["path"]): tuple(map(str, file["sha256"])) for file in manifest["files"]}
        version = manifest["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(source, repr(error)) from error
    if version != 1 or not all(path.is_absolute() and ".." not in path.parts for path in digests):
        raise _damaged(source, "it is of another release, or names a path that is not absolute")
    return InstallManifest(digests)


def _damaged(source: str, problem: str) -> MooringsError:
    hint = "put it back, or remove it: then what is installed counts as the site's own"
    return MooringsError("slurm.unreadable", f"{source} cannot be used: {problem}", hint=hint)
