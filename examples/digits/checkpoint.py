"""Checkpoints: named arrays in one file that is whole or is not there.

A job may be killed in the middle of a write, and what remains is what the next attempt is given to continue from.
So the data goes to a temporary file, reaches the disk, and only then gets its name.

Refused: pickle, which runs whatever the file says; an .npz of plain arrays cannot.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.generic]]


class CheckpointError(Exception):
    """A checkpoint cannot be written, or the one to continue from cannot be used."""


def path_for(folder: Path, step: int) -> Path:
    """Where the state after `step` steps is kept; names sort by step."""
    return folder / f"step-{step:08d}.npz"


def save(path: Path, arrays: Arrays) -> None:
    """Write `arrays` to `path`, durably and all at once. Raises CheckpointError; `path` is then as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes any name for `allow_pickle`
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error


def load(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays that were saved at `path`. Raises CheckpointError if it is missing or not a whole checkpoint."""
    try:
        # Opened here: NumPy leaves a file that it opened itself, and cannot read, to the garbage collector.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"cannot continue from {path}: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Makes the new name itself survive a power cut: a rename is in the folder, not in the file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
