"""The log decided again: nothing is lost in writing, and every kind of input can be read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.controller.replay import Replay
from moorings.controller.rewind_recovery import (
    CONTROLLER_NAME,
    REWIND_EVENT,
    RecoveredState,
    StartedRun,
    UnrecordedRun,
    plan_recovery,
)
from moorings.controller.turn import KeyedInput, decide_turn
from moorings.controller.turn_record import (
    INPUTS,
    AnyInput,
    TurnContext,
    VolatileState,
    build_turn_event,
    parse_turn_event,
)
from moorings.core.model.access import Role
from moorings.core.model.backlog import Amount
from moorings.core.model.claims import ClaimId, ClaimSpec, PartitionId, QueueMode
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.inputs import (
    CancelPendingClaim,
    CreateClaim,
    DriverResultReceived,
    ForeignPartitionsListed,
    PoolReachability,
    QueueReported,
    ReleaseClaim,
    ResetPartition,
)
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.pools import parse_pools
from moorings.core.model.queue_reports import QueuedJob, QueueReport
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet, FleetChanges
from moorings.core.placement.plans import SchedulePlan
from moorings.ports.store import Epoch, EventRow, Seq
from moorings.testing.builders import a_job
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.run_turn import CreateRun, RunRegistry
from moorings.workloads.runs import RunId, RunState
from tests.cases import cases
from tests.unit.controller.everything import held, paths_of, told_today, values_at
from tests.unit.controller.recording import POOLS, RELEASED, recorded

POOL = Pool(PoolName("pod8"), "ipu", "simulated", PowerOfTwo(1, 8, 8))
SECOND = 1_000_000


class Log:
    """A fleet that takes turns, and the rows they leave."""

    def __init__(self, policy: Policy = Policy()) -> None:  # noqa: B008
        self.policy = policy
        self.fleet = Fleet([POOL])
        self.runs = RunRegistry()
        self.rows: list[EventRow] = []
        self.now = Timestamp(1_700_000_000 * SECOND)
        self.since = self.now
        self.loaded: VolatileState | None = None
        self.reload(again=False)

    def turn(self, *inputs: AnyInput) -> None:
        self.now = Timestamp(self.now + SECOND)
        occasion = TurnContext(self.now, self.since, self.policy, self.loaded)
        outcome = decide_turn(self.fleet, self.runs, [KeyedInput(one) for one in inputs], occasion)
        self.fleet.apply(outcome.fleet)
        self.runs.apply(outcome.runs)
        for event in outcome.changes.events:
            self.rows.append(EventRow(Seq((self.rows[-1].seq if self.rows else 0) + 1), event))
        if outcome.changes:
            self.loaded = None

    def reload(self, *, again: bool) -> None:
        """What a new controller does at its start, and one that continues after a failed save."""
        before, devices = self.fleet, self.fleet.pools[POOL.name].out_of_service.values()
        self.fleet = Fleet.load([POOL], list(before.claims.values())[::-1], before.partitions.values(), devices)
        if again:
            self.fleet.apply(before.volatile_state())
            self.fleet.last_arrival = before.last_arrival
        self.loaded = VolatileState.of(self.fleet)

    def forget(self) -> None:
        """An answer was lost: the log has a turn, and memory is what it was before, but for the records."""
        beside = self.fleet.volatile_state()
        beside.foreign, beside.problems, beside.reserved_blocks = {POOL.name: {}}, {POOL.name: ""}, ()
        self.fleet.apply(beside)
        self.reload(again=True)

    def turn_back(self) -> None:
        """The database is put back, and what becomes of that: numbers leap, and its records learn of the world."""
        self.now = Timestamp(self.now + SECOND)
        claims = sorted(self.fleet.claims.values(), key=lambda claim: (claim.arrival, claim.id))
        held = sorted(self.fleet.partitions.values(), key=lambda partition: partition.id)
        runs = list(self.runs.by_id.values())
        at = self.rows[-1].seq if self.rows else Seq(0)
        epoch = Epoch(self.rows[-1].seq + 7 if self.rows else 7)
        started = {}
        for run in runs:
            on = self.fleet.claims.get(run.claim) if run.claim is not None else None
            if run.state is RunState.WAITING and on is not None and run.id < "run-5":
                started[run.id] = StartedRun(run.attempt, self.since, on.partition or PartitionId("elsewhere"))
        within = [
            UnrecordedRun(
                RunId(f"run-{at}-{one.id}"), one.claim, a_job(), "local", StartedRun(0, None, one.id, one.name), 99
            )
            for one in held
            if one.state is PartitionState.PROVISIONING and not self.runs.by_claim.get(one.claim)
        ]
        learned = RecoveredState(self.now, epoch, at, started, tuple(within))
        changes = plan_recovery(claims, held, runs, learned)
        self.fleet.apply(
            FleetChanges(
                claims={claim.id: (claim, save.expected) for claim, save in changes.claims},
                partitions={partition.id: (partition, save.expected) for partition, save in changes.partitions},
            )
        )
        self.runs.apply(run for run, _ in changes.runs)
        led = Event(
            name="controller.led", at=self.now, data=canonical_json({"epoch": epoch, "holder": CONTROLLER_NAME})
        )
        for number, event in enumerate([led, *changes.events], start=at + 1000):
            self.rows.append(EventRow(Seq(number), event))
        self.reload(again=False)

    def orders(self) -> list[Partition]:
        return [one for one in self.fleet.partitions.values() if one.state is not PartitionState.ACTIVE]


def claim(number: int, size: int = 1, **more: object) -> CreateClaim:
    spec = ClaimSpec(kind="ipu", size=size, **more)  # type: ignore[arg-type]
    return CreateClaim(id=ClaimId(f"claim-{number}"), name=f"c{number}", owner="user/ann", subject="ann", spec=spec)


def answer(partition: Partition, verdict: ResultCode = ResultCode.OK) -> DriverResultReceived:
    order = {"PROVISIONING": "create", "RESETTING": "reset"}.get(partition.state, "remove")
    seen = ObservedState.ABSENT if order == "remove" else ObservedState.ACTIVE
    return DriverResultReceived(
        PartitionId(partition.id), partition.version, order, DriverResult(verdict, seen, "as ordered")
    )


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Some life of a pool: claims of all sizes, good and bad answers, strangers, restarts."""
    log = Log()
    for number in range(draw(st.integers(1, 25))):
        what = draw(st.integers(0, 9))
        if what <= 3:
            queue = draw(st.sampled_from(QueueMode))
            lease = draw(st.sampled_from([None, 3.0]))
            log.turn(claim(number, draw(st.sampled_from([0, 1, 2, 4, 8])), queue=queue, lease_s=lease, priority=what))
        elif what <= 5:
            verdict = draw(st.sampled_from([ResultCode.OK, ResultCode.OK, ResultCode.BROKEN, ResultCode.REJECTED]))
            log.turn(*(answer(one, verdict) for one in log.orders()))
        elif what == 6:
            held = sorted(log.fleet.claims)
            chosen, only_waiting = held[: draw(st.integers(0, 3))], draw(st.booleans())
            log.turn(
                *(CancelPendingClaim(one, "done") if only_waiting else ReleaseClaim(one, "done") for one in chosen)
            )
        elif what == 7:
            blocks = draw(
                st.sampled_from(
                    [
                        {},
                        {"z": Block.parse("2-3"), "b": Block.parse("5")},
                        {"b": Block.parse("0,2,5"), "a": Block.parse("7")},
                    ]
                )
            )
            log.turn(ForeignPartitionsListed(PoolName("pod8"), blocks))
        elif what == 8:
            log.turn(PoolReachability(PoolName("pod8"), draw(st.sampled_from(["", "no listing"]))))
        else:
            match draw(st.integers(0, 3)):
                case 0:
                    log.forget()
                case 3:
                    log.turn_back()
                case again:
                    log.reload(again=again == 1)
    return log


def create_run(number: int, size: int) -> CreateRun:
    job = replace(a_job(number), accelerators=Accelerators(size=size))
    return CreateRun(
        id=RunId(f"run-{number}"), claim=ClaimId(f"claim-{number}"), job=job, engine="local", subject="ann"
    )


def test_where_a_database_went_back_a_replay_lets_its_records_learn_the_same() -> None:
    """Law 9: a run has started, one was made within a claim, a reset was done, and no attempt is what it was."""
    log = Log()
    log.turn(claim(1, 2), create_run(2, 2), claim(9, 2))
    log.turn(*(answer(one) for one in log.orders() if one.name == "c1"))
    log.turn(ResetPartition(next(iter(log.fleet.partitions))), create_run(3, 8))
    log.turn_back()
    names = [row.event.name for row in log.rows]
    assert (names.count("run.started"), names.count("partition.active")) == (3, 4), names
    log.turn(claim(4, 4), ReleaseClaim(ClaimId("claim-9"), "a run is within it"))
    for _ in range(3):
        log.turn(*(answer(one) for one in log.orders()))
    assert list(Replay([POOL]).replay_rows(log.rows)) == []
    without = [row for row in log.rows if row.event.name != REWIND_EVENT]
    assert list(Replay([POOL]).replay_rows(without)) != []


@given(logs())
def test_a_log_is_decided_again_byte_for_byte(log: Log) -> None:
    replay = Replay([POOL])
    through_json = [
        replace(
            row,
            event=replace(
                row.event, data=json.dumps(json.loads(row.event.data), sort_keys=True, separators=(",", ":"))
            ),
        )
        for row in log.rows
    ]
    assert list(replay.replay_rows(through_json)) == []
    assert replay.fleet.claims == log.fleet.claims
    assert replay.fleet.partitions == log.fleet.partitions
    if log.loaded is None:  # else what only memory held has gone since the last turn
        assert replay.fleet.reserved_blocks == log.fleet.reserved_blocks


def test_another_order_of_the_same_inputs_is_another_decision() -> None:
    log = Log()
    log.turn(claim(1, 8), claim(2, 4))
    (row,) = [row for row in log.rows if row.event.name == "turn.decided"]
    data = json.loads(row.event.data)
    data["inputs"].reverse()
    forged = [replace(one, event=replace(one.event, data=json.dumps(data))) if one is row else one for one in log.rows]
    (difference,) = Replay([POOL]).replay_rows(forged)
    assert difference.seq == row.seq
    assert difference.decided != difference.logged


def test_a_log_that_was_tampered_with_is_told() -> None:
    log = Log()
    log.turn(claim(1, 8))
    forged = [replace(row, event=replace(row.event, pool="another")) for row in log.rows]
    assert list(Replay([POOL]).replay_rows(log.rows)) == []
    assert list(Replay([POOL]).replay_rows(forged)) != []


def test_a_refused_claim_leaves_nothing_to_replay() -> None:
    log = Log()
    log.turn(claim(1, 8))
    before = len(log.rows)
    log.turn(claim(2, 8, queue=QueueMode.NEVER))
    assert len(log.rows) == before


def test_what_no_turn_wrote_is_passed_over() -> None:
    log = Log()
    log.turn(claim(1))
    row = EventRow(Seq(0), Event(name="key.created", at=log.now))
    assert list(Replay([POOL]).replay_rows([row, *log.rows, row])) == []


def test_a_log_of_other_pools_is_not_replayed_as_if_it_were_of_these() -> None:
    log = Log()
    log.turn(claim(1))
    other = Pool(PoolName("pod8"), "ipu", "simulated", PowerOfTwo(1, 8, 4))
    with pytest.raises(MooringsError, match="the pools were others then") as caught:
        list(Replay([other]).replay_rows(log.rows))
    assert caught.value.code == "log.unreadable"


def test_every_input_has_a_name_in_the_log() -> None:
    assert set(INPUTS.values()) == {kind for union in get_args(AnyInput) for kind in (get_args(union) or (union,))}


def test_the_log_keeps_no_environment() -> None:
    job = JobSpec(
        name="j",
        command=("train",),
        workdir="/home/ann/secret-project",
        environment={"TOKEN": "hunter2"},
        accelerators=Accelerators(size=2),
    )
    log = Log()
    log.turn(CreateRun(id="run-1", claim=ClaimId("claim-1"), job=job, engine="local", subject="ann"))  # type: ignore[arg-type]
    text = "".join(row.event.data for row in log.rows)
    assert "train" in text
    assert "hunter2" not in text
    assert "secret-project" not in text
    assert list(Replay([POOL]).replay_rows(log.rows)) == []


def test_a_run_refused_for_the_bytes_of_what_waits_is_refused_again() -> None:
    """Though the log has not the environment that was counted."""
    log = Log(Policy(waiting_bytes_max=1000))
    for number in range(3):
        log.turn(a_large_run(number))
    made = [row.event.run for row in log.rows if row.event.name == "run.created"]
    assert made == ["run-0", "run-1"]
    assert log.runs.backlog.for_subject("ann") == Amount(2, 800)
    assert list(Replay([POOL]).replay_rows(log.rows)) == []


def test_a_log_of_before_is_replayed_without_quotas() -> None:
    log = Log()
    for number in range(3):
        log.turn(replace(a_large_run(number), body_bytes=0))
    text = log.rows[-1].event.data
    assert "waiting" not in text
    assert "body_bytes" not in text
    assert list(Replay([POOL]).replay_rows(log.rows)) == []


def a_large_run(number: int) -> CreateRun:
    job = JobSpec(
        name="j", command=("x",), workdir="/", environment={"A": "x" * 300}, accelerators=Accelerators(size=8)
    )
    return CreateRun(
        id=RunId(f"run-{number}"),
        claim=None,
        job=job,
        engine="slurm",
        subject="ann",
        role=Role.USER,
        body_bytes=400,
    )


OCCASION = TurnContext(Timestamp(2), Timestamp(1), Policy(reserve=False), VolatileState.of(Fleet([POOL])))


def test_releases_are_written_as_they_always_were() -> None:
    """Else no log from before could be replayed byte for byte: what is new has an input of its own."""
    event = build_turn_event(OCCASION, (ReleaseClaim(ClaimId("c"), "over"),), SchedulePlan((), ()))
    assert json.loads(event.data)["inputs"] == [["release_claim", {"claim": "c", "why": "over"}]]


def test_a_turn_is_read_back_as_it_was_written() -> None:
    inputs = (claim(1, 4, resources={"memory": 5}, time_limit_s=2.5), PoolReachability(PoolName("pod8"), "gone"))
    event = build_turn_event(OCCASION, inputs, SchedulePlan((), ()))
    assert parse_turn_event(event.data) == (OCCASION, inputs)


def test_what_was_told_of_a_queue_before_it_had_an_instance_can_still_be_read() -> None:
    told = QueueReport(
        "slurm/a", "ipu", (QueuedJob("slurm/a/1/x", ClaimSpec(kind="ipu", size=4), Timestamp(1)),), OCCASION.now
    )
    written = json.loads(build_turn_event(OCCASION, (QueueReported(told),), SchedulePlan((), ())).data)
    for name in ("instance", "since", "rival"):
        del written["inputs"][0][1]["told"][name]
    assert parse_turn_event(json.dumps(written)) == (OCCASION, (QueueReported(told),))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"now":1}', '{"now":2,"since":1,"policy":{},"inputs":[["fly",{}]]}', '{"now":"x","inputs":[]}'],
)
def test_a_turn_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(MooringsError) as caught:
        parse_turn_event(text)
    assert caught.value.code == "log.unreadable"
    assert caught.value.hint


FROZEN = sorted(RELEASED.glob("*.jsonl"))
WHOLE = [path for path in FROZEN if path.with_suffix(".json").exists()]


def pools_of(path: Path) -> tuple[Pool, ...]:
    told = path.with_suffix(".json")
    return tuple(one.pool for one in parse_pools(json.loads(told.read_text())["pools"])) if path in WHOLE else POOLS


@cases("path", FROZEN, ids=lambda path: path.stem)
def test_a_log_of_a_release_before_is_decided_again_to_the_byte(path: Path) -> None:
    """What came later (ageing, say) means nothing in it, though claims of low priority waited for weeks."""
    rows = recorded(path)
    replay = Replay(pools_of(path))
    assert list(replay.replay_rows(rows)) == []
    assert replay.turns > 80


def test_claims_of_low_priority_waited_for_weeks_in_a_log_of_before_ageing() -> None:
    """Else ageing would have decided nothing in it."""
    rows = recorded(RELEASED / "before-ageing.jsonl")
    waited = {row.event.claim: row.event.at for row in rows if row.event.name == "claim.created"}
    week = 7 * 86_400 * SECOND
    assert any(row.event.at - waited[row.event.claim] > week for row in rows if row.event.name == "claim.granted")


@cases("path", WHOLE, ids=lambda path: path.stem)
def test_a_frozen_log_holds_every_input_event_and_field(path: Path) -> None:
    told = json.loads(path.with_suffix(".json").read_text())
    events = [row.event for row in recorded(path)]
    assert {event.name for event in events} == set(told["events"])
    found = paths_of(events)
    for field, said in told["fields"].items():
        values = values_at(found, field)
        assert all(one in values for one in (said if isinstance(said, list) else [said])), (field, said)


def test_every_name_of_a_frozen_log_is_still_written() -> None:
    story = told_today()
    held(story.events)  # the story leaves nothing out
    today = paths_of(story.events)
    for path in WHOLE:
        lost = set(paths_of(row.event for row in recorded(path))) - set(today)
        assert not lost, f"names of {path.name} that are written no more"
