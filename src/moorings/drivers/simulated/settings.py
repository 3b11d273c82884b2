"""Settings of a simulated pool: the table ``[pool.simulated]`` of the pools file.

The times grow with the partition, as reported from real pods (large ones take minutes); the defaults are about a
hundred times shorter, so that a demo on a laptop shows every state without a wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from moorings.core.model.toml_table import TomlTable

TIME_S_MAX = 86_400.0
NAME_CHARS_MAX = 200
CLUSTERS_MAX = 64

RestartState = Literal["kept", "lost"]

_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    """The behaviour of a simulated pool without faults.

    Attributes:
        provision_s: seconds until a new partition is ACTIVE; with both ``*_s`` and ``*_per_device_s`` of a request
            zero, it is done when the request returns. A third of a second is visible and short.
        provision_per_device_s: further seconds for each of its devices: 64 take about a second by default.
        reset_s: seconds until a reset partition is ACTIVE again.
        reset_per_device_s: further seconds for each of its devices.
        remove_s: seconds until a removed partition is gone and its devices are free.
        remove_per_device_s: further seconds for each of its devices.
        seed: the seed of all chances of this pool's faults.
        restart: whether the vendor's controller still knows its partitions after a ``restart`` fault without ``state``.
        api_host: the address of the vendor's controller; only used in bindings.
        api_port: its port; 8090 is V-IPU's.
        api_timeout_s: how long the vendor's runtime may wait for it, in whole seconds; poprun's default.
        clusters: number of V-IPU clusters; the devices are divided into equal groups of neighbours. A partition lies in
            one cluster.
        device_files: the device files of the devices, with ``{}`` for a device's number; empty: they have none. On a
            machine that people share a job opens only its own.
        name_chars_max: longest allowed partition name; longer ones make V-IPU fail with a misleading device error.
    """

    provision_s: float = 0.3
    provision_per_device_s: float = 0.01
    reset_s: float = 0.2
    reset_per_device_s: float = 0.005
    remove_s: float = 0.1
    remove_per_device_s: float = 0.002
    seed: int = 0
    restart: RestartState = "kept"
    api_host: str = "127.0.0.1"
    api_port: int = 8090
    api_timeout_s: int = 120
    clusters: int = 1
    device_files: str = ""
    name_chars_max: int = 36

    @classmethod
    def read(cls, table: TomlTable) -> SimulatedSettings:
        """Return the settings in a pool's table.

        Raises:
            MooringsError: the table's code (``pools.invalid``); the message names file, line and key.
        """
        usual = cls()
        settings = cls(
            provision_s=read_time_s(table, "provision_s", usual.provision_s),
            provision_per_device_s=read_time_s(table, "provision_per_device_s", usual.provision_per_device_s),
            reset_s=read_time_s(table, "reset_s", usual.reset_s),
            reset_per_device_s=read_time_s(table, "reset_per_device_s", usual.reset_per_device_s),
            remove_s=read_time_s(table, "remove_s", usual.remove_s),
            remove_per_device_s=read_time_s(table, "remove_per_device_s", usual.remove_per_device_s),
            seed=table.integer("seed", usual.seed),
            restart=read_restart_state(table, "restart", usual.restart),
            api_host=_host(table, "api_host", usual.api_host),
            api_port=_within(table, "api_port", usual.api_port, 65_535),
            api_timeout_s=_within(table, "api_timeout_s", usual.api_timeout_s, int(TIME_S_MAX)),
            clusters=_within(table, "clusters", usual.clusters, CLUSTERS_MAX),
            device_files=_device_files(table),
            name_chars_max=_within(table, "name_chars_max", usual.name_chars_max, NAME_CHARS_MAX),
        )
        table.reject_unknown_keys()
        return settings


def _device_files(table: TomlTable) -> str:
    template = table.text("device_files", "")
    if template and (not template.startswith("/dev/") or template.count("{}") != 1 or len(template) > 200):
        table.fail_at("device_files", f"{template[:80]!r} names no device files", hint="as /dev/accel{}")
    return template


def read_time_s(table: TomlTable, key: str, default: float) -> float:
    """Return the seconds under a key of the table, between 0 and a day."""
    return table.within(key, table.number(key, default), 0, TIME_S_MAX, " seconds")


def read_restart_state(table: TomlTable, key: str, default: RestartState) -> RestartState:
    """Return the effect of a restart on the state, from a key of the table."""
    value = table.text(key, default)
    if value == "kept":
        return "kept"
    if value == "lost":
        return "lost"
    table.fail_at(key, f"{key} = {value[:40]!r} is not known", hint='write "kept" or "lost"')


def _within(table: TomlTable, key: str, default: int, most: int) -> int:
    return table.within(key, table.integer(key, default), 1, most)


def _host(table: TomlTable, key: str, default: str) -> str:
    value = table.text(key, default)
    if not _HOST.fullmatch(value):
        table.fail_at(key, f"{key} = {value[:80]!r} is not a host name or address")
    return value
