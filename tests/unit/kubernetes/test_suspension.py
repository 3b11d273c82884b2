"""What a suspended job may be given, and whose it is to start."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.pod_security import AdmissionLimits
from moorings.kubernetes.ipujob.types import FINALIZER, MANAGER
from moorings.kubernetes.ipujob.validation import check_ipujob, check_update, default_ipujob
from moorings.kubernetes.kube.api import KubeObject
from tests.unit.kubernetes.ipujobs import a_spec, a_template, an_object

PLACES: KubeObject = {
    "nodeSelector": {"flavor": "bow"},
    "tolerations": [{"key": "ipu", "operator": "Exists"}],
    "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
}


def job(*, suspend: bool, places: KubeObject | None = None, **labels: str) -> KubeObject:
    template = a_template(**(places or {})) | {"metadata": {"labels": labels}}
    return an_object(a_spec(suspend=suspend, workers={"template": template}))


def test_where_its_pods_run_is_said_as_it_is_resumed_and_taken_back_as_it_is_suspended() -> None:
    before, placed = job(suspend=True), job(suspend=False, places=PLACES, podset="main")
    check_update(before, placed)
    check_update(placed, before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (job(suspend=False), job(suspend=False, places=PLACES)),
        (job(suspend=True), job(suspend=True, places={"terminationGracePeriodSeconds": 5})),
    ],
    ids=["it-runs", "what-its-pods-do"],
)
def test_anything_else_of_its_pods_stays(before: KubeObject, after: KubeObject) -> None:
    with pytest.raises(MooringsError, match=r"spec.workers.template: cannot be changed"):
        check_update(before, after)


def test_what_may_change_is_checked_as_ever() -> None:
    with pytest.raises(MooringsError, match="nodeSelector"):
        check_update(job(suspend=True), job(suspend=True, places={"nodeSelector": "bow"}))


@pytest.mark.parametrize(
    ("meta", "suspended"),
    [
        ({"labels": {"kueue.x-k8s.io/queue-name": "team"}}, True),
        ({"labels": {"kueue.x-k8s.io/queue-name": ""}}, False),
        ({"labels": {"kueue.x-k8s.io/queue-name": "team"}, "ownerReferences": [{"controller": True}]}, False),
        ({}, False),
    ],
    ids=["queued", "no-queue", "owned", "plain"],
)
def test_a_job_that_kueue_is_to_start_is_made_suspended(meta: KubeObject, suspended: bool) -> None:
    given = an_object(a_spec(suspend=False), **meta)
    resume = {"op": "add", "path": "/spec/suspend", "value": True}
    assert (resume in default_ipujob(given, AdmissionLimits(suspends_queued=True))) is suspended
    assert resume not in default_ipujob(given)


@pytest.mark.parametrize(("manager", "ours"), [(None, True), (MANAGER, True), ("kueue.x-k8s.io/multikueue", False)])
def test_a_job_of_another_controller_is_not_held_by_us(manager: str | None, ours: bool) -> None:
    given = an_object(a_spec(managedBy=manager))
    assert check_ipujob(given).managed_elsewhere is not ours
    added = {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}
    assert (added in default_ipujob(given)) is ours


def test_a_job_that_we_have_taken_up_stays_ours() -> None:
    given = an_object(a_spec(managedBy="kueue.x-k8s.io/multikueue"), finalizers=[FINALIZER])
    assert not check_ipujob(given).managed_elsewhere


@pytest.mark.parametrize("manager", ["", "multikueue", "UPPER/x", "a/" + "b" * 62, 5])
def test_a_manager_has_a_domain(manager: object) -> None:
    with pytest.raises(MooringsError, match=r"spec.managedBy: must be a domain"):
        check_ipujob(an_object(a_spec(managedBy=manager)))


def test_its_manager_stays() -> None:
    with pytest.raises(MooringsError, match=r"spec.managedBy: cannot be changed"):
        check_update(an_object(a_spec()), an_object(a_spec(managedBy="kueue.x-k8s.io/multikueue")))
