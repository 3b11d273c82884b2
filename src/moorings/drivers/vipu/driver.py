"""The driver of a real V-IPU controller, through its ``vipu`` command.

Each request is *list, record, request, list*. The first listing shows the current state (a request that was carried out
before is not repeated). Our request is on the disk before the vendor gets it (``intents``). The command's own output
only counts as far as the next listing confirms it. A command that fails, hangs or prints unknown output is
*unavailable*: its request may or may not have been carried out, and is retried. *Rejected* is only what we know without
the vendor, because the words of the vendor's refusals are not public.

The command may wait until a partition is ready, which takes minutes. A request is answered when its command ends, or
once a listing shows that it was accepted (``running_commands``). Then the command runs on in the
background; until it ends, an old ACTIVE of a partition under reset or removal does not count.

Refused: telling the vendor by default which IPUs to take. ``--index`` exists, but no public text says what it counts;
``create_arguments`` is there for sites that know. A partition on other IPUs than requested is noticed and removed
(``listing``), and if that repeats, the block is marked broken or the claim rejected (``misplacements``): no claim waits
forever.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path

from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.devices import device_id
from moorings.core.model.driver_results import (
    Capability,
    DriverResult,
    ListedPartition,
    ObservedState,
    PartitionSpec,
    ResultCode,
)
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import gcd_blocks
from moorings.core.model.timestamps import add_seconds
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.drivers.vipu import commands
from moorings.drivers.vipu.cli import VipuCli, VipuCommandError, VipuNotStartedError
from moorings.drivers.vipu.commands import NAME_CHARS_MAX
from moorings.drivers.vipu.intents import IntentLog, PartitionIntent
from moorings.drivers.vipu.listing import (
    MISPLACED,
    VipuPartition,
)
from moorings.drivers.vipu.misplacements import Misplacements
from moorings.drivers.vipu.reader import VipuReader
from moorings.drivers.vipu.running_commands import RunningCommands
from moorings.drivers.vipu.settings import VipuSettings
from moorings.ports.clock import Clock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # never an option of the command
_OWN_CHOICE = "the V-IPU controller makes partitions on other IPUs than ordered (see create_arguments in [pool.vipu])"
_WHAT_FOLLOWS = {
    ResultCode.UNAVAILABLE: "another try follows",
    ResultCode.BROKEN: "it did so before: the block is marked broken; see with 'vipu' why it does not give these IPUs",
    ResultCode.REJECTED: "the last {count} were all made elsewhere: admins, see create_arguments in [pool.vipu]",
}


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
        tool = VipuCli(settings, folder)
        self._orders = IntentLog(folder)
        self._reader = VipuReader(pool, settings, tool, self._orders)
        self._commands = RunningCommands(pool.name, tool, settings.timeout_s)
        self._misses = Misplacements(chooses_devices=bool(settings.create_arguments))
        self._backoff_until = clock.now()
        self._creating: set[str] = set()  # names with a request in progress
        self._order_lock = asyncio.Lock()  # one request at a time decides by the listing

    @property
    def capability(self) -> Capability:
        facts = {
            "hardware": "a V-IPU controller, through its vipu command (this driver has not met real hardware)",
            "api": f"{self._settings.api_host}:{self._settings.api_port}",
            "cluster": self._settings.cluster or "the only one",
        }
        return Capability(name_chars_max=NAME_CHARS_MAX, details=facts)

    # ---- requests

    def register_partitions(self, held: Sequence[PartitionSpec]) -> None:
        self._reader.recorded_orders = {order.name: order for order in held}

    async def create(self, order: PartitionSpec) -> DriverResult:
        refusal = self._rejection(order)
        if refusal:
            return DriverResult(ResultCode.REJECTED, ObservedState.ABSENT, refusal)
        self._creating.add(order.name)
        try:
            return await _result_of(self._create(order))
        finally:
            self._creating.discard(order.name)

    async def reset(self, name: str, mark: str) -> DriverResult:
        return await _result_of(self._reset(name, mark))

    async def remove(self, name: str, mark: str) -> DriverResult:
        return await _result_of(self._remove(name, mark))

    def _rejection(self, order: PartitionSpec) -> str:
        size = len(order.block)
        if not _NAME.fullmatch(order.name) or len(order.name) > NAME_CHARS_MAX:
            return f"{order.name[:48]!r} cannot be the name of a partition"
        if not self._pool.topology.is_block(order.block):
            return f"devices {order.block} cannot form a partition"
        if order.gcds < 1 or size % order.gcds:
            return f"{size} devices cannot be divided among {order.gcds} GCDs"
        reason = self._pool.topology.ineligible_reason(size, order.gcds)
        return reason.message if reason is not None else ""

    async def _create(self, order: PartitionSpec) -> DriverResult:
        async with self._order_lock:
            seen = await self._list()
            if order.name in seen:
                return self._answer_for_created(order, seen[order.name])
            job = self._commands.get(order.name)
            if job is None:
                holder = self._holder(order.block, seen)
                if holder:
                    return DriverResult(
                        ResultCode.UNAVAILABLE, ObservedState.ABSENT, f"device in use: {order.block} overlaps {holder}"
                    )
                if self._backoff_until - (now := self._clock.now()) > 0:
                    rest_s = (self._backoff_until - now) / 1e6
                    return DriverResult(
                        ResultCode.UNAVAILABLE, ObservedState.ABSENT, f"{_OWN_CHOICE}; next try in {rest_s:.0f} s"
                    )
                self._backoff_until = add_seconds(now, self._misses.backoff_s)  # while one is tried, the others pause
                await asyncio.to_thread(self._orders.write, PartitionIntent(order))
                self._reader.recorded_orders.pop(order.name, None)  # from now on only this record makes it ours
                words = commands.build_create(order, self._settings)
                job = self._commands.start(order.name, words, ObservedState.PROVISIONING, order.block)
        try:
            await job.wait(lambda: self._is_listed_as_ours(order.name))
        except VipuNotStartedError:
            await asyncio.to_thread(self._orders.forget, order.name)
            raise
        except VipuCommandError as error:
            if not commands.is_ambiguous_failure(error.detail):
                await asyncio.to_thread(self._orders.mark_resolved, [order.name])
            raise
        seen = await self._list()
        if order.name not in seen:
            done = "said that it was done" if job.task.done() else "has not answered yet"
            return DriverResult(ResultCode.UNAVAILABLE, detail=f"'vipu create' {done}, and {order.name} is not listed")
        if seen[order.name].intent is None and job.task.done():
            seen = await self._record_made_shape(order, seen[order.name])
        return self._answer_for_created(order, seen[order.name])

    async def _record_made_shape(self, order: PartitionSpec, made: VipuPartition) -> dict[str, VipuPartition]:
        """Return the listing after the vendor reported success and made a partition of another shape.

        The partition is ours: the name was free before, and a vendor that finds it taken says so.
        """
        record = (await asyncio.to_thread(self._orders.read_all)).get(order.name)
        if record is not None and record.order == order:
            await asyncio.to_thread(self._orders.write, replace(record, made=made.shape))
        return await self._list()

    def _answer_for_created(self, order: PartitionSpec, sight: VipuPartition) -> DriverResult:
        """Return the answer for an existing partition with the requested name."""
        if sight.intent is None or sight.intent.order.mark != order.mark:
            return DriverResult(
                ResultCode.UNAVAILABLE, detail=f"partition {order.name} already exists and is not yours"
            )
        if sight.intent.order.block != order.block:
            detail = f"partition {order.name} already exists, on {sight.intent.order.block}"
            return DriverResult(ResultCode.REJECTED, detail=detail)
        if not sight.is_misplaced:
            self._misses.record_placed(order.block)
            return _answer_for(sight)
        self._misses.record_misplaced(order.name, order.block)
        self._backoff_until = max(self._backoff_until, add_seconds(self._clock.now(), self._misses.backoff_s))
        verdict = self._misses.verdict(order.block)
        detail = f"{_misplacement_text(order, sight)}; {_WHAT_FOLLOWS[verdict].format(count=self._misses.consecutive)}"
        return DriverResult(
            verdict, ObservedState.ERROR if verdict is ResultCode.BROKEN else ObservedState.UNKNOWN, detail
        )

    def _holder(self, block: Block, seen: dict[str, VipuPartition]) -> str:
        """Return the holder of some of these devices: an existing partition, or one in creation."""
        others = [(name, sight.sighting.block) for name, sight in seen.items()]
        others += self._commands.blocks()
        return next((f"partition {name}" for name, other in others if other.overlaps(block)), "")

    async def _reset(self, name: str, mark: str) -> DriverResult:
        async with self._order_lock:
            sight = (await self._list()).get(name)
            if sight is None or sight.sighting.mark != mark:
                return DriverResult(ResultCode.REJECTED, ObservedState.ABSENT, f"no partition {name}")
            state = sight.sighting.state
            job = self._commands.get(name)
            if state is ObservedState.REMOVING:
                return DriverResult(ResultCode.REJECTED, state, f"partition {name} is being removed")
            if state is ObservedState.PROVISIONING or (job is not None and job.seen is ObservedState.PROVISIONING):
                return DriverResult(ResultCode.UNAVAILABLE, state, f"partition {name} is not ready yet")
            if state is not ObservedState.ACTIVE:
                return _answer_for(sight)
            job = self._commands.start(name, commands.build_reset(name), ObservedState.RESETTING)
        await job.wait(None)
        if not job.task.done():
            return DriverResult(ResultCode.OK, ObservedState.RESETTING)
        after = (await self._list()).get(name)
        if after is None:
            return DriverResult(ResultCode.UNAVAILABLE, detail=f"partition {name} is not listed any more")
        return _answer_for(after)

    async def _remove(self, name: str, mark: str) -> DriverResult:
        async with self._order_lock:
            sight = (await self._list()).get(name)
            job = self._commands.get(name)
            if job is not None and job.seen is ObservedState.PROVISIONING:
                if sight is None:  # it may exist the next moment
                    return DriverResult(ResultCode.UNAVAILABLE, detail=f"partition {name} is just being made")
                await job.stop()  # the command only waits until it is ready
                job = None
            ordered = mark.removesuffix(MISPLACED)
            if sight is None or sight.intent is None or sight.intent.order.mark != ordered:
                self._reader.recorded_orders.pop(name, None)
                await asyncio.to_thread(self._orders.remove_after_delete, name, ordered, self._clock.now())
                return DriverResult(ResultCode.OK, ObservedState.ABSENT)
            if sight.sighting.state is ObservedState.REMOVING or (
                job is not None and job.seen is ObservedState.REMOVING
            ):
                return DriverResult(ResultCode.OK, ObservedState.REMOVING)
            if job is not None:  # a reset that is no longer needed
                await job.stop()
            broken = sight.sighting.state is ObservedState.ERROR
            job = self._commands.start(name, commands.build_delete(name), ObservedState.REMOVING)
        try:
            await job.wait(None)
        except VipuCommandError as error:
            if commands.is_ambiguous_failure(error.detail):
                raise
            after_all = (await self._list()).get(name)
            if after_all is not None and broken and after_all.sighting.state is ObservedState.ERROR:
                return DriverResult(ResultCode.BROKEN, ObservedState.ERROR, error.detail)
            if after_all is not None:
                raise  # else it has disappeared by itself
        if not job.task.done():
            return DriverResult(ResultCode.OK, ObservedState.REMOVING)
        if name in await self._list():
            return DriverResult(ResultCode.OK, ObservedState.REMOVING)
        await asyncio.to_thread(self._orders.remove_after_delete, name, ordered, self._clock.now())
        return DriverResult(ResultCode.OK, ObservedState.ABSENT)

    # ---- listing

    async def list_partitions(self) -> Sequence[ListedPartition]:
        # A misplaced partition is not listed before its request is answered. Otherwise a reader of listings would take
        # it for a stranger's and the request for outdated, and would never learn the outcome.
        unanswered = frozenset(self._creating)
        seen = await self._list()
        return [sight.sighting for name, sight in seen.items() if not (sight.is_misplaced and name in unanswered)]

    async def _list(self) -> dict[str, VipuPartition]:
        return await self._reader.list_partitions(self._commands.states())

    async def _is_listed_as_ours(self, name: str) -> bool:
        sight = (await self._list()).get(name)
        return sight is not None and sight.intent is not None

    # ---- bindings of jobs

    async def binding(self, order: PartitionSpec) -> Binding:
        sight = (await self._list()).get(order.name)
        seen = sight.sighting if sight is not None else None
        if (
            seen is None
            or seen.mark != order.mark
            or seen.state is not ObservedState.ACTIVE
            or seen.block != order.block
        ):
            state = "absent" if seen is None or seen.mark != order.mark else f"{seen.state} on {seen.block}"
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
        text = await self._reader.query(words, lambda said: commands.parse_ipuof(said, gcd.gcd, len(gcd.devices)))
        return replace(gcd, file_name=f"{name}_gcd{gcd.gcd}_ipuof.conf", file_text=text)

    def _api(self, name: str) -> dict[str, str]:
        return {
            "IPUOF_VIPU_API_HOST": self._settings.api_host,
            "IPUOF_VIPU_API_PORT": str(self._settings.api_port),
            "IPUOF_VIPU_API_PARTITION_ID": name,
            "IPUOF_VIPU_API_TIMEOUT": str(self._settings.ipuof_timeout_s),
        }

    async def close(self) -> None:
        await self._commands.close()
        self._orders.close()


async def _result_of(request: Awaitable[DriverResult]) -> DriverResult:
    """Return the answer to a request; one that failed may have been carried out, and is made again."""
    try:
        return await request
    except MooringsError as error:
        return DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)


def _misplacement_text(order: PartitionSpec, sight: VipuPartition) -> str:
    """Return what was made, and what was requested."""
    made, asked = f"on {sight.sighting.block}", f"on {order.block}"
    if sight.foreign_ipus:
        made = "on IPUs that are not the pool's (see cluster, allocation and ipu_keys)"
    elif sight.sighting.block == order.block:
        made, asked = f"with {sight.shape[1]} GCDs", str(order.gcds)
    return f"the V-IPU controller made {order.name} {made} and not {asked}; it is removed again"


def _answer_for(sight: VipuPartition) -> DriverResult:
    """Return the answer with the progress of a partition of ours."""
    sighting = sight.sighting
    if sighting.state is ObservedState.ERROR:
        return DriverResult(
            ResultCode.BROKEN, ObservedState.ERROR, f"partition {sighting.name} is in state {sighting.vendor_state}"
        )
    if sighting.state is ObservedState.REMOVING:
        return DriverResult(
            ResultCode.UNAVAILABLE, ObservedState.REMOVING, f"partition {sighting.name} is being removed"
        )
    return DriverResult(ResultCode.OK, sighting.state)
