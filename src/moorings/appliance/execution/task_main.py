"""One task of a job: its variables, its signals, its output, and its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from moorings.appliance.execution.compilation import build_key, compile_model
from moorings.appliance.execution.errors import StoppedError, execution_error, model_error
from moorings.appliance.execution.execute import TaskContext, evaluate, train
from moorings.appliance.execution.programs import use_cpu
from moorings.appliance.job_spec import ApplianceJobSpec
from moorings.appliance.program import ModelType, Program, Source, SourceType, params_type
from moorings.core.model.errors import MooringsError

TERMINATED: Final = 128 + signal.SIGTERM


def run_task(order: ApplianceJobSpec, program: Program) -> int:
    """Do the work of the order; return the exit code. Errors go to standard error."""
    use_cpu()
    stop = _StopFlag()
    before = signal.signal(signal.SIGTERM, stop.on_signal)
    try:
        rank, world_size = _rank_and_size(os.environ)
        task = TaskContext(order, rank, _make_reporter(order.label, rank), stop)
        if order.act == "compile":
            _compile(task, program)
            return 0
        if world_size != order.systems:
            raise execution_error(f"the order is for {order.systems} systems, and WORLD_SIZE says {world_size}")
        return TERMINATED if _execute(task, program) else 0
    except MooringsError as error:
        sys.stderr.write(f"error: {error.detail}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.stderr.flush()
        return 1
    except StoppedError:
        return TERMINATED
    finally:
        signal.signal(signal.SIGTERM, before)


class _StopFlag:
    """Whether a stop was requested. A signal only sets this flag: the current step is finished."""

    def __init__(self) -> None:
        self.is_requested = False
        self.at_once = False

    def on_signal(self, *_: object) -> None:
        self.is_requested = True
        if self.at_once:
            raise StoppedError

    def __call__(self) -> bool:
        return self.is_requested

    @contextmanager
    def stop_immediately(self) -> Iterator[None]:
        """A block in which a signal raises StoppedError; at its end also for a signal that other code caught."""
        self.at_once = True
        try:
            self._check()
            yield
            self._check()
        finally:
            self.at_once = False

    def _check(self) -> None:
        if self.is_requested:
            raise StoppedError


def _compile(task: TaskContext, program: Program) -> None:
    order, stop = task.order, task.is_stop_requested
    assert isinstance(stop, _StopFlag)
    with stop.stop_immediately():  # nothing is to be saved, and half-made files are removed on the way out
        model = _model(order, program)
        source = _source(order, program)
        batch = task.batch(source, 0)
        key = build_key(_class(program.model), order, batch)
        task.report("Compiling the model. This may take a few minutes.")
        compiled = compile_model(list(model.layers()), order, batch, key, task.report)
    if compiled.found:
        task.report(f"Compile found: artifact {key[:12]} was compiled before, for the same sources, params and shapes")
    else:
        programs, layers = (len(compiled.artifact.manifest[name]) for name in ("programs", "layers"))
        task.report(
            f"Compile was successful: artifact {key[:12]}, {programs} programs for {layers} layers, "
            f"{compiled.artifact.manifest['weights']:,} weights, {compiled.seconds:.1f} s"
        )
    task.write_result({"artifact": key, "found": compiled.found, "seconds": round(compiled.seconds, 3)})


def _execute(task: TaskContext, program: Program) -> bool:
    """Train or evaluate; return whether it was stopped before its end."""
    order = task.order
    layers = list(_model(order, program).layers())
    source = _source(order, program)
    key = build_key(_class(program.model), order, task.batch(source, order.first_step if order.act == "train" else 0))
    if key != order.artifact:
        raise execution_error(
            "the model, params or batches changed after compilation",
            "were its sources changed in the meantime? start run.py again: it compiles what is there now",
        )
    return (train if order.act == "train" else evaluate)(task, layers, source)


def _model(order: ApplianceJobSpec, program: Program) -> Any:  # noqa: ANN401 - the user's
    return _instantiate(program.model, order.params["model"])


def _source(order: ApplianceJobSpec, program: Program) -> Source:
    side = order.program
    part = program.train if side == "train" else program.eval
    if part is None:
        raise model_error(f"run() was given no batches for {side}", f"run(..., {side}=...) names a class of batches")
    source: Source = _instantiate(part, order.params[f"{side}_input"])
    return source


def _instantiate(part: ModelType | SourceType, section: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the user's
    return part(_from_json(params_type(part), section))


def _from_json(kind: Any, value: Any) -> Any:  # noqa: ANN401 - types and values of the user's dataclass
    """A value of that type from JSON, where a tuple is a list, and a dataclass an object."""
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        return kind(**{name: _from_json(hints[name], each) for name, each in value.items()})
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        fits = [each for each in inner if is_dataclass(each) or get_origin(each) in (list, tuple)]
        return _from_json(fits[0], value) if fits and value is not None else value
    if isinstance(value, list) and inner:
        items = [_from_json(inner[0], each) for each in value]
        return tuple(items) if get_origin(kind) is tuple else items
    return value


def _class(model: ModelType) -> type:
    assert isinstance(model, type)  # checked by check_program
    return model


def _rank_and_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """This task's number, and the number of tasks."""
    try:
        rank, world_size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise execution_error("RANK and WORLD_SIZE are no numbers", "they are set by what starts the tasks") from error
    if not 0 <= rank < world_size:
        raise execution_error(
            f"RANK {rank} is not below WORLD_SIZE {world_size}", "they are set by what starts the tasks"
        )
    return rank, world_size


def _make_reporter(label: str, rank: int) -> Callable[[str], None]:
    """Only the first task reports."""
    prefix = f"{label.rstrip()} " if label.strip() else ""

    def report(text: str) -> None:
        if rank == 0:
            sys.stdout.write(f"{prefix}{text}\n")
            sys.stdout.flush()

    return report
