"""Nodes as ``scontrol`` shows them: ``sinfo`` does not tell when a slurmd was started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moorings.core.errors import MooringsError
from moorings.core.instants import Timestamp
from moorings.slurm.formats import join_names, parse_instant
from moorings.slurm.listings import value_or_empty

# The words of a reason are an admin's; they stand at the end of a line, so the first of a field counts.
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
        host: the name of its machine.
        state: as ``IDLE``, ``MIXED+DRAIN`` or ``DOWN*+DRAIN``.
        reason: why it is drained or down, with who said so.
        features: those that slurm.conf gives it.
        started: when its slurmd was started, by the node's clock, in whole seconds; None: slurmctld has not been told.
    """

    name: str
    host: str
    state: str
    reason: str
    features: tuple[str, ...]
    started: Timestamp | None

    @property
    def names(self) -> frozenset[str]:
        """All that its slurmd may call it: NodeName, the name of its machine, and both without their domain."""
        return frozenset({self.name, self.host, self.name.partition(".")[0], self.host.partition(".")[0]})

    @property
    def is_drained(self) -> bool:
        """Whether it gets no new jobs until somebody takes it back."""
        return "DRAIN" in self.state

    @property
    def is_off(self) -> bool:
        """Whether it is switched off to save power, or about to be switched on or off."""
        return any(word in self.state for word in _OFF)


def build_show_nodes() -> list[str]:
    """Shows all nodes, one a line."""
    return ["scontrol", "show", "node", "--oneliner"]


def parse_show_nodes(answer: bytes) -> list[NodeRecord]:
    """The nodes.

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
                host=fields.get("NodeHostName", name),  # one in the cloud has none while it is off
                state=fields["State"],
                reason=reason[1].strip() if reason else "",
                features=tuple(filter(None, features.split(","))),
                started=parse_instant(fields.get("SlurmdStartTime", "")),
            )
        except KeyError as error:
            told = f"scontrol tells of a node what cannot be read: {line[:80]!r}"
            hint = "is this a release of Slurm that Moorings knows (22.05 to 26.05)?"
            raise MooringsError("slurm.unreadable", told, hint=hint) from error
        found.append(record)
    return found


def build_undrain(nodes: Sequence[str]) -> list[str]:
    """Takes nodes back that were drained; one that is down stays down.

    Raises:
        MooringsError: ``name.invalid``.
    """
    return ["scontrol", "update", f"nodename={join_names(nodes)}", "state=undrain"]
