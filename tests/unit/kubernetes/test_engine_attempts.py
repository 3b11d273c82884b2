"""What is known of the Pods of an attempt, of which its operator may make several one after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.kubernetes.engine.attempts import AttemptTracker
from moorings.kubernetes.engine.run_folder import KubernetesAttempt, KubernetesRunFolder, SubmittedIPUJob
from moorings.kubernetes.engine.run_status import have_all_started, were_all_stopped
from moorings.kubernetes.kube.api import KubeError, KubeObject
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.runs import RunId
from tests.unit.kubernetes.test_engine_verdict import a_pod, ended, text
from tests.waiting import until_async

RUN = RunId("run-1")
ASKED = SubmittedIPUJob("runs", "run-1", tasks=2, grace_s=5)
SAVED = RunCheckpoint("/work/c/7.pt", 7, 1, Timestamp(5), is_whole=True, rule=CheckpointRule.ZIP)
RUNNING: KubeObject = {"running": {"startedAt": text(0)}}


def pod(state: KubeObject | None, *, rank: int = 0, uid: str = "a", looks: bool = False, **more: Any) -> KubeObject:
    found = a_pod(state, rank=rank, **more)
    found["metadata"] |= {"uid": f"{uid}{rank}", "namespace": "runs"}
    found["metadata"]["labels"] |= {"moorings/run": RUN, "moorings/attempt": "0"}
    if looks:
        found["status"]["containerStatuses"].append({"name": "task-checkpoints", "state": RUNNING})
    return found


class Outputs:
    """What containers print."""

    def __init__(self) -> None:
        self.of: dict[str, list[bytes]] = {"task": [], "task-checkpoints": []}
        self.asked: list[dict[str, Any]] = []

    async def stream_logs(self, _namespace: str, _pod: str, container: str, **how: Any) -> AsyncIterator[bytes]:
        self.asked.append({"container": container, **how})
        for part in self.of[container]:
            yield part
        raise KubeError(404, "NotFound", "it is gone")


class Site:
    """A tracker, and the folder of its run."""

    def __init__(self, folder: Path) -> None:
        self.outputs = Outputs()
        self.news = 0
        self.attempt: KubernetesAttempt = KubernetesRunFolder(folder / RUN).attempt(0)
        self.attempt.path.mkdir(parents=True)
        self.attempt.save_order(ASKED)
        self.tracker = AttemptTracker(folder, self.outputs, self, self.hear)  # type: ignore[arg-type]

    def hear(self) -> None:
        self.news += 1

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)

    def show(self, *pods: KubeObject) -> None:
        for one in pods:
            self.tracker.observe_pod(one)

    @property
    def tasks(self) -> dict[int, Any]:
        life = self.tracker.get_attempt((RUN, 0))
        assert life is not None
        return life.tasks


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_pods_that_were_stopped_are_followed_by_others_of_the_same_names(site: Site) -> None:
    site.show(*(pod(RUNNING, rank=rank) for rank in (0, 1)))
    assert have_all_started(ASKED, site.tasks)
    site.show(*(pod(ended(143), rank=rank, asked_s=1) for rank in (0, 1)))
    assert were_all_stopped(ASKED, site.tasks)
    site.show(pod(None, rank=1, uid="b"))
    assert not have_all_started(ASKED, site.tasks)  # the one that is left is not of this start
    site.show(pod(RUNNING, rank=0, uid="b"), pod(RUNNING, rank=1, uid="b"))
    assert have_all_started(ASKED, site.tasks)
    assert not were_all_stopped(ASKED, site.tasks)
    assert {task.uid for task in site.tasks.values()} == {"b0", "b1"}


async def test_one_pod_that_is_made_again_leaves_what_is_known_of_the_others(site: Site) -> None:
    site.show(*(pod(RUNNING, rank=rank) for rank in (0, 1)), pod(None, rank=1, uid="b"))
    assert (site.tasks[0].uid, site.tasks[1].uid) == ("a0", "b1")


async def test_tasks_that_ended_by_themselves_were_not_stopped(site: Site) -> None:
    site.show(*(pod(ended(0), rank=rank) for rank in (0, 1)))
    assert not were_all_stopped(ASKED, site.tasks)


def line(*found: RunCheckpoint, start: int = 0, given: RunCheckpoint | None = None) -> bytes:
    return json.dumps(to_plain(CheckpointRecord(start, found, "", given))).encode() + b"\n"


async def test_the_last_record_that_is_printed_beside_the_first_task_is_saved(site: Site) -> None:
    whole = line(SAVED, start=1, given=SAVED)
    site.outputs.of["task-checkpoints"] = [line(), b"moorings: a warning\n" + whole[:20], whole[20:], b'{"half']
    site.show(pod(RUNNING, looks=True), pod(RUNNING, rank=1, looks=True))
    whole_record = CheckpointRecord(1, (SAVED,), "", SAVED)
    await until_async(lambda: site.attempt.last_checkpoints() == whole_record)
    asked = [one for one in site.outputs.asked if one["container"] == "task-checkpoints"]
    assert asked == [{"container": "task-checkpoints", "follow": True, "lines": 1}]  # that of rank 0 alone
    await site.tracker.close()


async def test_what_is_no_record_changes_nothing(site: Site) -> None:
    site.outputs.of["task-checkpoints"] = [b"x" * 600_000, b"\n[]\n{}\n", line(SAVED)]
    site.show(pod(RUNNING, looks=True))
    await until_async(lambda: site.attempt.last_checkpoints() == CheckpointRecord(0, (SAVED,)))
    await site.tracker.close()


async def test_a_pod_that_is_gone_runs_no_more_though_nobody_saw_its_end(site: Site) -> None:
    site.show(*(pod(RUNNING, rank=rank) for rank in (0, 1)))
    for rank in (0, 1):
        site.tracker.observe_gone("runs", f"run-1-worker-{rank}")
    assert were_all_stopped(ASKED, site.tasks)


async def test_the_end_of_a_pod_that_was_seen_stays_when_it_is_gone(site: Site) -> None:
    site.show(pod(ended(3)), pod(RUNNING, rank=1))
    site.tracker.observe_gone("runs", "run-1-worker-0")
    assert (site.tasks[0].code, site.tasks[0].stopped) == (3, False)
    site.tracker.observe_gone("runs", "run-1-worker-7")
    assert not site.tasks[1].over
