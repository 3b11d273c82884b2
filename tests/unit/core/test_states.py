"""Every state table, over all pairs of state and event: what is not written there cannot happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from moorings.core.model import claims, devices, partitions
from moorings.core.model.claims import ClaimEvent, ClaimState
from moorings.core.model.devices import Device, DeviceEvent, DeviceState
from moorings.core.model.errors import IllegalTransitionError
from moorings.core.model.partitions import PartitionEvent, PartitionState
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, POOL, a_claim, a_partition, a_run
from moorings.workloads import runs
from moorings.workloads.runs import RunEvent, RunState
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)


@dataclass(frozen=True)
class Machine:
    """A table, the state its objects are made in, an object in a given state, a step, and words of its story."""

    name: str
    table: Mapping[Any, Mapping[Any, Any]]
    states: type[StrEnum]
    events: type[StrEnum]
    first: StrEnum
    ended: frozenset[str]
    at: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    story: tuple[str, ...]


CLAIM = Machine(
    "claim",
    claims.NEXT,
    ClaimState,
    ClaimEvent,
    ClaimState.PENDING,
    frozenset({"RELEASED", "CANCELLED", "FAILED"}),
    lambda state: a_claim(
        7, state=state, attempt=2, pool=POOL, partition="part-0007", reason=Reason("claim.broken", "a block broke")
    ),
    lambda claim, event: claims.step(claim, event, LATER),
    ("claim-0007", "4 ipu", "user/ann/7", "attempt 2", "part-0007", "pod64", "a block broke"),
)
PARTITION = Machine(
    "partition",
    partitions.NEXT,
    PartitionState,
    PartitionEvent,
    PartitionState.PROVISIONING,
    frozenset({"REMOVED"}),
    lambda state: a_partition(7, state=state, reason="a link is down"),
    lambda partition, event: partitions.step(partition, event, LATER),
    ("part-0007", "claim-0007", "28-31 of pod64", "a link is down"),
)
DEVICE = Machine(
    "device",
    devices.NEXT,
    DeviceState,
    DeviceEvent,
    DeviceState.IN_SERVICE,
    frozenset(),
    lambda state: Device(POOL, 7, state, "it smells", NOW),
    lambda device, event: devices.step(device, event, "", LATER),
    ("pod64:7", "it smells"),
)
RUN = Machine(
    "run",
    runs.NEXT,
    RunState,
    RunEvent,
    RunState.WAITING,
    frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT", "LOST"}),
    lambda state: a_run(7, state=state, detail="it was slow"),
    lambda run, event: runs.step(run, event, LATER),
    ("run-0007", "train-7", "by ann", "claim-0007", "it was slow"),
)
MACHINES = (CLAIM, PARTITION, DEVICE, RUN)
PAIRS = [(machine, state, event) for machine in MACHINES for state in machine.table for event in machine.events]
MOVES = [pair for pair in PAIRS if pair[2] in pair[0].table[pair[1]]]
NO_MOVES = [pair for pair in PAIRS if pair[2] not in pair[0].table[pair[1]]]

each_machine = cases("machine", MACHINES, ids=lambda machine: machine.name)


def pair_id(part: Any) -> str:
    return part.name if isinstance(part, Machine) else str(part)


def reachable(machine: Machine, start: Any) -> set[Any]:
    found, ahead = {start}, [start]
    while ahead:
        for state in set(machine.table[ahead.pop()].values()) - found:
            found.add(state)
            ahead.append(state)
    return found


@each_machine
def test_every_state_has_a_row(machine):
    assert set(machine.table) == set(machine.states) - {ClaimState.ANNOUNCED}  # that one is made again each turn


@each_machine
def test_every_event_can_happen_somewhere(machine):
    assert {event for moves in machine.table.values() for event in moves} == set(machine.events)


@each_machine
def test_every_state_can_be_reached_from_the_first(machine):
    assert reachable(machine, machine.first) == set(machine.table)


@each_machine
def test_ended_states_have_no_moves_and_all_others_have_some(machine):
    assert {state for state, moves in machine.table.items() if not moves} == machine.ended


@cases("machine", [m for m in MACHINES if m.ended], ids=lambda machine: machine.name)
def test_no_state_is_a_trap(machine):
    # From everywhere, what is held can still be given back.
    assert [state for state in machine.table if not reachable(machine, state) & machine.ended] == []


def test_a_claim_that_holds_a_partition_can_always_be_released():
    holding = set(ClaimState) - claims.ENDED - claims.WAITING - {ClaimState.RELEASING}
    assert [state for state in holding if ClaimEvent.RELEASE not in claims.NEXT[state]] == []


@cases(("machine", "state", "event"), MOVES, ids=pair_id)
def test_a_move_of_the_table_leads_where_it_says(machine, state, event):
    assert machine.step(machine.at(state), event).state is machine.table[state][event]


@cases(("machine", "state", "event"), NO_MOVES, ids=pair_id)
def test_any_other_move_is_refused_with_the_story(machine, state, event):
    with pytest.raises(IllegalTransitionError) as caught:
        machine.step(machine.at(state), event)
    message = str(caught.value)
    assert f"is {state}: '{event}' is not possible" in message
    assert [word for word in machine.story if word not in message] == []
