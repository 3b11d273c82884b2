"""Params files: what is read, and that whatever is wrong is named with its line."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.appliance.params import BYTES_MAX, parse_params, read_params
from moorings.appliance.schemas import Optimizer, RunConfig
from moorings.core.model.errors import MooringsError
from tests.cases import cases


@dataclass
class Inner:
    width: int = 2


@dataclass
class Section:
    name: str = "small"
    rate: float = 1e-3
    steps: int = 10
    tied: bool = False
    norm: float | None = None
    kind: Literal["a", "b"] = "a"
    sizes: list[int] = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)

    def check(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps: {self.steps} is less than 0")


@dataclass
class Needs:
    batch_size: int


def read(text: str, schema: type[Any] = Section) -> Any:
    document = parse_params(text, "p.yaml")
    found = document.section("model", schema)
    document.finish()
    return found


def refusal(text: str, schema: type[Any] = Section) -> MooringsError:
    with pytest.raises(MooringsError) as refused:
        read(text, schema)
    assert refused.value.code == "params.invalid"
    return refused.value


def test_values_have_the_types_of_the_schema() -> None:
    text = """
model:
  name: gpt2
  rate: 1e-4        # YAML's own rules make a string of this
  steps: 1_000
  tied: true
  norm: null
  kind: b
  sizes: [1, 2]
  inner: {width: 3}
"""
    assert read(text) == Section("gpt2", 1e-4, 1000, True, None, "b", [1, 2], Inner(3))
    assert read("model:\n  rate: 2\n  norm: 0.5\n  name: '1'\n") == Section(rate=2.0, norm=0.5, name="1")


@pytest.mark.parametrize("text", ["", "# nothing\n", "model:\n", "model: {}\n"])
def test_what_is_not_given_has_its_default(text: str) -> None:
    assert read(text) == Section()


@cases(
    ("line", "told"),
    [
        ("nam: gpt2", "p.yaml:3: the key 'nam' is not known in model"),
        ("steps: 1.0", "p.yaml:3: model.steps must be a whole number, not '1.0'"),
        ("steps: 010", "p.yaml:3: model.steps must be a whole number, not '010'"),
        ("steps: '7'", "p.yaml:3: model.steps must be a whole number, not '7'"),
        ("steps: 1:30", "p.yaml:3: model.steps must be a whole number, not '1:30'"),
        ("steps: true", "p.yaml:3: model.steps must be a whole number, not 'true'"),
        ("steps:", "p.yaml:3: model.steps must be a whole number, not nothing"),
        ("steps: -1", "p.yaml:3: model.steps: -1 is less than 0"),
        ("rate: .nan", "p.yaml:3: model.rate must be a number, not '.nan'"),
        ("rate: 1e999", "p.yaml:3: model.rate must be a number, not '1e999'"),
        ("rate: .", "p.yaml:3: model.rate must be a number, not '.'"),
        ("rate: fast", "p.yaml:3: model.rate must be a number, not 'fast'"),
        ("tied: 1", "p.yaml:3: model.tied must be true or false, not '1'"),
        ("name: no", "p.yaml:3: model.name must be text, not 'no'"),
        ("name: 7", "p.yaml:3: model.name must be text, not '7'"),
        ("name: [a]", "p.yaml:3: model.name must be text, not a list"),
        ("kind: c", "p.yaml:3: model.kind must be one of a, b, not 'c'"),
        ("sizes: 1", "p.yaml:3: model.sizes must be a list, not '1'"),
        ("sizes: [1, x]", "p.yaml:3: model.sizes[1] must be a whole number, not 'x'"),
        ("inner: 1", "p.yaml:3: model.inner must be keys and values, not '1'"),
        ("inner: {height: 1}", "p.yaml:3: the key 'height' is not known in model.inner"),
        ("norm: x", "p.yaml:3: model.norm must be a number, not 'x'"),
        ("[1]: 2", "p.yaml:3: only plain words can be keys"),
        ("<<: {steps: 3}", "p.yaml:3: only plain words can be keys"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line: str, told: str) -> None:
    assert refusal(f"# a model\nmodel:\n  {line}\n").detail == told


def test_the_nearest_key_is_suggested() -> None:
    assert refusal("model:\n  step: 1\n").hint == "did you mean 'steps'?"
    assert refusal("model:\n  zzzz: 1\n").hint.startswith("known here: inner, kind, name")
    misspelt = refusal("model: {}\nmodle: {}\n")
    assert misspelt.detail == "p.yaml:2: the section 'modle' is not known"
    assert misspelt.hint == "did you mean 'model'?"


def test_a_key_that_stands_twice_is_refused() -> None:
    assert refusal("model:\n  steps: 1\n  rate: 1\n  steps: 2\n").detail == (
        "p.yaml:4: the key 'steps' stands here for the second time (first: 2)"
    )
    assert refusal("model: {}\nmodel: {}\n").detail.startswith("p.yaml:2: the key 'model' stands here")


def test_what_must_be_given_is_missed() -> None:
    assert refusal("# x\nmodel: {}\n", Needs).detail == "p.yaml:2: model.batch_size is missing"
    assert refusal("model:\n", Needs).detail == "p.yaml:1: model.batch_size is missing"
    assert refusal("", Needs).detail == "p.yaml: model.batch_size is missing"


@cases(
    ("text", "line"),
    [
        ("model:\n  a: [1,\n", 3),
        ("model:\n\ta: 1\n", 2),
        ("a: b: c\n", 1),
        ("model: *nobody\n", 1),
        ("- 1\n- 2\n", 1),
        ("just words\n", 1),
        ("a: 1\n---\nb: 2\n", 2),
        ("model: \x01\n", None),
    ],
)
def test_what_is_not_yaml_is_named_with_its_line(text: str, line: int | None) -> None:
    assert refusal(text).detail.startswith(f"p.yaml:{line}: " if line else "p.yaml: ")


@dataclass
class Deep:
    grids: list[list[list[int]]] = field(default_factory=list)


def test_a_hostile_file_is_refused_in_bounded_time() -> None:
    refusal("[" * 50_000)
    refusal("model: " + "{a: " * 20_000)
    assert read("model:\n  grids: [&a [[1, 2]], *a]\n", Deep).grids == [[[1, 2]], [[1, 2]]]
    ones, many = ", ".join(["1"] * 60), ", ".join
    bomb = f"model:\n  grids: [&b [&a [{ones}], {many(['*a'] * 60)}], {many(['*b'] * 60)}]\n"
    assert refusal(bomb, Deep).detail == "p.yaml:2: the file holds more than 100000 values"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(MooringsError) as refused:
            read_params(path, "p.yaml")
        assert refused.value.code == "params.invalid"
        return refused.value.detail

    assert refused(tmp_path / "none.yaml") == "p.yaml: there is no such file"
    assert refused(tmp_path) == "p.yaml: no file"
    file = tmp_path / "p.yaml"
    file.write_bytes(b"model:\n  name: \xff\n")
    assert refused(file) == "p.yaml: byte 15 is not UTF-8 text"
    file.write_bytes(b"# " + b"x" * BYTES_MAX)
    assert refused(file) == f"p.yaml: the file is longer than {BYTES_MAX} bytes"


def test_a_type_that_no_file_can_hold_is_the_program_s_fault() -> None:
    @dataclass
    class Odd:
        when: object = None

    with pytest.raises(MooringsError) as refused:
        read("model:\n  when: 1\n", Odd)
    assert refused.value.code == "program.invalid"
    assert read("", Odd) == Odd()


@cases(
    ("section", "values", "told"),
    [
        (Optimizer, {"learning_rate": 0.0}, "learning_rate: 0 is not more than 0"),
        (Optimizer, {"beta1": 1.0}, "beta1: 1 is not from 0 up to 1"),
        (Optimizer, {"weight_decay": -0.1}, "weight_decay: -0.1 is less than 0"),
        (Optimizer, {"max_gradient_norm": 0.0}, "max_gradient_norm: 0 is not more than 0"),
        (RunConfig, {"num_csx": 0}, "num_csx: 0 is not from 1 to 4096"),
        (RunConfig, {"log_steps": 0}, "log_steps: 0 is not from 1 to 1000000000"),
        (RunConfig, {"job_time_sec": 0}, "job_time_sec: 0 is not from 1 to 31622400"),
        (RunConfig, {"job_labels": ("a",)}, "job_labels: 'a' is not KEY=VALUE"),
    ],
)
def test_numbers_that_cannot_be(section: Any, values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as refused:
        section(**values).check()
    assert str(refused.value) == told
    section().check()


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(MooringsError):
        read(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_read_as_python_writes_it(number: float) -> None:
    assert read(f"model:\n  rate: {number!r}\n").rate == number
