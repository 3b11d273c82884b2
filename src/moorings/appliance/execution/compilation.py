"""A compile job: the programs of a model for one shape of batch, found or made.

The last step, from StableHLO to machine code, is also done here for this machine's kind of CPU: a system with the same
kind loads XLA's result, and compiles nothing.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax

from moorings.appliance.execution import programs
from moorings.appliance.execution.artifacts import (
    Artifact,
    ArtifactDraft,
    artifact_key,
    cpu_kind,
    delete_artifact,
    find_artifact,
    sha256,
    user_folder,
)
from moorings.appliance.execution.errors import execution_error, model_error
from moorings.appliance.execution.programs import ArraySpec, CompiledPrograms, ExportedProgram, LayerShape, Signature
from moorings.appliance.execution.streaming import Batch
from moorings.appliance.job_spec import ApplianceJobSpec, DataSplit
from moorings.appliance.layers import Layer
from moorings.core.model.errors import MooringsError

XLA = "xla"


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of a compile job."""

    artifact: Artifact
    found: bool
    seconds: float


def build_key(model: type, order: ApplianceJobSpec, batch: Batch) -> str:
    """The key of the program: of the model's sources and params, the batch of one system, and the tools."""
    return artifact_key(
        {
            "side": order.program,
            "model": f"{model.__module__}.{model.__qualname__}",
            "sources": {name: sha256(content) for name, content in find_sources(model).items()},
            "params": order.params["model"],
            "batch": [asdict(ArraySpec.of(each)) for each in batch],
            "systems": order.systems,
            "jax": [jax.__version__, version("jaxlib"), programs.PLATFORM],
            "compiler": sha256(Path(programs.__file__).read_bytes()),
        }
    )


def compile_model(
    layers: list[Layer], order: ApplianceJobSpec, batch: Batch, key: str, report: Callable[[str], None]
) -> CompileResult:
    """The artifact with that key, found or made.

    Raises:
        MooringsError: ``model.invalid``; ``execution.failed``: the folder is not writable.
    """
    began = time.monotonic()
    folder = user_folder(Path(order.compile_dir))
    try:
        try:
            artifact = find_artifact(folder, key)
        except MooringsError as error:
            report(f"{error.detail}: it is compiled again")
            delete_artifact(folder, key)
            artifact = None
        if artifact is not None:
            with contextlib.suppress(OSError):
                os.utime(artifact.folder)  # for programs that remove old ones
            return CompileResult(artifact, found=True, seconds=time.monotonic() - began)
        artifact = _make(folder, key, layers, batch, order.program)
    except OSError as error:
        raise execution_error(
            f"the compiled program cannot be written to {folder}: {error.strerror or error}",
            "free space, or name another folder with --compile_dir",
        ) from error
    return CompileResult(artifact, found=False, seconds=time.monotonic() - began)


def _make(folder: Path, key: str, layers: list[Layer], batch: Batch, side: DataSplit) -> Artifact:
    with ArtifactDraft(folder, key) as draft:
        exported = programs.export_model(layers, batch, side)
        shapes = programs.layer_shapes_of(layers)
        listed: list[dict[str, Any]] = []
        for number, each in enumerate(exported):
            name = f"programs/{number}.mlir"
            draft.write(name, each.module)
            listed.append({"file": name, **each.signature.dump()})
        machine = draft.folder / XLA / cpu_kind()
        machine.mkdir(parents=True)
        programs.use_cache(machine, write=True)
        try:
            CompiledPrograms(exported, shapes)
        finally:
            programs.use_cache(None)
        manifest = {
            "side": side,
            "jax": jax.__version__,
            "jaxlib": version("jaxlib"),
            "batch": [asdict(ArraySpec.of(each)) for each in batch],
            "weights": sum(shape.size for shape in shapes),
            "layers": [asdict(shape) for shape in shapes],
            "programs": listed,
        }
        return draft.publish(manifest)


def load_programs(artifact: Artifact) -> tuple[CompiledPrograms, list[LayerShape]]:
    """An artifact's compiled programs, and their layers.

    Raises:
        MooringsError: ``artifact.damaged``; ``execution.failed``: it is of another release.
    """
    layers = layer_shapes(artifact)
    exported = [
        ExportedProgram(Signature.parse(each), artifact.read(each["file"])) for each in artifact.manifest["programs"]
    ]
    machine = artifact.folder / XLA / cpu_kind()
    programs.use_cache(machine if machine.is_dir() else None)
    try:
        return CompiledPrograms(exported, layers), layers
    finally:
        programs.use_cache(None)


def layer_shapes(artifact: Artifact) -> list[LayerShape]:
    """The layers of an artifact, in order."""
    return [
        LayerShape(each["name"], each["program"], {name: tuple(shape) for name, shape in each["weights"].items()})
        for each in artifact.manifest["layers"]
    ]


# -- sources -----------------------------------------------------------------------------------------------------------
# The source files that define a model: its own module, and the imported ones beside it. Found in the text, not in
# ``sys.modules``: modules that a function imports when it is first traced count too, and those that other parts of the
# program import do not. A file that a model reads as data is not found.

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
