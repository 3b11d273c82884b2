"""The pools file: which devices exist, how they are wired, and which driver controls them.

::

    [[pool]]
    name = "pod64"
    kind = "ipu"
    driver = "simulated"
    topology = { type = "power-of-two", domains = 1, domain_size = 64, max_block = 64 }
    resources = { memory = "256G" }      # optional, secondary

    [pool.simulated]                     # settings of that driver, which checks them itself
    provision_s = 0.2
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.machine import MACHINE_KIND
from moorings.core.model.quantities import parse_bytes
from moorings.core.model.toml_table import TomlTable
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology

POOLS_MAX = 256
_POOL_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True)
class PoolEntry:
    """One ``[[pool]]``: the pool, and the settings of its driver."""

    pool: Pool
    settings: TomlTable


def parse_pools(text: str, *, source: str = "pools.toml") -> tuple[PoolEntry, ...]:
    """The pools of a pools file, in its order.

    Raises:
        MooringsError: ``pools.invalid``; the message names file, line and key.
    """
    top = TomlTable.parse(text, source=source, code="pools.invalid")
    tables = top.tables("pool")
    top.reject_unknown_keys()
    if not tables:
        top.fail_at(None, "no pool is defined", hint='begin one with [[pool]] and name = "pod64"')
    if len(tables) > POOLS_MAX:
        top.fail_at(None, f"{len(tables)} pools are too many; at most {POOLS_MAX}")
    entries: list[PoolEntry] = []
    for table in tables:
        entry = _pool(table)
        if any(entry.pool.name == other.pool.name for other in entries):
            table.fail_at("name", f"a pool named {entry.pool.name!r} is defined twice")
        entries.append(entry)
    return tuple(entries)


def _pool(table: TomlTable) -> PoolEntry:
    name = table.text("name")
    if not _POOL_NAME.fullmatch(name):
        table.fail_at(
            "name", f"pool name {name[:48]!r} is not allowed", "use up to 32 lower-case letters, digits, '-' and '.'"
        )
    kind = table.text("kind")
    if not _KIND.fullmatch(kind):
        table.fail_at("kind", f"kind {kind[:48]!r} is not allowed", "use lower-case letters, digits and '-', as in ipu")
    if MACHINE_KIND in (name, kind):
        table.fail_at("name", "the pool 'machine' is this machine's CPUs and memory", "choose another name and kind")
    driver = table.text("driver")
    resources = _resources(table.table("resources"))
    topology = _topology(table.table("topology"))
    settings = table.table(driver)
    table.reject_unknown_keys()
    return PoolEntry(Pool(PoolName(name), kind, driver, topology, resources), settings)


def _resources(table: TomlTable) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for name in table.keys():
        value = table.raw_value(name)
        if isinstance(value, str):
            try:
                value = parse_bytes(value)
            except MooringsError as error:
                table.fail_at(name, error.detail, error.hint)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            table.fail_at(name, f"{name} must be a size such as 64G or a whole number")
        found.append((name, value))
    return tuple(sorted(found))


def _topology(table: TomlTable) -> Topology:
    kind = table.text("type")
    try:
        topology = _TOPOLOGIES[kind](table) if kind in _TOPOLOGIES else None
    except MooringsError as error:
        if error.detail.startswith(table.location().split(":")[0] + ":"):
            raise
        table.fail_at(None, error.detail, error.hint)
    if topology is None:
        table.fail_at("type", f"topology type {kind[:40]!r} is not known", hint=f"known: {', '.join(_TOPOLOGIES)}")
    table.reject_unknown_keys()
    return topology


def _power_of_two(table: TomlTable) -> Topology:
    domains, domain_size = table.integer("domains", 1), table.integer("domain_size")
    return PowerOfTwo(domains, domain_size, table.integer("max_block", domain_size))


def _any_subset(table: TomlTable) -> Topology:
    n_devices = table.integer("domains", 1) * table.integer("domain_size")
    if n_devices < 1:
        raise MooringsError("pools.invalid", f"{n_devices} devices are out of range")
    return AnySubset(n_devices, table.integer("max_block", n_devices))


def _catalogue(table: TomlTable) -> Topology:
    n_devices = table.integer("domains", 1) * table.integer("domain_size")
    blocks = table.strings("blocks")
    return Catalogue(n_devices, tuple(Block.parse(text) for text in blocks))


_TOPOLOGIES = {"power-of-two": _power_of_two, "any-subset": _any_subset, "catalogue": _catalogue}
