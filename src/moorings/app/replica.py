"""One controller of an installation: it stands by, leads, and stands by again.

With SQLite there is only one, and it leads from the start. With PostgreSQL any number may run: each serves the whole
API (``api.forwarding`` forwards the leader's requests), and one leads.

A controller that loses the leadership stands by again in the same process. Restarting the process by systemd was
refused: its connections would be cut, and a database that is away for a minute would exhaust systemd's restart limit.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from moorings.api.application import Application, make_application
from moorings.api.limits import ApiLimits
from moorings.app.wiring import Assembly
from moorings.controller.loop import FATAL_ERROR_CODES
from moorings.core.model.access import Caller
from moorings.core.model.errors import MooringsError
from moorings.ports.leadership import Leadership
from moorings.ports.store import LogPosition, Store
from moorings.store.log_position import LogPositionFile

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from moorings.api.forwarding import ForwardingApplication

log = logging.getLogger("moorings.controller")

LEADER_POLL_S = 0.3  # how often a standby looks up the leader
RETRY_S = 1.0
DRAIN_S = 2.0  # for pending database requests, before a controller that ends closes the connections
# Another attempt would end the same way: an admin must act.
_FINAL = frozenset({"pools.invalid", "driver.unknown", "config.invalid", "store.too_new", "store.corrupt"})


class ControllerReplica:
    """An ASGI application: the leader's or the standby's.

    Args:
        store: shared by all controllers of the installation.
        leadership: this controller's part in the election.
        holder: its name, unique among them, as ``Store.lead`` gets it.
        mark: the known position of the database's log; a standby keeps it up to date.
        url: its address for the others.
        assemble: makes the parts of a controller when it begins to lead.
        limits: the bounds on connections and work.
        authenticate: finds the holder of an access key; called before anything is accepted for the leader.
        tls: for requests to the leader over TLS; None: with the system's authorities.
    """

    def __init__(
        self,
        *,
        store: Store,
        leadership: Leadership,
        holder: str,
        mark: LogPositionFile,
        url: str,
        assemble: Callable[[], Coroutine[Any, Any, Assembly]],
        limits: ApiLimits,
        authenticate: Callable[[str], Awaitable[Caller]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits
        self.assembly: Assembly | None = None
        """The parts of the controller, while it leads."""
        self.is_serving = asyncio.Event()
        """Set once it serves, in either role."""
        self._store = store
        self._leadership = leadership
        self._holder = holder
        self._mark = mark
        self._url = url
        self._assemble = assemble
        self._authenticate = authenticate
        self._tls = tls
        self._leader = ""
        self._standby: ForwardingApplication | None = None
        self._standby_application: Application | None = None  # the limits around the standby
        self._serving: Application | None = None
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert self._serving is not None, "the server listens once it serves"
        await self._serving(scope, receive, send)

    def close(self) -> None:
        """Begin to shut down."""
        self._closed = True
        for application in (self._serving, self._standby_application):
            if application is not None:
                application.close()

    async def serve(self) -> NoReturn:
        """Stand by and lead in turns, until cancelled.

        Raises:
            MooringsError: it cannot lead, and a retry would not help.
        """
        try:
            while True:
                if not self._leadership.is_exclusive:
                    await self._stand_by()
                await self._lead()
        finally:
            await self._leadership.release()
            if self._standby is not None:
                await self._standby.close()

    # -- standing by -------------------------------------------------------------------------------------------------

    async def _stand_by(self) -> None:
        """Wait until this controller may lead."""
        if self._standby_application is None:
            from moorings.api.forwarding import (
                ForwardingApplication,  # httpx2 comes with the extra that PostgreSQL needs
            )

            # One for the life of the process: requests held when this controller itself begins to lead find their
            # leader here.
            self._standby = ForwardingApplication(
                lambda: self._leader,
                self._store.installation(),
                self.limits,
                authenticate=self._authenticate,
                tls=self._tls,
            )
            self._standby_application = Application(self._standby, self._standby.closing, self.limits)
        self._serve_by(self._standby_application)
        log.info("controller.stands_by", extra={"holder": self._holder})
        watch = asyncio.create_task(self._poll_leader(), name="look-for-leader")
        try:
            await self._leadership.acquire()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _poll_leader(self) -> None:
        while True:
            try:
                leader = await asyncio.to_thread(self._store.get_leader)
                self._mark.remember(await asyncio.to_thread(self._store.log_position))
                self._leader = "" if leader.controller_name == self._holder else leader.url
            except MooringsError as error:
                self._leader = ""
                log.debug("leader.unknown", extra={"code": error.code, "detail": error.detail})
            await asyncio.sleep(LEADER_POLL_S)

    # -- leading -----------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Lead until the leadership is lost, or another controller has fenced this one off."""
        lost = asyncio.create_task(self._leadership.wait_until_lost(), name="lost")  # it sends heartbeats from now on
        try:
            assembly = await self._assemble_or_lose(lost)
            if assembly is not None:
                await self._lead_with(assembly, lost)
        finally:
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)
        await self._leadership.release()

    async def _assemble_or_lose(self, lost: asyncio.Task[str]) -> Assembly | None:
        """The parts of a controller; None if the leadership was lost before they were ready.

        Raises:
            MooringsError: they cannot be made, and a retry would not help.
        """
        making = asyncio.create_task(self._assemble(), name="assemble")
        try:
            await asyncio.wait((making, lost), return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                return making.result()
            log.warning("leadership.lost", extra={"detail": lost.result()})
        except MooringsError as error:
            if error.code in _FINAL or self._leadership.is_exclusive:
                raise
            log.warning("leadership.failed", extra={"code": error.code, "detail": error.detail})
            await self._leadership.release()
            await asyncio.sleep(RETRY_S)
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        return None

    async def _lead_with(self, assembly: Assembly, lost: asyncio.Task[str]) -> None:
        application = make_application(assembly.controller, limits=self.limits)
        try:
            self.assembly, self._leader = assembly, self._url
            self._serve_by(application)
            log.info("controller.leads", extra={"holder": self._holder})
            reason = await self._until_lost(assembly, lost)
            log.warning("leadership.lost", extra={"detail": reason})
        finally:
            await self._save_high_water(assembly)
            self.assembly, self._leader = None, ""
            if self._standby_application is not None:
                self._serve_by(self._standby_application)  # new requests wait for the next leader
            application.close()
            assembly.loop.reject_waiting()
            if not await assembly.loop.wait_until_idle(DRAIN_S):
                self._store.abort()  # it hangs: what was saved is known when it is read again
            assembly.loop.close()
            await assembly.close()

    async def _save_high_water(self, assembly: Assembly) -> None:
        """Save the database's position at the end of this leadership: the next leader compares it, in any process."""
        try:
            await asyncio.to_thread(self._mark.record_blocking, LogPosition(assembly.loop.seq, assembly.loop.epoch))
        except MooringsError as error:
            log.warning("store.failed", extra={"code": error.code, "detail": error.detail})

    async def _until_lost(self, assembly: Assembly, lost: asyncio.Task[str]) -> str:
        """Wait for the end of the leadership; return the reason.

        Raises:
            MooringsError: its loops cannot continue.
        """
        loops = asyncio.create_task(serve_loops(assembly), name="loops")
        try:
            await asyncio.wait((loops, lost), return_when=asyncio.FIRST_COMPLETED)
            return lost.result() if lost.done() else await loops
        except MooringsError as error:
            if error.code not in FATAL_ERROR_CODES or self._leadership.is_exclusive:
                raise
            return error.detail
        finally:
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)

    def _serve_by(self, application: Application) -> None:
        self._serving = application
        if self._closed:
            application.close()
        if not self.is_serving.is_set():
            # Everything imported and wired stays, so the collector may ignore it: its full passes took 40 ms each.
            gc.collect()
            gc.freeze()
            self.is_serving.set()


async def serve_loops(assembly: Assembly) -> NoReturn:
    """Run the loops of a controller that leads, until cancelled.

    Raises:
        MooringsError: one of them cannot continue.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(assembly.loop.serve(), name="turns")
            group.create_task(assembly.hardware.serve(), name="hardware")
            group.create_task(assembly.running.serve(), name="running")
            group.create_task(assembly.idle.serve(), name="idle")
    except* MooringsError as failed:
        raise _first(failed) from None
    raise AssertionError("they run until they are cancelled")


def _first(group: BaseExceptionGroup[MooringsError]) -> MooringsError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
