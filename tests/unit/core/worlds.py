"""A fleet that is stepped as the controller steps it, for tests of what turns decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from moorings.core.invariants import find_violations
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import Device, PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.events import Event
from moorings.core.model.inputs import CreateClaim, DriverResultReceived, Input, ReleaseClaim
from moorings.core.model.partitions import Partition
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet, FleetChanges
from moorings.core.scheduling.draft import PlanDraft
from moorings.core.scheduling.turn import Reply, Turn
from moorings.core.scheduling.turn_schedule import build_snapshot

POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(2, 8, 16))
CROSS = Pool(PoolName("cross"), "gpu", "simulated", AnySubset(6, 6), (("memory", 100),))
RACK = Pool(
    PoolName("rack"),
    "csx",
    "simulated",
    Catalogue(6, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 6, n))),
)
CROSS2 = replace(CROSS, name=PoolName("cross2"))
POOLS = (POD, CROSS, RACK)


@contextmanager
def drafted(world: World) -> Iterator[PlanDraft]:
    """An empty plan of a world's next turn, for tests of single stages."""
    with Turn(world.fleet, world.policy, world.now) as turn:
        draft = PlanDraft(build_snapshot(turn.state), world.policy, world.now)
        yield draft
        draft.roll_back()


class World:
    """A fleet that is stepped as the controller's loop steps it: decide, (save,) apply."""

    def __init__(self, *pools: Pool, policy: Policy = Policy()) -> None:  # noqa: B008
        self.pools = pools
        self.policy = policy
        self.fleet = Fleet(pools)
        self.now = Timestamp(1_000 * SECOND)
        self.log: list[Event] = []
        self.ended: dict[ClaimId, Claim] = {}
        self.devices: dict[tuple[PoolName, int], Device] = {}
        self.n_created = 0
        self.since = Timestamp(0)

    def step(self, *inputs: Input) -> list[Reply]:
        self.now = Timestamp(self.now + SECOND)
        events, replies, changes = self._decide(self.fleet, inputs)
        # Law 9: the same records give the same decisions, byte for byte, however the memory of them came about.
        again, same, _ = self._decide(self._reloaded(), inputs)
        assert again == events
        assert [str(reply) for reply in same] == [str(reply) for reply in replies]
        self.fleet.apply(changes)
        self.log += events
        for claim, _ in changes.claims.values():
            if claim.is_ended:
                self.ended[claim.id] = claim
        self.devices |= changes.devices
        assert find_violations(self.fleet) == []
        return replies

    def _decide(self, fleet: Fleet, inputs: Sequence[Input]) -> tuple[list[Event], list[Reply], FleetChanges]:
        with Turn(fleet, self.policy, self.now) as turn:
            replies: list[Reply] = [turn.handle_input(given) for given in inputs]
            turn.expire_leases(self.since)
            for ident, refusal in turn.schedule():
                replies = [
                    refusal if isinstance(given, CreateClaim) and given.id == ident else reply
                    for given, reply in zip(inputs, replies, strict=True)
                ]
            return turn.events, replies, turn.changes

    def _reloaded(self) -> Fleet:
        held = self.fleet
        fleet = Fleet.load(
            self.pools,
            held.claims.values(),
            held.partitions.values(),
            self.devices.values(),
            held.projects.by_name.values(),
            held.usage.values(),
        )
        fleet.apply(held.volatile_state())
        fleet.last_arrival = held.last_arrival
        return fleet

    def create(self, size: int, kind: str = "ipu", **more: Any) -> Claim:
        claim = self.step(self.asks(size, kind, **more))[0]
        assert isinstance(claim, Claim), claim
        return self.claim(claim.id)

    def asks(self, size: int, kind: str = "ipu", **more: Any) -> CreateClaim:
        self.n_created += 1
        ident = ClaimId(f"c{self.n_created}")
        name = str(more.pop("name", ident))
        owner = str(more.pop("owner", "user/ann"))
        since = more.pop("since", None)
        spec = ClaimSpec(kind=kind, size=size, **more)
        return CreateClaim(id=ident, name=name, owner=owner, subject="ann", spec=spec, since=since)

    def pending(self, size: int, kind: str = "ipu", **more: Any) -> Claim:
        """A claim that waits; no turn has seen it."""
        asked = self.asks(size, kind, **more)
        return Claim(
            id=asked.id,
            name=asked.name,
            owner=asked.owner,
            subject=asked.subject,
            spec=asked.spec,
            state=ClaimState.PENDING,
            arrival=self.now,
        )

    def claim(self, ident: ClaimId) -> Claim:
        return self.fleet.claims.get(ident) or self.ended[ident]

    def partition(self, claim: Claim) -> Partition:
        ident = self.claim(claim.id).partition
        assert ident is not None
        return self.fleet.partitions[ident]

    def says(
        self, partition: Partition, seen: ObservedState, verdict: ResultCode = ResultCode.OK, order: str = "list"
    ) -> None:
        self.step(
            DriverResultReceived(partition.id, partition.version, order, DriverResult(verdict, seen, "so it says"))
        )

    def ready(self, size: int, **more: Any) -> Claim:
        claim = self.create(size, **more)
        self.says(self.partition(claim), ObservedState.ACTIVE)
        return self.claim(claim.id)

    def end(self, claim: Claim) -> None:
        self.step(ReleaseClaim(claim.id, "done"))
        partition = self.fleet.partitions.get(self.claim(claim.id).partition or PartitionId(""))
        if partition is not None:
            self.says(partition, ObservedState.ABSENT, order="remove")

    def names(self) -> list[str]:
        return [event.name for event in self.log]
