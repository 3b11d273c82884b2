"""What must hold whatever happens: a partition outlives the programs on it, a job has one at most, nothing is left.

``Watcher`` looks all the time and tells what it saw broken. It accuses nobody by mistake: it believes only what it saw
both before and after what contradicts it.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes.cluster import KubernetesError, Obj
from tests.kubernetes.site import JOBS, Site

LOOK_S = 0.1
_NOBODY = (OSError, http.client.HTTPException, KubernetesError, AssertionError, KeyError)


class Watcher(threading.Thread):
    """Watches a namespace and the controllers.

    Attributes:
        namespace: which one.
        broken: the laws that were broken, as sentences.
        partitions: the ids of all that were ever seen, by owner.
        vanished: partitions that the hardware lost: their Pods are nobody's fault.
    """

    def __init__(self, site: Site, namespace: str) -> None:
        super().__init__(daemon=True)
        self.broken: set[str] = set()
        self.partitions: dict[str, set[str]] = {}
        self.vanished: set[str] = set()
        self.looks = 0
        self.namespace = namespace
        self._site = site
        self._launched: set[str] = set()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            with contextlib.suppress(*_NOBODY):  # somebody is away; that is what is tested
                self._look()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()

    def _look(self) -> None:
        before = self._live()
        held = [one for pod in self._site.pods for one in pod.partitions()]
        after = self._live()
        self.looks += 1
        names = {one["name"] for one in held if one["state"] not in ("REMOVING", "LOST")}
        for uid in before.keys() & after.keys():
            name, partition = before[uid]
            if partition not in names | self.vanished:
                self.broken.add(f"{name} lives, and its partition {partition} does not")
        for one in held:
            self.partitions.setdefault(one["owner"], set()).add(one["id"])
        for owner, count in Counter(one["owner"] for one in held if one["state"] != "REMOVING").items():
            if count > 1 and owner.startswith("kubernetes/"):
                self.broken.add(f"{owner} holds {count} partitions at once")

    def _live(self) -> dict[str, tuple[str, str]]:
        """Pods whose program may run: name and partition by uid. Workers of a launcher idle, and count for nothing."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=graphcore.ai/job-name"
        pods = self._site.cluster.api("GET", path)["items"]
        self._launched |= {
            pod["metadata"]["labels"]["graphcore.ai/job-name"] for pod in pods if _role(pod) == "launcher"
        }
        return {
            pod["metadata"]["uid"]: (pod["metadata"]["name"], pod["metadata"]["annotations"]["graphcore.ai/partition"])
            for pod in pods
            if pod["status"]["phase"] in ("Pending", "Running")
            and "deletionTimestamp" not in pod["metadata"]
            and (_role(pod) == "launcher" or pod["metadata"]["labels"]["graphcore.ai/job-name"] not in self._launched)
        }


def _role(pod: Obj) -> str:
    return str(pod["metadata"]["labels"]["graphcore.ai/job-role"])


@contextmanager
def lawful(site: Site) -> Iterator[Watcher]:
    """A namespace that is watched while the block runs; its jobs are deleted afterwards, and nothing is left."""
    namespace = site.cluster.make_namespace()
    watcher = Watcher(site, namespace)
    watcher.start()
    try:
        yield watcher
        clear(site, namespace)
    finally:
        watcher.end()
        site.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    assert not watcher.broken, watcher.broken
    assert watcher.looks > 0, "nobody looked"


def clear(site: Site, namespace: str, timeout: float = 60) -> None:
    """Delete what jobs are left and wait until they are gone, with all that was theirs."""
    jobs = f"{JOBS}/namespaces/{namespace}/ipujobs"
    site.cluster.wait(lambda: site.cluster.api("DELETE", jobs) is not None)
    site.cluster.wait(
        lambda: not site.cluster.api("GET", jobs)["items"], timeout, what=lambda: site.log("operator")[-3000:]
    )
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=graphcore.ai/job-name"
    site.cluster.wait(lambda: not site.cluster.api("GET", pods)["items"])
    mine = f"/v1/claims?limit=1000&ownerPrefix=kubernetes/lab/{namespace}/"
    site.cluster.wait(lambda: not any(pod.ask("GET", mine)[1]["items"] for pod in site.pods))
