"""What people type all day: CPU of ``moor get queue`` as a multiple of the CPU of an interpreter that does nothing.

And how long a shell takes (``shell_ready``), and what ``moor run --engine slurm`` adds to ``sbatch``
(``slurm_submit``; its bound is ``sbatch`` itself).

In turns, so that a busier moment of the machine is in both. Bound: the parser of options and the HTTP client alone,
which are not ours.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.claims_http import POOLS, start_controller
from benchmarks.cli_start import cpu_ms
from benchmarks.report import Report
from benchmarks.shell_ready import plain_shell_ms, shell_ready_ms
from benchmarks.slurm_submit import submit_ms

ROUNDS = 15
NOTHING, FOREIGN = "pass", "import click, http.client, json, tomllib"


def run() -> Report:
    """Measure."""
    moor = str(Path(sys.executable).with_name("moor"))
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        (folder / "pools.toml").write_text(POOLS)
        process, _, _ = start_controller(folder)
        environment = {**os.environ, "MOORINGS_CREDENTIALS": str(folder / "credentials.toml")}
        commands = [[moor, "get", "queue"], *([sys.executable, "-c", code] for code in (NOTHING, FOREIGN))]
        try:
            rounds = [[cpu_ms(command, environment) for command in commands] for _ in range(ROUNDS + 1)]
        finally:
            process.terminate()
            process.wait(20)
    get, nothing, foreign = (statistics.median(taken) for taken in zip(*rounds[1:], strict=True))  # the first compiles
    submit_added, sbatch = submit_ms()
    return Report(
        name="yourself",
        figures={
            "get_cpu_ratio_to_python": get / nothing,
            "shell_ready_ms_p50": shell_ready_ms(),
            "submit_added_ms_p50": submit_added,
        },
        bounds={
            "get_cpu_ratio_to_python": foreign / nothing,
            "shell_ready_ms_p50": plain_shell_ms(),
            "submit_added_ms_p50": sbatch,
        },
        anchors={"get_cpu_ratio_to_python": 5, "shell_ready_ms_p50": 300, "submit_added_ms_p50": 250},
        notes=(f"median of {ROUNDS}; python -c pass: {nothing:.1f} ms; bound: {FOREIGN}",),
    )
