"""One controller, as the proxy sees it: calls to it, its claims as a list and as events, and whether it answers.

The typed client is a synchronous one, so calls run in a few threads, each with a connection of its own; one more thread
reads the event stream. What comes is handed to the loop; nothing is decided here.
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
from moorings.core.errors import MooringsError
from moorings.kubernetes.proxy.settings import ControllerEntry
from moorings.wire.shapes import ClaimBody, EventBody

T = TypeVar("T")

log = logging.getLogger("moorings.kubernetes.proxy")

THREADS = 8  # calls at the same time; they are short
LIST_S = 15.0  # between two lists while the events come: a net under them
LIST_AWAY_S = 2.0  # while they do not, or the controller does not answer
AGAIN_S = 1.0
GONE_S = 15.0  # longer than any call of ours takes
CALL_S = 10.0  # a controller that says nothing for so long is away
EVENTS = EventFilter(names=("claim.*",))
_DENIED = ("auth.", "owner.denied")  # codes, or what they begin with
_AWAY = ("controller.", "store.fenced", *_DENIED)


class ClaimListener(Protocol):
    """Who is told what comes from controllers, in the loop's thread."""

    def met(self, link: ControllerConnection, installation: str) -> str:
        """An installation answers there; why nothing of it is to be taken in, or nothing."""
        ...

    def listed(self, link: ControllerConnection, began: float, claims: tuple[ClaimBody, ...]) -> None:
        """All unended claims of the cluster, from a list begun then (``time.monotonic``)."""
        ...

    def happened(self, link: ControllerConnection, events: tuple[EventBody, ...]) -> None:
        """Events, in order."""
        ...

    def changed(self, link: ControllerConnection) -> None:
        """It answers now, or does not any more."""
        ...


@dataclass(frozen=True, slots=True)
class ControllerTarget:
    """How a controller is reached: where, and with what."""

    entry: ControllerEntry
    endpoint: Endpoint


class ControllerConnection:
    """One controller.

    Args:
        reach: how it is reached.
        prefix: of the owners whose claims matter.
        listener: who is told.

    Attributes:
        answers: whether it answered last.
        seen: whether all its claims were ever listed.
        asked: whether it stands in the list of controllers; else it is only watched until nothing of ours is there.
        listing: whether a list of its claims is on its way.
        installation: of which installation it was when it answered; empty: it never did.
        alias_of: the name under which it is asked, if it is one that another entry names already; else empty.
        tried: whether its claims were asked for at least once, in vain or not.
        problem: why it does not answer.
        denies: whether it answers, but not to us: our access key is worth nothing there.
        foreign: how many claims under our owners are another cluster's there.
        away_at: since when it has not answered (``time.monotonic``).
    """

    def __init__(self, reach: ControllerTarget, prefix: str, listener: ClaimListener) -> None:
        self.reach = reach
        self.answers = False
        self.seen = False
        self.asked = True
        self.listing = False
        self.installation = ""
        self.alias_of = ""
        self.tried = False
        self.problem = "it was not heard of yet"
        self.denies = False
        self.foreign = 0
        self.away_at = time.monotonic()
        self._prefix = prefix
        self._listener = listener
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="controller")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._aside: Client | None = None
        self._streams = False
        self._told_gone = False
        self._closed = False
        self._look = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def gone(self) -> bool:
        """Whether it has not answered for so long that nothing is on its way to it any more."""
        return not self.answers and time.monotonic() - self.away_at > GONE_S

    @property
    def name(self) -> str:
        """``host:port``."""
        return self.reach.entry.name

    def open(self) -> None:
        """Begin to list and to watch."""
        loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(self._keep_listed()))
        threading.Thread(target=self._stream, args=(loop,), name=f"events {self.name}", daemon=True).start()

    async def close(self) -> None:
        """Let go; calls under way are not waited for."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.close()

    async def __call__(self, ask: Callable[[Client], T]) -> T:
        """What ``ask`` gives, asked in a thread.

        Raises:
            MooringsError: what the controller answered, or ``controller.unreachable``.
        """
        try:
            done = self._threads.submit(lambda: ask(self._client()))
        except RuntimeError as error:
            raise MooringsError("controller.unreachable", f"{self.name} is not asked any more") from error
        try:
            return await asyncio.wrap_future(done)
        except MooringsError as error:
            if error.code.startswith(_AWAY) and error.code != "controller.busy":
                self._set_away(error.detail, denies=error.code.startswith(_DENIED))
            raise

    async def ask_aside(self, ask: Callable[[Client], T]) -> T:
        """What ``ask`` gives, asked one at a time; that it is late or refused says nothing of the controller.

        Raises:
            MooringsError: what the controller answered, or ``controller.unreachable``.
        """
        if self._aside is None:
            self._aside = self._new_client()
            self._clients.append(self._aside)
        client = self._aside
        return await asyncio.to_thread(lambda: ask(client))

    def list_soon(self) -> None:
        """List its claims now."""
        self._look.set()

    async def _keep_listed(self) -> None:
        while True:
            self._look.clear()
            began = time.monotonic()
            self.listing = True
            try:
                installation, claims = await self(self._ask_all)
                why = self._listener.met(self, installation)
                if why:
                    self._set_away(why)
                else:
                    self._listener.listed(self, began, claims)
                    self.seen = True
                    self._set_here()
            except MooringsError as error:
                self._set_away(error.detail, denies=error.code.startswith(_DENIED))
            except Exception:
                log.exception("controller.list_failed", extra={"controller": self.name})
            self.listing, self.tried = False, True
            if self.gone and not self._told_gone:
                self._told_gone = True
                self._listener.changed(self)
            pause_s = LIST_S if self._streams and self.answers else LIST_AWAY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            except TimeoutError:
                continue

    def _ask_all(self, client: Client) -> tuple[str, tuple[ClaimBody, ...]]:
        return client.version().installation, client.claims(ClaimFilter(owner_prefix=self._prefix))

    def _set_here(self) -> None:
        self._told_gone = False
        if not self.answers:
            self.answers, self.problem, self.denies = True, "", False
            log.info("controller.answers", extra={"controller": self.name})
            self._listener.changed(self)

    def _set_away(self, why: str, *, denies: bool = False) -> None:
        if self.answers or self.problem != why:
            log.warning("controller.away", extra={"controller": self.name, "detail": why})
        news = self.answers or self.denies != denies  # it is told which of both it is
        self.problem, self.denies = why, denies
        if self.answers:
            self.answers = False
            self.away_at = time.monotonic()
        if news:
            self._listener.changed(self)

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
                _call_in_loop(loop, self._broke_off)  # the lists tell why, if it lasts
            except Exception:
                log.exception("controller.stream_failed", extra={"controller": self.name})
            time.sleep(AGAIN_S)

    def _is_closed(self) -> bool:
        return self._closed  # by the loop's thread

    def _streamed(self, batch: tuple[EventBody, ...]) -> None:
        if self._closed:
            return
        if batch:
            self._listener.happened(self, batch)
        else:  # it stands now: what was missed is in a list
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
