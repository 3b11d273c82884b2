"""The operator's process: ``python -m moorings.app.kubernetes_operator``, in a Deployment that the chart makes.

Every replica serves the webhooks and watches; the holder of the Lease works. SIGTERM releases the Lease and ends the
process: jobs, Pods and partitions stay as they are, and the next leader reads everything from API server and proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from moorings import __version__
from moorings.app.clock import SystemClock
from moorings.app.exits import returns_exit_code
from moorings.app.logs import configure
from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.fields import WAIT_S_MAX
from moorings.kubernetes.ipujob.pods import trim_pod
from moorings.kubernetes.ipujob.priority_class import get_class_value
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import NODE, POD, PRIORITY_CLASS, KubeObject
from moorings.kubernetes.kube.certificates import service_names
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.kube.election import Elector, LeaseTimes
from moorings.kubernetes.kube.events import EventRecorder
from moorings.kubernetes.kube.informer import Informer, MultiNamespaceInformer, ObjectKey, without_managed_fields
from moorings.kubernetes.kube.mounted_certificate import MountedCertificate
from moorings.kubernetes.kube.serving_certificate import CertificateRotator, WebhookTrustStore
from moorings.kubernetes.kube.workqueue import WorkQueue
from moorings.kubernetes.operator.metrics import OperatorMetrics
from moorings.kubernetes.operator.node_health import NotReadyNode, parse_not_ready, trim_node
from moorings.kubernetes.operator.orphans import OrphanSweeper
from moorings.kubernetes.operator.pod_builder import PodOptions
from moorings.kubernetes.operator.reconciler import SWEEP_S, JobReconciler
from moorings.kubernetes.operator.status import JobEvent
from moorings.kubernetes.operator.webhook_server import listen, make_webhook_server
from moorings.kubernetes.operator.webhooks import make_rules, make_webhook_app
from moorings.kubernetes.proxy_api.client import PartitionInformer, ProxyClient
from moorings.kubernetes.proxy_api.trust import ProxyTrustInformer

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request

log = logging.getLogger("moorings.kubernetes.operator")

VIEW_SYNC_S = 5.0  # the limit for the first list of partitions
ACCOUNTING_S = 10.0  # between two updates of IPU-seconds
STOP_S = 20.0  # a kubelet gives 30
_USUAL = PodOptions()


def build_parser() -> ArgumentParser:
    """The command line; the chart's values."""
    parser = ArgumentParser(prog="kubernetes_operator", description="Bring partitions and Pods in step with IPUJobs.")
    add = parser.add_argument
    add("--namespace", required=True, help="the operator's own: of the Lease and the certificate's Secret")
    add("--lease-name", default="ipu-operator")
    add(
        "--lease-s",
        type=float,
        default=LeaseTimes().lease_s,
        help="lease duration in seconds",
    )
    add("--proxy-url", required=True, help="https://HOST:PORT of the proxy")
    add("--proxy-ca-configmap", default="", help="ConfigMap with the proxy's certificate authority (with https)")
    add("--launcher-proxy-url", default="", help="where launchers reach it (default: the same)")
    add("--proxy-token-file", type=Path, help="file with our token for the proxy; reread when it changes")
    add(
        "--watch-namespaces",
        type=_parse_list,
        default=(),
        metavar="NAME[,NAME]",
        help="namespaces whose jobs it manages (default: all)",
    )
    add(
        "--launcher-role",
        default="",
        help="ClusterRole that launchers' Roles may grant; bound to the operator in job namespaces",
    )
    add("--account", default="", metavar="NAMESPACE:NAME", help="our service account, with --launcher-role")
    add("--cluster-name", default="", help="the proxy's cluster name; only for the log")
    add("--launcher-image", default=_USUAL.launcher_image)
    add("--launcher-image-pull-policy", default=_USUAL.launcher_pull_policy)
    add("--image-pull-secrets", type=_parse_list, default=(), metavar="NAME[,NAME]")
    add("--kubectl-version", default="", help="which of the launcher image's kubectls (default: its own)")
    add("--webhook-host", default="", help="address to listen on (default: all)")
    add("--webhook-port", type=int, default=9443, help="0: no webhooks")
    add("--webhook-secret", default="", help="Secret of the webhooks' certificate")
    add(
        "--webhook-certificate-dir",
        type=Path,
        help="a mounted Secret, in place of --webhook-secret",
    )
    add("--webhook-service", default="", help="Service of the webhooks")
    add("--webhook-name", default="", help="of the two webhook configurations")
    add("--webhook-address", action="append", default=[], help="another name or address of the webhooks' certificate")
    add("--metrics-socket", default="", metavar="PATH", help="Unix socket that serves the metrics (default: none)")
    add(
        "--metrics-port",
        type=int,
        default=0,
        help="port on 127.0.0.1 that serves them, too (default: none)",
    )
    add("--host-network", action=BooleanOptionalAction, default=True, help="Pods use their node's network")
    add("--privileged", action=BooleanOptionalAction, default=True, help="Pods are privileged")
    add("--dns-policy", default=_USUAL.dns_policy)
    add("--privileged-namespaces", type=_parse_list, default=(), metavar="NAME[,NAME]", help="default: all")
    add("--max-priority", type=_priority, default=_USUAL.max_priority, help="highest spec.priority of new jobs")
    add("--start-deadline-s", type=_seconds, default=_USUAL.start_deadline_s, help="of jobs that say none (0: none)")
    add("--suspend-queued", action=BooleanOptionalAction, default=False, help="suspend new jobs that Kueue is to start")
    add("--devel-logs", action="store_true", help="log more, for people")
    add("--workers", type=int, default=64, help="jobs reconciled at the same time")
    add("--sweep-s", type=float, default=SWEEP_S, help="seconds between two searches for partitions whose job is gone")
    add("--kubeconfig", default="", help="default: this Pod's account")
    return parser


@returns_exit_code
def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Serve until stopped."""
    given = build_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    configure("debug" if given.devel_logs else "info", "logfmt" if given.devel_logs else "json")
    uvloop.run(serve(given, environment))


async def serve(given: Namespace, environment: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        MooringsError: it cannot start.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    replica = OperatorReplica(given, environment)
    work, stop = asyncio.create_task(replica.serve()), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        stop.cancel()
        work.cancel()
        await asyncio.wait((work,), timeout=STOP_S)
        await replica.close()
    log.info("operator.stopped")


class OperatorReplica:
    """One replica of the operator, with all its parts."""

    def __init__(self, given: Namespace, environment: Mapping[str, str]) -> None:
        clock = SystemClock()
        self._given = given
        self._kube = connect(environment, path=given.kubeconfig)
        self._proxy = ProxyClient(given.proxy_url, given.proxy_token_file)
        self._queue: WorkQueue[str] = WorkQueue()
        self._view = PartitionInformer(self._proxy, on_change=self._queue.add, on_return=self._enqueue_all)
        where: Sequence[str | None] = given.watch_namespaces or (None,)
        self._jobs = MultiNamespaceInformer([self._job_informer(namespace) for namespace in where])
        self._pods = MultiNamespaceInformer([self._pod_informer(namespace) for namespace in where])
        self._nodes = Informer(self._kube, NODE, on_change=self._node_changed, trim=trim_node)
        self._silent_nodes: dict[str, NotReadyNode] = {}
        self._classes = Informer(self._kube, PRIORITY_CLASS)
        identity = f"{socket.gethostname()}_{secrets.token_hex(8)}"
        terms = LeaseTimes(lease_s=given.lease_s, renew_s=given.lease_s * 2 / 3, retry_s=given.lease_s * 2 / 15)
        self._elector = Elector(self._kube, given.namespace, given.lease_name, identity, terms)
        self._recorder = EventRecorder(self._kube, "ipu-operator", identity, clock.now)
        self._measures = OperatorMetrics(
            jobs=self._count_jobs,
            partitions=self._view.all,
            waiting=lambda: self._queue.depth,
            leads=self._elector.is_leading,
        )
        options = PodOptions(
            launcher_image=given.launcher_image,
            launcher_pull_policy=given.launcher_image_pull_policy,
            pull_secrets=given.image_pull_secrets,
            kubectl_version=given.kubectl_version,
            proxy_url=given.launcher_proxy_url or given.proxy_url,
            host_network=given.host_network,
            privileged=given.privileged,
            privileged_namespaces=frozenset(given.privileged_namespaces),
            dns_policy=given.dns_policy,
            max_priority=given.max_priority,
            launcher_role=given.launcher_role,
            account=given.account,
            namespaces=frozenset(given.watch_namespaces),
            start_deadline_s=given.start_deadline_s,
            suspends_queued=given.suspend_queued,
        )
        self._rules = make_rules(replace(options.limits, value_of_class=partial(get_class_value, self._classes)))
        self._orphans = OrphanSweeper(
            self._kube, self._proxy, self._jobs, self._view, options.namespaces, self._elector.is_leading
        )
        self._operator = JobReconciler(
            kube=self._kube,
            proxy=self._proxy,
            orphans=self._orphans,
            options=options,
            jobs=self._jobs,
            pods=self._pods,
            view=self._view,
            not_ready_nodes=self._silent_nodes,
            is_leading=self._elector.is_leading,
            record_event=self._emit_event,
            value_of_class=self._value_of_class,
            measures=self._measures,
            clock=clock,
            monotonic=time.monotonic,
        )
        self._certificate_manager = self._make_keeper(clock)

    def _make_keeper(self, clock: SystemClock) -> CertificateRotator | MountedCertificate:
        given = self._given
        if given.webhook_certificate_dir:
            return MountedCertificate(given.webhook_certificate_dir, clock)
        return CertificateRotator(
            self._kube,
            clock,
            namespace=given.namespace,
            secret=given.webhook_secret,
            callers=WebhookTrustStore(self._kube, given.webhook_name),
            names=service_names(given.webhook_service, given.namespace, given.webhook_address),
        )

    async def serve(self) -> None:
        """Serve webhooks and metrics, watch, and work while this replica leads; until cancelled."""
        given = self._given
        log.info(
            "operator.started",
            extra={"version": __version__, "identity": self._elector.identity, "proxy": given.proxy_url},
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._jobs.serve())
            group.create_task(self._pods.serve())
            group.create_task(self._nodes.serve())  # if not permitted, jobs still run, without notice of lost nodes
            group.create_task(self._classes.serve())
            group.create_task(self._recorder.serve())
            if given.proxy_ca_configmap:
                group.create_task(
                    ProxyTrustInformer(
                        self._kube, given.namespace, given.proxy_ca_configmap, self._set_authorities
                    ).serve()
                )
            if given.webhook_port:
                group.create_task(self._serve_webhooks())
            if given.metrics_socket or given.metrics_port:
                group.create_task(_serve_metrics(self._measures, given.metrics_socket, given.metrics_port))
            await self._elector.lead(self._work)

    async def close(self) -> None:
        """Close connections."""
        await self._proxy.close()
        await self._kube.close()

    # -- while it leads ----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        self._operator.reset_term()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._view.serve())
            await self._jobs.synced()
            await self._pods.synced()
            with contextlib.suppress(TimeoutError):  # a proxy that is away does not block the deletion of jobs
                async with asyncio.timeout(VIEW_SYNC_S):
                    await self._view.ready()
            self._enqueue_all()
            group.create_task(self._sweep())
            group.create_task(self._account_usage())
            await self._queue.serve(self._reconcile, self._given.workers)

    async def _reconcile(self, key: str) -> None:
        begun, result = time.monotonic(), "error"
        try:
            again_s = await self._operator.reconcile(key)
            result = "ok"
            if again_s is not None:
                self._queue.add_after(key, again_s)
        except MooringsError as error:
            result = "retry" if error.retryable else "error"
            if (again_s := self._operator.requeue_after_s(key)) is not None:
                self._queue.add_after(key, again_s)
            raise
        finally:
            self._measures.observe_reconcile(result, time.monotonic() - begun)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._given.sweep_s)
            try:
                await self._orphans.release_orphans()
            except MooringsError as error:
                log.warning("sweep.failed", extra={"code": error.code, "detail": error.detail})

    async def _account_usage(self) -> None:
        since = time.monotonic()
        while True:
            await asyncio.sleep(ACCOUNTING_S)
            now = time.monotonic()
            self._measures.add_ipu_seconds(now - since)
            since = now

    # -- small things ------------------------------------------------------------------------------------------------

    def _job_informer(self, namespace: str | None) -> Informer:
        trim = without_managed_fields
        return Informer(self._kube, IPU_JOB, on_change=self._job_changed, namespace=namespace, trim=trim)

    def _pod_informer(self, namespace: str | None) -> Informer:
        return Informer(
            self._kube,
            POD,
            on_index=self._queue.add,
            namespace=namespace,
            labels=names.JOB,
            trim=trim_pod,
            index=job_key_of,
        )

    def _set_authorities(self, authorities: str) -> None:
        self._proxy.add_authorities(authorities)
        self._operator.set_proxy_authorities(authorities)
        self._enqueue_all()

    def _job_changed(self, key: ObjectKey) -> None:
        self._queue.add(f"{key.namespace}/{key.name}")

    def _node_changed(self, key: ObjectKey) -> None:
        found = self._nodes.get("", key.name)
        silence = parse_not_ready(found) if found is not None else None
        if silence == self._silent_nodes.get(key.name):
            return
        if silence is None:
            del self._silent_nodes[key.name]
        else:
            self._silent_nodes[key.name] = silence
        for pod in self._pods:
            if (pod.get("spec") or {}).get("nodeName") == key.name:
                for job in job_key_of(pod):
                    self._queue.add(job)

    def _enqueue_all(self) -> None:
        for found in self._jobs:
            self._job_changed(ObjectKey(found["metadata"]["namespace"], found["metadata"]["name"]))

    def _emit_event(self, found: KubeObject, story: JobEvent) -> None:
        self._recorder.record(found, story.type, story.reason, story.message)

    def _value_of_class(self, name: str) -> int | None:
        found = self._classes.get("", name)
        return int(found["value"]) if found is not None else None

    def _count_jobs(self) -> Mapping[tuple[str, str], int]:
        states = ((one["metadata"]["namespace"], (one.get("status") or {}).get("status", "")) for one in self._jobs)
        return Counter(states)

    async def _serve_webhooks(self) -> None:
        given = self._given
        with contextlib.closing(listen(given.webhook_host, given.webhook_port)) as sock:
            await self._certificate_manager.prepare()
            app = make_webhook_app(is_ready=lambda: self._certificate_manager.is_ready, rules=self._rules)
            server = make_webhook_server(app, self._certificate_manager.context)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._certificate_manager.run())
                group.create_task(_serve(server, [sock]))


async def _serve_metrics(measures: OperatorMetrics, path: str, port: int) -> None:
    """Serve metrics to the guard in the container beside it, which checks the callers.

    Args:
        measures: the metrics.
        path: of a Unix socket; empty: none.
        port: on 127.0.0.1, which may be the node's, and open to all its processes; 0: none.
    """

    async def metrics(_request: Request) -> Response:
        return Response(measures.text(), media_type="text/plain; version=0.0.4")

    app = Starlette(routes=[Route("/metrics", metrics)])
    with contextlib.ExitStack() as stack:
        sockets = []
        if path:
            sockets.append(stack.enter_context(contextlib.closing(_listen_at(path))))
        if port:
            sock = listen("127.0.0.1", port, "the metrics", "controller.metricsPort")
            sockets.append(stack.enter_context(contextlib.closing(sock)))
        await _serve(make_webhook_server(app, None), sockets)


def _listen_at(path: str) -> socket.socket:
    """A Unix socket for this process's user alone; an earlier container's one is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        Path(path).unlink(missing_ok=True)
        os.fchmod(sock.fileno(), 0o600)  # a socket's file gets the socket's mode
        sock.bind(path)
        sock.listen()
    except OSError as error:
        sock.close()
        detail = f"the metrics cannot be served at {path}: {error.strerror or error}"
        raise MooringsError(
            "config.invalid", detail, hint="--metrics-socket needs a folder that can be written"
        ) from error
    return sock


async def _serve(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
    """Serve until cancelled, and shut down cleanly."""
    try:
        await server.serve(sockets=sockets)
    except asyncio.CancelledError:
        server.should_exit = True
        raise


def job_key_of(pod: KubeObject) -> tuple[str, ...]:
    """The key of the job in a Pod's label."""
    meta = pod["metadata"]
    name = meta["labels"][names.JOB]
    return (f"{meta['namespace']}/{name}",) if name else ()  # a label may be empty, and then there is no job


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _priority(text: str) -> int:
    return _number(text, PRIORITY_MAX)


def _seconds(text: str) -> int:
    return _number(text, WAIT_S_MAX)


def _number(text: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > most:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to {most}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
