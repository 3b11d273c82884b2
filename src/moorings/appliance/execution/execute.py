"""An execute job: systems train or evaluate a model whose weights are streamed to them.

Each task is one system; the first also starts the weight servers, decides what follows each step, and writes
checkpoints. The servers hold the weights, which change only when all systems have sent all gradients of a step, so
between two steps there is one state, and a checkpoint holds that. If a system or a server dies, the others notice a
closed socket; written files stay.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moorings.appliance.execution.artifacts import Artifact, find_artifact, user_folder
from moorings.appliance.execution.checkpoints import PARTS, CheckpointReader, checkpoint_path, save_checkpoint
from moorings.appliance.execution.compilation import layer_shapes, load_programs
from moorings.appliance.execution.connections import ServerConnections
from moorings.appliance.execution.errors import StoppedError, execution_error
from moorings.appliance.execution.optimizer import AdamW
from moorings.appliance.execution.programs import ArraySpec, CompiledPrograms, LayerShape, initial_weights
from moorings.appliance.execution.rendezvous import WeightServers, connect_servers, weight_servers
from moorings.appliance.execution.streaming import Batch, apply_step, eval_batch, train_step
from moorings.appliance.job_spec import ApplianceJobSpec
from moorings.appliance.layers import Layer
from moorings.appliance.program import Source
from moorings.files import write_atomically

GO, STOP, FAILED = "go", "stop", "failed"


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The context of one task.

    Attributes:
        order: the specification.
        system: the task's number.
        report: prints a line, in the first task.
        is_stop_requested: whether a stop was requested.
    """

    order: ApplianceJobSpec
    system: int
    report: Callable[[str], None]
    is_stop_requested: Callable[[], bool]

    def write_result(self, record: Mapping[str, object]) -> None:
        """Write the result of the job.

        Raises:
            MooringsError: ``execution.failed``: it cannot be written.
        """
        try:
            write_atomically(self.order.result_file, json.dumps(record).encode())
        except OSError as error:
            raise execution_error(f"{self.order.result_file} cannot be written: {error.strerror}") from error

    def raise_if_stopping(self) -> None:
        """Raise StoppedError if a stop was requested: for phases with nothing to save."""
        if self.is_stop_requested():
            raise StoppedError

    def batch(self, source: Source, step: int) -> Batch:
        """This system's share of a batch."""
        inputs, targets = source.batch(step, system=self.system, systems=self.order.systems)
        return np.asarray(inputs), np.asarray(targets)


@dataclass(frozen=True, slots=True)
class System:
    """A task with connections to the weight servers, and its programs; ``servers`` if it started them."""

    task: TaskContext
    layers: Sequence[LayerShape]
    programs: CompiledPrograms
    links: ServerConnections
    servers: WeightServers | None
    shape: tuple[ArraySpec, ...]

    @property
    def is_leader(self) -> bool:
        """Whether it decides what follows each step."""
        return self.servers is not None

    def batch(self, source: Source, step: int) -> Batch:
        """Its share of a batch, in the shape that was compiled."""
        batch = self.task.batch(source, step)
        if (found := tuple(ArraySpec.of(each) for each in batch)) != self.shape:
            raise execution_error(f"the batch of step {step} has the shapes {found}, and {self.shape} was compiled for")
        return batch

    def synchronize_step(self, done: int, loss: float, lead: Callable[[int, list[float]], None]) -> bool:
        """Collect the losses of all systems, and let the first one decide; return whether to stop.

        Args:
            done: the number of steps done then.
            loss: this system's.
            lead: called in the first system, with ``done`` and all losses, before any system continues; raises to fail.
        """
        council = self.links.coordinator
        council.send("report", loss=loss, stop=self.task.is_stop_requested())
        if self.servers is None:
            verdict = council.call("verdict", step=done)["verdict"]
        else:
            reports = council.call("collect")["reports"]
            try:
                lead(done, [loss for loss, _ in reports])
            except Exception:
                council.call("decide", step=done, verdict=FAILED)
                raise
            verdict = STOP if any(stop for _, stop in reports) else GO
            council.call("decide", step=done, verdict=verdict)
        if verdict == FAILED:
            raise execution_error("system 0 has ended the work; its output says why")
        return bool(verdict == STOP)


def train(task: TaskContext, layers: Sequence[Layer], source: Source) -> bool:
    """Train until the order's last step; return whether it was stopped before, with a checkpoint of its state.

    Raises:
        MooringsError: it failed.
        StoppedError: a stop was requested before the first step.
    """
    order = task.order
    optimizer = AdamW.parse(order.params["optimizer"])
    with _join_servers(task, optimizer) as system:
        if system.is_leader:
            _load_weights(system, layers, PARTS)
        trainer = _Trainer(system, optimizer)
        done = order.first_step
        stopped = False
        while done < order.last_step and not stopped:
            loss = train_step(system.programs, system.links, len(layers), done, system.batch(source, done))
            done += 1
            stopped = system.synchronize_step(done, loss, trainer.apply_step)
            if system.is_leader:
                trainer.report_and_checkpoint(done, stopped=stopped)
        if system.is_leader:
            trainer.write_result(done)
        system.links.leave()
    return stopped and done < order.last_step


def evaluate(task: TaskContext, layers: Sequence[Layer], source: Source) -> bool:
    """Compute the mean loss of the order's batches; return whether it was stopped before.

    Raises:
        MooringsError: it failed.
        StoppedError: a stop was requested before the first batch.
    """
    order = task.order
    with _join_servers(task, None) as system:
        if system.is_leader:
            _load_weights(system, layers, PARTS[:1])
        means: list[float] = []

        def note(number: int, losses: list[float]) -> None:
            means.append(_mean(losses, "batch", number))

        meter = _Throughput(order.params["eval_input"]["batch_size"])
        stopped = False
        for number in range(order.last_step):
            batch = system.batch(source, number)
            loss = eval_batch(system.programs, system.links, len(layers), order.first_step, batch)
            stopped = system.synchronize_step(number + 1, loss, note)
            if stopped:
                break
        if system.is_leader and not stopped:
            loss = sum(means) / len(means) if means else float("nan")
            task.report(f"| Eval Device=CSX, Step={order.first_step}, Loss={loss:.5f}, {meter.rates(len(means))}")
            task.write_result({"step": order.first_step, "loss": loss if means else None, "batches": len(means)})
        system.links.leave()
    return stopped


class _Trainer:
    """The first system's further work: each step's outcome, progress lines, checkpoints."""

    def __init__(self, system: System, optimizer: AdamW) -> None:
        self._system = system
        self._optimizer = optimizer
        self._run = system.task.order.params["runconfig"]
        self._meter = _Throughput(system.task.order.params["train_input"]["batch_size"])
        self._loss: float | None = None
        self._checkpoint = system.task.order.checkpoint

    def apply_step(self, done: int, losses: list[float]) -> None:
        """Make the servers take the step; ``done`` counts it."""
        mean = _mean(losses, "step", done)

        def scale(norm: float) -> float:
            if not math.isfinite(norm):
                raise execution_error(f"the gradients of step {done} are not finite", _DIVERGED)
            return self._optimizer.scale(norm)

        apply_step(self._system.links, done - 1, scale)
        self._loss = mean

    def report_and_checkpoint(self, done: int, *, stopped: bool) -> None:
        """Print and save what is due after a step."""
        order, report = self._system.task.order, self._system.task.report
        last = done == order.last_step
        if last or stopped or _is_due(done, self._run["log_steps"]):
            report(
                f"| Train Device=CSX, Step={done}, Loss={self._loss:.5f}, {self._meter.rates(done - order.first_step)}"
            )
        if stopped and not last:
            report(f"Asked to end (TERM) at step {done}: a checkpoint is written")
        if last or stopped or _is_due(done, self._run["checkpoint_steps"]):
            path = checkpoint_path(Path(order.model_dir), done)
            links = self._system.links

            def part(layer: int, which: str) -> Any:  # noqa: ANN401 - arrays by name
                links.control_connection(layer).send("part", layer=layer, part=which)
                return links.control_connection(layer).receive().arrays

            size = save_checkpoint(path, done, self._system.layers, part)
            report(f"Saved checkpoint {path} at step {done} ({size:,} bytes)")
            self._checkpoint = str(path)

    def write_result(self, done: int) -> None:
        """Write the result."""
        self._system.task.write_result({"step": done, "loss": self._loss, "checkpoint": self._checkpoint})


class _Throughput:
    """Samples a second, since the last line and since the beginning."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._began = self._reported_at = time.monotonic()
        self._reported_steps = 0

    def rates(self, steps: int) -> str:
        """The rates, with this many steps done since the beginning."""
        now = time.monotonic()
        rate = self._batch_size * (steps - self._reported_steps) / max(now - self._reported_at, 1e-9)
        overall = self._batch_size * steps / max(now - self._began, 1e-9)
        self._reported_steps, self._reported_at = steps, now
        return f"Rate={rate:.2f} samples/sec, GlobalRate={overall:.2f} samples/sec"


@contextmanager
def _join_servers(task: TaskContext, optimizer: AdamW | None) -> Iterator[System]:
    """This task as a system connected to the weight servers; the first one starts them."""
    order = task.order
    artifact = _artifact(order)
    layers = layer_shapes(artifact)
    weights = [layer.weights for layer in layers]
    shares = assign_layers([layer.size for layer in layers], order.weight_servers)
    shape = tuple(ArraySpec.parse(each) for each in artifact.manifest["batch"])
    folder = Path(order.folder)
    if task.system:
        programs, _ = load_programs(artifact)
        links = connect_servers(folder, shares, weights, task.system, task.raise_if_stopping)
        try:
            yield System(task, layers, programs, links, None, shape)
        finally:
            links.close()
        return
    with weight_servers(shares, weights, order.systems, optimizer, folder) as servers:
        # Before the programs are loaded, so that all systems do this longest part at the same time.
        servers.publish()
        programs, _ = load_programs(artifact)
        task.raise_if_stopping()
        links = ServerConnections(servers.places, shares, weights, 0, servers.exit_reason)
        task.report(
            f"{_count_text(order.systems, 'system')}, {_count_text(order.weight_servers, 'weight server')} "
            f"(processes {', '.join(map(str, servers.pids))}), {artifact.manifest['weights']:,} weights"
        )
        try:
            servers.wait_for_systems(links, task.raise_if_stopping)
            yield System(task, layers, programs, links, servers, shape)
        finally:
            links.close()


def _artifact(order: ApplianceJobSpec) -> Artifact:
    artifact = find_artifact(user_folder(Path(order.compile_dir)), order.artifact or "")
    if artifact is None:
        raise execution_error(
            f"there is no compiled program {order.artifact} in {order.compile_dir}", "start run.py again"
        )
    return artifact


def _load_weights(system: System, layers: Sequence[Layer], parts: Sequence[str]) -> None:
    """Send the servers the first weights: from a checkpoint, or initialised."""
    order, links = system.task.order, system.links
    if order.checkpoint is None:
        seed = order.params["runconfig"]["seed"]
        for number, layer in enumerate(layers):
            links.control_connection(number).call("put", initial_weights(layer, seed, number), layer=number, part="w")
    else:
        with CheckpointReader(Path(order.checkpoint), system.layers) as checkpoint:
            if checkpoint.step != order.first_step:
                raise execution_error(
                    f"{order.checkpoint} is of step {checkpoint.step}, and step {order.first_step} was ordered"
                )
            for number in range(len(layers)):
                for part in parts:
                    links.control_connection(number).call("put", checkpoint.part(number, part), layer=number, part=part)
        system.task.report(f"Loaded checkpoint {order.checkpoint} (step {order.first_step})")
    links.call_all("begin", step=order.first_step)


_DIVERGED = "a smaller learning_rate, a longer warm-up or max_gradient_norm may help; the last checkpoint is as it was"


def _mean(losses: Sequence[float], what: str, number: int) -> float:
    mean = sum(losses) / len(losses)
    if not math.isfinite(mean):
        raise execution_error(f"the loss of {what} {number} is {mean}: the training has diverged", _DIVERGED)
    return mean


def _is_due(step: int, every: int | None) -> bool:
    return bool(every) and step % int(every or 1) == 0


def _count_text(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


# -- shares of weight servers ------------------------------------------------------------------------------------------


def assign_layers(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """The layers' numbers for each server, in order: the largest first, each to the server with the least load so far.

    The result is a function of the sizes alone. A server may have none if there are more servers than layers.

    Args:
        sizes: weights of each layer, in numbers.
        servers: how many there are.
    """
    shares: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for layer in sorted(range(len(sizes)), key=lambda layer: (-sizes[layer], layer)):
        # At the same load the one with fewer layers, so that layers without weights are spread too.
        least = min(range(servers), key=lambda server: (loads[server], len(shares[server]), server))
        shares[least].append(layer)
        loads[least] += sizes[layer]
    return [sorted(share) for share in shares]
