"""Decides which nodes may run IPU jobs: those whose slurmd has loaded the plugin.

A site gives its nodes of IPU jobs a feature in slurm.conf (``Feature=moorings``), and the submit script adds it to the
constraint of each such job, so no other node gets one. A node with the feature is drained if its slurmd has not
reported that it loaded the plugin, and resumed once it has.

The agent does not set the feature itself, for reasons measured on 22.05, 24.11 and 26.05. A feature added by
``scontrol`` is lost when slurmctld starts or is reconfigured: then new jobs are refused (``Invalid feature
specification``), and pending ones held (``BadConstraints``). A removed one returns at the same time, and jobs start on
such a node before it can be removed again; while it is removed, jobs that need this node are refused or held. A drained
node stays drained, and jobs wait for it.

SlurmdStartTime does not tell which slurmd reported: it is set when slurmd registers, minutes later if a program for
health checks runs first or slurmctld is down. All times here are the agent's: of an observed change of SlurmdStartTime,
of a slurmd's last report, and of its load of the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.model.timestamps import SECOND
from moorings.slurm.node_records import NodeRecord

FEATURE = "moorings"
REASON = "moorings: its slurmd has not loaded the plugin"
GRACE_S = 3.0  # a newly started slurmd reports at once
AWAY_S = 15.0  # or after its next pause (10 s at most) if the agent was down
AGAIN_S = 90.0  # one that started before the agent may have reported to another: it reports again within 75 s
SURE_S = 180.0  # how long a report from before slurmd's registration counts without another


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The last report of a slurmd that has loaded the plugin.

    Attributes:
        run: the id of that slurmd.
        loaded_s: when it loaded the plugin, in epoch seconds by the agent's clock.
        heard_s: time of its last report.
    """

    run: str
    loaded_s: float
    heard_s: float


@dataclass(frozen=True, slots=True)
class SlurmdStart:
    """A start of a slurmd, as Slurm lists it.

    Attributes:
        started_s: SlurmdStartTime, in epoch seconds by the node's clock; only compared for equality.
        seen_s: when the agent first observed it, in epoch seconds by the agent's clock.
        before_s: when it first observed the previous start; None: there was none.
        is_confirmed: a report came after ``seen_s``.
    """

    started_s: int
    seen_s: float
    before_s: float | None = None
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """The state that one plan leaves for the next.

    Attributes:
        begun_s: time of this agent's first plan, in epoch seconds; None: none yet.
        starts: by node, the last observed start of its slurmd.
        drained: by node, its SlurmdStartTime when drained: an admin's resume is not overruled.
        most_lack: whether the lack of the plugin on most nodes was reported.
    """

    begun_s: float | None = None
    starts: Mapping[str, SlurmdStart] = field(default_factory=dict)
    drained: Mapping[str, int] = field(default_factory=dict)
    most_lack: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPlan:
    """The actions to take now.

    Attributes:
        drain: nodes to drain.
        undrain: nodes that we drained, to resume.
        lacking: all nodes with the feature whose slurmd has not reported.
        declared: number of nodes with the feature.
        report: whether to report now that so many lack the plugin that none is drained.
        plugged: all nodes whose slurmd has reported, with or without the feature.
    """

    drain: tuple[str, ...]
    undrain: tuple[str, ...]
    lacking: tuple[str, ...]
    declared: int
    report: bool
    plugged: frozenset[str]
    memory: PluginState


def has_plugin(
    node: NodeRecord, hellos: Mapping[str, LastHeartbeat], starts: Mapping[str, SlurmdStart], at_s: float
) -> bool | None:
    """Whether a node's running slurmd has reported that it loaded the plugin; None: it, or a previous one, has.

    A report after its start was observed is proof, because earlier slurmds had ended by then. A report from shortly
    before also counts, if that slurmd loaded the plugin after the previous one had registered. A newly started
    slurmctld does not know when slurmds started.

    Args:
        node: as Slurm lists it.
        hellos: the last report, by one of a node's names.
        starts: from the previous plan.
        at_s: when the nodes were listed, in epoch seconds.
    """
    reports = _reports(node, hellos)
    start = _start_of(node, starts, at_s)
    if not reports or node.started is None or start is None:
        return None if reports else False
    if start.is_confirmed or _is_sure(start, reports):
        return True
    is_later = any(start.before_s is None or one.loaded_s > start.before_s for one in reports)
    return is_later and at_s < start.seen_s + SURE_S


def plan_node_drains(
    nodes: Sequence[NodeRecord], hellos: Mapping[str, LastHeartbeat], memory: PluginState, at_s: float
) -> PluginPlan:
    """Decide which nodes to drain or to resume.

    A node that lost its feature is resumed: it no longer is for IPU jobs. A node that is powered down is left alone:
    Slurm would never power up a drained one. If most nodes lack the plugin they probably cannot reach the agent, and
    none is drained.

    Args:
        nodes: all of the cluster.
        hellos: see ``has_plugin``.
        memory: from the previous plan.
        at_s: when the nodes were listed, in epoch seconds.
    """
    declared = [node for node in nodes if FEATURE in node.features]
    began_s = memory.begun_s if memory.begun_s is not None else at_s
    starts = {
        node.name: replace(start, is_confirmed=start.is_confirmed or _is_sure(start, _reports(node, hellos)))
        for node in nodes
        if (start := _start_of(node, memory.starts, at_s)) is not None
    }
    have = {node.name: has_plugin(node, hellos, memory.starts, at_s) for node in nodes}
    lacking = [node for node in declared if have[node.name] is False]
    most = bool(lacking) and len(lacking) * 2 > len(declared)

    def is_overdue(node: NodeRecord) -> bool:
        grace_s = GRACE_S if _reports(node, hellos) else 0.0  # a node without any report is new
        start = starts.get(node.name)
        seen_s = start.seen_s if start is not None else began_s
        is_later = start is not None and start.before_s is not None and start.seen_s > began_s
        away_s = AWAY_S if is_later else AGAIN_S
        return at_s >= max(seen_s + grace_s, began_s + away_s)

    overdue = [node for node in lacking if is_overdue(node)]
    stay = {node.name for node in declared if not have[node.name]}
    report = most and len(overdue) == len(lacking)
    numbers = {node.name: starts[node.name].started_s if node.name in starts else 0 for node in declared}
    known = {name: number for name, number in memory.drained.items() if numbers.get(name) == number}
    able = [node.name for node in overdue if not (node.is_drained or node.is_off or node.name in known)]
    drain = () if most else tuple(able)
    return PluginPlan(
        drain=drain,
        undrain=tuple(node.name for node in nodes if is_drained_by_us(node) and node.name not in stay),
        lacking=tuple(node.name for node in lacking),
        declared=len(declared),
        report=report and not memory.most_lack,
        plugged=frozenset(name for name, has in have.items() if has),
        memory=PluginState(
            begun_s=began_s,
            starts=starts,
            drained=known | {name: numbers[name] for name in drain},
            most_lack=report,
        ),
    )


def is_drained_by_us(node: NodeRecord) -> bool:
    """Whether the agent drained a node for a missing plugin, and Slurm would resume it."""
    return node.is_drained and node.reason.startswith(REASON) and node.started is not None  # else refused


def _reports(node: NodeRecord, hellos: Mapping[str, LastHeartbeat]) -> list[LastHeartbeat]:
    return [hellos[name] for name in sorted(node.names) if name in hellos]


def _is_sure(start: SlurmdStart, reports: Sequence[LastHeartbeat]) -> bool:
    return any(one.heard_s >= start.seen_s for one in reports)


def _start_of(node: NodeRecord, starts: Mapping[str, SlurmdStart], at_s: float) -> SlurmdStart | None:
    last = starts.get(node.name)
    if node.started is None:
        return last
    started_s = node.started // SECOND
    if last is not None and last.started_s == started_s:
        return last
    return SlurmdStart(started_s, at_s, last.seen_s if last is not None else None)
