"""What goes over a socket between a system and a weight server: frames of a head and arrays.

::

    4 bytes   b"MWF1"
    4 bytes   length of the head, big-endian, at most 64 KiB
    8 bytes   length of the body, at most what the receiver allows
    head      JSON: what is meant, and "arrays": their names in order
    body      those arrays, one npy (version 1.0, float32, C order) behind the other

npy rather than pickle: what is read can only become numbers, and its shape is checked before memory is taken for it.
"""

from __future__ import annotations

import io
import json
import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Arrays = Mapping[str, Array]

MAGIC: Final = b"MWF1"
HEAD_MOST: Final = 64 << 10
HEADER_MOST: Final = 256  # of one array's npy header; NumPy pads it to 64 or 128
_PREFIX: Final = struct.Struct("!4sIQ")
_FLOAT32: Final = np.dtype("<f4")


class FrameError(Exception):
    """What came is not a frame, or one that is too large; the sentence says which."""


class CutError(FrameError):
    """The peer has gone in the middle of a frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    head: Mapping[str, Any]
    arrays: Arrays


def body_most(shapes: Mapping[str, tuple[int, ...]], copies: int = 1) -> int:
    """How long the body with arrays of these shapes can be, in bytes."""
    return copies * sum(4 * math.prod(shape) + HEADER_MOST for shape in shapes.values())


def send(sock: socket.socket, head: Mapping[str, object], arrays: Arrays | None = None) -> None:
    """Send a frame whole; the arrays are not copied.

    Raises:
        OSError: the peer has gone.
    """
    pieces: list[bytes | memoryview] = []
    for array in (arrays or {}).values():
        whole = np.asarray(array, dtype=_FLOAT32, order="C")
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(whole))
        pieces += [header.getvalue(), whole.reshape(-1).view(np.uint8).data]
    text = json.dumps({**head, "arrays": list(arrays or {})}).encode()
    sock.sendall(_PREFIX.pack(MAGIC, len(text), sum(map(len, pieces))) + text)
    for piece in pieces:
        sock.sendall(piece)


def receive(sock: socket.socket, most: int) -> Frame | None:
    """The next frame, with a body of at most ``most`` bytes; None: the peer has closed between two frames.

    Raises:
        FrameError: it is none, or too large; nothing more can be read from this socket.
        OSError: the connection broke.
    """
    prefix = _read(sock, _PREFIX.size, may_end=True)
    if prefix is None:
        return None
    magic, head_size, body_size = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"what came is no frame: it begins with {magic!r}")
    if head_size > HEAD_MOST or body_size > most:
        raise FrameError(f"a frame of {head_size} and {body_size} bytes came; at most {HEAD_MOST} and {most} are taken")
    head_text, body = _read(sock, head_size), _read(sock, body_size)
    assert head_text is not None  # without `may_end` it is read, or an error
    assert body is not None
    head = _head(bytes(head_text))
    return Frame(head, _arrays(head.pop("arrays"), body))


def _head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("the head of a frame is not JSON") from error
    names = head.get("arrays") if isinstance(head, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FrameError("the head of a frame does not name its arrays")
    assert isinstance(head, dict)
    return head


def _arrays(names: list[str], body: bytearray) -> Arrays:
    """The arrays of a body: views of it, which nothing else holds."""
    found: dict[str, Array] = {}
    at = 0
    for name in names:
        text = io.BytesIO(body[at : at + HEADER_MOST])
        try:
            version = np.lib.format.read_magic(text)
            shape, fortran, kind = np.lib.format.read_array_header_1_0(text)
        except ValueError as error:
            raise FrameError(f"the array {name!r} is not an npy file") from error
        at += text.tell()
        count = math.prod(shape)
        if version != (1, 0) or kind != _FLOAT32 or fortran or min(shape, default=0) < 0 or at + 4 * count > len(body):
            raise FrameError(f"the array {name!r} is not one of float32, or not whole")
        found[name] = np.frombuffer(body, _FLOAT32, count, at).reshape(shape)
        at += 4 * count
    if at != len(body) or len(found) != len(names):
        raise FrameError("a frame has more in it than its head names")
    return found


def _read(sock: socket.socket, size: int, *, may_end: bool = False) -> bytearray | None:
    """Exactly that many bytes; None if the peer closed before the first and ``may_end``."""
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = sock.recv_into(view[done:])
        if count == 0:
            if may_end and done == 0:
                return None
            raise CutError("the peer closed in the middle of a frame")
        done += count
    return data
