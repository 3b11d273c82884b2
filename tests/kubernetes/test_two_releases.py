"""While a cluster is upgraded, controller, proxy, operator and launchers are of two releases: jobs lose nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.kubernetes.site import Site, ipu_site
from tests.released.code import environment_of, released_code
from tests.waiting import patient

__all__ = ["released_code"]  # a fixture

LAUNCHER = {"command": ["mpirun", "hostname"]}
TRAINING = ("train-launcher", "train-worker-0", "train-worker-1")
SERVING = ("serve-worker-0",)


@contextmanager
def site_of(cluster: KubernetesCluster, code: Path, old: Sequence[str]) -> Iterator[Site]:
    """A site of which these parts are of the release."""
    with ipu_site(cluster, start=False, code=code if "controller" in old else None) as site:
        site.codes = dict.fromkeys(old, code)
        site.start_proxy()
        site.start_operator()
        yield site


def launch(site: Site, namespace: str, pod: Obj, code: Path | None) -> str:
    """Run a launcher's init container as a process of this machine; what it says."""
    cluster, folder = site.cluster, site.folder / f"launcher-{pod['metadata']['uid']}"
    folder.mkdir()
    account = pod["spec"]["serviceAccountName"]
    bound = {"apiVersion": "v1", "kind": "Pod", **{key: pod["metadata"][key] for key in ("name", "uid")}}
    asked = {"spec": {"audiences": ["moorings-proxy"], "expirationSeconds": 3600, "boundObjectRef": bound}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    (folder / "ca.crt").write_bytes(cluster.ca_file.read_bytes())
    (folder / "token").write_text(cluster.token(namespace, account))
    (folder / "proxy-token").write_text(cluster.api("POST", path, asked)["status"]["token"])
    (folder / "proxy-ca.crt").write_text(pod["metadata"]["annotations"]["graphcore.ai/proxy-ca"])
    (folder / "kubectl").write_text("")
    (init,) = pod["spec"]["initContainers"]
    host, _, port = cluster.url.removeprefix("https://").rpartition(":")
    environment = {
        **environment_of(code),
        "KUBERNETES_SERVICE_HOST": host.strip("[]"),
        "KUBERNETES_SERVICE_PORT": port,
        **{one["name"]: one["value"] for one in init["env"]},
        "MOORINGS_PROXY_TOKEN_FILE": str(folder / "proxy-token"),
        "MOORINGS_PROXY_CA_FILE": str(folder / "proxy-ca.crt"),
    }
    words = [sys.executable, *init["command"][1:3], "--into", folder / "bin", "--kubectl", folder / "kubectl"]
    done = subprocess.run(
        [*words, "--account", folder], env=environment, capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def begin(site: Site, namespace: str) -> None:
    """A training job and an inference job run."""
    site.submit(namespace, "train", ipusPerJobInstance="4", workerPerJobInstance="2", launcher=LAUNCHER)
    site.submit(namespace, "serve", ipusPerJobInstance="8")
    for name, pods in (("train", TRAINING), ("serve", SERVING)):
        found = site.await_pods(namespace, name, *pods, timeout=60)
        for pod in sorted(pods, reverse=True):  # workers before their launcher
            if pod == "train-launcher":
                told = launch(site, namespace, found[pod], site.codes.get("launcher"))
                assert "the partition is READY" in told
            site.run_pod(namespace, pod)
        site.await_state(namespace, name, "Running")
    assert sorted(one["size"] for one in site.pod.partitions()) == [4, 8]


def end(site: Site, namespace: str) -> None:
    """Both of them end, and nothing is left of them."""
    site.end_pod(namespace, "train-launcher", 0)
    site.await_state(namespace, "train", "Completed")
    for name in ("serve", "train"):
        site.delete(namespace, name)
        site.cluster.wait(lambda: site.is_gone(namespace, name))  # noqa: B023 - used before it changes
    site.await_empty()
    assert [claim["state"] for claim in site.pod.claims(every=True)] == ["RELEASED", "RELEASED"]


@pytest.mark.parametrize(
    "old",
    [
        pytest.param(("controller", "operator", "launcher"), id="new proxy between old ones", marks=pytest.mark.smoke),
        pytest.param(("proxy",), id="old proxy between new ones"),
        pytest.param(("operator", "proxy", "launcher"), id="new controller"),
    ],
)
def test_jobs_begin_and_end_with_parts_of_two_releases(
    cluster: KubernetesCluster, namespace: str, released_code: Path, old: Sequence[str]
) -> None:
    with site_of(cluster, released_code, old) as site:
        begin(site, namespace)
        end(site, namespace)


def test_parts_exchanged_while_jobs_run_keep_partitions_and_pods(
    cluster: KubernetesCluster, namespace: str, released_code: Path
) -> None:
    with site_of(cluster, released_code, ("controller", "proxy", "operator", "launcher")) as site:
        begin(site, namespace)
        authority = site.proxy_ca()

        def there() -> tuple[object, ...]:
            found = {**site.job_pods(namespace, "train"), **site.job_pods(namespace, "serve")}
            pods = {pod["metadata"]["uid"] for pod in found.values()}
            return pods, sorted(one["id"] for one in site.pod.partitions()), site.proxy_ca()

        before = there()
        assert site.pod.stop() == 0
        site.pod.code = None
        site.pod.start()
        site.kill_proxy()
        site.codes.pop("proxy")
        site.start_proxy()
        site.stop_operator()
        site.codes.pop("operator")
        site.start_operator()
        # It has looked at all jobs once it does what is asked of another one.
        site.submit(namespace, "next", ipusPerJobInstance="4")
        site.await_pods(namespace, "next", "next-worker-0", timeout=60)
        site.delete(namespace, "next")
        site.cluster.wait(lambda: site.is_gone(namespace, "next"))
        site.cluster.wait(lambda: len(site.pod.partitions()) == 2)
        assert there() == before
        assert site.proxy_ca() == authority
        assert {site.status(namespace, name)["status"] for name in ("train", "serve")} == {"Running"}
        site.end_pod(namespace, "train-launcher", 0)
        site.await_state(namespace, "train", "Completed")
        for name in ("serve", "train"):
            site.delete(namespace, name)
        site.await_empty()
