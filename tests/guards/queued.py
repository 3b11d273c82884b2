"""Guards of runs that wait in another scheduler's queue: laws 3, 8 and 10 where the claim is not ours."""

from __future__ import annotations

from tests.guards.guard import Guard

RUNNING = "tests/unit/controller/test_running.py::"
QUEUED_RUNS = "tests/unit/workloads/test_queued_runs.py::"
PRUNING = "tests/unit/slurm/test_engine_pruning.py::"
SUBMISSION = "tests/unit/slurm/test_engine_submission.py::"
VERDICT = "tests/unit/slurm/test_engine_verdict.py::"

QUEUED = (
    # -- law 3: a live job never loses its partition because of us, and none runs twice ------------------------------
    Guard(
        law="3",
        what="a run in another scheduler's queue has ended when that says so",
        file="workloads/run_turn.py",
        at="RunTurn._cancel",
        cut="run.is_queued",
        put="False",
        tests=(f"{QUEUED_RUNS}test_one_that_is_cancelled_has_not_ended_before_its_scheduler_says_so",),
    ),
    Guard(
        law="3",
        what="a run that a scheduler has is not submitted again",
        file="workloads/runs.py",
        at="Run.is_unsubmitted",
        cut="self.reference is None",
        put="True",
        tests=(
            f"{RUNNING}test_a_run_that_its_engines_scheduler_has_is_not_submitted_again",
            f"{QUEUED_RUNS}test_one_that_was_in_a_queue_and_is_lost_there_is_not_started_anew",
        ),
    ),
    Guard(
        law="3",
        what="a job that was requeued has not ended, whatever its earlier start wrote down",
        file="slurm/engine/run_status.py",
        at="has_ended",
        cut="facts.done.stop in _BY_STOP",
        put="True",
        tests=(f"{VERDICT}test_a_look_says_what_folder_and_slurm_say_together",),
    ),
    Guard(
        law="3",
        what="the folder of a run that Slurm may have is not removed for its age",
        file="engines/run_folder.py",
        at="ScheduledRunFolder.ended_before",
        cut="facts is not None and facts.is_submitted",
        put="False",
        tests=(f"{PRUNING}test_only_what_ended_long_ago_goes",),
    ),
    # -- law 8: every wait says why ------------------------------------------------------------------------------------
    Guard(
        law="8",
        what="a run that cannot be submitted says why it waits",
        file="controller/run_manager.py",
        at="RunManager._carry_out",
        cut='self._loop.runs.set_wait_reason(ident, f"it could not be submitted yet: {error.detail}")',
        put="",
        tests=(f"{RUNNING}test_a_run_that_cannot_be_submitted_says_why_it_waits",),
    ),
    # -- law 10: secrets stay secret, and nobody is who he only says he is ---------------------------------------------
    Guard(
        law="10",
        what="runs on Slurm are never root's",
        file="app/wiring.py",
        at="check_slurm_user",
        cut="settings is not None and settings.folder is not None and user_id == 0",
        put="False",
        tests=(
            "tests/unit/app/test_wiring.py::test_jobs_never_become_roots_on_a_cluster",
            "tests/e2e/test_slurm_settings.py::test_a_controller_that_runs_as_root_does_not_start",
        ),
    ),
    Guard(
        law="10",
        what="a controller looks who it is before it may submit to Slurm",
        file="app/controller.py",
        at="serve",
        cut="check_slurm_user(settings.slurm, os.geteuid())",
        put="",
        tests=("tests/e2e/test_slurm_settings.py::test_a_controller_that_runs_as_root_does_not_start",),
    ),
    Guard(
        law="10",
        what="nothing in a job says as whom it runs on Slurm",
        file="slurm/engine/submission.py",
        at="build_submit",
        cut='f"--ipus={job.accelerators.size}"',
        put="*(f\"--ipus={job.accelerators.size}\", f\"--uid={job.environment.get('USER', '0')}\")",
        tests=(f"{SUBMISSION}test_nothing_in_a_job_says_as_whom_it_runs",),
    ),
    Guard(
        law="10",
        what="a run's command is not on the command line of sbatch",
        file="slurm/engine/submission.py",
        at="build_submit",
        cut='f"--job-name={job.name}"',
        put='f"--job-name={job.command_line}"',
        tests=(f"{SUBMISSION}test_nothing_of_command_folder_and_variables_is_on_the_command_line",),
    ),
)
