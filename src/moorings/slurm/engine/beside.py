"""What a person does beside the tasks of a run on Slurm: steps of the same job, which lease none of its GCDs.

The person's own ``srun`` starts them, so Slurm decides whether they may. The plugin passes over a step with
``MOORINGS_BESIDE``: it needs no partition, and must not wait for a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

BESIDE = "MOORINGS_BESIDE"
NO_TERMINAL = 93  # exit code of a step that finds none to attach to
# In the variables of task 0. Its program may be about to start.
_ATTACH = f"""
[ -n "${{MOORINGS_TERMINAL-}}" ] || exit {NO_TERMINAL}
looks=0
until [ -e "$MOORINGS_TERMINAL" ]; do
    [ "$looks" -lt 50 ] || exit {NO_TERMINAL}
    looks=$((looks + 1))
    sleep 0.2
done
. "$MOORINGS_TERMINAL"
"""


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
    words = ("moor-exec", run, folder, term if tty else "", *command)
    return [*_step(job, tty=tty), "/bin/bash", "-c", _script("beside.sh"), *words]


def build_attach(job: str, run: str) -> list[str]:
    """The call of ``srun`` that shows the terminal of a run's first task in this one.

    Its exit code is 0 once the program has ended, ``node_terminal.DETACHED`` if the person has left it, and
    ``NO_TERMINAL`` or ``node_terminal.UNREACHABLE`` if it is not reached.

    Args:
        job: Slurm's number of it.
        run: its id.
    """
    return build_beside(job, run, "/", ("/bin/sh", "-c", _ATTACH), tty=True)


def build_forward(job: str, port: int) -> list[str]:
    """The call of ``srun`` that passes its input and its output to a port of the first task's node.

    Args:
        job: Slurm's number of it.
        port: of 127.0.0.1.
    """
    return [*_step(job, tty=False), "/bin/bash", "-c", _script("forward.sh"), "moor-port-forward", str(port)]


def _step(job: str, *, tty: bool) -> list[str]:
    return [
        *("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--relative=0", f"--export={BESIDE}=1"),
        "--pty" if tty else "--unbuffered",
    ]


def _script(name: str) -> str:
    return files("moorings.slurm.engine").joinpath(name).read_text()
