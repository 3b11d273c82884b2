"""IPUJobs read from JSON: the documented examples, every spelling, whatever a lax server let through; statuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.ipujob.parsing import FieldError, parse_ipujob, parse_status, read_ipujob, status_object
from moorings.kubernetes.ipujob.types import (
    FINALIZER,
    CleanPodPolicy,
    Condition,
    InstanceOutcome,
    InstanceStatus,
    IPUJobStatus,
    JobKind,
    RestartType,
    StartAttempts,
)
from moorings.wire.codec import parse_time
from tests.cases import cases
from tests.unit.kubernetes.ipujobs import a_spec, a_template, an_object, anything, example, objects


def faults(**more: Any) -> tuple[FieldError, ...]:
    return read_ipujob(an_object(a_spec(**more)))[1]


def sizes(**more: Any) -> tuple[int, int, int]:
    job, found = read_ipujob(an_object(a_spec(**more)))
    assert found == ()
    return job.ipus, job.workers, job.replicas


# -- the documented examples -------------------------------------------------------------------------------------------


def test_the_training_sample():
    job = parse_ipujob(example("single-gcd-sample.yaml"))
    assert (job.name, job.kind, job.has_launcher) == ("ipujob-sample", JobKind.TRAINING, True)
    assert (job.instances, job.ipus, job.workers, job.replicas) == (1, 1, 1, 1)
    assert job.command[:7] == ("mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "1", "python3")
    assert job.command[-1] == "--iterations=20"
    assert (job.args, job.launcher, job.ttl_s) == ((), {}, None)
    assert job.template["metadata"]["labels"] == {"app": "resnet-launcher"}
    assert [each["name"] for each in job.template["spec"]["containers"]] == ["resnet"]


def test_defaults_are_those_that_describe_shows():
    job = parse_ipujob(example("single-gcd-sample.yaml"))
    assert (job.restart_policy, job.backoff_limit, job.clean_pod_policy) == (RestartType.NEVER, 3, CleanPodPolicy.NONE)
    assert (job.release_on_finish, job.priority) == (True, 0)
    assert (job.start_deadline_s, job.node_lost_s) == (None, 0)
    assert job.status == IPUJobStatus()


def test_the_interactive_sample():
    job = parse_ipujob(example("interactive-job.yaml"))
    assert (job.name, job.kind, job.has_launcher) == ("interactive-sample-job", JobKind.INTERACTIVE, True)
    assert (job.ipus, job.workers, job.ttl_s, job.command) == (2, 1, 3600, ())


def test_the_inference_sample():
    job = parse_ipujob(example("inference.yaml"))
    assert (job.key, job.kind, job.has_launcher) == ("default/job-inference-1", JobKind.INFERENCE, False)
    assert (job.instances, job.ipus, job.workers, job.clean_pod_policy) == (1, 1, 1, CleanPodPolicy.NONE)


def test_the_sample_with_a_volume():
    job = parse_ipujob(example("single-gcd-sample-nfs.yaml"))
    assert (job.ipus, job.workers) == (1, 1)
    (volume,) = job.template["spec"]["volumes"]
    assert volume == {"name": "mypvc", "persistentVolumeClaim": {"claimName": "nfs-pvc"}}


def test_the_older_names_that_describe_shows():
    spec = {
        "cleanPodPolicy": "None",
        "ipusPerModelReplica": 1,
        "launcher": {"command": ["mpirun", "python3"]},
        "modelReplicas": 4,
        "restartPolicy": {"backOffLimit": 3, "type": "Never"},
        "workers": {"replicas": 1, "template": a_template()},
    }
    job, found = read_ipujob(an_object(spec))
    assert found == ()
    assert (job.ipus, job.workers, job.replicas) == (4, 1, 4)


def test_a_job_of_a_site_with_everything_in_its_template():
    spec = a_spec(
        ipusPerJobInstance="64",
        jobInstances=1,
        modelReplicasPerWorker="64",
        launcher={"command": ["bash", "-c"], "args": ["poprun ..."], "image": "x"},
        workers={
            "template": a_template(
                hostIPC=True, restartPolicy="Never", volumes=[{"name": "devshm", "emptyDir": {"medium": "Memory"}}]
            )
        },
    )
    job, found = read_ipujob(an_object(spec))
    assert found == ()
    assert (job.ipus, job.workers, job.replicas) == (64, 1, 64)
    assert (job.args, job.launcher) == (("poprun ...",), {"image": "x"})
    assert job.template["spec"]["hostIPC"] is True


# -- spellings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [8, "8", 8.0])
def test_numbers_are_read_with_and_without_quotes(number):
    assert sizes(ipusPerJobInstance=number) == (8, 1, 1)


@cases(
    ("spec", "wanted"),
    [
        ({"workerPerJobInstance": "2"}, (4, 2, 1)),
        ({"workers": {"replicas": 2}}, (4, 2, 1)),
        ({"workerPerJobInstance": "2", "workers": {"replicas": 2}}, (4, 2, 1)),
        ({"ipusPerJobInstance": None, "modelReplicas": 2, "ipusPerModelReplica": "2"}, (4, 1, 2)),
        ({"ipusPerJobInstance": None, "modelReplicas": 4, "workerPerJobInstance": 2}, (4, 2, 2)),
        ({"ipusPerJobInstance": None, "ipusPerModelReplica": 16}, (16, 1, 1)),
        ({"modelReplicas": 2, "ipusPerModelReplica": 2}, (4, 1, 2)),
        ({"modelReplicas": 2, "ipusPerModelReplica": 2, "modelReplicasPerWorker": "2"}, (4, 1, 2)),
    ],
)
def test_spellings_mean_the_same(spec, wanted):
    assert sizes(**spec) == wanted


@pytest.mark.parametrize(
    ("spec", "path", "problem"),
    [
        (
            {"workerPerJobInstance": "2", "workers": {"replicas": 4}},
            "spec.workerPerJobInstance",
            "is 2, but workers.replicas is 4",
        ),
        (
            {"modelReplicas": 2, "ipusPerModelReplica": 4},
            "spec.ipusPerJobInstance",
            "is 4, but modelReplicas times ipusPerModelReplica is 8",
        ),
        (
            {"modelReplicas": 4, "ipusPerModelReplica": 1, "modelReplicasPerWorker": 2},
            "spec.modelReplicasPerWorker",
            "is 2, but modelReplicas divided by the workers is 4",
        ),
        (
            {"ipusPerJobInstance": None, "modelReplicas": 3, "workerPerJobInstance": 2},
            "spec.modelReplicas",
            "3 model replicas cannot be divided among 2 workers",
        ),
        ({"ipusPerJobInstance": None}, "spec.ipusPerJobInstance", "is missing"),
    ],
)
def test_spellings_that_disagree_are_noted(spec, path, problem):
    (found,) = faults(**spec)
    assert (found.path, found.problem) == (path, problem)
    assert found.hint


# -- what cannot be read -----------------------------------------------------------------------------------------------


@cases("wrong", ["0", 0, -1, "-1", "x", "", " 4", "04", 1.5, True, [], {}, 1 << 20 | 1, "1" * 99])
def test_a_size_is_a_positive_whole_number(wrong):
    (found,) = faults(ipusPerJobInstance=wrong)
    assert found.path == "spec.ipusPerJobInstance"
    assert found.problem.startswith("must be a whole number from 1 to 1048576, not ")
    assert len(found.problem) < 150


@cases(
    ("spec", "path", "problem"),
    [
        ({"jobInstances": -1}, "spec.jobInstances", "must be a whole number from 0 to 4096, not -1"),
        ({"jobInstances": "1"}, "spec.jobInstances", "must be a whole number from 0 to 4096, not '1'"),
        ({"jobInstances": 4097}, "spec.jobInstances", "must be a whole number from 0 to 4096, not 4097"),
        (
            {"interactive": {"ttl": 0}},
            "spec.interactive.ttl",
            "must be a whole number from 1 to 31622400, not 0",
        ),
        (
            {"restartPolicy": {"backOffLimit": -1}},
            "spec.restartPolicy.backOffLimit",
            "must be a whole number from 0 to 1000000, not -1",
        ),
        (
            {"restartPolicy": {"type": "Sometimes"}},
            "spec.restartPolicy.type",
            "must be one of Always, OnFailure, Never, ExitCode, not 'Sometimes'",
        ),
        ({"restartPolicy": "Never"}, "spec.restartPolicy", "must be an object, not 'Never'"),
        ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy", "must be one of None, Workers, All, not 'Some'"),
        ({"releaseOnFinish": "no"}, "spec.releaseOnFinish", "must be true or false, not 'no'"),
        (
            {"launcher": {"command": ["sleep", 1]}},
            "spec.launcher.command",
            "must be a list of strings, not ['sleep', 1]",
        ),
        ({"launcher": {"command": "mpirun"}}, "spec.launcher.command", "must be a list of strings, not 'mpirun'"),
        ({"priority": 1_000_001}, "spec.priority", "must be a whole number from -1000000 to 1000000, not 1000001"),
        ({"workers": []}, "spec.workers", "must be an object, not []"),
        (
            {"startDeadlineSeconds": -1},
            "spec.startDeadlineSeconds",
            "must be a whole number from 0 to 31622400, not -1",
        ),
        ({"nodeLostSeconds": "5m"}, "spec.nodeLostSeconds", "must be a whole number from 0 to 31622400, not '5m'"),
    ],
)
def test_what_is_of_the_wrong_kind_is_noted(spec, path, problem):
    assert [(found.path, found.problem) for found in faults(**spec)] == [(path, problem)]


def test_values_at_the_bounds_are_read():
    job, found = read_ipujob(
        an_object(
            a_spec(
                jobInstances=4096,
                priority=-1_000_000,
                interactive={"ttl": 31_622_400},
                restartPolicy={"type": "ExitCode", "backOffLimit": 0},
                cleanPodPolicy="All",
                releaseOnFinish=False,
                startDeadlineSeconds=0,
                nodeLostSeconds=31_622_400,
            )
        )
    )
    assert found == ()
    assert (job.instances, job.priority, job.ttl_s) == (4096, -1_000_000, 31_622_400)
    assert (job.restart_policy, job.backoff_limit, job.clean_pod_policy) == (
        RestartType.EXIT_CODE,
        0,
        CleanPodPolicy.ALL,
    )
    assert job.release_on_finish is False
    assert (job.start_deadline_s, job.node_lost_s) == (0, 31_622_400)


def test_a_job_scaled_to_zero_has_no_instances():
    assert parse_ipujob(an_object(a_spec(jobInstances=0))).instances == 0


def test_an_interactive_job_that_says_no_more_idles_for_an_hour():
    assert parse_ipujob(an_object(a_spec(interactive={}))).ttl_s == 3600


def test_unknown_fields_are_passed_over():
    assert faults(somethingNew={"a": 1}) == ()


def test_metadata_is_read():
    job = parse_ipujob(
        an_object(
            uid="u",
            generation=3,
            resourceVersion="7",
            creationTimestamp="2021-03-22T10:10:31Z",
            deletionTimestamp="2021-03-22T10:10:45Z",
            finalizers=[FINALIZER],
        )
    )
    assert (job.uid, job.generation, job.resource_version) == ("u", 3, "7")
    assert (job.deleted, job.finalizers) == (True, (FINALIZER,))
    assert job.created_at == parse_time("2021-03-22T10:10:31Z")


@given(objects | st.fixed_dictionaries({"metadata": anything, "spec": anything, "status": anything}))
def test_no_json_breaks_the_reader(found):
    job, noted = read_ipujob(found)
    assert job == parse_ipujob(found)
    assert job.ipus >= 1
    assert job.workers >= 1
    assert job.replicas >= 1
    assert job.instances >= 0
    assert (job.ttl_s is not None) == (job.kind is JobKind.INTERACTIVE)
    assert all(each.path and each.problem for each in noted)


# -- the status --------------------------------------------------------------------------------------------------------

CREATED, STARTED = parse_time("2021-03-22T10:10:31Z"), parse_time("2021-03-22T10:10:45Z")


def a_condition(name: str, at: Timestamp, message: str, *, status: bool) -> Condition:
    return Condition(type=name, status=status, reason=f"IPUJob{name}", message=message, changed_at=at, updated_at=at)


def test_a_status_is_written_as_describe_shows_it():
    waiting = "IPUJob default/ipujob-sample is waiting for resources to be ready."
    running = "IPUJob default/ipujob-sample is running."
    status = IPUJobStatus(
        conditions=(
            a_condition("Pending", CREATED, waiting, status=False),
            a_condition("Running", STARTED, running, status=True),
        ),
        partition_created=True,
        launcher="Running",
        started_at=CREATED,
        workers_active=1,
    )
    written = status_object(status)
    assert written == {
        "conditions": [
            {
                "lastTransitionTime": "2021-03-22T10:10:31Z",
                "lastUpdateTime": "2021-03-22T10:10:31Z",
                "message": waiting,
                "reason": "IPUJobPending",
                "status": "False",
                "type": "Pending",
            },
            {
                "lastTransitionTime": "2021-03-22T10:10:45Z",
                "lastUpdateTime": "2021-03-22T10:10:45Z",
                "message": running,
                "reason": "IPUJobRunning",
                "status": "True",
                "type": "Running",
            },
        ],
        "iPUPartitionCreated": True,
        "launcherStatus": "Running",
        "restartCount": 0,
        "startTime": "2021-03-22T10:10:31Z",
        "workersStatus": {"active": 1},
        # beyond what it shows: the columns of `kubectl get`
        "currentInstances": 0,
        "desiredInstances": 0,
        "observedGeneration": 0,
    }


def test_instances_are_written_by_their_number():
    records = {10: InstanceStatus(restarts=2, failures=1), 2: InstanceStatus(outcome=InstanceOutcome.FAILED)}
    written = status_object(IPUJobStatus(instances=records))["instances"]
    assert written == {
        "2": {"restarts": 0, "failures": 0, "outcome": "Failed"},
        "10": {"restarts": 2, "failures": 1},
    }
    assert list(written) == ["2", "10"]


def test_times_are_written_to_the_second():
    assert status_object(IPUJobStatus(started_at=Timestamp(CREATED + 999_999)))["startTime"] == "2021-03-22T10:10:31Z"


counts = st.integers(0, 1 << 31)
texts = st.text(max_size=20)
moments = st.integers(0, 4_000_000_000).map(lambda second: Timestamp(second * SECOND))
statuses = st.builds(
    IPUJobStatus,
    state=texts,
    current=counts,
    desired=counts,
    message=texts,
    conditions=st.lists(
        st.builds(
            Condition,
            type=texts,
            status=st.none() | st.booleans(),
            reason=texts,
            message=texts,
            changed_at=moments,
            updated_at=moments,
            observed_generation=counts,
        ),
        max_size=3,
    ).map(tuple),
    partition_created=st.booleans(),
    launcher=texts,
    restart_count=counts,
    started_at=st.none() | moments,
    completed_at=st.none() | moments,
    workers_active=counts,
    workers_succeeded=counts,
    workers_failed=counts,
    observed_generation=counts,
    instances=st.dictionaries(
        st.integers(0, 4095),
        st.builds(
            InstanceStatus,
            restarts=counts,
            failures=counts,
            outcome=st.none() | st.sampled_from(InstanceOutcome),
            detail=texts,
            start=st.builds(
                StartAttempts, since=st.none() | moments, missed=counts, until=st.none() | moments, why=texts
            ),
        ),
        max_size=3,
    ),
)


@given(statuses)
def test_a_status_is_read_as_it_was_written(status):
    assert parse_status(status_object(status)) == status


@given(anything)
def test_no_json_breaks_the_reader_of_statuses(found):
    status = parse_status(found)
    assert parse_status(status_object(status)).state == status.state


def test_a_status_that_was_never_written_is_empty():
    assert parse_status(None) == IPUJobStatus() == parse_status({})


def test_a_record_without_a_number_is_passed_over():
    status = parse_status({"instances": {"x": {"restarts": 1}, "1": {"restarts": 1}, "-1": {}}})
    assert status == replace(IPUJobStatus(), instances={1: InstanceStatus(restarts=1)})
