"""``api.md``: the HTTP API for people; the same table of operations as ``openapi.json``, and the rights.

The OpenAPI document is for programs. This page adds the roles that may call, and an operation's own refusals; a test
asks a real controller with a key of every role.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from moorings.api import openapi
from moorings.api.calls import KEY_EXPIRES_HEADER
from moorings.api.operations import Operation
from moorings.api.routes import OPERATIONS
from moorings.app.documents.fields import FIELDS
from moorings.app.documents.markdown import GENERATED, anchor, code, table
from moorings.core.access import Role
from moorings.core.claims import KEY_CHARS_MAX

EVERYBODY = "everybody, without a key"
READERS = "every key"
AGENTS = "the agent whose key acts for that queue, and admins"
HOLDERS = "whoever may act for its owner; admins"
STARTERS = "the subject that started it; admins"
ADMINS = "admins"

# By the serving function: the roles that may call it, and its own errors.
ACCESS: dict[str, tuple[str, tuple[str, ...]]] = {
    "list_claims": (READERS, ("page.invalid", "pool.unknown")),
    "create_claim": (
        "admins, users and agents, for owners that their key may act for",
        (
            *("owner.denied", "owner.invalid", "name.invalid", "claim.name_taken", "claim.no_room", "claim.too_large"),
            *("claim.size_not_allowed", "claim.gcds_invalid", "kind.unknown", "pool.unknown", "key.conflict"),
            "claim.archived",
            *("priority.denied", "project.unknown", "project.not_member", "project.limit", "quota.waiting"),
        ),
    ),
    "get_claim": (READERS, ("claim.unknown",)),
    "release_claim": (HOLDERS, ("claim.unknown", "claim.held", "claim.held_by_run", "owner.denied")),
    "renew_claim": (HOLDERS, ("claim.unknown", "claim.no_lease", "owner.denied")),
    "yield_claim": (
        HOLDERS,
        ("claim.unknown", "claim.ended", "claim.not_asked", "claim.held_by_run", "owner.denied"),
    ),
    "checkpoint_claim": (HOLDERS, ("claim.unknown", "claim.invalid", "owner.denied")),
    "explain_claim": (READERS, ("claim.unknown", "forecast.busy")),
    "get_binding": (HOLDERS, ("claim.unknown", "claim.not_ready", "owner.denied", "driver.unavailable")),
    "list_queues": (READERS, ("page.invalid",)),
    "tell_queue": (AGENTS, ("queue.invalid", "queue.taken", "owner.invalid", "owner.denied")),
    "get_queue": (AGENTS, ("queue.unknown", "queue.taken", "owner.denied")),
    "list_runs": (READERS, ("page.invalid",)),
    "create_run": (
        "admins and users",
        (
            *("auth.denied", "job.invalid", "engine.unknown", "engine.rejected", "claim.too_large", "key.conflict"),
            *("label.invalid", "priority.denied", "claim.other_shape", "claim.held_by_run", "run.archived"),
            *("project.unknown", "project.not_member", "project.limit", "quota.waiting"),
        ),
    ),
    "get_run": (READERS, ("run.unknown",)),
    "label_run": (STARTERS, ("run.unknown", "run.ended", "label.invalid", "owner.denied")),
    "prioritise_run": (
        f"{STARTERS}; P0 of an appliance only admins",
        ("run.unknown", "run.ended", "run.queued_elsewhere", "priority.denied", "owner.denied"),
    ),
    "list_appliance_jobs": (READERS, ("page.invalid",)),
    "cancel_run": (STARTERS, ("run.unknown", "owner.denied")),
    "get_logs": (STARTERS, ("run.unknown", "run.not_running", "owner.denied")),
    "list_partitions": (READERS, ("page.invalid", "pool.unknown")),
    "create_partition": (
        "admins and users, for themselves",
        ("owner.denied", "name.invalid", "claim.name_taken", "claim.too_large", "key.conflict"),
    ),
    "get_partition": (READERS, ("partition.unknown",)),
    "delete_partition": (HOLDERS, ("partition.unknown", "claim.held_by_run", "owner.denied")),
    "reset_partition": (HOLDERS, ("partition.unknown", "partition.not_active", "owner.denied")),
    "list_events": (READERS, ("page.invalid", "events.gone", "controller.busy")),
    "list_pools": (READERS, ("page.invalid",)),
    "get_pool": (READERS, ("pool.unknown",)),
    "get_capacity": (READERS, ("pool.unknown", "page.invalid")),
    "list_devices": (READERS, ("page.invalid", "pool.unknown")),
    "get_device": (READERS, ("device.unknown",)),
    "drain_device": (ADMINS, ("device.unknown", "auth.denied")),
    "resume_device": (ADMINS, ("device.unknown", "auth.denied", "state.illegal_move")),
    "list_projects": (f"{READERS}; who the members are only admins", ("page.invalid",)),
    "get_project": (f"{READERS}; who the members are only admins", ("project.unknown",)),
    "set_project": (
        ADMINS,
        (
            *("auth.denied", "project.invalid", "project.unknown", "project.not_feasible", "project.exists"),
            *("project.changed", "pool.unknown"),
        ),
    ),
    "delete_project": (ADMINS, ("auth.denied", "project.unknown", "project.has_children", "project.in_use")),
    "list_quotas": (READERS, ("page.invalid",)),
    "estimate": (
        READERS,
        (
            *("claim.size_not_allowed", "claim.too_large", "kind.unknown", "pool.unknown", "project.unknown"),
            "forecast.busy",
        ),
    ),
    "what_if": (READERS, ("policy.invalid", "forecast.busy")),
    "defragment": (
        f"{ADMINS}; with `dryRun` also users, agents and viewers",
        (
            *("auth.denied", "claim.unknown", "claim.held", "claim.size_not_allowed", "pool.unknown"),
            *("room.is_free", "room.not_found", "room.too_costly"),
        ),
    ),
    "list_keys": (ADMINS, ("auth.denied",)),
    "create_key": (ADMINS, ("auth.denied", "key.invalid", "owner.invalid")),
    "rotate_key": (
        f"{ADMINS}; everybody the key that is shown",
        ("auth.denied", "key.invalid", "key.unknown", "key.replaced"),
    ),
    "revoke_key": (ADMINS, ("auth.denied", "key.unknown")),
    "get_findings": (ADMINS, ("auth.denied",)),
    "get_health": (EVERYBODY, ()),
    "get_liveness": (EVERYBODY, ()),
    "get_readiness": (EVERYBODY, ("store.unavailable", "driver.unavailable")),
    "get_version": (EVERYBODY, ()),
    "get_document": (EVERYBODY, ()),
    "get_metrics": (EVERYBODY, ()),
}

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
        (f"[`{it.method} {it.path}`](#{anchor(_title(it))})", _summary(document, it), ACCESS[it.serve.__name__][0])
        for it in OPERATIONS
    ]
    text += table(("request", "what", "who may"), rows)
    tags: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        tags.setdefault(operation.tag, []).append(operation)
    about = {tag["name"]: tag["description"] for tag in document["tags"]}
    for tag, operations in tags.items():
        text += f"\n## {tag.capitalize()}\n\n{about[tag]}\n"
        text += "".join(_operation(document, operation) for operation in operations)
    text += "\n## Shapes\n\nWhat is sent (`...Request`, `...Shape`) and answered (`...Body`).\n"
    return text + "".join(_shape(name, schema) for name, schema in document["components"]["schemas"].items())


def _title(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def _described(document: Mapping[str, Any], operation: Operation) -> Mapping[str, Any]:
    found: Mapping[str, Any] = document["paths"][operation.path][operation.method.lower()]
    return found


def _summary(document: Mapping[str, Any], operation: Operation) -> str:
    return str(_described(document, operation)["summary"])


def _operation(document: Mapping[str, Any], operation: Operation) -> str:
    told = _described(document, operation)
    who, errors = ACCESS[operation.serve.__name__]
    text = f"\n### {_title(operation)}\n\n{told['summary']}. {told.get('description', '')}".rstrip() + "\n\n"
    text += f"- Who may: {who}.\n"
    if operation.body is not None:
        text += f"- Body: [{operation.body.__name__}](#{operation.body.__name__.lower()}).\n"
    text += f"- Answer: {operation.answer.status}, {operation.answer.description}{_answered(operation)}.\n"
    if errors:
        text += f"- Errors of its own: {', '.join(map(code, errors))}.\n"
    rows = [
        (code(each["name"]), each["in"], bounds(each["schema"]), each["description"])
        for each in told.get("parameters", [])
        if each["in"] != "path"
    ]
    return text + ("\n" + table(("parameter", "in", "may be", "meaning"), rows) if rows else "")


def _answered(operation: Operation) -> str:
    shapes = [f"[{shape.__name__}](#{shape.__name__.lower()})" for shape in operation.answer.shapes]
    if not shapes:
        return ""
    return f" ({'a list of ' if operation.answer.kind.endswith('List') else ''}{', '.join(shapes)})"


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
