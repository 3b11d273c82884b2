"""The input of a turn, as ``turn.decided`` records it for replay (law 9).

Canonical JSON in the outbox, beside what followed: the audit trail, the watch stream and the replay log are one table.
A job is recorded without its environment and folder: nothing is decided by them, and every user may read the log
(law 10).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from moorings.core.model import inputs
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.machine import MACHINE_POOL
from moorings.core.model.policy import Policy
from moorings.core.model.queue_reports import QueueReport
from moorings.core.model.serialization import OMIT_IF_DEFAULT, from_plain, to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.core.placement.fleet import Fleet, FleetChanges, ReservedBlock
from moorings.core.placement.plans import SchedulePlan, plan_payload
from moorings.workloads.run_turn import (
    CancelRun,
    CreateRun,
    LabelRun,
    PauseRun,
    ResumeRun,
    RunIdled,
    RunInput,
    RunRejected,
)
from moorings.workloads.runs import RunStatus

AnyInput = inputs.Input | RunInput

# These names stay in the log forever; the classes may be renamed.
INPUTS: Final[dict[str, type[AnyInput]]] = {
    "create_claim": inputs.CreateClaim,
    "release_claim": inputs.ReleaseClaim,
    "withdraw_claim": inputs.CancelPendingClaim,
    "renew_claim": inputs.RenewClaim,
    "set_priority": inputs.SetPriority,
    "reset_partition": inputs.ResetPartition,
    "driver_answered": inputs.DriverResultReceived,
    "retry_removal": inputs.RetryRemoval,
    "foreign_seen": inputs.ForeignPartitionsListed,
    "stray_seen": inputs.StrayPartitionFound,
    "pool_answers": inputs.PoolReachability,
    "drain_device": inputs.DrainDevice,
    "resume_device": inputs.ResumeDevice,
    "queue_told": inputs.QueueReported,
    "yield_claim": inputs.YieldClaim,
    "checkpoint_seen": inputs.CheckpointSaved,
    "set_project": inputs.SetProject,
    "delete_project": inputs.DeleteProject,
    "make_room": inputs.DefragmentPool,
    "create_run": CreateRun,
    "cancel_run": CancelRun,
    "label_run": LabelRun,
    "pause_run": PauseRun,
    "resume_run": ResumeRun,
    "start_refused": RunRejected,
    "run_idled": RunIdled,
    "run_seen": RunStatus,
}
_NAMES = {kind: name for name, kind in INPUTS.items()}


@dataclass(frozen=True, slots=True)
class VolatileState:
    """What a controller knew beside the records after reading them from the database.

    A replay cannot derive it: if the answer to a save was lost, memory has less than the log.

    Attributes:
        foreign: foreign partitions (made outside Moorings), by pool and name.
        problems: of pools whose driver does not answer.
        reservations: of the last turn.
        last_arrival: no claim arrives before it.
        pools: as in the pools file, each as a text that identifies it.
        announced: the reports of other schedulers' queues.
        moved: when claims were asked to move, in the last hour.
        machine: what the controller's machine gives to jobs, for they are settings; None: no job runs there.
    """

    foreign: Mapping[PoolName, Mapping[str, Block]]
    problems: Mapping[PoolName, str]
    reservations: tuple[ReservedBlock, ...]
    last_arrival: Timestamp
    pools: tuple[str, ...] = ()
    announced: tuple[QueueReport, ...] = ()
    moved: tuple[Timestamp, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    machine: Mapping[str, int] | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    @classmethod
    def of(cls, fleet: Fleet) -> VolatileState:
        """The state of a fleet that no record holds."""
        known = fleet.volatile_state()
        machine = fleet.pools.get(MACHINE_POOL)
        return cls(
            known.foreign,
            known.problems,
            known.reserved_blocks or (),
            fleet.last_arrival,
            tuple(str(state.pool) for state in fleet.pools.values() if state is not machine),
            tuple(fleet.queue_reports.values()),
            fleet.move_times,
            dict(machine.pool.resources) if machine is not None else None,
        )

    def restore_to(self, fleet: Fleet) -> None:
        """Restore this state in a fleet that was built from records alone."""
        beside = FleetChanges(
            foreign={pool: dict(blocks) for pool, blocks in self.foreign.items()},
            problems=dict(self.problems),
            reserved_blocks=self.reservations,
            queue_reports={report.queue: report for report in self.announced},
            move_times=self.moved,
        )
        fleet.apply(beside)
        fleet.last_arrival = self.last_arrival


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The input of a turn beside the fleet and the runs.

    Attributes:
        now: the turn's time.
        since: from when on callers could be heard (for leases).
        policy: of the scheduler.
        loaded: the state beside the records, if memory was read from the database since the last turn in the log.
    """

    now: Timestamp
    since: Timestamp
    policy: Policy
    loaded: VolatileState | None = None


def build_turn_event(occasion: TurnContext, given: Sequence[AnyInput], decided: SchedulePlan) -> Event:
    """The event that records a turn: its input, and what was granted and reserved."""
    data = {
        "now": occasion.now,
        "since": occasion.since,
        "policy": to_plain(occasion.policy),
        "loaded": to_plain(occasion.loaded),
        "inputs": [[_NAMES[type(one)], to_plain(_without_secrets(one))] for one in given],
        **plan_payload(decided),
    }
    return Event(name="turn.decided", at=occasion.now, data=canonical_json(data))


def parse_turn_event(text: str) -> tuple[TurnContext, tuple[AnyInput, ...]]:
    """The input of a recorded turn.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        data = json.loads(text)
        return from_plain(TurnContext, data), tuple(from_plain(INPUTS[name], one) for name, one in data["inputs"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f": {error!s:.200}" if type(error) is ValueError else ""  # the others' messages are technical
        raise MooringsError(
            "log.unreadable",
            f"a turn in the log cannot be read{why}",
            hint="it was written by another release; replay it with that one",
        ) from error


def _without_secrets(given: AnyInput) -> AnyInput:
    if isinstance(given, CreateRun):
        return replace(given, job=replace(given.job, environment={}, workdir=""))
    return given
