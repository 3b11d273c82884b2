"""The chart as a site installs it: the packed chart by a real helm, and our own images, on a cluster with a node.

The controllers are processes of this machine; the proxy's Pod reaches them at the cluster's ``host``. What needs a
registry is overridden: where images are, and that they are not to be fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moorings import __version__
from scripts.dist import CHART_NAME, pack
from tests.debian import ROOT
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, Obj, new_folder
from tests.kubernetes.site import CHART, CRD, POOLS, Pod, Site, template
from tests.waiting import patient, until

NAME = "gc"
FULL = f"{NAME}-ipu-operator"
TRACKER = "ipu-partitions-tracker"
KEYS = "vipu-keys"
SIZE = 16  # IPUs of each controller
OWNERS = "kubernetes/kubernetes/"  # what the chart calls a cluster by itself
MAKE_S = 600.0
READY_S = 90.0
_ENV = dict(os.environ)  # as it was for whoever runs the tests: the cache is in their home


class Release(Site):
    """The release ``gc``, in a namespace of its own; ``home`` is another one, for a test's jobs."""

    def __init__(self, cluster: KubernetesCluster, folder: Path, pods: Sequence[Pod]) -> None:
        super().__init__(cluster, folder, pods)
        self.chart = folder / f"{CHART_NAME}-v{__version__}.tgz"
        self.home = ""
        self._installed = self._changed = False

    # -- helm --------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """What is there before an installation: definition, images, labels of nodes, access keys, the chart."""
        cluster = self.cluster
        cluster.kubectl("apply", "-f", str(CRD))
        cluster.wait(lambda: cluster.list("ipujobs.graphcore.ai") is not None)
        cluster.import_image(images.busybox(), images.mpi())
        archive = self.folder / "images.tar"
        words = [sys.executable, str(ROOT / "scripts" / "image.py"), str(archive)]
        subprocess.run(words, check=True, timeout=patient(MAKE_S), env=_ENV)
        for node in cluster.nodes:
            node.import_archive(archive)
        archive.unlink()
        self.chart.write_bytes(pack(CHART, "ipu-operator"))
        keys = []
        for pod in self.pods:
            key = {"subject": "ipu-operator", "role": "agent", "ownerPrefix": OWNERS.rstrip("/")}
            keys.append(f"--from-literal={cluster.host}_{pod.port}={pod.ask('POST', '/v1/keys', key)[1]['secret']}")
        cluster.kubectl("create", "secret", "generic", KEYS, "-n", self.namespace, *keys)
        cluster.kubectl("label", "nodes", "--all", "--overwrite", "ipunode=pod1", "ipunode2-")

    def install(self) -> str:
        """``helm install``; what it says."""
        self._installed, self._changed = True, False
        return self.cluster.helm("install", NAME, str(self.chart), "-n", self.namespace, *self._values({}))

    def upgrade(self, values: Mapping[str, str]) -> None:
        """``helm upgrade`` with other values, until all of the new Pods are ready."""
        self._changed = True
        words = ("upgrade", "--install", NAME, str(self.chart), "-n", self.namespace)
        self.cluster.helm(*words, *self._values(values))
        self.await_ready(int(values.get("controller.replicas", "1")))

    def uninstall(self) -> str:
        """``helm uninstall``; what it says."""
        self._installed, self._changed = False, True
        return self.cluster.helm("uninstall", NAME, "-n", self.namespace)

    def restore(self) -> None:
        """As after the first installation, whatever a test has done."""
        if self._changed:
            self.upgrade({})
            self._installed, self._changed = True, False

    def remove(self) -> None:
        """Leave nothing of it in the cluster."""
        if self._installed:
            self.uninstall()
        self.cluster.kubectl("label", "nodes", "--all", "ipunode2-")

    def _values(self, more: Mapping[str, str]) -> list[str]:
        """The seed's, and what needs a registry: ``--set`` with a comma takes it as it is behind a backslash."""
        values = {
            "global.vipuControllers": self.entry(0),
            "global.launcherImage": f"localhost:5000/launcher:{__version__}",
            "vipuProxy.accessKeysSecret": KEYS,
            "vipuProxy.image.pullPolicy": "IfNotPresent",
            "controller.image.pullPolicy": "IfNotPresent",
            **more,
        }
        return [word for name, value in values.items() for word in ("--set", f"{name}={value}".replace(",", "\\,"))]

    # -- what is installed -------------------------------------------------------------------------------------------

    def entry(self, number: int) -> str:
        """A controller, as the list has it."""
        label = "ipunode" if number == 0 else f"ipunode{number + 1}"  # the cluster has one node, for all of them
        return f"{self.cluster.host}:{self.pods[number].port}:{label}=pod{number + 1}"

    def edit_controllers(self, *entries: str) -> None:
        """As ``kubectl edit configmap`` does."""
        self._changed = True
        patch = json.dumps({"data": {"vipu-controllers": ",".join(entries)}})
        words = ("patch", "configmap", f"{FULL}-vipu-controllers", "-n", self.namespace, "--type=merge")
        self.cluster.kubectl(*words, f"--patch={patch}")

    def parts(self, component: str = "") -> list[Obj]:
        """The Pods of the release that are to stay or still run; of a component, if one is named.

        A kubelet takes most of a minute to clear away what has ended.
        """
        selector = f"app.kubernetes.io/instance={NAME}"
        selector += f",app.kubernetes.io/component={component}" if component else ""
        found = self.cluster.list("pods", self.namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"] or _is_running(pod)]

    def await_ready(self, controllers: int = 1) -> None:
        """Wait until the rollout is over: so many controllers and one proxy are ready, and nothing else is there."""
        for name, replicas in ((f"{FULL}-controller-manager", controllers), (f"{FULL}-vipu-proxy", 1)):
            words = ("rollout", "status", f"deployment/{name}", "-n", self.namespace)
            done = self.cluster.run_kubectl(*words, f"--timeout={patient(READY_S):.0f}s", timeout=READY_S + 10)
            assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.told()}"
            assert self.cluster.get("deployment", name, self.namespace)["status"].get("readyReplicas") == replicas
        count = controllers + 1
        self.cluster.wait(lambda: len(self.parts()) == count, READY_S, what=self.told)

    def leader(self) -> str:
        """The controller that leads: the name of its host, which is the Pod's own without its node's network."""
        lease = self.cluster.find("lease", f"{FULL}-controller-manager", self.namespace) or {}
        return str((lease.get("spec") or {}).get("holderIdentity") or "").partition("_")[0]

    def told(self) -> str:
        """What its Pods look like and have said lately."""
        words = ("logs", "-n", self.namespace, f"-lapp.kubernetes.io/instance={NAME}", "--all-containers", "--tail=20")
        listed = self.cluster.run_kubectl("get", "pods", "-A").stdout
        return f"{listed}{self.cluster.run_kubectl(*words).stdout}"

    def log(self, name: str) -> str:
        """What the operator's Pods have said; other parts have no log here."""
        return self.told() if name == "operator" else ""

    # -- jobs --------------------------------------------------------------------------------------------------------

    def apply(self, name: str, **spec: object) -> subprocess.CompletedProcess[str]:
        """``kubectl apply`` an IPUJob into ``home``."""
        body = {
            "apiVersion": "graphcore.ai/v1alpha1",
            "kind": "IPUJob",
            "metadata": {"name": name, "namespace": self.home},
            "spec": {"ipusPerJobInstance": "1", **spec},
        }
        return self.cluster.run_kubectl("apply", "-f", "-", input=json.dumps(body))

    def start_job(self, name: str, ipus: int = 1) -> dict[str, str]:
        """A job of one worker that runs until it is deleted; the uids of its Pods."""
        done = self.apply(name, ipusPerJobInstance=str(ipus), workers=idle_workers())
        assert done.returncode == 0, done.stderr
        self.await_state(self.home, name, "Running")
        return self.uids(name)

    def uids(self, name: str) -> dict[str, str]:
        """The uids of a job's running Pods, by name."""
        pods = self.job_pods(self.home, name)
        return {each: pod["metadata"]["uid"] for each, pod in pods.items() if pod["status"]["phase"] == "Running"}

    def partition_ids(self) -> list[str]:
        """All partitions that exist, of all controllers."""
        return sorted(one["id"] for pod in self.pods for one in pod.partitions())

    def await_empty(self, timeout: float = 60) -> None:
        """Wait until no controller has a partition or an unended claim."""

        def left() -> list[Obj]:
            path = f"/v1/claims?limit=1000&ownerPrefix={OWNERS}"
            return [one for pod in self.pods for one in (*pod.partitions(), *pod.ask("GET", path)[1]["items"])]

        until(lambda: not left(), timeout, what=lambda: str(left()))


def _is_running(pod: Obj) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses", ()))


def idle_workers() -> Obj:
    """One worker that idles until it is deleted."""
    return {"replicas": 1, "template": template(image=images.busybox().name)}


@contextmanager
def released(cluster: KubernetesCluster, controllers: int = 2) -> Iterator[Release]:
    """All that a release needs, with so many controllers; the release knows of the first. Not installed yet."""
    folder = new_folder()
    pods = []
    for number in range(1, controllers + 1):
        home = folder / f"pod{number}"
        home.mkdir()
        pool = POOLS.format(name=f"pool{number}", size=SIZE, slow_s=0.05)
        pods.append(Pod(home, pool, flags=("--host", "0.0.0.0", "--plain-http")))
    release = Release(cluster, folder, pods)
    try:
        for pod in pods:
            pod.start()
        release.prepare()
        yield release
        release.remove()
    finally:
        release.stop()
        shutil.rmtree(folder, ignore_errors=True)
