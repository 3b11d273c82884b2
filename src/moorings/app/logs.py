"""Logs: one line an event, its name first, ids as fields; never a secret.

The code that writes a line leaves secrets out. This module removes access keys once more, from the lines of libraries
and the texts of exceptions, which are not ours.

Nothing rotates the log file of a controller started by ``moor up``, so it is bounded here. Under systemd the journal
does this.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from pathlib import Path

import structlog

from moorings.core.model.errors import MooringsError

OLDER_KEPT = 3  # controller.log.1 to .3
CHECK_EVERY_LINES = 64  # lines; the file may exceed its bound by this many

STATE = "moorings.state"  # the answer to SIGUSR1: logged at every level

_KEY = re.compile(r"\b(moor_[A-Za-z0-9]+)_[A-Za-z0-9]+")
_BEARER = re.compile(r"(?i)\b(bearer\s+)(?!moor_)[^\s\"',]+")
_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s@/]+@")


def without_secrets(text: str) -> str:
    """``text`` without access keys (their public id stays), bearer tokens, and passwords of URLs."""
    return _PASSWORD.sub(r"\1:***@", _BEARER.sub(r"\1***", _KEY.sub(r"\1_***", text)))


def _redact(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in fields.items():
        if isinstance(value, str):
            fields[key] = _escape(without_secrets(value))
        elif not isinstance(value, int | float | bool | None) and not key.startswith("_"):
            fields[key] = _escape(without_secrets(str(value)))
    return fields


def _escape(text: str) -> str:
    """``text`` with control characters made visible: foreign names must not control an admin's terminal.

    Line ends stay: each log format has its own way to write them.
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _sort_fields(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put the most important fields first."""
    first = ("ts", "level", "msg", "logger", "request_id", "user", "claim", "run", "partition", "pool")
    return {key: fields[key] for key in first if key in fields} | {k: v for k, v in fields.items() if k not in first}


def configure(level: str, style: str, file: Path | None = None, bytes_max: int = 0) -> None:
    """Send every logger's lines to standard error, as logfmt or JSON.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        style: ``logfmt`` or ``json``.
        file: the new target of standard output and error; made 0600.
        bytes_max: the size at which it is rotated; 0: never.

    Raises:
        MooringsError: ``config.invalid``: the file is not writable.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("msg"),
        _redact,
    ]
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.processors.LogfmtRenderer(bool_as_flag=False)
    )
    handler = logging.StreamHandler(sys.stderr) if file is None else RotatingLog(file, bytes_max)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _sort_fields, render],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(STATE).setLevel(logging.INFO)
    for chatty in ("asyncio", "alembic", "uvicorn.error", "httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Log from this level on."""
    logging.getLogger().setLevel(level.upper())


def reopen() -> None:
    """Reopen the log file by its name, after logrotate has moved the old one away."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RotatingLog):
            handler.reopen()


class RotatingLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard output and error as one file, rotated when it is full.

    The process's own descriptors point to it, so a traceback of a crash and a library's messages go there too.

    Args:
        path: the file.
        bytes_max: the size at which it is rotated; 0: never.

    Raises:
        MooringsError: ``config.invalid``.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._bytes_max = bytes_max
        self._lines = 0
        try:
            self.reopen()
            self._rotate_if_full()
        except OSError as error:
            raise MooringsError(
                "config.invalid", f"the log {path} cannot be written: {error}", hint="name another with --log-file"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._lines += 1
        if self._lines >= CHECK_EVERY_LINES:
            self._lines = 0
            try:
                self._rotate_if_full()
            except OSError:  # a full disk, say: the lines go to the existing file
                self.handleError(record)

    def reopen(self) -> None:
        """Redirect standard output and error to the file of that name.

        Raises:
            OSError: it cannot be opened; nothing has changed.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        log = os.open(self._path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(log).st_mode):
                raise OSError(f"{self._path} is no file")
            for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
                os.dup2(log, descriptor)
        finally:
            os.close(log)

    def _rotate_if_full(self) -> None:
        if not self._bytes_max or os.fstat(sys.stderr.fileno()).st_size < self._bytes_max:
            return
        for number in range(OLDER_KEPT, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        self.reopen()
