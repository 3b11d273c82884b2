"""The partitions of one Kubernetes cluster on all controllers: tracks their state, and executes ``choice``'s plans.

Level-triggered: each change wakes its instance, which is then planned and acted on until nothing more follows, one step
at a time. Nothing is stored over a restart: the claims of the cluster's owners, as each controller lists them, suffice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.errors import MooringsError
from moorings.kubernetes.proxy.asking import (
    InstanceKey,
    check_request,
    is_clusters_claim,
    parse_instance_key,
    prefix_of,
)
from moorings.kubernetes.proxy.choice import ActionType, ClaimAction, DesiredState, ObservedController, plan_instance
from moorings.kubernetes.proxy.journal import WatchCache
from moorings.kubernetes.proxy.known import ClaimPhase, ObservedClaim, apply_event, observe_body, observe_created
from moorings.kubernetes.proxy.links import ControllerConnection, ControllerTarget
from moorings.kubernetes.proxy.making import make_claim
from moorings.kubernetes.proxy.publishing import StatusPublisher
from moorings.kubernetes.proxy.records import PAUSE_S, ManagedInstance, check_unchanged, rebuild_request
from moorings.kubernetes.proxy.shapes import PartitionBody, PartitionRequest, PartitionsBody
from moorings.kubernetes.proxy.usage import IpuUsage
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ClaimBody, EventBody

log = logging.getLogger("moorings.kubernetes.proxy")

ANSWER_S = 8.0  # how long a request waits for its result; the work continues after that
PAUSE_S_MAX = 5.0
RESET_S = 120.0
RESET_POLL_S, RESET_POLL_S_MAX = 0.05, 0.5
RETIRED_S = 60.0  # after it a controller that left the list and never responded is taken not to exist
SETTLED_S = 60  # a binding that was READY for so long before this process began was given out by an earlier one
ENDED_S = 300.0  # longest delay of a response that shows a claim as it was before its end
INSTANCES_MAX = 50_000
NAMESPACE_BOOKS_MAX = INSTANCES_MAX // 4  # else users of one namespace could leave no instances to others
TRIES_IN_A_ROW = 50  # far more than any case needs; a faulty decision must not loop for ever


class PartitionManager:
    """All partitions of a cluster.

    Args:
        cluster: its name.
        projects: project of a namespace, if their names differ.
        boot: distinguishes this process from others.
        now: the wall clock, microseconds since 1970.
        mark: distinguishes clusters of one name; empty: nothing does.
    """

    def __init__(
        self, cluster: str, projects: Mapping[str, str], boot: str, now: Callable[[], int], mark: str = ""
    ) -> None:
        self.cluster = cluster
        self.mark = mark
        self.journal = WatchCache(boot)
        self.usage = IpuUsage()
        self.links: dict[str, ControllerConnection] = {}
        self.projects = projects
        self._now = now
        self._began = now()
        self._records: dict[str, ManagedInstance] = {}
        self._by_job: dict[str, set[str]] = {}
        self._by_namespace: Counter[str] = Counter()
        self._owners: dict[tuple[str, str], str] = {}  # of claims, by controller and id
        self._gone: dict[tuple[str, str], float] = {}  # ended claims, and when we learned it; oldest first
        self._missed: dict[str, list[EventBody]] = {}  # of claims that no list has shown yet
        self._disowned: frozenset[str] = frozenset()  # controllers that are marked in the list as gone permanently
        self._tasks: set[asyncio.Task[None]] = set()
        self._publisher = StatusPublisher(self.journal, self.usage, lambda: self.links, self._publish, now)
        self._closed = False

    # -- controllers ---------------------------------------------------------------------------------------------------

    async def set_controllers(self, reaches: tuple[ControllerTarget, ...]) -> None:
        """Use these controllers, in this order. A dropped one is watched until it has no claims of this cluster."""
        wanted = {reach.entry.name: reach for reach in reaches if not reach.entry.gone}
        self._disowned = frozenset(reach.entry.name for reach in reaches if reach.entry.gone)
        old, self.links = self.links, {}
        for name, reach in wanted.items():
            link = old.pop(name, None)
            if link is not None and link.reach.endpoint == reach.endpoint:
                link.reach, link.asked = reach, True
            else:
                seen = link is not None and link.seen
                if link is not None:
                    await link.close()
                installation = link.installation if link is not None else ""
                link = ControllerConnection(reach, prefix_of(self.cluster), self)
                link.seen, link.installation = seen, installation
                link.open()
            self.links[name] = link
        for name, link in old.items():
            link.asked = False
            self.links[name] = link
        self._find_aliases()
        await self.retire()
        log.info("controllers.set", extra={"controllers": ",".join(wanted) or "none"})
        for owner in list(self._records):
            self.wake(owner)

    async def retire(self) -> None:
        """Disconnect controllers that left the list and have no claims of this cluster.

        A silent one may return: its known claims stay, unless the list marks it as gone permanently.
        """
        for name, link in list(self.links.items()):
            if link.asked:
                continue
            nobody = not link.seen and not link.answers and time.monotonic() - link.away_at > RETIRED_S
            disowned = name in self._disowned and not link.answers
            empty = (link.seen or nobody) and not self._has(name)
            if not empty and not disowned:
                continue
            await link.close()
            del self.links[name]
            log.info("controller.retired", extra={"controller": name})
            for owner, record in list(self._records.items()):
                record.book.forget(name)
                self._index(record)
                self.wake(owner)

    def _has(self, name: str) -> bool:
        """Whether a controller has, or may have, claims of this cluster."""
        return any(at == name for at, _ in self._owners) or any(
            name in record.book.doubts for record in self._records.values()
        )

    @property
    def complete(self) -> bool:
        """Whether all claims are known: each controller responds, or gets no new ones and has listed its own before."""
        return all(
            link.seen and (link.answers or (not link.asked and link.gone))
            for link in self.links.values()
            if not link.alias_of
        )

    def _find_aliases(self) -> None:
        """Find entries of one installation: only the first is used, and has all the known claims."""
        first: dict[str, ControllerConnection] = {}
        for link in sorted(self.links.values(), key=lambda link: not link.asked):
            same = first.setdefault(link.installation, link) if link.installation else link
            name = same.name if same is not link else ""
            if name == link.alias_of:
                continue
            link.alias_of = name
            if not name:
                link.list_soon()
                continue
            same.seen = same.seen or link.seen
            log.warning(
                "controller.alias",
                extra={"controller": link.name, "alias_of": name, "installation": link.installation},
            )
            for record in self._records.values():
                record.book.rename(link.name, name)
                self._index(record, ended=False)
                winner = record.choice.winner
                if winner is not None:
                    record.choice = replace(record.choice, winner=record.book.find(winner) or winner)
            same.list_soon()

    def _at(self, link: ControllerConnection) -> str:
        """The controller's name in the claims."""
        return link.alias_of or link.name

    async def close(self) -> None:
        """Stop; every claim stays as it is."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for record in self._records.values():
            self._publisher.forget(record)
        for link in self.links.values():
            await link.close()

    # -- reports by controllers ----------------------------------------------------------------------------------------

    def met(self, link: ControllerConnection, installation: str) -> str:
        """Check the installation that responds at a controller's address; returns why it is refused, or nothing."""
        if self.links.get(link.name) is not link or installation == link.installation:
            return ""
        if link.installation and self._has(link.name):
            return (
                f"the installation {installation} answers at {link.name}, where {link.installation} has partitions of "
                f"this cluster; if that one is gone for good, put !{link.name} into the list"
            )
        link.installation = installation
        self._find_aliases()
        for owner in list(self._records):
            self.wake(owner)
        return ""

    def listed(self, link: ControllerConnection, began: float, claims: tuple[ClaimBody, ...]) -> None:
        """Apply the list of all the cluster's unended claims on a controller."""
        if self.links.get(link.name) is not link or link.alias_of:
            return
        found: dict[str, list[ObservedClaim]] = {}
        foreign = []
        for claim in claims:
            if self._is_ours(claim.owner, claim.name):
                found.setdefault(claim.owner, []).append(observe_body(link.name, claim))
            else:
                foreign.append(claim)
        self._tell_foreign(link, foreign)
        known_before = {owner for (at, _), owner in self._owners.items() if at == link.name}
        doubtful = {owner for owner, record in self._records.items() if link.name in record.book.doubts}
        for owner in {*found, *known_before, *doubtful}:
            place = parse_instance_key(owner, self.cluster)
            if place is None:
                continue
            record = self._record(place)
            if not link.seen:
                old = (known for known in found.get(owner, ()) if self._is_old(known))
                record.book.settled |= {(known.controller, known.id) for known in old}
            before = dict(record.book.claims), set(record.book.doubts)
            self._look_into(record, link, began, found.get(owner, []))
            if (record.book.claims, record.book.doubts) != before or not link.seen:
                self.wake(owner)
        self.happened(link, tuple(self._missed.pop(link.name, ())))
        self._tidy()

    def _is_ours(self, owner: str, name: object) -> bool:
        """Whether a claim under our owners was made for this cluster, not for another one of the same name."""
        place = parse_instance_key(owner, self.cluster)
        return owner in self._records or place is None or is_clusters_claim(name, place, self.cluster, self.mark)

    def _tell_foreign(self, link: ControllerConnection, foreign: list[ClaimBody]) -> None:
        """Report another cluster's claims. They are not tracked: the operator would end them, lacking such jobs."""
        if foreign and not link.foreign:
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
        link.foreign = len(foreign)

    def _look_into(
        self, record: ManagedInstance, link: ControllerConnection, began: float, found: list[ObservedClaim]
    ) -> None:
        """Apply the list of an owner's claims on a controller, without those that have ended since the request."""
        found = [known for known in found if (known.controller, known.id) not in self._gone]
        record.book.look(link.name, began, found, time.monotonic())
        self._index(record)

    def _index(self, record: ManagedInstance, *, ended: bool = True) -> None:
        """Index a record's claims by owner, and record which have ended (or are under another name now)."""
        now = time.monotonic()
        held = record.book.claims.keys()
        for key in record.keys - held:
            del self._owners[key]
            if ended:
                self._gone[key] = now
        for key in held - record.keys:
            self._owners[key] = record.owner
            self._gone.pop(key, None)
        record.keys = set(held)

    def _tidy(self) -> None:
        before = time.monotonic() - ENDED_S
        for key, at in list(self._gone.items()):
            if at > before:
                break
            del self._gone[key]

    def _is_old(self, known: ObservedClaim) -> bool:
        try:
            ready = known.phase is ClaimPhase.READY
            return ready and parse_time(known.since) < self._began - SETTLED_S * 1_000_000
        except MooringsError:
            return False

    def happened(self, link: ControllerConnection, events: tuple[EventBody, ...]) -> None:
        """Apply a controller's events, in order."""
        if self.links.get(link.name) is not link or link.alias_of:
            return
        if not link.installation:  # it is not known yet which installation they are of
            if link.listing:
                self._missed.setdefault(link.name, []).extend(events)
            else:  # the next list has the changes
                self._missed.pop(link.name, None)
            return
        for event in events:
            if event.claim is None:
                continue
            key = (link.name, event.claim)
            owner = self._owners.get(key)
            if owner is None:
                if event.name == "claim.created":
                    self._begun(link, event)
                elif link.listing and key not in self._gone:
                    self._missed.setdefault(link.name, []).append(event)
                continue
            record = self._records.get(owner)
            known = record.book.claims.get(key) if record is not None else None
            if record is None or known is None:
                continue
            found = apply_event(known, event)
            if found is not known and found != known:
                self._note(record, found)
                self.wake(owner)

    def _begun(self, link: ControllerConnection, event: EventBody) -> None:
        known = observe_created(link.name, event)
        place = parse_instance_key(known.owner, self.cluster) if known is not None else None
        if known is None or place is None or not self._is_ours(known.owner, event.data.get("name")):
            return
        record = self._record(place)
        self._note(record, known)
        self.wake(record.owner)

    def _note(self, record: ManagedInstance, known: ObservedClaim) -> None:
        if (known.controller, known.id) in self._gone:
            return
        if known.phase is ClaimPhase.ENDED:
            self._gone[known.controller, known.id] = time.monotonic()
        record.book.note(known, time.monotonic())
        self._index(record)
        if record.worker is not None:  # a call in its work may take long
            self._publisher.publish_soon(record)

    def changed(self, link: ControllerConnection) -> None:
        """A controller began or ceased to respond: wake all instances that may wait for it."""
        for owner, record in list(self._records.items()):
            idle = record.choice.give and link.name not in record.book.doubts
            if not idle or any(at == link.name for at, _ in record.book.claims):
                self.wake(owner)

    # -- requests to the proxy -----------------------------------------------------------------------------------------

    async def create(self, request: PartitionRequest) -> PartitionBody:
        """Request the partition of one instance, and return its present state.

        Raises:
            MooringsError: ``body.invalid``, ``owner.invalid``, ``key.conflict``, ``controller.busy``,
                ``partition.too_many``.
        """
        place = check_request(request, self.cluster)
        owner = place.owner(self.cluster)
        record = self._records.get(owner)
        if record is None:
            if len(self._records) >= INSTANCES_MAX:
                raise MooringsError("controller.busy", f"there are {INSTANCES_MAX} partitions already", retryable=True)
            if self._by_namespace[place.namespace] >= NAMESPACE_BOOKS_MAX:
                raise MooringsError(
                    "partition.too_many",
                    f"namespace {place.namespace} has, or waits for, {NAMESPACE_BOOKS_MAX} partitions; it gets no more",
                    hint="scale IPUJobs down, or delete some",
                    retryable=True,
                )
            record = self._record(place)
        book = record.book
        if book.wish is not DesiredState.OVER:
            check_unchanged(book, request)
            book.wish, book.request = DesiredState.WANTED, request
            book.young = book.young or self._is_young(request)
            self.wake(owner)
        await self._settled(record)
        return self._told(record)

    def _is_young(self, request: PartitionRequest) -> bool:
        if request.job_created_at is None:
            return False
        return parse_time(request.job_created_at) >= self._began

    async def release(self, place: InstanceKey) -> PartitionBody | None:
        """Release an instance's partition on all controllers, now or as soon as possible; None: nothing is left."""
        record = self._records.get(place.owner(self.cluster))
        if record is None:
            return None
        record.book.wish = DesiredState.OVER
        self.wake(record.owner)
        await self._settled(record)
        return self._told(record) if self._records.get(record.owner) is record else None

    async def give_way(self, place: InstanceKey) -> PartitionBody:
        """Release a partition that is RECLAIMING, when nothing runs on it any more: its instance waits again.

        Raises:
            MooringsError: ``partition.unknown``, ``claim.not_asked``, or the controller's error.
        """
        record = self._records.get(place.owner(self.cluster))
        if record is None:
            raise MooringsError("partition.unknown", f"{place.key} has no partition for instance {place.instance}")
        winner = record.choice.winner
        winner = record.book.find(winner) if winner is not None else None
        if winner is None or winner.phase is not ClaimPhase.RECLAIMING:
            raise MooringsError(
                "claim.not_asked", f"the partition of {place.key} is {self._told(record).state}", retryable=True
            )
        link, ident = self.links[winner.controller], winner.id
        try:
            body = await link(lambda client: client.yield_claim(ident, "its Pods have ended"))
        except MooringsError as error:
            if error.code != "claim.not_asked":
                raise
            body = await link(lambda client: client.claim(ident))  # a response was lost
        self._note(record, observe_body(winner.controller, body))
        self.wake(record.owner)
        await self._settled(record)
        log.info("partition.yielded", extra={"owner": record.owner, "partition": winner.partition})
        return self._told(record)

    async def reset(self, place: InstanceKey) -> PartitionBody:
        """Reset a partition; returns it when it is READY again.

        Raises:
            MooringsError: ``partition.unknown``, ``partition.not_active``, ``wait.timeout``, or the controller's
                error.
        """
        record = self._records.get(place.owner(self.cluster))
        if record is None:
            raise MooringsError("partition.unknown", f"{place.key} has no partition for instance {place.instance}")
        winner = record.choice.winner
        if winner is None or not record.choice.give or record.binding is None:
            raise MooringsError(
                "partition.not_active", f"the partition of {place.key} is {self._told(record).state}", retryable=True
            )
        if record.resetting is None:
            record.resetting = self._spawn(self._reset(record, winner))
            self._publisher.publish(record)
        await asyncio.shield(record.resetting)
        return self._told(record)

    async def _reset(self, record: ManagedInstance, winner: ObservedClaim) -> None:
        link = self.links[winner.controller]
        try:
            async with asyncio.timeout(RESET_S):
                await link(lambda client: client.reset_partition(winner.partition_id))
                pause_s = RESET_POLL_S
                while (await link(lambda client: client.partition(winner.partition_id))).state != "ACTIVE":
                    if not record.has_ready(winner):
                        break
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RESET_POLL_S_MAX)
        except TimeoutError:
            raise MooringsError(
                "wait.timeout", f"partition {winner.partition} was not clean within {RESET_S:g} s", retryable=True
            ) from None
        finally:
            record.resetting = None
            self.wake(record.owner)
        if not record.has_ready(winner):
            raise MooringsError("partition.not_active", f"partition {winner.partition} was lost under the reset")
        log.info("partition.reset", extra={"owner": record.owner, "partition": winner.partition})

    def partitions(self, namespace: str = "", job: str = "") -> PartitionsBody:
        """All partitions that have not ended; with a namespace or a job only its own."""
        if namespace and job:
            owners = self._by_job.get(f"{namespace}/{job}", set())
            records = [self._records[owner] for owner in owners]
        else:
            records = [one for one in self._records.values() if not namespace or one.place.namespace == namespace]
        shown = [record.shown for record in records if record.shown is not None and job in ("", record.place.job)]
        items = tuple(sorted(shown, key=lambda one: (one.namespace, one.job, one.instance, one.uid)))
        return PartitionsBody(version=self.journal.version, complete=self.complete, items=items)

    def waiting(self) -> list[ManagedInstance]:
        """The instances that wait in queues."""
        return [record for record in self._records.values() if record.choice.winner is None and record.book.claims]

    # -- work ----------------------------------------------------------------------------------------------------------

    def _record(self, place: InstanceKey) -> ManagedInstance:
        owner = place.owner(self.cluster)
        record = self._records.get(owner)
        if record is None:
            record = self._records[owner] = ManagedInstance(place, owner)
            self._by_job.setdefault(place.key, set()).add(owner)
            self._by_namespace[place.namespace] += 1
        return record

    def _drop(self, record: ManagedInstance) -> None:
        del self._records[record.owner]
        owners = self._by_job[record.place.key]
        owners.discard(record.owner)
        if not owners:
            del self._by_job[record.place.key]
        self._by_namespace[record.place.namespace] -= 1
        if not self._by_namespace[record.place.namespace]:
            del self._by_namespace[record.place.namespace]
        for key in record.keys:
            self._owners.pop(key, None)
        self._publisher.withdraw(record)

    def wake(self, owner: str) -> None:
        """Work on an instance; if that is under way, once more afterwards."""
        record = self._records.get(owner)
        if record is None:
            return
        if record.worker is not None:
            record.again = True
            return
        record.idle.clear()
        record.worker = self._spawn(self._work(record))

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its awaiter gets the error; a reset without one shows it in the state

    async def _settled(self, record: ManagedInstance) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await record.idle.wait()
        except TimeoutError:
            return

    async def _work(self, record: ManagedInstance) -> None:
        try:
            for _ in range(TRIES_IN_A_ROW):
                record.again = False
                if not await self._step(record) and not record.again:
                    break
        except Exception:
            log.exception("partition.failed", extra={"owner": record.owner})
            record.again = True
            await asyncio.sleep(PAUSE_S_MAX)
        finally:
            record.worker = None
            record.idle.set()
            if record.again and not self._closed:
                self.wake(record.owner)

    async def _step(self, record: ManagedInstance) -> bool:
        """Execute the plan of an instance once; whether anything was done."""
        choice = record.choice = plan_instance(record.book, self._standings())
        if choice.over and record.resetting is None:
            self._drop(record)
            return False
        winner = choice.winner
        fetch = choice.give and winner is not None and (winner.controller, winner.id) != record.book.given
        if not choice.deeds and not fetch:
            record.trouble, record.pause_s = "", PAUSE_S
            self._publisher.publish(record)
            return False
        self._publisher.publish(record)
        works = [self._try(record, deed) for deed in choice.deeds]
        if fetch and winner is not None:
            works.append(self._fetch(record, winner))
        done = await asyncio.gather(*works)
        if not all(done):  # the failure may pass
            self._publisher.publish(record)
            record.idle.set()
            await asyncio.sleep(record.pause_s)
            record.pause_s = min(record.pause_s * 2, PAUSE_S_MAX)
        else:
            record.pause_s = PAUSE_S
        return True

    def _standings(self) -> list[ObservedController]:
        return [
            ObservedController(name, one.answers, one.gone, one.asked, one.seen)
            for name, one in self.links.items()
            if not one.alias_of
        ]

    async def _try(self, record: ManagedInstance, deed: ClaimAction) -> bool:
        """Execute one action; false: it failed, and may succeed later."""
        link = self.links.get(deed.controller)
        if link is None:
            return True
        try:
            match deed.do:
                case ActionType.TRY | ActionType.QUEUE:
                    await self._make(record, link, waits=deed.do is ActionType.QUEUE)
                case ActionType.LOOK:
                    await self._look(record, link)
                case ActionType.WITHDRAW | ActionType.RELEASE:
                    await self._let_go(record, link, deed)
        except MooringsError as error:
            if not link.answers:
                return True  # it is planned again once the controller responds
            record.trouble = f"{link.name}: {error.detail}"
            log.warning(
                "partition.delayed",
                extra={"owner": record.owner, "controller": link.name, "code": error.code, "detail": error.detail},
            )
            return False
        return True

    async def _fetch(self, record: ManagedInstance, winner: ObservedClaim) -> bool:
        link = self.links.get(winner.controller)
        if link is None:
            return True
        try:
            binding = await link(lambda client: client.binding(winner.id))
        except MooringsError as error:
            record.trouble = f"{link.name}: {error.detail}"
            return not record.has_ready(winner)
        known = record.book.find(winner)
        if known is not None and record.has_ready(winner) and record.book.wish is not DesiredState.OVER:
            record.binding = binding
            record.book.given = (known.controller, known.id)
            log.info("partition.ready", extra={"owner": record.owner, "partition": binding.partition})
        return True

    async def _let_go(self, record: ManagedInstance, link: ControllerConnection, deed: ClaimAction) -> None:
        only_waiting = deed.do is ActionType.WITHDRAW
        try:
            body = await link(lambda client: client.delete_claim(deed.claim, only_waiting=only_waiting))
        except MooringsError as error:
            if error.code == "claim.held":
                body = await link(lambda client: client.claim(deed.claim))
            elif error.code == "claim.unknown":
                known = record.book.claims.get((self._at(link), deed.claim))
                if known is not None:
                    self._note(record, replace(known, phase=ClaimPhase.ENDED))
                return
            else:
                raise
        self._note(record, observe_body(self._at(link), body))

    async def _look(self, record: ManagedInstance, link: ControllerConnection) -> None:
        began = time.monotonic()
        claims = await link(lambda client: client.claims(ClaimFilter(owner_prefix=record.owner)))
        if link.alias_of:
            return
        found = [observe_body(link.name, claim) for claim in claims if claim.owner == record.owner]
        self._look_into(record, link, began, found)

    async def _make(self, record: ManagedInstance, link: ControllerConnection, *, waits: bool) -> None:
        request = record.book.request or rebuild_request(record)
        if request is None:
            return
        doubted = link.name in record.book.doubts
        record.book.doubts.add(link.name)
        reached: list[bool] = []

        def make(client: Client) -> ClaimBody:
            before = client.sent
            try:
                return make_claim(
                    client, request, record.place, self.cluster, self.projects, waits=waits, mark=self.mark
                )
            finally:
                reached.append(client.sent > before)

        try:
            claim = await link(make)
        except MooringsError as error:
            if not link.answers:
                if not doubted and not any(reached):  # it cannot hold a claim that never was requested
                    record.book.doubts.discard(self._at(link))
                raise
            record.book.doubts.discard(self._at(link))
            if error.code == "claim.no_room":
                record.book.full.add(self._at(link))
                return
            if error.retryable:
                raise
            record.book.refused[self._at(link)] = (error.code, f"{link.name}: {error.detail}")
            log.warning(
                "partition.refused",
                extra={"owner": record.owner, "controller": link.name, "code": error.code, "detail": error.detail},
            )
            return
        record.book.doubts.discard(self._at(link))
        self._note(record, observe_body(self._at(link), claim))

    def _publish(self, record: ManagedInstance) -> None:
        """Publish what was held back."""
        choice = plan_instance(record.book, self._standings())
        if not choice.over:
            record.choice = choice
            self._publisher.publish(record)

    def _told(self, record: ManagedInstance) -> PartitionBody:
        """The published state of an instance."""
        if self._records.get(record.owner) is record:
            self._publisher.publish(record)
            if record.shown is not None:
                return record.shown
        return self._publisher.body(record)
