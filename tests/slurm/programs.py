"""Where the programs of a Slurm release come from: this machine, Debian's packages unpacked, or a small Debian.

This machine's own are taken if they are of the release that is wanted. Where this machine's Debian has the release, its
packages are unpacked under ``.tools``; any other release lives in a chroot that ``scripts/slurm-release.sh`` makes. Its
commands are reached through a script, ``enter``, in a mount namespace of their own, so no mount outlives its command.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import debian

RELEASE = "22.05"  # what is tested always
SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
COMMANDS = (
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag", "sinfo", "sprio"),
    *("squeue", "sreport", "srun", "sshare", "sstat", "strigger"),
)
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")  # as Debian links them when they are installed
_PACKAGES = (
    *("slurm-wlm", "slurmctld", "slurmd", "slurm-client", "slurmdbd", "libslurm-dev"),
    *("slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin"),
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# /tmp is shared with the chroot: clusters live there. `env -C`, because chroot(8) goes to the root's own folder.
_ENTER = """\
#!/bin/sh
exec unshare --mount --propagation private -- sh -euc '
    mount --rbind /tmp "$0/tmp"
    mount --rbind /dev "$0/dev"
    mount --rbind /sys "$0/sys"
    [ ! -d /run/slurm ] || mount --rbind /run "$0/run" # that of a machine without files of its own
    mount --bind /etc/hosts "$0/etc/hosts"
    mount -t proc proc "$0/proc"
    here=$PWD
    [ -d "$0$here" ] || here=/  # as of a checkout: there is nothing of it inside
    exec chroot "$0" env -C "$here" -u LD_LIBRARY_PATH PATH={path} "$@"
' {root} "$@"
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """A release of Slurm. ``root`` is what its files lie below, ``libraries`` what its programs need of the loader."""

    release: str
    root: Path
    chrooted: bool = False
    libraries: str = ""
    path: str = _SYSTEM_PATH

    @property
    def headers(self) -> Path:
        """The folder to give to ``gcc -I``; none of it is needed at run time."""
        return self.root / "usr" / "include"

    @property
    def plugins(self) -> Path | None:
        """The folder of Slurm's plugins, where it is not the one that was compiled in."""
        found = [*self.root.glob("usr/lib/*/slurm-wlm")] if self.libraries else []
        return found[0] if found else None

    def write_entrance(self, folder: Path) -> tuple[str, ...]:
        """The words before every command; writes what they need, and ``folder/bin``, which PATH has to begin with."""
        commands = folder / "bin"
        commands.mkdir()
        if self.libraries:
            for (
                daemon
            ) in DAEMONS:  # they look at their own name: called slurmctld-wlm, one is no slurmctld, and crashes
                (commands / daemon).symlink_to(self.root / "usr" / "sbin" / f"{daemon}-wlm")
        if not self.chrooted:
            return ()
        enter = folder / "enter"
        enter.write_text(_ENTER.format(root=self.root, path=_SYSTEM_PATH))
        enter.chmod(0o755)
        for name in COMMANDS:
            script = commands / name
            script.write_text(f'#!/bin/sh\nexec {enter} {name} "$@"\n')
            script.chmod(0o755)
        return (str(enter),)


def find(release: str, folder: Path) -> Programs:
    """The programs of a release; those that ordinary users could not read are copied into the folder.

    Raises:
        AssertionError: they cannot be had here.
    """
    assert release in SUITES, f"no Debian is known to have Slurm {release}: it is one of {', '.join(SUITES)}"
    own = shutil.which("slurmctld")
    if own and _release_of([own]) == release:
        return Programs(release, Path("/"), path=os.environ["PATH"])
    if platform.freedesktop_os_release().get("VERSION_CODENAME") == SUITES[release]:
        return _unpacked(release, folder)
    made = subprocess.run(
        [debian.ROOT / "scripts" / "slurm-release.sh", release], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, f"there is no Slurm {release} for the tests:\n{made.stderr}"
    return Programs(release, Path(made.stdout.strip()), chrooted=True)


def munged() -> Path:
    """MUNGE's daemon, this machine's or unpacked; it serves every release."""
    return debian.program("munged", "munge")


def munge_library() -> Path:
    """The library to talk to it, for ``ctypes.CDLL``: who loads ``libmunge.so.2`` by name afterwards gets it too."""
    found = [*munged().parents[1].glob("lib/*/libmunge.so.2")]
    assert found != [], "there is a munged here, but no libmunge.so.2: install libmunge2"
    return found[0]


def _unpacked(release: str, folder: Path) -> Programs:
    root = debian.folder_of(*_PACKAGES)
    if not all(parent.stat().st_mode & 0o001 for parent in (root, *root.parents)):  # a checkout in root's home
        root = Path(shutil.copytree(root, folder / "programs", symlinks=True))
    libraries = debian.libraries(root)
    found = _release_of([str(root / "usr/sbin/slurmctld-wlm")], libraries)
    assert found == release, f"this Debian's packages have Slurm {found}, not {release}"
    return Programs(release, root, libraries=libraries, path=f"{root}/usr/bin:{root}/usr/sbin:{_SYSTEM_PATH}")


def _release_of(slurmctld: list[str], libraries: str = "") -> str:
    done = subprocess.run(
        [*slurmctld, "-V"], env={"LD_LIBRARY_PATH": libraries}, capture_output=True, text=True, check=False
    )
    return ".".join(done.stdout.split()[-1].split(".")[:2]) if done.returncode == 0 else "none"
