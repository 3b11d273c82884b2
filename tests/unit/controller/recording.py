"""A log that a release wrote, kept for ever in ``released``: later ones decide it again, to the byte (law 9).

The story is drawn once, with the code of that release: claims of all priorities that wait for weeks, limits and
guarantees of projects, jobs of another scheduler, jobs that yield, blocks that break, controllers that start again.
Refused: taking the old code from git, for the reasons that ``tests.unit.store.recording`` gives. Before decisions
change, freeze a log::

    python -m tests.unit.controller.recording > tests/unit/controller/released/NAME.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from moorings.controller.turn import KeyedInput, decide_turn
from moorings.controller.turn_record import AnyInput, TurnContext, VolatileState
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.events import Event
from moorings.core.model.inputs import (
    CreateClaim,
    DriverResultReceived,
    QueueReported,
    ReleaseClaim,
    SetPriority,
    SetProject,
    YieldClaim,
)
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.queue_reports import QueuedJob, QueueReport
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.ports.store import EventRow, Seq
from moorings.workloads.run_turn import RunRegistry

RELEASED = Path(__file__).parent / "released"
POOLS = (
    Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(2, 8, 16)),
    Pool(PoolName("small"), "ipu", "simulated", PowerOfTwo(1, 4, 4)),
)
PROJECTS = (
    Project(name="lab", shares=(ProjectShare(PoolName("pod"), ((4, 2),)),)),
    Project(name="full", devices_max=6, user_devices_max=4),
    Project(name="light", weight=4.0),
)
TURNS, SEED = 80, 21
HOUR_S = 3_600.0


class Story:
    """A fleet, and the events of its turns."""

    def __init__(self, pools: Sequence[Pool] = POOLS) -> None:
        self.events: list[Event] = []
        self._pools = pools
        self._policy = Policy(min_run_s=30.0)
        self._chance = random.Random(SEED)
        self._fleet = Fleet(pools)
        self._runs = RunRegistry()
        self._now = Timestamp(1_700_000_000 * SECOND)
        self._since: Timestamp | None = None  # from when on callers could be heard; None: since this moment
        self._loaded: VolatileState | None = VolatileState.of(self._fleet)
        self._made = 0

    def tell(self) -> None:
        """All of it."""
        self._turn(*(SetProject(project, None) for project in PROJECTS))
        for _ in range(TURNS):
            self._now = add_seconds(self._now, self._chance.choice((1.0, 90.0, HOUR_S, 30 * HOUR_S)))
            what = self._chance.random()
            if what < 0.04:
                self._reload()
            self._turn(*self._happenings(what))
            self._turn(*self._answers(), *self._yields())

    def _turn(self, *given: AnyInput) -> None:
        self._now = add_seconds(self._now, 1.0)
        occasion = TurnContext(self._now, self._since or self._now, self._policy, self._loaded)
        outcome = decide_turn(self._fleet, self._runs, [KeyedInput(one) for one in given], occasion)
        self._fleet.apply(outcome.fleet)
        self._runs.apply(outcome.runs)
        self.events += outcome.changes.events
        if outcome.changes:
            self._loaded = None

    def _reload(self) -> None:
        before = self._fleet
        self._fleet = Fleet.load(
            self._pools,
            before.claims.values(),
            before.partitions.values(),
            [device for state in before.pools.values() for device in state.out_of_service.values()],
            before.projects.by_name.values(),
            before.usage.values(),
        )
        self._loaded = VolatileState.of(self._fleet)

    def _happenings(self, what: float) -> Iterator[AnyInput]:
        waiting = list(self._fleet.pending_claims())
        holders = self._in(ClaimState.READY)
        if what < 0.5:
            yield from (self._asks() for _ in range(self._chance.randint(1, 4)))
        elif what < 0.75 and holders:
            yield ReleaseClaim(self._chance.choice(holders).id, "done")
        elif what < 0.85 and waiting:
            yield SetPriority(self._chance.choice(waiting).id, self._chance.choice((-3, 0, 7)))
        elif what < 0.95:
            spec = ClaimSpec(kind="ipu", size=4)
            since = add_seconds(self._now, -300 * HOUR_S)
            jobs = tuple(QueuedJob(f"slurm/one/{at}/n", spec, Timestamp(since + at)) for at in range(2))
            yield QueueReported(QueueReport("slurm/one", "ipu", jobs, add_seconds(self._now, HOUR_S)))

    def _asks(self) -> CreateClaim:
        self._made += 1
        draw = self._chance.choice
        user = draw(("ann", "bob"))
        spec = ClaimSpec(
            kind="ipu",
            size=draw((1, 2, 4, 8, 16)),
            gcds=draw((1, 1)),
            project=draw(("lab", "full", "light", "default")),
            priority=draw((-5, 0, 0, 3, 100)),
            time_limit_s=draw((None, 60.0, HOUR_S, 100 * HOUR_S)),
            preemptible=draw((True, False)),
        )
        if spec.size == 16:
            spec = ClaimSpec(**{name: getattr(spec, name) for name in ("kind", "size", "project", "priority")}, gcds=2)
        ident = ClaimId(f"claim-{self._made}")
        return CreateClaim(id=ident, name=f"c{self._made}", owner=f"local/{ident}", subject=user, spec=spec)

    def _answers(self) -> Iterator[AnyInput]:
        for partition in sorted(self._fleet.partitions.values(), key=lambda one: one.id):
            if partition.state is PartitionState.ACTIVE:
                continue
            makes = partition.state is PartitionState.PROVISIONING
            broken = makes and self._chance.random() < 0.05
            verdict = ResultCode.REJECTED if broken else ResultCode.OK
            answer = DriverResult(
                verdict, ObservedState.ACTIVE if makes and not broken else ObservedState.ABSENT, "as ordered"
            )
            yield DriverResultReceived(
                PartitionId(partition.id), partition.version, "create" if makes else "remove", answer
            )

    def _yields(self) -> Iterator[AnyInput]:
        return (YieldClaim(claim.id, "saved") for claim in self._in(ClaimState.RECLAIMING))

    def _in(self, state: ClaimState) -> list[Claim]:
        return sorted((one for one in self._fleet.claims.values() if one.state is state), key=lambda one: one.id)


def recorded(path: Path) -> list[EventRow]:
    """The rows of a log that was frozen. The names of its columns are the data's for ever, whatever ours become."""
    told = (json.loads(line) for line in path.read_text().splitlines())
    events = (
        Event(
            name=one["name"],
            at=Timestamp(one["at"]),
            claim=one.get("claim"),
            partition=one.get("partition"),
            run=one.get("run"),
            pool=one.get("pool"),
            device=one.get("device"),
            data=one["data"],
        )
        for one in told
    )
    return [EventRow(Seq(number), event) for number, event in enumerate(events, 1)]


def line_of(event: Event) -> str:
    """An event as a line of a frozen log."""
    told = {
        "name": event.name,
        "at": event.at,
        "claim": event.claim,
        "partition": event.partition,
        "run": event.run,
        "pool": event.pool,
        "device": event.device,
        "data": event.data,
    }
    return json.dumps({name: value for name, value in told.items() if value is not None}) + "\n"


def main() -> None:
    """Print the log that this code writes."""
    story = Story()
    story.tell()
    for event in story.events:
        sys.stdout.write(line_of(event))


if __name__ == "__main__":
    main()
