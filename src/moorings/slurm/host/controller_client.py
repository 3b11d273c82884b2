"""The agent's calls to the controller: the typed client in threads, so that many calls can wait at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from moorings.client.client import Client
from moorings.client.transport import Endpoint, Transport

T = TypeVar("T")

WAITERS_MAX = 64  # long calls to the controller at once
_SPARE = 8  # reserved among them: for the watch of the offer, and abandoned calls
_SHORT_CALLS = 4


class ControllerClient:
    """One controller, called by many tasks; each thread has its own connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._threads = ThreadPoolExecutor(WAITERS_MAX, thread_name_prefix="controller")
        self._short_calls = ThreadPoolExecutor(_SHORT_CALLS, thread_name_prefix="controller-quick")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._held = 0
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether so many long calls are open that another one must poll instead."""
        return self._held >= WAITERS_MAX - _SPARE

    async def __call__(self, call: Callable[[Client], T], *, waits: bool = False) -> T:
        """Return the result of ``call``; with ``waits`` it may take long, and does not delay other calls.

        Raises:
            MooringsError: the controller's error, or ``controller.unreachable``.
        """
        threads = self._threads if waits else self._short_calls
        done = threads.submit(lambda: call(self._client()))
        if waits:
            self._count(1)
            done.add_done_callback(lambda _: self._count(-1))  # in its thread: an abandoned call still runs
        return await asyncio.wrap_future(done)

    def _count(self, by: int) -> None:
        with self._lock:
            self._held += by

    def close(self) -> None:
        """Close the connections, without a wait for calls in progress."""
        for threads in (self._threads, self._short_calls):
            threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.close()

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = Client(Transport(self._endpoint))
            self._clients.append(client)
        return client
