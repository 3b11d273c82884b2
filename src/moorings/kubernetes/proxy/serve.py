"""One whole proxy: manager, routes, server, tracker, and the list of controllers, which is reloaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from moorings.core.errors import MooringsError
from moorings.kubernetes.accepting import LimitedListener
from moorings.kubernetes.certificate_keeper import CertificateRotator
from moorings.kubernetes.kube import NAMESPACE, KubeApi, KubeError
from moorings.kubernetes.mounted import MountedCertificate
from moorings.kubernetes.proxy.asking import check_cluster
from moorings.kubernetes.proxy.door import TokenAuthenticator
from moorings.kubernetes.proxy.estimates import EstimateUpdater
from moorings.kubernetes.proxy.keeper import PartitionManager
from moorings.kubernetes.proxy.links import ControllerTarget
from moorings.kubernetes.proxy.plain import PlainRoutes
from moorings.kubernetes.proxy.routes import ProxyRoutes
from moorings.kubernetes.proxy.server import ClientTimeouts, ProxyServer, listen
from moorings.kubernetes.proxy.settings import ProxySettings, read_controllers
from moorings.kubernetes.proxy.shapes import PartitionBody
from moorings.kubernetes.proxy.tracker import TrackerConfigMap

log = logging.getLogger("moorings.kubernetes.proxy")

RELOAD_S = 2.0
MARKING = "kube-system"
MARK_S = 1.0
DENIED_MAX = 10  # tries: a new right is not known everywhere at once
WATCH_PART = 0.9  # part of the time limit of a response after which a watch ends by itself


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A running proxy; ``tls_port`` is None if it uses no TLS."""

    keeper: PartitionManager
    port: int
    tls_port: int | None


async def find_cluster_uid(kube: KubeApi, stopping: asyncio.Event) -> str:
    """The uid of a namespace as old as the cluster, and never removed; it distinguishes clusters of one name.

    Nothing else starts before it is known: another cluster's claims would count as this one's. A proxy without the
    right to read it continues without, and cannot recognize other clusters' claims.

    Args:
        kube: asked until it responds.
        stopping: ends the wait.
    """
    denied = told = 0
    while not stopping.is_set():
        try:
            return str((await kube.get(NAMESPACE, MARKING))["metadata"]["uid"])
        except KubeError as error:
            denied += error.status in (403, 404)
            hint = f"let the proxy get the namespace {MARKING}"
            if denied >= DENIED_MAX:
                log.warning("cluster.unmarked", extra={"detail": error.detail, "hint": hint})
                return ""
            if not told:
                log.warning("cluster.unknown", extra={"detail": error.detail})
            told += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARK_S):
                await stopping.wait()
    return ""


@contextlib.asynccontextmanager
async def run_proxy(
    settings: ProxySettings,
    kube: KubeApi,
    boot: str,
    now: Callable[[], int],
    mark: str,
    certificate: CertificateRotator | MountedCertificate | None = None,
) -> AsyncIterator[RunningProxy]:
    """A proxy that serves until the block ends; all partitions stay as they are then.

    Args:
        settings: of the proxy.
        kube: reviews tokens and stores the tracker.
        boot: distinguishes this process from others: hexadecimal digits.
        now: the wall clock, microseconds since 1970.
        mark: distinguishes clusters of one name (``find_cluster_uid``).
        certificate: with ``settings.tls_port``; prepared.

    Raises:
        MooringsError: ``config.invalid``.
    """
    keeper = PartitionManager(check_cluster(settings.cluster), settings.projects, boot, now, mark)
    reaches = _read(settings)
    listening = listen(settings.host, settings.port)
    times = ClientTimeouts(settings.idle_s, settings.read_s, settings.write_s, settings.connections_max)
    routes = ProxyRoutes(keeper, TokenAuthenticator(kube, settings.operators), settings.write_s * WATCH_PART)
    servers: list[tuple[ProxyServer, socket.socket]] = []
    if certificate is None:
        servers.append((ProxyServer(routes, times, routes.close), listening))
    else:
        assert settings.tls_port is not None
        private = LimitedListener(listen(settings.host, settings.tls_port), settings.connections_max)
        servers.append((ProxyServer(routes, times, routes.close, certificate.context), private))
        servers.append((ProxyServer(PlainRoutes(routes, is_open=settings.plain), times), listening))
    await keeper.set_controllers(reaches)
    estimating = EstimateUpdater(keeper.waiting, lambda: keeper.links, keeper.wake, now)
    works = [server.serve([sock]) for server, sock in servers]
    works += [_reload(settings, keeper, reaches), estimating.serve()]
    if certificate is not None:
        works.append(certificate.run())
    if settings.namespace:

        def read() -> tuple[int, Iterable[PartitionBody]]:
            return keeper.journal.number, keeper.partitions().items

        works.append(TrackerConfigMap(kube, settings.namespace, settings.tracker, read).serve())
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ports = [sock.getsockname()[1] for _, sock in servers]
        yield RunningProxy(keeper, ports[-1], ports[0] if certificate is not None else None)
    finally:
        for server, _ in servers:
            server.should_exit = True
        await asyncio.wait(tasks[: len(servers)], timeout=10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await keeper.close()


def _read(settings: ProxySettings) -> tuple[ControllerTarget, ...]:
    return tuple(ControllerTarget(entry, endpoint) for entry, endpoint in read_controllers(settings))


async def _reload(settings: ProxySettings, keeper: PartitionManager, reaches: tuple[ControllerTarget, ...]) -> None:
    """Reload the files when they change; an invalid list is reported, and the old one stays."""
    told = ""
    while True:
        await asyncio.sleep(RELOAD_S)
        try:
            found = await asyncio.to_thread(_read, settings)
            if found != reaches:
                reaches = found
                await keeper.set_controllers(found)
            else:
                await keeper.retire()
            told = ""
        except MooringsError as error:
            if error.detail != told:
                log.warning("controllers.not_read", extra={"detail": error.detail, "hint": error.hint})
            told = error.detail
        except Exception:
            log.exception("controllers.not_read")
