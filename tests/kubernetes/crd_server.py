"""Today's server of CustomResourceDefinitions beside a cluster of 1.20: with CEL rules, and all else that is new there.

A whole Kubernetes newer than 1.20 cannot be built from Debian's packages; this server can. It stands beside the API
server on the same etcd, with the same certificates, and calls admission webhooks as any API server does. By itself it
is asked by HTTP alone, and no kubectl finds its way about it. After ``serve_definitions`` the API server sends it all
that concerns definitions and IPUJobs, as to any aggregated API: then clients, operator and controllers meet today's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moorings.kubernetes.ipujob.types import API_VERSION, PLURAL
from tests.kubernetes import programs
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj
from tests.kubernetes.rules import Judge, RefusedError
from tests.waiting import patient, until

NAME = "crd-server"
_PORT = 7443
_JOBS = f"/apis/{API_VERSION}/namespaces/default/{PLURAL}"
_MERGE_PATCH = "application/merge-patch+json"
# Their objects are of a newer core API than the cluster's: the server would wait for them for ever.
_PLUGINS_OFF = "ValidatingAdmissionPolicy,MutatingAdmissionPolicy"


class CrdServer:
    """The server; it ends with its cluster, or when it is stopped."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        etc = cluster.folder / "pki"
        self._cluster = cluster
        self._context = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._context.load_cert_chain(etc / "admin.crt", etc / "admin.key")
        flags = {
            "etcd-servers": f"http://{cluster.host}:2379",
            "etcd-prefix": f"/{NAME}",
            "bind-address": cluster.host,
            "secure-port": _PORT,
            "tls-cert-file": etc / "apiserver.crt",
            "tls-private-key-file": etc / "apiserver.key",
            "client-ca-file": cluster.ca_file,
            "kubeconfig": cluster.kubeconfig,
            "authentication-kubeconfig": cluster.kubeconfig,
            "authentication-skip-lookup": "true",
            "authorization-kubeconfig": cluster.kubeconfig,
            "enable-priority-and-fairness": "false",
            "disable-admission-plugins": _PLUGINS_OFF,
            # Whom the API server speaks for, when it passes a request on.
            "requestheader-client-ca-file": etc / "front-proxy-ca.crt",
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        cluster.daemons.launch(NAME, [programs.today("kube-apiextensions-apiserver"), *words])
        cluster.daemons.wait(NAME, self._is_ready)

    def serve_definitions(self, file: Path) -> None:
        """Serve the cluster's definitions and IPUJobs instead of its API server; return when it does.

        Args:
            file: the definition of IPUJobs. While there is none, the API server takes this one for a server that fails.
        """
        self._cluster.add_service(NAME, "kube-system", _PORT)
        self._take_over("v1", "apiextensions.k8s.io", 16700)
        self._cluster.kubectl("apply", "-f", str(file))
        until(lambda: self._serves(f"/apis/{API_VERSION}"), 60)
        group, _, version = API_VERSION.partition("/")
        self._take_over(version, group, 1000)

    def _take_over(self, version: str, group: str, priority: int) -> None:
        name = f"{version}.{group}"
        service = {"namespace": "kube-system", "name": NAME}
        spec = {"group": group, "version": version, "service": service, "insecureSkipTLSVerify": True}
        spec |= {"groupPriorityMinimum": priority, "versionPriority": 100}
        # Without this label it is not the API server's own any more, which would put it right again.
        metadata = {"name": name, "labels": {"kube-aggregator.kubernetes.io/automanaged": None}}
        path = "/apis/apiregistration.k8s.io/v1/apiservices"
        body = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": spec}

        def taken() -> bool:
            with contextlib.suppress(KubernetesError):
                self._cluster.api("POST", path, {**body, "metadata": {"name": name}})
            found = self._cluster.api("PATCH", f"{path}/{name}", body, content_type=_MERGE_PATCH)
            conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}
            return conditions.get("Available") == "True"

        self._cluster.wait(taken, 60)

    def stop(self) -> None:
        """End it."""
        self._cluster.daemons.stop(NAME)

    def api(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Obj:
        """Call it as the administrator.

        Raises:
            KubernetesError: it refused.
        """
        connection = http.client.HTTPSConnection(self._cluster.host, _PORT, context=self._context, timeout=patient(30))
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": content_type, "Accept": "application/json"})
            answer = connection.getresponse()
            said = answer.read().decode()
        finally:
            connection.close()
        found: Obj = json.loads(said) if said.startswith("{") else {"message": said}
        if answer.status >= 400:
            raise KubernetesError(answer.status, found)
        return found

    def _is_ready(self) -> bool:
        return self._serves("/readyz")

    def _serves(self, path: str) -> bool:
        try:
            self.api("GET", path)
        except (OSError, KubernetesError):
            return False
        return True


class Server:
    """A Judge: the server, with the definition."""

    def __init__(self, server: CrdServer, definition: Obj) -> None:
        self._server = server
        server.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        until(self._is_served)

    def create(self, job: Obj) -> Obj:
        return self._ask("POST", _JOBS, job)

    def change(self, made: Obj, spec: Obj) -> Obj:
        return self._ask("PATCH", _path(made), {"spec": spec})

    def change_status(self, made: Obj, status: Obj) -> Obj:
        return self._ask("PATCH", _path(made, "/status"), {"status": status})

    def scale(self, made: Obj, replicas: int) -> Obj:
        self._ask("PATCH", _path(made, "/scale"), {"spec": {"replicas": replicas}})
        return self._ask("GET", _path(made))

    def _ask(self, method: str, path: str, body: Obj | None = None) -> Obj:
        kind = _MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            return self._server.api(method, path, body, content_type=kind)
        except KubernetesError as error:
            if error.status != http.client.UNPROCESSABLE_ENTITY:
                raise
            raise RefusedError(
                f"{each['field']}: {each['message']}" for each in error.body["details"]["causes"]
            ) from None

    def _is_served(self) -> bool:
        with contextlib.suppress(KubernetesError):  # not found, or told to come again
            self._server.api("GET", _JOBS)
            return True
        return False


class Agreeing:
    """A Judge: two that must agree, word for word; the answer is the first one's.

    Raises:
        AssertionError: they do not.
    """

    def __init__(self, first: Judge, second: Judge) -> None:
        self._first, self._second = first, second

    def create(self, job: Obj) -> Obj:
        return self._compare(lambda judge: judge.create(job))

    def change(self, made: Obj, spec: Obj) -> Obj:
        return self._compare(lambda judge: judge.change(made, spec))

    def change_status(self, made: Obj, status: Obj) -> Obj:
        return self._compare(lambda judge: judge.change_status(made, status))

    def scale(self, made: Obj, replicas: int) -> Obj:
        return self._compare(lambda judge: judge.scale(made, replicas))

    def _compare(self, ask: Callable[[Judge], Obj]) -> Obj:
        first, second = _hear(ask, self._first), _hear(ask, self._second)
        assert _content(first) == _content(second)
        if isinstance(first, RefusedError):
            raise first
        return first


def _path(made: Obj, subresource: str = "") -> str:
    return f"{_JOBS}/{made['metadata']['name']}{subresource}"


def _hear(ask: Callable[[Judge], Obj], judge: Judge) -> Obj | RefusedError:
    try:
        return ask(judge)
    except RefusedError as error:
        return error


def _content(answer: Obj | RefusedError) -> Any:
    return answer.causes if isinstance(answer, RefusedError) else (answer["spec"], answer.get("status"))
