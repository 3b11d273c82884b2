"""``states.md``: every state machine, as a diagram, as text, and with the meaning of each state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import StrEnum
from types import ModuleType

from moorings.app.documents.markdown import GENERATED, code, table
from moorings.core.model import claims, devices, partitions
from moorings.core.model.state_machine import terminal_states
from moorings.workloads import runs

_Moves = Mapping[StrEnum, Mapping[StrEnum, StrEnum]]

_MACHINES: list[tuple[str, ModuleType, type[StrEnum], _Moves]] = [
    ("Claims", claims, claims.ClaimState, claims.NEXT),  # type: ignore[list-item] # a mapping's key is invariant
    ("Partitions", partitions, partitions.PartitionState, partitions.NEXT),  # type: ignore[list-item] # as above
    ("Devices", devices, devices.DeviceState, devices.NEXT),  # type: ignore[list-item] # as above
    ("Runs", runs, runs.RunState, runs.NEXT),  # type: ignore[list-item] # as above
]


def states_page() -> str:
    """The page."""
    text = GENERATED + "# States\n\nOnly these moves exist; any other is refused with the object's history.\n"
    for title, module, states, moves in _MACHINES:
        text += f"\n## {title}\n\n```mermaid\n{_diagram(states, moves)}```\n\n"
        text += f"The same as text:\n\n```text\n{_picture(states, moves)}```\n\n"
        said = _comments(module, states)
        text += table(("state", "what is true"), [(code(state), said[state.name]) for state in states])
    return text


def _diagram(states: type[StrEnum], moves: _Moves) -> str:
    lines = ["stateDiagram-v2"]
    lines += [f"    {state} --> {to}: {event}" for state, row in moves.items() for event, to in row.items()]
    lines += [f"    {state} --> [*]" for state in states if state in terminal_states(moves)]
    return "\n".join(lines) + "\n"


def _picture(states: type[StrEnum], moves: _Moves) -> str:
    """One line for each transition, under its source state; states without transitions have ended."""
    width = max(len(state) for state in states)
    longest = max(len(event) for row in moves.values() for event in row)
    lines = []
    for state in states:
        row = moves.get(state, {})
        if not row:
            lines.append(f"{state:<{width}}  ({'ended' if state in moves else 'never stored'})")
        for number, (event, to) in enumerate(row.items()):
            lines.append(f"{state if number == 0 else '':<{width}}  --{event:-<{longest}}--> {to}")
    return "\n".join(lines) + "\n"


def _comments(module: ModuleType, states: type[StrEnum]) -> dict[str, str]:
    """The comment after each state in the source."""
    lines = inspect.getsource(module).splitlines()
    found: dict[str, str] = {}
    for state in states:
        line = next(line for line in lines if line.strip().startswith(f'{state.name} = "'))
        found[state.name] = line.partition("#")[2].strip()
    return found
