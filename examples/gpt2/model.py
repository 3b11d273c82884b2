"""A decoder-only transformer of GPT-2's kind (Radford et al., "Language Models are Unsupervised Multitask Learners").

Written as a row of layers, for weights are streamed to a system layer by layer. All blocks are one program: they differ
in nothing but the values of their weights. Tokens are bytes, so there is no tokenizer and nothing to download.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moorings.appliance.layers import Layer

Weights = Mapping[str, jax.Array]
FirstWeights = dict[str, npt.NDArray[np.float32]]
Init = Callable[[np.random.Generator], FirstWeights]

SPREAD = 0.02  # of the first weights, as in GPT-2


@dataclass(frozen=True)
class ModelParams:
    """The section ``model`` of a params file.

    Attributes:
        vocab_size: tokens there are: 256 for bytes.
        max_position_embeddings: tokens in a row, at most.
        hidden_size: numbers that stand for a token between the layers.
        num_hidden_layers: blocks.
        num_heads: of the attention in each block; divides ``hidden_size``.
        filter_size: numbers in the middle of a block's MLP; 0: four times ``hidden_size``.
        layer_norm_epsilon: keeps norms finite.
    """

    vocab_size: int = 256
    max_position_embeddings: int = 128
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_heads: int = 4
    filter_size: int = 0
    layer_norm_epsilon: float = field(default=1e-5)

    def check(self) -> None:
        """Raises ValueError for values that cannot be."""
        for name in ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: it is at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} heads do not divide a hidden_size of {self.hidden_size}")
        if self.filter_size < 0:
            raise ValueError("filter_size: it is at least 0, and 0 means four times hidden_size")


class GPT2:
    """The model: embeddings, blocks, and a head that tells the loss."""

    Params = ModelParams

    def __init__(self, params: ModelParams) -> None:
        self.params = params

    def layers(self) -> Sequence[Layer]:
        """Its layers, in order."""
        p = self.params
        blocks = [Layer(f"block_{n}", "block", block_weights(p), apply_block(p)) for n in range(p.num_hidden_layers)]
        return [Layer("embedding", "embedding", embedding_weights(p), embed), *blocks, head(p)]


def embedding_weights(p: ModelParams) -> Init:
    """A vector for each token, and one for each position."""

    def init(rng: np.random.Generator) -> FirstWeights:
        return {
            "token": normal(rng, p.vocab_size, p.hidden_size),
            "position": normal(rng, p.max_position_embeddings, p.hidden_size, spread=SPREAD / 2),
        }

    return init


def embed(w: Weights, tokens: jax.Array) -> jax.Array:
    """Vectors ``(rows, length, hidden)`` for tokens ``(rows, length)``."""
    return w["token"][tokens] + w["position"][: tokens.shape[1]]


def block_weights(p: ModelParams) -> Init:
    """Of one block; what is added to its input begins smaller the more blocks there are, as in GPT-2."""
    hidden, middle = p.hidden_size, p.filter_size or 4 * p.hidden_size
    last = SPREAD / math.sqrt(2 * p.num_hidden_layers)

    def init(rng: np.random.Generator) -> FirstWeights:
        return {
            "norm1": ones(hidden),
            "norm1_bias": zeros(hidden),
            "qkv": normal(rng, hidden, 3 * hidden),
            "qkv_bias": zeros(3 * hidden),
            "out": normal(rng, hidden, hidden, spread=last),
            "out_bias": zeros(hidden),
            "norm2": ones(hidden),
            "norm2_bias": zeros(hidden),
            "up": normal(rng, hidden, middle),
            "up_bias": zeros(middle),
            "down": normal(rng, middle, hidden, spread=last),
            "down_bias": zeros(hidden),
        }

    return init


def apply_block(p: ModelParams) -> Callable[[Weights, jax.Array], jax.Array]:
    """Causal attention, then an MLP; each reads a norm of its input and is added to it."""

    def apply(w: Weights, x: jax.Array) -> jax.Array:
        y = layer_norm(x, w["norm1"], w["norm1_bias"], p.layer_norm_epsilon)
        x = x + attend(y @ w["qkv"] + w["qkv_bias"], p.num_heads) @ w["out"] + w["out_bias"]
        y = layer_norm(x, w["norm2"], w["norm2_bias"], p.layer_norm_epsilon)
        return x + jax.nn.gelu(y @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]

    return apply


def attend(qkv: jax.Array, heads: int) -> jax.Array:
    """What each token gathers from itself and those before it; ``qkv`` is ``(rows, length, 3 * hidden)``."""
    rows, length, width = qkv.shape
    size = width // 3 // heads
    apart = (part.reshape(rows, length, heads, size) for part in jnp.split(qkv, 3, axis=-1))
    q, k, v = (part.transpose(0, 2, 1, 3) for part in apart)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size)
    earlier = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf), axis=-1)
    return (shares @ v).transpose(0, 2, 1, 3).reshape(rows, length, width // 3)


def head(p: ModelParams) -> Layer:
    """The last layer: a norm, log-probabilities of the next token, and the mean loss in nats."""

    def init(rng: np.random.Generator) -> FirstWeights:
        return {
            "norm": ones(p.hidden_size),
            "norm_bias": zeros(p.hidden_size),
            "logits": normal(rng, p.hidden_size, p.vocab_size),
        }

    def apply(w: Weights, x: jax.Array, targets: jax.Array) -> jax.Array:
        y = layer_norm(x, w["norm"], w["norm_bias"], p.layer_norm_epsilon)
        log_probabilities = jax.nn.log_softmax(y @ w["logits"], axis=-1)
        return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()

    return Layer("head", "head", init, apply)


def layer_norm(x: jax.Array, gain: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Each vector with mean 0 and variance 1, then scaled and moved."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * gain + bias


def normal(rng: np.random.Generator, *shape: int, spread: float = SPREAD) -> npt.NDArray[np.float32]:
    """Weights drawn from a normal distribution."""
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)


def ones(size: int) -> npt.NDArray[np.float32]:
    """Gains to begin with."""
    return np.ones(size, np.float32)


def zeros(size: int) -> npt.NDArray[np.float32]:
    """Biases to begin with."""
    return np.zeros(size, np.float32)
