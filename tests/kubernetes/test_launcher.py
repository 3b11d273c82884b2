"""The launcher's init container against a real API server, with the very rights that the operator gives it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.ipujob.validation import default_ipujob
from moorings.kubernetes.operator.pod_builder import build_launcher_rbac, kubexec_script
from tests.kubernetes import images, programs
from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.launcher import LauncherProcess
from tests.unit.kubernetes.cluster_stand_in import Proxy, serve_proxy
from tests.waiting import patient

WORKERS = ["job-worker-0", "job-worker-1"]


def give_access(cluster: KubernetesCluster, namespace: str, workers: int) -> None:
    """Give the account ``job-launcher`` what the operator gives it: rights to its job's workers."""
    containers = [{"name": "main", "image": "main:latest"}]
    spec = {
        "ipusPerJobInstance": workers,
        "launcher": {"command": ["x"]},
        "workers": {"template": {"spec": {"containers": containers}}},
    }
    body: Obj = {
        "metadata": {"name": "job", "namespace": namespace, "uid": "u-1"},
        "spec": spec | {"workerPerJobInstance": workers},
    }
    assert default_ipujob(body)
    for one in build_launcher_rbac(parse_ipujob(body)):
        one["metadata"].pop("ownerReferences")  # there is no such job
        cluster.apply(json.dumps(one))


class Launcher(LauncherProcess):
    """A launcher's process in a namespace, and the Pods it waits for."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, folder: Path, proxy_url: str, workers: int) -> None:
        self.cluster = cluster
        self.namespace = namespace
        give_access(cluster, namespace, workers)
        account = folder / "account"
        account.mkdir()
        (account / "ca.crt").write_bytes(cluster.ca_file.read_bytes())
        (account / "token").write_text(cluster.token(namespace, "job-launcher"))
        (folder / "kubectl").write_text("")
        host, _, port = cluster.url.removeprefix("https://").rpartition(":")
        environment = {
            "PYTHONPATH": str(Path("src").resolve()),
            "KUBERNETES_SERVICE_HOST": host.strip("[]"),
            "KUBERNETES_SERVICE_PORT": port,
            "MOORINGS_WORKERS": str(workers),
            "MOORINGS_PARTITION": f"{namespace}/job/u-1/0",
            "MOORINGS_PROXY_URL": proxy_url,
            "MOORINGS_PROXY_TOKEN_FILE": str(account / "token"),
        }
        words = ["--into", str(folder / "bin"), "--kubectl", str(folder / "kubectl"), "--account", str(account)]
        super().__init__(environment, *words, stderr=subprocess.STDOUT)

    def make_pod(self, name: str, **more: str) -> None:
        spec = {"containers": [{"name": "main", "image": "main:latest"}], **more}
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        labels = {names.JOB: "job", names.INSTANCE: "0", names.ROLE: names.WORKER_ROLE}
        pod = {"metadata": {"name": name, "namespace": self.namespace, "labels": labels}, "spec": spec}
        self.cluster.wait(lambda: self.cluster.api("POST", path, pod))  # until the namespace's account has its token

    def tell(self, name: str, **status: object) -> None:
        """As a kubelet would."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        self.cluster.api("PATCH", path, {"status": status}, content_type="application/merge-patch+json")

    def make_ready(self, name: str) -> None:
        self.tell(name, phase="Running", conditions=[{"type": "Ready", "status": "True"}])


@pytest.fixture
def proxy() -> Proxy:
    found = Proxy()
    found.states = ["READY"]
    return found


@pytest.fixture
def launcher(
    request: pytest.FixtureRequest, cluster: KubernetesCluster, namespace: str, tmp_path: Path, proxy: Proxy
) -> Iterator[Launcher]:
    workers = getattr(request, "param", len(WORKERS))
    cluster.wait(lambda: cluster.find("serviceaccount", "default", namespace) is not None)
    with serve_proxy(proxy) as url:
        started = Launcher(cluster, namespace, tmp_path, url, workers)
        yield started
        started.process.kill()
        started.end()
        assert started.process.stdout is not None
        started.process.stdout.close()


def test_its_role_is_enough_and_it_says_what_it_waits_for(launcher: Launcher, proxy: Proxy) -> None:
    launcher.wait_for("waiting for 2 of 2 workers: job-worker-0 is not there yet; job-worker-1 is not there yet")
    launcher.make_pod(WORKERS[0])
    launcher.wait_for("job-worker-0 is Pending: Unschedulable: no nodes available")
    launcher.make_ready(WORKERS[0])
    launcher.make_pod(WORKERS[1], nodeName="a-node")  # the scheduler says nothing of this one
    launcher.wait_for("waiting for 1 of 2 workers: job-worker-1 is Pending\n")
    waiting = {"name": "main", "image": "main:latest", "imageID": "", "ready": False, "restartCount": 0}
    state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    launcher.tell(WORKERS[1], phase="Pending", containerStatuses=[waiting | {"state": state}])
    launcher.wait_for("waiting for 1 of 2 workers: job-worker-1 is Pending: ErrImagePull: no such image")
    launcher.make_ready(WORKERS[1])
    assert launcher.end() == 0, launcher.lines
    assert launcher.lines[-1] == "the partition is READY\n"
    assert not any("not known:" in line for line in launcher.lines[1:])


@pytest.mark.parametrize("launcher", [32], indirect=True)
def test_many_workers_are_read_by_one_thread(launcher: Launcher) -> None:
    """By a Role that names each of them."""
    launcher.wait_for("waiting for 32 of 32 workers: job-worker-0 is not there yet")
    tasks = Path(f"/proc/{launcher.process.pid}/task")
    assert len(list(tasks.iterdir())) == 3  # its own, the workers', and the one that waits for TERM
    workers = [f"job-worker-{number}" for number in range(32)]
    for name in workers:
        launcher.make_pod(name)
        launcher.make_ready(name)
    assert launcher.end() == 0, launcher.lines
    role = launcher.cluster.get("role", "job-launcher", launcher.namespace)
    assert [rule["resourceNames"] for rule in role["rules"]] == [workers, workers]


def test_an_api_server_that_is_killed_is_waited_for(launcher: Launcher) -> None:
    launcher.make_pod(WORKERS[0])
    launcher.make_ready(WORKERS[0])
    launcher.wait_for("waiting for 1 of 2 workers: job-worker-1 is not there yet")
    launcher.cluster.kill_api_server()
    launcher.wait_for("does not answer")
    launcher.cluster.start_api_server()
    launcher.make_pod(WORKERS[1])
    launcher.make_ready(WORKERS[1])
    assert launcher.end() == 0, launcher.lines


def test_a_worker_that_fails_ends_it(launcher: Launcher) -> None:
    for name in WORKERS:
        launcher.make_pod(name)
    launcher.make_ready(WORKERS[0])
    launcher.wait_for("waiting for 1 of 2 workers")
    launcher.tell(WORKERS[1], phase="Failed", reason="Evicted", message="the node was low on memory")
    assert launcher.end() == 1
    assert (
        "error: a worker will not come up: job-worker-1 has ended (Failed: Evicted) (worker.failed)\n" in launcher.lines
    )


@pytest.mark.parametrize("release", ["1.20", "today"])
def test_its_rights_are_enough_for_a_kubectl_of(
    release: str, node_cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    """Newer ones ask by a WebSocket first, a GET that the role does not allow, and then as older ones do."""
    if release == "today" and (why := programs.why_not_today()):
        pytest.skip(f"there is no kubectl of today: {why}")
    kubectl = programs.today("kubectl") if release == "today" else programs.kube("kubectl")
    give_access(node_cluster, namespace, 1)
    container = {"name": "main", "image": images.busybox().name, "command": ["sleep", "1000"]}
    for name in (WORKERS[0], "another"):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}}
        node_cluster.apply(json.dumps({**pod, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}))
    node_cluster.wait_pod(WORKERS[0], namespace, "Ready")
    node_cluster.wait_pod("another", namespace, "Ready")
    script = tmp_path / "kubexec.sh"
    script.write_text(kubexec_script("main", str(kubectl)))
    account = node_cluster.make_token_kubeconfig(namespace, "job-launcher")
    settings = json.loads(node_cluster.run_kubectl("config", "view", "--raw", "-o", "json", kubeconfig=account).stdout)
    settings["contexts"][0]["context"]["namespace"] = namespace  # as it is in a Pod
    account.write_text(json.dumps(settings))

    def start(pod: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = ["/bin/sh", str(script), "-x", pod, *words]
        environment = node_cluster.env(account)
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=patient(60), env=environment, cwd=tmp_path
        )

    done = start(WORKERS[0], "echo", "'a  b'", ";", "hostname", ";", "exit", "7")
    assert (done.returncode, done.stdout) == (7, f"a  b\n{WORKERS[0]}\n"), done.stderr
    refused = start("another", "true")
    assert refused.returncode == 1
    assert "forbidden" in refused.stderr.lower()
