"""Which nodes may run IPU jobs: those whose slurmd has loaded the plugin. A pure decision.

A site gives its nodes of IPU jobs a feature in slurm.conf (``Feature=moorings``), and the submit script adds it to the
constraint of each such job: no other node gets one. A node with the feature is drained if its slurmd has not reported
that it loaded the plugin, and resumed once it has.

The agent does not set the feature itself, as measured on 22.05, 24.11 and 26.05. A feature that ``scontrol`` adds is
lost when slurmctld starts or is reconfigured: new jobs are refused then (``Invalid feature specification``), and
pending ones held (``BadConstraints``). One that ``scontrol`` removes is back then, and jobs start on such a node before
it can be removed again; meanwhile jobs that need this node are refused or held. A drained node stays drained, and jobs
wait for it.

SlurmdStartTime does not tell which slurmd reported: it is set when slurmd registers, minutes later if a program for
health checks runs first or slurmctld is away. All times here are the agent's: when it saw that SlurmdStartTime had
changed, when a slurmd reported last, and when that one had loaded the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.instants import SECOND
from moorings.slurm.node_records import NodeRecord

FEATURE = "moorings"
REASON = "moorings: its slurmd has not loaded the plugin"
GRACE_S = 3.0  # a slurmd that has just started reports at once
AWAY_S = 15.0  # or, where the agent was away, after its next pause, which is 10 s at most
AGAIN_S = 90.0  # one that started before the agent may have reported to another: it reports again within 75 s
SURE_S = 180.0  # a report from before slurmd registered counts for so long, unless another follows


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The last report of a slurmd that has loaded the plugin.

    Attributes:
        run: the id of that slurmd.
        loaded_s: when it had loaded the plugin, in epoch seconds by the agent's clock.
        heard_s: when it reported last.
    """

    run: str
    loaded_s: float
    heard_s: float


@dataclass(frozen=True, slots=True)
class SlurmdStart:
    """A start of a slurmd, as Slurm lists it.

    Attributes:
        started_s: SlurmdStartTime, in epoch seconds by the node's clock: only whether it differs is looked at.
        seen_s: when the agent saw it first, in epoch seconds by the agent's clock.
        before_s: when it saw the one before it first; None: it saw none.
        sure: a report came after ``seen_s``.
    """

    started_s: int
    seen_s: float
    before_s: float | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """What one plan leaves for the next.

    Attributes:
        begun_s: when this agent made its first one, in epoch seconds; None: it made none.
        starts: by node, the start of its slurmd that was seen last.
        drained: by node, the SlurmdStartTime for which it was drained: an admin who resumes it is not overruled.
        most_lack: it was reported that most nodes lack the plugin.
    """

    begun_s: float | None = None
    starts: Mapping[str, SlurmdStart] = field(default_factory=dict)
    drained: Mapping[str, int] = field(default_factory=dict)
    most_lack: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPlan:
    """What is to be done now.

    Attributes:
        drain: nodes that are to get no new jobs.
        take_back: nodes that we drained, and that may have jobs again.
        lacking: all that have the feature, and whose slurmd has not reported.
        declared: how many have the feature.
        report: to be reported now: they are so many that none is drained.
        plugged: all whose slurmd has reported, with that feature or without.
    """

    drain: tuple[str, ...]
    take_back: tuple[str, ...]
    lacking: tuple[str, ...]
    declared: int
    report: bool
    plugged: frozenset[str]
    memory: PluginState


def has_plugin(
    node: NodeRecord, hellos: Mapping[str, LastHeartbeat], starts: Mapping[str, SlurmdStart], at_s: float
) -> bool | None:
    """Whether the slurmd that runs on a node has reported that it loaded the plugin; None: it, or one before it.

    It has if a report came after its start was seen, since slurmds before it had ended by then. A report from shortly
    before also counts, if that slurmd loaded the plugin after the previous one had registered. A slurmctld that has
    just started does not know when slurmds started.

    Args:
        node: as Slurm lists it.
        hellos: the last report, by one of a node's names.
        starts: as the plan before left them.
        at_s: when the nodes were listed, in epoch seconds.
    """
    reports = _reports(node, hellos)
    start = _start_of(node, starts, at_s)
    if not reports or node.started is None or start is None:
        return None if reports else False
    if start.sure or _is_sure(start, reports):
        return True
    is_later = any(start.before_s is None or one.loaded_s > start.before_s for one in reports)
    return is_later and at_s < start.seen_s + SURE_S


def plan_node_drains(
    nodes: Sequence[NodeRecord], hellos: Mapping[str, LastHeartbeat], memory: PluginState, at_s: float
) -> PluginPlan:
    """Which nodes are drained or taken back.

    A node that lost its feature is resumed: it is no node of IPU jobs any more. A node that is powered down is left
    alone: Slurm would never power up a drained one. If most nodes lack the plugin they probably cannot reach the agent,
    and none is drained.

    Args:
        nodes: all of the cluster.
        hellos: see ``has_plugin``.
        memory: of the plan before.
        at_s: when the nodes were listed, in epoch seconds.
    """
    declared = [node for node in nodes if FEATURE in node.features]
    began_s = memory.begun_s if memory.begun_s is not None else at_s
    starts = {
        node.name: replace(start, sure=start.sure or _is_sure(start, _reports(node, hellos)))
        for node in nodes
        if (start := _start_of(node, memory.starts, at_s)) is not None
    }
    have = {node.name: has_plugin(node, hellos, memory.starts, at_s) for node in nodes}
    lacking = [node for node in declared if have[node.name] is False]
    most = bool(lacking) and len(lacking) * 2 > len(declared)

    def is_overdue(node: NodeRecord) -> bool:
        grace_s = GRACE_S if _reports(node, hellos) else 0.0  # one that never reported is new
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
        take_back=tuple(node.name for node in nodes if is_drained_by_us(node) and node.name not in stay),
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
    """Whether the agent drained a node because it lacked the plugin, and Slurm would take it back."""
    return node.is_drained and node.reason.startswith(REASON) and node.started is not None  # refused else


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
