"""Trainings that are preempted, paused and killed at random end as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.client.jobs import job_shape
from moorings.local.records import SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.wire.codec import encode
from moorings.workloads.jobs import JobSpec
from tests.e2e.processes import ControllerProcess
from tests.e2e.trainings import hf_trainer, lightning, long_digits, orbax, torch
from tests.sampling import whole
from tests.waiting import until

DISTURBANCES = 20 if whole() else 5
Body = dict[str, Any]


class Site:
    """A controller on one machine, and a training that is disturbed on it.

    Args:
        controller: it.
        chance: what it draws from.
        steps: a file that the training makes at each step. A framework takes seconds to start: three of four
            disturbances wait until it is made. None: the training starts at once.
    """

    def __init__(self, controller: ControllerProcess, chance: random.Random, steps: Path | None = None) -> None:
        self.controller = controller
        self._chance = chance
        self._steps = steps
        self.run = ""
        self.done: list[str] = []

    def submit(self, wanted: JobSpec) -> str:
        (Path(wanted.workdir) / "checkpoints").mkdir(parents=True)
        body = {"job": encode(job_shape(wanted)), "engine": "local"}
        status, made = self.controller.ask("POST", "/v1/runs", body)
        assert status == 201, made
        return str(made["id"])

    def see(self, run: str) -> Body:
        status, found = self.controller.ask("GET", f"/v1/runs/{run}")
        assert status == 200, found
        return dict(found)

    def wait(self, run: str, *states: str) -> Body:
        found = until(
            lambda: found if (found := self.see(run))["state"] in (*states, "FAILED") else None,
            60,
            what=lambda: f"{self.done}: {self.see(run)}",
        )
        assert found["state"] in states, (self.done, found, self.output(run)[-5:])
        return found

    def output(self, run: str) -> list[str]:
        folder = self.controller.data / "runs" / run
        logs = sorted(folder.rglob("0.log"), key=lambda path: path.stat().st_mtime)
        return [line for path in logs for line in path.read_text().splitlines()]

    # -- disturbances --------------------------------------------------------------------------------------------------

    def disturb(self) -> bool:
        """Do one of them; False: the training has ended."""
        if self._steps is not None and self._chance.random() < 0.75:
            self._await_step(self._steps)
        time.sleep(self._chance.uniform(0.1, 1.5))
        if self.wait(self.run, "RUNNING", "SUCCEEDED")["state"] != "RUNNING":
            return False
        losses = (self.lose_supervisor, self.lose_controller, self.lose_node)
        what = self._chance.choice((self.preempt, self.pause, *losses))
        self.done.append(what.__name__)
        what()
        return True

    def _await_step(self, steps: Path) -> None:
        steps.unlink(missing_ok=True)
        until(lambda: steps.exists() or self.see(self.run)["state"] in ("SUCCEEDED", "FAILED"), 60)

    def preempt(self) -> None:
        """The lab takes its guaranteed devices, and gives them back."""
        status, claim = self.controller.ask("POST", "/v1/claims", {"size": 16, "accelerator": "ipu", "project": "lab"})
        assert status == 201, claim
        until(lambda: self.controller.ask("GET", f"/v1/claims/{claim['id']}")[1]["state"] == "READY", 60)
        assert self.controller.ask("DELETE", f"/v1/claims/{claim['id']}")[0] in (200, 202)

    def pause(self) -> None:
        assert self.controller.ask("POST", f"/v1/runs/{self.run}/pause", {})[0] in (200, 202)
        if self.wait(self.run, "PAUSED", "SUCCEEDED")["state"] == "PAUSED":
            self.resume()

    def resume(self) -> None:
        assert self.controller.ask("POST", f"/v1/runs/{self.run}/resume", {})[0] == 200

    def lose_supervisor(self) -> None:
        self._kill(self._supervisor(), tasks=False)
        self._retry()

    def lose_controller(self) -> None:
        self.controller.kill()
        self.controller.start()

    def lose_node(self) -> None:
        """All that runs on the machine, as a power cut would."""
        status = self._supervisor()
        self.controller.kill()
        self._kill(status, tasks=True)
        self.controller.start()
        self._retry()

    def _supervisor(self) -> SupervisorStatus | None:
        folder = LocalRunFolder(self.controller.data / "runs" / self.run)
        return folder.read(SupervisorStatus, self.see(self.run).get("attempt", 0))

    def _kill(self, status: SupervisorStatus | None, *, tasks: bool) -> None:
        assert status is not None
        for process in (status.supervisor, *(status.tasks if tasks else ())):
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _retry(self) -> None:
        """Its retry is not waited for: after some losses that takes minutes."""
        if self.wait(self.run, "PAUSED", "SUCCEEDED")["state"] == "PAUSED":
            self.resume()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    made = ControllerProcess(tmp_path)
    made.data.mkdir()
    (made.data / "policy.toml").write_text('min_run = 0\nyield = "6s"\n')
    made.start()
    shares = [{"pool": "pod16", "blocks": {"16": 1}}]
    for name, project in (("lab", {"shares": shares}), ("guest", {})):
        assert made.ask("PUT", f"/v1/projects/{name}", project)[0] in (200, 201)
    yield made
    assert made.stop() == 0


@pytest.mark.parametrize("train", [long_digits, torch], ids=["digits", "torch"])
def test_a_training_that_is_disturbed_at_random_ends_with_the_same_weights(
    controller: ControllerProcess, tmp_path: Path, train: Callable[[Path], JobSpec]
) -> None:
    ends_with_the_same_weights(controller, tmp_path, train)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("train", [lightning, hf_trainer, orbax])
def test_so_does_a_training_with_a_framework(
    controller: ControllerProcess, tmp_path: Path, train: Callable[[Path], JobSpec]
) -> None:
    ends_with_the_same_weights(controller, tmp_path, train, steps=tmp_path / "disturbed" / "steps")


def ends_with_the_same_weights(
    controller: ControllerProcess, tmp_path: Path, train: Callable[[Path], JobSpec], steps: Path | None = None
) -> None:
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    site = Site(controller, random.Random(seed), steps)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
    (undisturbed / "hurry").touch()
    first = site.submit(train(undisturbed))
    site.wait(first, "SUCCEEDED")
    site.run = site.submit(replace(train(disturbed), retries=100))
    while len(site.done) < DISTURBANCES and site.disturb():
        pass
    (disturbed / "hurry").touch()
    end = site.wait(site.run, "SUCCEEDED", "FAILED", "LOST", "CANCELLED")
    assert (end["state"], end["exitCode"]) == ("SUCCEEDED", 0), site.done
    assert site.output(site.run)[-1] == site.output(first)[-1], site.done
    assert len(site.done) > DISTURBANCES / 2, "it ended before it had been disturbed so often"
    until(lambda: controller.holders() == {}, 30)
