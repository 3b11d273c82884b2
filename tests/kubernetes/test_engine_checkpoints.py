"""A training on Kubernetes that makes room, and loses nodes and controllers, ends as if nothing had happened."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moorings.client.jobs import job_shape
from moorings.core.model.claims import CheckpointContract
from moorings.wire.codec import encode
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import ENDED
from tests.e2e.rig import job
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.site import Site, ipu_site
from tests.kubernetes.test_engine import RUNNER, give_rights
from tests.sampling import whole
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

NAMESPACE = "runs"
PROGRAM = Path(__file__).with_name("train.py")
PACKAGES = sysconfig.get_path("purelib")  # with NumPy, which images of tests lack
EACH = 3 if whole() else 1
Body = dict[str, Any]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A site that lends its IPUs, and whose runs' checkpoints are seen."""
    with KubernetesCluster(new_folder()) as cluster:
        node = cluster.with_node()
        node.import_image(images.launcher())
        cluster.kubectl("label", "node", node.name, "ipunode=pod1")
        cluster.kubectl("create", "namespace", NAMESPACE)
        give_rights(cluster, NAMESPACE)
        with ipu_site(cluster, flags=["--privileged"], policy='min_run = 0\nyield = "20s"\n') as made:
            work = made.folder / "work"
            work.mkdir()
            volumes = "".join(
                f'[[kubernetes.volumes]]\npath = "{path}"\nhost_path = "{path}"\nread_only = {read_only}\n'
                for path, read_only in ((work, "false"), (PROGRAM.parent, "true"), (PACKAGES, "true"))
            )
            settings = made.folder / "controller.toml"
            settings.write_text(
                f'[kubernetes]\nnamespace = "{NAMESPACE}"\nkubeconfig = "{cluster.make_kubeconfig(RUNNER)}"\n'
                f'request_cpus = false\nuser = 0\ncheckpoint_image = "{images.launcher().name}"\n{volumes}'
            )
            made.pod.stop()
            made.pod.flags = ("--config", str(settings))
            made.pod.start()
            shares = [{"pool": "pool1", "blocks": {"16": 1}}]
            assert made.pod.ask("PUT", "/v1/projects/lab", {"shares": shares})[0] in (200, 201)
            yield made


def resumed_at(step: int, found: Body) -> bool:
    """Whether a run was given a checkpoint of that step or a later one."""
    return "resumedFrom" in found and found["resumedFrom"]["step"] >= step


class Training:
    """A training as a run of the engine ``kubernetes``."""

    def __init__(self, site: Site, name: str, **more: Any) -> None:
        self.site = site
        self.folder = site.folder / "work" / name
        (self.folder / "checkpoints").mkdir(parents=True)
        body = {"job": encode(job_shape(self._job(more))), "engine": "kubernetes"}
        status, made = site.pod.ask("POST", "/v1/runs", body)
        assert status == 201, made
        self.id = str(made["id"])

    def _job(self, more: dict[str, Any]) -> JobSpec:
        wanted = job("/usr/bin/python3", str(PROGRAM), "2000", size=2, workdir=str(self.folder), preemptible=True)
        return replace(
            wanted,
            image=images.launcher().name,
            environment={"PATH": "/usr/bin:/bin", "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"},
            checkpoint=CheckpointContract(resumable=True, grace_s=10.0),
            checkpoint_directory=str(self.folder / "checkpoints"),
            **more,
        )

    def see(self) -> Body:
        status, found = self.site.pod.ask("GET", f"/v1/runs/{self.id}")
        assert status == 200, found
        return dict(found)

    def wait(self, state: str, true: Callable[[Body], object] = lambda _: True) -> Body:
        def look() -> Body | None:
            found = self.see()
            assert found["state"] == state or found["state"] not in ENDED, f"{found}\n{self.output()[-2000:]}"
            return found if found["state"] == state and true(found) else None

        return until(look, 120, what=lambda: f"{self.see()}\n{self.output()[-2000:]}")

    def saves(self, after: int) -> int:
        """The step of the newest whole checkpoint that its Pod has seen, once it is later than that."""

        def steps(found: Body) -> list[int]:
            return [each["step"] for each in found.get("checkpoints", ()) if each["whole"] and each["step"] > after]

        return max(steps(self.wait("RUNNING", steps)))

    def output(self) -> str:
        folder = self.site.pod.data / "kubernetes-runs" / self.id
        logs = sorted(folder.rglob("0.log"), key=lambda path: path.stat().st_mtime)
        return "".join(path.read_text() for path in logs)

    def events(self, name: str) -> list[Body]:
        status, found = self.site.pod.ask("GET", f"/v1/events?run={self.id}&limit=1000")
        assert status == 200, found
        return [event for event in found["items"] if event["name"] == name]

    # -- disturbances --------------------------------------------------------------------------------------------------

    def preempt(self) -> None:
        """The lab takes its guaranteed IPUs, and gives them back."""
        ask = self.site.pod.ask
        status, claim = ask("POST", "/v1/claims", {"size": 16, "accelerator": "ipu", "project": "lab"})
        assert status == 201, claim
        until(lambda: ask("GET", f"/v1/claims/{claim['id']}")[1]["state"] == "READY", 60, what=lambda: f"{self.see()}")
        self.wait("WAITING")
        assert ask("DELETE", f"/v1/claims/{claim['id']}")[0] in (200, 202)

    def lose_node(self) -> None:
        """A power cut; the node comes back, and what ran there is lost."""
        (node,) = self.site.cluster.nodes
        node.kill()
        node.start()
        self.wait("PAUSED")
        assert self.site.pod.ask("POST", f"/v1/runs/{self.id}/resume", {})[0] == 200  # its retry is not waited for

    def drain(self) -> None:
        """Its Pod is deleted, and made again as it was."""
        _, _, job = self.see()["reference"].partition("/")
        name = f"{job}-worker-0"
        uid = self.site.job_pods(NAMESPACE, job)[name]["metadata"]["uid"]
        self.site.cluster.kubectl("delete", "pod", name, "-n", NAMESPACE)
        self.site.await_another(NAMESPACE, job, name, uid)

    def pause(self) -> None:
        """It saves, stops, and gives its IPUs back until it is resumed."""
        assert self.site.pod.ask("POST", f"/v1/runs/{self.id}/pause", {})[0] in (200, 202)
        self.wait("PAUSED")
        self.site.await_empty()
        assert self.site.pod.ask("POST", f"/v1/runs/{self.id}/resume", {})[0] == 200

    def lose_controller(self) -> None:
        self.site.pod.kill()
        self.site.pod.start()


def test_a_training_that_is_disturbed_ends_with_the_same_weights(site: Site) -> None:
    undisturbed = Training(site, "undisturbed")
    (undisturbed.folder / "hurry").touch()
    undisturbed.wait("SUCCEEDED")
    training = Training(site, "disturbed", retries=10)
    step = 0
    for _ in range(EACH):
        for disturb in (training.preempt, training.pause, training.lose_node, training.drain, training.lose_controller):
            step = training.saves(step)
            disturb()
            training.wait("RUNNING", partial(resumed_at, step if disturb != training.lose_controller else 0))
    (training.folder / "hurry").touch()
    end = training.wait("SUCCEEDED")
    assert end["exitCode"] == 0
    assert training.output().splitlines()[-1] == undisturbed.output().splitlines()[-1]
    assert len(training.events("run.retrying")) == len(training.events("run.paused")) == EACH
    site.await_empty()


def test_one_that_has_lost_what_it_resumes_from_says_so(site: Site) -> None:
    training = Training(site, "emptied")
    training.saves(0)
    ask = site.pod.ask
    assert ask("POST", f"/v1/runs/{training.id}/pause", {})[0] in (200, 202)
    point = training.wait("PAUSED")["resumePoint"]["path"]
    for path in (training.folder / "checkpoints").iterdir():
        path.unlink()
    assert ask("POST", f"/v1/runs/{training.id}/resume", {})[0] == 200
    end = training.wait("FAILED")
    assert (end["exitCode"], f"checkpoint {point} is gone" in end["detail"]) == (126, True), end
    site.await_empty()


def test_one_that_waits_after_it_made_room_is_cancelled(site: Site) -> None:
    training = Training(site, "cancelled")
    training.saves(0)
    ask = site.pod.ask
    status, claim = ask("POST", "/v1/claims", {"size": 16, "accelerator": "ipu", "project": "lab"})
    assert status == 201, claim
    found = training.wait("WAITING", lambda found: "waiting for a partition" in str(found.get("reason")))
    assert ask("POST", f"/v1/runs/{training.id}/cancel", {})[0] in (200, 202)
    end = training.wait("CANCELLED")
    assert found["checkpoints"][0]["whole"]
    assert end["exitCode"] == 143
    ask("DELETE", f"/v1/claims/{claim['id']}")
    site.await_empty()


def test_one_that_is_stopped_at_its_time_limit_does_not_seem_to_start_again(site: Site) -> None:
    training = Training(site, "limited", time_limit_s=8.0)
    end = training.wait("TIMED_OUT")
    assert end["checkpoints"][0]["whole"]
    assert training.events("run.requeued") == []
    site.await_empty()


def test_one_that_waits_for_ipus_is_paused_and_resumed(site: Site) -> None:
    ask = site.pod.ask
    status, claim = ask("POST", "/v1/claims", {"size": 16, "accelerator": "ipu", "project": "lab"})
    assert status == 201, claim
    training = Training(site, "queued")
    training.wait("WAITING", lambda found: "reference" in found)
    assert ask("POST", f"/v1/runs/{training.id}/pause", {})[0] in (200, 202)
    training.wait("PAUSED")
    ask("DELETE", f"/v1/claims/{claim['id']}")
    assert ask("POST", f"/v1/runs/{training.id}/resume", {})[0] == 200
    training.wait("RUNNING")
    assert ask("POST", f"/v1/runs/{training.id}/cancel", {})[0] in (200, 202)
    training.wait("CANCELLED")
    site.await_empty()
