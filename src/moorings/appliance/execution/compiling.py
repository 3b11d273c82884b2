"""A compile job: the programs of a model for one shape of batch, found or made.

The last step, from StableHLO to machine code, is also done here for this machine's kind of CPU: a system with the same
kind loads XLA's result, and compiles nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from moorings.appliance.execution import programs, sources
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
from moorings.appliance.execution.errors import execution_error
from moorings.appliance.execution.programs import ArraySpec, CompiledPrograms, ExportedProgram, LayerShape, Signature
from moorings.appliance.execution.streaming import Batch
from moorings.appliance.layers import Layer
from moorings.appliance.order import ApplianceJobSpec, DataSplit
from moorings.core.errors import MooringsError

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
            "sources": {name: sha256(content) for name, content in sources.find_sources(model).items()},
            "params": order.params["model"],
            "batch": [asdict(ArraySpec.of(each)) for each in batch],
            "systems": order.systems,
            "jax": [jax.__version__, version("jaxlib"), programs.PLATFORM],
            "compiler": sha256(Path(programs.__file__).read_bytes()),
        }
    )


def compile_model(
    layers: list[Layer], order: ApplianceJobSpec, batch: Batch, key: str, tell: Callable[[str], None]
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
            tell(f"{error.detail}: it is made anew")
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
            "make room, or name another folder with --compile_dir",
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
