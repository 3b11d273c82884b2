"""Server-sent events, as far as the API uses them: bytes in, complete events out.

Written here because the format is twenty lines (WHATWG HTML, section 9.2) and a library would be a dependency.
"""

from __future__ import annotations

from dataclasses import dataclass

from moorings.core.model.errors import MooringsError

EVENT_BYTES_MAX = 1 << 22


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event: ``id`` is for ``Last-Event-ID``."""

    id: str
    name: str
    data: str


class EventParser:
    """An incremental parser: ``feed`` takes any bytes and returns the completed events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._bytes = 0
        self._id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that ``chunk`` completes; comments (heartbeats) give none.

        Raises:
            MooringsError: ``controller.unreachable``: a line or an event does not end, so this is not an event stream.
        """
        found = []
        for raw in self._lines(chunk):
            line = raw.removesuffix(b"\r").decode("utf-8", "replace")
            if line:
                self._count(len(raw))
                self._take(line)
                continue
            if self._data:
                found.append(StreamEvent(self._id, self._name or "message", "\n".join(self._data)))
            self._name, self._data, self._bytes = "", [], 0
        return found

    def _lines(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk:  # appended in place: copying it all for each small piece would take quadratic time
            self._rest += chunk
            lines = []
        else:
            *lines, rest = (bytes(self._rest) + chunk).split(b"\n")
            self._rest = bytearray(rest)
        if len(self._rest) > EVENT_BYTES_MAX:
            raise _endless("a line")
        return lines

    def _count(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        if self._bytes > EVENT_BYTES_MAX:
            raise _endless("an event")

    def _take(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and "\0" not in value:
            self._id = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)


def _endless(what: str) -> MooringsError:
    return MooringsError(
        "controller.unreachable",
        f"the event stream cannot be read: {what} of it has no end",
        hint="the address may be another server's; see 'moor config view --show-origin'",
    )
