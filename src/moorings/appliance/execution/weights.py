"""The state of a weight server: its layers' weights with AdamW's state, and the gradients of the current step.

One lock and one condition: a reader of missing data waits for it. Gradients are added in the order of the systems, in
whatever order they arrive, so that the same systems compute the same weights, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from threading import Condition
from typing import Final

import numpy as np

from moorings.appliance.execution.frames import Array, Arrays
from moorings.appliance.execution.optimizer import MOMENTS, AdamW, squares

Shapes = Mapping[str, tuple[int, ...]]


class WorkLostError(Exception):
    """The work cannot continue; the message says why. Every waiting thread gets it."""


class _LayerState:
    """One layer: its weights, their moments, and the gradients received."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes: Final = shapes
        self.weights: dict[str, Array] = {}
        self.moments: dict[str, dict[str, Array]] = {}
        self.total: dict[str, Array] | None = None
        self.early: dict[int, Arrays] = {}  # of systems that come later in the sum
        self.added = 0
        self.squares = 0.0

    def check(self, arrays: Arrays, what: str) -> Arrays:
        if {name: array.shape for name, array in arrays.items()} != dict(self.shapes):
            raise WorkLostError(f"{what} came with other names or shapes than the layer has")
        return arrays

    def add(self, system: int, gradients: Arrays) -> None:
        if system < self.added or system in self.early:
            raise WorkLostError(f"system {system} sent the gradients of a layer twice")
        self.early[system] = gradients
        while self.added in self.early:
            next_one = self.early.pop(self.added)
            if self.total is None:
                self.total = {name: np.array(array) for name, array in next_one.items()}
            else:
                for name, array in next_one.items():
                    self.total[name] += array
            self.added += 1

    def finish_step(self, systems: int) -> None:
        """Compute the mean of all gradients, and its squares."""
        assert self.total is not None
        for array in self.total.values():
            array /= np.float32(systems)
        self.squares = squares(self.total)


class WeightShard:
    """The layers of one server.

    Args:
        shapes: of the weights, by layer number.
        systems: the number that send gradients.
        optimizer: None: nothing is trained, and there are no moments.
    """

    def __init__(self, shapes: Mapping[int, Shapes], systems: int, optimizer: AdamW | None) -> None:
        self._layers = {layer: _LayerState(each) for layer, each in shapes.items()}
        self._systems = systems
        self._optimizer = optimizer
        self._changed = Condition()
        self._step: int | None = None  # steps done; None: the weights are not complete
        self._lost: str | None = None
        self._reports: dict[int, tuple[float, bool]] = {}
        self._verdict: tuple[int, str] | None = None
        self._arrived: Counter[int] = Counter()
        self._left: Counter[int] = Counter()

    def fail(self, why: str) -> None:
        """End every wait with this error."""
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()

    def set_weights(self, layer: int, part: str, arrays: Arrays) -> None:
        """Set a layer's first weights (``part`` "w"), or one of its moments ("m", "v"; without them they are 0)."""
        with self._changed:
            mine = self._layer(layer)
            kept = {name: np.array(array) for name, array in mine.check(arrays, "weights").items()}
            if part == "w":
                mine.weights = kept
            elif part in MOMENTS:
                mine.moments[part] = kept
            else:
                raise WorkLostError(f"there is no part {part!r} of a layer")

    def begin(self, step: int) -> None:
        """Release the weights after ``step`` steps to the systems: all are there."""
        with self._changed:
            for number, layer in self._layers.items():
                if layer.shapes and not layer.weights:
                    raise WorkLostError(f"layer {number} has no weights")
                for part in MOMENTS if self._optimizer else ():
                    layer.moments.setdefault(part, {name: np.zeros_like(w) for name, w in layer.weights.items()})
            self._step = step
            self._changed.notify_all()

    def weights(self, layer: int, step: int) -> Arrays:
        """A layer's weights after ``step`` steps; waits for them. They change only when all systems have used them."""
        with self._changed:
            self._wait(lambda: self._step is not None and self._step >= step)
            if self._step != step:
                raise WorkLostError(f"the weights after {step} steps were asked for when {self._step} were done")
            return self._layer(layer).weights

    def part(self, layer: int, part: str) -> Arrays:
        """A layer's current weights or moments."""
        with self._changed:
            mine = self._layer(layer)
            return mine.weights if part == "w" else mine.moments.get(part, {})

    def add_gradients(self, layer: int, step: int, system: int, gradients: Arrays) -> None:
        """Add one system's gradients of a layer."""
        mine = self._layer(layer)
        with self._changed:
            if step != self._step:
                raise WorkLostError(f"system {system} sent gradients of step {step} when {self._step} were done")
            mine.add(system, mine.check(gradients, "gradients"))
            if mine.added == self._systems:
                mine.finish_step(self._systems)
                self._changed.notify_all()

    def gradient_squares(self) -> dict[int, float]:
        """For each layer the sum of squares of its mean gradients; waits for all of them."""
        with self._changed:
            self._wait(lambda: all(layer.added == self._systems for layer in self._layers.values()))
            return {number: layer.squares for number, layer in self._layers.items()}

    def apply(self, step: int, scale: float) -> None:
        """Take one step with the received gradients, each times ``scale``."""
        with self._changed:
            assert self._optimizer is not None
            if step != self._step:
                raise WorkLostError(f"step {step} was to be taken when {self._step} were done")
            for layer in self._layers.values():
                for name, gradient in (layer.total or {}).items():
                    self._optimizer.update(
                        layer.weights[name],
                        layer.moments["m"][name],
                        layer.moments["v"][name],
                        gradient,
                        step=step,
                        scale=scale,
                    )
                layer.total, layer.added = None, 0
            self._step = step + 1
            self._changed.notify_all()

    # One server carries these messages between the systems: each one's results, and the first one's decision.

    def add_report(self, system: int, loss: float, stop: bool) -> None:
        """Report a system's results of the step, and whether it was asked to stop."""
        with self._changed:
            self._reports[system] = (loss, stop)
            self._changed.notify_all()

    def collect(self) -> list[tuple[float, bool]]:
        """All systems' reports, in their order; waits for them."""
        with self._changed:
            self._wait(lambda: len(self._reports) == self._systems)
            reports = [self._reports[system] for system in range(self._systems)]
            self._reports = {}
            return reports

    def set_decision(self, step: int, verdict: str) -> None:
        """Set the decision for after ``step`` steps."""
        with self._changed:
            self._verdict = (step, verdict)
            self._changed.notify_all()

    def wait_for_decision(self, step: int) -> str:
        """The decision for after ``step`` steps; waits for it."""
        with self._changed:
            self._wait(lambda: self._verdict is not None and self._verdict[0] >= step)
            assert self._verdict is not None
            return self._verdict[1]

    def add_connection(self, system: int) -> None:
        """Count a connection of a system."""
        with self._changed:
            self._arrived[system] += 1

    def missing_systems(self, connections: int) -> list[int]:
        """The systems with fewer than ``connections`` connections."""
        with self._changed:
            if self._lost is not None:
                raise WorkLostError(self._lost)
            return [system for system in range(self._systems) if self._arrived[system] < connections]

    def remove_connection(self, system: int) -> None:
        """Count a connection of a system as finished."""
        with self._changed:
            self._left[system] += 1
            self._changed.notify_all()

    def await_leave(self, connections: int) -> None:
        """Wait until all systems but the first have finished all their connections."""
        with self._changed:
            self._wait(lambda: all(self._left[system] == connections for system in range(1, self._systems)))

    def _layer(self, layer: int) -> _LayerState:
        if layer not in self._layers:
            raise WorkLostError(f"layer {layer} is kept elsewhere")
        return self._layers[layer]

    def _wait(self, there: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._lost is not None or there())
        if self._lost is not None:
            raise WorkLostError(self._lost)
