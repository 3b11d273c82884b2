"""Installs and removes the parts that Slurm needs for IPU jobs: compiles, reads, writes, removes; decides nothing.

``install_plan`` decides. Files are written whole or not at all, never through a link, the manifest first. Run it as
root on every machine of the cluster (submit hosts and nodes need the plugin too). Where machines share the
configuration folder, the second one finds it done.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.files import atomic_file, take_lock
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import build_config, parse_config
from moorings.slurm.host.install_plan import (
    JOB_SUBMIT,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    SUBMIT,
    FileAction,
    InstallManifest,
    InstallStep,
    build_manifest,
    digest_of,
    parse_manifest,
    with_steps,
    without_files,
)
from moorings.slurm.host.plugin_nodes import FEATURE
from moorings.slurm.host.plugstack import PlugstackFiles, include_file_of
from moorings.slurm.host.site import Site, at_machine, parse_site
from moorings.slurm.host.spank_object import parse_version, release_of
from moorings.slurm.host.vipu_conf import is_own_conf, slurm_conf_path
from moorings.slurm.node_records import build_show_nodes, parse_show_nodes
from moorings.slurm.slurm_conf import included_files

LIBRARY = Path("/usr/local/lib/moorings/slurm")
COMPILE_S = 60.0
FILE_BYTES_MAX = 16 << 20
PLUGSTACK_FILES_MAX = 100
SOURCE = "moorings_spank.c"
PARTS = ("moorings_step.h", "moorings_ask.h", "moorings_folders.h", "moorings_hello.h")  # its included headers
_HEADERS = (
    "install Slurm's headers of the release that runs (Debian: libslurm-dev), and gcc; CPATH names another folder"
)


async def find_site(commands: SlurmCommands) -> Site:
    """Return the Slurm that this machine's commands reach, with the files that they read.

    Raises:
        MooringsError: ``slurm.missing``, ``slurm.unavailable``, ``slurm.unreadable`` and other errors of Slurm's
            commands.
    """
    site = parse_site(parse_config(await commands.run_checked(build_config())))
    conf = slurm_conf_path(commands.environment, site.slurm_conf)
    return at_machine(site, conf, has_files=is_own_conf(conf))


async def find_feature(commands: SlurmCommands) -> str:
    """Return the feature for IPU jobs to request; empty: slurm.conf gives it to no node.

    Raises:
        MooringsError: an error of Slurm's commands.
    """
    nodes = parse_show_nodes(await commands.run_checked(build_show_nodes()))
    return FEATURE if any(FEATURE in node.features for node in nodes) else ""


def load_sources() -> dict[str, bytes]:
    """Return the plugin's source and the Lua files, by name, from the package or the checkout.

    Raises:
        MooringsError: ``slurm.missing``.
    """
    packed = Path(str(files("moorings.slurm.host"))) / "files"
    checkout = Path(__file__).resolve().parents[4] / "deploy" / "slurm"
    folder = packed if packed.is_dir() else checkout
    try:
        return {name: (folder / name).read_bytes() for name in (SOURCE, *PARTS, SUBMIT, JOB_SUBMIT)}
    except OSError as error:
        raise MooringsError("slurm.missing", f"{error.filename} is not there", hint="install moorings again") from error


def build_compile(compiler: str) -> list[str]:
    """Return the command that compiles the plugin in the current folder; relative names make the build reproducible."""
    return [compiler, "-std=c99", "-shared", "-fPIC", "-O2", "-o", "moorings_spank.so", SOURCE, "-ldl"]


def compile_plugin(sources: Mapping[str, bytes], version: str, environment: Mapping[str, str]) -> bytes:
    """Return the plugin for a version of Slurm, compiled from its source and headers, by name.

    Raises:
        MooringsError: ``slurm.missing`` (no compiler), ``slurm.not_built``: also if the headers are another release's.
    """
    compiler = environment.get("CC") or "gcc"
    with tempfile.TemporaryDirectory(prefix="moorings-spank-") as folder:
        for name in (SOURCE, *PARTS):
            (Path(folder) / name).write_bytes(sources[name])
        try:
            done = subprocess.run(
                build_compile(compiler),
                cwd=folder,
                env={**environment, "LC_ALL": "C.UTF-8"},
                capture_output=True,
                timeout=COMPILE_S,
                check=False,
            )
        except OSError as error:
            raise MooringsError(
                "slurm.missing", f"{compiler} cannot be run: {error.strerror}", hint=_HEADERS
            ) from error
        except subprocess.TimeoutExpired as error:
            raise MooringsError("slurm.not_built", f"{compiler} took more than {COMPILE_S:g} s") from error
        if done.returncode != 0:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()
            message = next((line for line in words if "error" in line), words[-1] if words else "no word")
            raise MooringsError("slurm.not_built", f"the plugin does not compile: {message[:300]}", hint=_HEADERS)
        image = (Path(folder) / "moorings_spank.so").read_bytes()
    headers = parse_version(image, "the plugin just compiled")
    if release_of(headers) != release_of(version):
        raise MooringsError("slurm.not_built", f"the headers are of Slurm {headers}, and {version} runs", hint=_HEADERS)
    return image


def digest_files(paths: Iterable[Path]) -> dict[Path, str | None]:
    """Return the digest of the file at each path; None: not a regular file; missing files are left out.

    Raises:
        MooringsError: ``slurm.denied``.
    """
    found: dict[Path, str | None] = {}
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        content = read_file(path) if stat.S_ISREG(mode) else None
        found[path] = digest_of(content) if content is not None else None
    return found


def read_file(path: Path) -> bytes | None:
    """Return the content of a file; None: there is no file.

    Raises:
        MooringsError: ``slurm.denied``.
    """
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MooringsError(
            "slurm.denied", f"{path} cannot be read: {error.strerror}", hint="run it as root"
        ) from error


def load_plugstack(path: Path) -> dict[Path, str]:
    """Return the texts of a plugstack.conf and of all files it includes, also indirectly; empty if there is none.

    Raises:
        MooringsError: ``slurm.denied``.
    """
    found: dict[Path, str] = {}
    rest = [path]
    while rest and len(found) < PLUGSTACK_FILES_MAX:
        file = rest.pop(0)
        content = read_file(file) if file not in found else None
        if content is not None:
            found[file] = content.decode("utf-8", "replace")
            rest += [each for pattern in included_files(found[file], str(file.parent)) for each in _matching(pattern)]
    return found


def _matching(pattern: str) -> list[Path]:
    return sorted(path for path in map(Path, glob.glob(pattern)) if path.is_file())  # noqa: PTH207  never refuses one


def load_stack(site: Site, manifest: InstallManifest, *, force: bool = False) -> PlugstackFiles:
    """Return the plugstack files and which we may replace; with ``force`` also an edited one.

    Raises:
        MooringsError: ``slurm.denied``.
    """
    ours = [path for path in (site.plugstack, include_file_of(site)) if path in manifest.digests]
    now = digest_files(ours)
    kept = {path for path in ours if path in now and now[path] in manifest.digests[path]}
    if force and now.get(site.plugstack) is not None:
        kept.add(site.plugstack)
    return PlugstackFiles(load_plugstack(site.plugstack), frozenset(kept))


def load_manifest(library: Path) -> InstallManifest:
    """Return the manifest of this machine; empty if we wrote no file.

    Raises:
        MooringsError: ``slurm.unreadable``, ``slurm.denied``.
    """
    content = read_file(library / MANIFEST)
    if content is None:
        return InstallManifest()
    if len(content) > MANIFEST_BYTES_MAX:
        raise MooringsError("slurm.unreadable", f"{library / MANIFEST} is longer than {MANIFEST_BYTES_MAX} bytes")
    return parse_manifest(content, str(library / MANIFEST))


@contextlib.contextmanager
def exclusive_install(library: Path) -> Iterator[None]:
    """Allow one installation on this machine at a time; the lock ends with the process.

    Raises:
        MooringsError: ``slurm.changed`` if another is running; ``slurm.denied``.
    """
    try:
        _make_folder(library)
        folder = os.open(library, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _denied(library, error) from error
    try:
        if not take_lock(folder):
            raise MooringsError("slurm.changed", f"another installation is at work in {library}", retryable=True)
        yield
    finally:
        os.close(folder)


def apply_install(steps: Sequence[InstallStep], manifest: InstallManifest, library: Path) -> None:
    """Write the planned files in order, then remove retired ones; a repeat after a kill has the same result.

    Raises:
        MooringsError: ``slurm.changed`` if a file has changed since the plan was made; ``slurm.denied``.
    """
    todo = [step for step in steps if step.action in (FileAction.CREATE, FileAction.UPDATE)]
    known = with_steps(manifest, steps)
    if known != manifest:
        _write(library / MANIFEST, build_manifest(known), 0o644)
    for step in todo:
        assert step.wanted is not None
        if (step.action is FileAction.CREATE) != (step.path not in digest_files([step.path])):
            raise MooringsError("slurm.changed", f"{step.path} has come or gone since the plan was made")
        _write(step.path, step.wanted.content, step.wanted.mode, step.wanted.owner)
    retired = [step for step in steps if step.action in (FileAction.REMOVE, FileAction.GONE)]
    for step in (step for step in retired if step.action is FileAction.REMOVE):
        _remove(step.path, known)
    if retired:
        _write(library / MANIFEST, build_manifest(without_files(known, {step.path for step in retired})), 0o644)


def apply_uninstall(steps: Sequence[InstallStep], manifest: InstallManifest, library: Path) -> None:
    """Remove the planned files, then the manifest, and our folders if they are empty.

    Raises:
        MooringsError: ``slurm.changed``, ``slurm.denied``.
    """
    gone = {step.path for step in steps if step.action is FileAction.GONE}
    for path in (*manifest.digests, library / MANIFEST):
        _draft(path).unlink(missing_ok=True)
    for step in (step for step in steps if step.action is FileAction.REMOVE):
        _remove(step.path, manifest)
        gone.add(step.path)
    rest = without_files(manifest, gone)
    if rest.digests:
        _write(library / MANIFEST, build_manifest(rest), 0o644)
    else:
        (library / MANIFEST).unlink(missing_ok=True)
    for folder in (library, library.parent):  # `/usr/local/lib/moorings/slurm`, and its parent folder
        with contextlib.suppress(OSError):  # it is not empty, or mounted
            folder.rmdir()


def _write(path: Path, content: bytes, mode: int, owner: int | None = None) -> None:
    """Replace a file, whole or not at all, with that mode whatever the umask is; root sets the ``owner``."""
    try:
        _make_folder(path.parent)
        with atomic_file(path, mode=mode, temporary=_draft(path)) as file:
            file.write(content)
            if owner is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), owner, -1)
    except OSError as error:
        raise _denied(path, error) from error


def _remove(path: Path, manifest: InstallManifest) -> None:
    """Remove a file that is unchanged since we wrote it."""
    if digest_files([path]).get(path) not in manifest.digests[path]:
        raise MooringsError("slurm.changed", f"{path} was changed since the plan was made")
    try:
        path.unlink()
    except OSError as error:
        raise _denied(path, error) from error


def _draft(path: Path) -> Path:
    """Return the path of a file's draft; it is always the same, so that kills leave one draft only."""
    return path.with_name(f".{path.name}.moorings-new")


def _make_folder(folder: Path) -> None:
    """Make a world-readable folder and its parents, whatever the umask is."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def _denied(path: Path, error: OSError) -> MooringsError:
    return MooringsError("slurm.denied", f"{path} cannot be written: {error.strerror}", hint="run it as root")
