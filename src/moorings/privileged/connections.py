"""The connections of a socket: each is one request, a JSON object up to the end of what is sent, and one answer.

Requests are received without waiting for anybody: a client that sends nothing holds a place, and nothing else. If all
places are taken, a newcomer gets that of the oldest incomplete request of the user with the most.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from moorings.privileged.peers import peer_uid, refuse_descriptors
from moorings.privileged.refusals import Refused
from moorings.privileged.spool import JOB_BYTES_MAX

log = logging.getLogger("moorings.privileged")

REQUEST_BYTES_MAX = JOB_BYTES_MAX + (64 << 10)
PLACES_MAX, PLACES_MAX_USER = 64, 4  # of requests at once
RECEIVE_S_MAX = 2.0  # for a request to arrive
ACCEPTS_PER_WAKEUP = 64  # before what is connected has its turn
BACKLOG = 512  # of connections that are not accepted yet; beyond, a client tries again

BUSY = Refused("daemon.busy", "it answers too many other requests", "ask again in a moment").answer()

Operation = Callable[[int, dict[str, Any]], dict[str, Any]]


def open_socket(path: Path, mode: int, owner: int = 0) -> socket.socket:
    """A listening socket, of that mode and owner from the start; for the main thread.

    Raises:
        OSError: it cannot be made.
    """
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    os.chown(path, owner, -1)
    refuse_descriptors(listening)  # before the first connection
    listening.listen(BACKLOG)
    return listening


class PeerConnection:
    """One request that is being received."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket, self.received = connected, bytearray()
        self.until_s = time.monotonic() + RECEIVE_S_MAX
        self.uid = peer_uid(connected)

    def receive(self) -> bool:
        """Take in what is there; returns whether the request is complete, or too long.

        Raises:
            OSError: the other side is gone.
        """
        part = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)  # without room for descriptors: they are closed
        self.received += part
        return not part or len(self.received) > REQUEST_BYTES_MAX

    def answer(self, answer: Mapping[str, Any], within_s: float = 0.0) -> None:
        """Answer, and close; without a time nobody is waited for, and an answer that does not fit is lost."""
        with self.socket, contextlib.suppress(OSError):
            self.socket.settimeout(within_s)
            self.socket.sendall(json.dumps(answer).encode())


class PeerListener:
    """A listening socket, and its incomplete requests.

    Args:
        listening: the socket.
        selector: calls when something arrives.
        serve: serves a complete request; it closes the connection.
        uids: who may connect; None: anybody.
        busy: the users of the complete requests that are being served.
    """

    def __init__(
        self,
        listening: socket.socket,
        selector: selectors.BaseSelector,
        serve: Callable[[PeerConnection], None],
        uids: Collection[int] | None = None,
        busy: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._selector, self._serve, self._uids, self._busy = selector, serve, uids, busy
        self._open: list[PeerConnection] = []  # the oldest first
        listening.setblocking(False)
        selector.register(listening, selectors.EVENT_READ, lambda: self._accept(listening))

    @property
    def is_receiving(self) -> bool:
        """Whether a request is incomplete."""
        return bool(self._open)

    def close_late(self) -> None:
        """Close what has not arrived in its time."""
        for late in [each for each in self._open if each.until_s < time.monotonic()]:
            self._take(late).socket.close()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # none is left, it has gone, or there are no descriptors left
            for _ in range(ACCEPTS_PER_WAKEUP):
                self._take_in(PeerConnection(listening.accept()[0]))

    def _take_in(self, made: PeerConnection) -> None:
        if self._uids is not None and made.uid not in self._uids:
            made.socket.close()
        elif self._has_place(made.uid):
            self._open.append(made)
            self._selector.register(made.socket, selectors.EVENT_READ, lambda: self._receive(made))
        else:
            with contextlib.suppress(OSError):
                made.receive()  # else what was sent and not read takes the answer with it
            made.answer(BUSY)

    def _has_place(self, uid: int) -> bool:
        held = Counter([*self._busy(), *(each.uid for each in self._open)])
        if held[uid] >= (PLACES_MAX_USER if self._uids is None else PLACES_MAX):
            return False
        if held.total() >= PLACES_MAX:
            oldest = max(self._open, key=lambda each: held[each.uid], default=None)  # of who has the most: the first
            if oldest is None:
                return False
            self._take(oldest).socket.close()
        return True

    def _receive(self, connection: PeerConnection) -> None:
        try:
            is_complete = connection.receive()
        except OSError:
            self._take(connection).socket.close()
        else:
            if is_complete:
                self._serve(self._take(connection))

    def _take(self, connection: PeerConnection) -> PeerConnection:
        self._selector.unregister(connection.socket)
        self._open.remove(connection)
        return connection


def answer_request(received: bytes | bytearray, uid: int, operations: Mapping[object, Operation]) -> dict[str, Any]:
    """The answer to a request, whatever it is."""
    try:
        request = dict(json.loads(received))
        return operations[request["op"]](uid, request)
    except Refused as refused:
        return refused.answer()
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        return Refused("request.invalid", f"that is no request: {error!r}"[:300]).answer()
    except OSError as error:
        log.exception("request.failed")
        return Refused("daemon.failed", f"{error.strerror or error}", "the daemon's log has the rest").answer()
