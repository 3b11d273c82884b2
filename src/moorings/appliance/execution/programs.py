"""All use of JAX: layers become programs of StableHLO, and those become functions.

Each distinct program is exported (``jax.export``) forward and, for training, backward: the backward program repeats the
forward pass rather than keep its intermediate values, for only activations between layers stay on a system. A program
is stored in JAX's own file format.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, cast

import jax
import jax.export
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from moorings.appliance.execution.errors import model_error
from moorings.appliance.execution.frames import Array, Arrays
from moorings.appliance.execution.streaming import Batch
from moorings.appliance.job_spec import DataSplit
from moorings.appliance.layers import NAME, Layer

PLATFORM: Final = "cpu"  # simulated systems compute on this
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
_NEVER_S: Final = 1e9
_OURS: Final = str(Path(__file__).parent)
_LIBRARIES: Final = str(Path(jax.__file__).parent.parent)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The shape and type of an array that goes in or comes out."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Any) -> Self:  # noqa: ANN401 - whatever has a shape
        """The specification of an array."""
        return cls(tuple(array.shape), np.dtype(array.dtype).name)

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Self:
        """From a manifest."""
        return cls(tuple(record["shape"]), record["dtype"])

    @property
    def as_jax_struct(self) -> jax.ShapeDtypeStruct:
        """As JAX expects it."""
        return jax.ShapeDtypeStruct(self.shape, np.dtype(self.dtype))  # type: ignore[no-untyped-call]

    @property
    def is_differentiable(self) -> bool:
        """Whether it has a gradient: token ids have none."""
        return np.issubdtype(np.dtype(self.dtype), np.inexact)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A layer without its code: its names, and the shapes of its weights by name."""

    name: str
    program: str
    weights: dict[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Its number of weights."""
        return sum(int(np.prod(shape)) for shape in self.weights.values())


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a program: the weights by name, then ``arguments``.

    Attributes:
        program: its name.
        role: ``forward`` or ``backward``.
        weights: their shapes by name.
        arguments: those after the weights.
        results: its results; None stands for the gradients of the weights, by name. ``forward`` has one.
    """

    program: str
    role: str
    weights: dict[str, tuple[int, ...]]
    arguments: tuple[ArraySpec, ...]
    results: tuple[ArraySpec | None, ...]

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Self:
        """From a manifest."""
        return cls(
            record["program"],
            record["role"],
            {name: tuple(shape) for name, shape in record["weights"].items()},
            tuple(ArraySpec.parse(each) for each in record["arguments"]),
            tuple(None if each is None else ArraySpec.parse(each) for each in record["results"]),
        )

    def dump(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @property
    def traced(self) -> tuple[Any, ...]:
        """The arguments' shapes, as JAX expects them."""
        weights = {name: ArraySpec(shape, "float32").as_jax_struct for name, shape in self.weights.items()}
        return (weights, *(value.as_jax_struct for value in self.arguments))


@dataclass(frozen=True, slots=True)
class ExportedProgram:
    """A program as stored."""

    signature: Signature
    module: bytes  # its StableHLO and its signature, as written by jax.export


def use_cache(folder: Path | None, *, write: bool = False) -> None:
    """Make JAX look for XLA's compiled programs in ``folder``, and add new ones if ``write``; None: no cache."""
    compilation_cache.reset_cache()  # else JAX keeps the first folder that it has used
    _set("jax_compilation_cache_dir", str(folder) if folder else None)
    _set("jax_persistent_cache_min_entry_size_bytes", -1)
    _set("jax_persistent_cache_min_compile_time_secs", 0.0 if write else _NEVER_S)
    _set("jax_persistent_cache_enable_xla_caches", "none")


def use_cpu() -> None:
    """Make JAX compute on the CPU: systems are simulated, and no accelerator is searched for."""
    _set("jax_platforms", PLATFORM)


def _set(name: str, value: object) -> None:
    jax.config.update(name, value)  # type: ignore[no-untyped-call]  # JAX has it so


def initial_weights(layer: Layer, seed: int, number: int) -> Arrays:
    """A layer's first weights, float32: a function of the seed and of the layer's number.

    Raises:
        MooringsError: ``model.invalid``: they are not valid weights.
    """
    found = layer.init(np.random.default_rng([seed, number]))
    weights: dict[str, Array] = {}
    for name, array in sorted(found.items()):
        if not NAME.fullmatch(name) or not np.issubdtype(np.asarray(array).dtype, np.floating):
            raise model_error(f"layer {layer.name} has the weights {name!r}: not a name, or not of floating point")
        weights[name] = np.array(array, dtype=np.float32, order="C")
    return weights


def layer_shapes_of(layers: Sequence[Layer]) -> list[LayerShape]:
    """The shapes of the layers.

    Raises:
        MooringsError: ``model.invalid``: there is none, or a name is invalid or a duplicate.
    """
    if not layers:
        raise model_error("the model has no layers", "layers() returns them in order")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    found: dict[str, LayerShape] = {}
    for layer in layers:
        if not NAME.fullmatch(layer.name) or layer.name in found:
            raise model_error(
                f"a layer is called {layer.name[:80]!r}: another one is too, or it is no name",
                "letters, digits, '_', '.' and '-', each name once",
            )
        if layer.program not in shapes:  # the others are the same, which is checked when their weights are there
            shapes[layer.program] = {name: w.shape for name, w in initial_weights(layer, 0, 0).items()}
        found[layer.name] = LayerShape(layer.name, layer.program, shapes[layer.program])
    return list(found.values())


def export_model(layers: Sequence[Layer], batch: Batch, side: DataSplit) -> list[ExportedProgram]:
    """Every distinct program of these layers, for a batch of that shape.

    Raises:
        MooringsError: ``model.invalid``: it cannot be traced, its layers do not fit, or the loss is not one number.
    """
    shapes = layer_shapes_of(layers)
    x, targets = (ArraySpec.of(np.asarray(each)) for each in batch)
    seen: dict[str, tuple[object, str]] = {}
    found: list[ExportedProgram] = []
    for number, (layer, shape) in enumerate(zip(layers, shapes, strict=True)):
        last = number == len(layers) - 1
        arguments = (x, targets) if last else (x,)
        forward = Signature(layer.program, "forward", shape.weights, arguments, ())
        try:
            text, outputs = jax.make_jaxpr(layer.apply, return_shape=True)(*forward.traced)
        except Exception as error:  # a user's function may raise anything
            raise model_error(f"layer {layer.name} cannot be traced: {_brief(error)}") from error
        y = _result(layer, outputs, last=last)
        looks = (arguments, _ADDRESS.sub("", str(text)))
        if seen.setdefault(layer.program, looks) is looks:
            found += _export_layer(layer, replace(forward, results=(y,)), side, last=last)
        elif seen[layer.program] != looks:
            raise model_error(
                f"layer {layer.name} computes something else than others with the program {layer.program!r}",
                "give it a program of its own; only the values of weights may differ",
            )
        x = y
    return found


def _result(layer: Layer, outputs: Any, *, last: bool) -> ArraySpec:  # noqa: ANN401 - whatever a user's function returns
    if not hasattr(outputs, "shape"):
        raise model_error(f"layer {layer.name} returns {type(outputs).__name__}, not one array")
    y = ArraySpec.of(outputs)
    if last and y != ArraySpec((), "float32"):
        raise model_error(f"the last layer, {layer.name}, returns {y.dtype}{list(y.shape)}, not a loss (float32[])")
    if not y.is_differentiable:
        raise model_error(f"layer {layer.name} returns {y.dtype}, of which there is no gradient")
    return y


def _export_layer(layer: Layer, forward: Signature, side: DataSplit, *, last: bool) -> list[ExportedProgram]:
    x, y = forward.arguments[0], forward.results[0]
    assert y is not None

    def backward(weights: Any, x_: Any, rest: Any) -> Any:  # noqa: ANN401 - JAX's tracers
        # ``rest``: the targets for the last layer, for the others the gradient of its result.
        def run(*primal: Any) -> Any:  # noqa: ANN401
            arguments = primal if x.is_differentiable else (*primal, x_)
            return layer.apply(*arguments, rest) if last else layer.apply(*arguments)

        loss, back = jax.vjp(run, *((weights, x_) if x.is_differentiable else (weights,)))
        return (loss, *back(jax.numpy.ones_like(loss))) if last else back(rest)

    found = []
    if side == "eval" or not last:
        found.append(_export(layer.apply, forward))
    if side == "train":
        gradients = (None, x) if x.is_differentiable else (None,)
        found.append(
            _export(
                backward,
                replace(
                    forward,
                    role="backward",
                    arguments=forward.arguments if last else (x, y),
                    results=(y, *gradients) if last else gradients,
                ),
            )
        )
    return found


def _export(function: Callable[..., Any], signature: Signature) -> ExportedProgram:
    try:
        exported = jax.export.export(jax.jit(function), platforms=[PLATFORM])(*signature.traced)
    except Exception as error:  # a user's function may raise anything
        raise model_error(f"program {signature.program} ({signature.role}): {_brief(error)}") from error
    if exported.ordered_effects or exported.unordered_effects:
        raise model_error(f"program {signature.program} has side effects: a layer may only compute")
    return ExportedProgram(signature, bytes(exported.serialize()))


class CompiledPrograms:
    """The programs of an artifact, compiled for this machine.

    Args:
        exported: all of them.
        layers: the model's layers, in order.
    """

    def __init__(self, exported: Sequence[ExportedProgram], layers: Sequence[LayerShape]) -> None:
        self._layers = layers
        self._run = {(each.signature.program, each.signature.role): _compile(each) for each in exported}

    def forward(self, layer: int, weights: Arrays, x: Any) -> Any:  # noqa: ANN401
        """The result of a layer for ``x``."""
        return self._run[self._layers[layer].program, "forward"](dict(weights), x)

    def backward(self, layer: int, weights: Arrays, x: Any, dy: Any) -> tuple[Arrays, Any]:  # noqa: ANN401
        """The gradients of a layer's weights, and of ``x`` (None if it has none)."""
        gradients, *dx = self._run[self._layers[layer].program, "backward"](dict(weights), x, dy)
        return _to_host(gradients), dx[0] if dx else None

    def loss(self, weights: Arrays, x: Any, targets: Any) -> float:  # noqa: ANN401
        """The mean loss."""
        return float(self._run[self._layers[-1].program, "forward"](dict(weights), x, targets))

    def last_backward(self, weights: Arrays, x: Any, targets: Any) -> tuple[float, Arrays, Any]:  # noqa: ANN401
        """The mean loss, the gradients of the last layer's weights, and that of ``x`` (None if it has none)."""
        loss, gradients, *dx = self._run[self._layers[-1].program, "backward"](dict(weights), x, targets)
        return float(loss), _to_host(gradients), dx[0] if dx else None


def _compile(exported: ExportedProgram) -> Callable[..., Any]:
    """Compile a stored program into a function."""
    whole = jax.export.deserialize(bytearray(exported.module))
    return cast("Callable[..., Any]", jax.jit(whole.call).lower(*exported.signature.traced).compile())


def _to_host(gradients: Any) -> Arrays:  # noqa: ANN401 - JAX's arrays
    return {name: np.asarray(each) for name, each in gradients.items()}


def _brief(error: BaseException) -> str:
    """The error, and the last line of the user's own code in its traceback."""
    text = " ".join(str(error).split())
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, _LIBRARIES)) and Path(frame.filename).is_file()
    ]
    where = f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {text[:300]}{where}"
