"""Checkpoints: ``model_dir/checkpoint_<step>.npz``, with the weights, the optimizer's state and the step.

An .npz (a zip of npy files) that NumPy reads without us: ``w/<layer>/<name>``, ``m/...`` and ``v/...`` (AdamW's
moments), ``step`` and ``format``. Written and read layer by layer, for a system cannot hold a whole model. It is there
whole or not at all: a temporary file, fsync, a rename, fsync of the folder. No pickle.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from moorings.appliance.execution.frames import Array, Arrays
from moorings.appliance.execution.optimizer import MOMENTS
from moorings.appliance.execution.programs import ArraySpec, LayerShape
from moorings.core.model.errors import MooringsError
from moorings.files import atomic_file

FORMAT: Final = 1
PARTS: Final = ("w", *MOMENTS)
_SUFFIX: Final = ".npy"
_HEADER_MOST: Final = 256  # of one array's npy header; NumPy pads it to 64 or 128
_BROKEN: Final = (  # the errors of zipfile and NumPy for damaged files
    *(OSError, ValueError, EOFError, TypeError, KeyError, RuntimeError, OverflowError, MemoryError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


def checkpoint_path(model_dir: Path, step: int) -> Path:
    """The path of the checkpoint after that many steps."""
    return model_dir / f"checkpoint_{step}.npz"


def save_checkpoint(path: Path, step: int, layers: Sequence[LayerShape], part: Callable[[int, str], Arrays]) -> int:
    """Write a checkpoint; return its size in bytes.

    Args:
        path: its file.
        step: steps done.
        layers: of the model.
        part: returns the arrays of a layer's part, "w", "m" or "v".

    Raises:
        MooringsError: ``checkpoint.failed``: it cannot be written; an earlier file stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name, value in _members(step, layers, part):
                    with archive.open(name + _SUFFIX, "w", force_zip64=True) as member:
                        np.lib.format.write_array(cast("Any", member), value, allow_pickle=False)
            return file.tell()
    except (OSError, ValueError) as error:  # a zip file with a failed write raises once more when closed
        first = error if isinstance(error, OSError) else error.__context__
        raise MooringsError(
            "checkpoint.failed",
            f"the checkpoint {path} cannot be written: {getattr(first, 'strerror', None) or error}",
            hint="earlier checkpoints are unchanged: free space, and start run.py again to resume from them",
        ) from error


def _members(
    step: int, layers: Sequence[LayerShape], part: Callable[[int, str], Arrays]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    yield "format", np.asarray(FORMAT, np.int64)
    yield "step", np.asarray(step, np.int64)
    for number, layer in enumerate(layers):
        for which in PARTS:
            for name, array in part(number, which).items():
                yield f"{which}/{layer.name}/{name}", array


class CheckpointReader:
    """An open checkpoint; a context manager.

    The file's headers are compared with the model before memory is allocated: another user may have put anything into a
    shared folder. Refused: ``np.load``, which allocates whatever a header says, and unpacks without limit.

    Raises:
        MooringsError: ``checkpoint.invalid``: it is missing, damaged, or of another model.
    """

    def __init__(self, path: Path, layers: Sequence[LayerShape]) -> None:
        self._path = path
        self._layers = layers
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
        except OSError as error:
            raise self._invalid(error.strerror or str(error)) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._invalid("it is no file")
        self._file = os.fdopen(descriptor, "rb")
        try:
            with self._reading():
                self._archive = zipfile.ZipFile(self._file)
            self._check_members()
            self._check_format()
            self.step: Final = self._number("step")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    def part(self, layer: int, which: str) -> Arrays:
        """The arrays of a layer's part, "w", "m" or "v"; the zip's checksums are verified."""
        shape = self._layers[layer]
        found: dict[str, Array] = {}
        for name, wanted in shape.weights.items():
            found[name] = self._read(f"{which}/{shape.name}/{name}", ArraySpec(wanted, "float32"))
        return found

    def _check_members(self) -> None:
        """Check the names and the headers; read nothing else."""
        wanted = {name: ArraySpec((), "int64") for name in ("format", "step")}
        for layer in self._layers:
            for name, shape in layer.weights.items():
                wanted |= {f"{which}/{layer.name}/{name}": ArraySpec(shape, "float32") for which in PARTS}
        members = self._archive.infolist()
        names = {member.filename.removesuffix(_SUFFIX) for member in members if member.filename.endswith(_SUFFIX)}
        if missing := sorted(wanted.keys() - names):
            raise self._invalid(f"it has no {missing[0]}: it is of another model, or of something else")
        if more := sorted(names - wanted.keys()):
            raise self._invalid(f"it has {more[0]}, which the model has not")
        if len(members) != len(wanted):
            raise self._invalid("it has a file more than once, or files that are no arrays")
        for member in members:
            name = member.filename.removesuffix(_SUFFIX)
            if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
                raise self._invalid(f"{name} is packed")
            with self._reading(), self._archive.open(member) as file:
                self._check_header(member, file.read(_HEADER_MOST), wanted[name])

    def _check_format(self) -> None:
        if self._number("format") != FORMAT:
            raise self._invalid("it is of another release")

    def _check_header(self, member: zipfile.ZipInfo, begin: bytes, wanted: ArraySpec) -> None:
        """Compare a member's header with the expected one, and with its length."""
        text = io.BytesIO(begin)
        name = member.filename.removesuffix(_SUFFIX)
        if np.lib.format.read_magic(text) != (1, 0):
            raise self._invalid(f"{name} has a header of another kind")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(text)
        if (shape, kind) != (wanted.shape, np.dtype(wanted.dtype)):
            found = f"{kind}{list(shape)}"
            raise self._invalid(f"{name} is {found[:200]}, the model has {wanted.dtype}{list(wanted.shape)}")
        if fortran or member.file_size != text.tell() + kind.itemsize * math.prod(shape):
            raise self._invalid(f"{name} is not as long as it says, or in another order")

    def _read(self, name: str, wanted: ArraySpec) -> Any:  # noqa: ANN401 - an array of that type
        member = self._archive.getinfo(name + _SUFFIX)
        with self._reading():
            with self._archive.open(member) as file:  # once more: the file may have been changed since
                self._check_header(member, file.read(_HEADER_MOST), wanted)
            with self._archive.open(member) as file:
                return np.lib.format.read_array(cast("Any", file), allow_pickle=False, max_header_size=_HEADER_MOST)

    def _number(self, name: str) -> int:
        number = int(self._read(name, ArraySpec((), "int64")))
        if number < 0:
            raise self._invalid(f"{name} is no number")
        return number

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            why = str(error)[:200] or type(error).__name__
            raise self._invalid(f"it is damaged, or no checkpoint ({why})") from error

    def _invalid(self, why: str) -> MooringsError:
        return MooringsError(
            "checkpoint.invalid",
            f"the checkpoint {self._path} cannot be resumed: {why}",
            hint="remove it to resume from the previous one, or name another model_dir",
        )
