"""A change of the source by its syntax: in which function, which fragment, and what stands there instead.

A fragment is found by its syntax tree, so it survives a new format, a comment, and a move inside its function. Exact
lines of source were refused: every move of a line broke entries that still meant the same.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


class ChangeMovedError(AssertionError):
    """The source no longer has the fragment that is to be changed, or has it more than once."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        file: below ``src/moorings``.
        at: the qualified name of the function or class that has the fragment; "" is the whole module.
        cut: the fragment: an expression, a keyword argument (``name=value``), statements, ``except`` clauses, or the
            first line of an ``if``, a ``while`` or a ``for`` (``if ready:``), of which only the expression is replaced.
            In a file that is not Python: words of it.
        put: what stands there instead; "" removes statements, or an argument or element with its comma.
        nth: which one it is, of several that are alike in that place; None: it must be the only one.
    """

    file: str
    at: str
    cut: str
    put: str
    nth: int | None = None


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line of an ``if``, a ``while`` or a ``for``, without what stands below it."""

    of: ast.stmt


Fragment = list[ast.stmt] | list[ast.ExceptHandler] | ast.expr | ast.keyword | FirstLine

_BLOCKS = ("body", "handlers", "orelse", "finalbody")
_COMMA_AFTER = re.compile(rb"(?:\s|#[^\n]*\n)*,")
_COMMA_BEFORE = re.compile(rb",\s*\Z")


def apply(text: str, change: Change) -> str:
    """The text of a file after the change.

    Raises:
        ChangeMovedError: the fragment is not there, or not once.
    """
    n_found = count(text, change)
    if n_found != 1 if change.nth is None else n_found <= change.nth:
        raise ChangeMovedError(
            f"{change.file} has this {n_found} times in {change.at or 'the module'}. Correct the entry that cuts it:\n"
            f"{change.cut}"
        )
    if not _is_python(change):
        return text.replace(change.cut, change.put)
    return splice(text, _places(text, change)[change.nth or 0], change.put)


def count(text: str, change: Change) -> int:
    """How often a file has the fragment in that place."""
    return len(_places(text, change)) if _is_python(change) else text.count(change.cut)


def locate(package: Path, change: Change) -> Change:
    """The change in the place where its fragment is now.

    A function may have moved to another file, or have a new name in the same file: where nothing else can be meant,
    that is followed. So a move breaks no entry.

    Args:
        package: the folder that ``change.file`` is in.
        change: as it is written down.

    Raises:
        ChangeMovedError: neither file nor function have it, and not exactly one other file has it in that function.
    """
    if change.nth is not None or not _is_python(change) or _count_in(package, change):
        return change
    name = change.at.rpartition(".")[2]
    others = [other for other in sorted(package.rglob("*.py")) if other != package / change.file]
    moved = [
        replace(change, file=str(other.relative_to(package))) for other in others if name in other.read_text("utf-8")
    ]
    there = package / change.file
    gone = not there.exists() or find_scope(_parsed(there.read_text("utf-8")), change.at) is None
    renamed = [replace(change, at="")] if gone else []  # a function that is there and has it no more lost its guard
    for candidates in (moved, renamed):
        found = [one for one in candidates if _count_in(package, one) == 1]
        if len(found) == 1:
            return found[0]
    raise ChangeMovedError(
        f"{change.file} no longer has this in {change.at or 'the module'}, and no other place was found. Correct "
        f"the entry that cuts it:\n{change.cut}"
    )


def _count_in(package: Path, change: Change) -> int:
    path = package / change.file
    return count(path.read_text("utf-8"), change) if path.exists() else 0


def _is_python(change: Change) -> bool:
    return change.file.endswith(".py")


def _places(text: str, change: Change) -> list[Sequence[ast.AST]]:
    scope = find_scope(_parsed(text), change.at)
    if scope is None:
        return []
    return [place for wanted in fragments(change.cut) for place in matches(scope, wanted)]


@functools.lru_cache(maxsize=4)  # one text is asked for again and again
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


# -- finding -----------------------------------------------------------------------------------------------------------


def find_scope(module: ast.Module, at: str) -> ast.AST | None:
    """The function or class of that qualified name, or None."""
    scope: ast.AST = module
    for name in at.split(".") if at else ():
        inner = [node for node in definitions(scope) if node.name == name]
        if not inner:
            return None
        scope = inner[-1]
    return scope


def definitions(scope: ast.AST) -> Iterator[Definition]:
    """The functions and classes directly in a scope, also those under an ``if`` or a ``with``."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, Definition):
            yield node
        else:
            yield from definitions(node)


def fragments(text: str) -> list[Fragment]:
    """What a fragment's text may mean, in the order in which it is looked for."""
    text = _dedented(text)
    if text.startswith("except"):
        clauses = ast.parse(f"try:\n    pass\n{text}").body[0]
        assert isinstance(clauses, ast.Try)
        return [clauses.handlers]
    if text.endswith(":"):
        return [FirstLine(ast.parse(f"{text} pass").body[0])]
    body = ast.parse(text).body
    match body:
        case [ast.Expr(value=value)]:
            return [value]
        case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
            return [body, ast.keyword(name, value)]
        case _:
            return [body]


def _asked(node: ast.AST) -> ast.expr | None:
    """What the first line of a statement asks, or runs over."""
    match node:
        case ast.If(test=asked) | ast.While(test=asked) | ast.For(iter=asked) | ast.AsyncFor(iter=asked):
            return asked
        case _:
            return None


def matches(scope: ast.AST, wanted: Fragment) -> list[Sequence[ast.AST]]:
    """The places in a scope that look like the fragment, each as the nodes that it spans."""
    if isinstance(wanted, list):
        shapes = [_shape(one) for one in wanted]
        return [
            block[first : first + len(shapes)]
            for block in blocks(scope)
            for first in range(len(block) - len(shapes) + 1)
            if [_shape(one) for one in block[first : first + len(shapes)]] == shapes
        ]
    if isinstance(wanted, FirstLine):
        line = _first_line(wanted.of)
        return [
            [asked] for node in in_order(scope) if (asked := _asked(node)) is not None and _first_line(node) == line
        ]
    shape, nodes = _shape(wanted), list(in_order(scope))
    whole = {node.value: node for node in nodes if isinstance(node, ast.Expr)}  # a call may be a statement of its own
    found = [node for node in nodes if type(node) is type(wanted) and _shape(node) == shape]
    return [[whole.get(node, node) if isinstance(node, ast.expr) else node] for node in found]


def _first_line(node: ast.AST) -> list[str]:
    parts = (getattr(node, name, None) for name in ("test", "target", "iter"))
    return [type(node).__name__, *(_shape(part) for part in parts if part is not None)]


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, in the order of the source; not those in an f-string: Python 3.11 places them wrongly."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.JoinedStr):
            yield from in_order(child)


def blocks(scope: ast.AST) -> Iterator[list[ast.stmt] | list[ast.ExceptHandler]]:
    """The blocks of statements and of ``except`` clauses in a scope, at any depth, the outer before the inner."""
    for node in (scope, *in_order(scope)):
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def _shape(node: ast.AST) -> str:
    """A node without its place, and read or written alike: a fragment does not know where it stands."""
    return ast.dump(node).replace("ctx=Store()", "ctx=Load()").replace("ctx=Del()", "ctx=Load()")


# -- changing ----------------------------------------------------------------------------------------------------------


def splice(text: str, nodes: Sequence[ast.AST], put: str) -> str:
    """The text with other words in the place of those nodes."""
    raw = text.encode()
    start, end = span(text, nodes)
    first = nodes[0]
    if isinstance(first, ast.stmt | ast.ExceptHandler):
        new = _indented(put or "pass", first.col_offset, is_elif=raw[start:].startswith(b"elif"))
    elif not put:
        new = ""
        if comma := _COMMA_AFTER.match(raw, end):
            end = comma.end()
        elif comma := _COMMA_BEFORE.search(raw, 0, start):
            start = comma.start()
    else:
        new = put if isinstance(first, ast.keyword | ast.Starred) or put.startswith("*") else f"({put})"
    return (raw[:start] + new.encode() + raw[end:]).decode()


def span(text: str, nodes: Sequence[ast.AST]) -> tuple[int, int]:
    """Where nodes begin and end, in bytes of UTF-8."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    first, last = nodes[0], nodes[-1]
    assert isinstance(first, ast.stmt | ast.expr | ast.keyword | ast.ExceptHandler)
    assert isinstance(last, ast.stmt | ast.expr | ast.keyword | ast.ExceptHandler)
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    begin, n_before = first, 0
    if isinstance(first, Definition) and first.decorator_list:
        begin, n_before = first.decorator_list[0], len("@")
    return starts[begin.lineno - 1] + begin.col_offset - n_before, starts[last.end_lineno - 1] + last.end_col_offset


def _indented(put: str, n_columns: int, *, is_elif: bool) -> str:
    """Statements as they stand in a block: its first line is indented already."""
    lines = _dedented(put).splitlines()
    if is_elif:  # what is an `if` in the tree is half a word here
        lines = ["else:", *("    " + line for line in lines)]
    return "\n".join(lines[:1] + [" " * n_columns + line if line else line for line in lines[1:]])


def _dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines)
