"""The guard of the operator's metrics as its own process, asking a real API server who may read them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest
import yaml

from moorings.kubernetes.kube.certificates import make_certificates
from tests.kubernetes.cluster import KubernetesCluster
from tests.packaging.chart import CHART, run_helm
from tests.waiting import patient, until

NAME = "gc-ipu-operator-controller-manager"
METRICS = b"# TYPE moorings_kubernetes_reconciles_total counter\nmoorings_kubernetes_reconciles_total 1\n"


class Operator(BaseHTTPRequestHandler):
    """What the operator tells."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(METRICS)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "metrics.sock"
    server = UnixStreamServer(str(path), Operator)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield path
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def roles(cluster: KubernetesCluster, namespace: str) -> Iterator[None]:
    """The chart's accounts and roles."""
    done = run_helm("template", "gc", str(CHART), f"--namespace={namespace}", values={})
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    text = yaml.safe_dump_all([each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] in kinds])
    cluster.apply(text)
    yield
    cluster.kubectl("delete", "-f", "-", "--ignore-not-found", input=text)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Guard:
    """The process; ``ask`` it."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, metrics: Path, *words: str) -> None:
        self.port = free_port()
        kubeconfig = cluster.make_token_kubeconfig(namespace, NAME)
        ports = [f"--port={self.port}", f"--metrics-socket={metrics}"]
        argv = [
            sys.executable,
            "-m",
            "moorings.app.kubernetes_metrics_guard",
            *ports,
            f"--kubeconfig={kubeconfig}",
            *words,
        ]
        self._process = subprocess.Popen(argv, env={"PATH": os.environ["PATH"]})
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def __enter__(self) -> Guard:
        until(lambda: self._answers(), 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        assert self._process.wait(patient(20)) == 0, "SIGTERM is a good end"

    def _answers(self) -> bool:
        assert self._process.poll() is None
        try:
            return self.ask("", "/healthz")[0] == 200
        except OSError:
            return False

    def ask(self, token: str, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._context, timeout=patient(20))
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def certificate(self) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), 20) as plain, self._context.wrap_socket(plain) as tls:
            found = tls.getpeercert(binary_form=True)
            assert found is not None
            return found


def refusal(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["code"]


def test_only_whom_the_cluster_lets_reads_the_metrics(
    cluster: KubernetesCluster, namespace: str, operator: Path, roles: None
) -> None:
    for account in ("prometheus", "stranger"):
        cluster.kubectl("create", "serviceaccount", account, f"--namespace={namespace}")
    binding = f"metrics-{namespace}"
    who = f"--serviceaccount={namespace}:prometheus"
    cluster.kubectl("create", "clusterrolebinding", binding, "--clusterrole=gc-metrics-reader", who)
    try:
        with Guard(cluster, namespace, operator) as guard:
            assert guard.ask(cluster.token(namespace, "prometheus")) == (200, METRICS)
            assert refusal(guard.ask(cluster.token(namespace, "stranger"))) == (403, "auth.denied")
            assert refusal(guard.ask("nonsense")) == (401, "auth.invalid")
            assert refusal(guard.ask("")) == (401, "auth.missing")
            # a token for somebody else is none for us
            assert refusal(guard.ask(cluster.token(namespace, "prometheus", "moorings-proxy")))[0] == 401
            assert refusal(guard.ask("", "/secrets")) == (404, "path.unknown")
            assert refusal(guard.ask("", "/metrics", "POST")) == (405, "method.not_allowed")
    finally:
        cluster.kubectl("delete", "clusterrolebinding", binding)


def test_an_operator_that_says_nothing_and_an_api_server_that_is_away(
    cluster: KubernetesCluster, namespace: str, roles: None, tmp_path: Path
) -> None:
    admin = f"metrics-{namespace}"
    who = f"--serviceaccount={namespace}:default"
    cluster.kubectl("create", "clusterrolebinding", admin, "--clusterrole=gc-metrics-reader", who)
    token = cluster.token(namespace, "default")
    fresh = cluster.token(namespace, "default", seconds=3601)
    try:
        with Guard(cluster, namespace, tmp_path / "none.sock") as guard:
            assert refusal(guard.ask(token)) == (503, "metrics.unavailable")
            cluster.stop_api_server()
            try:
                assert refusal(guard.ask(token)) == (503, "metrics.unavailable"), "who he is was asked a moment ago"
                assert refusal(guard.ask(fresh)) == (503, "kubernetes.unreachable")
            finally:
                cluster.start_api_server()
    finally:
        cluster.kubectl("delete", "clusterrolebinding", admin)


def test_a_certificate_of_the_site_s_own_is_served(
    cluster: KubernetesCluster, namespace: str, operator: Path, roles: None, tmp_path: Path
) -> None:
    made = make_certificates(["gc.test"], datetime.now(UTC))
    (tmp_path / "tls.crt").write_bytes(made.cert)
    (tmp_path / "tls.key").write_bytes(made.key)
    with Guard(cluster, namespace, operator, f"--certificate-dir={tmp_path}") as guard:
        assert guard.certificate() == ssl.PEM_cert_to_DER_cert(
            made.cert.decode().split("-----END", 1)[0] + "-----END CERTIFICATE-----\n"
        )


def test_a_folder_without_a_certificate_is_told(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "moorings.app.kubernetes_metrics_guard", "--metrics-socket=x"]
    argv += [f"--certificate-dir={tmp_path}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(60))
    assert done.returncode == 2
    assert "tls.crt cannot be read" in done.stderr
    assert "hint: the Secret needs tls.crt and tls.key" in done.stderr
