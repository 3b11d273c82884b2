"""Processes of the tests: what they say of themselves, and how they are started to hear signals."""

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
