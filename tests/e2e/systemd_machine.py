"""A machine that systemd runs, in a virtual one: Debian's kernel, this machine's files, and a real boot.

systemd needs to be process 1 of a machine with cgroups of its own, and cgroup v2 has its controllers only where v1 has
not taken them: no container here can have that, so qemu emulates a machine (without KVM, which may be missing). Its
files are those of this machine, read only over virtiofs, below an overlay in its memory. Nothing here is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import site
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.debian import folder_of, libraries
from tests.e2e.shared_machine import SOURCES
from tests.waiting import patient, until

CHECKOUT = SOURCES.parent
PYTHON = "/opt/moorings/bin/python"
PACKAGES = ("qemu-system-common", "qemu-system-data", "seabios", "busybox-static", "linux-image-cloud-amd64")
# Of the kernel, in the order in which they need each other.
MODULES = (
    *("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"),
    *("virtio_console", "fuse", "virtiofs", "overlay"),
)
LINKS = ("sh", "mount", "insmod", "switch_root", "mkdir", "cat", "cp", "chmod", "chroot", "ln", "rm", "umount")
HIERARCHIES = {  # systemd(1), kernel command line
    "v2": "systemd.unified_cgroup_hierarchy=1",
    "hybrid": "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=0",
    "v1": "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1",
}
_DIRECTORY, _PROGRAM, _FILE, _LINK, _CONSOLE = 0o40755, 0o100755, 0o100644, 0o120777, 0o20600

_INIT = """#!/bin/sh
set -e
mount -t devtmpfs dev /dev
for name in {modules}; do insmod /modules/$name.ko; done
mount -t virtiofs -o ro host /lower
mount -t tmpfs -o mode=755 tmpfs /upper
mkdir /upper/files /upper/work /upper/root
root=/upper/root
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay $root
# Nothing that this machine starts: only systemd's own, D-Bus and what a test starts.
rm -rf $root/etc/systemd/system $root/etc/fstab $root/home $root/var/log/journal $root/.dockerenv
mkdir -p $root/etc/systemd/system/multi-user.target.wants $root/home $root/opt
for name in serial-getty@ttyS0 systemd-update-utmp console-getty systemd-resolved systemd-networkd; do
    ln -s /dev/null $root/etc/systemd/system/$name.service
done
mount -t tmpfs -o mode=755 tmpfs $root/opt
lib=$root/opt/moorings/lib/{version}/site-packages
mkdir -p $root/opt/checkout $root/opt/site $root/opt/moorings/bin $lib
mount -o bind $root{checkout} $root/opt/checkout
mount -o bind $root{site} $root/opt/site
for place in tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs $root/$place; done # systemd cleans them: slow there
mkdir $root/opt/python # it may be below /root, where no service looks
mount -o bind $root{prefix} $root/opt/python
echo /opt/python/lib > $root/etc/ld.so.conf.d/python.conf
chroot $root /sbin/ldconfig
ln -s /opt/python/bin/{version} $root{PYTHON}
echo 'home = /opt/python/bin' > $root/opt/moorings/pyvenv.cfg
echo /opt/checkout/src > $lib/moorings.pth
echo /opt/site >> $lib/moorings.pth
cp /moor $root/usr/local/bin/moor
cp /agent.py $root/opt/agent.py
cp /agent.service $root/etc/systemd/system/
ln -s ../agent.service $root/etc/systemd/system/multi-user.target.wants/
umount /dev
exec switch_root $root /lib/systemd/systemd
"""
_MOOR = f"""#!/bin/sh
exec {PYTHON} -m moorings.cli.main "$@"
"""
_SERVICE = f"""[Unit]
After=dbus.service systemd-logind.service
[Service]
ExecStart={PYTHON} -I /opt/agent.py
KillMode=process
StandardError=journal+console
"""
_AGENT = """
import glob, json, subprocess
(port,) = glob.glob("/dev/vport*")
with open(port, "r+b", buffering=0) as line:
    line.write(b"booted\\n")
    received = b""
    while True:
        received += line.read(4096)
        while b"\\n" in received:
            words, _, received = received.partition(b"\\n")
            done = subprocess.run(json.loads(words), stdin=subprocess.DEVNULL, capture_output=True, text=True)
            line.write(json.dumps([done.returncode, done.stdout, done.stderr]).encode() + b"\\n")
"""


def cannot_be_virtual() -> str:
    """Why there can be no such machine here; empty: it can."""
    if os.geteuid() != 0:
        return "the files of a machine are root's to read"
    if platform.machine() != "x86_64":
        return "the virtual machine is an x86_64"
    missing = [name for name in ("/lib/systemd/systemd", "/usr/bin/dbus-daemon") if not Path(name).exists()]
    if missing or not (Path("/usr/share/dbus-1/system.d") / "org.freedesktop.systemd1.conf").exists():
        return "systemd or D-Bus is not installed here, and the virtual machine has this one's files"
    return "" if shutil.which("apt-get") else "qemu and its kernel come from Debian's packages"


class SystemdMachineRig:
    """The machine, booted.

    Args:
        folder: for what it needs outside.
        hierarchy: of the cgroups, one of ``HIERARCHIES``.
    """

    def __init__(self, folder: Path, hierarchy: str) -> None:
        _compile()
        self._unpacked = folder_of("qemu-system-x86", *PACKAGES)
        self._environment = {**os.environ, "LD_LIBRARY_PATH": libraries(self._unpacked)}
        self._console = folder / "console"
        (folder / "initrd").write_bytes(self._build_initrd())
        with contextlib.ExitStack() as stack:
            self._start_files(folder, stack)
            self._line = self._start_machine(folder, hierarchy, stack)
            self._received = b""
            assert self._read_line(patient(120)) == b"booted", self.console()
            self._stack = stack.pop_all()

    def _build_initrd(self) -> bytes:
        python = Path(sys.executable).resolve()
        values = {"modules": " ".join(MODULES), "version": python.name, "prefix": python.parent.parent}
        values |= {"checkout": CHECKOUT, "site": site.getsitepackages()[0]}
        init = _INIT.format(PYTHON=PYTHON, **values)
        files: list[tuple[str, int, bytes]] = [("init", _PROGRAM, init.encode()), ("moor", _PROGRAM, _MOOR.encode())]
        files += [("agent.py", _FILE, _AGENT.encode()), ("agent.service", _FILE, _SERVICE.encode())]
        files += [(name, _DIRECTORY, b"") for name in ("dev", "lower", "upper")]
        folders: list[tuple[str, int, bytes]] = [(name, _DIRECTORY, b"") for name in ("bin", "modules")]
        programs = [("bin/busybox", _PROGRAM, (self._unpacked / "bin/busybox").read_bytes())]
        programs += [(f"bin/{name}", _LINK, b"busybox") for name in LINKS]
        for name in MODULES:
            (path,) = (self._unpacked / "lib/modules").rglob(f"{name}.ko")
            programs.append((f"modules/{name}.ko", _FILE, path.read_bytes()))
        return b"".join(_entries([*folders, *files, *programs]))

    def _start_files(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Serve this machine's files, read only: in a mount namespace in which they are."""
        script = 'mount -o remount,bind,ro /; mount -t tmpfs tmpfs /run; exec "$@"'
        argv = ["unshare", "--mount", "--propagation=private", "--", "sh", "-euc", script, "sh"]
        self._files_socket = Path("/dev/shm") / f"moorings-files-{os.getpid()}"  # writable in that namespace
        argv += [str(self._unpacked / "usr/lib/qemu/virtiofsd"), f"--socket-path={self._files_socket}"]
        argv += ["-o", "source=/", "-o", "sandbox=chroot", "-o", "cache=always", "-o", "xattr"]
        argv.append("--rlimit-nofile=500000")  # one for each file that was looked at
        log = stack.enter_context((folder / "files.log").open("wb"))
        process = subprocess.Popen(argv, env=self._environment, stdout=log, stderr=log)
        stack.callback(self._files_socket.unlink, missing_ok=True)
        stack.enter_context(_ended(process))
        until(self._files_socket.exists, what=lambda: (folder / "files.log").read_text())

    def _start_machine(self, folder: Path, hierarchy: str, stack: contextlib.ExitStack) -> socket.socket:
        line = Path("/dev/shm") / f"moorings-line-{os.getpid()}"
        stack.callback(line.unlink, missing_ok=True)
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(line))
        listening.listen(1)
        shared = self._unpacked / "usr/share"
        (kernel,) = (self._unpacked / "boot").glob("vmlinuz-*")
        argv = [
            str(self._unpacked / "usr/bin/qemu-system-x86_64"),
            "-accel",
            "tcg,thread=single",
            "-cpu",
            "Nehalem",
        ]
        argv += ["-smp", "2", "-m", "2G", "-object", "memory-backend-memfd,id=memory,size=2G,share=on"]
        argv += ["-machine", "memory-backend=memory", "-L", str(shared / "qemu"), "-L", str(shared / "seabios")]
        argv += ["-chardev", f"socket,id=files,path={self._files_socket}", "-nodefaults", "-no-reboot", "-nographic"]
        argv += ["-device", "vhost-user-fs-pci,chardev=files,tag=host", "-serial", f"file:{self._console}"]
        # Not a second serial port: an emulated one now and then loses an interrupt, and with it an answer.
        argv += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=line,path={line}"]
        argv += ["-device", "virtserialport,chardev=line", "-kernel", str(kernel), "-initrd", str(folder / "initrd")]
        argv += ["-append", f"console=ttyS0 panic=-1 quiet mitigations=off {HIERARCHIES[hierarchy]}"]
        log = stack.enter_context((folder / "qemu.log").open("wb"))
        self._qemu = subprocess.Popen(argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.enter_context(_ended(self._qemu))
        listening.settimeout(patient(30))
        return stack.enter_context(listening.accept()[0])

    def _read_line(self, limit_s: float) -> bytes:
        self._line.settimeout(limit_s)
        while b"\n" not in self._received:
            try:
                part = self._line.recv(1 << 16)
            except TimeoutError:
                raise AssertionError(f"no answer in {limit_s:g} s: {self.console()}") from None
            assert part != b"", self.console()
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    # -- commands ------------------------------------------------------------------------------------------------------

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command of root does, at its end; one that takes too long is ended, with exit code 124."""
        argv = ("timeout", "--kill-after=5", f"{patient(60):g}", *words)
        self._line.sendall(json.dumps(argv).encode() + b"\n")
        return subprocess.CompletedProcess(words, *json.loads(self._read_line(patient(120))))

    def output(self, *words: str) -> str:
        """What a command of root prints; it must succeed."""
        done = self.command(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.journal()}"
        return done.stdout

    def as_person(self, person: str, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command of a person does."""
        return self.command("su", "-", person, "-c", shlex.join(words))

    def ask(self, person: str, *words: str) -> Any:
        """The data that ``moor get`` prints as JSON."""
        done = self.as_person(person, "moor", *words, "-o", "json")
        assert done.returncode == 0, done.stderr + self.journal()
        return json.loads(done.stdout)

    def journal(self) -> str:
        """What systemd and the services have said last."""
        return self.command("journalctl", "--no-pager", "--lines=60", "--output=short-monotonic").stdout

    def console(self) -> str:
        """What the kernel and the boot have said last."""
        said = self._console.with_name("qemu.log").read_text(errors="replace")
        return f"{self._console.read_text(errors='replace')[-3000:]}\nqemu ({self._qemu.poll()}): {said}"

    def close(self) -> None:
        """End it; nothing stays."""
        self._stack.close()


def _entries(files: list[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """A cpio archive ("newc") for the kernel (its Documentation/driver-api/early-userspace/buffer-format)."""
    for name, mode, content in [("dev/console", _CONSOLE, b""), *files, ("TRAILER!!!", 0, b"")]:
        device = (5, 1) if mode == _CONSOLE else (0, 0)
        numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
        yield head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def _compile() -> None:
    """Have Python keep what it compiles, as it usually does: an emulated processor takes a minute for that."""
    modules = "moorings.app.controller, moorings.cli.main, moorings.local.shared_supervisor, moorings.privileged.daemon"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for words in (["-m", "compileall", "-q", str(SOURCES)], ["-c", f"import {modules}"]):
        subprocess.run([sys.executable, *words], env=environment, check=True)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.kill()
