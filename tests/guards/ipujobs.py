"""Guards of IPUJobs: what the operator decides, what the proxy gives out, what a launcher waits for."""

from __future__ import annotations

from tests.guards.guard import FENCING, Guard

PLAN = "tests/unit/kubernetes/test_plan.py::"
PODS = "tests/unit/kubernetes/test_pods.py::"
CHOICE = "tests/unit/kubernetes/proxy/test_choice.py::"
LAUNCHER = "tests/unit/kubernetes/test_launcher.py::"
ELECTION = "tests/unit/kubernetes/test_election.py::"
RUNS = f"{PODS}test_a_pod_whose_program_still_runs_has_not_ended_whatever_its_phase"
NOT_READY = f"{PLAN}test_no_pod_is_made_before_the_partition_is_ready"
KNOWN = "tests/unit/kubernetes/proxy/test_known.py::"
FIRST_SEEN = f"{KNOWN}test_a_claim_that_was_ready_when_it_was_first_seen_may_have_been_used"
DELETED = f"{PLAN}test_a_deleted_job_goes_pods_first_then_partitions_then_itself"

IPUJOBS = (
    Guard(
        law="3",
        what="a borrowed partition goes back when none of its Pods is left",
        file="kubernetes/plan.py",
        at="_Judge._make_room",
        cut="if not self._pods:\n    acts = (Yield(self._number),)",
        put="acts = (*acts, Yield(self._number))",
        tests=(f"{PLAN}test_a_partition_that_is_needed_goes_back_when_the_pods_have_ended_the_launcher_first",),
    ),
    Guard(
        law="1",
        what="of two controllers' grants one is given out, when the other claim has ended",
        file="kubernetes/proxy/choice.py",
        at="_keep_one",
        cut="not why or book.given is not None",
        put="True",
        tests=(f"{CHOICE}test_what_waits_elsewhere_is_withdrawn_before_anything_is_given",),
    ),
    Guard(
        law="2",
        what="a deleted IPUJob keeps its finalizer until its partitions are given back",
        file="kubernetes/plan.py",
        at="_going",
        cut="if held:",
        put="False",
        tests=(DELETED,),
    ),
    Guard(
        law="2",
        what="a deleted IPUJob keeps its finalizer while nobody knows its partitions",
        file="kubernetes/plan.py",
        at="_going",
        cut="not partitions.standing",
        put="False",
        tests=(DELETED,),
    ),
    Guard(
        law="3",
        what="a deleted IPUJob's Pods go before its partitions",
        file="kubernetes/plan.py",
        at="_going",
        cut="if pods:",
        put="False",
        tests=(DELETED,),
    ),
    Guard(
        law="3",
        what="an instance that is not wanted any more loses its Pods before its partition",
        file="kubernetes/plan.py",
        at="_shrink",
        cut="if pods:",
        put="False",
        tests=(f"{PLAN}test_scaling_down_takes_pods_before_partitions",),
    ),
    Guard(
        law="3",
        what="an instance that has ended keeps its partition while a program of it runs",
        file="kubernetes/plan.py",
        at="_Judge._finish",
        cut="not self._uses()",
        put="True",
        tests=(f"{PLAN}test_a_dead_worker_fails_its_job_though_the_launcher_runs",),
    ),
    Guard(
        law="3",
        what="a partition that the proxy does not name is missed only when it names all",
        file="kubernetes/plan.py",
        at="_Judge._lost",
        cut="not self._current",
        put="False",
        tests=(f"{PLAN}test_nothing_is_concluded_while_the_proxy_does_not_tell_all",),
    ),
    Guard(
        law="3",
        what="a Pod has ended when its containers have, whatever its phase",
        file="kubernetes/pods.py",
        at="has_ended",
        cut='not containers_in(status, "running")',
        put="True",
        tests=(f"{RUNS}[containerStatuses]", f"{RUNS}[initContainerStatuses]"),
    ),
    Guard(
        law="4",
        what="Pods are made for a partition that is READY",
        file="kubernetes/plan.py",
        at="_Judge.judge",
        cut="self._partition.state != shapes.READY",
        put="False",
        tests=(f"{NOT_READY}[WAITING]", f"{NOT_READY}[PREPARING]", f"{NOT_READY}[NEW_WORD]"),
    ),
    Guard(
        law="4",
        what="a partition that may have been used is cleaned before anything starts on it",
        file="kubernetes/plan.py",
        at="_Judge._fill",
        cut="not job.has_launcher and not there and not self._fresh",
        put="False",
        tests=(f"{PLAN}test_a_used_partition_is_cleaned_before_anything_starts_anew",),
    ),
    Guard(
        law="4",
        what="a partition whose claim was READY when it was first seen may have been used",
        file="kubernetes/proxy/known.py",
        at="known_of",
        cut="_PHASES.get(body.state, Phase.ENDED) < Phase.READY",
        put="True",
        tests=(f"{FIRST_SEEN}[READY-False]", f"{FIRST_SEEN}[FLOATING-False]"),
    ),
    Guard(
        law="4",
        what="a launcher starts when its partition is READY, and an unknown state is not",
        file="kubernetes/launcher.py",
        at="make_clean",
        cut="found.state == READY",
        put="True",
        tests=(f"{LAUNCHER}test_a_state_that_is_not_ready_is_not_ready[PREPARING]",),
    ),
    Guard(
        law="2",
        what="an IPUJob whose Pods are long refused gives its partition back",
        file="kubernetes/plan.py",
        at="_Judge.judge",
        cut="self._give_back(record, paused.why)",
        put="Instance(record=record)",
        tests=(f"{PLAN}test_what_is_refused_its_pods_for_long_gives_its_partition_back",),
    ),
    Guard(
        law="3",
        what="a program that runs is not stopped because a Pod beside it is refused",
        file="kubernetes/plan.py",
        at="_Judge.judge",
        cut="paused.starting or not self._uses()",
        put="True",
        tests=(f"{PLAN}test_a_program_that_runs_is_not_stopped_because_a_pod_of_it_is_refused",),
    ),
    Guard(
        law="5",
        what="a failed Pod is counted once",
        file="kubernetes/plan.py",
        at="_Judge.judge",
        cut="[pod for pod in self._pods if pod.restart >= record.restarts]",
        put="list(self._pods)",
        tests=(f"{PLAN}test_failures_count_against_the_limit_and_are_counted_once",),
    ),
    Guard(
        law="8",
        what="a job that waits for a partition says why",
        file="kubernetes/plan.py",
        at="_Judge._await_partition",
        cut='f"waiting for a partition of {ipus}" + (f": {partition.message}" if partition.message else "")',
        put='f"waiting for a partition of {ipus}"',
        tests=(f"{PLAN}test_why_it_waits_is_a_sentence",),
    ),
    Guard(
        law=FENCING,
        what="an operator leads from before its question on, not from the answer",
        file="kubernetes/election.py",
        at="Elector._try",
        cut="begun + self._terms.renew_s",
        put="self._elapsed() + 2 * self._terms.lease_s",
        tests=(f"{ELECTION}test_two_never_lead_at_the_same_time",),
    ),
)
