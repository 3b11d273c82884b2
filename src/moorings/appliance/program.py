"""The user's arguments for ``run``: a model, and the sources of its batches. Values and shapes only, no work.

``Params`` of each is a dataclass: its fields, with their types and defaults, are the keys of that section of the params
file. Plain dataclasses rather than a schema language: users write them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from moorings.core.model.errors import MooringsError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from moorings.appliance.layers import Layer

    Array = npt.NDArray[np.generic]

BATCH_SIZE: Final = "batch_size"


class Model(Protocol):
    """A model, made from ``Params`` (a dataclass in its class); its layers run in sequence."""

    def layers(self) -> Sequence[Layer]:
        """The layers, in order; the last one returns the mean loss."""
        ...


class Source(Protocol):
    """A source of batches, made from ``Params`` (a dataclass in its class, with ``batch_size``)."""

    def batch(self, step: int, *, system: int, systems: int) -> tuple[Array, Array]:
        """Inputs and targets: the share of ``system`` (from 0) of ``systems`` in the batch of that step (from 0).

        A function of its arguments alone, so that a run resumed from a checkpoint sees the same data.
        """
        ...


class ModelType(Protocol):
    """A class of models, with its ``Params``."""

    def __call__(self, params: Any, /) -> Model: ...  # noqa: ANN401 - its own Params


class SourceType(Protocol):
    """A class of sources, with its ``Params``."""

    def __call__(self, params: Any, /) -> Source: ...  # noqa: ANN401 - its own Params


@dataclass(frozen=True, slots=True)
class Program:
    """A model and its data.

    Attributes:
        model: its class; ``Params`` are the section ``model:``.
        train: the class of its training batches, or None; ``Params`` are ``train_input:``.
        eval: the class of its evaluation batches, or None; ``Params`` are ``eval_input:``.
    """

    model: ModelType
    train: SourceType | None = None
    eval: SourceType | None = None


def params_type(part: ModelType | SourceType) -> type:
    """The ``Params`` of a part of a program.

    Raises:
        MooringsError: ``program.invalid``: it has none.
    """
    found = getattr(part, "Params", None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise MooringsError(
            "program.invalid",
            f"{_name(part)} has no dataclass called Params",
            hint="@dataclass class Params inside it names what may stand in its section of the params file",
        )
    return found


def check_program(program: Program) -> Program:
    """Return ``program``, if its parts have what ``run`` needs.

    Raises:
        MooringsError: ``program.invalid``.
    """
    _check_part(program.model, "layers")
    for source in (program.train, program.eval):
        if source is None:
            continue
        _check_part(source, "batch")
        if BATCH_SIZE not in {field.name for field in fields(params_type(source))}:
            raise MooringsError(
                "program.invalid",
                f"{_name(source)}.Params has no {BATCH_SIZE}",
                hint=f"add the field '{BATCH_SIZE}: int', the batch of all systems together",
            )
    return program


def _check_part(part: ModelType | SourceType, method: str) -> None:
    if not isinstance(part, type) or not callable(getattr(part, method, None)):
        raise MooringsError("program.invalid", f"{_name(part)} is not a class with a method {method}()")
    params_type(part)


def _name(part: object) -> str:
    return str(getattr(part, "__name__", None) or repr(part))[:80]
