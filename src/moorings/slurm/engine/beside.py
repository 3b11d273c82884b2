"""A command beside the tasks of a run on Slurm: a step of the same job, which leases none of its GCDs.

The person's own ``srun`` starts it, so Slurm decides whether they may. The plugin passes over a step with
``MOORINGS_BESIDE``: it needs no partition, and must not wait for a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

BESIDE = "MOORINGS_BESIDE"


def build_beside(
    job: str, run: str, folder: str, command: Sequence[str], *, term: str = "", tty: bool = False
) -> list[str]:
    """The call of ``srun`` that runs a command beside a run's tasks.

    Args:
        job: Slurm's number of it.
        run: its id.
        folder: the run's working folder.
        command: program and arguments.
        term: of the terminal, if the command gets one.
        tty: whether it gets one.
    """
    script = files("moorings.slurm.engine").joinpath("beside.sh").read_text()
    return [
        *("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--relative=0", f"--export={BESIDE}=1"),
        *(("--pty",) if tty else ("--unbuffered",)),
        *("/bin/bash", "-c", script, "moor-exec", run, folder, term if tty else "", *command),
    ]
