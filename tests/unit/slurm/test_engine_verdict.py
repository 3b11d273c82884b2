"""What is seen of a run on Slurm, and how it ended."""

from __future__ import annotations

from typing import Any

from moorings.core.model.timestamps import Timestamp
from moorings.slurm.engine.run_folder import ScriptEnd, SlurmAttemptState, SubmittedSlurmJob, TaskEnd
from moorings.slurm.engine.run_status import JobEnd, RunObservation, build_end_record, observe_run, reason_of
from moorings.slurm.formats import JobRecord, phase_of
from moorings.workloads.runs import EndReason, EndRecord
from tests.cases import cases

NOW, BEGAN, OVER = Timestamp(9_000_000), Timestamp(1_000_000), Timestamp(5_000_000)
ASKED = SubmittedSlurmJob(tasks=2, grace_s=30.0, time_limit_s=600.0)


def facts(**more: Any) -> SlurmAttemptState:
    return SlurmAttemptState(
        **{"asked": ASKED, "submitting": True, "job": 7, "claimed": True, "began": {0: BEGAN}, **more}
    )


def job(state: str, restarts: int = 0, reason: str = "") -> JobRecord:
    return JobRecord(
        job_id=7,
        array_job=None,
        array_tasks="",
        het_job=None,
        het_offset=None,
        state=state,
        phase=phase_of(state),
        reason=reason,
        uid=0,
        user="ann",
        account="",
        partition="ipu",
        qos="",
        priority=1,
        submit_time=None,
        eligible=None,
        start_time=None,
        end_time=None,
        limit_s=None,
        nodes="",
        nodes_whole=True,
        restarts=restarts,
        requeue=True,
        batch=True,
        status=(0, 0),
    )


def done(stop: str, restart: int = 0) -> ScriptEnd:
    return ScriptEnd(restart, stop, OVER)


def ended(*codes: int | None) -> tuple[TaskEnd | None, ...]:
    return tuple(
        TaskEnd(code, Timestamp(BEGAN + rank)) if code is not None else None for rank, code in enumerate(codes)
    )


# -- what is seen --------------------------------------------------------------------------------------------------


@cases(
    ("known", "listed", "seen"),
    [
        (facts(submitting=False, job=None), None, RunObservation.ABSENT),
        (facts(job=None, claimed=False), None, RunObservation.ABSENT),  # the answer was lost, and Slurm has no such job
        (facts(began={}, claimed=False), job("PENDING"), RunObservation.WAITING),
        (facts(began={}), job("RUNNING"), RunObservation.WAITING),
        (facts(), job("RUNNING"), RunObservation.RUNNING),
        (facts(), job("COMPLETING"), RunObservation.RUNNING),
        (facts(), job("BEWILDERED"), RunObservation.RUNNING),  # a state that no release had so far ends nothing
        (facts(), job("PENDING", restarts=1), RunObservation.WAITING),  # requeued
        (facts(), job("RUNNING", restarts=1), RunObservation.WAITING),
        (facts(done=done("slurm")), job("REQUEUED", restarts=1), RunObservation.WAITING),
        (facts(done=done("slurm")), job("CANCELLED"), RunObservation.OVER),
        (facts(done=done("slurm")), None, RunObservation.MISSING),
        (facts(done=done("none")), None, RunObservation.OVER),
        (facts(), job("NODE_FAIL"), RunObservation.OVER),
        (facts(), None, RunObservation.MISSING),
        (facts(end=EndRecord(EndReason.EXITED, 0)), job("PENDING", restarts=1), RunObservation.ENDED),
    ],
)
def test_a_look_says_what_folder_and_slurm_say_together(known, listed, seen):
    assert observe_run(known, listed) is seen


def test_why_it_waits_is_told_in_slurms_words():
    assert reason_of(RunObservation.WAITING, job("PENDING", reason="Licenses")) == "Slurm job 7 is PENDING (Licenses)"
    assert reason_of(RunObservation.WAITING, job("RUNNING")) == "Slurm job 7 is RUNNING, and its tasks have not begun"
    assert reason_of(RunObservation.RUNNING, job("RUNNING")) == reason_of(RunObservation.WAITING, None) == ""


# -- how it ended --------------------------------------------------------------------------------------------------


@cases(
    ("known", "tasks", "state", "ending", "code", "codes"),
    [
        (facts(done=done("none")), ended(0, 0), None, EndReason.EXITED, 0, (0, 0)),
        (facts(done=done("failed")), ended(143, 9), None, EndReason.EXITED, 143, (143, 9)),  # the first by time
        (facts(done=done("asked"), cancel="enough"), ended(0, 0), None, EndReason.CANCELLED, 143, (0, 0)),
        (facts(done=done("asked"), cancel="enough"), ended(0, None), None, EndReason.CANCELLED, 137, (0, 137)),
        (facts(done=done("limit")), ended(0, 0), None, EndReason.TIMED_OUT, 124, (0, 0)),
        (facts(done=done("limit")), ended(143, 143), None, EndReason.TIMED_OUT, 143, (143, 143)),
        (facts(done=done("slurm")), ended(143, 143), "CANCELLED", EndReason.CANCELLED, 143, (143, 143)),
        (facts(done=done("slurm")), ended(0, 0), "TIMEOUT", EndReason.TIMED_OUT, 124, (0, 0)),
        (facts(), ended(None, None), "CANCELLED", EndReason.CANCELLED, 137, (137, 137)),
        (facts(), ended(None, 1), "OUT_OF_MEMORY", EndReason.EXITED, 1, (137, 1)),
        (facts(), ended(None, None), "OUT_OF_MEMORY", EndReason.EXITED, 137, (137, 137)),
        (facts(), ended(None, None), "NODE_FAIL", EndReason.LOST, 137, (137, 137)),
        (facts(), ended(None, None), "", EndReason.LOST, 137, (137, 137)),
        (facts(began={}), ended(None, None), "CANCELLED", EndReason.CANCELLED, 143, (None, None)),
        (facts(began={}), ended(None, None), "FAILED", EndReason.NOT_STARTED, 126, (None, None)),
        (facts(began={}, cancel="x"), ended(None, None), "FAILED", EndReason.CANCELLED, 143, (None, None)),
        (facts(began={}), ended(None, None), "BEWILDERED", EndReason.LOST, 137, (None, None)),
    ],
)
def test_an_end_is_the_scripts_word_before_slurms(known, tasks, state, ending, code, codes):
    end = build_end_record(
        known, tasks, JobEnd(7, state, OVER) if state is not None else None, "srun: error: boot", NOW
    )
    assert (end.ending, end.exit_code, end.task_codes) == (ending, code, codes)
    assert end.ended_at == OVER
    assert end.detail or end.exit_code == 0


def test_a_command_that_is_not_there_was_not_started():
    tasks = (TaskEnd(127, BEGAN, "trian was not found"), None)
    end = build_end_record(facts(began={}, done=done("failed")), tasks, None, "", NOW)
    assert (end.ending, end.exit_code, end.detail) == (EndReason.NOT_STARTED, 127, "trian was not found")


def test_where_no_task_began_slurms_complaint_is_the_reason():
    end = build_end_record(
        facts(began={}, done=done("none")), (None, None), None, "moorings: no partition within 60 s", NOW
    )
    assert (end.ending, end.detail) == (EndReason.NOT_STARTED, "moorings: no partition within 60 s")


def test_who_cancelled_it_is_told():
    assert (
        build_end_record(facts(done=done("asked"), cancel="ann did"), ended(143, 143), None, "", NOW).detail
        == "ann did"
    )
    left = (TaskEnd(129, BEGAN, "its terminal was unattended"), None)
    assert build_end_record(facts(done=done("asked")), left, None, "", NOW).detail == "its terminal was unattended"
    there = build_end_record(facts(), ended(143, 143), JobEnd(7, "PREEMPTED", OVER), "", NOW)
    assert (there.ending, there.detail) == (EndReason.CANCELLED, "job 7 is PREEMPTED in Slurm")


def test_an_end_is_never_before_its_beginning():
    end = build_end_record(facts(began={0: NOW}), ended(0, 0), JobEnd(7, "COMPLETED", BEGAN), "", NOW)
    assert (end.started_at, end.ended_at) == (NOW, NOW)
