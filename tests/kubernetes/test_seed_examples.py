"""The examples that people copy, on a real node: real containers, a real ``mpirun``, and what kubectl shows of them.

The images are built here under the names that the examples have; what needs a registry or an NFS server is overridden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from moorings.kubernetes.ipujob import names
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.kubernetes.images import Image
from tests.kubernetes.site import EXAMPLES, Site, ipu_site, template

PROGRAM = "public_examples/applications/tensorflow/cnns/training/train.py"
# What a training program sees of its partition; each rank tells it in a line.
TRAIN = """\
import json, os, socket, sys, time
print(json.dumps({
    "rank": int(os.environ["OMPI_COMM_WORLD_RANK"]),
    "ranks": int(os.environ["OMPI_COMM_WORLD_SIZE"]),
    "pod": socket.gethostname(),
    "partition": os.environ["IPUOF_VIPU_API_PARTITION_ID"],
    "gcd": os.environ["IPUOF_VIPU_API_GCD_ID"],
    "log": os.environ.get("IPUOF_LOG_LEVEL", ""),
    "args": sys.argv[1:],
}), flush=True)
if "--iterations=20" in sys.argv:
    time.sleep(2)  # long enough to be seen
for path in sys.argv[1:]:
    if path.startswith("--write="):
        with open(path.removeprefix("--write="), "a") as file:
            file.write(socket.gethostname() + "\\n")
"""
HELLO_IMAGE = "docker.io/library/debian:12-slim"
INFERENCE_IMAGE = "artifactory-systems.eng.graphcore.ai/vipu-k8s-docker-dev-local/resnet-poplar-2.1:operator"


def _put_program(root: Path) -> None:
    file = root / PROGRAM
    file.parent.mkdir(parents=True)
    file.write_text(TRAIN)


@pytest.fixture(scope="module")
def resnet() -> Image:
    """An image as a user of the examples would have it: Open MPI, Python and the training program."""
    base = images.mpi()
    layer = images.make_layer("resnet", TRAIN, _put_program)
    return replace(base, name="docker.io/library/resnet:latest", layers=(*base.layers, layer))


@pytest.fixture
def site(node_cluster: KubernetesCluster, resnet: Image) -> Iterator[Site]:
    launcher = images.launcher()
    node_cluster.import_image(
        resnet, *(replace(resnet, name=name) for name in (INFERENCE_IMAGE, HELLO_IMAGE)), launcher
    )
    node_cluster.kubectl("label", "nodes", "--all", "--overwrite", "ipunode=pod1")
    flags = [f"--launcher-image={launcher.name}", "--launcher-image-pull-policy=IfNotPresent"]
    with ipu_site(node_cluster, flags=flags) as found:
        yield found


def example(name: str) -> list[Obj]:
    """The documents of an example, with what needs a registry changed."""
    text = (EXAMPLES / name).read_text().replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")
    found = list(yaml.safe_load_all(text))
    for one in found:
        if one["kind"] == "IPUJob":
            for container in one["spec"]["workers"]["template"]["spec"]["containers"]:
                container.setdefault("imagePullPolicy", "IfNotPresent")
    return found


def apply(site: Site, namespace: str, documents: list[Obj]) -> str:
    for one in documents:
        one["metadata"]["namespace"] = namespace
    return site.cluster.apply(yaml.safe_dump_all(documents))


def lines(site: Site, namespace: str, pod: str) -> list[Obj]:
    """What the ranks have told."""
    text = site.cluster.logs(pod, namespace, "-c", "resnet")
    return sorted((json.loads(line) for line in text.splitlines() if line.startswith("{")), key=lambda one: one["rank"])


@pytest.mark.smoke
def test_the_first_job_tells_how_its_partition_is_found_and_ends(site: Site, namespace: str) -> None:
    apply(site, namespace, example("hello.yaml"))
    site.await_state(namespace, "hello", "Running", 120)
    (partition,) = site.pod.partitions()
    site.await_state(namespace, "hello", "Completed", 120)
    found = dict(line.split("=", 1) for line in site.cluster.logs("hello-worker-0", namespace).splitlines())
    assert found["IPUOF_VIPU_API_GCD_ID"] == "0"
    assert found["IPUOF_VIPU_API_PARTITION_ID"] == partition["name"]
    assert {"IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT"} <= set(found)
    site.await_empty()


def test_the_training_sample(site: Site, namespace: str) -> None:
    told = apply(site, namespace, example("single-gcd-sample.yaml"))
    assert told.strip() == "ipujob.graphcore.ai/ipujob-sample created"
    pods = site.await_pods(namespace, "ipujob-sample", "ipujob-sample-launcher", "ipujob-sample-worker-0")
    assert all(pod["spec"]["restartPolicy"] == "Never" for pod in pods.values())
    status = site.await_state(namespace, "ipujob-sample", "Completed", 120)
    (one,) = lines(site, namespace, "ipujob-sample-launcher")
    assert (one["rank"], one["ranks"], one["pod"], one["gcd"]) == (0, 1, "ipujob-sample-worker-0", "0")
    assert one["args"][0] == "--dataset=cifar-10"
    assert one["log"] == "INFO"
    assert status["lastMessage"] == "All instances done"
    site.await_empty()
    described = site.cluster.kubectl("describe", "ipujobs.graphcore.ai", "ipujob-sample", "-n", namespace)
    for line in ("I PU Partition Created:", "Launcher Status:", "Start Time:", "Workers Status:", "Clean Pod Policy:"):
        assert line in described
    conditions = {one["type"]: one for one in status["conditions"]}
    assert conditions["Running"]["message"] == f"IPUJob {namespace}/ipujob-sample is running."
    assert conditions["Running"]["reason"] == "IPUJobRunning"


@pytest.mark.smoke
def test_mpirun_over_two_worker_pods(site: Site, namespace: str) -> None:
    """The launcher starts a process in each of two Pods, which see their own GCD of one partition and talk by MPI."""
    words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "2", "python3", f"/{PROGRAM}", "a b", "$HOME"]
    site.submit(
        namespace,
        "two",
        ipusPerJobInstance="4",
        workerPerJobInstance="2",
        launcher={"command": words},
        workers={"template": _resnet_template()},
    )
    site.await_state(namespace, "two", "Completed", 120)
    ranks = lines(site, namespace, "two-launcher")
    assert [(one["rank"], one["pod"], one["gcd"]) for one in ranks] == [
        (0, "two-worker-0", "0"),
        (1, "two-worker-1", "1"),
    ]
    assert len({one["partition"] for one in ranks}) == 1
    assert ranks[0]["args"] == ["a b", "$HOME"]


def _resnet_template() -> Obj:
    found = template("unused", image="resnet:latest")
    found["spec"]["containers"][0]["name"] = "resnet"
    return found


def test_the_exit_code_of_a_rank_decides_and_a_restart_gets_a_clean_partition(site: Site, namespace: str) -> None:
    words = ["mpirun", "--allow-run-as-root", "-np", "1", "sh", "-c", "echo here; exit 130"]
    site.submit(
        namespace,
        "again",
        launcher={"command": words},
        restartPolicy={"type": "ExitCode", "backOffLimit": 1},
        workers={"template": _resnet_template()},
    )
    status = site.await_state(namespace, "again", "Failed", 120)
    assert status["restartCount"] == 1
    assert "exit code 130" in status["lastMessage"]
    events = site.pod.ask("GET", "/v1/events?limit=1000")[1]["items"]
    assert [one["name"] for one in events].count("partition.reset") == 1
    site.await_empty()


def test_the_interactive_sample(site: Site, namespace: str) -> None:
    apply(site, namespace, example("interactive-job.yaml"))
    name = "interactive-sample-job"
    site.await_state(namespace, name, "Running", 120)
    words = ["mpirun", "--allow-run-as-root", "-np", "1", "python3", f"/{PROGRAM}"]
    told = site.cluster.exec(f"{name}-launcher", namespace, "bash", "-c", " ".join(words))
    assert json.loads(next(line for line in told.splitlines() if line.startswith("{")))["pod"] == f"{name}-worker-0"
    site.delete(namespace, name)
    site.cluster.wait(lambda: site.is_gone(namespace, name), 30)
    site.await_empty()


def test_an_interactive_session_ends_with_its_time(site: Site, namespace: str) -> None:
    site.submit(namespace, "short", interactive={"ttl": 1}, workers={"template": _resnet_template()})
    site.await_state(namespace, "short", "Completed", 120)
    site.await_empty()


@pytest.mark.smoke
def test_the_inference_sample_scaled_as_in_the_manual(site: Site, namespace: str) -> None:
    name = "job-inference-1"
    apply(site, namespace, example("inference.yaml"))
    site.await_state(namespace, name, "Running", 120)
    assert columns(site, namespace, name) == ["Running", "1", "1", "Successfully reconciled IPUJob"]
    told = site.cluster.kubectl("scale", "-n", namespace, f"ipujob.graphcore.ai/{name}", "--replicas", "2")
    assert told.strip() == f"ipujob.graphcore.ai/{name} scaled"
    for count in (2, 4, 1):
        site.scale(namespace, name, count)
        site.await_pods(namespace, name, *(f"{name}-worker-{number}" for number in range(count)), timeout=120)
        for number in range(count):
            site.cluster.wait_pod(f"{name}-worker-{number}", namespace)
        expected = ["Running", str(count), str(count), "Successfully reconciled IPUJob"]
        site.cluster.wait(partial(_shows, site, namespace, name, expected))
        site.cluster.wait(partial(_holds, site, count))
    uses = {pod["spec"]["containers"][0]["env"][-1]["value"] for pod in site.job_pods(namespace, name).values()}
    assert len(uses) == 1
    site.delete(namespace, name)
    site.await_empty()


def _shows(site: Site, namespace: str, name: str, expected: list[str]) -> bool:
    return columns(site, namespace, name) == expected


def _holds(site: Site, count: int) -> bool:
    return len(site.pod.partitions()) == count


def columns(site: Site, namespace: str, name: str) -> list[str]:
    """STATUS, CURRENT, DESIRED and LASTMESSAGE, as kubectl prints them."""
    text = site.cluster.kubectl("get", "ipujobs", "-n", namespace)
    head, row = (re.split(r" {2,}", line.strip()) for line in text.splitlines()[:2])
    assert head == ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
    assert row[0] == name
    return row[1:5]


def test_workers_and_launcher_share_the_volume_of_the_sample(site: Site, namespace: str, tmp_path: Path) -> None:
    documents = example("single-gcd-sample-nfs.yaml")
    volume, claim, job = documents
    del volume["spec"]["nfs"], volume["spec"]["mountOptions"]
    volume["metadata"]["name"] = f"shared-{namespace}"
    volume["spec"] |= {"hostPath": {"path": str(tmp_path)}, "storageClassName": ""}
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    job["spec"]["launcher"]["command"].append("--write=/mnt/sample/who")
    apply(site, namespace, documents)
    site.await_state(namespace, "ipujob-sample", "Completed", 120)
    assert (tmp_path / "who").read_text() == "ipujob-sample-worker-0\n"
    launcher = site.job_pods(namespace, "ipujob-sample")["ipujob-sample-launcher"]
    assert "/mnt/sample" in [one["mountPath"] for one in launcher["spec"]["containers"][0]["volumeMounts"]]


def test_a_launcher_may_do_nothing_but_what_it_must(site: Site, namespace: str) -> None:
    site.submit(namespace, "mine", interactive={"ttl": 300}, workers={"template": _resnet_template()})
    site.submit(namespace, "other", interactive={"ttl": 300}, workers={"template": _resnet_template()})
    site.await_state(namespace, "mine", "Running", 120)
    account = f"system:serviceaccount:{namespace}:mine-launcher"

    def may(*words: str) -> bool:
        return site.cluster.run_kubectl("auth", "can-i", *words, "-n", namespace, f"--as={account}").returncode == 0

    assert may("create", "pods/mine-worker-0", "--subresource=exec")
    assert may("get", "pods/mine-worker-0")
    for words in (
        ("create", "pods/other-worker-0", "--subresource=exec"),
        ("get", "pods/other-worker-0"),
        ("list", "pods"),
        ("create", "pods"),
        ("delete", "pods/mine-worker-0"),
        ("get", "secrets"),
        ("get", "configmaps"),
        ("patch", "ipujobs/mine"),
    ):
        assert not may(*words), words


def test_no_job_is_lost_when_the_proxy_begins_to_speak_tls(node_cluster: KubernetesCluster, namespace: str) -> None:
    """An upgrade from the release before: its launcher asks without TLS; the proxy is exchanged before the operator."""
    launcher, mpi = images.launcher(), images.mpi()
    node_cluster.import_image(mpi, launcher)
    node_cluster.kubectl("label", "nodes", "--all", "--overwrite", "ipunode=pod1")
    flags = [f"--launcher-image={launcher.name}", "--launcher-image-pull-policy=IfNotPresent"]
    with ipu_site(node_cluster, flags=flags, start=False) as site:
        site.tls = False
        site.start_proxy()
        site.start_operator()
        # A worker that has not begun keeps the launcher from asking before the proxy is another one. A readiness probe
        # does not do: once the launcher has asked the proxy of before.
        hold = {"name": "hold", "image": mpi.name, "command": ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.2; done"]}
        body = template(image=mpi.name, initContainers=[hold])
        site.submit(namespace, "train", launcher={"command": ["true"]}, workers={"template": body})
        before = site.await_pods(namespace, "train", "train-launcher", "train-worker-0")["train-launcher"]
        site.kill_proxy()
        site.tls = True
        site.start_proxy()
        let_go = ("exec", "train-worker-0", "-n", namespace, "-c", "hold", "--", "touch", "/tmp/go")
        site.cluster.wait(lambda: site.cluster.run_kubectl(*let_go).returncode == 0)

        def launcher_log() -> str:
            return site.cluster.logs("train-launcher", namespace, "-c", "moorings-launcher-init")

        site.cluster.wait(lambda: "over HTTPS alone" in launcher_log(), what=launcher_log)
        assert site.job(namespace, "train")["status"]["status"] != "Failed"
        site.stop_operator()
        site.start_operator()
        after = site.await_another(namespace, "train", "train-launcher", before["metadata"]["uid"])
        assert names.PROXY_CA in after["metadata"]["annotations"]

        def is_over() -> bool:
            if "train-worker-0" in site.job_pods(namespace, "train"):
                site.cluster.run_kubectl(*let_go)
            return bool(site.job(namespace, "train")["status"]["status"] == "Completed")

        site.cluster.wait(is_over, 60, what=lambda: site.log("operator")[-3000:])
        assert site.job(namespace, "train")["status"].get("restartCount", 0) == 0
        site.await_empty()
