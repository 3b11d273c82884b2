"""Counts what a process does to the world, and kills it (or lies to it) at the one place it was told.

It is loaded into the victim: by ``sitecustomize`` into supervisors and clients, by ``forge`` into controllers. It wraps
the few functions through which our code reaches disk, database, processes and clients; the product knows nothing of
it. Standard library only, for it is part of processes that must start fast. Refused: ``strace --inject``, which needs
rights that not every machine gives and cannot tell one file from another.

Orders::

    at        die at the n-th act (from 1)
    when      "before" it, "during" it (half of what is written is), or "after" it
    once      a file: die only if it does not exist, and make it
    trace     a file: write each act's name there
    clock     a file: the seconds by which the wall clock is off
    broken    a file: while it exists, SQLite's writes and our fsyncs fail with the error number in it
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Orders = dict[str, Any]
Function = Callable[..., Any]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_open, _write, _close, _kill, _pwrite = os.open, os.write, os.close, os.kill, os.pwrite


class Counter:
    """The acts of one process and of those it forks."""

    def __init__(self, orders: Orders) -> None:
        self._at = int(orders.get("at", 0))
        self._when = orders.get("when", "before")
        self._once = orders.get("once")
        self._trace = orders.get("trace")
        self._n = 0
        self._lock = threading.Lock()

    def begin(self, name: str, detail: str = "") -> int:
        """Count an act that is about to happen; its number."""
        with self._lock:
            self._n += 1
            number = self._n
        if self._trace is not None:
            _append(self._trace, f"{number} {name} {detail}\n")
        self._reach(number, "before", name)
        return number

    def cut(self, number: int) -> bool:
        """Whether only half of the act of that number is to happen."""
        return number == self._at and self._when == "during"

    def end(self, number: int, name: str) -> None:
        """Note that the act of that number has happened, or half of it."""
        self._reach(number, "during", name)
        self._reach(number, "after", name)

    def wrap(self, owner: Any, name: str, *, half: Function | None = None, counts: Function | None = None) -> None:
        """Count the calls of a function of a module or class.

        Args:
            owner: where it is.
            name: what it is called.
            half: does half of it.
            counts: tells from the arguments whether a call counts; None: each does.
        """
        true = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if counts is not None and not counts(*args, **kwargs):
                return true(*args, **kwargs)
            number = self.begin(name, _about(args))
            if half is not None and self.cut(number):
                half(*args, **kwargs)
                self.end(number, name)
            result = true(*args, **kwargs)
            self.end(number, name)
            return result

        setattr(owner, name, counted)

    def wrap_reaping(self) -> None:
        """Count the ends of children that this process takes note of."""
        true = os.waitpid

        def reap(pid: int, options: int) -> tuple[int, int]:
            ended = true(pid, options)
            if ended[0] != 0:
                self.end(self.begin("reaped"), "reaped")
            return ended

        os.waitpid = reap

    def _reach(self, number: int, when: str, name: str) -> None:
        if number != self._at or when != self._when:
            return
        if self._once is not None:
            try:
                _close(_open(self._once, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                return
            _append(self._once, f"{number} {when} {name}\n")
        _kill(os.getpid(), signal.SIGKILL)


def _append(path: str, text: str) -> None:
    file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _write(file, text.encode())
    _close(file)


def _about(args: tuple[Any, ...]) -> str:
    return Path(os.fsdecode(args[0])).name if args and isinstance(args[0], str | bytes | os.PathLike) else ""


def _opens_for_writing(_path: object, flags: int, *_args: object, **_kwargs: object) -> bool:
    return bool(flags & _WRITES)


def _locks_for_long(fd: int, _operation: int) -> bool:
    """Not the simulated hardware's lock, which is taken at every look at it."""
    return Path(f"/proc/self/fd/{fd}").readlink().name in ("controller.lock", "door", "life")


def _half_written(fd: int, content: bytes) -> int:
    return _write(fd, content[: len(content) // 2])


def watch_system(counter: Counter) -> None:
    """Count what a process does to files and to other processes."""
    for name in ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "fork", "killpg", "kill"):
        counter.wrap(os, name)
    counter.wrap(os, "open", counts=_opens_for_writing)
    counter.wrap(os, "write", half=_half_written)
    counter.wrap(fcntl, "flock", counts=_locks_for_long)
    counter.wrap(signal, "pidfd_send_signal")
    counter.wrap(subprocess, "_fork_exec")


def watch_supervisor(counter: Counter) -> None:
    """Count also whom a supervisor buries."""
    counter.wrap_reaping()


def watch_client(counter: Counter) -> None:
    """Count what a client sends and reads."""
    import http.client  # only in clients: it takes a third of a supervisor's start

    for name in ("connect", "request", "getresponse"):
        counter.wrap(http.client.HTTPConnection, name)
    counter.wrap(http.client.HTTPResponse, "read")


def watch_server(counter: Counter) -> None:
    """Count a controller's commits and answers."""
    from sqlalchemy.engine.default import DefaultDialect  # only in controllers
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    counter.wrap(DefaultDialect, "do_commit")
    true = RequestResponseCycle.send

    async def send(self: Any, message: Any) -> None:
        if message["type"] != "http.response.start":
            await true(self, message)
            return
        number = counter.begin("answer", self.scope["path"])
        await true(self, message)
        counter.end(number, "answer")

    setattr(RequestResponseCycle, "send", send)  # noqa: B010 - a method, which no assignment may replace


# ---- SQLite, through the table of system calls that it has for its own tests (sqlite3_vfs.xSetSystemCall)

_PWRITE = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)


class _Vfs(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("version", "file_bytes", "path_bytes_max")),
        *((name, ctypes.c_void_p) for name in ("next", "name", "app_data")),
        *((f"x{place}", ctypes.c_void_p) for place in range(13)),  # xOpen ... xCurrentTimeInt64
        ("set_system_call", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)),
        ("get_system_call", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)),
    ]


FRAME_HEAD_BYTES = 24  # of each page in the write-ahead log; the page follows in a write of its own, which is counted
_kept: list[object] = []  # what C holds pointers to


def watch_sqlite(counter: Counter, broken: str | None) -> None:
    """Count each write of SQLite, and let it fail while the file ``broken`` exists."""
    library = ctypes.CDLL("libsqlite3.so.0")
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None)
    errno_of = ctypes.CDLL(None).__errno_location
    errno_of.restype = ctypes.POINTER(ctypes.c_int)

    def put(fd: int, content: bytes, offset: int) -> int:
        try:
            return _pwrite(fd, content, offset)
        except OSError as error:
            errno_of()[0] = error.errno or errno.EIO
            return -1

    def pwrite(fd: int, buffer: int, size: int, offset: int) -> int:
        if (number := broken_by(broken)) is not None:
            errno_of()[0] = number
            return -1
        if size <= FRAME_HEAD_BYTES:
            return put(fd, ctypes.string_at(buffer, size), offset)
        number = counter.begin("pwrite", str(size))
        written = put(fd, ctypes.string_at(buffer, size // 2 if counter.cut(number) else size), offset)
        counter.end(number, "pwrite")
        return written

    function = _PWRITE(pwrite)
    _kept.append(function)
    found = 0
    for name in (b"pwrite", b"pwrite64"):
        if vfs.contents.get_system_call(ctypes.addressof(vfs.contents), name):
            result = vfs.contents.set_system_call(
                ctypes.addressof(vfs.contents), name, ctypes.cast(function, ctypes.c_void_p)
            )
            found += result == 0
    if not found:
        sys.exit("this SQLite has no table of system calls: its writes cannot be counted")


def move_clock(path: str) -> None:
    """Have the wall clock be off by the seconds in a file, which may change at any moment; no other clock is."""
    time_ns = time.time_ns

    def moved() -> int:
        try:
            off_s = float(Path(path).read_text("ascii") or 0)
        except FileNotFoundError:
            off_s = 0.0
        return time_ns() + round(off_s * 1e9)

    time.time_ns = moved
    time.time = lambda: moved() / 1e9


def broken_by(path: str | None) -> int | None:
    """The error number in that file; None if there is none."""
    if path is None:
        return None
    try:
        return int(Path(path).read_text("ascii") or errno.EIO)
    except FileNotFoundError:
        return None


def break_fsync(path: str) -> None:
    """Have fsync fail while that file exists, as on a disk that is dying."""
    fsync = os.fsync

    def troubled(fd: Any) -> None:
        number = broken_by(path)
        if number is not None:
            raise OSError(number, os.strerror(number))
        fsync(fd)

    os.fsync = troubled


def obey(orders: Orders) -> Counter:
    """Do what is ordered, as far as every process can; the counter of its acts."""
    if "broken" in orders:
        break_fsync(orders["broken"])
    if "clock" in orders:
        move_clock(orders["clock"])
    counter = Counter(orders)
    watch_system(counter)
    return counter
