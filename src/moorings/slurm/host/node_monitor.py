"""Drains nodes whose slurmd lacks the plugin, and resumes them: lists nodes, does what ``plugin_nodes`` decides.

Listing takes at most a thirtieth of the time: every two seconds on a small cluster. The reports of slurmds are saved
after each list; each slurmd reports every minute, so a lost report is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import join_first
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import build_drain
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.node_state_file import NodeState, encode_node_state, load_node_state, save_notes
from moorings.slurm.host.plugin_heartbeat import PluginHeartbeat
from moorings.slurm.host.plugin_nodes import (
    AGAIN_S,
    FEATURE,
    REASON,
    LastHeartbeat,
    PluginPlan,
    PluginState,
    plan_node_drains,
)
from moorings.slurm.node_records import NodeRecord, build_show_nodes, build_undrain, parse_show_nodes

log = logging.getLogger("moorings.slurm.agent")

LIST_S, LIST_SHARE = 2.0, 30  # seconds between two lists; at least this multiple of the last one's time
IDLE_S = 60.0  # where slurm.conf gives no node the feature
LAPSE_S = 180.0  # a slurmd reports within 75 s: without a report for this long, it or its plugin is gone
UNKNOWN_MAX = 100  # unknown node names, each logged once
NODES_PER_COMMAND = 500
_MEND = "install the plugin for the Slurm that runs there, and restart slurmd: the node is taken back then"
_MOST = (
    "none is drained; can the nodes reach the agent's port? A slurmd that has the plugin reports every minute. "
    "'moor slurm doctor' names the others"
)
_UNKNOWN = "is that the name of the machine, and slurm.conf has another in NodeHostname?"


class NodeMonitor:
    """The nodes for IPU jobs.

    Args:
        slurm: its commands.
        troubles: the log of failures.
        file: the file of saved state; None: none.
    """

    def __init__(self, slurm: SlurmCommands, troubles: FailureLog, file: Path | None) -> None:
        self._slurm = slurm
        self._troubles = troubles
        self._file = file
        self._hellos: dict[str, LastHeartbeat] | None = None  # None: the file was not read
        self._saved = b""
        self._nodes: Sequence[NodeRecord] = ()
        self._names: frozenset[str] = frozenset()
        self._unknown: set[str] = set()
        self._plugged: frozenset[str] = frozenset()
        self._begun_s = math.inf  # when the previous agent's reports were loaded; the loop's clock, as below
        self._heard_s: dict[str, float] = {}  # by name, time of the last report
        self._memory = PluginState()
        self._recheck_wanted = asyncio.Event()
        self._pause_s = LIST_S

    @property
    def n_nodes(self) -> int:
        """Return how many nodes the cluster had in the last list."""
        return len(self._nodes)

    @property
    def nodes_gone_silent(self) -> frozenset[str]:
        """Return the nodes whose slurmd has reported before, but not for long."""
        hellos, now = self._hellos or {}, _now()
        names = {name for name in hellos if now - self._heard_s.get(name, self._begun_s) > LAPSE_S}
        return frozenset(
            node.name
            for node in (self._nodes if names else ())
            if (reported := node.names & hellos.keys()) and reported <= names
        )

    @property
    def nodes_with_plugin(self) -> frozenset[str]:
        """Return the nodes whose slurmd had reported the plugin at the last list, and still reports it.

        Empty until each slurmd has had the time to report to this agent: reports to the previous one may be lost.
        """
        if _now() - self._begun_s < AGAIN_S:
            return frozenset()
        return self._plugged - self.nodes_gone_silent

    async def serve(self) -> None:
        """Drain and resume nodes, forever."""
        while True:
            begun = _now()
            self._recheck_wanted.clear()
            with self._troubles.logged("slurm.nodes") as good:
                await self._check_nodes()
            took_s = _now() - begun
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._pause_s, LIST_SHARE * took_s) if good else LIST_S):
                    await self._recheck_wanted.wait()
            await asyncio.sleep(min(took_s, LIST_S))  # so that nodes starting at the same time share one list

    def record_heartbeat(self, hello: PluginHeartbeat) -> bool:
        """Record the report of a slurmd; false: no node of that name is known yet, and it must report again."""
        if self._hellos is None or not self._names:
            return False
        if hello.node not in self._names:
            if hello.node not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
                self._unknown.add(hello.node)
                log.warning("node.unknown", extra={"node": hello.node, "hint": _UNKNOWN})
            return False  # a new node is known after the next list
        self._heard_s[hello.node] = _now()
        now_s = time.time()
        loaded_s = now_s - hello.age_ms / 1000
        last = self._hellos.get(hello.node)
        if last is not None and last.run == hello.run:
            self._hellos[hello.node] = LastHeartbeat(hello.run, min(last.loaded_s, loaded_s), now_s)
        else:
            self._hellos[hello.node] = LastHeartbeat(hello.run, loaded_s, now_s)
            self._recheck_wanted.set()
            log.info("node.has_plugin", extra={"node": hello.node})
        return True

    async def _check_nodes(self) -> None:
        if self._hellos is None:
            self._load_state()
            assert self._hellos is not None
        nodes = parse_show_nodes(await self._slurm.run_checked(build_show_nodes()))
        listed_s = time.time()
        self._nodes = nodes
        self._names = frozenset(name for node in nodes for name in node.names)
        self._unknown -= self._names
        for gone in self._hellos.keys() - self._names:
            del self._hellos[gone]
            self._heard_s.pop(gone, None)
        found = plan_node_drains(nodes, self._hellos, self._memory, listed_s)
        self._plugged = found.plugged
        self._pause_s = LIST_S if found.declared else IDLE_S
        self._memory = replace(found.memory, drained=self._memory.drained, most_lack=self._memory.most_lack)
        try:
            await self._do(found)
            self._memory = found.memory  # last, so that a failed action is repeated
        finally:
            self._save()

    def _load_state(self) -> None:
        try:
            notes = load_node_state(self._file)
        except MooringsError as error:  # each slurmd reports again
            log.warning("nodes.notes_lost", extra={"detail": error.detail})
            notes = NodeState()
        self._hellos = dict(notes.hellos)
        self._begun_s = _now()
        self._memory = PluginState(starts=notes.starts, drained=notes.drained)

    async def _do(self, found: PluginPlan) -> None:
        if found.report:
            detail = (
                f"{len(found.lacking)} of {found.declared} nodes with Feature={FEATURE} have not reported the plugin"
            )
            log.error("nodes.without_plugin", extra={"detail": detail, "hint": _MOST})
        if found.drain:
            await self._change(found.drain, lambda nodes: build_drain(nodes, REASON))
            log.warning("node.drained", extra={"nodes": join_first(found.drain), "detail": REASON, "hint": _MEND})
        if found.undrain:
            await self._change(found.undrain, build_undrain)
            log.info("node.taken_back", extra={"nodes": join_first(found.undrain)})

    async def _change(self, nodes: Sequence[str], build: Callable[[Sequence[str]], list[str]]) -> None:
        for begin in range(0, len(nodes), NODES_PER_COMMAND):
            await self._slurm.run_checked(build(nodes[begin : begin + NODES_PER_COMMAND]))

    def _save(self) -> None:
        if self._file is None or self._hellos is None:
            return
        memory = self._memory
        content = encode_node_state(NodeState(hellos=self._hellos, starts=memory.starts, drained=memory.drained))
        if content != self._saved:
            save_notes(self._file, content)
            self._saved = content


def _now() -> float:
    return asyncio.get_running_loop().time()
