"""A compile job: programs of a model for one shape of batch, found or made.

Also the last step, from StableHLO to machine code, is done here as far as this machine goes: a system with the same
kind of CPU then loads what XLA made, and compiles nothing.
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
from moorings.appliance.execution.artifacts import Artifact, Draft, cpu_kind, discard, find, key_of, own_folder, sha256
from moorings.appliance.execution.errors import failed
from moorings.appliance.execution.programs import Exported, LayerShape, Loaded, Signature, Value
from moorings.appliance.execution.streaming import Batch
from moorings.appliance.layers import Layer
from moorings.appliance.order import Order, Side
from moorings.core.errors import MooringsError

XLA = "xla"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compile job gives."""

    artifact: Artifact
    found: bool
    seconds: float


def build_key(model: type, order: Order, batch: Batch) -> str:
    """The key of the program: of the model's sources and params, the batch of one system, and the tools."""
    return key_of(
        {
            "side": order.program,
            "model": f"{model.__module__}.{model.__qualname__}",
            "sources": {name: sha256(content) for name, content in sources.sources_of(model).items()},
            "params": order.params["model"],
            "batch": [asdict(Value.of(each)) for each in batch],
            "systems": order.systems,
            "jax": [jax.__version__, version("jaxlib"), programs.PLATFORM],
            "compiler": sha256(Path(programs.__file__).read_bytes()),
        }
    )


def compile_model(layers: list[Layer], order: Order, batch: Batch, key: str, tell: Callable[[str], None]) -> Compiled:
    """The artifact of that key, found or made.

    Raises:
        MooringsError: ``model.invalid``; ``execution.failed``: the folder cannot be written.
    """
    began = time.monotonic()
    folder = own_folder(Path(order.compile_dir))
    try:
        try:
            artifact = find(folder, key)
        except MooringsError as error:
            tell(f"{error.detail}: it is made anew")
            discard(folder, key)
            artifact = None
        if artifact is not None:
            with contextlib.suppress(OSError):
                os.utime(artifact.folder)  # for who removes old ones
            return Compiled(artifact, found=True, seconds=time.monotonic() - began)
        artifact = _make(folder, key, layers, batch, order.program)
    except OSError as error:
        raise failed(
            f"the compiled program cannot be written to {folder}: {error.strerror or error}",
            "make room, or name another folder with --compile_dir",
        ) from error
    return Compiled(artifact, found=False, seconds=time.monotonic() - began)


def _make(folder: Path, key: str, layers: list[Layer], batch: Batch, side: Side) -> Artifact:
    with Draft(folder, key) as draft:
        exported = programs.export_model(layers, batch, side)
        shapes = programs.shapes_of(layers)
        listed: list[dict[str, Any]] = []
        for number, each in enumerate(exported):
            name = f"programs/{number}.mlir"
            draft.write(name, each.module)
            listed.append({"file": name, **each.signature.dump()})
        machine = draft.folder / XLA / cpu_kind()
        machine.mkdir(parents=True)
        programs.use_cache(machine, write=True)
        try:
            Loaded(exported, shapes)
        finally:
            programs.use_cache(None)
        manifest = {
            "side": side,
            "jax": jax.__version__,
            "jaxlib": version("jaxlib"),
            "batch": [asdict(Value.of(each)) for each in batch],
            "weights": sum(shape.size for shape in shapes),
            "layers": [asdict(shape) for shape in shapes],
            "programs": listed,
        }
        return draft.publish(manifest)


def load(artifact: Artifact) -> tuple[Loaded, list[LayerShape]]:
    """What computes an artifact's programs, and the layers they are for.

    Raises:
        MooringsError: ``artifact.damaged``; ``execution.failed``: it is another release's.
    """
    layers = shapes_in(artifact)
    exported = [Exported(Signature.parse(each), artifact.read(each["file"])) for each in artifact.manifest["programs"]]
    machine = artifact.folder / XLA / cpu_kind()
    programs.use_cache(machine if machine.is_dir() else None)
    try:
        return Loaded(exported, layers), layers
    finally:
        programs.use_cache(None)


def shapes_in(artifact: Artifact) -> list[LayerShape]:
    """The layers of an artifact, in order."""
    return [
        LayerShape(each["name"], each["program"], {name: tuple(shape) for name, shape in each["weights"].items()})
        for each in artifact.manifest["layers"]
    ]
