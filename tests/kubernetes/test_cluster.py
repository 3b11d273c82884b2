"""The Kubernetes that the tests of this folder stand on is a real one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj
from tests.kubernetes.hooks import Hook, serve_hook
from tests.waiting import patient

BUSYBOX = images.busybox().name


def pod(name: str, namespace: str, *command: str, image: str = BUSYBOX, labels: Obj | None = None, **spec: Any) -> str:
    container = {"name": "main", "image": image, "command": list(command)}
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})


def finish(cluster: KubernetesCluster, name: str, namespace: str) -> tuple[int, str]:
    """The exit code of a Pod's only container, and what it printed."""

    def ended() -> Obj | None:
        state: Obj = cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
        return state if state["phase"] in ("Succeeded", "Failed") else None

    state = cluster.wait(ended, 60)
    return state["containerStatuses"][0]["state"]["terminated"]["exitCode"], cluster.logs(name, namespace)


# -- the control plane -----------------------------------------------------------------------------------------------


def test_its_certificate_is_checked_and_it_knows_who_calls(cluster: KubernetesCluster, namespace: str) -> None:
    stranger = cluster.make_kubeconfig("stranger", "visitors")
    refused = cluster.run_kubectl("get", "pods", "-n", namespace, kubeconfig=stranger)
    assert refused.returncode == 1
    assert 'User "stranger" cannot list resource "pods"' in refused.stderr
    cluster.kubectl("create", "rolebinding", "see", "--clusterrole=view", "--group=visitors", "-n", namespace)
    cluster.wait(lambda: cluster.run_kubectl("get", "pods", "-n", namespace, kubeconfig=stranger).returncode == 0)


def test_a_token_for_the_proxy_is_a_token_for_nobody_else(cluster: KubernetesCluster, namespace: str) -> None:
    token = cluster.token(namespace, "default", "moorings-proxy", seconds=600)

    def review(*audiences: str) -> Obj:
        body = {"spec": {"token": token, "audiences": list(audiences)}}
        answer: Obj = cluster.api("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)["status"]
        return answer

    good = review("moorings-proxy")
    assert good["authenticated"] is True
    assert good["audiences"] == ["moorings-proxy"]
    assert good["user"]["username"] == f"system:serviceaccount:{namespace}:default"
    assert not review("another").get("authenticated")
    assert not review().get("authenticated")  # the API server itself


def test_a_deployment_is_scaled_and_its_replicas_are_made_by_real_controllers(
    cluster: KubernetesCluster, namespace: str
) -> None:
    cluster.kubectl("create", "deployment", "web", f"--image={BUSYBOX}", "-n", namespace)
    cluster.kubectl("scale", "deployment/web", "--replicas=3", "-n", namespace)
    cluster.wait(lambda: len(cluster.list("pods", namespace, "app=web")) == 3)
    cluster.kubectl("scale", "deployment/web", "--replicas=1", "-n", namespace)
    cluster.wait(lambda: len(cluster.list("pods", namespace, "app=web")) == 1)


def test_what_belongs_to_another_object_goes_with_it(cluster: KubernetesCluster, namespace: str) -> None:
    owner = f"/api/v1/namespaces/{namespace}/configmaps"
    uid = cluster.api("POST", owner, {"metadata": {"name": "owner"}})["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    cluster.api("POST", owner, {"metadata": {"name": "owned", "ownerReferences": [reference]}})
    cluster.kubectl("delete", "configmap", "owner", "-n", namespace)
    cluster.wait(lambda: cluster.find("configmap", "owned", namespace) is None, 45)


def test_a_killed_api_server_comes_back_with_everything(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.kubectl("create", "configmap", "kept", "-n", namespace)
    cluster.kill_api_server()
    with pytest.raises(OSError, match="refused"):
        cluster.api("GET", "/healthz")
    cluster.start_api_server()
    assert cluster.get("configmap", "kept", namespace)["metadata"]["name"] == "kept"


def test_a_stopped_api_server_refuses_connections(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.stop_api_server()
    assert cluster.run_kubectl("get", "pods", "-n", namespace).returncode == 1
    cluster.start_api_server()
    assert cluster.list("pods", namespace) == []


def test_without_controllers_nothing_is_made(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.kill_controllers()
    cluster.kubectl("create", "deployment", "web", f"--image={BUSYBOX}", "-n", namespace)
    time.sleep(1)  # nothing is what is waited for
    assert cluster.list("replicasets", namespace) == []
    cluster.start_controllers()
    cluster.wait(lambda: len(cluster.list("pods", namespace)) == 1)


def configure_hook(cluster: KubernetesCluster, namespace: str, hook: Hook, client: dict[str, Any]) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    webhook = {
        "name": "test.moorings.test",
        "clientConfig": {"caBundle": hook.bundle, **client},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"hooked": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    cluster.kubectl("label", "namespace", namespace, f"hooked={namespace}")
    cluster.apply(json.dumps({**kind, "metadata": {"name": "test"}, "webhooks": [webhook]}))


def check_hook(cluster: KubernetesCluster, namespace: str, hook: Hook) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    numbers = iter(range(1000))

    def asked() -> bool:  # the API server learns of a webhook a moment after it was made
        cluster.api("POST", path, {"metadata": {"name": f"probe{next(numbers)}"}})
        return hook.asked != []

    cluster.wait(asked)
    with pytest.raises(KubernetesError, match="not here") as refused:
        cluster.api("POST", path, {"metadata": {"name": "bad", "labels": {"refuse": ""}}})
    assert refused.value.status == 403


def test_a_webhook_by_service_reaches_a_process_here(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    with serve_hook(tmp_path / "hook", cluster.host, f"hook.{namespace}.svc") as hook:
        cluster.add_service("hook", namespace, hook.port)
        configure_hook(cluster, namespace, hook, {"service": {"name": "hook", "namespace": namespace}})
        check_hook(cluster, namespace, hook)


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_a_webhook_by_url_reaches_a_process_here(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path, address: str
) -> None:
    with serve_hook(tmp_path / "hook", address or cluster.host) as hook:
        configure_hook(cluster, namespace, hook, {"url": f"https://{hook.address}:{hook.port}/"})
        check_hook(cluster, namespace, hook)


CHART = {
    "Chart.yaml": "apiVersion: v2\nname: trivial\nversion: 0.1.0\n",
    "values.yaml": "word: one\n",
    "templates/map.yaml": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-map}\ndata: {word: {{ .Values.word }}}\n"
    ),
}


def test_helm_installs_upgrades_and_removes_a_chart(cluster: KubernetesCluster, namespace: str, tmp_path: Path) -> None:
    for name, text in CHART.items():
        file = tmp_path / "trivial" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    chart = str(tmp_path / "trivial")
    cluster.helm("lint", chart)
    assert "STATUS: deployed" in cluster.helm("install", "first", chart, "-n", namespace, "--wait")
    assert cluster.get("configmap", "first-map", namespace)["data"] == {"word": "one"}
    cluster.helm("upgrade", "first", chart, "-n", namespace, "--set", "word=two")
    assert cluster.get("configmap", "first-map", namespace)["data"] == {"word": "two"}
    cluster.helm("uninstall", "first", "-n", namespace)
    assert cluster.find("configmap", "first-map", namespace) is None


# -- with a node -----------------------------------------------------------------------------------------------------


def test_a_pod_runs_and_its_words_and_exit_code_are_there(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.apply(pod("talks", namespace, "sh", "-c", "echo out; echo err >&2; exit 7"))
    code, words = finish(node_cluster, "talks", namespace)
    assert code == 7
    assert sorted(words.split()) == ["err", "out"]  # two pipes


def test_a_command_runs_in_a_pod(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.apply(pod("stays", namespace, "sleep", "1000"))
    node_cluster.wait_pod("stays", namespace, "Ready")
    assert node_cluster.exec("stays", namespace, "hostname") == "stays\n"
    failed = node_cluster.run_kubectl("exec", "stays", "-n", namespace, "--", "sh", "-c", "exit 5")
    assert failed.returncode == 5
    fed = node_cluster.kubectl("exec", "-i", "stays", "-n", namespace, "--", "tr", "a-z", "A-Z", input="words")
    assert fed == "WORDS"


@pytest.fixture
def server(node_cluster: KubernetesCluster, namespace: str) -> str:
    """A Pod that answers on 8080 under a Service ``web`` on 80 and a headless one, ``head``; its address."""
    serve = "mkdir /w; hostname > /w/index.html; exec httpd -f -p 8080 -h /w"
    ready = {"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", serve], **ready}
    spec: Obj = {"containers": [container], "hostname": "one", "subdomain": "head"}
    node_cluster.apply(pod("served", namespace, labels={"app": "web"}, **spec))
    for name, more in (("web", {}), ("head", {"clusterIP": "None"})):
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}], **more}
        metadata = {"name": name, "namespace": namespace}
        node_cluster.apply(json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}))
    return str(node_cluster.wait_pod("served", namespace, "Ready")["status"]["podIP"])


def fetch(url: str) -> str:
    """What a process of this machine gets, without a proxy on the way."""
    with build_opener(ProxyHandler({})).open(url, timeout=patient(5)) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("where", ["pod", "host network", "this machine"])
def test_a_service_is_reached_from(node_cluster: KubernetesCluster, namespace: str, server: str, where: str) -> None:
    service = node_cluster.get("service", "web", namespace)["spec"]["clusterIP"]
    if where == "this machine":
        node_cluster.wait(lambda: fetch_or_nothing(f"http://{service}/") == "one\n")
        assert fetch(f"http://{server}:8080/") == "one\n"  # the Pod itself
        return
    more: Obj = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if where == "host network" else {}
    loop = 'for i in 1 2 3 4 5 6 7 8 9 10; do wget -q -O- "$0" && exit; sleep 0.3; done; exit 1'
    names = ("web", f"web.{namespace}.svc.cluster.local", f"head.{namespace}:8080", f"one.head.{namespace}.svc:8080")
    for number, name in enumerate(names):
        node_cluster.apply(pod(f"asks{number}", namespace, "sh", "-c", loop, f"http://{name}/", **more))
    for number, _ in enumerate(names):
        assert finish(node_cluster, f"asks{number}", namespace) == (0, "one\n")


def fetch_or_nothing(url: str) -> str:
    try:
        return fetch(url)
    except OSError:  # kube-proxy is a moment behind
        return ""


ASK_API = """
import json, os, ssl, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=place + "ca.crt")
print(os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
for host in (os.environ["KUBERNETES_SERVICE_HOST"], "kubernetes.default.svc"):
    url = f"https://{host}:443/api/v1/namespaces/" + open(place + "namespace").read() + "/configmaps"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(place + "token").read()})
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        print(json.load(answer)["kind"])
"""


def test_a_pod_asks_the_api_server_with_its_own_token(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.import_image(images.mpi())
    account = f"--serviceaccount={namespace}:default"
    node_cluster.kubectl("create", "rolebinding", "see", "--clusterrole=view", account, "-n", namespace)
    node_cluster.apply(pod("asks", namespace, "python3", "-c", ASK_API, image=images.mpi().name))
    address = node_cluster.network.api_service
    assert finish(node_cluster, "asks", namespace) == (0, f"{address} 443\nConfigMapList\nConfigMapList\n")


def test_a_pod_of_the_host_network_has_the_nodes_address(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.apply(pod("host", namespace, "sh", "-c", "ip -4 -o address show eth0; hostname", hostNetwork=True))
    code, words = finish(node_cluster, "host", namespace)
    assert code == 0
    assert node_cluster.nodes[0].address in words
    assert words.endswith("node1\n")


def test_a_name_that_is_not_of_the_cluster_does_not_exist(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.apply(pod("asks", namespace, "nslookup", "elsewhere.invalid"))
    code, words = finish(node_cluster, "asks", namespace)
    assert code == 1
    assert "NXDOMAIN" in words


def test_a_service_without_a_selector_leads_pods_to_a_process_here(
    node_cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    with serve_hook(tmp_path / "hook", node_cluster.host, f"hook.{namespace}.svc") as hook:
        node_cluster.add_service("hook", namespace, hook.port)
        loop = "for i in 1 2 3 4 5 6 7 8 9 10; do nc -w 1 hook 443 < /dev/null && exit; sleep 0.3; done; exit 1"
        node_cluster.apply(pod("asks", namespace, "sh", "-c", loop))
        assert finish(node_cluster, "asks", namespace)[0] == 0


def test_mpirun_starts_processes_in_a_pod(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.import_image(images.mpi())
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "hostname"]
    node_cluster.apply(pod("mpi", namespace, *words, image=images.mpi().name))
    assert finish(node_cluster, "mpi", namespace) == (0, "mpi\nmpi\n")


def test_our_own_images_have_this_project_and_a_kubectl(node_cluster: KubernetesCluster, namespace: str) -> None:
    node_cluster.import_image(images.moorings(), images.launcher())
    script = "import moorings.app.controller, sys; sys.stdout.write(moorings.__file__)"
    node_cluster.apply(pod("ours", namespace, "python3", "-c", script, image=images.moorings().name))
    shell = "moor --version && kubectl version --client --output=json"
    node_cluster.apply(pod("launcher", namespace, "sh", "-c", shell, image=images.launcher().name))
    assert finish(node_cluster, "ours", namespace) == (0, "/opt/moorings/moorings/__init__.py")
    code, words = finish(node_cluster, "launcher", namespace)
    assert code == 0
    assert words.startswith("moor ")
    assert '"gitVersion": "v1.' in words
