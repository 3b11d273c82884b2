"""All known claims of a cluster's instances: which claim belongs to which instance, and which have ended.

A list and a ``claim.created`` event name a claim's owner; every other event names only its id. No IO and no clock:
times are passed in, of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.claims import InstanceKey, check_request, is_clusters_claim, parse_instance_key
from moorings.kubernetes.proxy.instances import ManagedInstance, check_unchanged
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim, apply_event, observe_body, observe_created
from moorings.kubernetes.proxy.plan import DesiredState
from moorings.kubernetes.proxy_api.shapes import PartitionRequest
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ClaimBody, EventBody

SETTLED_S = 60  # a binding that was READY for so long before this process began was given out by an earlier one
ENDED_S = 300.0  # longest delay of a response that shows a claim as it was before its end
CREATED = "claim.created"
INSTANCES_MAX = 50_000
NAMESPACE_INSTANCES_MAX = INSTANCES_MAX // 4  # else users of one namespace could leave no instances to others


class ClusterClaims:
    """The instances of a cluster, and their claims on all controllers.

    Args:
        cluster: its name.
        cluster_uid: distinguishes clusters of one name; empty: nothing does.
        began: when this process began, microseconds since 1970.

    Attributes:
        instances: by owner.
    """

    def __init__(self, cluster: str, cluster_uid: str, began: int) -> None:
        self.instances: dict[str, ManagedInstance] = {}
        self._cluster = cluster
        self._uid = cluster_uid
        self._began = began
        self._by_job: dict[str, set[str]] = {}
        self._by_namespace: Counter[str] = Counter()
        self._owners: dict[tuple[str, str], str] = {}  # of claims, by controller and id
        self._ended: dict[tuple[str, str], float] = {}  # and when we learned it; oldest first
        self._early_events: dict[str, list[EventBody]] = {}  # of claims that no list has shown yet, by controller

    # -- instances -----------------------------------------------------------------------------------------------------

    def find(self, place: InstanceKey) -> ManagedInstance | None:
        """The record of an instance; None: nothing is known of it."""
        return self.instances.get(place.owner(self._cluster))

    def get(self, place: InstanceKey) -> ManagedInstance:
        """The record of an instance.

        Raises:
            MooringsError: ``partition.unknown``.
        """
        record = self.find(place)
        if record is None:
            raise MooringsError("partition.unknown", f"{place.key} has no partition for instance {place.instance}")
        return record

    def list_instances(self, namespace: str = "", job: str = "") -> Iterable[ManagedInstance]:
        """All instances; with a namespace or a job only its own."""
        if namespace and job:
            return [self.instances[owner] for owner in self._by_job.get(f"{namespace}/{job}", ())]
        return [
            record
            for record in self.instances.values()
            if namespace in ("", record.key.namespace) and job in ("", record.key.job)
        ]

    def request_partition(self, request: PartitionRequest) -> ManagedInstance:
        """The record of the instance whose partition is wanted from now on.

        Raises:
            MooringsError: ``body.invalid``, ``owner.invalid``, ``key.conflict``, ``controller.busy``,
                ``partition.too_many``.
        """
        place = check_request(request, self._cluster)
        record = self.find(place)
        if record is None:
            self._check_limits(place.namespace)
            record = self._add(place)
        book = record.claims
        if book.desired is not DesiredState.RELEASED:
            check_unchanged(book, request)
            book.desired, book.request = DesiredState.WANTED, request
            created_at = request.job_created_at
            book.is_new_job = book.is_new_job or (created_at is not None and parse_time(created_at) >= self._began)
        return record

    def remove(self, record: ManagedInstance) -> None:
        """Drop an instance."""
        del self.instances[record.owner]
        owners = self._by_job[record.key.key]
        owners.discard(record.owner)
        if not owners:
            del self._by_job[record.key.key]
        self._by_namespace[record.key.namespace] -= 1
        if not self._by_namespace[record.key.namespace]:
            del self._by_namespace[record.key.namespace]
        for key in record.keys:
            self._owners.pop(key, None)

    def _check_limits(self, namespace: str) -> None:
        if len(self.instances) >= INSTANCES_MAX:
            raise MooringsError("controller.busy", f"there are {INSTANCES_MAX} partitions already", retryable=True)
        if self._by_namespace[namespace] >= NAMESPACE_INSTANCES_MAX:
            raise MooringsError(
                "partition.too_many",
                f"namespace {namespace} has, or waits for, {NAMESPACE_INSTANCES_MAX} partitions; it gets no more",
                hint="scale IPUJobs down, or delete some",
                retryable=True,
            )

    def _add(self, place: InstanceKey) -> ManagedInstance:
        record = self.find(place)
        if record is None:
            owner = place.owner(self._cluster)
            record = self.instances[owner] = ManagedInstance(place, owner)
            self._by_job.setdefault(place.key, set()).add(owner)
            self._by_namespace[place.namespace] += 1
        return record

    # -- controllers ---------------------------------------------------------------------------------------------------

    def may_hold_claims(self, controller: str) -> bool:
        """Whether a controller has, or may have, claims of this cluster."""
        return any(at == controller for at, _ in self._owners) or any(
            controller in record.claims.uncertain_controllers for record in self.instances.values()
        )

    def forget_controller(self, controller: str, now: float) -> None:
        """Drop a controller that is gone permanently, and its claims."""
        for record in self.instances.values():
            record.claims.drop_controller(controller)
            self._index(record, now)

    def rename_controller(self, old: str, new: str) -> None:
        """Join a controller's old name with its new name."""
        for record in self.instances.values():
            record.claims.rename_controller(old, new)
            self._index(record)
            winner = record.plan.winner
            if winner is not None:
                record.plan = replace(record.plan, winner=record.claims.find(winner) or winner)

    # -- observations --------------------------------------------------------------------------------------------------

    def apply_list(
        self, controller: str, claims: Iterable[ClaimBody], began: float, now: float, *, first: bool
    ) -> tuple[set[str], list[ClaimBody]]:
        """Apply the list of all the cluster's unended claims on a controller, which began at ``began``.

        Args:
            controller: its name.
            claims: the list.
            began: when it was requested.
            now: the time.
            first: whether it is this process's first list of that controller.

        Returns:
            The owners whose claims have changed, and another cluster's claims under owners like ours.
        """
        found: dict[str, list[ObservedClaim]] = {}
        foreign = []
        for claim in claims:
            if self._is_ours(claim.owner, claim.name):
                found.setdefault(claim.owner, []).append(observe_body(controller, claim))
            else:
                foreign.append(claim)
        known_before = {owner for (at, _), owner in self._owners.items() if at == controller}
        doubtful = {
            owner for owner, record in self.instances.items() if controller in record.claims.uncertain_controllers
        }
        changed = set()
        for owner in {*found, *known_before, *doubtful}:
            place = parse_instance_key(owner, self._cluster)
            if place is None:
                continue
            record = self._add(place)
            if first:
                old = (known for known in found.get(owner, ()) if self._is_settled(known))
                record.claims.settled |= {(known.controller, known.id) for known in old}
            before = dict(record.claims.claims), set(record.claims.uncertain_controllers)
            self.apply_owners_list(record, controller, found.get(owner, ()), began, now)
            if first or (record.claims.claims, record.claims.uncertain_controllers) != before:
                changed.add(owner)
        return changed, foreign

    def forget_ended(self, now: float) -> None:
        """Forget claims that have ended so long ago that no response can show them any more."""
        for key, at in list(self._ended.items()):
            if at > now - ENDED_S:
                break
            del self._ended[key]

    def apply_owners_list(
        self, record: ManagedInstance, controller: str, found: Iterable[ObservedClaim], began: float, now: float
    ) -> None:
        """Apply the list of an owner's claims on a controller, without those that have ended since the request."""
        unended = [known for known in found if (known.controller, known.id) not in self._ended]
        record.claims.apply_listing(controller, began, unended, now)
        self._index(record, now)

    def apply_events(
        self, controller: str, events: Iterable[EventBody], now: float, *, listing: bool
    ) -> list[ManagedInstance]:
        """Apply a controller's events, in order; returns the records that have changed.

        ``listing``: a list is under way: events of unknown claims are kept until it is there.
        """
        changed = []
        for event in events:
            key = (controller, event.claim or "")
            record = self.instances.get(self._owners.get(key, ""))
            known = record.claims.claims.get(key) if record is not None else None
            if known is None:
                found = self._observe_created(controller, event)
                if found is not None:
                    record = self._add(found[0])
                    self.apply_claim(record, found[1], now)
                    changed.append(record)
                elif listing and event.claim is not None and event.name != CREATED and key not in self._ended:
                    self.keep_events(controller, (event,))
            elif record is not None and (after := apply_event(known, event)) != known:
                self.apply_claim(record, after, now)
                changed.append(record)
        return changed

    def keep_events(self, controller: str, events: Sequence[EventBody]) -> None:
        """Keep events of unknown claims until ``take_events``."""
        self._early_events.setdefault(controller, []).extend(events)

    def take_events(self, controller: str) -> list[EventBody]:
        """The kept events of a controller; they are kept no longer."""
        return self._early_events.pop(controller, [])

    def apply_claim(self, record: ManagedInstance, known: ObservedClaim, now: float) -> None:
        """Apply the observed state of one claim, unless it is known to have ended."""
        key = (known.controller, known.id)
        if key in self._ended:
            return
        if known.phase is ClaimPhase.ENDED:
            self._ended[key] = now
        record.claims.observe(known, now)
        self._index(record, now)

    def _observe_created(self, controller: str, event: EventBody) -> tuple[InstanceKey, ObservedClaim] | None:
        """The instance and the claim of a ``claim.created`` event of this cluster."""
        known = observe_created(controller, event) if event.name == CREATED else None
        place = parse_instance_key(known.owner, self._cluster) if known is not None else None
        if known is None or place is None or not self._is_ours(known.owner, event.data.get("name")):
            return None
        return place, known

    def _is_ours(self, owner: str, name: object) -> bool:
        """Whether a claim under our owners was made for this cluster, not for another one of the same name."""
        place = parse_instance_key(owner, self._cluster)
        return owner in self.instances or place is None or is_clusters_claim(name, place, self._cluster, self._uid)

    def _is_settled(self, known: ObservedClaim) -> bool:
        try:
            ready = known.phase is ClaimPhase.READY
            return ready and parse_time(known.since) < self._began - SETTLED_S * 1_000_000
        except MooringsError:
            return False

    def _index(self, record: ManagedInstance, ended_at: float | None = None) -> None:
        """Index a record's claims by owner; with ``ended_at``, those that are not in it any more have ended then."""
        held = record.claims.claims.keys()
        for key in record.keys - held:
            del self._owners[key]
            if ended_at is not None:
                self._ended[key] = ended_at
        for key in held - record.keys:
            self._owners[key] = record.owner
            self._ended.pop(key, None)
        record.keys = set(held)
