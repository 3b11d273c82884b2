"""The layer: the unit in which a model is written, compiled and streamed.

A model is a sequence of layers and not one function: an appliance keeps the weights beside the systems and streams them
layer by layer, so a system never holds a model, however large it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Weights = Mapping[str, npt.NDArray[np.float32]]

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a model.

    Attributes:
        name: unique in its model; names its weights in checkpoints (letters, digits, ``_``, ``.`` and ``-``).
        program: layers with the same program differ only in the values of their weights, and are compiled once.
        init: returns the first weights by name, float32, drawn from the given generator; ``{}`` if it has none.
        apply: ``apply(weights, x) -> y`` in JAX; for the last layer ``apply(weights, x, targets) -> mean loss`` over
            the given rows. It has no side effects and uses no randomness: the backward pass runs it a second time.
    """

    name: str
    program: str
    init: Callable[[np.random.Generator], Mapping[str, npt.NDArray[np.generic]]]
    apply: Callable[..., Any]
