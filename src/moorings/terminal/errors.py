"""How an error is shown, and its exit code: sentence, code, hint, request id."""

from __future__ import annotations

from moorings.core.model.errors import MooringsError
from moorings.terminal.text import escape_controls
from moorings.wire.errors import error_kind

# The controller's hint speaks of HTTP, which a terminal user does not.
_HINTS = {
    "auth.missing": "'moor config view --show-origin' shows why no key was sent; MOORINGS_ACCESS_KEY_FILE names one",
    "auth.invalid": "the key may be revoked, or of another controller; see 'moor config view --show-origin'",
}


def error_lines(error: MooringsError) -> list[str]:
    """The last lines of a failed command on stderr: the error with its stable code, the hint, the request id."""
    lines = [f"error: {escape_controls(error.detail)} ({escape_controls(error.code)})"]
    request_id = getattr(error, "request_id", "")
    hint = (_HINTS.get(error.code) if request_id else None) or error.hint
    if hint.strip():
        lines.append(f"hint: {escape_controls(hint)}")
    if request_id:
        lines.append(f"request id: {escape_controls(request_id)}")
    return lines


def exit_code(error: MooringsError) -> int:
    """The exit code of an error: 3 for a name that does not exist, 7 for a controller that is away."""
    return int(error_kind(error.code).exit)


class OutputClosed(Exception):  # noqa: N818 - an end, not an error
    """The output's reader has closed it (``moor events | head``). Click would handle a ``BrokenPipeError`` itself."""


class TerminalClosed(OutputClosed):
    """The terminal that showed the output has gone: its window was closed, or its connection lost."""
