"""Nodes that run tasks of an IPU job and have not asked for its partition: our plugin is not at work there (law 4).

The plugin holds a job's tasks back until the agent has answered. A node without it, or with one that slurmd cannot
load, just runs them, so silence is all there is to see. Such a node is drained and its job stopped. Many such nodes at
once are not believed: then it is the agent that nobody reaches.

A step that somebody starts from another shell (``srun --jobid``) does not always ask. Where slurmd has the plugin, only
steps that the job itself must have started are a proof: its batch script, and what begins with the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.instants import seconds_between
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.ledger import Start
from moorings.slurm.listings import expand_hosts
from moorings.slurm.steps import TaskStep

SILENT_S = 60.0
LOOK_S = 10.0  # between two lists of steps
NODES_MAX = 2  # more at once, and more than one in NODES_IN, are not believed
NODES_IN = 20
AT_ONCE_S = 600.0
OWN_S = 10.0  # a step that begins so soon after its job is the job's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What is remembered of nodes that did not ask; times are the loop's, in seconds.

    Attributes:
        since: by start and node, since when tasks run there and the node has not asked.
        drained: nodes that were drained for a start: an admin who resumes one is not overruled.
        found_at: by node, when it was last found silent.
        looked_at: when the last list of steps was asked for.
    """

    since: Mapping[tuple[Start, str], float] = field(default_factory=dict)
    drained: frozenset[tuple[Start, str]] = frozenset()
    found_at: Mapping[str, float] = field(default_factory=dict)
    looked_at: float | None = None

    def is_general(self, n_nodes: int) -> bool:
        """Whether so many nodes are silent that the fault must be the agent's."""
        return len(self.found_at) > max(NODES_MAX, n_nodes // NODES_IN)


@dataclass(frozen=True, slots=True)
class Silent:
    """A job with tasks on nodes that have not asked.

    Attributes:
        job: as listed.
        nodes: that have not asked.
        proven: whether these tasks must have asked, had the plugin been there.
    """

    job: JobRecord
    nodes: tuple[str, ...]
    proven: bool


def suspects(jobs: Iterable[JobRecord], asked: Mapping[Start, Collection[str]]) -> list[JobRecord]:
    """The running jobs of which not every node has asked; those that an agent before this one served are not judged.

    Args:
        jobs: as listed.
        asked: the nodes that have asked, by start.
    """
    found = []
    for job in jobs:
        if job.state != "RUNNING" or job.order is None:
            continue
        known = asked.get(Start.of(job, job.order))
        if known is not None and not (job.nodes_whole and set(expand_hosts(job.nodes)) <= set(known)):
            found.append(job)
    return found


def look(
    before: Silence,
    jobs: Iterable[JobRecord],
    asked: Mapping[Start, Collection[str]],
    steps: Sequence[TaskStep],
    loaded: Collection[str],
    at_s: float,
) -> tuple[Silence, list[Silent]]:
    """What a list of steps tells of nodes that do not ask.

    Args:
        before: what was remembered.
        jobs: as listed.
        asked: the nodes that have asked, by start.
        steps: of the suspects.
        loaded: nodes whose slurmd has loaded the plugin.
        at_s: the loop's time.
    """
    by_job: dict[int, list[TaskStep]] = {}
    for step in steps:
        by_job.setdefault(step.job_id, []).append(step)
    since: dict[tuple[Start, str], float] = {}
    found: list[Silent] = []
    for job in suspects(jobs, asked):
        assert job.order is not None
        start = Start.of(job, job.order)
        own: dict[str, bool] = {}  # by node with tasks, whether one of its steps is surely the job's own
        for step in by_job.get(job.job_id, ()):
            for node in set(step.nodes) - set(asked[start]):
                own[node] = own.get(node, False) or _is_own(step, job)
        for node in own:
            since[start, node] = before.since.get((start, node), at_s)
        silent = [node for node in sorted(own) if at_s - since[start, node] >= SILENT_S]
        proven = tuple(node for node in silent if own[node] or node not in loaded)
        doubtful = tuple(node for node in silent if node not in proven)
        found += [Silent(job, nodes, truth) for nodes, truth in ((proven, True), (doubtful, False)) if nodes]
    found_at = {node: at for node, at in before.found_at.items() if at_s - at < AT_ONCE_S}
    found_at |= {node: at_s for one in found if one.proven for node in one.nodes}
    drained = frozenset(pair for pair in before.drained if pair[0] in asked)
    return Silence(since=since, drained=drained, found_at=found_at, looked_at=before.looked_at), found


def _is_own(step: TaskStep, job: JobRecord) -> bool:
    if step.number is None:
        return True
    if step.started is None or job.started is None:
        return False
    return seconds_between(job.started, step.started) <= OWN_S
