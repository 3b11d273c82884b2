"""Node requirements of IPU jobs, and the CPUs that jobs without IPUs leave.

Slurm checks licenses first, so it says ``Licenses`` of a job also when its nodes are taken. While IPU jobs wait, both
tables are listed every few seconds, in narrow columns. They are listed one right after the other, because the counts of
one are subtracted from the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.model.errors import MooringsError
from moorings.slurm.fixed_width import FixedColumn, build_format, expand_hostlist, is_whole, parse_rows, value_or_empty
from moorings.slurm.formats import LICENSE

_NEEDS = (
    FixedColumn("job_id", "JobID", 12),
    FixedColumn("nodes", "NodeList", 512),
    FixedColumn("required", "ReqNodes", 256),
    FixedColumn("cpus", "NumCPUs", 12),
    FixedColumn("nodes_max", "NumNodes", 12),
    FixedColumn("features", "Feature", 128),
    FixedColumn("memory", "MinMemory", 16),
)
_CPUS = (
    FixedColumn("name", "NodeList", 128),
    FixedColumn("cpus", "CPUsState", 48),
    FixedColumn("shared", "OverSubscribe", 24),
)
_WIDTH = {column.name: column.width for column in _NEEDS}
_NUMBER = re.compile(r"[0-9]{1,9}")
_STATES = re.compile(r"([0-9]{1,9})/[0-9]{1,9}/([0-9]{1,9})/([0-9]{1,9})")  # allocated, idle, other, total
_NOT_SHARED = ("NO", "EXCLUSIVE")


@dataclass(frozen=True, slots=True)
class JobNodeRequirements:
    """A job's requirements of nodes.

    Attributes:
        required: the nodes in its request; none: any node will do, or the list was cut.
        cpus: minimum number of CPUs in all; None: Slurm did not say.
        nodes_max: maximum number of nodes; None: Slurm did not say.
        fingerprint: the whole text of Slurm, to detect a change.
    """

    required: tuple[str, ...]
    cpus: int | None
    nodes_max: int | None
    fingerprint: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """The requirements of all IPU jobs.

    Attributes:
        jobs: by job id.
        left: by node, the CPUs that IPU jobs have there or could get; 0 for a node that is down or drained. Nodes with
            an unknown count are missing.
    """

    jobs: Mapping[int, JobNodeRequirements] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)


def build_needs() -> list[str]:
    """List the requirements of each IPU job that has not ended, and its nodes."""
    return ["squeue", "--noheader", "--all", f"--licenses={LICENSE}", f"--Format={build_format(_NEEDS)}"]


def build_cpus() -> list[str]:
    """List the nodes' CPUs."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--Format={build_format(_CPUS)}"]


def parse_needs(jobs: bytes, cpus: bytes) -> NodeRequirements:
    """Return the requirements in the output of both commands.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    needs: dict[int, JobNodeRequirements] = {}
    ours: Counter[str] = Counter()
    is_known = True
    for row in parse_rows(jobs, _NEEDS, source="squeue"):
        number, nodes, required = row.pop("job_id"), row.pop("nodes"), row["required"]
        if _NUMBER.fullmatch(number) is None:
            raise MooringsError("slurm.unreadable", f"squeue lists a job {number[:20]!r}")
        named = expand_hostlist(value_or_empty(required)) if is_whole(required, _WIDTH["required"]) else ()
        job = JobNodeRequirements(named, _count(row["cpus"]), _count(row["nodes_max"]), tuple(row.values()))
        needs[int(number)] = job
        if not is_whole(nodes, _WIDTH["nodes"]) or job.cpus is None:
            is_known = False
            continue
        for node in expand_hostlist(value_or_empty(nodes)):
            ours[node] += job.cpus  # all on each of several nodes: a count too high only means that nothing is withheld
    return NodeRequirements(needs, _cpus_left(cpus, ours) if is_known else {})


def _cpus_left(cpus: bytes, ours: Mapping[str, int]) -> dict[str, int]:
    """Return the CPUs of each node without those of jobs without IPUs; a node with shared CPUs has no count."""
    left: dict[str, int] = {}
    unknown = set()
    for row in parse_rows(cpus, _CPUS, source="sinfo"):
        name, found = row["name"], _STATES.fullmatch(row["cpus"])
        if found is None or row["shared"] not in _NOT_SHARED:
            unknown.add(name)
            continue
        taken, away, total = map(int, found.groups())
        left[name] = total - away - max(taken - ours.get(name, 0), 0)
    return {name: count for name, count in left.items() if name not in unknown}


def _count(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
