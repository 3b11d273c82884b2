"""``run``: on a user's machine the client of a workflow, in a job the work itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from moorings.appliance.job_spec import ApplianceJobSpec
from moorings.appliance.program import ModelType, Program, SourceType, check_program
from moorings.core.model.errors import MooringsError

LEASE_S: Final = 60.0  # a client may be away for 30 s; a dead one holds systems no longer than this

_order: ApplianceJobSpec | None = None  # the specification of this process's job, if it is in a job


def set_job_spec(order: ApplianceJobSpec) -> None:
    """Make ``run`` do the work of this job; for ``task`` alone."""
    global _order
    _order = order


def run(
    model: ModelType,
    train: SourceType | None = None,
    eval: SourceType | None = None,  # noqa: A002 - the user's word
    *,
    _lease_s: float = LEASE_S,
) -> NoReturn:
    """Compile and execute a model on wafer-scale systems, as the command line says; ends the process.

    Args:
        model: class of the model: ``Params``, ``layers()``.
        train: class of the batches for training: ``Params`` with ``batch_size``, ``batch()``.
        eval: class of the batches for evaluation.

    Raises:
        SystemExit: always: 0; 1 a job failed; 2 wrong arguments or params; 124 ``job_time_sec`` is over; 128 + N after
            signal N.
    """
    program = Program(model, train, eval)
    if _order is None:
        raise SystemExit(run_client(program, sys.argv[1:], os.environ, _lease_s))
    from moorings.appliance.execution import work

    raise SystemExit(work(_order, check_program(program)))


def run_client(program: Program, argv: Sequence[str], environment: Mapping[str, str], lease_s: float) -> int:
    """Run as the client; return the exit code. Every message has been written."""
    from moorings.appliance.arguments import parse_arguments
    from moorings.appliance.client import run_workflow
    from moorings.appliance.console import DatedConsole
    from moorings.terminal.context import CommandContext
    from moorings.terminal.errors import OutputClosed, error_lines, exit_code

    script = _find_script()
    arguments = parse_arguments(argv, script.name)
    session = CommandContext(environment)
    session.flags.update(arguments.flags)
    console = DatedConsole(environment)
    try:
        return run_workflow(program, arguments, session, console, script=script, lease_s=lease_s)
    except MooringsError as error:
        for line in error_lines(error):
            console.error(line)
        return exit_code(error)
    except OutputClosed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        session.close()


def _find_script() -> Path:
    """The absolute path of the started script: jobs run it again."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(file or "").absolute()
    if not path.is_file():
        sys.exit("error: moorings.appliance.run was not called by a script: python run.py CSX ... (program.invalid)")
    return path
