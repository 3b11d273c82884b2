"""The chart on a real cluster with a node, as the manual has it: installed, used, changed, upgraded, taken away.

Each test is a story of its own on one installation, which is put back for the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from moorings import __version__
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.kubernetes.release import FULL, SIZE, TRACKER, Release, idle_workers, released
from tests.waiting import patient, until

# The first one makes the images, where the cache has none. Webhooks are reached by their Services (test_webhooks.py).
pytestmark = [pytest.mark.timeout(600), pytest.mark.whole]

FINALIZER = "ipu.finalizers.graphcore.ai"
TAKEN_S = 60.0  # an edited list of controllers is taken so soon
SERVICE = f"{FULL}-vipu-proxy"
METRICS = f"https://{FULL}-controller-manager:8443/metrics"

# What a rank sees, and the sum that all of them make by MPI: big enough to be sent piece by piece.
RANK = """\
import ctypes, json, os, socket
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
count, rank = 1 << 20, ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_rank(handle("ompi_mpi_comm_world"), ctypes.byref(rank))
mine, total = (ctypes.c_int * count)(*[rank.value + 1] * count), (ctypes.c_int * count)()
mpi.MPI_Allreduce(mine, total, count, handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), handle("ompi_mpi_comm_world"))
print(json.dumps({
    "rank": rank.value,
    "sums": sorted(set(total)),
    "host": socket.gethostname(),
    "partition": os.environ["IPUOF_VIPU_API_PARTITION_ID"],
    "gcd": os.environ["IPUOF_VIPU_API_GCD_ID"],
}), flush=True)
mpi.MPI_Finalize()
"""
# As Prometheus asks: status and text.
SCRAPE = """\
import ssl, sys, urllib.error, urllib.request
token = open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()
headers = {"Authorization": "Bearer " + token} if sys.argv[2] == "token" else {}
trust = ssl._create_unverified_context()
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers), context=trust)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
print(answer.read().decode())
"""
# One request to the proxy, by the authority that it tells (argv 2): status and text.
FETCH = """\
import ssl, sys, urllib.error, urllib.request
body = sys.argv[3].encode() if len(sys.argv) > 3 else None
asked = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
try:
    answer = urllib.request.urlopen(asked, context=ssl.create_default_context(cadata=sys.argv[2]))
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
print(answer.read().decode(), end="")
"""


@pytest.fixture(scope="module")
def installed(_plain_node_cluster: KubernetesCluster) -> Iterator[Release]:
    with released(_plain_node_cluster) as release:
        release.install()
        release.await_ready()
        yield release
    _plain_node_cluster.settle()


@pytest.fixture
def gc(installed: Release) -> Iterator[Release]:
    """The installation, as it was made, with a namespace for a test's jobs; nothing holds IPUs before and after."""
    installed.restore()
    installed.home = installed.cluster.make_namespace("jobs")
    yield installed
    installed.restore()
    words = ("delete", "ipujobs", "--all", "-n", installed.home, f"--timeout={patient(60):.0f}s")
    done = installed.cluster.run_kubectl(*words, timeout=70)
    assert done.returncode == 0, f"{done.stderr}{installed.cluster.list('ipujobs', installed.home)}\n{installed.told()}"
    installed.await_empty()


def rows(text: str) -> list[list[str]]:
    """A table of kubectl's or helm's, by line and column, without its head."""
    return [re.split(r" *\t *|  +", line.strip()) for line in text.splitlines()[1:]]


def run_pod(gc: Release, name: str, image: str, **spec: Any) -> None:
    """A Pod in the operator's namespace that idles."""
    command = ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"]
    containers = [{"name": "main", "image": image, "command": command}]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": gc.namespace}}
    gc.cluster.apply(json.dumps(body | {"spec": {"containers": containers, **spec}}))
    gc.cluster.wait_pod(name, gc.namespace, "Ready")


def test_what_is_installed_looks_as_in_the_manual(gc: Release) -> None:
    kubectl = gc.cluster.kubectl
    pods = {
        re.sub(r"-[0-9a-f]+-[a-z0-9]{5}$", "", row[0]): row[1:4]
        for row in rows(kubectl("get", "pods", "-n", gc.namespace))
    }
    assert pods == {f"{FULL}-controller-manager": ["2/2", "Running", "0"], SERVICE: ["1/1", "Running", "0"]}
    assert "ipujobs.graphcore.ai" in [row[0] for row in rows(kubectl("get", "crd"))]
    (line,) = rows(gc.cluster.helm("ls", "-n", gc.namespace))
    assert (line[0], line[1], *line[4:]) == ("gc", gc.namespace, "deployed", f"ipu-operator-{__version__}", __version__)
    assert gc.cluster.get("service", SERVICE, gc.namespace)["spec"]["type"] == "ClusterIP"
    assert gc.cluster.find("configmap", TRACKER, gc.namespace)
    assert rows(kubectl("get", "jobs", "-n", gc.namespace)) == [], "the hooks' Jobs have gone"
    assert gc.cluster.run_helm("lint", str(gc.chart)).returncode == 0
    for pod in gc.parts():
        assert all(one["restartCount"] == 0 for one in pod["status"]["containerStatuses"])


def test_a_training_job_through_all_of_it(gc: Release) -> None:
    """On the node's network, with privileges and what the webhooks add: all as the chart has it by itself."""
    cluster = gc.cluster
    cluster.kubectl("create", "configmap", "program", "-n", gc.home, f"--from-literal=rank.py={RANK}")
    container = {
        "name": "train",
        "image": images.mpi().name,
        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
    }
    volumes = [{"name": "program", "configMap": {"name": "program"}}]
    template = {"spec": {"containers": [container], "volumes": volumes}}
    words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "2", "python3", "/program/rank.py"]
    spec: Obj = {"launcher": {"command": words}, "workers": {"replicas": 2, "template": template}}

    done = gc.apply("x" * 37, **spec, ipusPerJobInstance=4)
    assert done.returncode == 1
    assert "is invalid: metadata.name: has 37 characters; at most 36 are allowed" in done.stderr
    done = gc.apply("two", **spec, workerPerJobInstance="3")
    assert done.returncode == 1
    assert "workerPerJobInstance" in done.stderr

    done = gc.apply("two", **spec, ipusPerJobInstance=4)
    assert done.stdout.strip() == "ipujob.graphcore.ai/two created", done.stderr
    found = gc.job(gc.home, "two")["spec"]
    assert (found["jobInstances"], found["cleanPodPolicy"], found["releaseOnFinish"]) == (1, "None", True)
    assert found["restartPolicy"] == {"type": "Never", "backOffLimit": 3}

    pods = gc.await_pods(gc.home, "two", "two-launcher", "two-worker-0", "two-worker-1")
    for pod in pods.values():
        assert pod["spec"]["hostNetwork"] is True
        assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert pod["spec"]["containers"][0]["securityContext"] == {"privileged": True}
        assert pod["spec"]["nodeSelector"] == {"ipunode": "pod1"}
    gc.await_state(gc.home, "two", "Completed", 90)
    told = [json.loads(line) for line in cluster.logs("two-launcher", gc.home).splitlines() if line.startswith("{")]
    ranks = sorted(told, key=lambda one: int(one["rank"]))
    assert [(one["rank"], one["gcd"], one["sums"], one["host"]) for one in ranks] == [
        (0, "0", [3], "node1"),  # both on one node's network, and yet Open MPI takes them for two hosts
        (1, "1", [3], "node1"),
    ]
    assert len({one["partition"] for one in ranks}) == 1
    gc.await_empty()
    init = cluster.logs("two-launcher", gc.home, "-c", "moorings-launcher-init").splitlines()
    assert init[-2:] == ["2 of 2 workers are Ready", "the partition is READY"]


def test_statistics_and_metrics_from_inside_a_pod(gc: Release) -> None:
    cluster = gc.cluster
    gc.start_job("four", ipus=4)
    cluster.kubectl("create", "serviceaccount", "prometheus", "-n", gc.namespace)
    run_pod(gc, "prometheus", images.mpi().name, serviceAccountName="prometheus")
    authority = cluster.get("configmap", f"{SERVICE}-ca", gc.namespace)["data"]["ca.crt"]

    def fetch(url: str, *body: str) -> str:
        return cluster.exec("prometheus", gc.namespace, "python3", "-c", FETCH, url, authority, *body)

    def query(size: int) -> str:
        return fetch(f"https://{SERVICE}/query", json.dumps({"size": size}))

    expected = f'200\n{{"{gc.home}":{{"used":4,"available":12}},"total":{{"used":4,"available":12}}}}'
    until(lambda: fetch(f"https://{SERVICE}/stats") == expected, 10, what=lambda: fetch(f"https://{SERVICE}/stats"))
    assert query(2) == '200\n{"available":true,"numOfPartitions":6,"message":""}'
    assert query(64) == '200\n{"available":true,"numOfPartitions":0,"message":""}'
    assert fetch(f"http://{SERVICE}/stats").startswith("421\n")

    def scrape(how: str = "token") -> tuple[int, str]:
        told = cluster.exec("prometheus", gc.namespace, "python3", "-c", SCRAPE, METRICS, how)
        status, _, text = told.partition("\n")
        return int(status), text

    assert scrape("nobody")[0] == 401
    status, text = scrape()
    assert status == 403
    role = rows(cluster.kubectl("get", "clusterrole", "-l", "component=metrics-reader"))[0][0]
    assert role == "gc-metrics-reader"
    assert role not in text
    account = f"--serviceaccount={gc.namespace}:prometheus"
    cluster.kubectl("create", "clusterrolebinding", "metrics", f"--clusterrole={role}", account)
    try:
        text = until(lambda: dict([scrape()]).get(200), 30, what=lambda: str(scrape()))
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "metrics")
    assert re.search(r"^moorings_\S*partitions\S* \d", text, re.MULTILINE), text
    assert gc.home in text
    cluster.kubectl("delete", "pod", "prometheus", "-n", gc.namespace, "--grace-period=1")


def test_a_controller_that_is_added_by_an_edit_is_used(gc: Release) -> None:
    cluster = gc.cluster
    gc.start_job("first", ipus=SIZE)
    done = gc.apply("second", ipusPerJobInstance=str(SIZE), workers=idle_workers())
    assert done.returncode == 0, done.stderr
    words = f"waiting for a partition of {SIZE} IPUs"
    cluster.wait(lambda: str(gc.status(gc.home, "second").get("lastMessage")).startswith(words))
    assert not gc.pods[1].partitions()

    gc.edit_controllers(gc.entry(0), gc.entry(1))
    until(gc.pods[1].partitions, TAKEN_S, what=gc.told)
    (pod,) = gc.await_pods(gc.home, "second", "second-worker-0").values()
    assert pod["spec"]["nodeSelector"] == {"ipunode2": "pod2"}
    assert pod["status"]["phase"] == "Pending", "no node has the label"
    cluster.kubectl("label", "nodes", "--all", "ipunode2=pod2")
    gc.await_state(gc.home, "second", "Running")
    (one,) = gc.pods[1].partitions()
    assert one["owner"].startswith(f"kubernetes/kubernetes/{gc.home}/second/")
    gc.delete(gc.home, "second")
    cluster.wait(lambda: gc.is_gone(gc.home, "second"))
    until(lambda: not gc.pods[1].partitions(), 30)
    gc.restore()
    kept = cluster.get("configmap", f"{FULL}-vipu-controllers", gc.namespace)["data"]["vipu-controllers"]
    assert kept == gc.entry(0), "an upgrade takes what the values say, as README.md has it"


def test_upgrade_uninstall_and_install_with_jobs_running(gc: Release) -> None:
    cluster = gc.cluster
    kept, doomed = gc.start_job("kept", ipus=2), gc.start_job("doomed", ipus=4)
    partitions = gc.partition_ids()
    before = {pod["metadata"]["uid"] for pod in gc.parts()}

    def untouched() -> None:
        assert gc.uids("kept") == kept
        assert gc.status(gc.home, "kept")["status"] == "Running"
        assert gc.status(gc.home, "kept")["restartCount"] == 0
        assert gc.partition_ids() == partitions

    gc.upgrade({"controller.workers": "8", "vipuProxy.logLevel": "5"})
    assert not before & {pod["metadata"]["uid"] for pod in gc.parts()}, "both have begun anew"
    untouched()
    assert gc.uids("doomed") == doomed

    assert "uninstalled" in gc.uninstall()
    cluster.wait(lambda: not gc.parts())
    untouched()
    assert gc.uids("doomed") == doomed
    assert "finalizers" not in gc.job(gc.home, "kept")["metadata"]
    tracker = cluster.get("configmap", TRACKER, gc.namespace)["data"]["partitions"]
    assert f"{gc.home}/kept" in tracker
    left = cluster.kubectl(
        "get", "all,configmap,secret,lease,role,rolebinding,serviceaccount", "-n", gc.namespace, "-o", "name"
    )
    assert [name for name in left.split() if "gc-" in name and not name.startswith("pod/")] == []
    everywhere = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingwebhookconfiguration"
    assert [name for name in cluster.kubectl("get", everywhere, "-o", "name").split() if "/gc-" in name] == []
    cluster.kubectl("delete", "ipujob", "doomed", "-n", gc.home, f"--timeout={patient(20):.0f}s")
    cluster.wait(lambda: not gc.job_pods(gc.home, "doomed"))
    assert gc.partition_ids() == partitions, "who would give it back"

    assert "WARNING: this cluster does not know IPUJobs" not in gc.install()
    gc.await_ready()
    until(lambda: len(gc.partition_ids()) == 1, 60, what=gc.told)
    (partition,) = gc.pods[0].partitions()
    assert f"/{gc.home}/kept/" in partition["owner"]
    partitions = [partition["id"]]
    untouched()
    cluster.wait(lambda: gc.job(gc.home, "kept")["metadata"].get("finalizers") == [FINALIZER])
    gc.start_job("after")


def test_a_second_installation_is_refused_and_harms_nobody(gc: Release) -> None:
    cluster = gc.cluster
    elsewhere = cluster.make_namespace("other")
    everything = ("get", "mutatingwebhookconfiguration,validatingwebhookconfiguration,clusterrole", "-o", "name")
    before = cluster.kubectl(*everything)
    for name, namespace in (("other", elsewhere), ("other", gc.namespace), ("gc", elsewhere)):
        words = ("install", name, str(gc.chart), "-n", namespace, "--set", "admissionWebhooks.patch.enabled=false")
        done = cluster.run_helm(*words)
        if done.returncode == 0:
            cluster.helm("uninstall", name, "-n", namespace, "--no-hooks")
        assert done.returncode == 1, f"{name} in {namespace}: {done.stdout}"
        assert "this cluster has an operator for IPUJobs already" in done.stderr
        assert f"{FULL}-webhook belongs to release gc in namespace {gc.namespace}. Upgrade that one" in done.stderr
    assert rows(cluster.helm("ls", "-A", "--all")) == rows(cluster.helm("ls", "-n", gc.namespace)), "nothing is left"
    assert cluster.kubectl(*everything) == before
    gc.start_job("goes-on")

    gc.upgrade({"vipuProxy.logLevel": "3"})
    gc.start_job("upgraded")
    gc.uninstall()
    cluster.wait(lambda: not gc.parts())
    gc.install()
    gc.await_ready()
    gc.start_job("again")


def test_two_controllers_when_the_certificate_and_the_leader_go(gc: Release) -> None:
    cluster = gc.cluster
    gc.upgrade({"controller.replicas": "2", "controller.hostNetwork": "false"})
    names = lambda: {pod["metadata"]["name"] for pod in gc.parts("controller-manager")}  # noqa: E731
    leader = cluster.wait(lambda: gc.leader() if gc.leader() in names() else None, what=gc.told)
    secret = f"{FULL}-webhook-certificate"
    was = cluster.get("secret", secret, gc.namespace)["data"]
    cluster.kubectl("delete", "secret", secret, "-n", gc.namespace)
    cluster.kubectl("delete", "pod", leader, "-n", gc.namespace, "--wait=false")
    others = lambda: names() - {leader}  # noqa: E731  the one that stood by, or one that is new
    cluster.wait(lambda: gc.leader() in others(), what=gc.told)
    gc.start_job("made")  # through the webhooks too, whichever controller serves them

    found = cluster.wait(lambda: cluster.find("secret", secret, gc.namespace), 75, what=gc.told)
    assert found is not None
    assert found["data"]["key" if "key" in was else "tls.key"] != was["key" if "key" in was else "tls.key"]
    gc.await_ready(2)
    for number in range(6):
        assert gc.apply(f"x{number}" * 20).returncode == 1, "refused, so they are asked"
    gc.start_job("again")
