"""Records what operator and proxy of a release leave on a cluster, on a real API server::

    python -m tests.released.kube_record

Jobs are brought into every state in which they may rest, the operator is killed, and all that the next one will see of
them is written down. What is said between operator and proxy is written down where the proxy takes it and gives it.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import KubernetesCluster, Obj, new_folder
from tests.kubernetes.site import CLUSTER, JOBS, OPERATOR, Site, ipu_site
from tests.released.kube_states import KUBE, decide
from tests.released.slurm_record import write

LAUNCHER = {"command": ["mpirun", "train"]}
PREEMPTIBLE = {"graphcore.ai/preemptible": "true"}
SIZE = 64
# Written by API servers for themselves; what it says is of nobody's concern.
_OF_SERVERS = ("managedFields",)
_TAPPED = """
import json, sys
from moorings.app import kubernetes_proxy
from moorings.kubernetes.proxy.routes import ProxyRoutes
serve = ProxyRoutes.__call__
async def heard(self, scope, receive, send):
    asked, said, status = bytearray(), bytearray(), []
    async def take():
        message = await receive()
        asked.extend(message.get("body", b""))
        return message
    async def give(message):
        status.append(message.get("status"))
        said.extend(message.get("body", b""))
        await send(message)
    try:
        await serve(self, scope, take, give)
    finally:
        if scope["path"].startswith(("/v1/", "/stats", "/query")):
            told = dict(method=scope["method"], path=scope["path"], query=scope["query_string"].decode(),
                        asked=asked.decode(), status=status[0] if status else None, said=said.decode())
            with open("{file}", "a") as file:
                file.write(json.dumps(told) + chr(10))
ProxyRoutes.__call__ = heard
raise SystemExit(kubernetes_proxy.main())
"""


def _tapped(site: Site, file: Path) -> None:
    """Have the proxy write down what it is asked and what it answers."""
    start = site._start

    def started(name: str, words: list[str]) -> subprocess.Popen[bytes]:
        if name == "proxy":
            at = words.index("moorings.app.kubernetes_proxy")
            words = [*words[: at - 1], "-c", _TAPPED.replace("{file}", str(file)), *words[at + 1 :]]
        return start(name, words)

    site._start = started  # type: ignore[method-assign]


def _bind(site: Site, namespace: str, pod: str, node: str) -> None:
    """Put a Pod on a node, as a scheduler would."""
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    site.cluster.api("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body)


def _plain(found: Obj) -> Obj:
    """An object without what only API servers write for themselves."""
    meta = {name: value for name, value in found["metadata"].items() if name not in _OF_SERVERS}
    return {**found, "metadata": meta}


def _fail(site: Site, namespace: str, pod: str, code: int) -> None:
    uid = site.job_pods(namespace, pod.rpartition("-worker-")[0])[pod]["metadata"]["uid"]
    site.end_pod(namespace, pod, code)
    job = pod.rpartition("-worker-")[0]

    def counted() -> bool:
        found = site.job_pods(namespace, job).get(pod)
        return found is None or found["metadata"]["uid"] != uid

    site.cluster.wait(counted, 60)


def make_states(site: Site, home: str, lab: str) -> dict[str, tuple[str, str]]:
    """Jobs in all states, by a word for the state: namespace and name."""
    cluster = site.cluster
    project = {"shares": [{"pool": "pool1", "blocks": {"32": 1}}], "aliases": [f"kubernetes/{CLUSTER}/{lab}"]}
    assert site.pod.ask("PUT", "/v1/projects/lab", project)[0] in (200, 201)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"unschedulable": True}}
    cluster.api("POST", "/api/v1/nodes", node)

    site.submit(home, "serve", ipusPerJobInstance="2", workerPerJobInstance="2")
    site.submit(home, "train", ipusPerJobInstance="4", workerPerJobInstance="2", launcher=LAUNCHER)
    site.submit(home, "try", launcher={}, interactive={"ttl": 3600})
    site.submit(home, "begin", ipusPerJobInstance="2", launcher=LAUNCHER)
    site.submit(home, "lost", nodeLostSeconds=3000)
    site.submit(home, "going")
    site.submit(home, "scaled", ipusPerJobInstance="1")
    site.submit(home, "done")
    site.submit(home, "broken")
    site.submit(home, "again", restartPolicy={"type": "OnFailure", "backOffLimit": 9})
    site.submit(home, "rests", suspend=True)
    for job, pods in {
        "serve": ["serve-worker-0", "serve-worker-1"],
        "train": ["train-worker-0", "train-worker-1", "train-launcher"],
        "try": ["try-worker-0", "try-launcher"],
        "begin": ["begin-worker-0", "begin-launcher"],
        "lost": ["lost-worker-0"],
        "going": ["going-worker-0"],
        "scaled": ["scaled-worker-0"],
        "done": ["done-worker-0"],
        "broken": ["broken-worker-0"],
        "again": ["again-worker-0"],
    }.items():
        site.await_pods(home, job, *pods, timeout=120)
        if job in ("lost", "going"):
            _bind(site, home, pods[0], "n1")
        for pod in pods if job != "begin" else ():
            site.run_pod(home, pod)
        if job != "begin":
            site.await_state(home, job, "Running")
    site.run_pod(home, "begin-worker-0")
    site.end_pod(home, "done-worker-0", 0)
    site.end_pod(home, "broken-worker-0", 3)
    site.await_state(home, "done", "Completed")
    site.await_state(home, "broken", "Failed")
    site.await_state(home, "rests", "Suspended")

    site.submit(home, "lent", annotations=PREEMPTIBLE, ipusPerJobInstance="32")
    site.await_pods(home, "lent", "lent-worker-0")
    _bind(site, home, "lent-worker-0", "n1")
    site.run_pod(home, "lent-worker-0")
    site.await_state(home, "lent", "Running")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    poor = cluster.make_namespace("poor")
    cluster.api("POST", f"/api/v1/namespaces/{poor}/resourcequotas", quota)
    cluster.wait(lambda: cluster.get("resourcequota", "few", poor).get("status", {}).get("hard") == {"pods": "0"})
    site.submit(poor, "paused", workerPerJobInstance="2", ipusPerJobInstance="2")
    told = "without a partition for now"
    cluster.wait(lambda: told in site.status(poor, "paused").get("lastMessage", ""), 120)
    site.submit(home, "waits", ipusPerJobInstance=str(SIZE))
    site.await_state(home, "waits", "Pending")
    site.scale(home, "scaled", 64)
    site.await_state(home, "scaled", "Pending")
    site.scale(home, "scaled", 2)
    site.await_pods(home, "scaled", "scaled-worker-0", "scaled-worker-1", timeout=60)
    cluster.wait(lambda: "n1" in site.status(home, "lost").get("lastMessage", ""), 60)

    # It would end what was lent: its Pods are on a node that does not answer, so they stay.
    site.submit(lab, "own", ipusPerJobInstance="32")
    cluster.wait(lambda: "making room" in site.status(home, "lent").get("lastMessage", "") or _gone(site, home), 60)
    site.delete(home, "going")
    cluster.wait(lambda: "deleted" in site.status(home, "going").get("lastMessage", ""), 30)
    for _ in range(3):
        _fail(site, home, "again-worker-0", 5)
        site.await_pods(home, "again", "again-worker-0", timeout=60)
        site.run_pod(home, "again-worker-0")
        site.await_state(home, "again", "Running")
    site.end_pod(home, "again-worker-0", 5)
    site.await_state(home, "again", "Restarting")  # for 20 s
    return {
        "running-inference": (home, "serve"),
        "running-training": (home, "train"),
        "running-interactive": (home, "try"),
        "starting": (home, "begin"),
        "node-silent": (home, "lost"),
        "deleting": (home, "going"),
        "scaled": (home, "scaled"),
        "completed": (home, "done"),
        "failed": (home, "broken"),
        "restarting": (home, "again"),
        "suspended": (home, "rests"),
        "makes-room": (home, "lent"),
        "refused-pods": (poor, "paused"),
        "waiting": (home, "waits"),
        "waits-for-what-was-lent": (lab, "own"),
    }


def _gone(site: Site, home: str) -> bool:
    return not site.job_pods(home, "lent")


def capture(site: Site, states: dict[str, tuple[str, str]]) -> None:
    """Write all of it down."""
    cluster = site.cluster
    token = cluster.token(site.namespace, OPERATOR, "moorings-proxy")
    request = urllib.request.Request(f"{site.proxy_url}/v1/partitions", headers={"Authorization": f"Bearer {token}"})
    trust = ssl.create_default_context(cadata=site.proxy_ca())
    with urllib.request.urlopen(request, timeout=20, context=trust) as answer:
        partitions = json.loads(answer.read())["items"]
    now = time.time_ns() // 1000 // 1_000_000 * 1_000_000
    nodes = [_plain(one) for one in cluster.list("nodes")]
    for state, (namespace, name) in states.items():
        pods = [_plain(one) for one in site.job_pods(namespace, name).values()]
        recording: dict[str, Any] = {
            "now": now,
            "proxy_url": site._url(cluster.host),
            "proxy_ca": site.proxy_ca() if any("-launcher" in pod["metadata"]["name"] for pod in pods) else "",
            "builds": state.startswith("running-"),
            "job": _plain(cluster.api("GET", f"{JOBS}/namespaces/{namespace}/ipujobs/{name}")),
            "pods": pods,
            "nodes": nodes if state in ("node-silent", "deleting", "makes-room") else [],
            "partitions": [one for one in partitions if one["job"] == name and one["namespace"] == namespace],
        }
        recording["did"] = decide(recording)
        write(KUBE / f"{state}.json", recording)
        print(state, recording["did"]["acts"], recording["job"].get("status", {}).get("status"))
    home = states["running-training"][0]
    mine = {f"{kind}/train": [_plain(one) for one in cluster.list(kind, home)] for kind in ("configmaps", "roles")}
    mine |= {kind: [_plain(one) for one in cluster.list(kind, home)] for kind in ("rolebindings", "services")}
    mine |= {kind: [_plain(one) for one in cluster.list(kind, site.namespace)] for kind in ("configmaps", "leases")}
    write(KUBE.with_name("kubernetes_beside.json"), mine)


def said(file: Path) -> list[dict[str, Any]]:
    """What was asked and answered: of each kind of question, answer and state the first."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        one = json.loads(line)
        words = one["path"].split("/")
        kind: tuple[Any, ...] = (one["method"], words[2:3], words[7:8], one["status"])
        if one["path"].endswith("/watch"):
            changes = one["said"].split("\n\n")
            one["said"] = "\n\n".join(changes[:40])
        elif one["said"][:1] == "{":
            kind += (json.loads(one["said"]).get("state"),)
        found.setdefault(tuple(map(str, kind)), one)
    return list(found.values())


def main() -> None:
    """Write all of them."""
    policy = 'min_run = 0\nyield = "30m"\n'
    with (
        KubernetesCluster(new_folder()) as cluster,
        ipu_site(cluster, sizes=(SIZE,), start=False, policy=policy) as site,
    ):
        file = site.folder / "said.jsonl"
        _tapped(site, file)
        site.start_proxy()
        site.start_operator()
        states = make_states(site, cluster.make_namespace(), cluster.make_namespace("lab"))
        time.sleep(2.5)  # what is told of waiting jobs may be told a little later
        site.kill_operator()
        capture(site, states)
        site.ask_proxy("/stats")
        assert site.proxy is not None
        site.proxy.terminate()  # watches end, and are written down
        site.proxy.wait(30)
        write(KUBE.with_name("kubernetes_said.json"), said(file))


if __name__ == "__main__":
    main()
