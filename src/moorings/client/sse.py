"""Server-sent events, as far as the API uses them: bytes in, whole events out.

Written here because the format is twenty lines (WHATWG HTML, section 9.2) and a library would be a dependency.
"""

from __future__ import annotations

from dataclasses import dataclass

from moorings.core.errors import MooringsError

LINE_BYTES_MAX = 1 << 22


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: ``id`` is what ``Last-Event-ID`` resumes after."""

    id: str
    name: str
    data: str


class EventParser:
    """An incremental parser: ``feed`` takes whatever came and gives the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that ``chunk`` completes; comments (heartbeats) give none.

        Raises:
            MooringsError: ``controller.unreachable``: a line has no end, so this is no event stream.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise MooringsError("controller.unreachable", "the event stream cannot be read: a line of it has no end")
        found = []
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", "replace")
            if line:
                self._take(line)
            elif self._data:
                found.append(ServerEvent(self._id, self._name or "message", "\n".join(self._data)))
                self._name, self._data = "", []
        return found

    def _take(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and "\0" not in value:
            self._id = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
