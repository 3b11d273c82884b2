"""One whole proxy: manager, routes, server, tracker, and the list of controllers, which is reloaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import NAMESPACE, KubeApi, KubeError
from moorings.kubernetes.kube.mounted_certificate import MountedCertificate
from moorings.kubernetes.kube.serving_certificate import CertificateRotator
from moorings.kubernetes.proxy.answers import send_response
from moorings.kubernetes.proxy.authentication import TokenAuthenticator
from moorings.kubernetes.proxy.claims import check_cluster
from moorings.kubernetes.proxy.controllers import ControllerTarget
from moorings.kubernetes.proxy.estimates import EstimateUpdater
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.kubernetes.proxy.routes import ProxyRoutes
from moorings.kubernetes.proxy.server import ClientTimeouts, ProxyServer, listen
from moorings.kubernetes.proxy.settings import ProxySettings, read_controllers
from moorings.kubernetes.proxy.tracker import TrackerConfigMap
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.net.problems import problem_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("moorings.kubernetes.proxy")

RELOAD_S = 2.0
MARKING = "kube-system"
MARK_S = 1.0
DENIED_MAX = 10  # tries: a new right is not known everywhere at once
WATCH_PART = 0.9  # part of the time limit of a response after which a watch ends by itself


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A running proxy; ``tls_port`` is None if it uses no TLS."""

    port: int
    tls_port: int | None


async def find_cluster_uid(kube: KubeApi, stopping: asyncio.Event) -> str:
    """The uid of a namespace as old as the cluster, and never removed; it distinguishes clusters of one name.

    Nothing else starts before it is known: another cluster's claims would count as this one's. A proxy without the
    right to read it continues without, and cannot recognise other clusters' claims.

    Args:
        kube: asked until it responds.
        stopping: ends the wait.
    """
    denied = logged = 0
    while not stopping.is_set():
        try:
            return str((await kube.get(NAMESPACE, MARKING))["metadata"]["uid"])
        except KubeError as error:
            denied += error.status in (403, 404)
            hint = f"let the proxy get the namespace {MARKING}"
            if denied >= DENIED_MAX:
                log.warning("cluster.unmarked", extra={"detail": error.detail, "hint": hint})
                return ""
            if not logged:
                log.warning("cluster.unknown", extra={"detail": error.detail})
            logged += 1
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
        private = listen(settings.host, settings.tls_port)
        servers.append((ProxyServer(routes, times, routes.close, certificate.context), private))
        servers.append((ProxyServer(PlainRoutes(routes, is_open=settings.plain), times), listening))
    await keeper.set_controllers(reaches)
    estimating = EstimateUpdater(keeper.waiting_instances, lambda: keeper.links, keeper.enqueue, now)
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
        yield RunningProxy(ports[-1], ports[0] if certificate is not None else None)
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
    logged = ""
    while True:
        await asyncio.sleep(RELOAD_S)
        try:
            found = await asyncio.to_thread(_read, settings)
            if found != reaches:
                reaches = found
                await keeper.set_controllers(found)
            else:
                await keeper.remove_retired()
            logged = ""
        except MooringsError as error:
            if error.detail != logged:
                log.warning("controllers.not_read", extra={"detail": error.detail, "hint": error.hint})
            logged = error.detail
        except Exception:
            log.exception("controllers.not_read")


# -- the port without TLS ----------------------------------------------------------------------------------------------
# The proxy's port without TLS, beside HTTPS: it serves open paths where a site wants that, and never a token. A token
# here was sent in clear text; serving it would let clients continue that. A refused client may retry: a launcher or an
# operator of the last release used no TLS, and waits until it is replaced. Rejected: a redirection, since clients that
# follow one have already sent their token.


class PlainRoutes:
    """The ASGI application without TLS.

    Args:
        routes: of the proxy.
        is_open: whether paths that need no token are served.
    """

    def __init__(self, routes: ProxyRoutes, *, is_open: bool) -> None:
        self._routes = routes
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it because it needs HTTPS."""
        has_token = any(name == b"authorization" for name, _ in scope["headers"])
        if self._is_open and not has_token and self._routes.is_open(scope["path"]):
            await self._routes(scope, receive, send)
            return
        detail = "a token is taken over HTTPS alone" if has_token else "this is served over HTTPS alone"
        hint = (
            "write https:// and the HTTPS port; the proxy's authority stands in the ConfigMap <release>-vipu-proxy-ca"
        )
        request_id = secrets.token_hex(8)
        answer = problem_response(MooringsError("request.not_private", detail, hint=hint, retryable=True), request_id)
        await send_response(answer, request_id, scope, receive, send)
