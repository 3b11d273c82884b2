"""The definition of IPUJobs, judged here: defaults, schema and CEL rules, as a server of 1.33 or newer takes them.

The server that knows CEL takes minutes to build and tens of seconds to start; this evaluator takes neither. It knows
what the definition uses, and refuses every definition that uses more. ``test_crd_rules.py`` says the same to both and
compares their answers. The server alone knows its cost budget.

cel-python, which is Python alone, was refused: seven packages instead of one, three seconds to import, and a rule with
a word that nobody declared is found only where it runs.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import jsonschema  # type: ignore[import-untyped]  # has no types
from cel_expr_python import cel  # type: ignore[import-untyped]  # has stubs, but does not say so

Obj = dict[str, Any]

_ENV = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
_READ = re.compile(r"\b(?:self|oldSelf)\b((?:\.\w+)*)")
_OLD = re.compile(r"\boldSelf\b")
_TYPES = {
    *((name, None) for name in ("object", "array", "string", "integer", "boolean")),
    *(("integer", bits) for bits in ("int32", "int64")),
}
_SUBSCHEMAS = {"items", "additionalProperties"}
_JSON_SCHEMA = {
    *("type", "required", "enum", "minimum", "maximum", "pattern", "maxLength", "minItems", "maxItems"),
    *("format", "description"),  # date-time and int32 are not checked here
}
_KNOWN = {
    *_JSON_SCHEMA,
    *_SUBSCHEMAS,
    *("properties", "default", "x-kubernetes-validations", "x-kubernetes-int-or-string"),
    *("x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}
_METADATA = {"type": "object", "properties": {"name": {"type": "string"}}}  # as much of it as a rule may read


class RefusedError(Exception):
    """An IPUJob is refused; ``causes`` has a line for each reason, each with its field in front, in order."""

    def __init__(self, causes: Iterable[str]) -> None:
        self.causes = tuple(sorted(causes))
        super().__init__("\n".join(self.causes))


class Judge(Protocol):
    """Takes or refuses IPUJobs. Each call returns the object as it is afterwards, or raises RefusedError."""

    def create(self, job: Obj) -> Obj:
        """Create it."""

    def change(self, made: Obj, spec: Obj) -> Obj:
        """Merge into its ``spec``; None takes a field away."""

    def change_status(self, made: Obj, status: Obj) -> Obj:
        """Merge into its ``status``, by the subresource."""

    def scale(self, made: Obj, replicas: int) -> Obj:
        """Set the replicas of its scale."""


class Evaluator:
    """A Judge that needs no server.

    Raises:
        AssertionError: the definition uses something that is not known here, or an object breaks its schema.
    """

    def __init__(self, definition: Mapping[str, Any]) -> None:
        (version,) = definition["spec"]["versions"]
        self._replicas = version["subresources"]["scale"]["specReplicasPath"].split(".")[2:]
        self._schema = version["schema"]["openAPIV3Schema"]
        assert version["subresources"]["status"] == {}
        assert len(self._replicas) == 1
        assert "metadata" in self._schema["properties"]
        _check_schema(self._schema)
        self._root = {**self._schema, "properties": {**self._schema["properties"], "metadata": _METADATA}}
        self._programs = {rule: _ENV.compile(rule) for rule in _check_rules(self._root)}
        self._validator = jsonschema.validators.extend(
            jsonschema.Draft202012Validator, {"x-kubernetes-int-or-string": _check_int_or_string}
        )(self._schema)

    def create(self, job: Obj) -> Obj:
        return self._judge({name: value for name, value in job.items() if name != "status"}, None)

    def change(self, made: Obj, spec: Obj) -> Obj:
        return self._judge(_merge(made, {"spec": spec}), made)

    def change_status(self, made: Obj, status: Obj) -> Obj:
        return self._judge(_merge(made, {"status": status}), made)

    def scale(self, made: Obj, replicas: int) -> Obj:
        return self.change(made, {self._replicas[0]: replicas})

    def _judge(self, new: Obj, old: Obj | None) -> Obj:
        new = _complete(self._schema, copy.deepcopy(new))
        broken = [error.message for error in self._validator.iter_errors(new)]
        assert not broken, f"breaks the schema, which test_crd.py is about: {broken}"
        if causes := list(self._find_causes(self._root, "", new, old)):
            raise RefusedError(causes)
        return new

    def _find_causes(self, schema: Obj, path: str, new: Any, old: Any) -> Iterator[str]:
        for rule in schema.get("x-kubernetes-validations", ()):
            compares = bool(_OLD.search(rule["rule"]))
            if (compares and old is None) or self._holds(rule["rule"], new, old):
                continue
            if not compares and new == old:
                continue  # what broke a rule before may stay as it is
            value = "" if schema.get("type") in ("object", "array") else f" {json.dumps(new, ensure_ascii=False)}:"
            yield f"{path or '<nil>'}: Invalid value:{value} {rule['message']}"
        for name, part in schema.get("properties", {}).items():
            if isinstance(new, dict) and name in new:
                before = old.get(name) if isinstance(old, dict) else None
                yield from self._find_causes(part, f"{path}.{name}".lstrip("."), new[name], before)

    def _holds(self, rule: str, new: Any, old: Any) -> bool:
        answer = self._programs[rule].eval(data={"self": new, "oldSelf": old}).value()
        assert isinstance(answer, bool), f"{rule}: {answer}"
        return answer


def _check_schema(schema: Mapping[str, Any], *, is_single: bool = True) -> None:
    """Refuse what is not known here; rules may stand where there is a single value, and not at what a list has."""
    assert schema.keys() <= _KNOWN, f"not known: {schema.keys() - _KNOWN}"
    for rule in schema.get("x-kubernetes-validations", ()):
        assert is_single, f"not known: a rule in a list or a map: {rule}"
        assert rule.keys() == {"rule", "message"}, f"not known: {rule}"
        assert "x-kubernetes-list-type" not in schema, f"not known: equality of such lists: {rule}"
    for part in schema.get("properties", {}).values():
        _check_schema(part, is_single=is_single)
    for name in _SUBSCHEMAS & schema.keys():
        _check_schema(schema[name], is_single=False)


def _check_rules(schema: Mapping[str, Any]) -> Iterator[str]:
    """The rules; each reads only fields that the schema has, with types that are here what they are on a server."""
    for each in schema.get("x-kubernetes-validations", ()):
        for path in _READ.findall(each["rule"]):
            found = schema
            for name in path.split(".")[1:]:
                assert name in found.get("properties", {}), f"not known: {path[1:]} in {each['rule']}"
                found = found["properties"][name]
            kind = "integer" if "x-kubernetes-int-or-string" in found else found.get("type")
            assert (kind, found.get("format")) in _TYPES, f"not known: the type of {path[1:]} in {each['rule']}"
        yield each["rule"]
    for part in schema.get("properties", {}).values():
        yield from _check_rules(part)


def _check_int_or_string(validator: object, is_one: bool, value: Any, schema: object) -> Iterator[Exception]:
    if is_one and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield jsonschema.ValidationError(f"{value!r} is neither a number nor a string")


def _complete(schema: Mapping[str, Any], value: Any) -> Any:
    """Put the defaults in. A server drops what the schema does not have; it is refused here."""
    parts = schema.get("properties", {})
    if isinstance(value, dict) and schema.get("type") == "object":
        for name, part in parts.items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                value[name] = _complete(part, value[name])
        is_open = "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema
        assert is_open or not parts or value.keys() <= parts.keys(), f"unknown fields: {value.keys() - parts.keys()}"
    return [_complete(schema["items"], each) for each in value] if isinstance(value, list) else value


def _merge(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        merged[name] = _merge(merged.get(name), part)
    return {name: part for name, part in merged.items() if name not in patch or patch[name] is not None}
