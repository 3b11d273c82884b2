"""The network: 64 pixels, one hidden layer of tanh, 10 classes. Pure functions of flat vectors.

All the weights live in one vector, so what travels between the processes and what goes into a checkpoint is simply
that vector. Losses and gradients are *sums* over the rows given, never means: sums of shards add up to the sum of
the batch whatever the shards' sizes, and one division by the batch's size at the end weights every row alike.

tanh, not ReLU: it is smooth, so a difference in the last bit (another number of processes adds in another order)
stays one in the last bits.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


class Sizes(NamedTuple):
    """Units in each layer."""

    inputs: int
    hidden: int
    classes: int

    @property
    def weights(self) -> int:
        """The length of the vector that holds all the weights."""
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes


class Layers(NamedTuple):
    """The same numbers as the flat vector, as matrices; they are views, so writing to them writes to the vector."""

    hidden: Matrix
    hidden_bias: Vector
    output: Matrix
    output_bias: Vector


def layers(weights: Vector, sizes: Sizes) -> Layers:
    """Views into `weights`: `(inputs, hidden)`, `(hidden,)`, `(hidden, classes)`, `(classes,)`."""
    inputs, hidden, classes = sizes
    shapes = [(inputs, hidden), (hidden,), (hidden, classes), (classes,)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    assert ends[-1] == weights.size, f"{weights.size} weights for layers of {ends[-1]}"
    parts = np.split(weights, ends[:-1])
    return Layers(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))


def initial_weights(sizes: Sizes, seed: int) -> Vector:
    """Random weights with the spread that keeps signals' variance from layer to layer (Glorot and Bengio, 2010)."""
    random = np.random.default_rng(seed)
    weights = np.zeros(sizes.weights)
    views = layers(weights, sizes)
    for matrix in (views.hidden, views.output):
        limit = np.sqrt(6.0 / sum(matrix.shape))
        matrix[:] = random.uniform(-limit, limit, matrix.shape)
    return weights


def loss_and_gradient(weights: Vector, sizes: Sizes, images: Matrix, labels: Labels) -> tuple[float, Vector]:
    """Cross-entropy in nats and its gradient `(sizes.weights,)`, both summed over the rows; zero for no rows."""
    w = layers(weights, sizes)
    activity = np.tanh(images @ w.hidden + w.hidden_bias)
    log_odds = activity @ w.output + w.output_bias
    log_odds -= log_odds.max(axis=1, keepdims=True)
    log_probabilities = log_odds - np.log(np.exp(log_odds).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    loss = -float(log_probabilities[rows, labels].sum())

    gradient = np.empty_like(weights)
    g = layers(gradient, sizes)
    d_output = np.exp(log_probabilities)
    d_output[rows, labels] -= 1.0
    d_hidden = (d_output @ w.output.T) * (1.0 - activity**2)
    g.output[:] = activity.T @ d_output
    g.output_bias[:] = d_output.sum(axis=0)
    g.hidden[:] = images.T @ d_hidden
    g.hidden_bias[:] = d_hidden.sum(axis=0)
    return loss, gradient


def momentum_step(
    weights: Vector, velocity: Vector, gradient: Vector, *, learning_rate: float, momentum: float
) -> tuple[Vector, Vector]:
    """The weights and the velocity after one step of gradient descent with momentum (Polyak's)."""
    velocity = momentum * velocity - learning_rate * gradient
    return weights + velocity, velocity


def count_correct(weights: Vector, sizes: Sizes, images: Matrix, labels: Labels) -> int:
    """How many of the rows the network names rightly."""
    w = layers(weights, sizes)
    log_odds = np.tanh(images @ w.hidden + w.hidden_bias) @ w.output + w.output_bias
    return int((log_odds.argmax(axis=1) == labels).sum())
