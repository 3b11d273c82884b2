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
from moorings.app.logs import configure
from moorings.core.errors import MooringsError
from moorings.kubernetes.certificate_keeper import load_certificate, make_server_context
from moorings.kubernetes.certificates import make_certificates
from moorings.kubernetes.connection import connect
from moorings.kubernetes.metrics_guard import RbacProxy, make_rbac_proxy_app
from moorings.kubernetes.mounted import CertificateReloader
from moorings.kubernetes.webhook_server import listen, make_webhook_server
from moorings.wire.errors import ExitCode, error_kind

log = logging.getLogger("moorings.kubernetes.metrics_guard")

RELOAD_CHECK_S = 60.0  # a kubelet takes that long to renew a mounted Secret


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Serve until stopped; return the exit code."""
    given = make_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    configure(given.log_level, "json")
    try:
        asyncio.run(serve(given, environment))
    except MooringsError as error:
        sys.stderr.write(f"error: {error.detail} ({error.code})\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return error_kind(error.code).exit
    return ExitCode.OK


def make_parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(
        prog="kubernetes_metrics_guard", description="Serve the operator's metrics to authorized users."
    )
    parser.add_argument("--port", type=int, default=8443, help="where it listens (default: %(default)s)")
    parser.add_argument(
        "--metrics-socket", required=True, metavar="PATH", help="the Unix socket at which the operator tells them"
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
    context = make_server_context()
    folder = CertificateReloader(given.certificate_dir, context) if given.certificate_dir else None
    if folder is None:
        load_certificate(context, make_certificates(["localhost", socket.gethostname().lower()], datetime.now(UTC)))
    else:
        folder.look()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        sock = stack.enter_context(contextlib.closing(_listen(given.port)))
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


def _listen(port: int) -> socket.socket:
    try:
        return listen(port=port)
    except MooringsError as error:
        detail = f"the guard of the metrics cannot listen on port {port}"
        hint = "in the node's network another program may have the port: set controller.service.port"
        raise MooringsError(error.code, detail, hint=hint) from error


async def _reload_certificate(folder: CertificateReloader) -> None:
    while True:
        await asyncio.sleep(RELOAD_CHECK_S)
        try:
            if folder.look():
                log.info("metrics_guard.certificate_taken")
        except MooringsError as error:
            log.warning("metrics_guard.certificate_refused", extra={"code": error.code, "detail": error.detail})


if __name__ == "__main__":
    sys.exit(main())
