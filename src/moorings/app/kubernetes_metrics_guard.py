"""The guard of the operator's metrics, in a container beside it: ``python -m moorings.app.kubernetes_metrics_guard``.

It listens on all addresses of its Pod and logs JSON to standard error. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from moorings import __version__
from moorings.app.clock import SystemClock
from moorings.app.exits import returns_exit_code
from moorings.app.logs import configure
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.certificates import make_certificates
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.kube.mounted_certificate import CertificateReloader
from moorings.kubernetes.kube.serving_certificate import load_certificate
from moorings.kubernetes.operator.rbac_proxy import RbacProxy, make_rbac_proxy_app
from moorings.kubernetes.operator.webhook_server import listen, make_webhook_server
from moorings.net.tls import make_bare_context

log = logging.getLogger("moorings.kubernetes.metrics_guard")

RELOAD_CHECK_S = 60.0  # a kubelet takes that long to renew a mounted Secret


@returns_exit_code
def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Serve until stopped."""
    given = make_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    configure(given.log_level, "json")
    asyncio.run(serve(given, environment))


def make_parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(
        prog="kubernetes_metrics_guard", description="Serve the operator's metrics to authorised users."
    )
    parser.add_argument("--port", type=int, default=8443, help="where it listens (default: %(default)s)")
    parser.add_argument(
        "--metrics-socket", required=True, metavar="PATH", help="the Unix socket of the operator's metrics"
    )
    parser.add_argument(
        "--certificate-dir", type=Path, help="with tls.crt and tls.key (default: one that signs itself)"
    )
    parser.add_argument("--kubeconfig", default="", help="path of a kubeconfig (default: this Pod's account)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


async def serve(given: Namespace, environment: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        MooringsError: it cannot start.
    """
    context = make_bare_context()
    folder = CertificateReloader(given.certificate_dir, context) if given.certificate_dir else None
    if folder is None:
        load_certificate(context, make_certificates(["localhost", socket.gethostname().lower()], datetime.now(UTC)))
    else:
        folder.reload_if_changed()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        sock = listen("", given.port, "the guard of the metrics", "controller.service.port")
        stack.enter_context(contextlib.closing(sock))
        kube = connect(environment, path=given.kubeconfig)
        stack.push_async_callback(kube.close)
        transport = httpx2.AsyncHTTPTransport(uds=given.metrics_socket, trust_env=False)
        http = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, trust_env=False))
        guard = RbacProxy(kube, http, SystemClock(), "http://operator/metrics")
        server = make_webhook_server(make_rbac_proxy_app(guard), context)
        log.info("metrics_guard.started", extra={"version": __version__, "port": given.port})
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[sock]))
            renewing = group.create_task(_reload_certificate(folder)) if folder is not None else None
            waiting = group.create_task(stopping.wait())
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            waiting.cancel()
            if renewing is not None:
                renewing.cancel()


async def _reload_certificate(folder: CertificateReloader) -> None:
    while True:
        await asyncio.sleep(RELOAD_CHECK_S)
        try:
            if folder.reload_if_changed():
                log.info("metrics_guard.certificate_taken")
        except MooringsError as error:
            log.warning("metrics_guard.certificate_refused", extra={"code": error.code, "detail": error.detail})


if __name__ == "__main__":
    sys.exit(main())
