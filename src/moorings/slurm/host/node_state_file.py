"""The agent's saved state of nodes' slurmds: a restarted agent resumes from it, and the doctor reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.plugin_nodes import LastHeartbeat, SlurmdStart
from moorings.slurm.host.state_files import replace_file

FILE = "moorings_nodes"  # in StateSaveLocation, beside the instance's id
FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The saved state.

    Attributes:
        hellos: the last report of each slurmd, by the name in it; its time is not saved.
        starts: by node, the last observed start of its slurmd.
        drained: by node, the SlurmdStartTime for which it was drained.
    """

    hellos: Mapping[str, LastHeartbeat] = field(default_factory=dict)
    starts: Mapping[str, SlurmdStart] = field(default_factory=dict)
    drained: Mapping[str, int] = field(default_factory=dict)


def encode_node_state(notes: NodeState) -> bytes:
    """Return the file's content: a repeated report does not change it."""
    return json.dumps(
        {
            "hellos": {name: [hello.run, hello.loaded_s] for name, hello in notes.hellos.items()},
            "starts": {
                name: [start.started_s, start.seen_s, start.before_s, start.is_confirmed]
                for name, start in notes.starts.items()
            },
            "drained": dict(notes.drained),
        }
    ).encode()


def save_notes(file: Path, content: bytes) -> None:
    """Write the file, whole or not at all.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    try:
        replace_file(file, content)
    except OSError as error:
        problem = f"{file} cannot be written: {error.strerror}"
        raise MooringsError("slurm.unreadable", problem, hint="see the disk of StateSaveLocation") from error


def load_node_state(file: Path | None) -> NodeState:
    """Return the saved state; empty without a file.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    if file is None:
        return NodeState()
    try:
        with file.open("rb") as stream:
            found = json.loads(stream.read(FILE_BYTES_MAX))
        return NodeState(
            hellos={
                str(name): LastHeartbeat(str(run), float(at_s), 0.0) for name, (run, at_s) in found["hellos"].items()
            },
            starts={
                str(name): SlurmdStart(
                    int(number), float(seen_s), None if before_s is None else float(before_s), bool(sure)
                )
                for name, (number, seen_s, before_s, sure) in found["starts"].items()
            },
            drained={str(name): int(number) for name, number in found["drained"].items()},
        )
    except FileNotFoundError:
        return NodeState()
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        hint = "the agent writes a new one: each slurmd with the plugin reports again within a minute or two"
        raise MooringsError("slurm.unreadable", f"{file} cannot be read: {error}", hint=hint) from error
