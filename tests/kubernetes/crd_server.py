"""Today's server of CustomResourceDefinitions beside a cluster of 1.20, for what that one does not know: CEL rules.

The Kubernetes that Debian has takes CEL rules and does not look at them. This server stands beside it on the same etcd,
with the same certificates, and is asked by HTTP alone: it has no other resources, and no kubectl finds its way about.
"""

from __future__ import annotations

import http.client
import json
import ssl

from tests.kubernetes import programs
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj

NAME = "crd-server"
_PORT = 7443
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
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        cluster.daemons.launch(NAME, [programs.crd_server(), *words])
        cluster.daemons.wait(NAME, self._is_ready)

    def stop(self) -> None:
        """End it."""
        self._cluster.daemons.stop(NAME)

    def api(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Obj:
        """Call it as the administrator.

        Raises:
            KubernetesError: it refused.
        """
        connection = http.client.HTTPSConnection(self._cluster.host, _PORT, context=self._context, timeout=30)
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
        try:
            self.api("GET", "/readyz")
        except (OSError, KubernetesError):
            return False
        return True
