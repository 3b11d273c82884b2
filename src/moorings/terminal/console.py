"""The terminal, or its substitute: data to stdout, everything else to stderr, colours only where they show.

Foreign text (reasons, names, a vendor's words) passes through ``text.escape_controls`` so that no response can move the
cursor.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TextIO

from moorings.terminal.errors import OutputClosed, TerminalClosed
from moorings.terminal.text import cut_text, escape_controls

_COLOURS = {"green": "32", "yellow": "33", "red": "31", "grey": "90"}
_SIGNS = {"…": "...", "✓": "ok", "→": "->"}
_FULL_SCREEN = "\x1b[?1049h\x1b[?25l"  # another screen without a cursor: that before it, with its lines, comes back
_FULL_SCREEN_END = "\x1b[?25h\x1b[?1049l"


class Console:
    """The output of a command.

    Args:
        environment: ``NO_COLOR``, ``TERM`` and ``MOORINGS_NO_COLOR`` are read.
        colour: ``auto``, ``always`` or ``never``.
        quiet: whether notes and progress are left out (errors are not).
    """

    def __init__(self, environment: Mapping[str, str], *, colour: str = "auto", quiet: bool = False) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self.quiet = quiet
        self.dumb = environment.get("TERM", "") == "dumb"
        refused = self.dumb or any(environment.get(name) for name in ("NO_COLOR", "MOORINGS_NO_COLOR"))
        self._colour = colour == "always" or (colour == "auto" and not refused and self.out_is_tty)

    @property
    def out_is_tty(self) -> bool:
        """Whether a person may see the data."""
        return sys.stdout.isatty()

    @property
    def err_is_tty(self) -> bool:
        """Whether a person may see the progress."""
        return sys.stderr.isatty() and not self.dumb

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer a question."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @property
    def unicode(self) -> bool:
        """Whether stdout can encode every character."""
        return _takes_unicode(sys.stdout)

    @property
    def columns(self) -> int | None:
        """The width of the terminal that shows the data; None: nothing is cut."""
        if not self.out_is_tty:
            return None
        return _columns(sys.stdout)

    @property
    def lines(self) -> int | None:
        """The height of the terminal that shows the data; None: there is none."""
        return _size(sys.stdout).lines or None if self.out_is_tty else None

    def print_line(self, text: str) -> None:
        """Write a sentence to stdout; it may contain foreign text.

        Raises:
            OutputClosed: the reader of the output has closed it.
        """
        self.print_data(escape_controls(text))

    def print_data(self, text: str) -> None:
        """Write rendered text to stdout unchanged: its foreign text is plain already.

        Raises:
            OutputClosed: the reader of the output has closed it.
        """
        self._write(f"{text}\n")

    @contextlib.contextmanager
    def full_screen(self) -> Iterator[None]:
        """The terminal's other screen for ``draw``; at the end the first one is as it was."""
        self._write(_FULL_SCREEN)
        try:
            yield
        finally:
            self._write(_FULL_SCREEN_END)

    def draw(self, text: str) -> None:
        """Replace the screen by rendered text. Line by line, as a screen that is cleared first flickers.

        Raises:
            OutputClosed: the terminal has gone.
        """
        lines = text.split("\n")
        # Each line is cleared before it is written: behind a full one the cursor still stands on its last character.
        rest = f"\x1b[{len(lines) + 1}H\x1b[J" if len(lines) < (self.lines or 0) else ""
        self._write("\x1b[H" + "\n".join(f"\x1b[K{line}" for line in lines) + rest)

    def _write(self, text: str) -> None:
        with _output_errors():
            sys.stdout.write(text)
            sys.stdout.flush()

    def print_bytes(self, chunk: bytes) -> None:
        """Write bytes to stdout, such as a job's own output.

        Raises:
            OutputClosed: the reader of the output has closed it.
        """
        with _output_errors():
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

    def info(self, text: str) -> None:
        """Write a line for the user to stderr, unless quiet."""
        if not self.quiet:
            self.error(text)

    def warn(self, text: str) -> None:
        """Write a warning to stderr."""
        self.error(f"warning: {text}")

    def error(self, text: str) -> None:
        """Write a line to stderr, also if quiet; nothing, if its terminal has gone."""
        _write_note(f"{self.replace_symbols(escape_controls(text), sys.stderr)}\n")

    def write_live(self, text: str) -> None:
        """Replace the last line of the terminal with ``text``; empty text clears it."""
        width = _columns(sys.stderr) or 80
        shown = cut_text(escape_controls(text), width - 1, unicode=_takes_unicode(sys.stderr))
        _write_note("\r\x1b[K" + self.replace_symbols(shown, sys.stderr))

    def paint(self, text: str, colour: str) -> str:
        """``text`` in that colour, where colours show."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colour and colour else text

    def replace_symbols(self, text: str, stream: TextIO | None = None) -> str:
        """``text`` with our own signs in ASCII if the locale cannot encode them."""
        if not _takes_unicode(stream or sys.stdout):
            for sign, ascii_sign in _SIGNS.items():
                text = text.replace(sign, ascii_sign)
        return text


@contextlib.contextmanager
def _output_errors() -> Iterator[None]:
    """Raise what means that nobody reads stdout any more.

    Raises:
        TerminalClosed: its terminal has gone.
        OutputClosed: the reader of its pipe has closed it.
    """
    try:
        yield
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        discard(sys.stdout)
        raise TerminalClosed from None


def _write_note(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # its terminal has gone: the command's own work must not end with it
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter's last flush does not complain about it."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def _takes_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-").startswith("utf")


def _columns(stream: TextIO) -> int | None:
    return _size(stream).columns or None


def _size(stream: TextIO) -> os.terminal_size:
    """Columns and lines; zeros if they are not known."""
    try:
        return os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return os.terminal_size((0, 0))
