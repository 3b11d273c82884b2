"""What the machine's processes say of themselves; those that end while they are asked are left out."""

from collections.abc import Iterator
from pathlib import Path


def every_process(name: str) -> Iterator[tuple[int, bytes]]:
    """The id of each process, and what its file of that name in ``/proc`` says: ``stat``, ``cmdline``, ``environ``."""
    for process in Path("/proc").iterdir():  # not ``glob``: it fails for one that ends in that moment
        if process.name.isdecimal():
            try:
                yield int(process.name), (process / name).read_bytes()
            except OSError:
                continue
