"""The text: the sources of Python's own standard library, which every machine that runs this has; tokens are bytes.

Every twentieth file is kept apart, to measure with; nothing is trained on it. The tests of the standard library are
left out (half of its bytes, and much of them tables). Another release of Python has slightly other text."""

import os
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

LEFT_OUT = {"__pycache__", "dist-packages", "idlelib", "lib2to3", "site-packages", "test", "tests"}
APART = 20  # one file of so many is measured with

Tokens = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TextParams:
    """The sections ``train_input`` and ``eval_input`` of a params file.

    Attributes:
        batch_size: rows in a batch, over all systems.
        max_sequence_length: tokens in a row.
        split: which part of the text.
        shuffle_seed: of the places that rows are taken from.
    """

    batch_size: int
    max_sequence_length: int = 128
    split: Literal["train", "eval"] = "train"
    shuffle_seed: int = 1

    def check(self) -> None:
        """Raises ValueError for values that cannot be."""
        for name in ("batch_size", "max_sequence_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: it is at least 1")
        if self.shuffle_seed < 0:
            raise ValueError("shuffle_seed: it is at least 0")


class Text:
    """Batches of rows of text."""

    Params = TextParams

    def __init__(self, params: TextParams) -> None:
        self.params = params
        self.tokens = load(params.split)

    def batch(self, step: int, *, system: int, systems: int) -> tuple[Rows, Rows]:
        """Tokens and the tokens that follow them, each ``(batch_size / systems, max_sequence_length)``.

        Rows begin anywhere. Which ones a batch has follows from the step alone, and each system takes its part of them.
        """
        p = self.params
        rng = np.random.default_rng([p.shuffle_seed, step])
        begins = rng.integers(0, len(self.tokens) - p.max_sequence_length, p.batch_size)
        mine = np.split(begins, systems)[system]
        rows = self.tokens[mine[:, None] + np.arange(p.max_sequence_length + 1)].astype(np.int32)
        return rows[:, :-1], rows[:, 1:]


@cache
def load(split: str) -> Tokens:
    """All bytes of one part of the text."""
    chosen = [path for n, path in enumerate(files()) if (n % APART == 0) == (split == "eval")]
    return np.frombuffer(b"\n".join(path.read_bytes() for path in chosen), np.uint8)


def files() -> list[Path]:
    """The standard library's sources, sorted."""
    found = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)
