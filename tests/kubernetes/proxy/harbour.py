"""Controllers with simulated pools and a proxy in front of them, as processes; Kubernetes is the fixtures' real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy_api.client import ProxyClient
from moorings.kubernetes.proxy_api.shapes import AUDIENCE, PartitionBody, PartitionRequest
from tests import waiting
from tests.e2e.processes import ControllerProcess
from tests.kubernetes.cluster import KubernetesCluster
from tests.processes import killed_on_failure, launch
from tests.waiting import patient
from tests.waiting import until_async as until

T = TypeVar("T")

OPERATOR = "proxys-operator"
POOLS = """
[[pool]]
name = "pod{size}"
kind = "ipu"
driver = "simulated"
topology = {{ type = "power-of-two", domains = {domains}, domain_size = {domain}, max_block = {domain} }}
[pool.simulated]
provision_s = {provision_s}
provision_per_device_s = 0.0
remove_s = 0.02
remove_per_device_s = 0.0
reset_s = 0.1
reset_per_device_s = 0.0
"""


def pools(size: int, provision_s: float = 0.02) -> str:
    """A pools file with one pool of that many IPUs."""
    return POOLS.format(size=size, domains=max(1, size // 64), domain=min(size, 64), provision_s=provision_s)


@dataclass
class Harbour:
    """A proxy and its controllers; ``start`` what is wanted, ``stop`` at the end."""

    folder: Path
    kubernetes: KubernetesCluster
    controllers: list[ControllerProcess]
    flags: tuple[str, ...] = ()
    namespace: str = "default"
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)

    def start_controllers(self) -> None:
        for controller in self.controllers:
            if controller.process is None:
                controller.folder.mkdir(parents=True, exist_ok=True)
                controller.start()
        self.write_list(*self.controllers)
        keys = self.folder / "keys"
        keys.mkdir(exist_ok=True)
        for controller in self.controllers:
            body = {"subject": "proxy", "role": "agent", "ownerPrefix": "kubernetes/lab"}
            status, made = controller.ask("POST", "/v1/keys", body)
            assert status == 201, made
            (keys / f"127.0.0.1_{controller.port}").write_text(made["secret"])

    def write_list(self, *controllers: ControllerProcess) -> None:
        entries = [f"127.0.0.1:{one.port}:ipunode=node{number}" for number, one in enumerate(controllers)]
        (self.folder / "controllers").write_text(",".join(entries))

    def start(self) -> None:
        """Start the proxy, and wait until it is ready."""
        command = [
            sys.executable,
            "-m",
            "moorings.app.kubernetes_proxy",
            "--cluster-name",
            "lab",
            "--host",
            "127.0.0.1",
        ]
        command += ["--controllers-file", str(self.folder / "controllers")]
        command += ["--access-keys-dir", str(self.folder / "keys"), "--port", str(self.port)]
        command += ["--operator-account", f"default:{OPERATOR}", "--tracker-namespace", self.namespace]
        command += ["--kubeconfig", str(self.kubernetes.kubeconfig), "--log-level", "3", *self.flags]
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = process = launch(command, stderr=log, stdout=log)

        def said() -> str:
            return self.log.read_bytes()[begin:].decode()

        def started() -> str | None:
            lines = said().splitlines(keepends=True)
            assert process.poll() is None, "".join(lines)[-3000:]
            return next((line for line in lines if "proxy.started" in line and line.endswith("\n")), None)

        with killed_on_failure(process):
            line = waiting.until(started, what=lambda: said()[-3000:])
            self.port = int(line.split("port=")[1].split()[0])
            waiting.until(lambda: self.ask("GET", "/readyz")[0] == 200, what=lambda: said()[-3000:])

    @property
    def log(self) -> Path:
        return self.folder / "proxy.log"

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        for process in (self.process, *(one.process for one in self.controllers)):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def token(self, account: str = OPERATOR, namespace: str = "default", audience: str = AUDIENCE) -> str:
        key = (f"{namespace}/{account}", audience)
        if key not in self.tokens:
            if self.kubernetes.find("serviceaccount", account, namespace) is None:
                self.kubernetes.kubectl("create", "serviceaccount", account, "-n", namespace)
            self.tokens[key] = self.kubernetes.token(namespace, account, audience)
        return self.tokens[key]

    def pod_token(self, pod: str, account: str, namespace: str = "default") -> str:
        """The token of a Pod's service account that is bound to the Pod, which is made; nothing runs it."""
        key = (f"{namespace}/{account}/{pod}", AUDIENCE)
        if key not in self.tokens:
            self.token(account, namespace)  # makes the account
            spec = {"serviceAccountName": account, "containers": [{"name": "c", "image": "none"}]}
            spec["nodeName"] = "nowhere"
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec}
            made = self.kubernetes.api("POST", f"/api/v1/namespaces/{namespace}/pods", body)
            bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": made["metadata"]["uid"]}
            asked = {"spec": {"audiences": [AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            self.tokens[key] = self.kubernetes.api("POST", path, asked)["status"]["token"]
        return self.tokens[key]

    def client(self) -> ProxyClient:
        return ProxyClient(f"http://127.0.0.1:{self.port}", token=self.token)

    def ask(self, method: str, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """One request: status and parsed answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=patient(30)) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else text.decode()
        except HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read() or b"null")

    def claims(self, controller: ControllerProcess, everything: bool = False) -> list[dict[str, Any]]:
        path = f"/v1/claims?ownerPrefix=kubernetes/lab/&limit=1000{'&all=true' if everything else ''}"
        status, found = controller.ask("GET", path)
        assert status == 200, found
        return list(found["items"])

    def cpu_s(self) -> float:
        """Processor time of the proxy so far."""
        assert self.process is not None
        ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def wish(number: int = 0, ipus: int = 1, instance: int = 0, job: str = "", **more: Any) -> PartitionRequest:
    name = job or f"job-{number}"
    return PartitionRequest(namespace="default", job=name, uid=f"uid-{name}", instance=instance, ipus=ipus, **more)


async def partition(client: ProxyClient, request: PartitionRequest) -> PartitionBody | None:
    """The partition as the proxy has it now; None: it has none, or does not answer."""
    try:
        found = await client.list(request.namespace, request.job)
    except MooringsError as error:
        if error.code != "controller.unreachable":
            raise
        return None
    return next((one for one in found.items if (one.uid, one.instance) == (request.uid, request.instance)), None)


async def in_state(client: ProxyClient, request: PartitionRequest, state: str, wait_s: float = 20.0) -> PartitionBody:
    """The partition once it is in a state."""

    async def look() -> PartitionBody | None:
        found = await partition(client, request)
        return found if found is not None and found.state == state else None

    found = await until(look, wait_s)
    assert found is not None
    return found


async def let_go(client: ProxyClient, request: PartitionRequest) -> None:
    """Release a partition, and wait until nothing is left of it."""
    await client.release(request.namespace, request.job, request.uid, request.instance)

    async def look() -> bool:
        return await partition(client, request) is None

    await until(look)
