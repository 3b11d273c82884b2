"""Reads which partitions a V-IPU controller has, on which devices of the pool, and which of them are ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from moorings.core.model.driver_results import ObservedState, PartitionSpec
from moorings.core.model.topology import Pool
from moorings.drivers.vipu import commands
from moorings.drivers.vipu.cli import VipuCli, unavailable_error
from moorings.drivers.vipu.commands import VendorPartition, VipuParseError
from moorings.drivers.vipu.intents import IntentLog, PartitionIntent
from moorings.drivers.vipu.listing import (
    VipuPartition,
    find_unrecorded_orders,
    match_listing,
    with_pending_state,
    with_states,
)
from moorings.drivers.vipu.settings import VipuSettings

CLUSTERS_BYTES_MAX = 16 << 20

_Value = TypeVar("_Value")

_log = logging.getLogger(__name__)


class VipuReader:
    """The vendor's listings of one pool.

    Args:
        pool: the devices.
        settings: of the vendor's command.
        tool: the command.
        orders: our requests.

    Attributes:
        recorded_orders: by name; a controller on another machine may have requested them.
    """

    def __init__(self, pool: Pool, settings: VipuSettings, tool: VipuCli, orders: IntentLog) -> None:
        self.recorded_orders: dict[str, PartitionSpec] = {}
        self._pool = pool
        self._settings = settings
        self._tool = tool
        self._orders = orders
        self._ipu_indices: dict[str, int] = {}  # index of the cluster's IPUs; empty until listed
        self._foreign_ipus: set[str] = set()  # listed IPUs outside the cluster: another pool's

    async def list_partitions(self, pending: Mapping[str, ObservedState]) -> dict[str, VipuPartition]:
        """Return the existing partitions by name.

        Args:
            pending: the state of each partition under a running command, from the begin of the listing: a command that
                ends meanwhile may still show in it.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        orders = await asyncio.to_thread(self._orders.read_all)  # from the begin of the listing, too
        parse = partial(commands.parse_partitions, ipu_keys=self._settings.ipu_keys)
        partitions = await self.query(commands.build_partitions(), parse)
        if any(not partition.state for partition in partitions):
            states = await self.query(commands.build_states(), commands.parse_states)
            partitions = tuple(with_states(partitions, states))
        await self._load_cluster({ipu for partition in partitions for ipu in partition.ipus})
        if self.recorded_orders:
            await self._record_foreign_orders(partitions, orders)
        seen = match_listing(partitions, self._ipu_indices, orders | await asyncio.to_thread(self._orders.read_all))
        ours = [name for name, sight in seen.items() if sight.intent is not None]
        await asyncio.to_thread(self._orders.mark_resolved, ours)
        for name, state in pending.items():
            if name in seen and state is not ObservedState.PROVISIONING:
                seen[name] = with_pending_state(seen[name], state)
        return seen

    async def query(self, words: Sequence[str], parse: Callable[[str], _Value]) -> _Value:
        """Return the parsed answer to a question.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        text = await self._tool.run(words, self._settings.question_timeout_s)
        return _read(parse, text, f"vipu {' '.join(words)}")

    async def _record_foreign_orders(
        self, partitions: Sequence[VendorPartition], orders: Mapping[str, PartitionIntent]
    ) -> None:
        """Record the requests of another machine whose partitions exist."""
        news = find_unrecorded_orders(partitions, self._ipu_indices, self.recorded_orders, orders)
        if news:
            await asyncio.to_thread(self._orders.add_resolved, news)
        known = {*news, *(record.order for record in orders.values())}
        self.recorded_orders = {name: order for name, order in self.recorded_orders.items() if order not in known}

    async def _load_cluster(self, used: set[str]) -> None:
        """Learn the positions of the cluster's IPUs; list them once, and again when an unknown one appears."""
        if self._ipu_indices and used <= self._ipu_indices.keys() | self._foreign_ipus:
            return
        settings = self._settings
        parse = partial(commands.parse_clusters, cluster=settings.cluster, ipu_keys=settings.ipu_keys)
        if settings.clusters_file:
            ipus = _read(parse, await asyncio.to_thread(_text_of, Path(settings.clusters_file)), settings.clusters_file)
        else:
            ipus = await self.query(commands.build_clusters(), parse)
        n_devices = self._pool.topology.n_devices
        if len(ipus) != n_devices:
            raise unavailable_error(
                f"the V-IPU cluster has {len(ipus)} IPUs, and pool {self._pool.name} is said to have {n_devices}"
            )
        places = {ipu: index for index, ipu in enumerate(ipus)}
        if self._ipu_indices and places != self._ipu_indices:
            _log.warning("vipu.cluster_changed pool=%s", self._pool.name)
        self._ipu_indices, self._foreign_ipus = places, used - places.keys()


def _read(parse: Callable[[str], _Value], text: str, what: str) -> _Value:
    try:
        return parse(text)
    except VipuParseError as error:
        raise unavailable_error(f"'{what}': {error}") from error


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CLUSTERS_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise unavailable_error(f"{path} cannot be read: {error}") from error
    if len(text) > CLUSTERS_BYTES_MAX:
        raise unavailable_error(f"{path} is larger than {CLUSTERS_BYTES_MAX} characters")
    return text
