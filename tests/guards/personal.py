"""Guards of runs that people submit to Slurm themselves: another's word ends nothing, and stops no stranger's job."""

from __future__ import annotations

from tests.guards.guard import Guard

ENGINE = "tests/unit/slurm/test_personal_engine.py::"
AGENT = "tests/unit/slurm/test_personal_jobs.py::"
PEOPLE = "tests/unit/slurm/test_people_of_claims.py::"
TOKEN = "tests/unit/api/test_run_token.py::"
FOLDER = "tests/unit/slurm/test_own_runs_folder.py::"
VARIABLES = "tests/unit/engines/test_environments.py::"
HANDED_IN = "tests/unit/controller/test_handed_in.py::"
ORDER = "tests/unit/workloads/test_dependencies.py::"
SERVICE = "tests/unit/controller/test_service.py::"

PERSONAL = (
    Guard(
        law="3",
        what="silence of an agent is no end of a job",
        file="slurm/engine/job_listings.py",
        at="JobListings.find",
        cut="seconds_between(listing.at, now) > LISTING_S",
        put="False",
        tests=(f"{ENGINE}test_silence_of_an_agent_changes_nothing",),
    ),
    Guard(
        law="3",
        what="only the agent that has listed a job can say that it is gone",
        file="slurm/engine/job_listings.py",
        at="JobListings.is_missing",
        cut="self.by_agent.get(each.seen_by)",
        put="next(reversed(self.by_agent.values()), None)",
        tests=(f"{ENGINE}test_only_the_agent_that_listed_a_job_can_miss_it",),
    ),
    Guard(
        law="3",
        what="a report of an end waits for Slurm's word",
        file="slurm/engine/personal.py",
        at="PersonalSlurmEngine._unlisted_status",
        cut="facts.done is not None",
        put="False",
        tests=(f"{ENGINE}test_report_of_an_end_ends_nothing_without_slurm",),
    ),
    Guard(
        law="3",
        what="values of variables are not written where their disk is not mounted",
        file="engines/environments.py",
        at="FolderEnvironments.save",
        cut="path.parent.mkdir(mode=0o700, exist_ok=True)",
        put="path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)",
        tests=(f"{VARIABLES}test_a_folder_that_is_away_is_not_used[save]",),
    ),
    Guard(
        law="10",
        what="a job counts for a run only if its user is the run's submitter",
        file="slurm/engine/job_listings.py",
        at="JobListings.find",
        cut="listing.by_attempt.get((run, each.attempt.number, each.uid), ())",
        put="[job for key, found in listing.by_attempt.items() if key[1] == each.attempt.number for job in found]",
        tests=(f"{ENGINE}test_job_of_another_user_or_comment_does_not_count[other0]",),
    ),
    Guard(
        law="10",
        what="the agent stops only a job that its own listing shows to be that user's",
        file="slurm/host/personal_jobs.py",
        at="PersonalJobs._exchange",
        cut="by_attempt.get((order.run, order.attempt, order.uid), ())",
        put="jobs",
        tests=(f"{AGENT}test_only_that_users_job_is_stopped",),
    ),
    Guard(
        law="10",
        what="the token of a run serves for its report alone",
        file="api/request_context.py",
        at="RequestContext._check_run_token",
        cut="not self.operation.takes_run_token",
        put="False",
        tests=(f"{TOKEN}test_a_runs_token_serves_for_nothing_but_its_report",),
    ),
    Guard(
        law="10",
        what="the token of a run serves for no other run",
        file="api/request_context.py",
        at="RequestContext._check_run_token",
        cut='self.path_values.get("id") != run',
        put="False",
        tests=(f"{TOKEN}test_a_runs_token_serves_for_no_other_run",),
    ),
    Guard(
        law="10",
        what="a person's runs are reported to their own controller alone",
        file="slurm/personal/own_runs.py",
        at="OwnRuns.unreported",
        cut="self._read(run).server == server",
        put="True",
        tests=(f"{FOLDER}test_runs_of_another_controller_are_left_to_it",),
    ),
    Guard(
        law="10",
        what="a claim names its user only where users may see each other's jobs",
        file="slurm/host/job_table.py",
        at="request_for",
        cut="not is_private",
        put="True",
        tests=(f"{PEOPLE}test_before_privatedata_is_known_no_user_is_named",),
    ),
    Guard(
        law="10",
        what="only a scheduler's agent says for whom it claims",
        file="controller/service.py",
        at="Controller.create_claim",
        cut="(since is not None or spec.person)",
        put="since is not None",
        tests=(f"{SERVICE}test_only_an_agent_says_for_whom_it_claims",),
    ),
    Guard(
        law="10",
        what="each run of an array is made only of what its own person has handed in",
        file="controller/run_service.py",
        at="RunService._check_person",
        cut="continue",
        put="return",
        tests=(f"{HANDED_IN}test_one_strangers_entry_among_ones_own_starts_nothing",),
    ),
    Guard(
        law="10",
        what="each element of an array has a token of its own",
        file="workloads/run_turn.py",
        at="_element",
        cut="given.token_digests[place]",
        put="given.token_digests[0]",
        tests=(f"{ORDER}test_what_its_person_submits_is_never_held_back_here",),
    ),
)
