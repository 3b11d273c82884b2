"""The sections of the params file that every program has: the optimizer and the run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["train", "eval", "train_and_eval"]

STEPS_MAX: Final = 1_000_000_000
SYSTEMS_MAX: Final = 4096  # tasks of a job
SERVERS_MAX: Final = 64
SECONDS_MAX: Final = 366 * 86_400
MEMORY_GI_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The section ``optimizer``.

    Attributes:
        max_gradient_norm: longer gradients are clipped to this; None: never.
        warmup_steps: the learning rate grows from 0 over this many.
    """

    optimizer_type: Literal["AdamW"] = "AdamW"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_gradient_norm: float | None = None
    warmup_steps: int = 0

    def check(self) -> None:
        """Check that training can work with these values.

        Raises:
            ValueError: with the field.
        """
        _more_than_zero("learning_rate", self.learning_rate)
        _more_than_zero("eps", self.eps)
        _more_than_zero("max_gradient_norm", self.max_gradient_norm)
        _within("warmup_steps", self.warmup_steps, 0, STEPS_MAX)
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay: {self.weight_decay:g} is less than 0")
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ValueError(f"{name}: {value:g} is not from 0 up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The section ``runconfig``; the command line takes precedence.

    Attributes:
        max_steps: the last step; None: not given, which only an eval allows.
        log_steps: steps between two progress lines.
        checkpoint_steps: steps between two checkpoints, with one more at the end; 0: only at the end.
        eval_steps: batches of an eval.
        eval_frequency: train_and_eval: steps between two evals; None: only at the end.
        job_time_sec: seconds that all jobs may run together, without their time in the queue; None: no limit.
        compile_memory_gi: memory of the management node for a compile job, in GiB.
        execute_memory_gi: for an execute job.
        job_labels: ``KEY=VALUE`` each.
    """

    max_steps: int | None = None
    log_steps: int = 10
    checkpoint_steps: int = 1000
    eval_steps: int = 10
    eval_frequency: int | None = None
    seed: int = 0
    num_csx: int = 1
    num_wgt_servers: int = 1
    job_time_sec: int | None = None
    job_priority: str = "p2"
    compile_memory_gi: int = 67
    execute_memory_gi: int = 32
    mode: Mode | None = None
    model_dir: str | None = None
    compile_dir: str | None = None
    mount_dirs: tuple[str, ...] = ()
    python_paths: tuple[str, ...] = ()
    job_labels: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that a run can work with these values.

        Raises:
            ValueError: with the field.
        """
        for name, value, least, most in (
            ("max_steps", self.max_steps, 1, STEPS_MAX),
            ("log_steps", self.log_steps, 1, STEPS_MAX),
            ("checkpoint_steps", self.checkpoint_steps, 0, STEPS_MAX),
            ("eval_steps", self.eval_steps, 1, STEPS_MAX),
            ("eval_frequency", self.eval_frequency, 1, STEPS_MAX),
            ("seed", self.seed, 0, (1 << 63) - 1),
            ("num_csx", self.num_csx, 1, SYSTEMS_MAX),
            ("num_wgt_servers", self.num_wgt_servers, 1, SERVERS_MAX),
            ("job_time_sec", self.job_time_sec, 1, SECONDS_MAX),
            ("compile_memory_gi", self.compile_memory_gi, 1, MEMORY_GI_MAX),
            ("execute_memory_gi", self.execute_memory_gi, 1, MEMORY_GI_MAX),
        ):
            _within(name, value, least, most)
        for label in self.job_labels:
            if "=" not in label:
                raise ValueError(f"job_labels: {label[:80]!r} is not KEY=VALUE")


def _within(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise ValueError(f"{name}: {value} is not from {least} to {most}")


def _more_than_zero(name: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise ValueError(f"{name}: {value:g} is not more than 0")
