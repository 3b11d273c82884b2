"""A tiny language model for tests of the execution, and its jobs without a controller."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moorings.appliance.execution.artifacts import user_folder
from moorings.appliance.execution.compilation import build_key, compile_model
from moorings.appliance.execution.execute import TaskContext, evaluate, train
from moorings.appliance.job_spec import ApplianceJobSpec, write_job_spec
from moorings.appliance.layers import Layer
from moorings.appliance.program import Program
from tests.waiting import patient

jax.config.update("jax_platforms", "cpu")

ROOT = Path(__file__).resolve().parents[3]


class Tiny:
    """Embedding, two layers of one program, one without weights, and a head."""

    @dataclass(frozen=True)
    class Params:
        hidden: int = 8
        blow_up: float = 1.0  # what the loss is multiplied by

    def __init__(self, params: Params) -> None:
        self.params = params

    def layers(self) -> Sequence[Layer]:
        hidden, factor = self.params.hidden, self.params.blow_up

        def matrix(rng: np.random.Generator) -> dict[str, Any]:
            return {"w": rng.normal(0, 0.5, (hidden, hidden)), "b": np.zeros(hidden, np.float32)}

        def loss(w: Any, x: Any, targets: Any) -> Any:
            odds = jax.nn.log_softmax(x @ w["w"])
            return -jnp.take_along_axis(odds, targets[..., None], -1).mean() * factor

        return [
            Layer("tokens", "tokens", lambda r: {"e": r.normal(0, 1, (16, hidden))}, lambda w, x: w["e"][x]),
            Layer("first", "mix", matrix, lambda w, x: x + jnp.tanh(x @ w["w"] + w["b"])),
            Layer("second", "mix", matrix, lambda w, x: x + jnp.tanh(x @ w["w"] + w["b"])),
            Layer("squash", "squash", lambda _r: {}, lambda _w, x: jnp.sin(x)),
            Layer("head", "head", lambda r: {"w": r.normal(0, 0.5, (hidden, 16))}, loss),
        ]


class Batches:
    """Random tokens, each followed by the next number."""

    @dataclass(frozen=True)
    class Params:
        batch_size: int = 8

    def __init__(self, params: Params) -> None:
        self.params = params

    def batch(self, step: int, *, system: int, systems: int) -> tuple[Any, Any]:
        rows = np.random.default_rng([5, step]).integers(0, 16, (self.params.batch_size, 4)).astype(np.int32)
        mine = np.split(rows, systems)[system]
        return mine, (mine + 1) % 16


PROGRAM = Program(Tiny, Batches, Batches)


def order_in(folder: Path, **changes: Any) -> ApplianceJobSpec:
    params: dict[str, dict[str, Any]] = {
        "model": {},
        "train_input": {"batch_size": 8},
        "eval_input": {"batch_size": 8},
        "optimizer": {"learning_rate": 0.01, "weight_decay": 0.1, "max_gradient_norm": 1.0, "warmup_steps": 3},
        "runconfig": {"seed": 3, "log_steps": 2, "checkpoint_steps": 0},
    }
    for section, values in changes.pop("params", {}).items():
        params[section] = {**params[section], **values}
    whole = ApplianceJobSpec(
        act="train",
        program="train",
        params=params,
        model_dir=str(folder / "model"),
        compile_dir=str(folder / "compile"),
        folder=str(folder / "job"),
        systems=1,
        weight_servers=1,
        last_step=6,
    )
    Path(whole.folder).mkdir(parents=True, exist_ok=True)
    return replace(whole, **changes)


def batch_of(order: ApplianceJobSpec) -> Any:
    return Batches(Batches.Params(**order.params["train_input"])).batch(0, system=0, systems=order.systems)


_COMPILED: dict[str, dict[Path, bytes]] = {}  # the files of each artifact that this process has compiled, by its key


def compiled(order: ApplianceJobSpec) -> ApplianceJobSpec:
    """The order with its artifact in its compile folder; each artifact is compiled once in a process."""
    key = build_key(Tiny, order, batch_of(order))
    folder = user_folder(Path(order.compile_dir)) / key
    if key not in _COMPILED:
        model = Tiny(Tiny.Params(**order.params["model"]))
        compile_model(list(model.layers()), order, batch_of(order), key, lambda _line: None)
        files = [path for path in folder.rglob("*") if path.is_file()]
        _COMPILED[key] = {path.relative_to(folder): path.read_bytes() for path in files}
    elif not folder.exists():
        for name, content in _COMPILED[key].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return replace(order, artifact=key)


@dataclass
class Outcome:
    """What the systems of a job came to, and what the first one said."""

    stopped: bool
    lines: list[str]
    answer: Mapping[str, Any]

    @property
    def losses(self) -> list[str]:
        return [line.split("Loss=")[1].split(",")[0] for line in self.lines if "Loss=" in line]


def execute(order: ApplianceJobSpec, *, stop_after: int | None = None) -> Outcome:
    """Do the order with the systems as threads, and weight servers as real processes."""
    lines: list[str] = []
    model = Tiny(Tiny.Params(**order.params["model"]))

    def system(number: int) -> bool:
        source = Batches(Batches.Params(**order.params["train_input"]))
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return number == order.systems - 1 and stop_after is not None and asked > stop_after

        task = TaskContext(order, number, lines.append if number == 0 else lambda _line: None, stop)
        return (train if order.act == "train" else evaluate)(task, list(model.layers()), source)

    with ThreadPoolExecutor(order.systems) as pool:
        results = [pool.submit(system, number) for number in range(order.systems)]
        for result in results:  # in order: the first one knows why
            result.result(timeout=patient(60))
    answer = json.loads(order.result_file.read_text()) if order.result_file.exists() else {}
    return Outcome(results[0].result(), lines, answer)


def start_tasks(order: ApplianceJobSpec, tasks: int | None = None) -> list[subprocess.Popen[str]]:
    """The order's tasks as real processes, or another number of them."""
    file = write_job_spec(order)
    number = tasks or (order.systems if order.act != "compile" else 1)
    code = (
        "import sys, pathlib; from moorings.appliance.execution import work; "
        "from moorings.appliance.job_spec import read_job_spec; from tests.unit.appliance.tiny import PROGRAM; "
        "sys.exit(work(read_job_spec(pathlib.Path(sys.argv[1])), PROGRAM))"
    )
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(number), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(number)
    ]
