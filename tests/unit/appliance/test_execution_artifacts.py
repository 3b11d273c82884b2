"""Compiling: what is found again, what is made again, and what a model must be."""

import contextlib
import importlib
import json
import os
import re
import signal
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moorings.appliance.execution import artifacts, compilation, programs
from moorings.appliance.execution.compilation import build_key, compile_model, find_sources
from moorings.appliance.execution.task_main import run_task
from moorings.appliance.job_spec import ApplianceJobSpec
from moorings.appliance.layers import Layer
from moorings.appliance.program import Program
from moorings.core.model.errors import MooringsError
from tests.unit.appliance.tiny import Tiny, batch_of, compiled, order_in


def compile_it(order: ApplianceJobSpec, told: list[str] | None = None) -> compilation.CompileResult:
    key = build_key(Tiny, order, batch_of(order))
    layers = list(Tiny(Tiny.Params(**order.params["model"])).layers())
    return compile_model(layers, order, batch_of(order), key, (told if told is not None else []).append)


def compile_one_layer(order: ApplianceJobSpec, told: list[str] | None = None) -> compilation.CompileResult:
    """A model that XLA compiles in a tenth of the time."""
    layers = [Layer("only", "only", nothing, mean)]
    return compile_model(layers, order, BATCH, "0" * 64, (told if told is not None else []).append)


def artifact_in(order: ApplianceJobSpec) -> Path:
    """The folder of the order's artifact, which is there."""
    return artifacts.user_folder(Path(order.compile_dir)) / str(compiled(order).artifact)


def fail(*_arguments: Any) -> Any:
    raise AssertionError("it was compiled")


def test_a_second_compile_finds_the_first_and_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order = order_in(tmp_path)
    first = compile_it(order)
    assert not first.found
    monkeypatch.setattr(programs, "export_model", fail)
    second = compile_it(order)
    assert second.found
    assert second.artifact.folder == first.artifact.folder
    modes = {path.stat().st_mode & 0o777 for path in first.artifact.folder.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert first.artifact.folder.stat().st_mode & 0o777 == 0o700


def test_what_xla_made_is_in_the_artifact_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = compile_it(order_in(tmp_path))
    cached = list((found.artifact.folder / "xla" / artifacts.cpu_kind()).iterdir())
    assert len([path for path in cached if path.name.endswith("-cache")]) == len(found.artifact.manifest["programs"])
    from jax._src import compiler  # nothing public tells whether XLA is asked

    monkeypatch.setattr(compiler, "backend_compile_and_load", fail)
    compilation.load_programs(found.artifact)
    monkeypatch.setattr(compilation, "cpu_kind", lambda: "another")
    with pytest.raises(AssertionError, match="it was compiled"):
        compilation.load_programs(found.artifact)


@pytest.mark.parametrize("harm", ["change", "cut", "remove", "manifest", "foreign manifest", "outside"])
def test_a_damaged_artifact_is_made_anew_and_that_is_said(tmp_path: Path, harm: str):
    order = order_in(tmp_path)
    folder = compile_one_layer(order).artifact.folder
    file = folder / "programs" / "0.mlir"
    manifest = folder / "manifest.json"
    match harm:
        case "change":
            file.write_bytes(file.read_bytes().replace(b"StableHLO", b"StableHLP", 1)[:-1] + b"!")
        case "cut":
            file.write_bytes(file.read_bytes()[:10])
        case "remove":
            file.unlink()
        case "manifest":
            manifest.write_text(manifest.read_text()[:-20])
        case "foreign manifest":
            manifest.write_text("[1, 2]")
        case _:
            record = json.loads(manifest.read_text())
            record["files"]["../../x"] = {"size": 0, "sha256": ""}
            manifest.write_text(json.dumps(record))
    told: list[str] = []
    again = compile_one_layer(order, told)
    assert not again.found
    assert len(told) == 1
    assert re.search("cannot be used: .*: it is compiled again$", told[0])
    assert compile_one_layer(order).found
    assert [path.name for path in artifacts.user_folder(Path(order.compile_dir)).iterdir()] == [again.artifact.key]


def test_two_that_compile_the_same_at_the_same_time_both_end_well(tmp_path: Path):
    order = order_in(tmp_path)
    key = artifacts.artifact_key({"a": 1})

    def make(text: bytes) -> artifacts.Artifact:
        with artifacts.ArtifactDraft(Path(order.compile_dir), key) as draft:
            draft.write("programs/0", text)
            return draft.publish({"by": text.decode()})

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(make, [b"%d" % n for n in range(24)]))
    assert len({each.manifest["by"] for each in found}) == 1
    assert {each.read("programs/0") for each in found} == {found[0].manifest["by"].encode()}
    assert [path.name for path in Path(order.compile_dir).iterdir()] == [key]


def test_a_damaged_one_that_others_left_in_the_way_is_replaced(tmp_path: Path):
    order = order_in(tmp_path)
    key = artifacts.artifact_key({"a": 1})
    with artifacts.ArtifactDraft(Path(order.compile_dir), key) as draft:
        (Path(order.compile_dir) / key).mkdir()
        (Path(order.compile_dir) / key / "rubbish").write_text("")
        draft.write("x", b"y")
        assert draft.publish({}).read("x") == b"y"
    assert artifacts.find_artifact(Path(order.compile_dir), key) is not None


def test_what_a_killed_compile_left_goes_after_a_day(tmp_path: Path):
    order = order_in(tmp_path)
    key = artifacts.artifact_key({"a": 1})
    old = Path(order.compile_dir) / f".{key}.1-abc"
    young = Path(order.compile_dir) / f".{key}.2-abc"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 90_000,) * 2)
    with artifacts.ArtifactDraft(Path(order.compile_dir), key):
        assert not old.exists()
        assert young.exists()


def test_a_compile_that_fails_leaves_nothing(tmp_path: Path):
    order = order_in(tmp_path)
    layers = [Layer("only", "only", lambda _r: {}, lambda _w, x, _t: x.nothing)]
    with pytest.raises(
        MooringsError, match=r"layer only cannot be traced: AttributeError: .*test_execution_artifacts.py:[0-9]+\)"
    ):
        compile_model(layers, order, batch_of(order), "0" * 64, lambda _line: None)
    assert list(artifacts.user_folder(Path(order.compile_dir)).iterdir()) == []


def test_a_compile_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    order = order_in(tmp_path, compile_dir=str(tmp_path / "file" / "compile"))
    with pytest.raises(MooringsError, match=r"file/compile/\d+ cannot be used: Not a directory"):
        compile_it(order)


def test_the_key_changes_with_whatever_the_program_is_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order = order_in(tmp_path)
    base = build_key(Tiny, order, batch_of(order))
    assert build_key(Tiny, order, batch_of(order)) == base
    inputs, targets = batch_of(order)
    keys = {
        base,
        build_key(Tiny, replace(order, params={**order.params, "model": {"hidden": 16}}), batch_of(order)),
        build_key(Tiny, replace(order, systems=2), batch_of(order)),
        build_key(Tiny, replace(order, program="eval"), batch_of(order)),
        build_key(Tiny, order, (inputs[:4], targets[:4])),
        build_key(Tiny, order, (inputs.astype(np.int64), targets)),
    }
    other = {**order.params, "optimizer": {"learning_rate": 7}, "runconfig": {"seed": 9}}
    assert build_key(Tiny, replace(order, params=other, weight_servers=5), batch_of(order)) == base
    monkeypatch.setattr(compilation, "find_sources", lambda _model: {"model.py": b"changed"})
    keys.add(build_key(Tiny, order, batch_of(order)))
    monkeypatch.setattr(jax, "__version__", "0.0.0")
    keys.add(build_key(Tiny, order, batch_of(order)))
    assert len(keys) == 8


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def test_users_of_one_compile_folder_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order = order_in(tmp_path)
    theirs = artifact_in(order)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(MooringsError, match=r"4711 cannot be used: it is not yours alone") as caught:
        compile_it(order)  # what the kernel says is still another user's
    assert (caught.value.code, "--compile_dir" in caught.value.hint) == ("execution.failed", True)
    monkeypatch.undo()
    assert theirs.parent == Path(order.compile_dir) / str(os.getuid())
    assert theirs.parent.stat().st_mode & 0o777 == 0o700
    assert compile_it(order).found


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (lambda own: own.symlink_to("/tmp"), "it is no folder"),
        (lambda own: own.write_text(""), "it is no folder"),
        (lambda own: (own.mkdir(), own.chmod(0o777)), "it is not yours alone"),
    ],
)
def test_a_folder_that_others_may_have_put_there_is_not_used(tmp_path: Path, put: Callable[[Path], Any], why: str):
    order = order_in(tmp_path)
    Path(order.compile_dir).mkdir()
    put(Path(order.compile_dir) / str(os.getuid()))
    with pytest.raises(MooringsError, match=why) as caught:
        compile_it(order)
    assert caught.value.code == "execution.failed"


def test_a_damaged_one_that_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order = order_in(tmp_path)
    (artifact_in(order) / "manifest.json").write_text("")

    def refuse(_self: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")  # root may remove anything, and tests may run as root

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(MooringsError, match=r"cannot be written to .*: Operation not permitted") as caught:
        compile_it(order)
    assert (caught.value.code, bool(caught.value.hint)) == ("execution.failed", True)


class Ending:
    """A model in whose tracing the end is asked for, at the call of that number, and which may catch too much."""

    @dataclass(frozen=True)
    class Params:
        call: int = 1
        catches: str = ""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.calls = 0

    def layers(self) -> list[Layer]:
        return [Layer("only", "only", nothing, self.apply)]

    def apply(self, _w: Any, x: Any, t: Any) -> Any:
        self.calls += 1
        if self.calls == self.params.call:
            caught = {"": (), "much": (Exception,), "all": (BaseException,)}[self.params.catches]
            with contextlib.suppress(*caught):
                os.kill(os.getpid(), signal.SIGTERM)
        return ((x.mean(-1) - t) ** 2).mean()


class Zeros:
    """Batches of zeros."""

    @dataclass(frozen=True)
    class Params:
        batch_size: int = 2

    def __init__(self, params: Params) -> None:
        pass

    def batch(self, step: int, *, system: int, systems: int) -> tuple[Any, Any]:
        return BATCH


@pytest.mark.parametrize("call", [1, 2])  # when it is traced, and when it is exported
@pytest.mark.parametrize("catches", ["", "much", "all"])
def test_an_end_while_compiling_is_no_error(tmp_path: Path, call: int, catches: str, capfd: pytest.CaptureFixture[str]):
    order = order_in(tmp_path, act="compile", params={"model": {"call": call, "catches": catches}})
    assert run_task(order, Program(Ending, Zeros)) == 143
    assert capfd.readouterr().err == ""
    assert not order.result_file.exists()
    left = [path.name for path in artifacts.user_folder(Path(order.compile_dir)).iterdir()]
    assert not left or (catches == "all" and len(left[0]) == 64)  # a whole one, made before the end was seen


def test_the_sources_of_a_model_are_those_it_imports_from_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(
        tmp_path,
        {
            "my_model_x.py": """
                import json, numpy as np
                import my_parts_x.norms
                from my_parts_x import blocks
                class Model:
                    def layers(self):
                        from my_late_x import more
                        return []
            """,
            "my_parts_x/__init__.py": "",
            "my_parts_x/norms.py": "from . import sums",
            "my_parts_x/sums.py": "",
            "my_parts_x/blocks.py": "from .sums import add",
            "my_parts_x/unused.py": "",
            "my_late_x.py": "",
            "data_x.py": "",
            "json.py": "shadow = True",
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_parts_x" / "sums.py").write_text("def add(): ...")
    model = importlib.import_module("my_model_x").Model
    assert sorted(find_sources(model)) == [
        "my_late_x.py",
        "my_model_x.py",
        "my_parts_x/__init__.py",
        "my_parts_x/blocks.py",
        "my_parts_x/norms.py",
        "my_parts_x/sums.py",
    ]


def test_the_sources_of_a_model_in_a_package_are_found_from_its_root():
    assert "tests/unit/appliance/tiny.py" in find_sources(Tiny)


BATCH = (np.zeros((2, 3), np.float32), np.zeros(2, np.float32))


def same(_w: Any, x: Any) -> Any:
    return x


def mean(_w: Any, x: Any, t: Any) -> Any:
    return ((x.mean(-1) - t) ** 2).mean()


def nothing(_rng: np.random.Generator) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([], "the model has no layers"),
        ([Layer("a", "a", nothing, same), Layer("a", "b", nothing, mean)], "called 'a': another one is too"),
        ([Layer("a/b", "a", nothing, mean)], "called 'a/b'"),
        ([Layer("a", "a", lambda _r: {"w/x": np.zeros(1)}, mean)], "'w/x': not a name"),
        ([Layer("a", "a", lambda _r: {"w": np.zeros(1, int)}, mean)], "not of floating point"),
        ([Layer("a", "a", nothing, lambda _w, x: x)], "cannot be traced: TypeError"),
        ([Layer("a", "a", nothing, lambda _w, x, t: (x, t))], "returns tuple, not one array"),
        ([Layer("a", "a", nothing, lambda _w, x, t: x)], r"returns float32\[2, 3\], not a loss"),
        (
            [Layer("a", "a", nothing, lambda _w, x: jnp.argmax(x, -1)), Layer("b", "b", nothing, mean)],
            "of which there is no gradient",
        ),
        (
            [
                Layer("a", "same", nothing, same),
                Layer("b", "same", nothing, lambda _w, x: 2 * x),
                Layer("c", "c", nothing, mean),
            ],
            "layer b computes something else than others with the program 'same'",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(layers: list[Layer], why: str):
    with pytest.raises(MooringsError, match=why) as caught:
        programs.export_model(layers, BATCH, "train")
    assert caught.value.code == "model.invalid"


def test_a_program_is_made_once_for_all_layers_that_share_it():
    layers = [Layer(f"l{n}", "same", nothing, same) for n in range(5)] + [Layer("end", "end", nothing, mean)]
    made = programs.export_model(layers, BATCH, "train")
    assert [(each.signature.program, each.signature.role) for each in made] == [
        ("same", "forward"),
        ("same", "backward"),
        ("end", "backward"),
    ]
    made = programs.export_model(layers, BATCH, "eval")
    assert [(each.signature.program, each.signature.role) for each in made] == [("same", "forward"), ("end", "forward")]


def test_a_model_of_one_layer_is_one_too(tmp_path: Path):
    made = programs.export_model([Layer("end", "end", nothing, mean)], BATCH, "train")
    [shape] = programs.layer_shapes_of([Layer("end", "end", nothing, mean)])
    loss, gradients, dx = programs.CompiledPrograms(made, [shape]).last_backward({}, *BATCH)
    assert (loss, gradients, dx.shape) == (0.0, {}, (2, 3))


def test_a_signature_is_read_as_it_was_written(tmp_path: Path):
    artifact = compile_it(order_in(tmp_path)).artifact
    record = json.loads((artifact.folder / "manifest.json").read_text())
    for each in record["programs"]:
        file = each.pop("file")
        assert json.loads(json.dumps(programs.Signature.parse(each).dump())) == each
        assert b"ML\xefR" in artifact.read(file)  # MLIR's bytecode


def test_compiled_gives_an_order_that_can_be_executed(tmp_path: Path):
    assert len(compiled(order_in(tmp_path)).artifact or "") == 64
