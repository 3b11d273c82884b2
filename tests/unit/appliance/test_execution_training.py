"""Training with streamed weights: systems are threads here, weight servers are real processes."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from moorings.appliance.execution import execute as executing
from moorings.appliance.execution import rendezvous, streaming
from moorings.appliance.execution.artifacts import user_folder
from moorings.appliance.execution.compilation import load_programs
from moorings.appliance.execution.connections import ServerConnections
from moorings.appliance.execution.execute import _artifact, assign_layers
from moorings.appliance.execution.optimizer import AdamW
from moorings.appliance.execution.programs import initial_weights
from moorings.appliance.execution.streaming import train_step
from moorings.core.model.errors import MooringsError
from tests.once import made_once
from tests.unit.appliance.tiny import Batches, Tiny, batch_of, compiled, execute, order_in
from tests.waiting import until


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compile folder with what these tests need: a copy, since some add to it."""

    def make(folder: Path) -> None:
        for systems in (1, 2):
            compiled(order_in(folder, systems=systems))

    made = made_once(tmp_path_factory, "training-compiled", make)
    return Path(shutil.copytree(made / "compile", tmp_path_factory.mktemp("compiled") / "compile"))


def ordered(tmp_path: Path, ready: Path, **changes: Any) -> Any:
    return compiled(order_in(tmp_path, compile_dir=str(ready), **changes))


def arrays_of(path: str | Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def whole_loss(weights: list[Any], batch: Any) -> Any:
    layers = Tiny(Tiny.Params()).layers()
    x, targets = batch
    for layer, w in zip(layers[:-1], weights[:-1], strict=True):
        x = layer.apply(w, x)
    return layers[-1].apply(weights[-1], x, targets)


def test_the_streamed_gradient_is_that_of_the_whole_model(tmp_path: Path, ready: Path):
    order = ordered(tmp_path, ready)
    programs, shapes = load_programs(_artifact(order))
    layers = Tiny(Tiny.Params()).layers()
    weights = [initial_weights(layer, 3, number) for number, layer in enumerate(layers)]
    shares = assign_layers([shape.size for shape in shapes], 2)
    each = [shape.weights for shape in shapes]
    with rendezvous.weight_servers(shares, each, 1, AdamW(learning_rate=0.1), tmp_path) as servers:
        links = ServerConnections(servers.places, shares, each, 0)
        for number, w in enumerate(weights):
            links.control_connection(number).call("put", w, layer=number, part="w")
        links.call_all("begin", step=0)
        sent: dict[int, Any] = {}
        for number in range(len(layers)):
            _keep(links.control_connection(number), sent)
        loss = train_step(programs, links, len(layers), 0, batch_of(order))
        links.leave()
    expected, gradients = jax.value_and_grad(whole_loss)(weights, batch_of(order))
    assert loss == pytest.approx(float(expected), rel=1e-5)
    assert sorted(sent) == list(range(len(layers)))
    for number, gradient in enumerate(gradients):
        assert sent[number].keys() == gradient.keys()
        for name, value in gradient.items():
            np.testing.assert_allclose(sent[number][name], value, rtol=1e-4, atol=1e-6)


def _keep(link: Any, sent: dict[int, Any]) -> None:
    """Note what gradients are said on a link, which still says them."""
    send = link.send

    def noting(op: str, arrays: Any = None, **head: Any) -> None:
        if op == "gradients":
            sent[head["layer"]] = arrays
        send(op, arrays, **head)

    link.send = noting


def test_a_system_holds_the_weights_of_two_layers_at_most(tmp_path: Path, ready: Path, monkeypatch: pytest.MonkeyPatch):
    outstanding, most = 0, 0
    streamed = streaming.stream_weights

    class Counting:
        """A link that counts what was asked for on it and not been used up."""

        def __init__(self, link: Any) -> None:
            self._link = link

        def send(self, op: str, arrays: Any = None, **head: Any) -> None:
            nonlocal outstanding, most
            outstanding += op == "weights"
            most = max(most, outstanding)
            self._link.send(op, arrays, **head)

        def receive(self) -> Any:
            return self._link.receive()

    class Watched:
        def __init__(self, links: ServerConnections) -> None:
            self._links = links

        def weights_connection(self, layer: int) -> Any:
            return Counting(self._links.weights_connection(layer))

    def watched(links: ServerConnections, layers: Any, step: int) -> Iterator[Any]:
        nonlocal outstanding
        for each in streamed(Watched(links), layers, step):  # type: ignore[arg-type]
            yield each
            outstanding -= 1  # the consumer came back for the next: it has used these

    monkeypatch.setattr(streaming, "stream_weights", watched)
    execute(ordered(tmp_path, ready, last_step=2))
    assert outstanding == 0
    assert most == 2


def test_the_loss_falls_and_lines_and_the_answer_say_so(tmp_path: Path, ready: Path):
    outcome = execute(ordered(tmp_path, ready, last_step=60, weight_servers=2))
    lines = [line for line in outcome.lines if line.startswith("| Train Device=CSX, Step=")]
    assert len(lines) == 30
    first, last = (float(line.split("Loss=")[1].split(",")[0]) for line in (lines[0], lines[-1]))
    assert last < 0.6 * first
    assert "samples/sec, GlobalRate=" in lines[-1]
    assert outcome.answer["step"] == 60
    assert outcome.answer["loss"] == pytest.approx(last, abs=1e-5)
    assert arrays_of(outcome.answer["checkpoint"])["step"] == 60


def test_two_systems_learn_what_one_does(tmp_path: Path, ready: Path):
    one = execute(ordered(tmp_path / "one", ready))
    two = execute(ordered(tmp_path / "two", ready, systems=2, weight_servers=2))
    assert [float(x) for x in two.losses] == pytest.approx([float(x) for x in one.losses], abs=2e-5)
    a, b = arrays_of(one.answer["checkpoint"]), arrays_of(two.answer["checkpoint"])
    for name, value in a.items():
        np.testing.assert_allclose(b[name], value, rtol=1e-3, atol=1e-5)


def test_the_number_of_weight_servers_changes_nothing(tmp_path: Path, ready: Path):
    paths = [
        execute(ordered(tmp_path / str(count), ready, systems=2, weight_servers=count)).answer["checkpoint"]
        for count in (1, 3, 7)  # the last: more servers than layers
    ]
    first, *others = map(arrays_of, paths)
    for other in others:
        assert {name: value.tobytes() for name, value in other.items()} == {
            name: value.tobytes() for name, value in first.items()
        }


@pytest.mark.parametrize("systems", [1, 2])
def test_a_resume_ends_with_the_same_bits(tmp_path: Path, ready: Path, systems: int):
    order = ordered(tmp_path / "whole", ready, systems=systems, weight_servers=2)
    whole = execute(order)
    half = execute(replace(ordered(tmp_path / "parts", ready, systems=systems, weight_servers=2), last_step=4))
    rest = execute(
        replace(
            ordered(tmp_path / "parts", ready, systems=systems, weight_servers=1),
            first_step=4,
            checkpoint=half.answer["checkpoint"],
        )
    )
    assert rest.answer["loss"] == whole.answer["loss"]
    a, b = arrays_of(whole.answer["checkpoint"]), arrays_of(rest.answer["checkpoint"])
    assert {n: v.tobytes() for n, v in a.items()} == {n: v.tobytes() for n, v in b.items()}


def test_a_wish_to_end_on_any_system_ends_all_with_a_checkpoint_that_can_be_gone_on_from(tmp_path: Path, ready: Path):
    whole = execute(ordered(tmp_path / "whole", ready, systems=2))
    order = ordered(tmp_path / "parts", ready, systems=2)
    stopped = execute(order, stop_after=4)  # the second system's wish
    assert stopped.stopped
    step = stopped.answer["step"]
    assert 0 < step < 6
    assert any(line.startswith(f"Asked to end (TERM) at step {step}") for line in stopped.lines)
    rest = execute(replace(order, first_step=step, checkpoint=stopped.answer["checkpoint"]))
    assert rest.answer["loss"] == whole.answer["loss"]


def test_checkpoints_come_when_they_are_due_and_at_the_end(tmp_path: Path, ready: Path):
    order = ordered(tmp_path, ready, params={"runconfig": {"checkpoint_steps": 4}})
    execute(order)
    assert sorted(path.name for path in Path(order.model_dir).iterdir()) == ["checkpoint_4.npz", "checkpoint_6.npz"]
    assert {path.stat().st_mode & 0o777 for path in Path(order.model_dir).iterdir()} == {0o600}


def test_an_eval_tells_the_mean_loss_of_its_batches(tmp_path: Path, ready: Path):
    trained = execute(ordered(tmp_path, ready))
    order = compiled(
        order_in(tmp_path, compile_dir=str(ready), systems=2, weight_servers=2, act="eval", program="eval")
    )
    order = replace(order, first_step=6, checkpoint=trained.answer["checkpoint"], last_step=3)
    outcome = execute(order)
    kept = arrays_of(trained.answer["checkpoint"])
    weights = [
        {name.rsplit("/")[-1]: value for name, value in kept.items() if name.startswith(f"w/{layer.name}/")}
        for layer in Tiny(Tiny.Params()).layers()
    ]
    batches = [Batches(Batches.Params()).batch(n, system=0, systems=1) for n in range(3)]
    expected = np.mean([float(whole_loss(weights, batch)) for batch in batches])
    assert outcome.answer["loss"] == pytest.approx(expected, rel=1e-5)
    assert (outcome.answer["step"], outcome.answer["batches"]) == (6, 3)
    assert any(line.startswith("| Eval Device=CSX, Step=6, Loss=") for line in outcome.lines)


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path, ready: Path):
    order = ordered(tmp_path, ready, params={"model": {"blow_up": float("inf")}})
    with pytest.raises(MooringsError, match="the loss of step 1 is inf: the training has diverged"):
        execute(order)
    assert not Path(order.model_dir).exists()


def test_a_weight_server_that_is_killed_ends_the_training_at_once(
    tmp_path: Path, ready: Path, monkeypatch: pytest.MonkeyPatch
):
    order = ordered(tmp_path, ready, systems=2, weight_servers=2, last_step=100_000)
    order = replace(order, params={**order.params, "runconfig": {**order.params["runconfig"], "checkpoint_steps": 5}})
    seen: list[int] = []
    real = rendezvous.WeightServers.publish

    def publish(self: Any) -> None:
        real(self)
        seen.extend(self.pids)

    monkeypatch.setattr(rendezvous.WeightServers, "publish", publish)

    def kill() -> None:
        until((Path(order.model_dir) / "checkpoint_5.npz").exists)
        os.kill(seen[1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(MooringsError, match="weight server 1 has gone: it was killed by SIGKILL"):
        execute(order)
    killer.join()
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen)
    assert arrays_of(Path(order.model_dir) / "checkpoint_5.npz")["step"] == 5


def test_a_killed_weight_server_is_named_and_not_what_followed_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A system that loses it leaves, and another server may say so before the dead one can be reaped."""
    monkeypatch.setattr(rendezvous, "_REAP_S", 30.0)
    shapes = {"w": (2,)}

    def lose_one() -> None:
        with rendezvous.weight_servers([[0], [1]], [shapes, shapes], 1, None, tmp_path) as servers:
            threading.Timer(0.2, os.kill, (servers.pids[1], signal.SIGKILL)).start()
            raise MooringsError("execution.failed", "system 1 has gone")

    with pytest.raises(MooringsError, match="weight server 1 has gone: it was killed by SIGKILL"):
        lose_one()


def test_nothing_is_left_in_the_folders_of_sockets(tmp_path: Path, ready: Path, monkeypatch: pytest.MonkeyPatch):
    runtime = Path("/tmp") / f"moorings-test-{os.getpid()}"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    order = ordered(tmp_path, ready, systems=2)
    execute(order)
    assert list(runtime.iterdir()) == []
    assert not (Path(order.folder) / rendezvous.FILE_NAME).exists()
    runtime.rmdir()


def test_before_the_first_step_nothing_tells_of_the_servers_any_more(
    tmp_path: Path, ready: Path, monkeypatch: pytest.MonkeyPatch
):
    runtime = Path("/tmp") / f"moorings-test-{os.getpid()}"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    order = ordered(tmp_path, ready, systems=2, weight_servers=2, last_step=2)
    seen: list[list[str]] = []

    def step(programs: Any, links: ServerConnections, *rest: Any) -> float:
        if links.system == 0:
            seen.append([path.name for folder in (runtime, Path(order.folder)) for path in folder.iterdir()])
        return train_step(programs, links, *rest)

    monkeypatch.setattr(executing, "train_step", step)
    execute(order)
    runtime.rmdir()
    assert seen == [[], []]


def test_a_checkpoint_of_another_step_is_refused(tmp_path: Path, ready: Path):
    trained = execute(ordered(tmp_path, ready, last_step=2))
    order = replace(ordered(tmp_path, ready), first_step=3, checkpoint=trained.answer["checkpoint"])
    with pytest.raises(MooringsError, match="is of step 2, and step 3 was ordered"):
        execute(order)


def test_a_damaged_artifact_is_not_executed(tmp_path: Path):
    order = compiled(order_in(tmp_path))
    file = next((user_folder(Path(order.compile_dir)) / str(order.artifact) / "programs").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(MooringsError, match="is not as it was made"):
        execute(order)


def test_a_rate_is_told_since_the_last_line_and_since_the_beginning(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    meter = executing._Throughput(16)
    now = 102.0
    assert meter.rates(10) == "Rate=80.00 samples/sec, GlobalRate=80.00 samples/sec"
    now = 106.0
    assert meter.rates(20) == "Rate=40.00 samples/sec, GlobalRate=53.33 samples/sec"


def test_the_manifest_says_what_is_in_an_artifact(ready: Path):
    manifests = [json.loads(path.read_text()) for path in user_folder(ready).glob("[0-9a-f]*/manifest.json")]
    assert manifests
    for manifest in manifests:
        assert [layer["name"] for layer in manifest["layers"]] == ["tokens", "first", "second", "squash", "head"]
        assert len(manifest["programs"]) == len({(each["program"], each["role"]) for each in manifest["programs"]})
