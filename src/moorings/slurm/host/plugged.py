"""Which nodes Slurm may start IPU jobs on: those whose slurmd has loaded the plugin. A pure decision.

A site gives its nodes of IPU jobs a feature in slurm.conf (``Feature=moorings``), and the submit script adds it to the
constraint of each such job: no other node gets one. One of these whose slurmd has not told that it loaded the plugin is
drained, and taken back when it has.

That the agent gives and takes the feature itself was refused, as measured on 22.05, 24.11 and 26.05. A feature that
``scontrol`` adds is gone when slurmctld starts or is reconfigured: new jobs are refused then, ``Invalid feature
specification``, and waiting ones are held, ``BadConstraints``. One that ``scontrol`` takes away is back then, and jobs
start on such a node before anybody can take it away again; and jobs that the other nodes cannot run are refused or held
meanwhile. A drained node stays drained, and jobs wait for it.

Whether it was the slurmd that runs now that told is not seen by its SlurmdStartTime, which is taken when it registers:
after a program for health checks that may take minutes, or when slurmctld is back. All instants here are the agent's:
when it saw that SlurmdStartTime had changed, when a slurmd told last, and when that one had loaded the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.instants import SECOND
from moorings.slurm.node_records import NodeRecord

FEATURE = "moorings"
REASON = "moorings: its slurmd has not loaded the plugin"
GRACE_S = 3.0  # a slurmd that has just started says it at once
AWAY_S = 15.0  # or, where the agent was away, after its next pause, which is 10 s at most
AGAIN_S = 90.0  # one that started before the agent may have told another, whose notes are lost: again within 75 s
SURE_S = 180.0  # what was told before slurmd registered holds so long, unless it is told again


@dataclass(frozen=True, slots=True)
class Told:
    """What was told by a slurmd that had loaded the plugin.

    Attributes:
        run: names that slurmd.
        loaded_s: when it had loaded the plugin, in epoch seconds by the agent's clock.
        heard_s: when it said so last.
    """

    run: str
    loaded_s: float
    heard_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """A start of a slurmd, as Slurm tells of it.

    Attributes:
        started_s: SlurmdStartTime, in epoch seconds by the node's clock: only whether it differs is looked at.
        seen_s: when the agent saw it first, in epoch seconds by the agent's clock.
        before_s: when it saw the one before it first; None: it saw none.
        sure: it was told after ``seen_s`` that the plugin is loaded.
    """

    started_s: int
    seen_s: float
    before_s: float | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedMemory:
    """What one plan leaves for the next.

    Attributes:
        begun_s: when this agent made its first one, in epoch seconds; None: it made none.
        starts: by node, the start of its slurmd that was seen last.
        drained: by node, the SlurmdStartTime for which it was drained: an admin who resumes it is not overruled.
        most_lack: it was reported that most nodes lack the plugin.
    """

    begun_s: float | None = None
    starts: Mapping[str, Start] = field(default_factory=dict)
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
        plugged: all whose slurmd has told, with that feature or without.
    """

    drain: tuple[str, ...]
    take_back: tuple[str, ...]
    lacking: tuple[str, ...]
    declared: int
    report: bool
    plugged: frozenset[str]
    memory: PluggedMemory


def has_plugin(node: NodeRecord, hellos: Mapping[str, Told], starts: Mapping[str, Start], at_s: float) -> bool | None:
    """Whether the slurmd that runs on a node has told that it loaded the plugin; None: it, or one before it.

    It has if one told since its start was seen, for those before it had ended by then; or shortly before that, if it
    was one that loaded the plugin after the slurmd before it had registered, so not that one itself. A slurmctld that
    has just started does not know when slurmds were.

    Args:
        node: as Slurm lists it.
        hellos: by one of a node's names, what was told last.
        starts: as the plan before left them.
        at_s: when the nodes were listed, in epoch seconds.
    """
    told = _told(node, hellos)
    start = _start_of(node, starts, at_s)
    if not told or node.started is None or start is None:
        return None if told else False
    if start.sure or _is_sure(start, told):
        return True
    is_later = any(start.before_s is None or one.loaded_s > start.before_s for one in told)
    return is_later and at_s < start.seen_s + SURE_S


def plan_plugged(
    nodes: Sequence[NodeRecord], hellos: Mapping[str, Told], memory: PluggedMemory, at_s: float
) -> PluggedPlan:
    """Which nodes are drained or taken back.

    One that lost its feature is taken back: it is no node of IPU jobs any more. One that is switched off to save power
    is left alone: drained, it would never be switched on. Where most nodes lack the plugin, or all, it is likelier that
    they do not reach the agent: none is drained then.

    Args:
        nodes: all of the cluster.
        hellos: see ``has_plugin``.
        memory: of the plan before.
        at_s: when the nodes were listed, in epoch seconds.
    """
    declared = [node for node in nodes if FEATURE in node.features]
    began_s = memory.begun_s if memory.begun_s is not None else at_s
    starts = {
        node.name: replace(start, sure=start.sure or _is_sure(start, _told(node, hellos)))
        for node in nodes
        if (start := _start_of(node, memory.starts, at_s)) is not None
    }
    have = {node.name: has_plugin(node, hellos, memory.starts, at_s) for node in nodes}
    lacking = [node for node in declared if have[node.name] is False]
    most = bool(lacking) and len(lacking) * 2 > len(declared)

    def is_overdue(node: NodeRecord) -> bool:
        grace_s = GRACE_S if _told(node, hellos) else 0.0  # one that never told is new
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
    return PluggedPlan(
        drain=drain,
        take_back=tuple(node.name for node in nodes if is_drained_by_us(node) and node.name not in stay),
        lacking=tuple(node.name for node in lacking),
        declared=len(declared),
        report=report and not memory.most_lack,
        plugged=frozenset(name for name, has in have.items() if has),
        memory=PluggedMemory(
            begun_s=began_s,
            starts=starts,
            drained=known | {name: numbers[name] for name in drain},
            most_lack=report,
        ),
    )


def is_drained_by_us(node: NodeRecord) -> bool:
    """Whether the agent drained a node because it lacked the plugin, and Slurm would take it back."""
    return node.is_drained and node.reason.startswith(REASON) and node.started is not None  # refused else


def _told(node: NodeRecord, hellos: Mapping[str, Told]) -> list[Told]:
    return [hellos[name] for name in sorted(node.names) if name in hellos]


def _is_sure(start: Start, told: Sequence[Told]) -> bool:
    return any(one.heard_s >= start.seen_s for one in told)


def _start_of(node: NodeRecord, starts: Mapping[str, Start], at_s: float) -> Start | None:
    last = starts.get(node.name)
    if node.started is None:
        return last
    started_s = node.started // SECOND
    if last is not None and last.started_s == started_s:
        return last
    return Start(started_s, at_s, last.seen_s if last is not None else None)
