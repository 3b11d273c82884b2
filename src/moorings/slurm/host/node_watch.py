"""Drains nodes whose slurmd lacks the plugin, and takes them back: lists, has ``plugged`` decide, does it.

Nodes are listed for at most a thirtieth of the time, every two seconds on a small cluster. What slurmds told is written
to a file, for it is told once: a restarted agent has no other way to learn it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.slurm.commands import Commands
from moorings.slurm.formats import build_drain
from moorings.slurm.host.hello import Hello
from moorings.slurm.host.plugged import FEATURE, REASON, PluggedMemory, has_plugin, plan_plugged
from moorings.slurm.host.troubles import Troubles
from moorings.slurm.node_records import NodeRecord, build_show_nodes, build_undrain, parse_show_nodes

log = logging.getLogger("moorings.slurm.agent")

FILE = "moorings_nodes"  # in StateSaveLocation, beside the instance's id
FILE_BYTES_MAX = 16 << 20
LIST_S, LIST_SHARE = 2.0, 30  # between two lists; and so many times what the last one took
IDLE_S = 60.0  # where slurm.conf gives no node the feature
FUTURE_S_MAX = 600  # a slurmd that says it was started later than that has a clock of its own
NODES_PER_COMMAND = 500
SHOWN_MAX = 5
_MEND = "install the plugin for the Slurm that runs there, and restart slurmd: the node is taken back then"
_MOST = (
    "none is drained; if they have the plugin, restart slurmd there: each tells again. 'moor slurm doctor' names them"
)


class NodeWatch:
    """The nodes that may have IPU jobs.

    Args:
        slurm: its commands.
        troubles: where it is told what fails.
        file: where it is written down what slurmds told; None: nowhere.

    Attributes:
        plugged: those whose slurmd has told that it loaded the plugin, when they were listed last.
    """

    def __init__(self, slurm: Commands, troubles: Troubles, file: Path | None) -> None:
        self._slurm = slurm
        self._troubles = troubles
        self._file = file
        self._hellos: dict[str, int] | None = None  # None: the file was not read
        self._saved: Mapping[str, int] = {}
        self._nodes: Sequence[NodeRecord] = ()
        self.plugged: frozenset[str] = frozenset()
        self._memory = PluggedMemory()
        self._told = asyncio.Event()
        self._pause_s = LIST_S

    @property
    def n_nodes(self) -> int:
        """How many the cluster had when they were listed last."""
        return len(self._nodes)

    async def serve(self) -> None:
        """Keep the features in step, for ever."""
        while True:
            begun = _now()
            self._told.clear()
            with self._troubles.told("slurm.nodes") as good:
                await self._look()
            took_s = _now() - begun
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._pause_s, LIST_SHARE * took_s) if good else LIST_S):
                    await self._told.wait()
            await asyncio.sleep(min(took_s, LIST_S))  # many nodes that start at the same time are one list

    def note(self, hello: Hello) -> bool:
        """Take in what a slurmd told; false: no node of that name is known yet, and it is to say it again."""
        if self._hellos is None or hello.started_s > time.time() + FUTURE_S_MAX:
            return False
        if not any(hello.node in node.names for node in self._nodes):
            self._told.set()
            return False
        self._hellos[hello.node] = hello.started_s
        self._told.set()
        try:
            self._save()
        except MooringsError as error:
            log.warning("node.not_noted", extra={"node": hello.node, "detail": error.detail, "hint": error.hint})
            return False
        log.info("node.has_plugin", extra={"node": hello.node})
        return True

    async def _look(self) -> None:
        if self._hellos is None:
            self._hellos = load_hellos(self._file)
            self._saved = dict(self._hellos)
        listed_at = _now()
        self._nodes = parse_show_nodes(await self._slurm.ask(build_show_nodes()))
        names = {name for node in self._nodes for name in node.names}
        for gone in self._hellos.keys() - names:
            del self._hellos[gone]
        self._save()
        self.plugged = frozenset(node.name for node in self._nodes if has_plugin(node, self._hellos))
        found = plan_plugged(self._nodes, self._hellos, self._memory, listed_at)
        if found.report:
            told = (
                f"{len(found.lacking)} of {found.declared} nodes with Feature={FEATURE} have not told of their plugin"
            )
            log.error("nodes.without_plugin", extra={"detail": told, "hint": _MOST})
        if found.drain:
            await self._change(found.drain, lambda nodes: build_drain(nodes, REASON))
            log.warning("node.drained", extra={"nodes": _named(found.drain), "detail": REASON, "hint": _MEND})
        if found.take_back:
            await self._change(found.take_back, build_undrain)
            log.info("node.taken_back", extra={"nodes": _named(found.take_back)})
        self._pause_s = LIST_S if found.declared else IDLE_S
        self._memory = found.memory  # only now: what failed is done at the next look

    async def _change(self, nodes: Sequence[str], build: Callable[[Sequence[str]], list[str]]) -> None:
        for begin in range(0, len(nodes), NODES_PER_COMMAND):
            await self._slurm.ask(build(nodes[begin : begin + NODES_PER_COMMAND]))

    def _save(self) -> None:
        """No fsync, as for the steps: a power cut that loses this has ended slurmctld, too."""
        if self._file is None or self._hellos is None or self._hellos == self._saved:
            return
        draft = self._file.with_name(f"{self._file.name}.draft")
        try:
            with open(draft, "wb", opener=_private) as file:
                file.write(json.dumps(self._hellos).encode())
            draft.replace(self._file)
        except OSError as error:
            told = f"{self._file} cannot be written: {error.strerror}"
            raise MooringsError("slurm.unreadable", told, hint="see the disk of StateSaveLocation") from error
        self._saved = dict(self._hellos)


def load_hellos(file: Path | None) -> dict[str, int]:
    """When slurmds told that they had loaded the plugin, in epoch seconds of their own clocks, by a name of the node.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    if file is None:
        return {}
    try:
        with file.open("rb") as stream:
            return {str(name): int(started) for name, started in json.loads(stream.read(FILE_BYTES_MAX)).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        hint = "remove that file; then restart slurmd on the nodes: each tells its own again"
        raise MooringsError("slurm.unreadable", f"{file} cannot be read: {error}", hint=hint) from error


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - SHOWN_MAX} more" if len(nodes) > SHOWN_MAX else ""
    return ", ".join(nodes[:SHOWN_MAX]) + more


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _now() -> float:
    return asyncio.get_running_loop().time()
