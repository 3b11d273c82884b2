"""What a job of an appliance does: compile a model, or train and measure it on systems that weights are streamed to.

Here, in three groups. Compiling: ``sources`` and ``artifacts`` (what is compiled is found again by its content),
``programs`` (all that is said to JAX), ``compiling``. Weights: ``optimizer`` and ``shares`` (pure), ``weights`` (what a
weight server keeps), ``server`` (its process), ``frames`` (what goes over its sockets). Systems: ``links`` and
``meeting`` (how they reach the servers), ``streaming`` (one step of one system), ``checkpoints``, ``executing``.

Not here: queues, systems' partitions, leases. Nothing of it knows the controller: an order comes in a file, an answer
goes into one. Start reading at ``executing.py``; ``docs/explanation/wafer.md`` says how a job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moorings.appliance.order import ApplianceJobSpec
    from moorings.appliance.program import Program


def work(order: ApplianceJobSpec, program: Program) -> int:
    """Do what an order says, as the task whose variables stand in the environment; the exit code of this process.

    0: done. 1: it failed, and a line says why. 143: it was told to end (TERM), and a checkpoint was written.
    """
    # Only here are JAX and NumPy needed: whoever imports this package may be a client on a machine without them.
    from moorings.appliance.execution.working import run_task

    return run_task(order, program)
