"""Checkpoints: whole or not there, and what is not one of this model is named."""

import io
import os
import re
import resource
import signal
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moorings.appliance import checkpoints as client
from moorings.appliance.execution.checkpoints import CheckpointReader, checkpoint_path, save_checkpoint
from moorings.appliance.execution.programs import LayerShape
from moorings.core.model.errors import MooringsError

LAYERS = [
    LayerShape("a", "a", {"w": (2, 3), "b": (3,)}),
    LayerShape("none", "none", {}),
    LayerShape("z", "z", {"s": ()}),
]


def part(layer: int, which: str) -> dict[str, np.ndarray]:
    factor = {"w": 1, "m": 2, "v": 3}[which]
    return {name: np.full(shape, factor * (layer + 1), np.float32) for name, shape in LAYERS[layer].weights.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = checkpoint_path(tmp_path / "model", 40)
    save_checkpoint(path, 40, LAYERS, part)
    return path


def test_what_was_saved_is_read(path: Path):
    assert path.name == "checkpoint_40.npz"
    assert path.stat().st_mode & 0o777 == 0o600
    with CheckpointReader(path, LAYERS) as checkpoint:
        assert checkpoint.step == 40
        for layer in range(len(LAYERS)):
            for which in ("w", "m", "v"):
                found = checkpoint.part(layer, which)
                assert found.keys() == part(layer, which).keys()
                for name, value in part(layer, which).items():
                    np.testing.assert_array_equal(found[name], value)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_client_takes_it_for_a_whole_one(path: Path):
    assert client.find_newest(path.parent) == (client.CheckpointFile(path, 40), [])


def test_its_size_is_told(tmp_path: Path):
    path = checkpoint_path(tmp_path, 1)
    assert save_checkpoint(path, 1, LAYERS, part) == path.stat().st_size


def read_all(path: Path) -> None:
    with CheckpointReader(path, LAYERS) as checkpoint:
        for layer in range(len(LAYERS)):
            for which in ("w", "m", "v"):
                checkpoint.part(layer, which)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def change(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(np.full(6, 1, np.float32).tobytes())
    path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])


def rubbish(path: Path) -> None:
    path.write_bytes(b"rubbish")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pickled(path: Path) -> None:
    np.savez(path, step=np.array(object()), format=np.int64(1), allow_pickle=True)


def bare_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")


def other_model(path: Path) -> None:
    save_checkpoint(
        path,
        40,
        [*LAYERS, LayerShape("more", "more", {"w": (1,)})],
        lambda n, w: part(n, w) if n < 3 else {"w": np.zeros(1, np.float32)},
    )


def other_shape(path: Path) -> None:
    save_checkpoint(
        path,
        40,
        LAYERS,
        lambda n, w: part(n, w) if n else {"w": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.float32)},
    )


def members(path: Path, member: str, content: bytes, how: int = zipfile.ZIP_STORED, *, twice: bool = False) -> None:
    """The same file, with another content of that member."""
    with zipfile.ZipFile(path) as archive:
        kept = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, each in kept.items():
            if name != member or twice:
                archive.writestr(name, each)
        archive.writestr(member, content, how)


def header(shape: tuple[int, ...], kind: str) -> bytes:
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": kind, "fortran_order": False, "shape": shape})
    return text.getvalue()


def endless_step(path: Path) -> None:
    members(path, "step.npy", header((1 << 40,), "<i8") + bytes(8))


def endless_weights(path: Path) -> None:
    members(path, "w/a/w.npy", header((1 << 20, 1 << 20), "<f4") + bytes(24))


def too_long(path: Path) -> None:
    members(path, "w/a/w.npy", header((2, 3), "<f4") + bytes(24 + (64 << 20)))


def too_short(path: Path) -> None:
    members(path, "w/a/w.npy", header((2, 3), "<f4") + bytes(20))


def bomb(path: Path) -> None:
    members(path, "w/a/w.npy", header((2, 3), "<f4") + bytes(256 << 20), zipfile.ZIP_DEFLATED)


def deep(path: Path) -> None:
    text = b"(" * 200
    members(path, "step.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def long_header(path: Path) -> None:
    members(path, "step.npy", b"\x93NUMPY\x01\x00\xff\xff" + b" " * 65535)


def twice(path: Path) -> None:
    members(path, "step.npy", header((), "<i8") + bytes(8), twice=True)


def another_kind(path: Path) -> None:
    members(path, "w/a/b.npy", header((3,), "|O") + b"cos\nsystem\n")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def lying(path: Path) -> None:
    """The table of contents says that a member begins far behind the end."""
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 42 : at + 46] = b"\xf0\xff\xff\x7f"
    path.write_bytes(content)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (cut, "damaged, or no checkpoint"),
        (change, "damaged, or no checkpoint"),
        (rubbish, "damaged, or no checkpoint"),
        (empty, "damaged, or no checkpoint"),
        (pickled, "it has no m/a/b"),
        (bare_npy, "damaged, or no checkpoint"),
        (other_zip, "it has no "),
        (other_model, "it has m/more/w, which the model has not"),
        (other_shape, r"w/a/w is float32\[3, 2\], the model has float32\[2, 3\]"),
        (endless_step, r"step is int64\[1099511627776\], the model has int64\[\]"),
        (endless_weights, r"w/a/w is float32\[1048576, 1048576\], the model has"),
        (too_long, "w/a/w is not as long as it says"),
        (too_short, "w/a/w is not as long as it says"),
        (bomb, "w/a/w is packed"),
        (deep, "damaged, or no checkpoint"),
        (long_header, "damaged, or no checkpoint"),
        (twice, "it has a file more than once"),
        (another_kind, r"w/a/b is object\[3\], the model has"),
        (pipe, "it is no file"),
        (folder, "it is no file"),
        (lying, "damaged, or no checkpoint"),
        (gone, "No such file"),
    ],
)
def test_what_is_none_is_named(path: Path, harm: Callable[[Path], None], why: str):
    harm(path)
    tracemalloc.start()
    try:
        with pytest.raises(MooringsError) as caught:
            read_all(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # whatever it claims
    finally:
        tracemalloc.stop()
    assert caught.value.code == "checkpoint.invalid"
    assert str(path) in caught.value.detail
    assert re.search(why, caught.value.detail), caught.value.detail


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.9, 0.99])
def test_a_full_disk_is_said_and_leaves_what_was_there(path: Path, share: float):
    before = path.read_bytes()
    room = int(share * len(before))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(MooringsError, match=r"checkpoint .*checkpoint_40\.npz cannot be written: File too large"):
            save_checkpoint(path, 40, LAYERS, part)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MooringsError, match="cannot be written"):
        save_checkpoint(tmp_path / "file" / "checkpoint_1.npz", 1, LAYERS, part)
