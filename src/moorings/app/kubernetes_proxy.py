"""The proxy's process: ``python -m moorings.app.kubernetes_proxy``, in a Pod of its own.

It runs in the foreground and logs to standard error. SIGTERM ends it; partitions stay as they are, and the next one
reads everything from the controllers. Every flag may be given as ``MOORINGS_PROXY_<FLAG>`` instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import uvloop

from moorings import __version__
from moorings.app.clock import SystemClock
from moorings.app.exits import returns_exit_code
from moorings.app.logs import configure
from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.certificates import service_names
from moorings.kubernetes.kube.client import KubeClient, connect
from moorings.kubernetes.kube.election import Elector
from moorings.kubernetes.kube.mounted_certificate import MountedCertificate
from moorings.kubernetes.kube.serving_certificate import CertificateRotator, ConfigMapTrustStore
from moorings.kubernetes.proxy.program import find_cluster_uid, run_proxy
from moorings.kubernetes.proxy.server import set_on_termination
from moorings.kubernetes.proxy.settings import ProxySettings, parse_projects
from moorings.kubernetes.proxy.standby import ConnectionForwarder, lead_or_forward

log = logging.getLogger("moorings.kubernetes.proxy")

PREFIX = "MOORINGS_PROXY_"
LEVELS = {1: "warning", 2: "info", 3: "debug", 4: "debug", 5: "debug", 6: "debug"}  # vipuProxy.logLevel
LIBRARIES_FROM = 5  # from this level on, libraries log too
SPREAD = timedelta(days=7)  # a launcher's Pod has the authorities of its creation time, and may wait long for its node
STOP_S = 15.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@returns_exit_code
def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    given = make_parser(os.environ).parse_args(sys.argv[1:] if arguments is None else arguments)
    configure(LEVELS[given.log_level], given.log_format)
    if given.log_level >= LIBRARIES_FROM:
        for chatty in ("asyncio", "uvicorn.error", "httpx2"):
            logging.getLogger(chatty).setLevel(logging.DEBUG)
    settings = settings_of(given)
    uvloop.run(serve(settings, given, os.environ))


def make_parser(environment: Mapping[str, str]) -> ArgumentParser:
    """The command line; missing flags come from the environment."""
    parser = ArgumentParser(prog="moorings-kubernetes-proxy", description="Partitions of IPUJobs, for their operator.")

    def add(flag: str, text: str, default: str = "", kind: type | object = str) -> None:
        name = PREFIX + flag.upper().replace("-", "_")
        set_to = environment.get(name, default)
        help_text = f"{text} ({name}; default: {default or 'none'})"
        parser.add_argument(f"--{flag}", help=help_text, default=set_to, type=kind)  # type: ignore[arg-type]

    add("cluster-name", "the cluster's name in the owners of claims", "default")
    add("cluster-uid", "distinguishes it from others of that name; by default the uid of its namespace kube-system")
    add("controllers-file", "file of host:port:key=value,...; reread when it changes", "/etc/moorings/controllers")
    add("access-keys-dir", "folder of access keys: <host>_<port>, or access-key for all")
    add("ca-file", "PEM file of the controllers' authority; with it the proxy uses HTTPS to them")
    add("cert-file", "PEM file of our own certificate, for controllers that ask for one")
    add("key-file", "PEM file of its key")
    add("projects-file", "file of namespace=project lines, where a project is not called like its namespace")
    add("host", "address to listen on; empty: all")
    add("port", "TCP port for HTTP without TLS", "8080", _number(0, 65535))
    add("tls-port", "TCP port for HTTPS; without it --port serves everything, tokens too", "", _port)
    add("tls-secret", "Secret in which our certificate is kept")
    add("tls-dir", "folder of a mounted Secret with tls.crt, tls.key and ca.crt, in place of --tls-secret")
    add("tls-service", "Service by which we are called")
    add("tls-names", "more names and addresses by which we are called: name,...")
    add("tls-configmap", "ConfigMap for our certificate authority")
    add("lease-name", "Lease of the replica that leads, in the tracker's namespace; empty: this is the only one")
    add("replica-address", "address at which the other replicas reach this one")
    add("plain-http", "whether --port serves what needs no token beside HTTPS: yes or no", "no", _parse_bool)
    add("operator-account", "service accounts that may do everything: namespace:name,...")
    add("tracker-namespace", "of the tracker ConfigMap; by default our Pod's own")
    add("tracker-configmap", "name of the tracker ConfigMap; 'none': it is not written", "ipu-partitions-tracker")
    add("idle-timeout", "seconds for which an idle connection is kept", "60", _number(1, 86400))
    add("read-timeout", "seconds in which a request must have arrived", "30", _number(1, 86400))
    add("write-timeout", "seconds in which an answer must have been read", "300", _number(1, 86400))
    add("kubeconfig", "to reach the API server from outside a cluster")
    add("log-level", "1 (little) to 6 (everything)", "2", _number(1, 6))
    add("log-format", "logfmt or json", "logfmt")
    return parser


def settings_of(given: Namespace) -> ProxySettings:
    """The settings of a command line.

    Raises:
        MooringsError: ``config.invalid``.
    """
    tracked = given.tracker_configmap not in ("", "none")
    return ProxySettings(
        cluster=given.cluster_name,
        cluster_uid=given.cluster_uid,
        controllers_file=Path(given.controllers_file),
        keys_folder=_path(given.access_keys_dir),
        ca_file=_path(given.ca_file),
        cert_file=_path(given.cert_file),
        key_file=_path(given.key_file),
        projects=parse_projects(_read(given.projects_file)),
        host=given.host,
        port=given.port,
        tls_port=given.tls_port,
        plain=given.plain_http,
        operators=frozenset(_account(name.strip()) for name in given.operator_account.split(",") if name.strip()),
        namespace=(given.tracker_namespace or _own_namespace()) if tracked else "",
        tracker=given.tracker_configmap,
        idle_s=given.idle_timeout,
        read_s=given.read_timeout,
        write_s=given.write_timeout,
    )


async def serve(settings: ProxySettings, given: Namespace, environment: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        MooringsError: it cannot start.
    """
    stopping = asyncio.Event()
    set_on_termination(stopping)
    kube = connect(environment, path=given.kubeconfig)
    try:
        mark = settings.cluster_uid or await find_cluster_uid(kube, stopping)
        if stopping.is_set():
            return
        certificate = make_certificate(given, kube)
        if certificate is not None:
            await certificate.prepare()

        async def work() -> None:
            async with run_proxy(settings, kube, secrets.token_hex(6), SystemClock().now, mark, certificate) as proxy:
                ports = {"port": proxy.port, "tls": proxy.tls_port or 0}
                log.info("proxy.started", extra={"version": __version__, "cluster": settings.cluster, **ports})
                await stopping.wait()

        if not given.lease_name:
            await work()
        else:
            await _run_with_election(given, kube, work, stopping)
    finally:
        await kube.close()
    log.info("proxy.stopped")


async def _run_with_election(
    given: Namespace, kube: KubeClient, work: Callable[[], Awaitable[None]], stopping: asyncio.Event
) -> None:
    """Serve as one of several replicas until stopped."""
    namespace = given.tracker_namespace or _own_namespace()
    identity = f"{given.replica_address}_{secrets.token_hex(8)}"
    elector = Elector(kube, namespace, given.lease_name, identity)
    ports = [port for port in (given.tls_port, given.port) if port]

    def leader() -> str:
        address = elector.leader.partition("_")[0]
        return "" if address == given.replica_address else address

    turns = asyncio.create_task(lead_or_forward(elector, ConnectionForwarder(leader, given.host, ports), work))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((turns, stop), return_when=asyncio.FIRST_COMPLETED)
        if elector.is_leading():  # the work ends by itself, and the lease is released
            await asyncio.wait((turns,), timeout=STOP_S)
        if turns.done():
            turns.result()
    finally:
        for task in (stop, turns):
            task.cancel()
        await asyncio.gather(stop, turns, return_exceptions=True)


def make_certificate(given: Namespace, kube: KubeClient) -> CertificateRotator | MountedCertificate | None:
    """The source of our certificate; None: there is no TLS.

    Raises:
        MooringsError: ``config.invalid``: its place is not given.
    """
    if given.tls_port is None:
        return None
    namespace = given.tracker_namespace or _own_namespace()
    if namespace and given.tls_dir and given.tls_configmap:
        callers = ConfigMapTrustStore(kube, namespace, given.tls_configmap)
        return MountedCertificate(Path(given.tls_dir), SystemClock(), callers)
    if not (namespace and given.tls_secret and given.tls_service and given.tls_configmap):
        hint = (
            "--tls-port needs --tls-secret and --tls-service, or --tls-dir; and --tls-configmap; outside a Pod also "
            "--tracker-namespace"
        )
        raise MooringsError("config.invalid", "it is not said where the certificate is kept", hint=hint)
    return CertificateRotator(
        kube,
        SystemClock(),
        namespace=namespace,
        secret=given.tls_secret,
        callers=ConfigMapTrustStore(kube, namespace, given.tls_configmap),
        names=service_names(given.tls_service, namespace, filter(None, given.tls_names.split(","))),
        spread=SPREAD,
    )


def _account(name: str) -> str:
    """A service account's name as in TokenReview."""
    prefix = "system:serviceaccount:"
    parts = name.removeprefix(prefix).split(":")
    if len(parts) != 2 or not all(parts):
        raise MooringsError("config.invalid", f"{name[:80]!r} is no service account", hint="write namespace:name")
    return f"{prefix}{parts[0]}:{parts[1]}"


def _own_namespace() -> str:
    with contextlib.suppress(OSError):
        return NAMESPACE_FILE.read_text("utf-8").strip()
    return ""


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8") if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError("config.invalid", f"{path} cannot be read: {format_cause(error)}") from error


def _number(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return number


def _port(text: str) -> int | None:
    return _number(0, 65535)(text) if text else None


def _parse_bool(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ArgumentTypeError(f"{text!r} is neither yes nor no")
    return text == "yes"


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a controller would keep a process alive after a normal return
