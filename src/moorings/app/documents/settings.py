"""``settings.md`` and ``events.md``: the tables of settings and of events, as pages."""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, fields

from moorings.app.documents.markdown import GENERATED, code, table
from moorings.app.settings import DEFAULT_CONFIG, Settings
from moorings.core.model.events import EVENTS


def settings_page() -> str:
    """Every setting of the controller."""
    said = field_docs(Settings)
    text = GENERATED + "# Settings of the controller\n\n"
    text += f"A flag wins over the environment, that over `{DEFAULT_CONFIG}` (or `--config FILE`).\n\n"
    rows = []
    for item in fields(Settings):
        default = "see right" if item.default in (MISSING, None, "") else code(item.default)
        flag, variable = (code(item.metadata.get(key, "")) for key in ("flag", "environment"))
        rows.append((code(item.name), flag, variable, default, said[item.name]))
    return text + table(("setting", "flag", "environment", "default", "meaning"), rows)


def field_docs(cls: type) -> dict[str, str]:
    """The text under each field of a dataclass, by the field's name."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field_node, text_node in zip(body.body, body.body[1:], strict=False):
        if isinstance(field_node, ast.AnnAssign) and isinstance(text_node, ast.Expr):
            assert isinstance(field_node.target, ast.Name)
            assert isinstance(text_node.value, ast.Constant)
            text = " ".join(str(text_node.value.value).split())
            found[field_node.target.id] = text.replace("``", "`")
    return found


def events_page() -> str:
    """Every event."""
    text = GENERATED + "# Events\n\nRows of the event log (`moor events`, `GET /v1/events`), in commit order.\n"
    text += "[The event log and replay](../explanation/event-log.md) explains its use.\n\n"
    return text + table(("event", "when"), [(code(name), when) for name, when in EVENTS.items()])
