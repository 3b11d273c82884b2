"""``api.md``: the HTTP API for people; the same table of operations as ``openapi.json``, and the rights.

The OpenAPI document is for programs. This page adds who may call, and an operation's own refusals, which stand in the
table, too; a test asks a real controller with a key of every role.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from moorings.api import openapi
from moorings.api.request_context import KEY_EXPIRES_HEADER
from moorings.app.documents.fields import FIELDS
from moorings.app.documents.markdown import GENERATED, anchor, code, table
from moorings.core.model.access import Role
from moorings.core.model.claims import KEY_CHARS_MAX
from moorings.wire.operations import OPERATIONS, Operation

ABOUT = f"""\
JSON over HTTP, as [openapi.json](openapi.json) describes it for programs. [Use it from a
program](../how-to/use-it-from-a-program.md) shows how.

- **Key.** `Authorization: Bearer moor_...`. Without one: 401 `auth.missing`. Answers to an expiring key carry its
  expiry time as `{KEY_EXPIRES_HEADER}`; after it: 401 `auth.expired`, for everything but renewing a lease.
- **Errors** are `application/problem+json` with a stable `code`, a `detail`, a `hint` and `requestId`. Besides those of
  an operation, every one may answer `auth.*`, `request.invalid`, `body.*`, `page.invalid`, `controller.busy` or
  `store.unavailable`; [errors](errors.md) says what to do. `retryable: true` means: the same request may succeed later.
- **Idempotency.** With `Idempotency-Key` (1 to {KEY_CHARS_MAX} printable ASCII characters) the same request gives the
  same thing, however often it is sent; with another body it is refused (`key.conflict`). Keys are kept for ever; each
  subject has its own.
- **Waiting.** `?wait=30s` holds the answer until what is waited for is there, or the time is up; the answer then tells
  how things stand.
- **Lists** come in pages: `items`, and `continue` as long as there is more; send it back as `?continue=`.
- **Strictness.** An unknown field or query value is refused. Answers may gain fields: pass over those you do not know.
- **Request ids.** What you send as `X-Request-Id` is in the answer, in the log and in every error; else one is made.

Roles: {", ".join(f"`{role}`" for role in Role)}; [give access](../how-to/give-access.md) says what each may do.
"""


def api_page() -> str:
    """The page."""
    document = openapi.document()
    text = GENERATED + "# The HTTP API\n\n" + ABOUT + "\n"
    rows = [
        (f"[`{it.method} {it.path}`](#{anchor(_title(it))})", _summary(document, it), it.callers) for it in OPERATIONS
    ]
    text += table(("request", "what", "who may"), rows)
    tags: dict[str, list[Operation[Any]]] = {}
    for operation in OPERATIONS:
        tags.setdefault(operation.tag, []).append(operation)
    about = {tag["name"]: tag["description"] for tag in document["tags"]}
    for tag, operations in tags.items():
        text += f"\n## {tag.capitalize()}\n\n{about[tag]}\n"
        text += "".join(_operation(document, operation) for operation in operations)
    text += "\n## Shapes\n\nWhat is sent (`...Request`, `...Shape`) and answered (`...Body`).\n"
    return text + "".join(_shape(name, schema) for name, schema in document["components"]["schemas"].items())


def _title(operation: Operation[Any]) -> str:
    return f"{operation.method} {operation.path}"


def _described(document: Mapping[str, Any], operation: Operation[Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = document["paths"][operation.path][operation.method.lower()]
    return found


def _summary(document: Mapping[str, Any], operation: Operation[Any]) -> str:
    return str(_described(document, operation)["summary"])


def _operation(document: Mapping[str, Any], operation: Operation[Any]) -> str:
    told = _described(document, operation)
    text = f"\n### {_title(operation)}\n\n{told['summary']}. {told.get('description', '')}".rstrip() + "\n\n"
    text += f"- Who may: {operation.callers}.\n"
    if operation.body is not None:
        text += f"- Body: [{operation.body.__name__}](#{operation.body.__name__.lower()}).\n"
    text += f"- Answer: {operation.response.status}, {operation.response.description}{_answered(operation)}.\n"
    if operation.errors:
        text += f"- Errors of its own: {', '.join(map(code, operation.errors.split()))}.\n"
    rows = [
        (code(each["name"]), each["in"], bounds(each["schema"]), each["description"])
        for each in told.get("parameters", [])
        if each["in"] != "path"
    ]
    return text + ("\n" + table(("parameter", "in", "may be", "meaning"), rows) if rows else "")


def _answered(operation: Operation[Any]) -> str:
    shape = operation.response.shape
    if shape is None:
        return ""
    return f" ({'a list of ' if operation.response.is_list else ''}[{shape.__name__}](#{shape.__name__.lower()}))"


def _shape(name: str, schema: Mapping[str, Any]) -> str:
    text = f"\n### {name}\n\n{str(schema.get('description', '')).replace('``', '`')}\n\n"
    needed, properties = schema.get("required", []), schema["properties"]
    if name.endswith("Body"):
        return text + table(("field", "is"), [(code(field), bounds(each)) for field, each in properties.items()])
    rows = [(code(field), *_field_row(name, field, field in needed, each)) for field, each in properties.items()]
    return text + table(("field", "may be", "default", "meaning"), rows)


def _field_row(shape: str, field: str, needed: bool, schema: Mapping[str, Any]) -> tuple[str, str, str]:
    allowed, meaning = FIELDS[shape, field]
    return allowed, _default(needed, schema), meaning


def _default(needed: bool, schema: Mapping[str, Any]) -> str:
    given = schema.get("default")
    if needed:
        return "required"
    if isinstance(given, dict):
        return "its fields'"
    return "none" if given in (None, []) else code(json.dumps(given))


def bounds(schema: Mapping[str, Any]) -> str:
    """The bounds of a JSON Schema, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(bounds(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(code(each) for each in schema["enum"])
    return " ".join(_words(schema))


_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}


def _words(schema: Mapping[str, Any]) -> Iterator[str]:
    kind = schema.get("type", "anything")
    if kind == "array":
        few, many = schema.get("minItems"), schema.get("maxItems")
        yield "list of" if many is None else f"list ({f'{few} to ' if few else 'at most '}{many:,}) of"
        yield bounds(schema.get("items", {}))
    elif kind == "object":
        yield "mapping of names" + (f" (at most {schema['maxProperties']:,})" if "maxProperties" in schema else "")
        inner = schema.get("patternProperties") or {"": schema.get("additionalProperties") or {}}
        told = bounds(next(iter(inner.values()))) if isinstance(next(iter(inner.values())), dict) else ""
        yield f"to {told}" if told else ""
    else:
        yield _TYPES.get(kind, kind)
    yield from _range(schema)


def _range(schema: Mapping[str, Any]) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None and abs(high) < 1e15:
        yield f"from {low:g} to {high:,.0f}"
    few, many = schema.get("minLength"), schema.get("maxLength")
    if many is not None:
        yield f"of {f'{few} to ' if few else 'at most '}{many:,} characters"
