"""The partitions of one Kubernetes cluster on all controllers: executes the plans of ``plan``, and decides nothing.

``cluster_claims`` tracks the claims. Level-triggered: each change wakes its instance, which is then planned and acted
on until nothing more follows, one step at a time. Nothing is stored over a restart: the claims of the cluster's owners,
as each controller lists them, suffice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.claims import InstanceKey, prefix_of
from moorings.kubernetes.proxy.cluster_claims import ClusterClaims
from moorings.kubernetes.proxy.controllers import ControllerConnection, ControllerTarget
from moorings.kubernetes.proxy.creation import make_claim
from moorings.kubernetes.proxy.instances import PAUSE_S, ManagedInstance, rebuild_request
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim, observe_body
from moorings.kubernetes.proxy.plan import (
    ActionType,
    ClaimAction,
    DesiredState,
    InstancePlan,
    ObservedController,
    check_installation,
    find_aliases,
    is_complete,
    is_retired,
    plan_instance,
)
from moorings.kubernetes.proxy.publishing import StatusPublisher
from moorings.kubernetes.proxy.usage import IpuUsage
from moorings.kubernetes.proxy.watch_cache import WatchCache
from moorings.kubernetes.proxy_api.shapes import PartitionBody, PartitionRequest, PartitionsBody
from moorings.wire.shapes import ClaimBody, EventBody

log = logging.getLogger("moorings.kubernetes.proxy")

ANSWER_S = 8.0  # how long a request waits for its result; the work continues after that
PAUSE_S_MAX = 5.0
RESET_S = 120.0
RESET_POLL_S, RESET_POLL_S_MAX = 0.05, 0.5
TRIES_IN_A_ROW = 50  # far more than any case needs; a faulty decision must not loop for ever


class PartitionManager:
    """All partitions of a cluster.

    Args:
        cluster: its name.
        projects: project of a namespace, if their names differ.
        boot: distinguishes this process from others.
        now: the wall clock, microseconds since 1970.
        cluster_uid: distinguishes clusters of one name; empty: nothing does.
    """

    def __init__(
        self, cluster: str, projects: Mapping[str, str], boot: str, now: Callable[[], int], mark: str = ""
    ) -> None:
        self.cluster = cluster
        self.cluster_uid = mark
        self.journal = WatchCache(boot)
        self.usage = IpuUsage()
        self.links: dict[str, ControllerConnection] = {}
        self.projects = projects
        self._claims = ClusterClaims(cluster, mark, now())
        self._removed_controllers: frozenset[str] = (
            frozenset()
        )  # controllers that are marked in the list as gone permanently
        self._tasks: set[asyncio.Task[None]] = set()
        self._publisher = StatusPublisher(self.journal, self.usage, lambda: self.links, self._publish, now)
        self._closed = False

    # -- controllers ---------------------------------------------------------------------------------------------------

    async def set_controllers(self, reaches: tuple[ControllerTarget, ...]) -> None:
        """Use these controllers, in this order. A dropped one is watched until it has no claims of this cluster."""
        wanted = {reach.entry.name: reach for reach in reaches if not reach.entry.is_removed}
        self._removed_controllers = frozenset(reach.entry.name for reach in reaches if reach.entry.is_removed)
        old, self.links = self.links, {}
        for name, reach in wanted.items():
            link = old.pop(name, None)
            if link is None or link.reach.endpoint != reach.endpoint:
                link = await self._connect(reach, link)
            link.reach, link.is_configured = reach, True
            self.links[name] = link
        for name, link in old.items():
            link.is_configured = False
            self.links[name] = link
        self._find_aliases()
        await self.remove_retired()
        log.info("controllers.set", extra={"controllers": ",".join(wanted) or "none"})
        self._wake_all()

    async def _connect(self, reach: ControllerTarget, before: ControllerConnection | None) -> ControllerConnection:
        """A new connection to a controller, in the place of the one at its previous address."""
        link = ControllerConnection(reach, prefix_of(self.cluster), self)
        if before is not None:
            await before.close()
            link.was_listed, link.installation = before.was_listed, before.installation
        link.open()
        return link

    async def remove_retired(self) -> None:
        """Disconnect controllers that left the list and are needed no more."""
        for name, link in list(self.links.items()):
            if link.is_configured:
                continue
            away_s, has_claims = time.monotonic() - link.away_at, self._claims.may_hold_claims(name)
            if not is_retired(
                link.observe(), away_s, has_claims=has_claims, disowned=name in self._removed_controllers
            ):
                continue
            await link.close()
            del self.links[name]
            log.info("controller.retired", extra={"controller": name})
            self._claims.forget_controller(name, time.monotonic())
            self._wake_all()

    @property
    def is_complete(self) -> bool:
        """Whether all claims are known."""
        return is_complete(self._observed_controllers())

    def _find_aliases(self) -> None:
        """Use each installation under its first name, with all the known claims."""
        for name, used in find_aliases(link.observe() for link in self.links.values()).items():
            link = self.links[name]
            if used == link.alias_of:
                continue
            link.alias_of = used
            if not used:
                link.list_soon()
                continue
            same = self.links[used]
            same.was_listed = same.was_listed or link.was_listed
            log.warning(
                "controller.alias", extra={"controller": name, "alias_of": used, "installation": link.installation}
            )
            self._claims.rename_controller(name, used)
            same.list_soon()

    def _canonical_name(self, link: ControllerConnection) -> str:
        """The controller's name in the claims."""
        return link.alias_of or link.name

    async def close(self) -> None:
        """Stop; every claim stays as it is."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for record in self._claims.instances.values():
            self._publisher.forget(record)
        for link in self.links.values():
            await link.close()

    # -- reports by controllers ----------------------------------------------------------------------------------------

    def on_connected(self, link: ControllerConnection, installation: str) -> str:
        """Check the installation that responds at a controller's address; returns why it is refused, or nothing."""
        if self.links.get(link.name) is not link or installation == link.installation:
            return ""
        why = check_installation(link.observe(), installation, has_claims=self._claims.may_hold_claims(link.name))
        if not why:
            link.installation = installation
            self._find_aliases()
            self._wake_all()
        return why

    def on_claims_listed(self, link: ControllerConnection, began: float, claims: tuple[ClaimBody, ...]) -> None:
        """Apply the list of all the cluster's unended claims on a controller."""
        if self.links.get(link.name) is not link or link.alias_of:
            return
        changed, foreign = self._claims.apply_list(
            link.name, claims, began, time.monotonic(), first=not link.was_listed
        )
        self._log_foreign_claims(link, foreign)
        for owner in changed:
            self.enqueue(owner)
        self._apply_events(link, self._claims.take_events(link.name), listing=False)
        self._claims.forget_ended(time.monotonic())

    def _log_foreign_claims(self, link: ControllerConnection, foreign: list[ClaimBody]) -> None:
        """Report another cluster's claims. They are not tracked: the operator would end them, lacking such jobs."""
        if foreign and not link.foreign_claims:
            log.error(
                "cluster.name_shared",
                extra={
                    "cluster": self.cluster,
                    "controller": link.name,
                    "claims": len(foreign),
                    "owner": foreign[0].owner,
                    "hint": "another Kubernetes cluster has the same clusterName: give the newer one a name of its own",
                },
            )
        link.foreign_claims = len(foreign)

    def on_events(self, link: ControllerConnection, events: tuple[EventBody, ...]) -> None:
        """Apply a controller's events, in order."""
        if self.links.get(link.name) is not link or link.alias_of:
            return
        if link.installation:
            self._apply_events(link, events, listing=link.listing)
        elif link.listing:  # it is not known yet which installation they are of
            self._claims.keep_events(link.name, events)
        else:  # the next list has the changes
            self._claims.take_events(link.name)

    def _apply_events(self, link: ControllerConnection, events: Sequence[EventBody], *, listing: bool) -> None:
        for record in self._claims.apply_events(link.name, events, time.monotonic(), listing=listing):
            self._publish_late(record)
            self.enqueue(record.owner)

    def _observe_claim(self, record: ManagedInstance, known: ObservedClaim) -> None:
        self._claims.apply_claim(record, known, time.monotonic())
        self._publish_late(record)

    def _publish_late(self, record: ManagedInstance) -> None:
        if record.worker is not None:  # a call in its work may take long
            self._publisher.publish_soon(record)

    def on_reachability_changed(self, link: ControllerConnection) -> None:
        """A controller began or ceased to respond: wake all instances that may wait for it."""
        for owner, record in list(self._claims.instances.items()):
            idle = record.plan.may_publish_binding and link.name not in record.claims.uncertain_controllers
            if not idle or any(at == link.name for at, _ in record.claims.claims):
                self.enqueue(owner)

    # -- requests to the proxy -----------------------------------------------------------------------------------------

    async def create(self, request: PartitionRequest) -> PartitionBody:
        """Request the partition of one instance, and return its present state.

        Raises:
            MooringsError: ``body.invalid``, ``owner.invalid``, ``key.conflict``, ``controller.busy``,
                ``partition.too_many``.
        """
        record = self._claims.request_partition(request)
        if record.claims.desired is not DesiredState.RELEASED:
            self.enqueue(record.owner)
        await self._wait_until_idle(record)
        return self._published_body(record)

    async def release(self, place: InstanceKey) -> PartitionBody | None:
        """Release an instance's partition on all controllers, now or as soon as possible; None: nothing is left."""
        record = self._claims.find(place)
        if record is None:
            return None
        record.claims.desired = DesiredState.RELEASED
        self.enqueue(record.owner)
        await self._wait_until_idle(record)
        return self._published_body(record) if self._claims.find(place) is record else None

    async def yield_partition(self, place: InstanceKey) -> PartitionBody:
        """Release a partition that is RECLAIMING, when nothing runs on it any more: its instance waits again.

        Raises:
            MooringsError: ``partition.unknown``, ``claim.not_asked``, or the controller's error.
        """
        record = self._claims.get(place)
        winner = record.plan.winner
        winner = record.claims.find(winner) if winner is not None else None
        if winner is None or winner.phase is not ClaimPhase.RECLAIMING:
            raise MooringsError(
                "claim.not_asked",
                f"the partition of {place.key} is {self._published_body(record).state}",
                retryable=True,
            )
        link, ident = self.links[winner.controller], winner.id
        try:
            body = await link(lambda client: client.yield_claim(ident, "its Pods have ended"))
        except MooringsError as error:
            if error.code != "claim.not_asked":
                raise
            body = await link(lambda client: client.get_claim(ident))  # a response was lost
        self._observe_claim(record, observe_body(winner.controller, body))
        self.enqueue(record.owner)
        await self._wait_until_idle(record)
        log.info("partition.yielded", extra={"owner": record.owner, "partition": winner.partition})
        return self._published_body(record)

    async def reset(self, place: InstanceKey) -> PartitionBody:
        """Reset a partition; returns it when it is READY again.

        Raises:
            MooringsError: ``partition.unknown``, ``partition.not_active``, ``wait.timeout``, or the controller's
                error.
        """
        record = self._claims.get(place)
        winner = record.plan.winner
        if winner is None or not record.plan.may_publish_binding or record.binding is None:
            raise MooringsError(
                "partition.not_active",
                f"the partition of {place.key} is {self._published_body(record).state}",
                retryable=True,
            )
        if record.resetting is None:
            record.resetting = self._spawn(self._reset(record, winner))
            self._publisher.publish(record)
        await asyncio.shield(record.resetting)
        return self._published_body(record)

    async def _reset(self, record: ManagedInstance, winner: ObservedClaim) -> None:
        link = self.links[winner.controller]
        try:
            async with asyncio.timeout(RESET_S):
                await link(lambda client: client.reset_partition(winner.partition_id))
                pause_s = RESET_POLL_S
                while (await link(lambda client: client.partition(winner.partition_id))).state != "ACTIVE":
                    if not record.claims.has_ready(winner):
                        break
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RESET_POLL_S_MAX)
        except TimeoutError:
            raise MooringsError(
                "wait.timeout", f"partition {winner.partition} was not clean within {RESET_S:g} s", retryable=True
            ) from None
        finally:
            record.resetting = None
            self.enqueue(record.owner)
        if not record.claims.has_ready(winner):
            raise MooringsError("partition.not_active", f"partition {winner.partition} was lost under the reset")
        log.info("partition.reset", extra={"owner": record.owner, "partition": winner.partition})

    def partitions(self, namespace: str = "", job: str = "") -> PartitionsBody:
        """All partitions that have not ended; with a namespace or a job only its own."""
        shown = [one.published for one in self._claims.list_instances(namespace, job) if one.published is not None]
        items = tuple(sorted(shown, key=lambda one: (one.namespace, one.job, one.instance, one.uid)))
        return PartitionsBody(version=self.journal.version, complete=self.is_complete, items=items)

    def waiting_instances(self) -> list[ManagedInstance]:
        """The instances that wait in queues."""
        return [one for one in self._claims.list_instances() if one.plan.winner is None and one.claims.claims]

    # -- work ----------------------------------------------------------------------------------------------------------

    def enqueue(self, owner: str) -> None:
        """Work on an instance; if that is under way, once more afterwards."""
        record = self._claims.instances.get(owner)
        if record is None:
            return
        if record.worker is not None:
            record.is_dirty = True
            return
        record.idle.clear()
        record.worker = self._spawn(self._reconcile(record))

    def _wake_all(self) -> None:
        for owner in list(self._claims.instances):
            self.enqueue(owner)

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its awaiter gets the error; a reset without one shows it in the state

    async def _wait_until_idle(self, record: ManagedInstance) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await record.idle.wait()
        except TimeoutError:
            return

    async def _reconcile(self, record: ManagedInstance) -> None:
        try:
            for _ in range(TRIES_IN_A_ROW):
                record.is_dirty = False
                if not await self._step(record) and not record.is_dirty:
                    break
        except Exception:
            log.exception("partition.failed", extra={"owner": record.owner})
            record.is_dirty = True
            await asyncio.sleep(PAUSE_S_MAX)
        finally:
            record.worker = None
            record.idle.set()
            if record.is_dirty and not self._closed:
                self.enqueue(record.owner)

    async def _step(self, record: ManagedInstance) -> bool:
        """Execute the plan of an instance once; whether anything was done."""
        choice = record.plan = plan_instance(record.claims, self._observed_controllers())
        if choice.is_finished and record.resetting is None:
            self._claims.remove(record)
            self._publisher.withdraw(record)
            return False
        if not choice.actions:
            record.last_error, record.pause_s = "", PAUSE_S
            self._publisher.publish(record)
            return False
        self._publisher.publish(record)
        done = await asyncio.gather(*(self._execute(record, choice, deed) for deed in choice.actions))
        if not all(done):  # the failure may pass
            self._publisher.publish(record)
            record.idle.set()
            await asyncio.sleep(record.pause_s)
            record.pause_s = min(record.pause_s * 2, PAUSE_S_MAX)
        else:
            record.pause_s = PAUSE_S
        return True

    def _observed_controllers(self) -> list[ObservedController]:
        return [link.observe() for link in self.links.values() if not link.alias_of]

    async def _execute(self, record: ManagedInstance, choice: InstancePlan, deed: ClaimAction) -> bool:
        """Execute one action; false: it failed, and may succeed later."""
        link = self.links.get(deed.controller)
        if link is None:
            return True
        try:
            match deed.type:
                case ActionType.CLAIM_NOW | ActionType.CLAIM_QUEUED:
                    await self._create_claim(record, link, waits=deed.type is ActionType.CLAIM_QUEUED)
                case ActionType.LIST_CLAIMS:
                    await self._list_claims(record, link)
                case ActionType.RELEASE_IF_WAITING | ActionType.RELEASE:
                    await self._release_claim(record, link, deed)
                case ActionType.FETCH:
                    assert choice.winner is not None
                    return await self._fetch_binding(record, link, choice.winner)
        except MooringsError as error:
            if not link.is_reachable:
                return True  # it is planned again once the controller responds
            record.last_error = f"{link.name}: {error.detail}"
            log.warning(
                "partition.delayed",
                extra={"owner": record.owner, "controller": link.name, "code": error.code, "detail": error.detail},
            )
            return False
        return True

    async def _fetch_binding(self, record: ManagedInstance, link: ControllerConnection, winner: ObservedClaim) -> bool:
        try:
            binding = await link(lambda client: client.binding(winner.id))
        except MooringsError as error:
            record.last_error = f"{link.name}: {error.detail}"
            return not record.claims.has_ready(winner)
        if record.claims.mark_published(winner):
            record.binding = binding
            log.info("partition.ready", extra={"owner": record.owner, "partition": binding.partition})
        return True

    async def _release_claim(self, record: ManagedInstance, link: ControllerConnection, deed: ClaimAction) -> None:
        only_waiting = deed.type is ActionType.RELEASE_IF_WAITING
        try:
            body = await link(lambda client: client.delete_claim(deed.claim, only_waiting=only_waiting))
        except MooringsError as error:
            if error.code == "claim.held":
                body = await link(lambda client: client.get_claim(deed.claim))
            elif error.code == "claim.unknown":
                known = record.claims.claims.get((self._canonical_name(link), deed.claim))
                if known is not None:
                    self._observe_claim(record, replace(known, phase=ClaimPhase.ENDED))
                return
            else:
                raise
        self._observe_claim(record, observe_body(self._canonical_name(link), body))

    async def _list_claims(self, record: ManagedInstance, link: ControllerConnection) -> None:
        began = time.monotonic()
        claims = await link(lambda client: client.list_claims(ClaimFilter(owner_prefix=record.owner)))
        if link.alias_of:
            return
        found = [observe_body(link.name, claim) for claim in claims if claim.owner == record.owner]
        self._claims.apply_owners_list(record, link.name, found, began, time.monotonic())

    async def _create_claim(self, record: ManagedInstance, link: ControllerConnection, *, waits: bool) -> None:
        request = record.claims.request or rebuild_request(record)
        if request is None:
            return
        doubted = link.name in record.claims.uncertain_controllers
        record.claims.uncertain_controllers.add(link.name)
        reached: list[bool] = []

        def make(client: Client) -> ClaimBody:
            before = client.requests_sent
            try:
                return make_claim(
                    client, request, record.key, self.cluster, self.projects, waits=waits, mark=self.cluster_uid
                )
            finally:
                reached.append(client.requests_sent > before)

        try:
            claim = await link(make)
        except MooringsError as error:
            if not link.is_reachable:
                if not doubted and not any(reached):  # it cannot hold a claim that never was requested
                    record.claims.uncertain_controllers.discard(self._canonical_name(link))
                raise
            if not record.claims.apply_refusal(self._canonical_name(link), error):
                raise
            if self._canonical_name(link) in record.claims.refused:
                log.warning(
                    "partition.refused",
                    extra={"owner": record.owner, "controller": link.name, "code": error.code, "detail": error.detail},
                )
            return
        record.claims.uncertain_controllers.discard(self._canonical_name(link))
        self._observe_claim(record, observe_body(self._canonical_name(link), claim))

    def _publish(self, record: ManagedInstance) -> None:
        """Publish what was held back."""
        choice = plan_instance(record.claims, self._observed_controllers())
        if not choice.is_finished:
            record.plan = choice
            self._publisher.publish(record)

    def _published_body(self, record: ManagedInstance) -> PartitionBody:
        """The published state of an instance."""
        if self._claims.find(record.key) is record:
            self._publisher.publish(record)
            if record.published is not None:
                return record.published
        return self._publisher.body(record)
