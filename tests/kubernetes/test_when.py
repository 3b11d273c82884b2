"""When jobs start, end and go, on a real API server: their deadline, how long they are kept, and who may start them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tests.kubernetes.cluster import Obj
from tests.kubernetes.site import JOBS, Site, template

LAUNCHER = {"command": ["mpirun", "hostname"]}
SOON_S = 45  # what a garbage collector takes at its first deletion


def test_a_job_past_its_deadline_fails_and_gives_its_ipus_back(site: Site, namespace: str) -> None:
    site.submit(namespace, "late", ipusPerJobInstance="16", activeDeadlineSeconds=4, launcher=LAUNCHER)
    for name in ("late-worker-0", "late-launcher"):
        site.await_pods(namespace, "late", "late-worker-0", "late-launcher")
        site.run_pod(namespace, name)
    (claim,) = site.pod.claims()
    assert claim["timeLimitS"] == 4, "the queue reckons with it"
    status = site.await_state(namespace, "late", "Failed")
    assert [one["reason"] for one in status["conditions"] if one["type"] == "Failed"] == ["DeadlineExceeded"]
    assert status["lastMessage"] == "it was active for longer than the 4 s of spec.activeDeadlineSeconds"
    site.await_empty()


def test_a_finished_job_goes_when_its_time_is_over_and_its_idle_workers_with_it(site: Site, namespace: str) -> None:
    site.submit(namespace, "done", ttlSecondsAfterFinished=2, launcher=LAUNCHER)
    pods = site.await_pods(namespace, "done", "done-worker-0", "done-launcher")
    for name in sorted(pods, reverse=True):
        site.run_pod(namespace, name)
    site.await_state(namespace, "done", "Running")
    site.end_pod(namespace, "done-launcher", 0)
    site.await_state(namespace, "done", "Completed")
    site.cluster.wait(lambda: site.is_gone(namespace, "done"))
    site.cluster.wait(lambda: not site.job_pods(namespace, "done"), SOON_S)
    site.await_empty()


def test_those_who_wait_are_told_when_they_start(site: Site, namespace: str) -> None:
    site.submit(namespace, "first", ipusPerJobInstance="16", activeDeadlineSeconds=600)
    site.await_pods(namespace, "first", "first-worker-0")
    (claim,) = site.pod.claims()
    site.submit(namespace, "second", ipusPerJobInstance="16")

    def told(name: str) -> Obj | None:
        status = site.status(namespace, name)
        return status if "estimatedStartCertainty" in status else None

    found = site.cluster.wait(lambda: told("second"), what=lambda: site.log("operator")[-3000:])
    assert found["estimatedStartCertainty"] == "AtLatest"
    late_s = _seconds(found["estimatedStartTime"]) - _seconds(claim["readyAt"])
    assert 600 <= late_s < 620
    assert "; it starts by " in found["lastMessage"]
    site.submit(namespace, "third", ipusPerJobInstance="16")
    found = site.cluster.wait(lambda: told("third"), what=lambda: str(site.status(namespace, "third")))
    assert found["estimatedStartCertainty"] == "Unknown"
    assert found["lastMessage"].endswith(
        "when it starts is unknown: 1 claim that waits and comes first has no time limit"
    )
    site.delete(namespace, "first")
    site.await_pods(namespace, "second", "second-worker-0")
    site.cluster.wait(lambda: not told("second"))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@dataclass
class Queue:
    """Kueue's part: all that it knows of a job and does to it, by its contract for jobs (GenericJob)."""

    site: Site
    namespace: str
    name: str

    @property
    def job(self) -> Obj:
        return self.site.job(self.namespace, self.name)

    @property
    def status(self) -> Obj:
        return dict(self.job.get("status") or {})

    def is_suspended(self) -> bool:
        return bool(self.job["spec"].get("suspend"))

    def is_active(self) -> bool:
        return bool(self.status.get("active", 0))

    def are_pods_ready(self) -> bool:
        spec, status = self.job["spec"], self.status
        each = int(spec.get("workerPerJobInstance", 1)) + ("launcher" in spec)
        return bool(status.get("ready", 0) >= spec["jobInstances"] * each)

    def finished(self) -> str:
        """``Completed`` or ``Failed`` when it has ended."""
        true = [one["type"] for one in self.status.get("conditions", ()) if one["status"] == "True"]
        return next((one for one in true if one in ("Completed", "Failed")), "")

    def set(self, *, suspend: bool, places: Obj) -> None:
        """Start or stop it, and say where its Pods run, or no longer do: one write."""
        job = self.job
        job["spec"] |= {"suspend": suspend, "workers": {"template": template(**places)}}
        self.site.cluster.api("PUT", f"{JOBS}/namespaces/{self.namespace}/ipujobs/{self.name}", job)

    def wait(self, condition: str) -> None:
        self.site.cluster.wait(lambda: getattr(self, condition)(), what=lambda: f"{condition}: {self.status}")


def test_a_queue_starts_stops_and_starts_a_job(site: Site, namespace: str) -> None:
    site.submit(namespace, "queued", suspend=True, ipusPerJobInstance="8", launcher=LAUNCHER)
    kueue = Queue(site, namespace, "queued")
    status = site.await_state(namespace, "queued", "Suspended")
    assert status["lastMessage"] == "it has no Pods and no IPUs until spec.suspend is false"
    assert (kueue.is_suspended(), kueue.is_active(), kueue.finished()) == (True, False, "")
    assert site.pod.claims() == []
    places = {"nodeSelector": {"flavor": "bow"}, "tolerations": [{"key": "ipu", "operator": "Exists"}]}
    for where in (places, {}):
        kueue.set(suspend=False, places=where)
        pods = site.await_pods(namespace, "queued", "queued-worker-0", "queued-launcher")
        for pod in pods.values():
            assert ("flavor" in pod["spec"]["nodeSelector"]) is bool(where)
            assert {"key": "ipu", "operator": "Exists"} in pod["spec"]["tolerations"] or not where
        for name in sorted(pods, reverse=True):
            site.run_pod(namespace, name)
        kueue.wait("are_pods_ready")
        assert kueue.is_active()
        site.await_state(namespace, "queued", "Running")
        if where:  # it is preempted, and what was put in is taken out
            kueue.set(suspend=True, places={})
            site.await_state(namespace, "queued", "Suspended")
            site.cluster.wait(lambda: not kueue.is_active())
            assert site.job_pods(namespace, "queued") == {}
            site.await_empty()
    site.end_pod(namespace, "queued-launcher", 0)
    kueue.wait("finished")
    assert kueue.finished() == "Completed"
    assert kueue.status.get("restartCount") == 1


def test_a_job_of_another_controller_is_left_alone(site: Site, namespace: str) -> None:
    site.submit(namespace, "away", managedBy="kueue.x-k8s.io/multikueue")
    site.submit(namespace, "ours", managedBy="graphcore.ai/ipu-operator")
    site.await_pods(namespace, "ours", "ours-worker-0")
    assert site.status(namespace, "away") == {}
    assert len(site.pod.claims()) == 1
    site.delete(namespace, "away")
    site.cluster.wait(lambda: site.is_gone(namespace, "away"))


def test_a_priority_class_is_looked_up_and_a_missing_one_waited_for(site: Site, namespace: str) -> None:
    """Past the webhooks, which would refuse it."""
    site.submit(namespace, "ranked", priorityClassName=f"{namespace}-low")
    status = site.await_state(namespace, "ranked", "Pending")
    assert status["lastMessage"].startswith(f"there is no PriorityClass {namespace}-low")
    assert site.pod.claims() == []
    name = {"name": f"{namespace}-low"}
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": name, "value": -7}
    site.cluster.api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", made)
    try:
        site.await_pods(namespace, "ranked", "ranked-worker-0")
        assert [claim["priority"] for claim in site.pod.claims()] == [-7]
    finally:
        site.cluster.api("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{namespace}-low")
