"""Finds nodes that run tasks of an IPU job without a request for its partition: no plugin works there (law 4).

The plugin holds a job's tasks until the agent has answered. A node without it, or with one that slurmd cannot load,
runs them at once, and the agent only sees that no request comes. Such a node is drained and its job stopped. Many such
nodes at once mean that nodes cannot reach the agent; then none is drained.

Silence alone is no proof. Slurm lists a step before the node's prolog has ended, a container may be fetched before the
plugin is called, and a step from another shell (``srun --jobid``) does not always ask. So a node with the plugin (its
slurmd reports, or it has asked for another job) is only logged. So are all nodes while no slurmd reports: their plugin
may be of a release without reports. A slurmd whose plugin is removed stops reporting, and earlier requests of its node
no longer count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.slurm.fixed_width import expand_hostlist
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.step_records import TaskStep

SILENT_S = 60.0
LOOK_S = 10.0  # between two lists of steps
NODES_MAX = 2  # more at once, and more than one in NODES_IN, are a fault of the agent
NODES_IN = 20
AT_ONCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnboundNodes:
    """The state of nodes that did not ask; times are the loop's, in seconds.

    Attributes:
        since: by start and node, since when tasks run there without a request.
        found_at: by node, when it was last found silent.
        looked_at: time of the last list of steps.
    """

    since: Mapping[tuple[JobStart, str], float] = field(default_factory=dict)
    found_at: Mapping[str, float] = field(default_factory=dict)
    looked_at: float | None = None

    def is_widespread(self, n_nodes: int) -> bool:
        """Whether so many nodes are silent that the fault must be the agent's."""
        return len(self.found_at) > max(NODES_MAX, n_nodes // NODES_IN)


@dataclass(frozen=True, slots=True)
class UnboundJob:
    """A job with tasks on nodes the nodes that have not asked.

    Attributes:
        job: as listed.
        nodes: that have not asked.
        proven: whether the plugin is certainly missing.
    """

    job: JobRecord
    nodes: tuple[str, ...]
    proven: bool


def jobs_missing_binds(jobs: Iterable[JobRecord], asked: Mapping[JobStart, Collection[str]]) -> list[JobRecord]:
    """Return the running jobs with a node that has not asked; jobs of an earlier agent are not judged.

    Args:
        jobs: as listed.
        asked: the nodes that have asked, by start.
    """
    found = []
    for job in jobs:
        if job.state != "RUNNING" or job.order is None:
            continue
        known = asked.get(JobStart.of(job, job.order))
        if known is not None and not (job.nodes_whole and set(expand_hostlist(job.nodes)) <= set(known)):
            found.append(job)
    return found


def find_unbound(
    before: UnboundNodes,
    jobs: Iterable[JobRecord],
    asked: Mapping[JobStart, Collection[str]],
    steps: Sequence[TaskStep],
    plugged: Collection[str],
    lapsed: Collection[str],
    at_s: float,
) -> tuple[UnboundNodes, list[UnboundJob]]:
    """Find the nodes that run tasks and have not asked; return the new state, and the findings.

    Args:
        before: the previous state.
        jobs: as listed.
        asked: the nodes that have asked, by start.
        steps: of the suspects.
        plugged: nodes whose slurmd reports the plugin.
        lapsed: nodes whose slurmd reported it before, and no longer does.
        at_s: the loop's time.
    """
    with_tasks: dict[int, set[str]] = {}
    for step in steps:
        with_tasks.setdefault(step.job_id, set()).update(step.nodes)
    with_plugin = set(plugged).union(set().union(*asked.values()) - set(lapsed))
    since: dict[tuple[JobStart, str], float] = {}
    found: list[UnboundJob] = []
    for job in jobs_missing_binds(jobs, asked):
        assert job.order is not None
        start = JobStart.of(job, job.order)
        silent = sorted(with_tasks.get(job.job_id, set()) - set(asked[start]))
        since |= {(start, node): before.since.get((start, node), at_s) for node in silent}
        silent = [node for node in silent if at_s - since[start, node] >= SILENT_S]
        proven = tuple(node for node in silent if plugged and node not in with_plugin)
        doubtful = tuple(node for node in silent if node not in proven)
        found += [UnboundJob(job, nodes, truth) for nodes, truth in ((proven, True), (doubtful, False)) if nodes]
    found_at = {node: at for node, at in before.found_at.items() if at_s - at < AT_ONCE_S}
    found_at |= {node: at_s for one in found if one.proven for node in one.nodes}
    return UnboundNodes(since=since, found_at=found_at, looked_at=before.looked_at), found
