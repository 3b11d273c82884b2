"""The driver of a real V-IPU controller, through its ``vipu`` command.

Each request is *list, record, request, list*. The first listing shows the current state (a request that was carried out
before is not repeated). Our request is on the disk before the vendor gets it (``orders``). The command's own output
only counts as far as the next listing confirms it. A command that fails, hangs or prints unknown output is
*unavailable*: its request may or may not have been carried out, and is retried. *Rejected* is only what we know without
the vendor, because the words of the vendor's refusals are not public.

The command may wait until a partition is ready, which takes minutes. A request is answered when its command ends, or
once a listing shows that it was accepted; that is checked every ``ANSWER_WAIT_S``. Then the command runs on in the
background; until it ends, an old ACTIVE of a partition under reset or removal does not count.

Refused: telling the vendor by default which IPUs to take. ``--index`` exists, but no public text says what it counts;
``create_arguments`` is there for sites that know. A partition on other IPUs than requested is noticed and removed
(``sight``), and if that repeats, the block is marked broken or the claim rejected (``misses``): no claim waits forever.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from moorings.core.bindings import Binding, GcdBinding
from moorings.core.devices import device_id
from moorings.core.errors import MooringsError
from moorings.core.hardware import Capability, DriverResult, ListedPartition, ObservedState, PartitionSpec, ResultCode
from moorings.core.instants import add_seconds
from moorings.core.partitions import gcd_blocks
from moorings.core.topology import Block, Pool, PowerOfTwo
from moorings.drivers.vipu import commands
from moorings.drivers.vipu.commands import NAME_CHARS_MAX, VendorPartition, VipuParseError
from moorings.drivers.vipu.misses import Misplacements
from moorings.drivers.vipu.orders import IntentLog, PartitionIntent
from moorings.drivers.vipu.settings import VipuSettings
from moorings.drivers.vipu.sight import (
    MISPLACED,
    VipuPartition,
    find_unrecorded_orders,
    match_listing,
    with_pending_state,
    with_states,
)
from moorings.drivers.vipu.tool import VipuCli, VipuCommandError, VipuNotStartedError
from moorings.ports.clock import Clock

ANSWER_WAIT_S = 2.0  # a request still in progress by then is answered as accepted, if a listing shows it
CLUSTERS_BYTES_MAX = 16 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # never an option of the command
_OWN_CHOICE = "the V-IPU controller makes partitions on other IPUs than ordered (see create_arguments in [pool.vipu])"
_WHAT_FOLLOWS = {
    ResultCode.UNAVAILABLE: "another try follows",
    ResultCode.BROKEN: "it did so before: the block is marked broken; see with 'vipu' why it does not give these IPUs",
    ResultCode.REJECTED: "the last {count} were all made elsewhere: admins, see create_arguments in [pool.vipu]",
}

_Value = TypeVar("_Value")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RunningCommand:
    """A running command: the state of its partition meanwhile, and its devices."""

    seen: ObservedState
    block: Block
    task: asyncio.Task[str]


class VipuDriver:
    """One pool behind a V-IPU controller.

    Args:
        pool: the devices; one cluster of the vendor's.
        settings: the controller's address and options.
        folder: for our requests and the command's configuration; made if missing.
        clock: the time.

    Raises:
        MooringsError: ``pools.invalid`` (kind, topology, secret files), ``driver.unavailable`` (the folder).
    """

    def __init__(self, pool: Pool, settings: VipuSettings, folder: Path, clock: Clock) -> None:
        if pool.kind != "ipu" or not isinstance(pool.topology, PowerOfTwo):
            raise MooringsError(
                "pools.invalid",
                f"pool {pool.name}: the driver vipu needs kind = 'ipu' and a topology of type power-of-two",
                hint="a V-IPU partition has a power of two of IPUs",
            )
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._tool = VipuCli(settings, folder)
        self._orders = IntentLog(folder)
        self._places: dict[str, int] = {}  # index of the cluster's IPUs; empty until listed
        self._strange: set[str] = set()  # listed IPUs outside the cluster: another pool's
        self._jobs: dict[str, _RunningCommand] = {}
        self._misses = Misplacements(steered=bool(settings.create_arguments))
        self._rests_until = clock.now()
        self._creating: set[str] = set()  # names with a request in progress
        self._held: dict[str, PartitionSpec] = {}  # by name; a controller on another machine may have requested them
        self._turn = asyncio.Lock()  # one request at a time decides by the listing

    @property
    def capability(self) -> Capability:
        facts = {
            "hardware": "a V-IPU controller, through its vipu command (this driver has not met real hardware)",
            "api": f"{self._settings.api_host}:{self._settings.api_port}",
            "cluster": self._settings.cluster or "the only one",
        }
        return Capability(name_chars_max=NAME_CHARS_MAX, facts=facts)

    # ---- requests

    def adopt(self, held: Sequence[PartitionSpec]) -> None:
        self._held = {order.name: order for order in held}

    async def create(self, order: PartitionSpec) -> DriverResult:
        refusal = self._refusal(order)
        if refusal:
            return DriverResult(ResultCode.REJECTED, ObservedState.ABSENT, refusal)
        self._creating.add(order.name)
        try:
            return await self._create(order)
        except MooringsError as error:
            return DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)
        finally:
            self._creating.discard(order.name)

    async def reset(self, name: str, mark: str) -> DriverResult:
        try:
            return await self._reset(name, mark)
        except MooringsError as error:
            return DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)

    async def remove(self, name: str, mark: str) -> DriverResult:
        try:
            return await self._remove(name, mark)
        except MooringsError as error:
            return DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)

    def _refusal(self, order: PartitionSpec) -> str:
        size = len(order.block)
        if not _NAME.fullmatch(order.name) or len(order.name) > NAME_CHARS_MAX:
            return f"{order.name[:48]!r} cannot be the name of a partition"
        if not self._pool.topology.is_block(order.block):
            return f"devices {order.block} cannot form a partition"
        if order.gcds < 1 or size % order.gcds:
            return f"{size} devices cannot be divided among {order.gcds} GCDs"
        reason = self._pool.topology.why_not(size, order.gcds)
        return reason.message if reason is not None else ""

    async def _create(self, order: PartitionSpec) -> DriverResult:
        async with self._turn:
            seen = await self._look()
            if order.name in seen:
                return self._created(order, seen[order.name])
            job = self._jobs.get(order.name)
            if job is None:
                holder = self._holder(order.block, seen)
                if holder:
                    return DriverResult(
                        ResultCode.UNAVAILABLE, ObservedState.ABSENT, f"device in use: {order.block} overlaps {holder}"
                    )
                if self._rests_until - (now := self._clock.now()) > 0:
                    rest_s = (self._rests_until - now) / 1e6
                    return DriverResult(
                        ResultCode.UNAVAILABLE, ObservedState.ABSENT, f"{_OWN_CHOICE}; next try in {rest_s:.0f} s"
                    )
                self._rests_until = add_seconds(now, self._misses.pause_s)  # while one is tried, the others pause
                await asyncio.to_thread(self._orders.write, PartitionIntent(order))
                self._held.pop(order.name, None)  # from now on only this record makes it ours
                words = commands.build_create(order, self._settings)
                job = self._start(
                    order.name, _RunningCommand(ObservedState.PROVISIONING, order.block, self._command(words))
                )
        try:
            await self._wait(job, lambda now: order.name in now and now[order.name].record is not None)
        except VipuNotStartedError:
            await asyncio.to_thread(self._orders.forget, order.name)
            raise
        except VipuCommandError as error:
            if not commands.is_ambiguous_failure(error.detail):
                await asyncio.to_thread(self._orders.settle, [order.name])
            raise
        seen = await self._look()
        if order.name not in seen:
            done = "said that it was done" if job.task.done() else "has not answered yet"
            return DriverResult(ResultCode.UNAVAILABLE, detail=f"'vipu create' {done}, and {order.name} is not listed")
        if seen[order.name].record is None and job.task.done():
            seen = await self._adopt(order, seen[order.name])
        return self._created(order, seen[order.name])

    async def _adopt(self, order: PartitionSpec, made: VipuPartition) -> dict[str, VipuPartition]:
        """Return the listing after the vendor reported success and made a partition of another shape.

        The partition is ours: the name was free before, and a vendor that finds it taken says so.
        """
        record = (await asyncio.to_thread(self._orders.all)).get(order.name)
        if record is not None and record.order == order:
            await asyncio.to_thread(self._orders.write, replace(record, made=made.shape))
        return await self._look()

    def _created(self, order: PartitionSpec, sight: VipuPartition) -> DriverResult:
        """Return the answer for an existing partition with the requested name."""
        if sight.record is None or sight.record.order.mark != order.mark:
            return DriverResult(
                ResultCode.UNAVAILABLE, detail=f"partition {order.name} already exists and is not yours"
            )
        if sight.record.order.block != order.block:
            detail = f"partition {order.name} already exists, on {sight.record.order.block}"
            return DriverResult(ResultCode.REJECTED, detail=detail)
        if not sight.misplaced:
            self._misses.hit(order.block)
            return _answer_for(sight)
        self._misses.missed(order.name, order.block)
        self._rests_until = max(self._rests_until, add_seconds(self._clock.now(), self._misses.pause_s))
        verdict = self._misses.verdict(order.block)
        detail = f"{_misplacement_text(order, sight)}; {_WHAT_FOLLOWS[verdict].format(count=self._misses.in_a_row)}"
        return DriverResult(
            verdict, ObservedState.ERROR if verdict is ResultCode.BROKEN else ObservedState.UNKNOWN, detail
        )

    def _holder(self, block: Block, seen: dict[str, VipuPartition]) -> str:
        """Return the holder of some of these devices: an existing partition, or one in creation."""
        others = [(name, sight.sighting.block) for name, sight in seen.items()]
        others += [(name, job.block) for name, job in self._jobs.items()]
        return next((f"partition {name}" for name, other in others if other.overlaps(block)), "")

    async def _reset(self, name: str, mark: str) -> DriverResult:
        async with self._turn:
            sight = (await self._look()).get(name)
            if sight is None or sight.sighting.mark != mark:
                return DriverResult(ResultCode.REJECTED, ObservedState.ABSENT, f"no partition {name}")
            state = sight.sighting.seen
            job = self._jobs.get(name)
            if state is ObservedState.REMOVING:
                return DriverResult(ResultCode.REJECTED, state, f"partition {name} is being removed")
            if state is ObservedState.PROVISIONING or (job is not None and job.seen is ObservedState.PROVISIONING):
                return DriverResult(ResultCode.UNAVAILABLE, state, f"partition {name} is not ready yet")
            if state is not ObservedState.ACTIVE:
                return _answer_for(sight)
            job = self._start(
                name, _RunningCommand(ObservedState.RESETTING, Block(()), self._command(commands.build_reset(name)))
            )
        await self._wait(job, None)
        if not job.task.done():
            return DriverResult(ResultCode.OK, ObservedState.RESETTING)
        after = (await self._look()).get(name)
        if after is None:
            return DriverResult(ResultCode.UNAVAILABLE, detail=f"partition {name} is not listed any more")
        return _answer_for(after)

    async def _remove(self, name: str, mark: str) -> DriverResult:
        async with self._turn:
            sight = (await self._look()).get(name)
            job = self._jobs.get(name)
            if job is not None and job.seen is ObservedState.PROVISIONING:
                if sight is None:  # it may exist the next moment
                    return DriverResult(ResultCode.UNAVAILABLE, detail=f"partition {name} is just being made")
                await _stop(job)  # the command only waits until it is ready
                job = None
            ordered = mark.removesuffix(MISPLACED)
            if sight is None or sight.record is None or sight.record.order.mark != ordered:
                self._held.pop(name, None)
                await asyncio.to_thread(self._orders.gone, name, ordered, self._clock.now())
                return DriverResult(ResultCode.OK, ObservedState.ABSENT)
            if sight.sighting.seen is ObservedState.REMOVING or (
                job is not None and job.seen is ObservedState.REMOVING
            ):
                return DriverResult(ResultCode.OK, ObservedState.REMOVING)
            if job is not None:  # a reset that is no longer needed
                await _stop(job)
            broken = sight.sighting.seen is ObservedState.ERROR
            job = self._start(
                name, _RunningCommand(ObservedState.REMOVING, Block(()), self._command(commands.build_delete(name)))
            )
        try:
            await self._wait(job, None)
        except VipuCommandError as error:
            if commands.is_ambiguous_failure(error.detail):
                raise
            after_all = (await self._look()).get(name)
            if after_all is not None and broken and after_all.sighting.seen is ObservedState.ERROR:
                return DriverResult(ResultCode.BROKEN, ObservedState.ERROR, error.detail)
            if after_all is not None:
                raise  # else it has disappeared by itself
        if not job.task.done():
            return DriverResult(ResultCode.OK, ObservedState.REMOVING)
        if name in await self._look():
            return DriverResult(ResultCode.OK, ObservedState.REMOVING)
        await asyncio.to_thread(self._orders.gone, name, ordered, self._clock.now())
        return DriverResult(ResultCode.OK, ObservedState.ABSENT)

    # ---- running commands

    def _command(self, words: Sequence[str]) -> asyncio.Task[str]:
        return asyncio.create_task(self._tool.run(words, self._settings.timeout_s), name=f"vipu-{'-'.join(words[:3])}")

    def _start(self, name: str, job: _RunningCommand) -> _RunningCommand:
        self._jobs[name] = job

        def ended(task: asyncio.Task[str]) -> None:
            if self._jobs.get(name) is job:
                del self._jobs[name]
            if not task.cancelled() and task.exception() is not None:
                _log.info("vipu.failed pool=%s partition=%s detail=%s", self._pool.name, name, task.exception())

        job.task.add_done_callback(ended)
        return job

    async def _wait(self, job: _RunningCommand, taken: Callable[[dict[str, VipuPartition]], bool] | None) -> None:
        """Return when the command has ended, or when a listing, made every ``ANSWER_WAIT_S``, shows its acceptance.

        Args:
            job: the command.
            taken: whether a listing shows that the request was accepted; None: accepted if it runs.

        Raises:
            MooringsError: the command failed.
        """
        while not job.task.done():
            await asyncio.wait((job.task,), timeout=ANSWER_WAIT_S)
            if not job.task.done() and (taken is None or taken(await self._look())):
                return
        if job.task.cancelled():
            raise _unavailable("the command was cancelled by a newer request")
        job.task.result()

    # ---- listing

    async def list_partitions(self) -> Sequence[ListedPartition]:
        # A misplaced partition is not listed before its request is answered. Otherwise a reader of listings would take
        # it for a stranger's and the request for outdated, and would never learn the outcome.
        unanswered = frozenset(self._creating)
        seen = await self._look()
        return [sight.sighting for name, sight in seen.items() if not (sight.misplaced and name in unanswered)]

    async def _look(self) -> dict[str, VipuPartition]:
        """Return the existing partitions by name.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        # Commands and requests from the begin of the listing: one that ends meanwhile may still show in it.
        jobs, orders = dict(self._jobs), await asyncio.to_thread(self._orders.all)
        parse = partial(commands.parse_partitions, ipu_keys=self._settings.ipu_keys)
        partitions = await self._ask(commands.build_partitions(), parse)
        if any(not partition.state for partition in partitions):
            states = await self._ask(commands.build_states(), commands.parse_states)
            partitions = tuple(with_states(partitions, states))
        await self._survey({ipu for partition in partitions for ipu in partition.ipus})
        if self._held:
            await self._take_over(partitions, orders)
        seen = match_listing(partitions, self._places, orders | await asyncio.to_thread(self._orders.all))
        ours = [name for name, sight in seen.items() if sight.record is not None]
        await asyncio.to_thread(self._orders.settle, ours)
        for name, job in jobs.items():
            if name in seen and job.seen is not ObservedState.PROVISIONING:
                seen[name] = with_pending_state(seen[name], job.seen)
        return seen

    async def _take_over(self, partitions: Sequence[VendorPartition], orders: Mapping[str, PartitionIntent]) -> None:
        """Record the requests of another machine whose partitions exist."""
        news = find_unrecorded_orders(partitions, self._places, self._held, orders)
        if news:
            await asyncio.to_thread(self._orders.adopt, news)
        known = {*news, *(record.order for record in orders.values())}
        self._held = {name: order for name, order in self._held.items() if order not in known}

    async def _survey(self, used: set[str]) -> None:
        """Learn the positions of the cluster's IPUs; list them once, and again when an unknown one appears."""
        if self._places and used <= self._places.keys() | self._strange:
            return
        settings = self._settings
        parse = partial(commands.parse_clusters, cluster=settings.cluster, ipu_keys=settings.ipu_keys)
        if settings.clusters_file:
            ipus = _read(parse, await asyncio.to_thread(_text_of, Path(settings.clusters_file)), settings.clusters_file)
        else:
            ipus = await self._ask(commands.build_clusters(), parse)
        n_devices = self._pool.topology.n_devices
        if len(ipus) != n_devices:
            raise _unavailable(
                f"the V-IPU cluster has {len(ipus)} IPUs, and pool {self._pool.name} is said to have {n_devices}"
            )
        places = {ipu: index for index, ipu in enumerate(ipus)}
        if self._places and places != self._places:
            _log.warning("vipu.cluster_changed pool=%s", self._pool.name)
        self._places, self._strange = places, used - places.keys()

    async def _ask(self, words: Sequence[str], parse: Callable[[str], _Value]) -> _Value:
        text = await self._tool.run(words, self._settings.question_timeout_s)
        return _read(parse, text, f"vipu {' '.join(words)}")

    # ---- bindings of jobs

    async def binding(self, order: PartitionSpec) -> Binding:
        sight = (await self._look()).get(order.name)
        seen = sight.sighting if sight is not None else None
        if (
            seen is None
            or seen.mark != order.mark
            or seen.seen is not ObservedState.ACTIVE
            or seen.block != order.block
        ):
            state = "absent" if seen is None or seen.mark != order.mark else f"{seen.seen} on {seen.block}"
            raise MooringsError(
                "partition.not_active", f"partition {order.name} is not ACTIVE but {state}", retryable=True
            )
        gcds = [
            GcdBinding(gcd, tuple(device_id(self._pool.name, index) for index in members))
            for gcd, members in enumerate(gcd_blocks(order.block, order.gcds))
        ]
        if self._settings.ipuof == "file":
            gcds = list(await asyncio.gather(*(self._with_file(order.name, gcd) for gcd in gcds)))
        return Binding(order.name, self._api(order.name), tuple(gcds))

    async def _with_file(self, name: str, gcd: GcdBinding) -> GcdBinding:
        words = commands.build_ipuof(name, gcd.gcd, self._settings)
        text = await self._ask(words, lambda said: commands.parse_ipuof(said, gcd.gcd, len(gcd.devices)))
        return replace(gcd, file_name=f"{name}_gcd{gcd.gcd}_ipuof.conf", file_text=text)

    def _api(self, name: str) -> dict[str, str]:
        return {
            "IPUOF_VIPU_API_HOST": self._settings.api_host,
            "IPUOF_VIPU_API_PORT": str(self._settings.api_port),
            "IPUOF_VIPU_API_PARTITION_ID": name,
            "IPUOF_VIPU_API_TIMEOUT": str(self._settings.ipuof_timeout_s),
        }

    async def close(self) -> None:
        for job in list(self._jobs.values()):
            await _stop(job)
        self._orders.close()


async def _stop(job: _RunningCommand) -> None:
    job.task.cancel()
    await asyncio.wait((job.task,))


def _misplacement_text(order: PartitionSpec, sight: VipuPartition) -> str:
    """Return what was made, and what was requested."""
    made, asked = f"on {sight.sighting.block}", f"on {order.block}"
    if sight.elsewhere:
        made = "on IPUs that are not the pool's (see cluster, allocation and ipu_keys)"
    elif sight.sighting.block == order.block:
        made, asked = f"with {sight.shape[1]} GCDs", str(order.gcds)
    return f"the V-IPU controller made {order.name} {made} and not {asked}; it is removed again"


def _answer_for(sight: VipuPartition) -> DriverResult:
    """Return the answer with the progress of a partition of ours."""
    sighting = sight.sighting
    if sighting.seen is ObservedState.ERROR:
        return DriverResult(
            ResultCode.BROKEN, ObservedState.ERROR, f"partition {sighting.name} is in state {sighting.raw}"
        )
    if sighting.seen is ObservedState.REMOVING:
        return DriverResult(
            ResultCode.UNAVAILABLE, ObservedState.REMOVING, f"partition {sighting.name} is being removed"
        )
    return DriverResult(ResultCode.OK, sighting.seen)


def _read(parse: Callable[[str], _Value], text: str, what: str) -> _Value:
    try:
        return parse(text)
    except VipuParseError as error:
        raise _unavailable(f"'{what}': {error}") from error


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CLUSTERS_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise _unavailable(f"{path} cannot be read: {error}") from error
    if len(text) > CLUSTERS_BYTES_MAX:
        raise _unavailable(f"{path} is larger than {CLUSTERS_BYTES_MAX} characters")
    return text


def _unavailable(detail: str) -> MooringsError:
    return MooringsError("driver.unavailable", detail, hint="Moorings asks again by itself", retryable=True)
