"""Nodes that run a job's tasks and do not ask: who is judged, when it is a proof, and when it is the agent's fault."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.host.license_gate import QueueOffer
from moorings.slurm.host.plan import (
    ActionOutcomes,
    AgentAction,
    ClusterState,
    ListSteps,
    LogWarning,
    PlanState,
    StopUnboundJob,
    UpdateReservation,
    plan,
)
from moorings.slurm.host.unbound_tasks import (
    AT_ONCE_S,
    LOOK_S,
    SILENT_S,
    UnboundJob,
    UnboundNodes,
    find_unbound,
    jobs_missing_binds,
)
from moorings.slurm.step_records import TaskStep
from tests.unit.slurm.test_gate import licenses
from tests.unit.slurm.test_ledger import HOME, NONCE, a_claim, a_job, by_id

BEGAN = Timestamp(1_795_400_000 * SECOND)
AT_S = 1000.0
Asked = Mapping[JobStart, frozenset[str]]


def job(job_id: int = 1, nodes: str = "n1", **more: Any) -> JobRecord:
    return a_job(job_id, nodes=nodes, **({"start_time": BEGAN} | more))


def start(job_id: int = 1) -> JobStart:
    return JobStart(job_id, NONCE, 0)


def asked(*nodes: str, job_id: int = 1) -> Asked:
    return {start(job_id): frozenset(nodes)}


def step(number: int | None = None, *nodes: str, job_id: int = 1) -> TaskStep:
    return TaskStep(job_id, number, nodes or ("n1",))


@pytest.mark.parametrize(
    ("found", "known", "suspected"),
    [
        (job(), asked(), True),
        (job(), asked("n1"), False),
        (job(), {}, False),  # an agent before this one served it
        (job(nodes="n[1-2]"), asked("n1"), True),
        (job(nodes="n[1-", nodes_whole=False), asked("n1"), True),
        (job(state="CONFIGURING"), asked(), False),  # its nodes boot, or run their prologs
        (job(state="COMPLETING"), asked(), False),
        (job(restarts=1), asked(), False),
        (job(order=None), asked(), False),
    ],
)
def test_of_whom_slurm_is_asked(found: JobRecord, known: Asked, suspected: bool) -> None:
    assert jobs_missing_binds([found], known) == ([found] if suspected else [])


def looked(
    jobs: Sequence[JobRecord],
    known: Asked,
    *steps: TaskStep,
    plugged: Collection[str] = ("n9",),
    lapsed: Collection[str] = (),
    for_s: float = SILENT_S,
) -> list[UnboundJob]:
    """What is found at the second of two looks that see the same."""
    before, found = find_unbound(UnboundNodes(), jobs, known, steps, plugged, lapsed, AT_S)
    assert found == [], "never at the first look"
    return find_unbound(before, jobs, known, steps, plugged, lapsed, AT_S + for_s)[1]


def test_a_node_that_does_not_ask_is_found_after_a_minute() -> None:
    assert looked([job()], asked(), step(), for_s=SILENT_S - 1) == []
    assert looked([job()], asked(), step()) == [UnboundJob(job(), ("n1",), proven=True)]


def test_only_nodes_with_tasks_are() -> None:
    wide = job(nodes="n[1-3]", batch=False)
    assert looked([wide], asked(), for_s=10 * SILENT_S) == [], "an idle salloc"
    assert looked([wide], asked("n1"), step(0, "n1", "n3")) == [UnboundJob(wide, ("n3",), proven=True)]


@pytest.mark.parametrize(
    ("plugged", "known", "proven"),
    [
        ({"n9"}, {}, True),
        ({"n9", "n1"}, {}, False),  # a long prolog, or a step that is somebody's look from another shell
        ({"n9"}, asked("n1", job_id=2), False),  # a plugin of the release before, which tells nothing
        (set(), {}, False),  # nobody's tells, or what was told is lost
    ],
)
def test_silence_is_a_proof_only_of_a_node_without_the_plugin(plugged: set[str], known: Asked, proven: bool) -> None:
    found = looked([job()], {**asked(), **known}, step(), plugged=plugged)
    assert [one.proven for one in found] == [proven]


def test_what_a_node_asked_before_its_slurmd_fell_silent_counts_no_more() -> None:
    known = {**asked(), **asked("n1", job_id=2)}
    assert [one.proven for one in looked([job()], known, step(), lapsed=("n1",))] == [True]
    assert [one.proven for one in looked([job()], known, step(), lapsed=("n2",))] == [False]
    assert looked([job(2)], known, step(job_id=2), lapsed=("n1",)) == [], "it has its partition"


def test_the_minute_begins_anew_with_each_start_and_after_a_gap() -> None:
    before, _ = find_unbound(UnboundNodes(), [job()], asked(), [step()], ("n9",), (), AT_S)
    gap, _ = find_unbound(before, [job()], asked(), [], ("n9",), (), AT_S + 30)
    assert find_unbound(gap, [job()], asked(), [step()], ("n9",), (), AT_S + SILENT_S)[1] == []
    again = job(restarts=1)
    assert (
        find_unbound(before, [again], {JobStart(1, NONCE, 1): frozenset()}, [step()], ("n9",), (), AT_S + SILENT_S)[1]
        == []
    )


# -- in the plan -------------------------------------------------------------------------------------------------------


def a_view(*jobs: JobRecord, steps: Sequence[TaskStep] | None = None, **more: Any) -> ClusterState:
    claims = {claim.owner: claim for claim in (a_claim(one.job_id) for one in jobs)}
    known: dict[str, Any] = {
        "at_s": AT_S,
        "jobs": by_id(*jobs),
        "listed_at": AT_S,
        "claims_before": claims,
        "claims": claims,
        "claims_listed": True,
        "is_accepted": True,
        "bound_nodes": {start(one.job_id): frozenset() for one in jobs},
        "nodes_with_plugin": frozenset({"n9"}),
        "n_nodes": 4,
    }
    return ClusterState(home=HOME, steps=steps, **(known | more))


def silent_view(*jobs: JobRecord, **more: Any) -> ClusterState:
    """The jobs' batch scripts run for a minute on nodes that did not ask."""
    steps = [step(None, one.nodes, job_id=one.job_id) for one in jobs]
    first = plan(a_view(*jobs, steps=steps), BEGAN)
    return a_view(*jobs, steps=steps, **({"at_s": AT_S + SILENT_S, "memory": first.memory} | more))


def acts(view: ClusterState, *kinds: type) -> list[AgentAction]:
    return [act for act in plan(view, BEGAN).acts if isinstance(act, kinds)]


def test_steps_are_listed_while_a_node_has_not_asked_and_seldom() -> None:
    first = plan(a_view(job()), BEGAN)
    assert [act for act in first.acts if isinstance(act, ListSteps)] == [ListSteps((1,))]
    soon = a_view(job(), memory=first.memory, listed_at=AT_S + 1, at_s=AT_S + 1)
    assert acts(soon, ListSteps) == []
    assert acts(replace(soon, listed_at=AT_S + LOOK_S, at_s=AT_S + LOOK_S), ListSteps) == [ListSteps((1,))]
    assert acts(a_view(job(), bound_nodes=asked("n1")), ListSteps) == []
    assert acts(a_view(job(), is_accepted=False), ListSteps) == [], "they may be another Slurm's claims"


def test_the_node_is_drained_and_the_job_stopped() -> None:
    why = "tasks of job 1 run on n1, which did not ask for its partition"
    assert acts(silent_view(job()), StopUnboundJob) == [StopUnboundJob(job(), ("n1",), why)]
    (report,) = acts(silent_view(job()), LogWarning)
    assert isinstance(report, LogWarning)
    assert (report.event, report.is_error) == ("node.silent", False)


def test_a_node_is_drained_once_for_a_job_that_is_still_there() -> None:
    view = silent_view(job())
    later = replace(view, memory=plan(view, BEGAN).memory, at_s=view.at_s + LOOK_S)
    for drained, nodes in (({}, ("n1",)), ({(1, 0): frozenset({"n1"})}, ())):  # Slurm was away; an admin may resume it
        (again,) = acts(replace(later, outcomes=ActionOutcomes(drained=drained)), StopUnboundJob)
        assert isinstance(again, StopUnboundJob)
        assert again.nodes == nodes


def test_a_doubt_is_told_and_nothing_done() -> None:
    look_in = [step(3, "n1")]
    known = {start(1): frozenset[str](), start(2): frozenset({"n1"})}
    jobs = (job(1), job(2))
    first = plan(a_view(*jobs, steps=look_in, bound_nodes=known), BEGAN)
    view = a_view(*jobs, steps=look_in, bound_nodes=known, memory=first.memory, at_s=AT_S + SILENT_S)
    assert acts(view, StopUnboundJob) == []
    assert len(acts(view, LogWarning)) == 1
    told = replace(
        view, bound_nodes={start(1): frozenset(), start(2): frozenset({"n2"})}, nodes_with_plugin=frozenset({"n1"})
    )
    assert acts(told, StopUnboundJob) == []
    assert len(acts(replace(told, nodes_with_plugin=frozenset({"n3"})), StopUnboundJob)) == 1


@pytest.mark.parametrize(
    ("silent", "n_nodes", "believed"), [(2, 4, True), (3, 4, False), (3, 60, True), (4, 60, False)]
)
def test_of_many_at_once_none_is_drained_and_the_gate_is_shut(silent: int, n_nodes: int, believed: bool) -> None:
    jobs = [job(number, f"n{number}") for number in range(1, silent + 1)]
    there = licenses({})
    view = silent_view(
        *jobs, n_nodes=n_nodes, licenses=there, licenses_at=AT_S, offer=QueueOffer(counts={4: 1}, asked_at=AT_S)
    )
    assert len(acts(view, StopUnboundJob)) == (silent if believed else 0)
    errors = [act for act in acts(view, LogWarning) if isinstance(act, LogWarning) and act.is_error]
    assert [act.event for act in errors] == ([] if believed else ["nodes.silent"])
    (reserve,) = acts(view, UpdateReservation)
    assert isinstance(reserve, UpdateReservation)
    assert (reserve.licenses["ipu_4"] == there["ipu_4"].total) is not believed


def test_the_gate_is_open_again_some_time_after_they_are_over() -> None:
    jobs = [job(number, f"n{number}") for number in range(1, 4)]
    memory: PlanState = plan(silent_view(*jobs), BEGAN).memory
    assert memory.silence.is_widespread(4)
    for apart_s, general in ((AT_ONCE_S / 2, True), (AT_ONCE_S, False)):
        at_s = AT_S + SILENT_S + apart_s
        later = plan(a_view(memory=memory, at_s=at_s, listed_at=at_s), BEGAN)
        assert later.memory.silence.is_widespread(4) is general
