"""Whether this process is in a Slurm job and may make steps of it: a batch script, or a shell of salloc.

The variables say so, and our caller chooses them: ``mirror`` asks Slurm whether the job is our user's. The variables
alone do not suffice: a job submitted by a step has the step's ``SLURM_STEP_ID`` among its own variables. So where a
slurmstepd is an ancestor, its title decides.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SPECIAL_STEPS = 0xFFFFFFFA  # from here on: salloc's interactive step, the batch script, and others of Slurm's own
_ID = re.compile(r"[1-9][0-9]{0,9}")
_STEPD = re.compile(r"slurmstepd: \[([0-9]+)(?:\+[0-9]+)?\.([a-z0-9]+)")


@dataclass(frozen=True, slots=True)
class NotInJob:
    """Why no step can be made here, and a hint."""

    why: str
    hint: str


def find_job(environment: Mapping[str, str], ancestors: Iterable[str]) -> int | NotInJob:
    """The id of the job we are in, or why there is none for us.

    Args:
        environment: of this process.
        ancestors: titles of its parent, of that one's parent and on, as far as they can be seen.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        return NotInJob(
            "this is no Slurm job: SLURM_JOB_ID is not set", "start it in a script for sbatch, or in salloc"
        )
    if not _ID.fullmatch(job):
        return NotInJob(f"SLURM_JOB_ID is {job[:20]!r}, which is no job's id", "leave Slurm's variables as they are")
    step = _step_around(job, environment.get("SLURM_STEP_ID", ""), ancestors)
    if step.isascii() and step.isdecimal() and int(step) < _SPECIAL_STEPS:
        return NotInJob(
            f"this runs under srun, as step {job}.{step} itself", "start it from the batch script, without srun"
        )
    return int(job)


def _step_around(job: str, step: str, ancestors: Iterable[str]) -> str:
    for title in ancestors:
        if found := _STEPD.match(title):
            return found[2] if found[1] == job else ""  # another's: salloc was started in its step
    return step


def load_ancestors() -> Iterator[str]:
    """Titles of this process's ancestors, the nearest first, as far as this machine shows them."""
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 1:
            folder = Path("/proc") / str(pid)
            yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            pid = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
