"""The controller's process: ``python -m moorings.app.controller``, started by ``moor up`` or systemd.

It runs in the foreground and logs to standard error. SIGTERM ends it within seconds and leaves every partition and
every run as it is; the next one continues from the database, the drivers and the runs' own records.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

import uvloop

from moorings import __version__
from moorings.api.limits import DEFAULT_LIMITS, ApiLimits
from moorings.api.server import ApiServer
from moorings.app.backup_create import check_database, check_no_restore_pending
from moorings.app.clock import SystemClock
from moorings.app.credentials import ensure_admin
from moorings.app.exits import returns_exit_code
from moorings.app.folders import DataFolder, SharedFolder
from moorings.app.logs import configure
from moorings.app.machine import read_machine
from moorings.app.maintenance import MaintenanceContext, file_digest, run_maintenance
from moorings.app.quotas import QUOTAS_FILE, MachineQuotas
from moorings.app.replica import ControllerReplica
from moorings.app.settings import Settings, read_settings
from moorings.app.tls import make_tls
from moorings.app.wiring import assemble, check_slurm_user, open_store, read_policy, read_pools
from moorings.client.transport import UNIX_SCHEME
from moorings.controller.keys import AccessKeyManager
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import DAY_S
from moorings.privileged import places
from moorings.privileged.peers import refuse_descriptors
from moorings.store.log_position import LogPositionFile

log = logging.getLogger("moorings.controller")

# The writer thread needs the interpreter at every SQLite step; at Python's 5 ms a busy event loop starves it: a commit
# of 32 claims took up to 95 ms beside one, 5 to 13 ms at this value.
SWITCH_INTERVAL_S = 0.0005

OWN_FILES = 256  # database, runs, logs, drivers


@returns_exit_code
def main(arguments: Sequence[str] | None = None) -> None:
    """Run a controller until it is stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    settings = read_settings(arguments)
    configure(settings.log_level, settings.log_format, settings.log_file, settings.log_file_bytes_max)
    faulthandler.enable()  # the watchdog ends a hanging process with SIGABRT: then the log shows where it hung
    # Until a reload is possible. Not SIG_IGN: every job would inherit that.
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(serve(settings, arguments))


async def serve(settings: Settings, arguments: Sequence[str] = ()) -> None:
    """Lead and serve until SIGTERM or SIGINT.

    Args:
        settings: the settings, and
        arguments: the command line they came from, for reloading.

    Raises:
        MooringsError: it cannot start, or another controller took over (``store.fenced``).
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    check_slurm_user(settings.slurm, os.geteuid())
    folder = DataFolder(settings.data)
    try:
        check_no_restore_pending(settings.data)
        if not settings.database:
            check_database(settings)
        tls = make_tls(settings)
        shared = SharedFolder(settings.shared or settings.data)
        pools_file = shared.pools_file(settings.pools)
        entries = read_pools(pools_file)
        policy = read_policy(settings.policy, shared.path / "policy.toml", reserve=settings.reserve)
        listening, url = _open_sockets(settings, "http" if tls is None else "https")
        store, leadership = open_store(settings)
        try:
            if not leadership.is_exclusive:
                led = bool(store.get_leader().epoch)
                shared.check_installation(store.installation(), led=led, local_runs=settings.local_runs)
            clock = SystemClock()
            is_root = settings.local_runs and settings.sockets is None and os.geteuid() == 0
            machine = read_machine(settings)
            pepper = shared.pepper()
            mark = LogPositionFile(shared.path, store.installation())
            keys = AccessKeyManager(store, clock, pepper)
            holder = f"{socket.gethostname()}:{os.getpid()}"
            replica = ControllerReplica(
                store=store,
                leadership=leadership,
                holder=holder,
                mark=mark,
                url=settings.advertise or url,
                assemble=lambda: assemble(
                    store=store,
                    entries=entries,
                    data=shared.path,
                    runs=settings.runs_folder,
                    mark=mark,
                    pepper=pepper,
                    policy=policy,
                    clock=clock,
                    holder=holder,
                    url=settings.advertise or url,
                    local_runs=settings.local_runs,
                    machine=machine,
                    sockets=settings.sockets,
                    admins_only=is_root and not settings.jobs_as_root,
                    output_bytes_max=settings.output_bytes_max,
                    key_lifetime_s=settings.key_lifetime_days * DAY_S,
                    slurm=settings.slurm,
                    kubernetes=settings.kubernetes,
                    idle=settings.idle_limits,
                ),
                limits=_connection_limits(),
                # The leader decides whether a key has expired; it still lets an expired key renew leases.
                authenticate=partial(keys.authenticate, after_expiry=True),
                tls=tls.client if tls is not None else None,
            )
            async with _run_replica(replica, stopping):
                if settings.credentials is not None:
                    await ensure_admin(keys, settings.credentials, settings.context, url, settings.tls_cert)
                folder.write_address(url)
                if is_root:
                    who = "every key, and so all who have one are root" if settings.jobs_as_root else "admins only"
                    detail = f"jobs of this machine run as root, for {who}: 'moor up --system' is for people"
                    log.warning("controller.root", extra={"detail": detail})
                log.info("controller.started", extra={"version": __version__, "url": url, "data": str(settings.data)})
                kept = MaintenanceContext(
                    settings=settings,
                    arguments=arguments,
                    environment=os.environ,
                    pools_file=pools_file,
                    pools_digest=file_digest(pools_file),
                    runs=settings.runs_folder,
                    shared=shared.path,
                    clock=clock,
                    assembly=lambda: replica.assembly,
                    tls=tls,
                    machine_quotas=MachineQuotas(QUOTAS_FILE, shared.path) if settings.sockets is not None else None,
                )
                async with run_maintenance(kept):
                    server = _ControllerServer(replica, tls.server if tls is not None else None)
                    await server.serve_until(stopping, listening)
            log.info("controller.stopped")
        finally:
            store.abort()  # every response has been sent, or never will be
            store.close()
    finally:
        folder.close()


@contextlib.asynccontextmanager
async def _run_replica(replica: ControllerReplica, stopping: asyncio.Event) -> AsyncIterator[None]:
    """Run a replica, from the moment it serves; sets ``stopping`` if it ends by itself.

    Raises:
        MooringsError: it cannot start, or cannot continue.
    """
    work = asyncio.create_task(replica.serve(), name="replica")
    work.add_done_callback(lambda _: stopping.set())
    standing = asyncio.create_task(replica.is_serving.wait(), name="standing")
    try:
        await asyncio.wait((work, standing), return_when=asyncio.FIRST_COMPLETED)
        if standing.done():
            yield
    finally:
        standing.cancel()
        work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            pass
        except MooringsError as error:
            log.error("controller.failed", extra={"code": error.code, "detail": error.detail})  # noqa: TRY400
            raise


def _connection_limits() -> ApiLimits:
    """As many connections as this process may have open files: otherwise idle strangers could block everybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DEFAULT_LIMITS.connections_max + OWN_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return replace(DEFAULT_LIMITS, connections_max=min(DEFAULT_LIMITS.connections_max, max(soft - OWN_FILES, 16)))


class _ControllerServer(ApiServer):
    """The server under this process's own signal handling."""

    async def serve_until(self, stopping: asyncio.Event, listening: list[socket.socket]) -> None:
        """Serve until stopped; then finish the requests in progress, for a few seconds."""
        stopper = asyncio.create_task(self._stop_when(stopping), name="stopper")
        try:
            await self.serve(sockets=listening)
        finally:
            stopper.cancel()

    async def _stop_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.should_exit = True


def _open_sockets(settings: Settings, scheme: str) -> tuple[list[socket.socket], str]:
    """The listening sockets, and the address of one of them.

    On a machine that people share any of them may have taken the port: their own socket is served all the same.

    Raises:
        MooringsError: ``config.invalid``.
    """
    host, port = settings.host, settings.port
    people = [_listen_for_people(settings)] if settings.sockets is not None else []
    try:
        listening = _listen(host, port)
    except MooringsError as error:
        if not people or not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        detail = f"another program has {host}:{port}: this controller serves people and root, and no access keys"
        log.warning("port.taken", extra={"detail": detail})
        return people, f"{UNIX_SCHEME}{people[0].getsockname()}"
    return [listening, *people], _url(scheme, host, listening.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise MooringsError(
            "config.invalid", f"cannot listen on {host}:{port}: {error}", hint="choose another with --port"
        ) from error


def _listen_for_people(settings: Settings) -> socket.socket:
    """The socket on which the kernel says who asks: for everybody to connect to.

    Raises:
        MooringsError: ``config.invalid``.
    """
    assert settings.sockets is not None
    if settings.database:
        raise MooringsError(
            "config.invalid",
            "sockets: a machine that people share has one controller, and its database is SQLite",
            hint="leave the database out",
        )
    path = settings.sockets / places.API
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)  # of the one before; the data folder's lock is ours
        listening.bind(str(path))
        refuse_descriptors(listening)
        path.chmod(0o666)  # the kernel says who is connected, and the account is checked
        listening.listen(512)
    except OSError as error:
        listening.close()
        hint = "the root daemon makes that folder: start it first ('moor up --system' starts both)"
        raise MooringsError("config.invalid", f"cannot listen at {path}: {error}", hint=hint) from error
    return listening


def _url(scheme: str, host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{scheme}://{shown}:{port}"


if __name__ == "__main__":
    sys.exit(main())
