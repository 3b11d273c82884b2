"""What the trial of a job says of each outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.cli.job_trial import check_contract, judge_resume, judge_save, trial_job
from moorings.core.model.claims import CheckpointContract
from moorings.doctor.checks import JOB_CHECKS
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN
from moorings.testing.builders import a_job
from moorings.wire.codec import encode
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import CheckpointBody, PauseBody
from moorings.workloads.jobs import Accelerators, check_job
from tests.unit.cli import samples
from tests.unit.client.recorded import Reply, body, problem

PAUSE = PauseBody(by="ann", asked_at="2026-01-31T09:00:10.000000Z", stops_at="2026-01-31T09:02:40.000000Z")


def saved(step: int | None, second: int, *, whole: bool = True) -> CheckpointBody:
    path = f"/c/step-{step}.pt" if step is not None else "/c/last.pt"
    at = f"2026-01-31T09:00:{second:02}.000000Z"
    why = "" if whole else "it is cut off"
    return CheckpointBody(run="r", path=path, step=step, size_bytes=9, written_at=at, whole=whole, rule="zip", why=why)


GIVEN = saved(40, 11)


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        ({"resume_point": GIVEN}, PASS, "step-40.pt is whole (zip), 1.0 s after the warning"),
        ({"resume_point": saved(30, 5)}, WARN, "0:05 older than the warning: it saves nothing at a warning"),
        ({"checkpoints": (saved(30, 11, whole=False),)}, FAIL, "/c/step-30.pt is not whole: it is cut off"),
        ({}, FAIL, "there is no checkpoint"),
        ({"checkpoint_fault": "/c is a symbolic link"}, FAIL, "/c is a symbolic link"),
        ({"state": "YIELDING"}, FAIL, "it is YIELDING: it does not stop"),
        ({"state": "SUCCEEDED", "exit_code": 0}, FAIL, "it ended with 0 when it was warned, and counts as SUCCEEDED"),
        ({"state": "FAILED", "exit_code": 1}, FAIL, "it ended with 1 when it was warned, and counts as FAILED"),
    ],
    ids=["saves", "saves-nothing-new", "torn", "none", "link", "deaf", "exits", "fails"],
)
def test_what_is_said_of_its_save(more, verdict, words):
    found = judge_save(samples.run(**{"state": "PAUSED", "pause": PAUSE, **more}))
    assert (found.id, found.verdict) == ("job.saves", verdict)
    assert words in found.evidence
    assert found.fix or verdict is PASS


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        ({"checkpoints": (saved(80, 30), GIVEN)}, PASS, "given step 40, and then saved step 80"),
        ({"checkpoints": (saved(20, 30), saved(10, 20), GIVEN)}, FAIL, "saved step 10 since: it began again"),
        ({"checkpoints": (GIVEN,)}, WARN, "saved nothing since"),
        ({"checkpoints": (saved(80, 30, whole=False), GIVEN)}, WARN, "saved nothing since"),
        ({"checkpoints": (saved(None, 30), GIVEN)}, WARN, "their names tell no step"),
        ({"state": "SUCCEEDED", "exit_code": 0}, PASS, "came to its end"),
        ({"state": "FAILED", "detail": "task 0 exited with 1"}, FAIL, "FAILED, task 0 exited with 1"),
    ],
    ids=["goes-on", "begins-again", "nothing", "torn", "no-steps", "ends", "fails"],
)
def test_what_is_said_of_its_second_attempt(more, verdict, words):
    found = judge_resume(GIVEN, samples.run(**{"state": "PAUSED", "pause": PAUSE, **more}))
    assert (found.id, found.verdict) == ("job.resumes", verdict)
    assert words in found.evidence


def test_a_job_without_the_contract_is_not_started():
    job = a_job()
    contract = CheckpointContract(resumable=True)
    for wrong in (job, replace(job, checkpoint=contract, checkpoint_directory=None)):
        found = check_contract(wrong)
        assert [(one.id, one.verdict) for one in found] == list(zip(JOB_CHECKS, (FAIL, SKIP, SKIP), strict=True))
        assert found[0].fix
    assert check_contract(replace(job, checkpoint=contract, checkpoint_directory="/c")) == []


def test_a_folder_at_which_nobody_looks_fails_the_trial_before_it_starts(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    job = replace(a_job(), checkpoint=CheckpointContract(resumable=True))
    for name, words in (("link", "is a symbolic link"), ("file", "is no folder")):
        found = check_contract(replace(job, checkpoint_directory=str(tmp_path / name)))
        assert (found[0].verdict, words in found[0].evidence) == (FAIL, True)
    assert check_contract(replace(job, checkpoint_directory=str(tmp_path))) == []


def test_a_program_that_never_saves_has_the_time_of_a_step(server, moor, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    server.on("POST", "/v1/runs", Reply(encode(samples.run()), 201))
    server.on("GET", "/v1/runs/run-7f3kq2m4xw2a", body(samples.run()))
    server.on("POST", "/v1/runs/run-7f3kq2m4xw2a/pause", body(samples.run(state="PAUSED", pause=PAUSE)))
    server.on("POST", "/v1/runs/run-7f3kq2m4xw2a/cancel", body(samples.run(state="STOPPING")))
    code, out, _ = moor("doctor", "--job", str(tmp_path / "job.toml"), "--works", "0", "--timeout", "9s")
    assert (code, "there is no checkpoint" in out) == (ExitCode.FINDINGS, True)
    assert server.asked("POST", "/v1/runs/run-7f3kq2m4xw2a/pause")[0].json == {"saveTimeoutS": 9}


def test_the_trial_is_small_and_leaves_the_real_checkpoints_alone():
    job = replace(a_job(), name="n" * 63, tasks=4, accelerators=Accelerators(size=64, replicas=8, pool="pod"))
    tried = check_job(trial_job(replace(job, checkpoint_directory="/data/saved/", preemptible=True)))
    assert (tried.accelerators.size, tried.accelerators.replicas, tried.accelerators.pool) == (4, 4, "pod")
    assert (tried.checkpoint_directory, tried.preemptible) == ("/data/saved-trial", False)
    assert tried.name.endswith("-trial")


JOB = """
name = "digits"
command = ["python3", "train.py"]
[checkpoint]
directory = "saved"
resumable = true
"""


def test_a_trial_that_cannot_go_on_is_cancelled(server, moor, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    server.on("POST", "/v1/runs", Reply(encode(samples.run()), 201))
    server.on("GET", "/v1/runs/run-7f3kq2m4xw2a", body(samples.run()))
    server.on("POST", "/v1/runs/run-7f3kq2m4xw2a/pause", problem("run.not_pausable", "it cannot be paused", 409))
    server.on("POST", "/v1/runs/run-7f3kq2m4xw2a/cancel", body(samples.run(state="STOPPING")))
    code, _, err = moor("doctor", "--job", str(tmp_path / "job.toml"), "--works", "0")
    assert (code, "it cannot be paused" in err) == (ExitCode.CONFLICT, True)
    assert server.asked("POST", "/v1/runs/run-7f3kq2m4xw2a/cancel")
    asked = server.asked("POST", "/v1/runs")[0].json["job"]
    assert (asked["name"], asked["checkpointDirectory"]) == ("digits-trial", str(tmp_path / "saved-trial"))


def test_a_trial_is_no_other_check(moor, tmp_path):
    assert moor("doctor", "--job", "job.toml", "--only", "laws")[0] == 2
    assert moor("doctor", "--job", str(tmp_path / "no-such.toml"))[0] != 0
