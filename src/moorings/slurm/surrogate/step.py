"""The step for work elsewhere: srun's arguments, and the placeholder's replies.

The placeholder travels in srun's command line, so the node needs nothing of ours, installed or readable: the shell of
salloc may be on a login node with a virtual environment of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from moorings.core.model.errors import MooringsError

COMPLETED = b"0\n0\n"  # twice: see placeholder.sh
FAILED = b"1\n1\n"
BEAT = b"\n"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,127}")
_STEP_LINE = re.compile(r"moorings:(?:begun:([0-9]{1,10})|([A-Z][A-Z0-9]{1,8}))")
_SCRIPT = Path(__file__).with_name("placeholder.sh")


@dataclass(frozen=True, slots=True)
class Begun:
    """The placeholder runs, in the step of this number."""

    step: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """The placeholder got a signal (``TERM``), and continues."""

    signal: str


def check_name(name: str) -> str:
    """Return the name if Slurm's listings can show it unchanged.

    Raises:
        MooringsError: ``name.invalid``.
    """
    if not _NAME.fullmatch(name):
        hint = "letters, digits and ._/@:+- are allowed, 128 characters at most; a letter or a digit is the first"
        raise MooringsError("name.invalid", f"{name[:40]!r} is no name for a step", hint=hint)
    return name


def build_name(command: str) -> str:
    """Return a name for the step of a command: its program's, with other characters replaced."""
    fitting = re.sub(r"[^A-Za-z0-9._@:+-]", "_", Path(command).name)[:128].lstrip("._@:+-")
    return fitting or "surrogate"


def load_placeholder() -> str:
    """Return the script that runs in the step, without its comments."""
    lines = _SCRIPT.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def build_step(job: int, name: str, placeholder: str) -> list[str]:
    """Return the command that makes the step and stays until its end; its input goes to the placeholder.

    The step takes nothing from the job's other steps (``--overlap``, no memory, no GRES), waits for none, and runs on
    the job's first node, where a batch script runs. The job's variables may give options to srun, but ours must win:
    srun runs without those variables, and finds the job by ``--jobid``.
    """
    return [
        *("srun", f"--jobid={int(job)}", "--overlap", "--nodes=1", "--ntasks=1", "--relative=0", "--mem=0"),
        *("--gres=none", "--mpi=none", "--chdir=/", f"--job-name={check_name(name)}"),
        *("/bin/sh", "-c", placeholder, "moorings-surrogate"),
    ]


def build_remove(job: int, step: int) -> list[str]:
    """Return the command that ends a step whose srun no longer can."""
    return ["scancel", f"{int(job)}.{int(step)}"]


def parse_line(line: str) -> Begun | Signalled | None:
    """Return the placeholder's report; None: the line is from srun or a site's prolog."""
    found = _STEP_LINE.fullmatch(line.strip())
    if found is None:
        return None
    return Begun(int(found[1])) if found[1] else Signalled(found[2])
