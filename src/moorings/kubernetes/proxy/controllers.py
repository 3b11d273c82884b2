"""One controller, as the proxy sees it: calls to it, its claims as a list and as events, and whether it responds.

The typed client is synchronous, so calls run in a few threads, each with its own connection; one more thread reads the
event stream. Results are passed to the event loop; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter, EventFilter
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.plan import ObservedController
from moorings.kubernetes.proxy.settings import ControllerEntry
from moorings.wire.shapes import ClaimBody, EventBody

T = TypeVar("T")

log = logging.getLogger("moorings.kubernetes.proxy")

THREADS = 8  # concurrent calls; they are short
LIST_S = 15.0  # between two lists while the event stream works, in case it loses something
LIST_AWAY_S = 2.0  # while it does not, or the controller does not respond
AGAIN_S = 1.0
GONE_S = 15.0  # longer than our longest call
EVENTS = EventFilter(names=("claim.*",))
_DENIED = ("auth.", "owner.denied")  # codes, or prefixes of codes
_AWAY = ("controller.", "store.fenced", *_DENIED)


class ClaimListener(Protocol):
    """Receives what controllers report, in the loop's thread."""

    def on_connected(self, link: ControllerConnection, installation: str) -> str:
        """An installation responds there; returns why none of its data is accepted, or nothing."""
        ...

    def on_claims_listed(self, link: ControllerConnection, began: float, claims: tuple[ClaimBody, ...]) -> None:
        """All unended claims of the cluster, from a list that began at ``began`` (``time.monotonic``)."""
        ...

    def on_events(self, link: ControllerConnection, events: tuple[EventBody, ...]) -> None:
        """Events, in order."""
        ...

    def on_reachability_changed(self, link: ControllerConnection) -> None:
        """It began or ceased to respond."""
        ...


@dataclass(frozen=True, slots=True)
class ControllerTarget:
    """The address of a controller, and our credentials for it."""

    entry: ControllerEntry
    endpoint: Endpoint


class ControllerConnection:
    """One controller.

    Args:
        reach: its address.
        prefix: of the owners whose claims are listed.
        listener: receives its reports.

    Attributes:
        is_reachable: whether it responded to the last call.
        was_listed: whether all its claims were ever listed.
        is_configured: whether it is in the list of controllers; else it is only watched, until it has no claims of the
            cluster.
        listing: whether a list of its claims is under way.
        installation: its installation when it last responded; empty: it never did.
        alias_of: the name under which it is used, if another entry names it already; else empty.
        was_tried: whether its claims were requested at least once, with success or not.
        problem: why it does not respond.
        denies_access: whether it responds, but refuses our access key.
        foreign_claims: how many claims under our owners are another cluster's there.
        away_at: since when it has not responded (``time.monotonic``).
    """

    def __init__(self, reach: ControllerTarget, prefix: str, listener: ClaimListener) -> None:
        self.reach = reach
        self.is_reachable = False
        self.was_listed = False
        self.is_configured = True
        self.listing = False
        self.installation = ""
        self.alias_of = ""
        self.was_tried = False
        self.problem = "it was not heard of yet"
        self.denies_access = False
        self.foreign_claims = 0
        self.away_at = time.monotonic()
        self._prefix = prefix
        self._listener = listener
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="controller")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._aside: Client | None = None
        self._streams = False
        self._reported_quiet = False
        self._closed = False
        self._listing_wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_quiet(self) -> bool:
        """Whether it has not responded for so long that no request can still be on its way to it."""
        return not self.is_reachable and time.monotonic() - self.away_at > GONE_S

    @property
    def name(self) -> str:
        """``host:port``."""
        return self.reach.entry.name

    def observe(self) -> ObservedController:
        """Its present state."""
        return ObservedController(
            self.name, self.is_reachable, self.is_quiet, self.is_configured, self.was_listed, self.installation
        )

    def open(self) -> None:
        """Begin to list and to watch."""
        loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(self._keep_listed()))
        threading.Thread(target=self._stream, args=(loop,), name=f"events {self.name}", daemon=True).start()

    async def close(self) -> None:
        """Disconnect, without waiting for calls under way."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.close()

    async def __call__(self, call: Callable[[Client], T]) -> T:
        """The result of ``call``, run in a thread.

        Raises:
            MooringsError: the controller's error, or ``controller.unreachable``.
        """
        try:
            done = self._threads.submit(lambda: call(self._client()))
        except RuntimeError as error:
            raise MooringsError("controller.unreachable", f"{self.name} is not asked any more") from error
        try:
            return await asyncio.wrap_future(done)
        except MooringsError as error:
            if error.code.startswith(_AWAY) and error.code != "controller.busy":
                self._set_away(error.detail, denies=error.code.startswith(_DENIED))
            raise

    async def call_serially(self, call: Callable[[Client], T]) -> T:
        """The result of ``call``, one at a time; a late or refused call does not mark the controller as away.

        Raises:
            MooringsError: the controller's error, or ``controller.unreachable``.
        """
        if self._aside is None:
            self._aside = self._new_client()
            self._clients.append(self._aside)
        client = self._aside
        return await asyncio.to_thread(lambda: call(client))

    def list_soon(self) -> None:
        """List its claims now."""
        self._listing_wanted.set()

    async def _keep_listed(self) -> None:
        while True:
            self._listing_wanted.clear()
            began = time.monotonic()
            self.listing = True
            try:
                installation, claims = await self(self._list_claims)
                why = self._listener.on_connected(self, installation)
                if why:
                    self._set_away(why)
                else:
                    self._listener.on_claims_listed(self, began, claims)
                    self.was_listed = True
                    self._set_here()
            except MooringsError as error:
                self._set_away(error.detail, denies=error.code.startswith(_DENIED))
            except Exception:
                log.exception("controller.list_failed", extra={"controller": self.name})
            self.listing, self.was_tried = False, True
            if self.is_quiet and not self._reported_quiet:
                self._reported_quiet = True
                self._listener.on_reachability_changed(self)
            pause_s = LIST_S if self._streams and self.is_reachable else LIST_AWAY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._listing_wanted.wait()
            except TimeoutError:
                continue

    def _list_claims(self, client: Client) -> tuple[str, tuple[ClaimBody, ...]]:
        return client.version().installation, client.list_claims(ClaimFilter(owner_prefix=self._prefix))

    def _set_here(self) -> None:
        self._reported_quiet = False
        if not self.is_reachable:
            self.is_reachable, self.problem, self.denies_access = True, "", False
            log.info("controller.answers", extra={"controller": self.name})
            self._listener.on_reachability_changed(self)

    def _set_away(self, why: str, *, denies: bool = False) -> None:
        if self.is_reachable or self.problem != why:
            log.warning("controller.away", extra={"controller": self.name, "detail": why})
        news = self.is_reachable or self.denies_access != denies  # listeners also learn which of both it is
        self.problem, self.denies_access = why, denies
        if self.is_reachable:
            self.is_reachable = False
            self.away_at = time.monotonic()
        if news:
            self._listener.on_reachability_changed(self)

    # -- the stream, in its own thread ---------------------------------------------------------------------------------

    def _stream(self, loop: asyncio.AbstractEventLoop) -> None:
        client = self._new_client()
        while not self._is_closed():
            try:
                for batch in client.watch_events(EVENTS):
                    _call_in_loop(loop, self._streamed, batch)
                    if self._is_closed():
                        return
            except MooringsError:
                _call_in_loop(loop, self._broke_off)  # the lists show the reason, if it lasts
            except Exception:
                log.exception("controller.stream_failed", extra={"controller": self.name})
            time.sleep(AGAIN_S)

    def _is_closed(self) -> bool:
        return self._closed  # by the loop's thread

    def _streamed(self, batch: tuple[EventBody, ...]) -> None:
        if self._closed:
            return
        if batch:
            self._listener.on_events(self, batch)
        else:  # it is connected now: a list has the missed changes
            self._streams = True
            self.list_soon()

    def _broke_off(self) -> None:
        self._streams = False
        self.list_soon()

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._new_client()
            self._clients.append(client)
        return client

    def _new_client(self) -> Client:
        return Client(Transport(self.reach.endpoint))


def _call_in_loop(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *about: object) -> None:
    try:
        loop.call_soon_threadsafe(what, *about)
    except RuntimeError:  # the loop has ended; so does the process
        return
