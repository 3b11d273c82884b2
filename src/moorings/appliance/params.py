"""Strict parsing of a params file: every key known, every type right, every error with its file and line.

The schema of a section is a dataclass, and values are read from YAML's nodes, which have line numbers, not from a YAML
library's values: there ``1e-4`` is a string, ``no`` is False, and the first of two equal keys is lost.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import yaml

from moorings.core.model.errors import MooringsError

T = TypeVar("T")

BYTES_MAX: Final = 256 << 10
NODES_MAX: Final = 100_000  # aliases may expand to very many
SHOWN_CHARS_MAX: Final = 60

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]{0,17})")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)?\.?[0-9_]*([eE][-+]?[0-9]{1,4})?")
_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
_TAG = "tag:yaml.org,2002:"


class ParamsFile:
    """A params file: read its sections with ``section``, and then call ``finish``.

    Args:
        source: the file's name, as given.
        root: its top mapping, or None if the file is empty.
    """

    def __init__(self, source: str, root: yaml.MappingNode | None) -> None:
        self.source = source
        self._root = root
        self._keys = self._pairs(root) if root is not None else {}
        self._known: set[str] = set()
        self._nodes = 0

    def section(self, name: str, schema: type[T]) -> T:
        """The section as its dataclass: with defaults, types checked, ``check()`` called.

        Raises:
            MooringsError: ``params.invalid``, with the line; ``program.invalid``: the dataclass is unusable.
        """
        self._known.add(name)
        pair = self._keys.get(name)
        node = pair[1] if pair is not None else None
        if node is None or _is_null(node):
            at = node if node is not None else self._root
            return self._build(name, schema, {}, at)
        if not isinstance(node, yaml.MappingNode):
            self._complain(node, f"{name} must be a section of keys and values, not {_kind(node)}")
        return self._build(name, schema, self._pairs(node), pair[0] if pair is not None else node)

    def has(self, name: str) -> bool:
        """Whether the section is there; from now on it counts as known."""
        self._known.add(name)
        return name in self._keys

    def finish(self) -> None:
        """Raise for the first section that is not known.

        Raises:
            MooringsError: ``params.invalid``.
        """
        for name, (key, _) in self._keys.items():
            if name not in self._known:
                self._unknown(key, name, self._known, "section")

    def location_of(self, section: str, key: str | None = None) -> str:
        """``file:line`` of a key, or of the nearest enclosing node."""
        pair = self._keys.get(section)
        if pair is None:
            return self.source
        if key is not None and isinstance(pair[1], yaml.MappingNode):
            for name, _ in pair[1].value:
                if isinstance(name, yaml.ScalarNode) and name.value == key:
                    return self._at(name)
        return self._at(pair[0])

    def _build(
        self, where: str, schema: type[T], pairs: Mapping[str, tuple[yaml.Node, yaml.Node]], at: yaml.Node | None
    ) -> T:
        hints = _hints(schema)
        fields = {field.name: field for field in dataclasses.fields(schema) if field.init}  # type: ignore[arg-type]
        for name, (key, _) in pairs.items():
            if name not in fields:
                self._unknown(key, name, fields.keys(), "key", where)
        values = {name: self._value(hints[name], node, f"{where}.{name}") for name, (_, node) in pairs.items()}
        for name, field in fields.items():
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and name not in values:
                self._complain(at, f"{where}.{name} is missing")
        try:
            built = schema(**values)
            check = getattr(built, "check", None)
            if callable(check):
                check()
        except (ValueError, TypeError) as error:
            field_name = str(error).partition(":")[0]
            line = pairs[field_name][0] if field_name in pairs else at
            self._complain(line, f"{where}.{error}" if field_name in fields else f"{where}: {error}")
        return built

    def _value(self, kind: Any, node: yaml.Node, where: str) -> Any:  # noqa: ANN401 - a type, and what is of it
        self._nodes += 1
        if self._nodes > NODES_MAX:
            self._complain(node, f"the file holds more than {NODES_MAX} values")
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            options = [option for option in get_args(kind) if option is not type(None)]
            if len(options) < len(get_args(kind)) and _is_null(node):
                return None
            if len(options) == 1:
                return self._value(options[0], node, where)
        elif origin is Literal:
            return self._choice(get_args(kind), node, where)
        elif origin in (list, tuple):
            if not isinstance(node, yaml.SequenceNode):
                self._complain(node, f"{where} must be a list, not {_kind(node)}")
            items = [self._value(get_args(kind)[0], item, f"{where}[{n}]") for n, item in enumerate(node.value)]
            return items if origin is list else tuple(items)
        elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
            if not isinstance(node, yaml.MappingNode):
                self._complain(node, f"{where} must be keys and values, not {_kind(node)}")
            return self._build(where, kind, self._pairs(node), node)
        elif kind in (bool, int, float, str):
            return self._scalar(kind, node, where)
        raise MooringsError(
            "program.invalid",
            f"{where} has the type {kind}, which a params file cannot hold",
            hint="use bool, int, float, str, Literal, list[...], tuple[..., ...], a dataclass, or one of these | None",
        )

    def _scalar(self, kind: type, node: yaml.Node, where: str) -> bool | int | float | str:
        if isinstance(node, yaml.ScalarNode):
            found = _read(kind, node)
            if found is not None:
                return found
        hint = ""
        if kind is str and isinstance(node, yaml.ScalarNode) and not _is_null(node):
            hint = f'to have the word, write it in quotes: "{_truncate(node.value)}"'
        self._complain(node, f"{where} must be {_NAMES[kind]}, not {_kind(node)}", hint)

    def _choice(self, choices: tuple[object, ...], node: yaml.Node, where: str) -> object:
        for choice in choices:
            if isinstance(node, yaml.ScalarNode) and _read(type(choice), node) == choice:
                return choice
        allowed = ", ".join(map(str, choices))
        self._complain(node, f"{where} must be one of {allowed}, not {_kind(node)}")

    def _pairs(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """The keys with their nodes; a duplicate key is refused."""
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}merge":
                self._complain(key, "only plain words can be keys")
            if key.value in pairs:
                first = self._at(pairs[key.value][0]).rpartition(":")[2]
                self._complain(
                    key, f"the key {_truncate(key.value)!r} stands here for the second time (first: {first})"
                )
            pairs[key.value] = (key, value)
        return pairs

    def _at(self, node: yaml.Node | None) -> str:
        return self.source if node is None else f"{self.source}:{node.start_mark.line + 1}"

    def _complain(self, node: yaml.Node | None, problem: str, hint: str = "") -> NoReturn:
        raise MooringsError("params.invalid", f"{self._at(node)}: {problem}", hint=hint)

    def _unknown(self, node: yaml.Node, name: str, known: typing.Iterable[str], what: str, where: str = "") -> NoReturn:
        known = sorted(known)
        near = difflib.get_close_matches(name[:SHOWN_CHARS_MAX], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        place = f" in {where}" if where else ""
        self._complain(node, f"the {what} {_truncate(name)!r} is not known{place}", hint)


def read_params(path: Path, source: str | None = None) -> ParamsFile:
    """Read and parse a params file.

    Args:
        path: its path.
        source: its name in messages, if different.

    Raises:
        MooringsError: ``params.invalid``: it cannot be read, is too long, or is not YAML.
    """
    source = source or str(path)
    try:
        if not path.is_file():
            raise MooringsError(
                "params.invalid", f"{source}: {'no file' if path.exists() else 'there is no such file'}"
            )
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise MooringsError("params.invalid", f"{source} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise MooringsError("params.invalid", f"{source}: byte {error.start} is not UTF-8 text") from error
    if len(content) > BYTES_MAX:
        raise MooringsError("params.invalid", f"{source}: the file is longer than {BYTES_MAX} bytes")
    return parse_params(text, source)


def parse_params(text: str, source: str) -> ParamsFile:
    """Parse the text of a params file.

    Raises:
        MooringsError: ``params.invalid``: it is not YAML, with the line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        problem = error.problem or error.context or "something stands where it cannot"
        raise MooringsError("params.invalid", f"{where}: {problem}", hint="the file is not valid YAML") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise MooringsError("params.invalid", f"{source}: {problem}", hint="the file is not valid YAML") from error
    if root is None or _is_null(root):
        return ParamsFile(source, None)
    if not isinstance(root, yaml.MappingNode):
        raise MooringsError(
            "params.invalid",
            f"{source}:{root.start_mark.line + 1}: the file must hold sections of keys and values, not {_kind(root)}",
            hint="model:\n  ...\nrunconfig:\n  max_steps: 100",
        )
    return ParamsFile(source, root)


_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _hints(schema: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(schema)
    except (NameError, TypeError) as error:
        raise MooringsError("program.invalid", f"the types of {schema.__qualname__} cannot be read: {error}") from error


def _read(kind: type, node: yaml.ScalarNode) -> bool | int | float | str | None:
    """The scalar's value of that type; None: it has another type."""
    text, plain = node.value, node.style is None
    if kind is str:
        return text if not plain or node.tag == f"{_TAG}str" else None
    if not plain:
        return None
    if kind is bool:
        return _TRUTH.get(text.lower())
    if kind is int:
        return int(text.replace("_", "")) if _INT.fullmatch(text) else None
    if _FLOAT.fullmatch(text) and any(char.isdigit() for char in text.lower().partition("e")[0]):
        number = float(text.replace("_", ""))
        return number if math.isfinite(number) else None
    return None


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def _kind(node: yaml.Node) -> str:
    """The kind of a node, for a message."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "keys and values"
    return "nothing" if _is_null(node) else f"{_truncate(node.value)!r}"


def _truncate(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
