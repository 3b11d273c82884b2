"""The language model of examples/gpt2: its parts, then compiled and trained as an appliance's jobs would be."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from examples.gpt2 import data
from examples.gpt2.data import Text, TextParams
from examples.gpt2.model import GPT2, ModelParams
from moorings.appliance.job_spec import ApplianceJobSpec, write_job_spec
from moorings.appliance.params import read_params
from moorings.appliance.schemas import Optimizer, RunConfig
from tests.waiting import patient

jax.config.update("jax_platforms", "cpu")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "gpt2"
SMALL = ModelParams(hidden_size=32, num_hidden_layers=2, num_heads=2, max_position_embeddings=32)

# The model


def outputs(model: GPT2, tokens: np.ndarray) -> Any:
    """What the head is given: a vector for each token."""
    rng = np.random.default_rng(1)
    x: Any = tokens
    for layer in model.layers()[:-1]:
        weights: dict[str, Any] = dict(layer.init(rng))
        weights = {name: w + 0.1 * rng.standard_normal(w.shape, dtype=np.float32) for name, w in weights.items()}
        x = layer.apply(weights, x)
    return np.asarray(x)


def test_what_a_token_becomes_depends_on_those_before_it_alone():
    tokens = np.random.default_rng(0).integers(0, 256, (2, 16)).astype(np.int32)
    other = tokens.copy()
    other[:, 9] += 1
    a, b = outputs(GPT2(SMALL), tokens), outputs(GPT2(SMALL), other)
    np.testing.assert_allclose(a[:, :9], b[:, :9], rtol=1e-5, atol=1e-6)
    assert np.abs(a[:, 9:] - b[:, 9:]).min(axis=-1).max() > 0
    assert all(np.abs(a[:, at] - b[:, at]).max() > 1e-4 for at in range(9, 16))


def test_an_untrained_model_finds_all_bytes_alike():
    model, rng = GPT2(SMALL), np.random.default_rng(2)
    x: Any = rng.integers(0, 256, (4, 32)).astype(np.int32)
    targets = rng.integers(0, 256, (4, 32)).astype(np.int32)
    *layers, last = model.layers()
    for layer in layers:
        x = layer.apply(layer.init(rng), x)
    assert float(last.apply(last.init(rng), x, targets)) == pytest.approx(math.log(256), abs=0.05)


def test_all_blocks_are_one_program():
    layers = GPT2(replace(SMALL, num_hidden_layers=5)).layers()
    assert len(layers) == 7
    assert {layer.program for layer in layers} == {"embedding", "block", "head"}
    assert len({layer.name for layer in layers}) == 7


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (replace(SMALL, num_heads=3), "num_heads"),
        (replace(SMALL, hidden_size=0), "hidden_size"),
        (TextParams(batch_size=0), "batch_size"),
        (TextParams(batch_size=1, shuffle_seed=-1), "shuffle_seed"),
    ],
)
def test_values_that_cannot_be_are_named(params: Any, field: str):
    with pytest.raises(ValueError, match=f"^{field}: "):
        params.check()


# The text


def test_the_text_is_python_and_there_is_enough_of_it():
    train, apart = data.load("train"), data.load("eval")
    assert len(train) > 3_000_000
    assert 0.02 < len(apart) / len(train) < 0.12
    assert b"def " in train[:100_000].tobytes()
    assert not any("site-packages" in str(path) or "/test/" in str(path) for path in data.files())


def test_what_is_measured_with_was_not_trained_on():
    chosen = data.files()
    apart = [path for n, path in enumerate(chosen) if n % data.APART == 0]
    text = data.load("train").tobytes()
    long = [path.read_bytes() for path in apart if path.stat().st_size > 2000]
    assert long
    assert not any(content in text for content in long)


def test_a_batch_follows_from_its_step_alone_and_systems_share_it():
    text, again = Text(TextParams(batch_size=8)), Text(TextParams(batch_size=8))
    whole, targets = text.batch(7, system=0, systems=1)
    assert whole.shape == targets.shape == (8, 128)
    np.testing.assert_array_equal(whole[:, 1:], targets[:, :-1])
    text.batch(3, system=0, systems=1)
    parts = [again.batch(7, system=n, systems=4)[0] for n in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(text.batch(8, system=0, systems=1)[0], whole)


# As jobs


def order_of(tmp_path: Path, **sections: dict[str, Any]) -> ApplianceJobSpec:
    """An order for a model that trains in seconds, from the params file."""
    document = read_params(FOLDER / "configs" / "params_gpt2_small.yaml")
    schemas = {
        "model": ModelParams,
        "train_input": TextParams,
        "eval_input": TextParams,
        "optimizer": Optimizer,
        "runconfig": RunConfig,
    }
    params = {name: asdict(document.section(name, schema)) | sections.get(name, {}) for name, schema in schemas.items()}
    return ApplianceJobSpec(
        act="compile",
        program="train",
        params=params,
        model_dir=str(tmp_path / "model"),
        compile_dir=str(tmp_path / "compile"),
        folder=str(tmp_path / "job"),
        systems=2,
        weight_servers=2,
        last_step=60,
    )


def run_job(order: ApplianceJobSpec) -> list[str]:
    """What the order's tasks print; they must end with 0."""
    file = write_job_spec(order)
    number = 1 if order.act == "compile" else order.systems
    command = [
        sys.executable,
        "-m",
        "moorings.appliance.task",
        "--script",
        str(FOLDER / "run.py"),
        "--order",
        str(file),
    ]
    tasks = [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(number)
    ]
    try:
        texts = [task.communicate(timeout=patient(90))[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.communicate()
    assert [task.returncode for task in tasks] == [0] * number, texts
    return texts


@pytest.mark.slow
def test_it_compiles_trains_on_two_systems_and_is_measured(tmp_path: Path):
    small = {
        "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "max_position_embeddings": 32},
        "train_input": {"batch_size": 16, "max_sequence_length": 32},
        "eval_input": {"batch_size": 16, "max_sequence_length": 32},
    }
    order = order_of(tmp_path, **small)
    assert "Compile was successful" in run_job(order)[0]
    [again] = run_job(order)
    assert "Compile found" in again
    compiled = json.loads(order.result_file.read_text())
    assert compiled["found"] is True

    order = replace(order, act="train", artifact=compiled["artifact"])
    first, second = run_job(order)
    line = re.compile(r"^\| Train Device=CSX, Step=\d+, Loss=([\d.]+), Rate=", re.MULTILINE)
    losses = [float(each) for each in line.findall(first)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.7
    assert second == ""
    trained = json.loads(order.result_file.read_text())
    assert trained["step"] == 60
    assert Path(trained["checkpoint"]).name == "checkpoint_60.npz"

    order = replace(order, act="compile", program="eval", artifact=None)
    run_job(order)
    compiled = json.loads(order.result_file.read_text())
    order = replace(
        order,
        act="eval",
        artifact=compiled["artifact"],
        first_step=60,
        last_step=4,
        checkpoint=trained["checkpoint"],
        systems=2,
    )
    text = run_job(order)[0]
    assert re.search(r"^\| Eval Device=CSX, Step=60, Loss=\d\.\d+, Rate=", text, re.MULTILINE)
    measured = json.loads(order.result_file.read_text())
    assert (measured["step"], measured["batches"]) == (60, 4)
    assert abs(measured["loss"] - losses[-1]) < 0.7


@pytest.mark.parametrize("name", ["params_gpt2_small.yaml", "params_gpt2_small_full.yaml"])
def test_the_params_files_are_sound(name: str):
    document = read_params(FOLDER / "configs" / name)
    for section, schema in (("model", ModelParams), ("train_input", TextParams), ("eval_input", TextParams)):
        document.section(section, schema)
    model, text = document.section("model", ModelParams), document.section("train_input", TextParams)
    assert text.max_sequence_length <= model.max_position_embeddings
    document.section("optimizer", Optimizer)
    document.section("runconfig", RunConfig)
    document.finish()
