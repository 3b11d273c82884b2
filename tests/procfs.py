"""Processes of the tests: what they say of themselves, and how they are started to hear signals."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Before a command that is to hear Ctrl-C though its parents ignore it, as they do in the background of a shell script.
HEARING = ("env", "--default-signal=INT,HUP,QUIT")


def every_process(name: str) -> Iterator[tuple[int, bytes]]:
    """The id of each process, and what its file of that name in ``/proc`` says: ``stat``, ``cmdline``, ``environ``.

    Those that end while they are asked are left out.
    """
    for process in Path("/proc").iterdir():  # not ``glob``: it fails for one that ends in that moment
        if process.name.isdecimal():
            try:
                yield int(process.name), (process / name).read_bytes()
            except OSError:
                continue


def lives(pid: int | str) -> bool:
    """Whether a process has not ended; what is left of one that nobody has reaped yet has."""
    try:  # ESRCH, and no missing file, if it goes between opening and reading
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def cpu_s(pid: int) -> float:
    """The CPU seconds that a process, and the children it has waited for, have used; 0 if it has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextlib.contextmanager
def strangers_port(uid: int) -> Iterator[int]:
    """A port of 127.0.0.1 at which another user's process listens; needs root."""
    listens = (
        "import socket; l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=True); l.accept()"
    )
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", "-c", listens]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
