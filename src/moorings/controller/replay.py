"""Replay: deciding a log again. The same turns from the same start must give the same events, byte for byte (law 9).

If the database was turned back, its records were corrected between two turns; a replay corrects them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from moorings.controller.rewind_recovery import REWIND_EVENT, parse_recovered_state, plan_recovery
from moorings.controller.turn import KeyedInput, decide_turn
from moorings.controller.turn_record import VolatileState, parse_turn_event
from moorings.core.model.claims import Claim
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event
from moorings.core.model.machine import machine_pool
from moorings.core.model.topology import Pool
from moorings.core.placement.fleet import Fleet, FleetChanges
from moorings.ports.store import EventRow, Seq
from moorings.workloads.run_turn import RunRegistry

TURN_EVENT = "turn.decided"
_NON_TURN_PREFIXES = ("key.", "controller.")  # events outside turns


@dataclass(frozen=True, slots=True)
class TurnDifference:
    """A turn that a replay decides differently.

    Attributes:
        seq: of its last event in the log.
        logged: its events in the log.
        decided: its events in the replay.
    """

    seq: Seq
    logged: tuple[Event, ...]
    decided: tuple[Event, ...]


@dataclass(slots=True)
class Replay:
    """Decides a log again, turn by turn, from the fleet and runs at its start."""

    pools: Sequence[Pool]
    fleet: Fleet = field(init=False)
    runs: RunRegistry = field(default_factory=RunRegistry)
    turns: int = 0
    _rows: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.pools)

    def replay_rows(self, rows: Iterable[EventRow]) -> Iterator[TurnDifference]:
        """The differences found in these rows, which follow those taken before.

        Raises:
            MooringsError: ``log.unreadable``.
        """
        for row in rows:
            if row.event.name.startswith(_NON_TURN_PREFIXES):
                continue
            self._rows.append(row.event)
            if row.event.name in (TURN_EVENT, REWIND_EVENT):
                logged, self._rows = tuple(self._rows), []
                decided = self._turn(row.event) if row.event.name == TURN_EVENT else self._turn_back(row.event)
                if decided != logged:
                    yield TurnDifference(row.seq, logged, decided)

    def _turn(self, event: Event) -> tuple[Event, ...]:
        occasion, inputs = parse_turn_event(event.data)
        if occasion.loaded is not None:
            self._load(occasion.loaded)
        outcome = decide_turn(self.fleet, self.runs, [KeyedInput(given) for given in inputs], occasion)
        self.fleet.apply(outcome.fleet)
        self.runs.apply(outcome.runs)
        self.turns += 1
        return tuple(outcome.changes.events)

    def _turn_back(self, event: Event) -> tuple[Event, ...]:
        """Apply the correction of a database that was turned back; the next turn is of a controller that read it."""
        partitions = sorted(self.fleet.partitions.values(), key=lambda partition: partition.id)
        unended = sorted(self.runs.by_id.values(), key=lambda run: (run.created_at, run.id))
        changes = plan_recovery(self._claims(), partitions, unended, parse_recovered_state(event.data))
        self.fleet.apply(
            FleetChanges(
                claims={claim.id: (claim, save.expected) for claim, save in changes.claims},
                partitions={partition.id: (partition, save.expected) for partition, save in changes.partitions},
            )
        )
        self.runs.apply(run for run, _ in changes.runs)
        return tuple(changes.events)

    def _claims(self) -> list[Claim]:
        """The claims that have not ended, in a database's order."""
        return sorted(self.fleet.claims.values(), key=lambda claim: (claim.arrival, claim.id))

    def _load(self, remembered: VolatileState) -> None:
        """Do what a controller does when it reads the database."""
        if remembered.pools and remembered.pools != tuple(map(str, self.pools)):
            raise MooringsError(
                "log.unreadable",
                f"the pools were others then: {'; '.join(remembered.pools)[:500]}",
                hint="replay each stretch of the log with the pools file of its time",
            )
        before = self.fleet
        devices = [device for state in before.pools.values() for device in state.out_of_service.values()]
        machine = () if remembered.machine is None else (machine_pool(remembered.machine),)
        self.fleet = Fleet.load(
            (*self.pools, *machine),
            self._claims(),
            sorted(before.partitions.values(), key=lambda p: p.id),
            devices,
            before.projects.by_name.values(),
            before.usage.values(),
        )
        remembered.restore_to(self.fleet)
