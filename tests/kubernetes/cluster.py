"""A real Kubernetes on this machine: etcd, API server, controller-manager and scheduler, and nodes with real Pods.

The control plane listens on an address of its own (``network``) with TLS, RBAC and service accounts, and is up in 5 s.
``with_node`` adds a node: containerd, kubelet and kube-proxy in namespaces of their own (``node``), and a server of
cluster names. Everything is a child that dies with the process that runs the tests; a guard removes the rest.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import urlsplit

from tests import debian
from tests.kubernetes import pki, programs
from tests.kubernetes.api import Api, KubernetesError, Obj
from tests.kubernetes.daemons import START_S, Daemons
from tests.kubernetes.images import Image
from tests.kubernetes.network import Network
from tests.kubernetes.node import Node
from tests.waiting import patient, until

__all__ = ["KubernetesCluster", "KubernetesError", "Obj", "new_folder", "until"]

T = TypeVar("T")

_PORT = 6443  # of the API server; the address is the cluster's own
_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class KubectlError(AssertionError):
    """kubectl failed, where it must not: how, and what it said."""


class KubernetesCluster:
    """A cluster in a folder of its own below /tmp; ``start`` it, or enter it as a context. It needs root.

    ``host`` is this machine's address in the cluster: webhooks and proxies under test listen there, and are reached by
    the API server and by Pods. ``api_flags`` are added to kube-apiserver's; ``kubectl`` is by itself that of the API
    server. A lost node is noticed after 8 s and its Pods are evicted 2 s later (elsewhere 40 s and 5 minutes); as
    elsewhere, nothing is evicted when all nodes are lost.
    """

    def __init__(self, folder: Path, *, api_flags: Sequence[str] = (), kubectl: Path | None = None) -> None:
        assert os.geteuid() == 0, "a Kubernetes for the tests needs root: it makes a network, and containers"
        assert folder.is_relative_to("/tmp"), "a socket's path is short"
        folder.mkdir(parents=True, exist_ok=True)
        assert not any(folder.iterdir()), f"{folder} is not empty, and would be removed with the cluster"
        self.folder = folder
        self.daemons = Daemons(folder)
        try:
            self.network = Network(self.daemons)
        except BaseException:
            self.daemons.remove()
            raise
        self.host = self.network.host
        self.url = f"https://{self.host}:{_PORT}"
        self.nodes: list[Node] = []
        self._api_flags = tuple(api_flags)
        self._kubectl = kubectl or programs.kube("kubectl")
        self._names = itertools.count(1)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the control plane; return when namespaces get their service accounts."""
        self._make_certificates()
        self.network.start()
        self._start_etcd()
        self.start_api_server()
        self.start_controllers()
        self.wait(lambda: self.find("serviceaccounts", "default", "default"), START_S)

    def remove(self) -> None:
        """End everything and leave nothing: no process, no file, no address."""
        for node in self.nodes:
            node.kill()
        self.daemons.remove()
        self.network.stop()

    def with_node(self) -> Node:
        """Add a node; return when it is Ready. The first one brings the server of cluster names."""
        number = len(self.nodes) + 1
        node = Node(self, number)
        self.nodes.append(node)
        if number == 1:
            self._start_dns()
        node.start()
        return node

    def start_api_server(self) -> None:
        """Start kube-apiserver; return when it is ready."""
        etc = self.folder / "pki"
        flags = {
            "etcd-servers": f"http://{self.host}:2379",
            "bind-address": self.host,
            "advertise-address": self.host,
            "secure-port": _PORT,
            "tls-cert-file": etc / "apiserver.crt",
            "tls-private-key-file": etc / "apiserver.key",
            "client-ca-file": etc / "kube-ca.crt",
            "service-cluster-ip-range": self.network.services,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "anonymous-auth": "true",
            "enable-aggregator-routing": "true",  # a webhook's Service is reached at its Endpoints, without kube-proxy
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": etc / "sa.pub",
            "service-account-signing-key-file": etc / "sa.key",
            "kubelet-client-certificate": etc / "kubelet-client.crt",
            "kubelet-client-key": etc / "kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP",
            "requestheader-client-ca-file": etc / "front-proxy-ca.crt",
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": etc / "front-proxy-client.crt",
            "proxy-client-key-file": etc / "front-proxy-client.key",
            "default-not-ready-toleration-seconds": 2,
            "default-unreachable-toleration-seconds": 2,
        }
        self.daemons.launch("kube-apiserver", [programs.kube("kube-apiserver"), *_words(flags), *self._api_flags])
        self.daemons.wait("kube-apiserver", self._api.is_ready)

    def stop_api_server(self) -> None:
        """End kube-apiserver: it takes no more calls, but would keep open watches for a minute; they get 2 s."""
        self.daemons.stop("kube-apiserver", 2)

    def kill_api_server(self) -> None:
        """SIGKILL kube-apiserver; what it has acknowledged is in etcd."""
        self.daemons.kill("kube-apiserver")

    def start_controllers(self) -> None:
        """Start kube-controller-manager and kube-scheduler, whichever does not run."""
        etc = self.folder / "pki"
        common = {"leader-elect": "false", "kube-api-qps": 500, "kube-api-burst": 1000, "bind-address": self.host}
        manager = {
            "use-service-account-credentials": "true",
            "service-account-private-key-file": etc / "sa.key",
            "root-ca-file": etc / "kube-ca.crt",
            "cluster-signing-cert-file": etc / "kube-ca.crt",
            "cluster-signing-key-file": etc / "kube-ca.key",
            "controllers": "*",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": "8s",
            "node-eviction-rate": 10,  # of nodes in a second
        }
        for name, own in (("kube-controller-manager", manager), ("kube-scheduler", {})):
            if not self.daemons.runs(name):
                file = self.folder / f"{name}.kubeconfig"
                files = dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), file)
                old = {"port": 0} if programs.release(name) < (1, 24) else {}  # no port without TLS
                self.daemons.launch(name, [programs.kube(name), *_words({**common, **old, **files, **own})])

    def kill_controllers(self) -> None:
        """SIGKILL kube-controller-manager and kube-scheduler: nothing is scheduled or collected."""
        self.daemons.kill("kube-controller-manager")
        self.daemons.kill("kube-scheduler")

    def settle(self) -> None:
        """As after the start, for a cluster that many tests use; CustomResourceDefinitions stay, their objects go.

        Namespaces go in the background: who makes one takes a new name (``make_namespace``).
        """
        if not self.daemons.runs("kube-apiserver"):
            self.start_api_server()
        self.start_controllers()
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            self.kubectl("delete", kind, "--all", "--ignore-not-found")
        for namespace in self.list("namespaces"):
            name = namespace["metadata"]["name"]
            if name not in _SYSTEM_NAMESPACES and "deletionTimestamp" not in namespace["metadata"]:
                self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
        for node in self.nodes:
            if not node.is_up:
                node.start()

    # -- its users ---------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "admin.kubeconfig"

    @property
    def ca_file(self) -> Path:
        """The certificate authority of the API server."""
        return self._authority.certificate

    def make_kubeconfig(self, user: str, *groups: str) -> Path:
        """A kubeconfig for a user, who may do what RBAC has for the name and the groups."""
        name = f"user{next(self._names)}"
        pair = self._authority.issue(name, user, groups=groups)
        return pki.write_kubeconfig(self.folder / f"{name}.kubeconfig", self.url, self.ca_file, pair=pair)

    def make_token_kubeconfig(self, namespace: str, account: str) -> Path:
        """A kubeconfig with a token of a service account."""
        file = self.folder / f"token{next(self._names)}.kubeconfig"
        return pki.write_kubeconfig(file, self.url, self.ca_file, token=self.token(namespace, account))

    def token(self, namespace: str, account: str, *audiences: str, seconds: int = 3600) -> str:
        """A token of a service account, for the API server or for other audiences."""
        request = {"spec": {"audiences": list(audiences), "expirationSeconds": seconds}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.api("POST", path, request)["status"]["token"])

    def make_namespace(self, prefix: str = "test") -> str:
        """A new namespace, with its service account."""
        name = f"{prefix}-{os.urandom(3).hex()}"
        self.kubectl("create", "namespace", name)
        self.wait(lambda: self.find("serviceaccounts", "default", name), 120)
        return name

    # -- what is in it -----------------------------------------------------------------------------------------------

    def run_kubectl(
        self,
        *args: str,
        input: str = "",  # noqa: A002  subprocess's own word
        timeout: float = 60,
        kubeconfig: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as the administrator or with another kubeconfig."""
        return subprocess.run(
            [self._kubectl, *args],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(timeout),
            cwd=self.folder,
            env=self.env(kubeconfig),
        )

    def kubectl(
        self,
        *args: str,
        input: str = "",  # noqa: A002  subprocess's own word
        timeout: float = 60,
        kubeconfig: Path | None = None,
    ) -> str:
        """What kubectl prints.

        Raises:
            KubectlError: it failed.
        """
        done = self.run_kubectl(*args, input=input, timeout=timeout, kubeconfig=kubeconfig)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(args)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def apply(self, text: str, *args: str) -> str:
        """``kubectl apply`` YAML; what it prints."""
        return self.kubectl("apply", *args, "-f", "-", input=text)

    def get(self, kind: str, name: str, namespace: str = "") -> Obj:
        """An object, as ``kubectl get -o json`` has it; it must be there."""
        found: Obj = json.loads(self.kubectl("get", kind, name, "-o", "json", *_in(namespace)))
        return found

    def find(self, kind: str, name: str, namespace: str = "") -> Obj | None:
        """An object, or nothing where there is none."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found", *_in(namespace))
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str = "", selector: str = "") -> list[Obj]:
        """Objects; of all namespaces, unless one is given."""
        where = _in(namespace) or ("--all-namespaces",)
        found: list[Obj] = json.loads(self.kubectl("get", kind, "-o", "json", *where, f"--selector={selector}"))[
            "items"
        ]
        return found

    def api(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Obj:
        """Call the API server as the administrator; 10 ms, where kubectl takes 100.

        Raises:
            KubernetesError: it refused.
            OSError: it is not there.
        """
        return self._api.call(method, path, body, content_type)

    def logs(self, pod: str, namespace: str = "default", *args: str) -> str:
        """What a Pod has printed."""
        return self.kubectl("logs", pod, *_in(namespace), *args)

    def exec(self, pod: str, namespace: str, *argv: str, container: str = "") -> str:
        """What a command in a Pod prints; it must succeed."""
        return self.kubectl("exec", pod, *_in(namespace), *(["-c", container] if container else []), "--", *argv)

    def wait_pod(self, pod: str, namespace: str, phase: str = "Running", timeout: float = 60) -> Obj:
        """A Pod as soon as it is in a phase; ``Ready`` is one here too."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"

        def reached() -> Obj | None:
            found = self.api("GET", path)
            conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", ())}
            fits = conditions.get("Ready") == "True" if phase == "Ready" else found["status"]["phase"] == phase
            return found if fits else None

        def state() -> str:
            return f"Pod {pod} is not {phase}:\n{self.run_kubectl('describe', 'pod', pod, *_in(namespace)).stdout}"

        return until(reached, timeout, what=state)

    def wait(self, true: Callable[[], T | None], timeout: float = 30, what: Callable[[], str] | None = None) -> T:
        """Wait for the cluster to do something; the first true value. A refused call is another try."""
        told = what or (lambda: self.run_kubectl("get", "events", "-A").stdout[-3000:])
        return until(true, timeout, what=told, not_yet=(OSError, KubernetesError, KubectlError))

    # -- images and charts -------------------------------------------------------------------------------------------

    def import_image(self, *images: Image) -> None:
        """Put images on every node there is."""
        for node in self.nodes:
            for image in images:
                node.import_image(image)

    def helm(self, *args: str, timeout: float = 120) -> str:
        """What helm prints; it must succeed."""
        done = self.run_helm(*args, timeout=timeout)
        assert done.returncode == 0, f"helm {' '.join(args)}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def run_helm(self, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run helm as the administrator; its own files lie in the cluster's folder."""
        return subprocess.run(
            [str(programs.helm()), *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(timeout),
            cwd=self.folder,
            env=self.env(),
        )

    def env(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """The variables for a client of this cluster; kubectl is on its PATH."""
        home = self.folder / "home"
        return {
            "PATH": f"{self._kubectl.parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }

    def add_service(self, name: str, namespace: str, port: int, *, service_port: int = 443) -> str:
        """A Service in front of a port on ``host``, for a webhook or a proxy of this machine; its DNS name."""
        self._add_service(name, namespace, [_port(service_port)], [_port(port)], {})
        return f"{name}.{namespace}.svc"

    # -- how it is done ----------------------------------------------------------------------------------------------

    def _make_certificates(self) -> None:
        etc = self.folder / "pki"
        etc.mkdir()
        (self.folder / "home").mkdir()
        self._authority = pki.Authority(etc, "kube-ca")
        front = pki.Authority(etc, "front-proxy-ca")
        pki.write_signing_keys(etc)
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        hosts = [self.host, "127.0.0.1", self.network.api_service, *names, "kubernetes.default.svc.cluster.local"]
        self._authority.issue("apiserver", "kube-apiserver", hosts=hosts)
        self._authority.issue("kubelet-client", "apiserver-kubelet-client", groups=["system:masters"])
        front.issue("front-proxy-client", "front-proxy-client")
        pair = self._authority.issue("admin", "admin", groups=["system:masters"])
        pki.write_kubeconfig(self.kubeconfig, self.url, self.ca_file, pair=pair)
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            pair = self._authority.issue(name, f"system:{name}")
            pki.write_kubeconfig(self.folder / f"{name}.kubeconfig", self.url, self.ca_file, pair=pair)
        self._api = Api(self.host, _PORT, etc)

    def issue_for_node(self, name: str, address: str) -> tuple[Path, Path]:
        """A kubelet's certificate with its key, and its kubeconfig beside the cluster's."""
        pair = self._authority.issue(name, f"system:node:{name}", groups=["system:nodes"], hosts=[address, name])
        pki.write_kubeconfig(self.folder / f"{name}.kubeconfig", self.url, self.ca_file, pair=pair)
        return pair

    def _start_etcd(self) -> None:
        etcd = programs.etcd()
        client, other = (f"http://{self.host}:{port}" for port in (2379, 2380))
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": other,
            "initial-advertise-peer-urls": other,
            "initial-cluster": f"default={other}",
            "unsafe-no-fsync": "true",
        }
        environment = {name: debian.surroundings(etcd).get(name, "") for name in ("LD_LIBRARY_PATH",)}
        self.daemons.launch("etcd", [etcd, *_words(flags)], environment)
        self.daemons.wait("etcd", lambda: _answers(client, "/health"))

    def _start_dns(self) -> None:
        script = Path(__file__).with_name("dns.py")
        self.daemons.launch("dns", [sys.executable, script, self.host, self.url, self.folder / "pki"])
        port = _port(53, "UDP")
        self._add_service("kube-dns", "kube-system", [port], [port], {"clusterIP": self.network.dns_service})

    def _add_service(self, name: str, namespace: str, ports: Sequence[Obj], behind: Sequence[Obj], spec: Obj) -> None:
        metadata = {"name": name, "namespace": namespace}
        there = [{"addresses": [{"ip": self.host}], "ports": behind}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports, **spec}}
        endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": there}
        self.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, endpoints]}))


def new_folder() -> Path:
    """An empty folder for a cluster, which removes it."""
    return Path(tempfile.mkdtemp(prefix=f"moorings-kubernetes-{os.getpid()}-", dir="/tmp"))


def _words(flags: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _in(namespace: str) -> tuple[str, ...]:
    return ("--namespace", namespace) if namespace else ()


def _port(number: int, protocol: str = "TCP") -> Obj:
    return {"name": "main", "port": number, "protocol": protocol}


def _answers(url: str, path: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=patient(5))
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
