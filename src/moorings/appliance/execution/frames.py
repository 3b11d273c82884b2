"""The messages between a system and a weight server: frames of a head and arrays.

::

    4 bytes   b"MWF2"
    4 bytes   length of the head, big-endian, at most 64 KiB
    8 bytes   length of the body, at most what the receiver allows
    head      JSON: what is meant, and "arrays": the name and shape of each, in order
    body      those arrays (float32, little-endian, C order), one behind the other

No pickle: the input can only become numbers, and a shape is checked before memory is allocated for it. Refused: npy,
whose headers NumPy reads with ``ast``, which fails in CPython 3.11 with several threads at once ("AST constructor
recursion depth mismatch").
"""

from __future__ import annotations

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

MAGIC: Final = b"MWF2"
HEAD_MOST: Final = 64 << 10
_DIMENSIONS_MOST: Final = 32  # every release of NumPy takes at least as many
_PREFIX: Final = struct.Struct("!4sIQ")
_FLOAT32: Final = np.dtype("<f4")


class FrameError(Exception):
    """The input is not a frame, or is too large; the message says which."""


class TruncatedFrameError(FrameError):
    """The peer closed the connection within a frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    head: Mapping[str, Any]
    arrays: Arrays


def body_bytes_max(shapes: Mapping[str, tuple[int, ...]], copies: int = 1) -> int:
    """The length of a body with arrays of these shapes, in bytes."""
    return copies * sum(_FLOAT32.itemsize * math.prod(shape) for shape in shapes.values())


def send_frame(sock: socket.socket, head: Mapping[str, object], arrays: Arrays | None = None) -> None:
    """Send a complete frame; the arrays are not copied.

    Raises:
        OSError: the peer has gone.
    """
    wholes = {name: np.asarray(array, dtype=_FLOAT32, order="C") for name, array in (arrays or {}).items()}
    pieces = [whole.reshape(-1).view(np.uint8).data for whole in wholes.values()]
    described = [[name, list(whole.shape)] for name, whole in wholes.items()]
    text = json.dumps({**head, "arrays": described}).encode()
    sock.sendall(_PREFIX.pack(MAGIC, len(text), sum(map(len, pieces))) + text)
    for piece in pieces:
        sock.sendall(piece)


def receive_frame(sock: socket.socket, most: int) -> Frame | None:
    """The next frame, with a body of at most ``most`` bytes; None: the peer has closed between two frames.

    Raises:
        FrameError: it is not a frame, or too large; nothing more can be read from this socket.
        OSError: the connection broke.
    """
    prefix = _read(sock, _PREFIX.size, may_end=True)
    if prefix is None:
        return None
    magic, head_size, body_size = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"the received data is no frame: it begins with {magic!r}")
    if head_size > HEAD_MOST or body_size > most:
        raise FrameError(f"a frame of {head_size} and {body_size} bytes came; at most {HEAD_MOST} and {most} are taken")
    head_text, body = _read(sock, head_size), _read(sock, body_size)
    assert head_text is not None  # without `may_end` it is there, or an error was raised
    assert body is not None
    head = _head(bytes(head_text))
    return Frame(head, _arrays(head.pop("arrays"), body))


def _head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("the head of a frame is not JSON") from error
    if not isinstance(head, dict) or not isinstance(head.get("arrays"), list):
        raise FrameError("the head of a frame does not name its arrays")
    return head


def _arrays(described: list[Any], body: bytearray) -> Arrays:
    """The arrays of a body: views of it, and its only references."""
    found: dict[str, Array] = {}
    at = 0
    for each in described:
        name, shape = _described(each)
        count = math.prod(shape)
        if at + _FLOAT32.itemsize * count > len(body):
            raise FrameError(f"the array {name!r} is not whole")
        found[name] = np.frombuffer(body, _FLOAT32, count, at).reshape(shape)
        at += _FLOAT32.itemsize * count
    if at != len(body) or len(found) != len(described):
        raise FrameError("a frame has more in it than its head names")
    return found


def _described(each: object) -> tuple[str, list[int]]:
    """Name and shape of one array. ``type``, not ``isinstance``: true is not a size."""
    match each:
        case [str(name), list(shape)] if len(shape) <= _DIMENSIONS_MOST and all(
            type(size) is int and 0 <= size < 1 << 48 for size in shape
        ):
            return name, shape
    raise FrameError("the head of a frame does not name its arrays, or gives one no shape")


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
            raise TruncatedFrameError("the peer closed in the middle of a frame")
        done += count
    return data
