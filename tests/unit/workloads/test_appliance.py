"""Jobs of an appliance: priorities as their users know them, labels, workflows."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import MooringsError
from moorings.workloads.appliance import (
    DEFAULT_PRIORITY,
    ApplianceJobType,
    AppliancePhase,
    WorkflowPart,
    appliance_phase,
    appliance_priority,
    check_workflow_part,
    is_for_admins,
    parse_priority,
    priority_bucket,
)
from moorings.workloads.labels import LABELS_MAX, apply_label_changes, check_labels
from moorings.workloads.runs import ENDED, RunState
from tests.cases import cases


@cases(
    ("text", "number", "bucket", "admins"),
    [
        ("p1", 199, "P1", False),
        ("P2", 299, "P2", False),
        ("p3", 399, "P3", False),
        ("0", 0, "P0", True),
        ("p0", 99, "P0", True),
        ("99", 99, "P0", True),
        ("100", 100, "P1", False),
        ("399", 399, "P3", False),
    ],
)
def test_a_lower_number_comes_first(text: str, number: int, bucket: str, admins: bool) -> None:
    priority = parse_priority(text)
    assert priority == -number
    assert priority_bucket(priority) == bucket
    assert is_for_admins(priority) == admins


def test_who_says_nothing_is_in_the_second_bucket() -> None:
    assert priority_bucket(DEFAULT_PRIORITY) == "P2"


@pytest.mark.parametrize("priority", [1, 500_000, 0])
def test_what_stands_before_all_buckets_is_for_admins(priority: int) -> None:
    assert is_for_admins(priority)
    assert priority_bucket(priority) == "P0"


@cases("text", ["p4", "", "400", "-1", "1.5", "²", "9" * 30])
def test_other_words_are_no_priority(text: str) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_priority(text)
    assert refused.value.code == "priority.invalid"
    assert "p1, p2 or p3" in refused.value.hint


@pytest.mark.parametrize("workflow", ["", "wflow-x", "wflow-" + "A" * 22, "wsjob-" + "a" * 22, "wflow-" + "a" * 23])
def test_a_workflow_has_a_name_of_its_form(workflow: str) -> None:
    with pytest.raises(MooringsError) as refused:
        check_workflow_part(WorkflowPart(ApplianceJobType.COMPILE, workflow))
    assert refused.value.code == "job.invalid"


@cases("labels", [{"": "x"}, {"a b": "x"}, {"a": "x=y"}, {"a": "x" * 64}, {'a"b': "x"}, {"ä": "x"}, {"a": "x%"}])
def test_labels_that_could_not_be_searched_for_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(MooringsError) as refused:
        check_labels(labels)
    assert refused.value.code == "label.invalid"


def test_labels_are_bounded() -> None:
    check_labels({f"k{number}": "" for number in range(LABELS_MAX)})
    with pytest.raises(MooringsError, match="more than"):
        check_labels({f"k{number}": "" for number in range(LABELS_MAX + 1)})


def test_labels_are_set_and_taken_away() -> None:
    assert apply_label_changes({"b": "1", "a": "2"}, {"b": None, "c": "3"}) == {"a": "2", "c": "3"}


@cases(
    ("state", "scheduled", "phase"),
    [
        (RunState.WAITING, False, AppliancePhase.QUEUED),
        (RunState.WAITING, True, AppliancePhase.SCHEDULED),
        (RunState.STARTING, True, AppliancePhase.SCHEDULED),
        (RunState.RUNNING, True, AppliancePhase.RUNNING),
        (RunState.YIELDING, True, AppliancePhase.RUNNING),
        (RunState.STOPPING, True, AppliancePhase.RUNNING),
        (RunState.SUCCEEDED, True, AppliancePhase.SUCCEEDED),
        (RunState.FAILED, False, AppliancePhase.FAILED),
        (RunState.TIMED_OUT, True, AppliancePhase.FAILED),
        (RunState.LOST, True, AppliancePhase.FAILED),
        (RunState.CANCELLED, False, AppliancePhase.CANCELLED),
    ],
)
def test_the_phase_of_a_job(state: RunState, scheduled: bool, phase: AppliancePhase) -> None:
    assert appliance_phase(state, scheduled=scheduled) == phase


def test_every_state_has_a_phase_and_only_ended_ones_have_an_end() -> None:
    ends = {AppliancePhase.SUCCEEDED, AppliancePhase.FAILED, AppliancePhase.CANCELLED}
    assert {state for state in RunState if appliance_phase(state, scheduled=True) in ends} == set(ENDED)
    assert {appliance_phase(state, scheduled=False) for state in RunState} == set(AppliancePhase)
    assert appliance_phase("FROZEN", scheduled=True) == "FROZEN", "of a newer controller"


def test_who_asks_for_systems_past_the_appliance_stands_in_its_order() -> None:
    assert appliance_priority("csx", 0, is_admin=False) == DEFAULT_PRIORITY
    assert appliance_priority("csx", -150, is_admin=False) == -150
    assert appliance_priority("csx", 7, is_admin=True) == 7
    assert appliance_priority("ipu", 7, is_admin=False) == 7
    for asked in (1, -99, 1_000_000):
        with pytest.raises(MooringsError) as refused:
            appliance_priority("csx", asked, is_admin=False)
        assert refused.value.code == "priority.denied"
