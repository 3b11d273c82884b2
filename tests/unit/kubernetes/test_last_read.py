"""A job is read again when it may be another one than it was, and only then."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from moorings.kubernetes.ipujob.parsing import parse_ipujob, parse_status, status_object
from moorings.kubernetes.operator.reconcile_state import ParsedJob

JOB: dict[str, Any] = {
    "apiVersion": "graphcore.ai/v1alpha1",
    "kind": "IPUJob",
    "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1},
    "spec": {"ipusPerJobInstance": "4", "workers": {"template": {"spec": {"containers": [{"name": "c"}]}}}},
}
STATUS = replace(parse_status({}), state="Running", message="all is well", observed_generation=1)


def changed(**values: Any) -> dict[str, Any]:
    """The job with other values: ``metadata__name=...``."""
    found = deepcopy(JOB)
    for path, value in values.items():
        part, _, name = path.partition("__")
        found[part][name] = value
    return found


def test_the_same_version_is_read_once_whichever_object_brings_it():
    kept = ParsedJob()
    first = kept.read(JOB, 600)
    assert kept.read(deepcopy(JOB), 600) is first


@pytest.mark.parametrize(
    "other",
    [
        changed(metadata__resourceVersion="2", spec__priority=3),
        changed(metadata__uid="another"),
        changed(spec__priority=3),  # of its PriorityClass, which has come meanwhile
    ],
    ids=["version", "uid", "priority"],
)
def test_another_version_another_job_and_another_priority_are_read(other):
    kept = ParsedJob()
    kept.read(JOB, 600)
    assert kept.read(other, 600) == replace(parse_ipujob(other), start_deadline_s=600)


def test_a_job_s_own_start_deadline_stays():
    assert ParsedJob().read(changed(spec__startDeadlineSeconds=5), 600).start_deadline_s == 5
    assert ParsedJob().read(JOB, 600).start_deadline_s == 600


def write(kept: ParsedJob, **meanwhile: Any) -> dict[str, Any]:
    """A status is written, and others write meanwhile; what the API server made of it."""
    job = kept.read(JOB, 600)
    written = changed(metadata__resourceVersion="3", **meanwhile) | {"status": status_object(STATUS)}
    kept.record_written(JOB, written, replace(job, status=STATUS, resource_version="3"))
    return written


def test_what_the_operator_wrote_is_known_without_reading(monkeypatch):
    kept = ParsedJob()
    written = write(kept)
    expected = replace(parse_ipujob(written), start_deadline_s=600)
    monkeypatch.setattr("moorings.kubernetes.operator.reconcile_state.parse_ipujob", None)
    assert kept.read(deepcopy(written), 600) == expected


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"spec__jobInstances": 2, "metadata__generation": 2},
        {"metadata__finalizers": ["another/one"]},
        {"metadata__deletionTimestamp": "2026-11-25T10:00:00Z"},
        {"metadata__annotations": {"moorings.dev/preemptible": "true"}},
    ],
    ids=["spec", "finalizers", "deleted", "annotations"],
)
def test_what_others_wrote_meanwhile_is_read(meanwhile):
    kept = ParsedJob()
    written = write(kept, **meanwhile)
    assert kept.read(written, 600) == replace(parse_ipujob(written), start_deadline_s=600)
