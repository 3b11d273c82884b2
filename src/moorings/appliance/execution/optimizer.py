"""AdamW in NumPy (Loshchilov and Hutter, "Decoupled Weight Decay Regularization"), on the weight servers.

On the CPU of the weight server and not on a system: the optimizer's state is twice the weights, needs only a few
operations a number, and would have to be streamed as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from moorings.appliance.execution.frames import Array

MOMENTS: Final = ("m", "v")  # AdamW's state: mean of the gradients, and of their squares
_TINY: Final = 1e-6  # keeps the scale finite, as in PyTorch's clip_grad_norm_


@dataclass(frozen=True, slots=True)
class AdamW:
    """The settings of AdamW. Steps are counted from 0.

    Attributes:
        learning_rate: after the warm-up.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        eps: added to the root of the latter.
        weight_decay: the fraction by which a weight shrinks at each step, times the learning rate; only for weights
            with two or more dimensions, so not for biases and the gains of norms, as is usual for language models.
        max_gradient_norm: the norm of all gradients together is clipped to this; None: no clipping.
        warmup_steps: over this many steps the learning rate grows, in equal parts.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_gradient_norm: float | None = None
    warmup_steps: int = 0

    @classmethod
    def parse(cls, section: Mapping[str, Any]) -> Self:
        """From the section ``optimizer`` of an order."""
        return cls(**{name: section[name] for name in cls.__slots__ if name in section})

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if step >= self.warmup_steps:
            return self.learning_rate
        return self.learning_rate * (step + 1) / self.warmup_steps

    def scale(self, norm: float) -> float:
        """The factor for all gradients, given the norm of all together."""
        if not self.max_gradient_norm:
            return 1.0
        return min(1.0, self.max_gradient_norm / (norm + _TINY))

    def update(self, weight: Array, m: Array, v: Array, gradient: Array, *, step: int, scale: float) -> None:
        """Take one step, in place; ``gradient`` is overwritten."""
        gradient *= np.float32(scale)
        m *= np.float32(self.beta1)
        m += np.float32(1 - self.beta1) * gradient
        np.square(gradient, out=gradient)
        gradient *= np.float32(1 - self.beta2)
        v *= np.float32(self.beta2)
        v += gradient
        # The bias of both means is corrected: they began at 0.
        divisor = np.sqrt(v / np.float32(1 - self.beta2 ** (step + 1)), out=gradient)
        divisor += np.float32(self.eps)
        change = m / np.float32(1 - self.beta1 ** (step + 1))
        change /= divisor
        if weight.ndim > 1 and self.weight_decay:
            change += np.float32(self.weight_decay) * weight
        change *= np.float32(self.rate(step))
        weight -= change


def squares(gradients: Mapping[str, Array]) -> float:
    """The sum of the squares of a layer's gradients, added in the order of their names."""
    return float(sum(np.square(gradients[name], dtype=np.float64).sum() for name in sorted(gradients)))
