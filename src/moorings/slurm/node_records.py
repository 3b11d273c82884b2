"""Nodes as ``scontrol`` shows them, because ``sinfo`` does not show the start time of a slurmd."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.slurm.fixed_width import value_or_empty
from moorings.slurm.formats import join_names, parse_instant

# A reason is an admin's text at the end of a line, so the first of each field counts.
_FIELD = re.compile(r"(?:^| )(NodeName|NodeHostName|State|AvailableFeatures|SlurmdStartTime)=(\S*)")
_REASON = re.compile(r" Reason=(.*)")
_OFF = (
    "POWER",
    "FUTURE",
)  # POWERED_DOWN, POWERING_DOWN, POWERING_UP, POWER_DOWN; CLOUD stands beside each of them, and alone


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node.

    Attributes:
        name: its NodeName.
        host: its machine's name.
        state: as ``IDLE``, ``MIXED+DRAIN`` or ``DOWN*+DRAIN``.
        reason: why it is drained or down, and the author.
        features: its features in slurm.conf.
        started: start time of its slurmd by the node's clock, in whole seconds; None: slurmctld does not know it.
    """

    name: str
    host: str
    state: str
    reason: str
    features: tuple[str, ...]
    started: Timestamp | None

    @property
    def names(self) -> frozenset[str]:
        """Return all names its slurmd may use: NodeName, its machine's name, and both without their domain."""
        return frozenset({self.name, self.host, self.name.partition(".")[0], self.host.partition(".")[0]})

    @property
    def is_drained(self) -> bool:
        """Whether it gets no new jobs until an admin resumes it."""
        return "DRAIN" in self.state

    @property
    def is_off(self) -> bool:
        """Whether it is powered off to save power, or about to be powered off or on."""
        return any(word in self.state for word in _OFF)


def build_show_nodes() -> list[str]:
    """Show all nodes, one a line."""
    return ["scontrol", "show", "node", "--oneliner"]


def parse_show_nodes(answer: bytes) -> list[NodeRecord]:
    """Return the nodes.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    found = []
    for line in answer.decode("utf-8", "replace").splitlines():
        if not line.strip() or line.startswith("No nodes in the system"):
            continue
        fields: dict[str, str] = {}
        for match in _FIELD.finditer(line):
            fields.setdefault(match[1], match[2])
        reason = _REASON.search(line)
        try:
            name, features = fields["NodeName"], value_or_empty(fields["AvailableFeatures"])
            record = NodeRecord(
                name=name,
                host=fields.get("NodeHostName", name),  # a cloud node has none while it is off
                state=fields["State"],
                reason=reason[1].strip() if reason else "",
                features=tuple(filter(None, features.split(","))),
                started=parse_instant(fields.get("SlurmdStartTime", "")),
            )
        except KeyError as error:
            problem = f"scontrol's line of a node cannot be read: {line[:80]!r}"
            hint = "is this a release of Slurm that Moorings knows (22.05 to 26.05)?"
            raise MooringsError("slurm.unreadable", problem, hint=hint) from error
        found.append(record)
    return found


def build_undrain(nodes: Sequence[str]) -> list[str]:
    """Undrain nodes; a node that is down stays down.

    Raises:
        MooringsError: ``name.invalid``.
    """
    return ["scontrol", "update", f"nodename={join_names(nodes)}", "state=undrain"]
