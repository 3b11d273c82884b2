"""IPUJobs on a real Kubernetes: controllers on simulated pods, proxy and operators as processes of this machine."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from moorings.kubernetes.kube.serving_certificate import parse_authorities
from tests.e2e.processes import ControllerProcess
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj, new_folder
from tests.processes import killed_on_failure, launch
from tests.released.code import environment_of
from tests.waiting import patient, until

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "ipu-operator"
CRD = ROOT / "deploy" / "kubernetes" / "CRDs" / "graphcore.ai_ipujobs.yaml"
EXAMPLES = ROOT / "examples" / "kubernetes"
CLUSTER = "lab"
# Of the operator, as rendered.
_ARGUMENTS = ("--lease-name=", "--launcher-role=", "--account=", "--watch-namespaces=", "--workers=")
_RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
OPERATOR = "ipu-operator"
PROXY = "vipu-proxy"
_PROXY = "lab-ipu-operator-vipu-proxy"  # what the chart calls it
JOBS = "/apis/graphcore.ai/v1alpha1"

POOLS = """
[[pool]]
name = "{name}"
kind = "ipu"
driver = "simulated"
topology = {{ type = "power-of-two", domains = 1, domain_size = {size}, max_block = {size} }}
[pool.simulated]
provision_s = {slow_s}
provision_per_device_s = 0.0
remove_s = {slow_s}
remove_per_device_s = 0.0
"""


class Pod(ControllerProcess):
    """A Moorings controller over a simulated pod."""

    def partitions(self) -> list[Obj]:
        """All that exist."""
        return self._all("/v1/partitions?limit=1000")

    def claims(self, *, every: bool = False) -> list[Obj]:
        """This cluster's, by arrival."""
        return self._all(f"/v1/claims?limit=1000&ownerPrefix=kubernetes/{CLUSTER}/" + ("&all=1" if every else ""))

    def _all(self, path: str) -> list[Obj]:
        found: list[Obj] = []
        more = ""
        while True:
            status, answer = self.ask("GET", path + more)
            assert status == 200, answer
            found += answer["items"]
            if "continue" not in answer:
                return found
            more = f"&continue={answer['continue']}"


class Site:
    """A cluster whose jobs may have IPUs; its parts can be stopped, killed and started one by one."""

    def __init__(self, cluster: KubernetesCluster, folder: Path, pods: Sequence[Pod]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.pods = list(pods)
        self.proxy_host, self.proxy_flags = "127.0.0.1", list[str]()
        self.tls = True  # without: as the release before spoke to its proxy
        self.proxy_port, self.plain_port = _free_port(), _free_port()
        self.operators: dict[str, subprocess.Popen[bytes]] = {}
        self.proxy: subprocess.Popen[bytes] | None = None
        self.flags: list[str] = []
        self.values: dict[str, str] = {}  # of the chart
        self.program: list[str] = ["-m", "moorings.app.kubernetes_operator"]
        self.codes: dict[str, Path] = {}  # of parts that are of another release, by what they are called
        self.namespace = cluster.make_namespace("moorings")
        self._of_chart: list[str] = []

    @property
    def pod(self) -> Pod:
        """The only controller."""
        (found,) = self.pods
        return found

    # -- its parts ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """What the chart makes: CRD, namespace, accounts and their rights."""
        cluster = self.cluster
        cluster.apply(CRD.read_text())
        rendered = self._render()
        cluster.apply(yaml.safe_dump_all(one for one in rendered if one["kind"] in _RIGHTS))
        deployments = {one["metadata"]["name"]: one for one in rendered if one["kind"] == "Deployment"}
        manager = next(one for name, one in deployments.items() if name.endswith("controller-manager"))
        args = manager["spec"]["template"]["spec"]["containers"][0]["args"]
        self._of_chart = [arg for arg in args if arg.startswith(_ARGUMENTS)]
        keys = self.folder / "access-keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        for pod in self.pods:
            key = {"subject": "ipu-operator", "role": "agent", "ownerPrefix": f"kubernetes/{CLUSTER}"}
            file = keys / f"127.0.0.1_{pod.port}"
            file.touch(0o600)
            file.write_text(pod.ask("POST", "/v1/keys", key)[1]["secret"])
        self.write_controllers()
        cluster.wait(lambda: cluster.api("GET", f"{JOBS}/ipujobs") is not None, what=lambda: "the CRD to be served")

    def _render(self) -> list[Obj]:
        """The chart's objects: what an operator may do here is what it may do at a site."""
        values = {
            "global.vipuControllers": "pod1:8090:ipunode=pod1",
            "controller.serviceAccount.name": OPERATOR,
            "vipuProxy.serviceAccount.name": PROXY,
            "clusterName": CLUSTER,
            **self.values,
        }
        flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        text = self.cluster.helm("template", "lab", str(CHART), "-n", self.namespace, *flags)
        return [one for one in yaml.safe_load_all(text) if one]

    def write_controllers(self, pods: Sequence[Pod] | None = None) -> None:
        """Tell the proxy of controllers, as an edited ConfigMap would."""
        text = ",".join(f"127.0.0.1:{pod.port}:ipunode={pod.folder.name}" for pod in pods or self.pods)
        file = self.folder / "vipu-controllers"
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").rename(file)

    def start_proxy(self) -> None:
        """Start it and wait until it is ready."""
        token = self.cluster.make_token_kubeconfig(self.namespace, PROXY)
        words = [sys.executable, "-m", "moorings.app.kubernetes_proxy", f"--port={self.plain_port}"]
        if self.tls:
            words += [f"--tls-port={self.proxy_port}", f"--tls-service={_PROXY}"]
            words += [f"--tls-names=127.0.0.1,127.0.0.2,{self.cluster.host}"]
            words += [f"--tls-secret={_PROXY}-certificate", f"--tls-configmap={_PROXY}-ca"]  # as its Role has them
        words += [f"--controllers-file={self.folder / 'vipu-controllers'}"]
        words += [f"--access-keys-dir={self.folder / 'access-keys'}", f"--cluster-name={CLUSTER}"]
        words += ["--tracker-configmap=ipu-partitions-tracker", f"--tracker-namespace={self.namespace}"]
        words += [f"--operator-account=system:serviceaccount:{self.namespace}:{OPERATOR}", "--log-level=5"]
        words += [f"--kubeconfig={token}", *self.proxy_flags]
        self.proxy = self._start("proxy", words)
        with killed_on_failure(self.proxy):
            until(self._proxy_is_ready, 30, what=lambda: self.log("proxy")[-3000:])

    def _proxy_is_ready(self) -> bool:
        assert self.proxy is not None
        assert self.proxy.poll() is None, self.log("proxy")[-3000:]
        try:
            return self.ask_proxy("/readyz") is not None
        except OSError:
            return False

    def ask_proxy(self, path: str) -> str:
        """What it tells everybody there.

        Raises:
            OSError: it does not answer, or refuses.
        """
        trust = ssl.create_default_context(cadata=self.proxy_ca()) if self.tls else None
        with urllib.request.urlopen(f"{self.proxy_url}{path}", timeout=patient(5), context=trust) as answer:
            return str(answer.read().decode())

    def proxy_ca(self) -> str:
        """The authority by which the proxy is known, as PEM; empty: it has not told it yet."""
        return parse_authorities(self.cluster.find("configmap", f"{_PROXY}-ca", self.namespace))

    @property
    def proxy_url(self) -> str:
        """Where it listens."""
        return self._url(self.proxy_host)

    def _url(self, host: str) -> str:
        return f"https://{host}:{self.proxy_port}" if self.tls else f"http://{host}:{self.plain_port}"

    def start_operator(self, name: str = "operator", *flags: str, leads: bool = True) -> None:
        """Start one and wait until it works (or, told so, only that it runs)."""
        config = self.cluster.make_token_kubeconfig(self.namespace, OPERATOR)
        token = self.folder / "proxy-token"
        token.touch(0o600)
        token.write_text(self.cluster.token(self.namespace, OPERATOR, "moorings-proxy"))
        words = [sys.executable, *self.program, f"--namespace={self.namespace}"]
        words += [f"--proxy-url={self.proxy_url}", f"--proxy-token-file={token}", f"--kubeconfig={config}"]
        words += [
            *([f"--proxy-ca-configmap={_PROXY}-ca"] if self.tls else []),
            *self._of_chart,
            "--webhook-port=0",
            f"--launcher-proxy-url={self._url(self.cluster.host)}",
            "--no-host-network",
            "--no-privileged",
        ]
        begun = self.log(name).count("election.won")
        self.operators[name] = self._start(name, [*words, *self.flags, *flags])

        def works() -> bool:
            assert self.operators[name].poll() is None, self.log(name)[-3000:]
            return self.log(name).count("election.won") > begun or not leads

        with killed_on_failure(self.operators[name]):
            until(works, 40, what=lambda: self.log(name)[-3000:])

    def kill_operator(self, name: str = "operator") -> None:
        """As a power cut would."""
        self._end(self.operators.pop(name), signal.SIGKILL)

    def stop_operator(self, name: str = "operator") -> int:
        """As Kubernetes would; the exit code."""
        return self._end(self.operators.pop(name), signal.SIGTERM)

    def kill_proxy(self) -> None:
        """As a power cut would."""
        assert self.proxy is not None
        self._end(self.proxy, signal.SIGKILL)

    def _end(self, process: subprocess.Popen[bytes], how: signal.Signals) -> int:
        process.send_signal(how)
        try:
            return process.wait(patient(30))
        finally:
            process.kill()  # who has not heard is not left behind

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = {**environment_of(self.codes.get(name)), "HOME": str(self.folder)}
            return launch(words, stdout=log, stderr=log, env=environment)

    def log(self, name: str) -> str:
        """What a part wrote."""
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def stop(self) -> None:
        """End what still runs."""
        for process in [*self.operators.values(), *([self.proxy] if self.proxy is not None else [])]:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.kill()

    # -- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, namespace: str, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Obj:
        """Make an IPUJob."""
        body = {
            "apiVersion": "graphcore.ai/v1alpha1",
            "kind": "IPUJob",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
            "spec": {"ipusPerJobInstance": "1", "workers": {"template": template()}, **spec},
        }
        return self.cluster.api("POST", f"{JOBS}/namespaces/{namespace}/ipujobs", body)

    def job(self, namespace: str, name: str) -> Obj:
        """An IPUJob as it is now."""
        return self.cluster.api("GET", f"{JOBS}/namespaces/{namespace}/ipujobs/{name}")

    def status(self, namespace: str, name: str) -> Obj:
        """Its status; empty if it has none yet."""
        return dict(self.job(namespace, name).get("status") or {})

    def scale(self, namespace: str, name: str, instances: int) -> None:
        """As kubectl scale does."""
        self.cluster.kubectl("scale", "-n", namespace, f"ipujob.graphcore.ai/{name}", f"--replicas={instances}")

    def delete(self, namespace: str, name: str) -> None:
        """Delete it, without waiting."""
        self.cluster.api("DELETE", f"{JOBS}/namespaces/{namespace}/ipujobs/{name}")

    def is_gone(self, namespace: str, name: str) -> bool:
        """Whether there is no such job."""
        try:
            self.job(namespace, name)
        except KubernetesError as error:
            return error.status == 404
        return False

    def await_state(self, namespace: str, name: str, state: str, timeout: float = 60) -> Obj:
        """Wait until STATUS is so; the status."""

        def reached() -> Obj | None:
            found = self.status(namespace, name)
            return found if found.get("status") == state else None

        told = lambda: f"{name}: {self._status_text(namespace, name)}\n{self.log('operator')[-2000:]}"  # noqa: E731
        found = self.cluster.wait(reached, timeout, what=told)
        assert found is not None
        return found

    def _status_text(self, namespace: str, name: str) -> str:
        try:
            return json.dumps(self.status(namespace, name), indent=1)
        except KubernetesError as error:
            return str(error)

    def job_pods(self, namespace: str, name: str) -> dict[str, Obj]:
        """Its Pods, by name."""
        found = self.cluster.list("pods", namespace, f"graphcore.ai/job-name={name}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def await_pods(self, namespace: str, name: str, *wanted: str, timeout: float = 30) -> dict[str, Obj]:
        """Wait until its Pods are these; by name."""

        def there() -> dict[str, Obj] | None:
            found = self.job_pods(namespace, name)
            return found if sorted(found) == sorted(wanted) else None

        told = lambda: f"{sorted(self.job_pods(namespace, name))}, not {wanted}\n{self.log('operator')[-2000:]}"  # noqa: E731
        found = self.cluster.wait(there, timeout, what=told)
        assert found is not None
        return found

    def await_another(self, namespace: str, job: str, name: str, uid: str) -> Obj:
        """Wait until a Pod has been made again."""

        def made() -> Obj | None:
            pod = self.job_pods(namespace, job).get(name)
            return pod if pod is not None and pod["metadata"]["uid"] != uid else None

        told = lambda: f"{self._status_text(namespace, job)}\n{self.log('operator')[-2000:]}"  # noqa: E731
        return self.cluster.wait(made, what=told)

    # -- kubelet by hand, where there is no node -----------------------------------------------------------------------

    def run_pod(self, namespace: str, name: str) -> None:
        """Have a Pod run and be Ready, for the API server."""
        self._set_pod(namespace, name, "Running", {"running": {"startedAt": _now()}}, ready=True)

    def bring_up(self, namespace: str, name: str, **spec: Any) -> str:
        """Make a job that runs; its Pod's uid."""
        self.submit(namespace, name, **spec)
        pod = self.await_pods(namespace, name, f"{name}-worker-0", timeout=60)[f"{name}-worker-0"]
        self.run_pod(namespace, f"{name}-worker-0")
        self.await_state(namespace, name, "Running")
        return str(pod["metadata"]["uid"])

    def end_pod(self, namespace: str, name: str, code: int) -> None:
        """Have its container end."""
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": _now()}
        self._set_pod(namespace, name, "Succeeded" if code == 0 else "Failed", {"terminated": ended}, ready=False)

    def _set_pod(self, namespace: str, name: str, phase: str, state: Obj, *, ready: bool) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        containers = self.cluster.api("GET", path)["spec"]["containers"]
        statuses = [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": state,
            }
            for one in containers
        ]
        conditions = [{"type": "Ready", "status": str(ready)}]
        body = {"status": {"phase": phase, "containerStatuses": statuses, "conditions": conditions}}
        self.cluster.api("PATCH", f"{path}/status", body, content_type="application/strategic-merge-patch+json")

    # -- nothing is left -----------------------------------------------------------------------------------------------

    def await_empty(self, timeout: float = 60) -> None:
        """Wait until no controller has a partition or an unended claim.

        A Pod whose command does not mind TERM takes its 30 s of grace, and what a busy machine adds.
        """

        def empty() -> bool:
            return not any(pod.partitions() or pod.claims() for pod in self.pods)

        until(empty, timeout, what=self._what_is_left)

    def _what_is_left(self) -> str:
        held = [f"{one['id']} {one['state']} of {one['owner']}" for pod in self.pods for one in pod.claims()]
        found = self.cluster.api("GET", "/api/v1/pods")["items"]
        pods = [
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']} {pod['status'].get('phase')}"
            f" deleted at {pod['metadata'].get('deletionTimestamp')}"
            for pod in found
        ]
        return "\n".join(["", *held, *pods, self.log("operator")[-4000:]])


def template(*command: str, image: str = "busybox:latest", **spec: Any) -> Obj:
    """A Pod template; without a command it idles."""
    words = list(command) or ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"]
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": words}
    return {"metadata": {"labels": {"app": "test"}}, "spec": {"containers": [container], **spec}}


@contextmanager
def ipu_site(
    cluster: KubernetesCluster,
    *,
    sizes: Sequence[int] = (16,),
    slow_s: float = 0.05,
    pools: Sequence[str] = (),
    log: bool = True,
    flags: Sequence[str] = (),
    start: bool = True,
    policy: str = "",
    values: Mapping[str, str] = MappingProxyType({}),
    code: Path | None = None,
) -> Iterator[Site]:
    """A site on a cluster; a controller for each of ``sizes`` (or of ``pools``), called pod1, pod2 and on.

    ``policy``: their policy file, if they have one; ``values``: of the chart, which gives their rights; ``code``: that
    of the controllers, if they are of another release.
    """
    folder = new_folder()
    texts = pools or [POOLS.format(name=f"pool{n}", size=size, slow_s=slow_s) for n, size in enumerate(sizes, 1)]
    pods = []
    for number, text in enumerate(texts, 1):
        home = folder / f"pod{number}"
        home.mkdir()
        pods.append(Pod(home, text))
        pods[-1].code = code
        if policy:
            pods[-1].data.mkdir(0o700)
            (pods[-1].data / "policy.toml").write_text(policy)
    site = Site(cluster, folder, pods)
    site.values = dict(values)
    site.flags = [*flags, *(["--devel-logs"] if log else [])]
    try:
        for pod in pods:
            pod.start()
        site.prepare()
        if start:
            site.start_proxy()
            site.start_operator()
        yield site
    finally:
        site.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
