"""Seeded mutants: small changes all over the package, to measure what the tests notice.

The guards' table says which line keeps which law; this says how much of everything else is tested. Candidates are all
places where one of a few operators applies; a seed picks some. Each is run against the test files that reach its
module, the nearest first, for two minutes at most, until the first failure. ``python -m tests.mutation --help``.
"""

from __future__ import annotations

import ast
import functools
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.mutation.copies import PACKAGE, ROOT
from tests.mutation.source import Change, ChangeMovedError, apply, find_scope, fragments, matches

LIST = Path(__file__).with_name("mutants.jsonl")
SEED = 17
COUNT = 300

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant, and what became of it.

    Attributes:
        change: what is changed.
        killed_by: the test that noticed; "" if none did, None if it was never run.
        files: how many test files reach the module.
    """

    change: Change
    killed_by: str | None = None
    files: int = 0


def candidates(file: str, text: str) -> Iterator[Change]:
    """Every mutant of a file, in its order."""
    module = ast.parse(text)
    for at, node in _places(module, ""):
        for cut, put in _mutations(node):
            fragment, words = ast.unparse(cut), ast.unparse(put) if put is not None else ""
            if "{" in fragment and isinstance(cut, ast.JoinedStr):
                continue
            nth = _nth(module, at, fragment, cut)
            if nth is not None:
                yield Change(file, at, fragment, words, nth)


def _nth(module: ast.Module, at: str, fragment: str, cut: ast.AST) -> int | None:
    """Which of the alike fragments in that place this is."""
    scope = find_scope(module, at)
    assert scope is not None
    found = [place for wanted in fragments(fragment) for place in matches(scope, wanted)]
    for number, place in enumerate(found):
        if place[0] is cut:
            return number
    return None


def _places(scope: ast.AST, at: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node of a function's body with the name of that function."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{at}.{node.name}" if at else node.name
            if isinstance(node, ast.ClassDef):
                yield from _places(node, name)
            else:
                for statement in node.body:
                    yield from _inside(statement, name)
        elif not isinstance(scope, ast.Module | ast.ClassDef):
            yield at, node
        elif isinstance(node, ast.If | ast.With | ast.Try):
            yield from _places(node, at)


def _inside(node: ast.AST, at: str) -> Iterator[tuple[str, ast.AST]]:
    yield at, node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child, at)


def _mutations(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """What may be changed at a node: what is cut, and what is put there (None: nothing)."""
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in _COMPARE:
            yield node, _replaced(node, ops=[_COMPARE[type(op)](), *node.ops[1:]])
        case ast.BinOp(op=op) if type(op) in _BINARY and not _is_text(node):
            yield node, _replaced(node, op=_BINARY[type(op)]())
        case ast.BoolOp(op=op):
            yield node, _replaced(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for value in node.values:
                rest = [one for one in node.values if one is not value]
                yield node, rest[0] if len(rest) == 1 else _replaced(node, values=rest)
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.IfExp():
            yield node, node.body
            yield node, node.orelse
        case ast.If() | ast.While() if not isinstance(node.test, ast.Constant):
            yield node.test, ast.Constant(False)
            if isinstance(node, ast.If):
                yield node.test, ast.Constant(True)
        case ast.comprehension(ifs=[test, *_]):
            yield test, ast.Constant(True)
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield node, ast.Constant(number + 1)
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) if not _is_log(node):
            yield node, None
        case ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield node, None
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, None
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, ast.Return(None)


def _replaced(node: ast.AST, **fields: object) -> ast.AST:
    made = type(node)(**{name: getattr(node, name) for name in node._fields})
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _is_text(node: ast.BinOp) -> bool:
    texts = (ast.JoinedStr,)
    return any(
        isinstance(side, texts) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _is_log(node: ast.Expr) -> bool:
    words = ast.unparse(node)
    return ".info(" in words or ".debug(" in words or ".warning(" in words


def pick(count: int, seed: int) -> list[Mutant]:
    """That many mutants over the package, the same for a seed and a source."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = [one for path in files for one in candidates(str(path.relative_to(PACKAGE)), path.read_text("utf-8"))]
    chosen = random.Random(seed).sample(range(len(found)), min(len(found), 2 * count))
    whole = [Mutant(found[number]) for number in chosen if is_sound(found[number])]
    return sorted(whole[:count], key=lambda mutant: (mutant.change.file, mutant.change.at, mutant.change.cut))


def is_sound(change: Change) -> bool:
    """Whether it changes the module's syntax tree, to one that Python accepts."""
    try:
        text = (PACKAGE / change.file).read_text("utf-8")
        changed = apply(text, change)
        compile(changed, change.file, "exec")
    except (ChangeMovedError, SyntaxError, FileNotFoundError):
        return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


# Folders whose tests mostly wait come after the others.
_DEAR = {"e2e": 1, "faults": 1, "docs": 1, "examples": 1, "simulation": 1, "slurm": 2, "kubernetes": 2}

# -- which tests reach a module ----------------------------------------------------------------------------------------


def reaching(file: str) -> list[str]:
    """The test files that reach a module, the nearest first: those of its name, then by steps from import to import."""
    module = _module_of(PACKAGE / file)
    steps = _steps_to(module)
    stem = Path(file).stem
    folder = "/".join(Path(file).parts[:-1])

    def rank(path: Path) -> tuple[int, int, int, str]:
        name = path.stem.removeprefix("test_")
        named = name == stem or name.startswith(stem) or stem.startswith(name)
        near = folder != "" and path.parent.as_posix().endswith(f"tests/unit/{folder}")
        return _DEAR.get(path.relative_to(ROOT).parts[1], 0), steps[path], -int(named) - int(near), str(path)

    found = [path for path in steps if path.name.startswith("test_") and "guards" not in path.parts]
    return [str(path.relative_to(ROOT)) for path in sorted(found, key=rank)]


@functools.cache
def _imports() -> dict[Path, frozenset[str]]:
    """What each file of the package and of the tests imports, of these two."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    return {path: frozenset(_imported(path)) for path in files}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(("moorings", "tests")))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("moorings", "tests")):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_of(path: Path) -> str:
    base = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _steps_to(module: str) -> dict[Path, int]:
    """How many imports lie between each test file and the module."""
    users: dict[str, set[Path]] = {}
    for path, names in _imports().items():
        for name in names:
            users.setdefault(name, set()).add(path)
    steps: dict[Path, int] = {}
    layer, distance = {module}, 0
    seen = {module}
    while layer:
        distance += 1
        following: set[str] = set()
        for name in layer:
            for path in users.get(name, ()):
                if path not in steps:
                    steps[path] = distance
                    following.add(_module_of(path))
        layer = following - seen
        seen |= following
    return {path: count for path, count in steps.items() if path.is_relative_to(ROOT / "tests")}


# -- the list ----------------------------------------------------------------------------------------------------------


def load(path: Path = LIST) -> list[Mutant]:
    """The list as it was written."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        told = json.loads(line)
        found.append(Mutant(Change(**told.pop("change")), **told))
    return found


def save(mutants: list[Mutant], path: Path = LIST) -> None:
    """Write the list, a line each."""
    path.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants), "utf-8")


def with_verdict(mutant: Mutant, killed_by: str, files: int) -> Mutant:
    """What became of it."""
    return replace(mutant, killed_by=killed_by, files=files)
