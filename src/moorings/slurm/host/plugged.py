"""Which nodes Slurm may start IPU jobs on: those whose slurmd has loaded the plugin. A pure decision.

A site gives its nodes of IPU jobs a feature in slurm.conf (``Feature=moorings``), and the submit script adds it to the
constraint of each such job: no other node gets one. One of these whose slurmd has not told that it loaded the plugin is
drained, and taken back when it has.

That the agent gives and takes the feature itself was refused, as measured on 22.05, 24.11 and 26.05. A feature that
``scontrol`` adds is gone when slurmctld starts or is reconfigured: new jobs are refused then, ``Invalid feature
specification``, and waiting ones are held, ``BadConstraints``. One that ``scontrol`` takes away is back then, and jobs
start on such a node before anybody can take it away again; and jobs that the other nodes cannot run are refused or held
meanwhile. A drained node stays drained, and jobs wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.instants import SECOND
from moorings.slurm.node_records import NodeRecord

FEATURE = "moorings"
REASON = "moorings: its slurmd has not loaded the plugin"
LATER_S = 5  # SlurmdStartTime is taken when all of slurmd is set up, less than a second after the plugins are loaded
GRACE_S = 3.0  # a slurmd that has just started says it at once
AWAY_S = 15.0  # or, where the agent was away, after its next pause, which is 10 s at most


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedMemory:
    """What one plan leaves for the next.

    Attributes:
        begun_s: when the first one was made, by the loop's clock; None: there was none.
        starts: by node, the start of slurmd that was seen last, in epoch seconds, and since when, by the loop's clock.
        drained: by node, the start of slurmd for which it was drained: an admin who resumes it is not overruled.
        most_lack: it was reported that most nodes lack the plugin.
    """

    begun_s: float | None = None
    starts: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    drained: Mapping[str, int] = field(default_factory=dict)
    most_lack: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedPlan:
    """What is to be done now.

    Attributes:
        drain: nodes that are to get no new jobs.
        take_back: nodes that we drained, and that may have jobs again.
        lacking: all that have the feature, and whose slurmd has not told.
        declared: how many have the feature.
        report: to be reported now: they are so many that none is drained.
    """

    drain: tuple[str, ...]
    take_back: tuple[str, ...]
    lacking: tuple[str, ...]
    declared: int
    report: bool
    memory: PluggedMemory


def has_plugin(node: NodeRecord, hellos: Mapping[str, int]) -> bool | None:
    """Whether the slurmd that runs on a node has told that it loaded the plugin; None: it, or one before it.

    A slurmctld that has just started does not know when slurmds were.

    Args:
        node: as Slurm lists it.
        hellos: by one of a node's names, when the last one told did so, in epoch seconds of its own clock.
    """
    told = _told(node, hellos)
    if told is None or node.started is None:
        return None if told is not None else False
    return node.started // SECOND <= told + LATER_S


def plan_plugged(
    nodes: Sequence[NodeRecord], hellos: Mapping[str, int], memory: PluggedMemory, at_s: float
) -> PluggedPlan:
    """Which nodes are drained or taken back.

    One that lost its feature is taken back: it is no node of IPU jobs any more. One that is switched off to save power
    is left alone: drained, it would never be switched on. Where most nodes lack the plugin, or all, the agent's own
    notes may be lost: none is drained then.

    Args:
        nodes: all of the cluster.
        hellos: see ``has_plugin``.
        memory: of the plan before.
        at_s: when the nodes were listed, by the loop's clock.
    """
    declared = [node for node in nodes if FEATURE in node.features]
    began_s = memory.begun_s if memory.begun_s is not None else at_s
    starts = {node.name: ((node.started or 0) // SECOND, at_s) for node in declared}
    starts |= {name: seen for name, seen in memory.starts.items() if name in starts and seen[0] == starts[name][0]}
    lacking = [node for node in declared if has_plugin(node, hellos) is False]
    most = bool(lacking) and len(lacking) * 2 > len(declared)

    def is_overdue(node: NodeRecord) -> bool:
        grace_s = GRACE_S if _told(node, hellos) is not None else 0.0  # one that never told is new
        return at_s >= max(starts[node.name][1] + grace_s, began_s + AWAY_S)

    overdue = [node for node in lacking if is_overdue(node)]
    stay = {node.name for node in declared if not has_plugin(node, hellos)}
    report = most and len(overdue) == len(lacking)
    known = {name: start for name, start in memory.drained.items() if name in starts and start == starts[name][0]}
    able = [node.name for node in overdue if not (node.is_drained or node.is_off or node.name in known)]
    drain = () if most else tuple(able)
    return PluggedPlan(
        drain=drain,
        take_back=tuple(node.name for node in nodes if is_drained_by_us(node) and node.name not in stay),
        lacking=tuple(node.name for node in lacking),
        declared=len(declared),
        report=report and not memory.most_lack,
        memory=PluggedMemory(
            begun_s=began_s,
            starts=starts,
            drained=known | {name: starts[name][0] for name in drain},
            most_lack=report,
        ),
    )


def is_drained_by_us(node: NodeRecord) -> bool:
    """Whether the agent drained a node because it lacked the plugin, and Slurm would take it back."""
    return node.is_drained and node.reason.startswith(REASON) and node.started is not None  # refused else


def _told(node: NodeRecord, hellos: Mapping[str, int]) -> int | None:
    return max((hellos[name] for name in node.names if name in hellos), default=None)
