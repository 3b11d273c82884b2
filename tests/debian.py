"""Programs from Debian's packages, for tests: unpacked under ``.tools/debian``, nothing installed, nothing started.

A machine that has the program uses its own. One that has neither it nor apt-get fails loudly: these tests are about
the real thing, and skipping them would say nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from zlib import crc32

from tests.waiting import patient

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".tools" / "debian"


def program(name: str, package: str) -> Path:
    """The path of a program, from PATH or else out of Debian's package.

    Raises:
        AssertionError: it cannot be had here.
    """
    here = shutil.which(name)
    return Path(here) if here else unpacked(name, package)


def unpacked(name: str, package: str) -> Path:
    """The path of a program out of Debian's package; to be run with ``surroundings``.

    Raises:
        AssertionError: it cannot be had here.
    """
    root = folder_of(package)
    found = [root / folder / name for folder in ("usr/bin", "bin", "usr/sbin") if (root / folder / name).exists()]
    assert found != [], f"Debian's package {package} has no {name}"
    return found[0]


def folder_of(package: str, *beside: str) -> Path:
    """The folder of a package's files, with those of other packages that have to lie beside it.

    Raises:
        AssertionError: it cannot be had here.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    root = CACHE / (f"{package}+{crc32(' '.join(beside).encode()):08x}" if beside else package)
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest want it at the same time
        if not root.exists():
            _unpack((package, *beside), root)
    return root


def surroundings(path: Path) -> dict[str, str]:
    """The variables a program needs: its libraries may have been unpacked beside it."""
    if not path.is_relative_to(CACHE):
        return dict(os.environ)
    root = CACHE / path.relative_to(CACHE).parts[0]
    units = root / "lib" / "systemd" / "system"  # a machine without systemd has none of its own
    return {**os.environ, "LD_LIBRARY_PATH": libraries(root), "SYSTEMD_UNIT_PATH": f"{units}:"}


def libraries(root: Path) -> str:
    """The folders with libraries of a folder of packages, as the loader wants them."""
    return ":".join(sorted({str(file.parent) for file in root.rglob("*.so*")}))


def _unpack(packages: tuple[str, ...], root: Path) -> None:
    wanted = " ".join(packages)
    for tool in ("apt-get", "dpkg-deb"):
        assert shutil.which(tool), f"there is neither {wanted} nor {tool} here: install {wanted}"
    work = CACHE / f".{root.name}.{os.getpid()}"
    work.mkdir()
    try:
        if _run(["apt-get", "download", *packages], work).returncode != 0:  # lists may be missing on a bare machine
            _run(["apt-get", "update"], work)
        names = dict.fromkeys([*packages, *_libraries(packages, work)])
        done = _run(["apt-get", "download", *names], work)
        assert done.returncode == 0, f"{wanted} cannot be had: {done.stderr[-500:]}; install it"
        for archive in work.glob("*.deb"):
            done = _run(["dpkg-deb", "-x", str(archive), str(work / "root")], work)
            assert done.returncode == 0, done.stderr
        (work / "root").rename(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _libraries(packages: tuple[str, ...], folder: Path) -> list[str]:
    """The libraries that the packages need and this machine lacks."""
    done = _run(["apt-get", "install", "--simulate", "--no-install-recommends", *packages], folder)
    planned = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
    return [name for name in planned if name.startswith(("lib", "linux-image-")) and not name.startswith("libjs-")]


def _run(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=patient(100))
