"""The source files that define a model: its own module, and the imported ones beside it.

Found in the text, not in ``sys.modules``: modules that a function imports when it is first traced count too, and those
that other parts of the program import do not. A file that a model reads as data is not found.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moorings.appliance.execution.errors import model_error

_ENVIRONMENT: Final = ("site-packages", "dist-packages")


def find_sources(model: type) -> dict[str, bytes]:
    """The files by their paths below the model's import folder, sorted.

    Raises:
        MooringsError: ``model.invalid``: the class was not defined in a file.
    """
    try:
        file = Path(inspect.getfile(model)).resolve()
    except (TypeError, OSError) as error:
        raise model_error(f"{model.__name__} is not defined in a file", "put the model into a module") from error
    name = model.__module__
    if name == "__main__":
        name = file.stem
    depth = name.count(".") + (file.name == "__init__.py")
    root = file.parents[depth]
    found: dict[Path, bytes] = {}
    waiting = [(file, name)]
    while waiting:
        path, module = waiting.pop()
        if path in found:
            continue
        found[path] = path.read_bytes()
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        waiting += [each for name in _imported(path, found[path], package) for each in _files(root, name)]
    return {str(path.relative_to(root)): found[path] for path in sorted(found)}


def _imported(path: Path, text: bytes, package: str) -> Iterator[str]:
    """Names that a module imports: modules, and perhaps names in them."""
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            before = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*before, *([node.module] if node.module else [])])
            yield from filter(None, (base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)))


def _files(root: Path, name: str) -> Iterator[tuple[Path, str]]:
    """The files below ``root`` that importing ``name`` runs, with their modules' names."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = root.joinpath(*parts[:end])
        for path in (module / "__init__.py", module.with_name(f"{module.name}.py")):
            resolved = path.resolve()
            inside = resolved.is_relative_to(root) and not set(resolved.relative_to(root).parts) & set(_ENVIRONMENT)
            if inside and root.name not in _ENVIRONMENT and resolved.is_file():
                yield resolved, ".".join(parts[:end])
