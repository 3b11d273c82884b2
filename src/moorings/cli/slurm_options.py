"""What ``moor run`` has in place of options that people of Slurm type: the hint where it refuses one.

Not here: options of the same name and meaning (``-n``, ``--array``, ``--export``). Refused alternative: more spellings
of ours. An option has one name, and the value of another one means something else (``--gres gpu:2``).
"""

from __future__ import annotations

HINTS: dict[tuple[str, ...], str] = {
    ("-t",): "write --time DURATION",
    ("-J", "--job-name"): "write --name NAME",
    ("-a",): "write --array INDEXES",
    ("-D",): "write --chdir DIR",
    ("-c", "--cpus-per-task"): "write --cpus N",
    ("-p", "--partition"): "write --pool POOL",
    ("-A", "--account"): "write --project NAME",
    ("-d", "--dependency"): "write --after RUN:ok",
    ("-G", "--gres", "--gpus"): "write --ipus N",
    ("--mem", "--mem-per-cpu"): "write --memory SIZE, for each task",
    ("--pty",): "write -i",
    ("-o", "-e", "--output", "--error"): "the output is kept: 'moor logs RUN' shows it",
}


def hint_for(option: str) -> str:
    """What to write instead of an option; empty: it is none of Slurm's, or has no counterpart."""
    return next((hint for names, hint in HINTS.items() if option in names), "")
