"""The digits: 1,797 pictures of 8 x 8 grey values, and which rank computes on which.

They are the test part of "Optical Recognition of Handwritten Digits" (UCI Machine Learning Repository), which
scikit-learn carries inside its package: nothing is downloaded. The split into training and test set is fixed, not
drawn from `--seed`, so that figures of different runs compare; nothing was ever chosen by looking at the test set.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CLASSES = 10
PIXELS = 64

TEST_SHARE = 0.25
SPLIT_SEED = 20240229
BRIGHTEST = 16.0

Images = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digits:
    """Images `(n, 64)` with values from 0 to 1, labels `(n,)` from 0 to 9."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def load() -> Digits:
    """The digits, split with the same share of each class on both sides."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images / BRIGHTEST, labels.astype(np.int64), test_size=TEST_SHARE, stratify=labels, random_state=SPLIT_SEED
    )
    return Digits(train_images, train_labels, test_images, test_labels)


def shuffled(count: int, seed: int, epoch: int) -> Rows:
    """The order `(count,)` in which an epoch visits the rows: the same on every rank, and after a resume."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def shard(rows: Rows, rank: int, world_size: int) -> Rows:
    """This rank's part of `rows`. The parts are disjoint, together they are `rows`, and one may be empty."""
    return np.array_split(rows, world_size)[rank]
