"""The work of an appliance's job: compile a model, or train and evaluate it on systems with streamed weights.

Here, in three groups. Compiling: ``artifacts`` (compiled programs, found by their content), ``programs`` (all use of
JAX), ``compilation``. Weights: ``optimizer`` (pure), ``weights`` (a weight server's state), ``server`` (its process),
``frames`` (the messages on its sockets). Systems: ``connections`` and ``rendezvous`` (their connections to the
servers), ``streaming`` (one step of one system), ``checkpoints``, ``execute``.

Not here: queues, systems' partitions, leases. This folder does not know the controller: it reads an order file and
writes a result file. Start reading at ``execute.py``; ``docs/explanation/wafer.md`` explains how a job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moorings.appliance.job_spec import ApplianceJobSpec
    from moorings.appliance.program import Program


def work(order: ApplianceJobSpec, program: Program) -> int:
    """Do the work of an order, as the task in the environment's variables; return the exit code of this process.

    0: done. 1: it failed, and a line says why. 143: it was stopped (TERM), and a checkpoint was written.
    """
    # Imported here because only this needs JAX and NumPy: a client may import the package on a machine without them.
    from moorings.appliance.execution.task_main import run_task

    return run_task(order, program)
