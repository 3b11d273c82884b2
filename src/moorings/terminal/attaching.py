"""The client's side of a run's terminal, of commands beside its tasks, and of its ports (``wire.frames``).

``moor`` connects to the supervisor itself, and the kernel says whose process that is: a controller that was taken over
must not lead what a person types to a stranger.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.privileged.peers import peer_uid
from moorings.wire.frames import (
    SOCKET_NAME,
    FrameKind,
    FrameReader,
    TerminalFailure,
    TerminalRequest,
    WindowSize,
    encode_frame,
    parse_failure,
)

ANSWER_S = 15.0
READ_BYTES = 1 << 16
UNSENT_BYTES_MAX = 1 << 17  # of what is typed or piped, that the supervisor has not taken
DETACH_KEYS = (0x10, 0x11)  # Ctrl-P Ctrl-Q, as docker has them
# No colour, a cursor, plain pasting and a new line: the program that has changed them has not ended.
AFTER_DETACH = b"\x1b[0m\x1b[?25h\x1b[?2004l\r\n"


class RelayEnd(StrEnum):
    """Why bytes are passed on no more."""

    EXITED = "EXITED"  # the program has ended
    DETACHED = "DETACHED"  # the person pressed the keys
    CLOSED = "CLOSED"  # this side's terminal has gone
    LOST = "LOST"  # the supervisor has gone


@dataclass(frozen=True, slots=True)
class RelayResult:
    """How it ended; with the program's exit code if it has ended."""

    end: RelayEnd
    exit_code: int = 0


class TerminalRefusedError(MooringsError):
    """The supervisor does not do it; ``exit_code``: as a shell exits, of a command that cannot be started."""

    def __init__(self, failure: TerminalFailure) -> None:
        super().__init__("terminal.refused", failure.detail, hint=failure.hint)
        self.exit_code = failure.exit_code


def connect(path: Path, request: TerminalRequest) -> socket.socket:
    """A connection to a supervisor that does what was wished.

    Raises:
        MooringsError: ``terminal.unreachable``; ``terminal.refused``, a ``TerminalRefusedError`` if the supervisor
            says so.
    """
    connected = _connect(path)
    try:
        connected.settimeout(ANSWER_S)
        with contextlib.suppress(BrokenPipeError):  # it has refused already
            connected.sendall(encode_frame(FrameKind.REQUEST, request.encode()))
        _await_ready(connected)
    except (OSError, ValueError) as error:
        connected.close()
        raise _unreachable(path, error) from error
    except BaseException:
        connected.close()
        raise
    return connected


def _connect(path: Path) -> socket.socket:
    if path.name != SOCKET_NAME:
        raise MooringsError("terminal.refused", f"{path} is not the socket of a run's supervisor")
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connected.connect(f"/proc/self/fd/{folder}/{path.name}")  # its own path may be longer than 108 bytes
        finally:
            os.close(folder)
        owner = peer_uid(connected)
    except OSError as error:
        connected.close()
        raise _unreachable(path, error) from error
    if os.geteuid() not in (owner, 0):
        connected.close()
        detail = f"a process of user {owner} listens at {path}, and not one of yours"
        raise MooringsError("terminal.refused", detail, hint="only the run's own person reaches its processes")
    return connected


def _unreachable(path: Path, error: Exception) -> MooringsError:
    if isinstance(error, PermissionError):
        hint = "only the run's own person reaches its processes"
        return MooringsError("terminal.refused", f"{path} is not yours", hint=hint)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "a run is reached from its own machine; one that an earlier release started is not reached"
    return MooringsError("terminal.unreachable", f"the run's supervisor cannot be reached at {path}: {why}", hint=hint)


def _await_ready(connected: socket.socket) -> None:
    """Read the answer, byte by byte, so that nothing behind it is lost.

    Raises:
        TerminalRefusedError: it says why not.
        ValueError: it is none.
    """
    frames = FrameReader()
    while chunk := connected.recv(1):
        for kind, content in frames.feed(chunk):
            if kind is FrameKind.READY:
                return
            if kind is FrameKind.FAILED:
                raise TerminalRefusedError(parse_failure(content))
            raise ValueError(f"a frame {kind} came first")
    raise ValueError("it closed the connection")


def window_size(fd: int) -> WindowSize:
    """The size of a terminal's window; the usual one if it has none."""
    try:
        found = os.get_terminal_size(fd)
    except OSError:
        return WindowSize()
    return WindowSize(min(found.lines, 4096), min(found.columns, 4096))


@contextlib.contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Pass on every key as it is typed; afterwards the terminal is as it was, however the block ends."""
    before = termios.tcgetattr(fd)

    def make_raw() -> None:
        with contextlib.suppress(termios.error):
            tty.setraw(fd, termios.TCSANOW)

    resumed = signal.signal(signal.SIGCONT, lambda _number, _frame: make_raw())  # a shell has changed it meanwhile
    try:
        make_raw()
        yield
    finally:
        signal.signal(signal.SIGCONT, resumed)
        with contextlib.suppress(termios.error):  # it has gone
            termios.tcsetattr(fd, termios.TCSANOW, before)


class Relay:
    """Passes bytes between this process's first three descriptors and a program.

    Args:
        connected: to the supervisor, by ``connect``.
        terminal: whether the program has a terminal: then the keys detach, and the window's size is passed on.
    """

    def __init__(self, connected: socket.socket, *, terminal: bool) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._terminal = terminal
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._reads_stdin = True
        self._held = b""  # a first detach key, until it is known whether the second one follows
        self._size = WindowSize()
        self._end: RelayResult | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to a command."""
        self._send(FrameKind.SIGNAL, str(number).encode())

    def run(self) -> RelayResult:
        """Pass bytes on until an end; may be called again after an interrupt."""
        with self._woken_by_resize() as woken:
            while self._end is None:
                self._step(woken)
        return self._end

    @contextlib.contextmanager
    def _woken_by_resize(self) -> Iterator[int]:
        """A descriptor that can be read after a signal, such as WINCH."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        handler = signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            self._send_size()
            yield ours.fileno()
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGWINCH, handler)
            ours.close()
            theirs.close()

    def _step(self, woken: int) -> None:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if self._reads_stdin and len(self._unsent) < UNSENT_BYTES_MAX:
            poll.register(0, select.POLLIN)
        for fd, events in poll.poll():
            if fd == woken:
                os.read(woken, READ_BYTES)
                self._send_size()
            elif fd == 0:
                self._take_input()
            elif self._end is None:
                if events & select.POLLOUT:
                    self._flush()
                if events & ~select.POLLOUT:
                    self._take_frames()

    def _send_size(self) -> None:
        if self._terminal and (size := window_size(0)) != self._size:
            self._size = size
            self._send(FrameKind.SIZE, size.encode())

    def _take_input(self) -> None:
        try:
            chunk = os.read(0, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: the terminal has gone
            chunk = b""
        if chunk:
            self._send_input(chunk)
        elif self._terminal:
            self._end = RelayResult(RelayEnd.CLOSED)
        else:
            self._reads_stdin = False
            self._send(FrameKind.END)

    def _send_input(self, chunk: bytes) -> None:
        if self._terminal:
            chunk = self._held + chunk
            keys = bytes(DETACH_KEYS)
            if keys in chunk:
                self._end = RelayResult(RelayEnd.DETACHED)
                with contextlib.suppress(OSError):
                    os.write(1, AFTER_DETACH)
                chunk = chunk[: chunk.index(keys)]
            held = self._end is None and chunk.endswith(keys[:1])
            chunk, self._held = (chunk[:-1], keys[:1]) if held else (chunk, b"")
        if chunk:
            self._send(FrameKind.INPUT, chunk)

    def _send(self, kind: FrameKind, content: bytes = b"") -> None:
        self._unsent += encode_frame(kind, content)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # what it has sent before is still read
            self._unsent.clear()

    def _take_frames(self) -> None:
        try:
            chunk = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._end = self._end or RelayResult(RelayEnd.LOST)
            return
        for kind, content in self._frames.feed(chunk):
            if kind is FrameKind.EXIT:
                self._end = RelayResult(RelayEnd.EXITED, int(content))
            elif kind in (FrameKind.OUTPUT, FrameKind.ERRORS) and self._end is None:
                self._print(1 if kind is FrameKind.OUTPUT else 2, content)

    def _print(self, fd: int, content: bytes) -> None:
        while content:
            try:
                content = content[os.write(fd, content) :]
            except BlockingIOError:
                select.select([], [fd], [])
            except OSError:  # the terminal has gone, or the reader of a pipe
                self._end = RelayResult(RelayEnd.CLOSED)
                return
