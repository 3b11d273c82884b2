"""One step of one system: weights come layer by layer, forward and again backward, and gradients are sent back.

A system holds its batch's activations between the layers, as a wafer does, and the weights of at most
two layers: the one it computes, and the one on its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from moorings.appliance.execution.connections import ServerConnections
from moorings.appliance.execution.frames import Arrays

Batch = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


class LayerPrograms(Protocol):
    """The compiled programs of a model's layers, by number."""

    def forward(self, layer: int, weights: Arrays, x: Any) -> Any:  # noqa: ANN401 - JAX's arrays
        """The result of the layer for ``x``."""
        ...

    def backward(self, layer: int, weights: Arrays, x: Any, dy: Any) -> tuple[Arrays, Any]:  # noqa: ANN401
        """The gradients of the layer's weights and of ``x``, given that of the layer's result."""
        ...

    def loss(self, weights: Arrays, x: Any, targets: Any) -> float:  # noqa: ANN401
        """The mean loss, from the last layer."""
        ...

    def last_backward(self, weights: Arrays, x: Any, targets: Any) -> tuple[float, Arrays, Any]:  # noqa: ANN401
        """The same with the gradients of the last layer's weights and of ``x``."""
        ...


def stream_weights(links: ServerConnections, layers: Sequence[int], step: int) -> Iterator[tuple[int, Arrays]]:
    """The weights of these layers, one after the other; the next ones are requested while these are used."""
    for at, layer in enumerate(layers):
        if at == 0:
            links.weights_connection(layer).send("weights", layer=layer, step=step)
        weights = links.weights_connection(layer).receive().arrays
        if at + 1 < len(layers):
            following = layers[at + 1]
            links.weights_connection(following).send("weights", layer=following, step=step)
        yield layer, weights
        del weights  # before the next are received


def train_step(programs: LayerPrograms, links: ServerConnections, count: int, step: int, batch: Batch) -> float:
    """One system's loss of a step; its gradients have been sent to the servers.

    Args:
        programs: of the model.
        links: of the system.
        count: the number of layers.
        step: steps done so far.
        batch: the system's share.
    """
    x, targets = batch
    last = count - 1
    inputs: list[Any] = []
    order = [*range(last), *reversed(range(count))]
    gradient: Any = None
    loss = float("nan")
    for at, (layer, weights) in enumerate(stream_weights(links, order, step)):
        if at < last:
            inputs.append(x)
            x = programs.forward(layer, weights, x)
            continue
        if layer == last:
            loss, gradients, gradient = programs.last_backward(weights, x, targets)
        else:
            gradients, gradient = programs.backward(layer, weights, inputs.pop(), gradient)
        links.control_connection(layer).send("gradients", gradients, layer=layer, step=step)
    return loss


def eval_batch(programs: LayerPrograms, links: ServerConnections, count: int, step: int, batch: Batch) -> float:
    """One system's loss of a batch, without gradients."""
    x, targets = batch
    for layer, weights in stream_weights(links, range(count), step):
        if layer == count - 1:
            return programs.loss(weights, x, targets)
        x = programs.forward(layer, weights, x)
    raise AssertionError("a model has a layer")


def apply_step(links: ServerConnections, step: int, scale: Callable[[float], float]) -> float:
    """Make the servers take a step once all systems' gradients are there; return the norm of all gradients together.

    In two phases, for the norm is of all layers and each server has some: squares up, then one scale down. The sum has
    the order of the layers, whichever servers have them.

    Args:
        links: of the first system.
        step: steps done so far.
        scale: gives the factor for gradients with that norm; raises to prevent the step.
    """
    squares = sorted(pair for answer in links.call_all("squares") for pair in answer["squares"])
    norm = math.sqrt(sum(value for _, value in squares))
    links.call_all("apply", step=step, scale=scale(norm))
    return norm
