"""Guards of the jobs of appliances, and of what is shown elsewhere."""

from __future__ import annotations

from tests.guards.guard import Guard

TURN = "tests/unit/workloads/test_turn.py::"
RUNS = "tests/e2e/test_appliance_runs.py::"
APPLIANCE = "tests/unit/workloads/test_appliance.py::"
SURROGATES = "tests/unit/slurm/test_surrogates.py::"

APPLIANCE_JOBS: tuple[Guard, ...] = (
    Guard(
        law="2",
        what="a client that is gone loses what waits and what runs",
        file="controller/turn.py",
        at="decide_turn",
        cut="run_turn.cancel_expired(turn.expire_leases(occasion.since, run_turn.has_run))",
        put="turn.expire_leases(occasion.since, run_turn.has_run)[:0]",
        tests=(f"{RUNS}test_a_client_that_is_gone_loses_its_job_and_one_that_is_heard_does_not",),
    ),
    Guard(
        law="2",
        what="a step in Slurm ends with its client",
        file="slurm/surrogate/placeholder.sh",
        at="",
        cut="exit 1",
        put="exit 0",
        tests=(f"{SURROGATES}test_it_fails_when_its_client_is_gone[/usr/bin/dash-0]",),
    ),
    Guard(
        law="3",
        what="a claim whose lease has run out is not taken from under its run",
        file="core/scheduling/turn_schedule.py",
        at="expire_leases",
        cut="in_use(claim.id)",
        put="False",
        tests=(f"{RUNS}test_a_reservation_keeps_the_systems_between_jobs_and_goes_with_its_lease",),
    ),
    Guard(
        law="3",
        what="a claim that somebody keeps does not go with the run within it",
        file="workloads/run_turn.py",
        at="RunTurn._end",
        cut="run.within",
        put="False",
        tests=(f"{TURN}test_a_run_within_a_claim_starts_when_that_is_ready_and_leaves_it_as_it_is",),
    ),
    Guard(
        law="1",
        what="one run at a time is within a claim",
        file="workloads/run_turn.py",
        at="RunTurn._check_within",
        cut="self.has_run(claim.id)",
        put="False",
        tests=(f"{TURN}test_one_run_at_a_time_is_within_a_claim_and_of_its_shape",),
    ),
    Guard(
        law="10",
        what="a run within a claim belongs to the claim's subject",
        file="controller/run_service.py",
        at="RunService._claim_for",
        cut='check_owner_access(caller, claim.owner, claim.subject, "run something within a claim")',
        put="",
        tests=(f"{RUNS}test_a_reservation_keeps_the_systems_between_jobs_and_goes_with_its_lease",),
    ),
    Guard(
        law="10",
        what="only its own subject adds jobs to a workflow",
        file="controller/run_service.py",
        at="RunService._priority",
        cut="any(run.subject != caller.subject for run in jobs)",
        put="False",
        tests=(f"{RUNS}test_a_workflow_whose_jobs_have_ended_is_still_its_owner_s",),
    ),
    Guard(
        law="10",
        what="P0 is for admins",
        file="workloads/appliance.py",
        at="is_for_admins",
        cut="priority >= -ADMIN_PRIORITY_MAX",
        put="False",
        tests=(
            f"{RUNS}test_a_workflow_has_one_priority_and_p0_is_for_admins",
            f"{APPLIANCE}test_what_stands_before_all_buckets_is_for_admins",
        ),
    ),
    Guard(
        law="10",
        what="only its subject or an admin changes a run's priority",
        file="controller/run_service.py",
        at="RunService.set_run_priority",
        cut='self._check_may_manage(caller, run, "change the priority of a run")',
        put="",
        tests=(f"{RUNS}test_a_workflow_has_one_priority_and_p0_is_for_admins",),
    ),
    Guard(
        law="10",
        what="only its subject or an admin labels a run",
        file="controller/run_service.py",
        at="RunService.label_run",
        cut='check_owner_access(caller, f"local/{run.id}", run.subject, "label a run")',
        put="",
        tests=(f"{RUNS}test_labels_are_changed_and_found",),
    ),
    Guard(
        law="8",
        what="a job that ended with its lease says so",
        file="workloads/run_turn.py",
        at="RunTurn.cancel_expired",
        cut='f"nobody renewed its lease of {claim.spec.lease_s:g} s"',
        put='""',
        tests=(f"{TURN}test_when_a_lease_runs_out_the_run_is_stopped_before_its_claim_goes",),
    ),
)
