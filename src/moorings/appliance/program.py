"""What a user hands to ``run``: a model, and where its batches come from. Values and shapes alone; nothing is run here.

``Params`` of each is a dataclass: its fields, with their types and defaults, are what may stand in that section of the
params file. Plain dataclasses rather than a schema language, for a user writes them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from moorings.core.errors import MooringsError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from moorings.appliance.layers import Layer

    Array = npt.NDArray[np.generic]

BATCH_SIZE: Final = "batch_size"


class Model(Protocol):
    """A model, made of ``Params`` (a dataclass of its class); its layers run one behind the other."""

    def layers(self) -> Sequence[Layer]:
        """The layers, in order; the last one gives the mean loss."""
        ...


class Source(Protocol):
    """Where batches come from, made of ``Params`` (a dataclass of its class, with ``batch_size``)."""

    def batch(self, step: int, *, system: int, systems: int) -> tuple[Array, Array]:
        """Inputs and targets: the share of ``system`` (from 0) of ``systems`` in the batch of that step (from 0).

        A function of its arguments alone, so that whoever goes on from a checkpoint sees the same data.
        """
        ...


class ModelType(Protocol):
    """A class of models; ``Params`` stands on it too."""

    def __call__(self, params: Any, /) -> Model: ...  # noqa: ANN401 - its own Params


class SourceType(Protocol):
    """A class of sources; ``Params`` stands on it too."""

    def __call__(self, params: Any, /) -> Source: ...  # noqa: ANN401 - its own Params


@dataclass(frozen=True, slots=True)
class Program:
    """What is trained, and on what.

    Attributes:
        model: its class; ``Params`` are the section ``model:``.
        train: the class of the batches that it is trained on, or None; ``Params`` are ``train_input:``.
        eval: of those that it is measured with, or None; ``Params`` are ``eval_input:``.
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
    """``program``, if its parts are what ``run`` needs.

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
