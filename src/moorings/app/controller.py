"""The controller's process: ``python -m moorings.app.controller``, started by ``moor up`` or systemd.

It runs in the foreground and logs to standard error. SIGTERM ends it within seconds and leaves every partition and
every run as it is; whoever starts next goes on from the database, the drivers and the runs' own records.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import uvloop

from moorings import __version__
from moorings.api.application import make_application
from moorings.api.limits import DEFAULT_LIMITS, Limits
from moorings.api.server import ApiServer, make_server_config
from moorings.app.clock import SystemClock
from moorings.app.credentials import ensure_admin
from moorings.app.folders import DataFolder
from moorings.app.logs import configure
from moorings.app.settings import Settings, read_settings
from moorings.app.wiring import Assembly, assemble, read_pools
from moorings.core.errors import MooringsError
from moorings.core.queue import Policy
from moorings.store.sqlite import open_sqlite
from moorings.wire.errors import Exit, kind_of

log = logging.getLogger("moorings.controller")

# The writer thread asks for the interpreter at every SQLite step; at Python's 5 ms a busy event loop starves it: a
# commit of 32 claims took up to 95 ms beside one, 5 to 13 ms at this value.
SWITCH_INTERVAL_S = 0.0005

OWN_FILES = 256  # database, runs, logs, drivers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a controller until it is told to stop; the exit code."""
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments)
        configure(settings.log_level, settings.log_format)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        uvloop.run(serve(settings))
    except MooringsError as error:
        sys.stderr.write(f"error: {error.detail} ({error.code})\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return kind_of(error.code).exit
    return Exit.OK


async def serve(settings: Settings) -> None:
    """Lead and serve until SIGTERM or SIGINT.

    Raises:
        MooringsError: it cannot start, or another controller took over (``store.fenced``).
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    folder = DataFolder(settings.data)
    try:
        entries = read_pools(folder.pools_file(settings.pools))
        listening = _listen(settings.host, settings.port)
        store = open_sqlite(settings.data / "moorings.db")
        try:
            assembly = await assemble(
                store=store,
                entries=entries,
                data=settings.data,
                pepper=folder.pepper(),
                policy=Policy(reserve=settings.reserve),
                clock=SystemClock(),
                holder=f"{socket.gethostname()}:{os.getpid()}",
            )
            url = _url(settings.host, listening.getsockname()[1])
            if settings.credentials is not None:
                await ensure_admin(assembly.keys, settings.credentials, settings.context, url)
            folder.announce(url)
            log.info("controller.started", extra={"version": __version__, "url": url, "data": str(settings.data)})
            await _serve_all(assembly, listening, stopping)
            log.info("controller.stopped")
        finally:
            store.close()
    finally:
        folder.close()


async def _serve_all(assembly: Assembly, listening: socket.socket, stopping: asyncio.Event) -> None:
    application = make_application(assembly.controller, limits=_limits())
    server = _Server(application, make_server_config(application))
    loops = asyncio.create_task(_serve_loops(assembly), name="loops")
    loops.add_done_callback(lambda _: stopping.set())
    stopper = asyncio.create_task(server.stop_when(stopping), name="stopper")
    # What has been imported and wired stays: out of the collector's sight, its full passes took 40 ms each under load.
    gc.collect()
    gc.freeze()
    try:
        await server.serve(sockets=[listening])
    finally:
        stopper.cancel()
        loops.cancel()
        try:
            await loops
        except asyncio.CancelledError:
            pass
        finally:
            assembly.loop.close()
            await assembly.close()


async def _serve_loops(assembly: Assembly) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(assembly.loop.serve(), name="turns")
            group.create_task(assembly.hardware.serve(), name="hardware")
            group.create_task(assembly.running.serve(), name="running")
    except* MooringsError as failed:
        error = _first(failed)
        log.error("controller.failed", extra={"code": error.code, "detail": error.detail})  # noqa: TRY400
        raise error from None


def _first(group: BaseExceptionGroup[MooringsError]) -> MooringsError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _limits() -> Limits:
    """As many connections as this process may have open files: without room idle strangers would keep everybody out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DEFAULT_LIMITS.connections_max + OWN_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return replace(DEFAULT_LIMITS, connections_max=min(DEFAULT_LIMITS.connections_max, max(soft - OWN_FILES, 16)))


class _Server(ApiServer):
    """The server under this process's own signal handling."""

    async def stop_when(self, stopping: asyncio.Event) -> None:
        """Stop, once told to, when what is being answered has been answered, or after a few seconds."""
        await stopping.wait()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise MooringsError(
            "config.invalid", f"cannot listen on {host}:{port}: {error}", hint="choose another with --port"
        ) from error


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


if __name__ == "__main__":
    sys.exit(main())
