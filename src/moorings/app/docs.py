"""Writes the reference pages that are made from the code: ``python -m moorings.app.docs`` (``make docs``).

States, errors and exit codes from their tables; events, settings, the command line, the OpenAPI document.
``make test`` fails if a committed page is not what the code says.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from moorings.api import openapi
from moorings.app.settings import Settings
from moorings.cli.main import root
from moorings.cli.reference import build_reference
from moorings.core import claims, devices, partitions
from moorings.core.events import EVENTS
from moorings.core.machines import ends
from moorings.wire.errors import ERRORS, Exit
from moorings.workloads import runs

FOLDER = Path("docs/reference")
_MADE = "<!-- Made by `make docs` from the code; do not edit. -->\n\n"


def main() -> int:
    """Write every page, below the current folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = {
        "states.md": states_page(),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "settings.md": settings_page(),
        "cli.md": build_reference(root),
        "openapi.json": openapi.text(),
    }
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def states_page() -> str:
    """Every state machine: a diagram, and what is true in each state."""
    machines: list[tuple[str, ModuleType, type[StrEnum], Mapping[StrEnum, Mapping[StrEnum, StrEnum]]]] = [
        ("Claims", claims, claims.ClaimState, claims.NEXT),  # type: ignore[list-item]
        ("Partitions", partitions, partitions.PartitionState, partitions.NEXT),  # type: ignore[list-item]
        ("Devices", devices, devices.DeviceState, devices.NEXT),  # type: ignore[list-item]
        ("Runs", runs, runs.RunState, runs.NEXT),  # type: ignore[list-item]
    ]
    text = _MADE + "# States\n\nOnly these moves exist; any other is refused with the object's story.\n"
    for title, module, states, table in machines:
        said = _comments(module, states)
        text += f"\n## {title}\n\n```mermaid\nstateDiagram-v2\n"
        for state, moves in table.items():
            for event, following in moves.items():
                text += f"    {state} --> {following}: {event}\n"
        text += "".join(f"    {state} --> [*]\n" for state in states if state in ends(table))
        text += "```\n\n| state | what is true |\n|---|---|\n"
        text += "".join(f"| `{state}` | {said[state.name]} |\n" for state in states)
    return text


def _comments(module: ModuleType, states: type[StrEnum]) -> dict[str, str]:
    """The comment behind each state in the source."""
    lines = inspect.getsource(module).splitlines()
    found: dict[str, str] = {}
    for state in states:
        line = next(line for line in lines if line.strip().startswith(f'{state.name} = "'))
        found[state.name] = line.partition("#")[2].strip()
    return found


def errors_page() -> str:
    """Every error code, and every exit code."""
    text = _MADE + "# Errors and exit codes\n\n"
    text += "Errors of the API are `application/problem+json` with these codes; `moor` prints `error:` and `hint:`.\n\n"
    text += "| code | means | HTTP | exit |\n|---|---|---|---|\n"
    text += "".join(f"| `{code}` | {kind.title} | {kind.status} | {kind.exit} |\n" for code, kind in ERRORS.items())
    text += "\n## Exit codes of `moor`\n\n| exit | means |\n|---|---|\n"
    text += "".join(f"| {code.value} | {_EXITS[code]} |\n" for code in Exit)
    text += "| 128+N | killed by signal N |\n\n`moor run` returns the exit code of the job unchanged.\n"
    return text


_EXITS = {
    Exit.OK: "success (an empty list is a success)",
    Exit.FAILED: "the operation, or the job, failed",
    Exit.USAGE: "the command or the request was wrong",
    Exit.NOT_FOUND: "there is no such thing",
    Exit.DENIED: "not allowed",
    Exit.CONFLICT: "somebody or something else is in the way",
    Exit.NO_ROOM: "there is no room now; try again later, or wait",
    Exit.UNREACHABLE: "the controller, or what it needs, does not answer; try again",
    Exit.FINDINGS: "`moor doctor` found problems",
    Exit.TIMEOUT: "what was waited for did not come in time",
}


def events_page() -> str:
    """Every event."""
    text = _MADE + "# Events\n\nRows of the event log (`moor events`, `GET /v1/events`), in commit order.\n\n"
    return text + "| event | when |\n|---|---|\n" + "".join(f"| `{name}` | {when} |\n" for name, when in EVENTS.items())


def settings_page() -> str:
    """Every setting of the controller."""
    said = _field_docs(Settings)
    text = _MADE + "# Settings of the controller\n\n"
    text += "A flag wins over the environment, that over `/etc/moorings/controller.toml` (or `--config FILE`).\n\n"
    text += "| setting | flag | environment | default | meaning |\n|---|---|---|---|---|\n"
    for item in fields(Settings):
        default = "see right" if item.default is MISSING else f"`{item.default}`"
        flag, variable = (f"`{item.metadata[key]}`" if key in item.metadata else "" for key in ("flag", "environment"))
        text += f"| `{item.name}` | {flag} | {variable} | {default} | {said[item.name]} |\n"
    return text


def _field_docs(cls: type) -> dict[str, str]:
    """The text under each field."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field_node, text_node in zip(body.body, body.body[1:], strict=False):
        if isinstance(field_node, ast.AnnAssign) and isinstance(text_node, ast.Expr):
            assert isinstance(field_node.target, ast.Name)
            assert isinstance(text_node.value, ast.Constant)
            found[field_node.target.id] = " ".join(str(text_node.value.value).split())
    return found


if __name__ == "__main__":
    sys.exit(main())
