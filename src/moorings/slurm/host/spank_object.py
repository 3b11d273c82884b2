"""Reads the Slurm release of a compiled SPANK plugin from the file itself.

Slurm refuses an object of another release, and only reports it where a user sees it. Loading the object was refused: it
needs symbols of Slurm's own programs, and reading 4 bytes should not run a plugin's code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from moorings.core.model.errors import MooringsError

SYMBOL = b"plugin_version"
_DYNSYM, _LOAD = 11, 1
_TABLE_MAX = 100_000


def release_of(version: str) -> str:
    """Return the release of a version, the part that Slurm compares: ``22.05`` of ``22.05.8``."""
    return ".".join(version.split("-")[0].split(".")[:2])


def parse_version(image: bytes, source: str) -> str:
    """Return the version of the Slurm headers that a plugin was compiled with, as ``22.05.8``.

    Args:
        image: the shared object.
        source: its name, for messages.

    Raises:
        MooringsError: ``slurm.unreadable``: not a plugin of a 64-bit machine.
    """
    try:
        number = _number(image)
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise MooringsError("slurm.unreadable", f"{source} is no SPANK plugin that can be read: {error}") from error
    return f"{number >> 16 & 0xFF:02}.{number >> 8 & 0xFF:02}.{number & 0xFF}"


def _number(image: bytes) -> int:
    """Return the value of the symbol; 22.05.8 is the bytes 22, 5 and 8."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    order = "<" if image[5] == 1 else ">"
    for address in _addresses(image, order):
        for start, length, offset in _loaded(image, order):
            if start <= address < start + length:
                number: int = struct.unpack_from(f"{order}I", image, offset + address - start)[0]
                return number
    raise ValueError(f"it has no symbol {SYMBOL.decode()}")


def _addresses(image: bytes, order: str) -> Iterator[int]:
    """Yield the symbol's addresses in memory."""
    (at,) = struct.unpack_from(f"{order}Q", image, 40)
    size, count = struct.unpack_from(f"{order}HH", image, 58)
    form = f"{order}IIQQQQIIQQ"
    sections = [struct.unpack_from(form, image, at + number * size) for number in range(count)]
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != _DYNSYM or entry < 24:
            continue
        names = sections[link][4]
        for start in range(offset, offset + min(length, _TABLE_MAX * entry), entry):
            name, _, _, _, value, _ = struct.unpack_from(f"{order}IBBHQQ", image, start)
            if image[names + name : names + name + len(SYMBOL) + 1] == SYMBOL + b"\0":
                yield value


def _loaded(image: bytes, order: str) -> Iterator[tuple[int, int, int]]:
    """Yield address, length and file offset of each loaded part."""
    (at,) = struct.unpack_from(f"{order}Q", image, 32)
    size, count = struct.unpack_from(f"{order}HH", image, 54)
    for number in range(count):
        kind, _, offset, address, _, length, _, _ = struct.unpack_from(f"{order}IIQQQQQQ", image, at + number * size)
        if kind == _LOAD:
            yield address, length, offset
