"""A controller with an empty folder finds a run's attempts in Kubernetes, and takes none but the newest for its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from moorings.core.model.bindings import NO_BINDING
from moorings.kubernetes.engine.engine import KubernetesEngine
from moorings.kubernetes.engine.run_folder import KubernetesAttempt
from moorings.kubernetes.engine.settings import KubernetesEngineSettings, Volume
from moorings.kubernetes.engine.submission import ATTEMPT, build_job, build_submitted_job
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import KubeApi, KubeError, KubeObject, ObjectList, ResourceType
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId
from tests.unit.local.local_rig import WallClock

RUN = RunId("run-k3v7q2mzp4ya")
SETTINGS = KubernetesEngineSettings(
    namespace="runs", projects={"vision": "lab-vision"}, volumes=(Volume("/work", claim="work"),)
)


class Lists:
    """The API server's lists of IPUJobs, by namespace; an error is raised."""

    def __init__(self, lists: Mapping[str, list[KubeObject] | KubeError]) -> None:
        self.lists = dict(lists)

    async def list(self, kind: ResourceType, namespace: str, *, labels: str) -> ObjectList:
        assert kind is IPU_JOB
        assert f"moorings/run={RUN}" in labels
        found = self.lists[namespace]
        if isinstance(found, KubeError):
            raise found
        return ObjectList(found, "1")


def attempt(number: int) -> KubeObject:
    """The active IPUJob of an attempt."""
    job = JobSpec(name="digits", command=("true",), workdir="/work", image="digits:1")
    order = RunSubmission(RUN, number, job, NO_BINDING, epoch=Epoch(1))
    body = build_job(order, build_submitted_job(order, SETTINGS), SETTINGS, "lab")
    return {**body, "spec": {**body["spec"], "jobInstances": 1}}


def engine(folder: Path, lists: Lists) -> KubernetesEngine:
    return KubernetesEngine(SETTINGS, folder, "lab", cast(KubeApi, lists), cast(PodStreams, None), WallClock())


async def test_no_attempt_is_adopted_before_all_are_listed(tmp_path: Path) -> None:
    lists = Lists({"runs": [attempt(0)], "lab-vision": KubeError(503, "ServiceUnavailable", "later")})
    found = engine(tmp_path, lists)
    with pytest.raises(KubeError):
        await found._newest(RUN)
    lists.lists["lab-vision"] = [attempt(1)]
    newest = await found._newest(RUN)
    assert newest is not None
    assert newest.number == 1


async def test_a_disk_that_fills_up_leaves_the_newest_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []

    def save_alive(made: KubernetesAttempt) -> None:
        if saved:
            raise OSError(28, "No space left on device")
        saved.append(made.number)

    monkeypatch.setattr(KubernetesAttempt, "save_alive", save_alive)
    found = engine(tmp_path, Lists({"runs": [attempt(number) for number in (0, 2, 10)], "lab-vision": []}))
    with pytest.raises(OSError, match="No space"):
        await found._newest(RUN)
    assert saved == [10]
    newest = await found._newest(RUN)
    assert newest is not None
    assert newest.number == 10


async def test_an_ipujob_with_a_damaged_label_is_no_attempt(tmp_path: Path) -> None:
    damaged = attempt(3)
    damaged["metadata"]["labels"][ATTEMPT] = "three"
    assert await engine(tmp_path, Lists({"runs": [damaged], "lab-vision": []}))._newest(RUN) is None
