"""A reader of the event stream that continues where it was, whatever happens to the controller."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable

from tests.faults.victims import PATIENCE_S, UNKNOWN_YET, Victim

WAIT_S = 0.02


class Watcher(threading.Thread):
    """Follows ``/v1/events`` by server-sent events and ``Last-Event-ID``, and keeps what it was told.

    Attributes:
        told: number and name of each event, as they came.
        said: what went wrong last.
    """

    def __init__(self, victim: Victim) -> None:
        super().__init__(daemon=True)
        self.told: list[tuple[int, str]] = []
        self.said = ""
        self._victim = victim
        self._last = 0
        self._halt = threading.Event()

    def run(self) -> None:
        while not self._halt.is_set():
            try:
                self._read()
            except (*UNKNOWN_YET, KeyError, AssertionError) as error:  # whatever came: it asks again from where it was
                self.said = repr(error)
                time.sleep(WAIT_S)

    def finish(self, last: Callable[[], int]) -> list[tuple[int, str]]:
        """What it was told, once that goes up to the number that ``last`` gives; it ends.

        A controller may have died of its last save: all is settled then, and nobody is left to tell of it.
        """
        give_up = time.monotonic() + PATIENCE_S
        while self._last < last() and time.monotonic() < give_up:
            self._victim.mend()
            time.sleep(WAIT_S)
        self._halt.set()
        return self.told

    def _read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._victim.port, timeout=1)
        try:
            headers = {"Authorization": f"Bearer {self._victim.key}", "Last-Event-ID": str(self._last)}
            connection.request("GET", "/v1/events?watch=1", headers=headers)
            answer = connection.getresponse()
            assert answer.status in (200, 503), answer.status
            number, name = 0, ""
            while not self._halt.is_set() and (line := answer.readline()):
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line == b"\n" and number:  # an event counts once its end has come
                    self.told.append((number, name))
                    self._last, number = number, 0
        finally:
            connection.close()
