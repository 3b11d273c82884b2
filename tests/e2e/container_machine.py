"""A machine of people who run containers: rootless podman, with an image that is made here from busybox alone.

What of podman is not installed is laid over ``/usr`` in the machine's own namespace, out of Debian's packages.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import BinaryIO

from moorings.privileged.cgroups import MOUNTS, parse_mounts
from tests.debian import folder_of
from tests.e2e import shared_machine
from tests.e2e.shared_machine import PEOPLE, SharedMachineRig

IMAGE = "localhost/tiny:1"
_PROGRAMS = ("cat", "env", "head", "id", "ls", "mount", "ps", "sh", "sleep", "tail")
_NEEDED = ("podman", "crun", "conmon", "catatonit", "newuidmap", "busybox")
_PACKAGES = (
    *("podman", "crun", "conmon", "catatonit", "uidmap", "busybox-static"),
    *("golang-github-containers-common", "golang-github-containers-image"),
)
_WITHOUT_IDS = "eve"

_LAY_OVER = """
mkdir /mnt/over /mnt/work
mount -t overlay -o "lowerdir=$1/usr:/usr,upperdir=/mnt/over,workdir=/mnt/work" overlay /usr
for part in bin sbin lib; do [ ! -d "$1/$part" ] || cp -an "$1/$part/." "/usr/$part/"; done
cp -an "$1/etc/." /etc/
"""


def cannot_be_here() -> str:
    """Why there can be no such machine here; empty: it can."""
    if why := shared_machine.cannot_be_here():
        return why
    done = subprocess.run(["unshare", "--user", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no user namespace can be made: {done.stderr.strip()}"


class ContainerMachine(SharedMachineRig):
    """The machine; all of its people but one have subordinate ids, and the image.

    Args:
        folder: for what it needs outside.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if not all(map(shutil.which, _NEEDED)):
            self._as_root(_LAY_OVER, str(folder_of(*_PACKAGES)))
        found = parse_mounts(MOUNTS.read_text())
        if found.unified is not None and found.controllers:  # podman 4.3 takes both versions at once for one of v2
            self._as_root('while mountpoint -q "$1"; do umount "$1"; done', str(found.unified))
        ids = "".join(f"{name}:{uid * 100_000}:65536\n" for name, uid in _numbered() if name != _WITHOUT_IDS)
        for name in ("subuid", "subgid"):
            (self.root / "etc" / name).write_text(ids)
        for uid in PEOPLE.values():  # as a login has it; without, podmans of all machines meet in /tmp
            self._as_root('mkdir -p "$1" && chmod 700 "$1" && chown "$2" "$1"', f"/run/user/{uid}", str(uid))
        self._as_root("cat /bin/busybox", file=folder / "busybox")
        _write_image(folder / "busybox", folder / "tiny.tar")

    def give_image(self, person: str) -> None:
        """Have that image in a person's storage."""
        with (self._folder / "tiny.tar").open("rb") as image:
            self._podman(person, "import", "--quiet", "-", IMAGE, stdin=image)

    def records(self, person: str) -> list[str]:
        """The containers that a person's podman knows of."""
        return self._podman(person, "ps", "--all", "--format={{.Names}}").split()

    def _podman(self, person: str, *words: str, stdin: BinaryIO | None = None) -> str:
        """What podman prints; the process that it leaves behind for the next one is ended."""
        script = 'podman --cgroup-manager=cgroupfs "$@" || exit; pkill -KILL -u "$USER" -x catatonit || true'
        argv = self.argv(person, ["sh", "-c", script, "sh", *words])
        done = subprocess.run(argv, stdin=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        """End everything in it, also what podman has put into other namespaces."""
        for uid in PEOPLE.values():
            subprocess.run(["pkill", "-KILL", "-u", str(uid), "-x", "catatonit"], check=False)
        super().close()

    def _as_root(self, script: str, *words: str, file: Path | None = None) -> None:
        argv = self.argv("root", ["sh", "-euc", script, "sh", *words])
        done = subprocess.run(argv, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        if file is not None:
            file.write_bytes(done.stdout)


def _numbered() -> list[tuple[str, int]]:
    return [(name, number + 2) for number, name in enumerate(PEOPLE)]


def _write_image(busybox: Path, image: Path) -> None:
    with tarfile.open(image, "w") as archive:
        for folder in ("bin", "etc", "tmp", "proc", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        with busybox.open("rb") as file:
            entry = tarfile.TarInfo("bin/busybox")
            entry.size, entry.mode = busybox.stat().st_size, 0o755
            archive.addfile(entry, file)
        for name in _PROGRAMS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
