"""How ``moor`` and a run's supervisor talk about terminals: frames on a Unix socket, as data.

A frame is its kind (one byte), the length of its content (four bytes, big-endian), and the content. The client begins
with REQUEST; the supervisor answers READY or FAILED, and both then send what their side has. HTTP through the
controller was refused: what a person types would pass through a process that may be taken over, and a terminal would
end with it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from moorings.core.model.serialization import from_plain, to_plain
from moorings.workloads.commands import COMMAND_ARGS_MAX, COMMAND_CHARS_MAX

FRAME_BYTES_MAX = 1 << 20
SIZE_MAX = 4096  # rows or columns of a terminal
TERM_CHARS_MAX = 100
SOCKET_NAME = "terminal"  # in the folder of a run

_HEAD = struct.Struct("!cI")
_SIZE = struct.Struct("!HH")


class FrameKind(StrEnum):
    """The meaning of a frame's content."""

    REQUEST = "Q"  # client: what it wants, as JSON
    INPUT = "I"  # client: bytes for the program
    SIZE = "W"  # client: rows and columns of its window
    SIGNAL = "S"  # client: the number of a signal for the command, as a text
    END = "E"  # no more bytes come from this side
    READY = "R"  # supervisor: it is done as wished
    OUTPUT = "O"  # supervisor: bytes of the program
    ERRORS = "D"  # supervisor: bytes of its standard error
    EXIT = "X"  # supervisor: the exit code, as a text; the last frame
    FAILED = "F"  # supervisor: why not, as JSON; the last frame


class TerminalAction(StrEnum):
    """What a client wants of a supervisor."""

    ATTACH = "attach"  # the terminal of task 0
    EXEC = "exec"  # another command beside the tasks
    FORWARD = "forward"  # a connection to a port of the job's machine


@dataclass(frozen=True, slots=True)
class WindowSize:
    """Of a terminal."""

    rows: int = 24
    columns: int = 80

    def encode(self) -> bytes:
        """The content of a SIZE frame."""
        return _SIZE.pack(self.rows, self.columns)

    @classmethod
    def parse(cls, content: bytes) -> WindowSize:
        """The size in a SIZE frame.

        Raises:
            ValueError: it is none.
        """
        try:
            size = cls(*_SIZE.unpack(content))
        except struct.error as error:
            raise ValueError(str(error)) from error
        return size.checked()

    def checked(self) -> WindowSize:
        """This size.

        Raises:
            ValueError: no window has it.
        """
        if not (0 <= self.rows <= SIZE_MAX and 0 <= self.columns <= SIZE_MAX):
            raise ValueError("no window has that size")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalRequest:
    """What a client wants.

    Attributes:
        command: for EXEC: program and arguments.
        tty: for EXEC: whether the command gets a terminal; else it gets pipes.
        term: the client's ``TERM``.
        size: of the client's window.
        port: for FORWARD.
    """

    action: TerminalAction
    command: tuple[str, ...] = ()
    tty: bool = False
    term: str = ""
    size: WindowSize = WindowSize()
    port: int = 0

    def encode(self) -> bytes:
        """The content of a REQUEST frame."""
        return json.dumps(to_plain(self)).encode()


@dataclass(frozen=True, slots=True)
class TerminalFailure:
    """Why a supervisor does not do what is wished.

    Attributes:
        detail: a sentence.
        hint: what to do.
        exit_code: as a shell would exit, of a command that cannot be started; 0: it says nothing of one.
    """

    detail: str
    hint: str = ""
    exit_code: int = 0

    def encode(self) -> bytes:
        """The content of a FAILED frame."""
        return json.dumps(to_plain(self)).encode()


def encode_frame(kind: FrameKind, content: bytes = b"") -> bytes:
    """A frame."""
    assert len(content) <= FRAME_BYTES_MAX
    return _HEAD.pack(kind.encode(), len(content)) + content


class FrameReader:
    """Finds frames in a stream of bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """The frames that are complete with these bytes.

        Raises:
            ValueError: what came is no frame.
        """
        self._rest += chunk
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes is too long")
            found = FrameKind(kind.decode("latin-1"))
            end = _HEAD.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            yield found, content


def parse_request(content: bytes) -> TerminalRequest:
    """What a client wants.

    Raises:
        ValueError: it cannot be read, or is out of bounds.
    """
    request = from_plain(TerminalRequest, _object(content))
    request.size.checked()
    _check_texts(request)
    if request.action is TerminalAction.EXEC and not (request.command and request.command[0]):
        raise ValueError("there is no command")
    if request.action is TerminalAction.FORWARD and not 1 <= request.port <= 65535:
        raise ValueError(f"{request.port} is no port")
    return request


def _check_texts(request: TerminalRequest) -> None:
    if any("\0" in text for text in (*request.command, request.term)):
        raise ValueError("a word of the request holds a NUL character")
    if len(request.command) > COMMAND_ARGS_MAX or sum(map(len, request.command)) > COMMAND_CHARS_MAX:
        raise ValueError("the command is too long")
    if len(request.term) > TERM_CHARS_MAX:
        raise ValueError("TERM is too long")


def parse_failure(content: bytes) -> TerminalFailure:
    """Why the supervisor does not do it.

    Raises:
        ValueError: it cannot be read.
    """
    return from_plain(TerminalFailure, _object(content))


def _object(content: bytes) -> object:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
