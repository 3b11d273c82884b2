"""Time of one look at a folder of 1,000 checkpoints, beside the tasks of a run.

Half of them are files of torch.save's form, half folders of the Hugging Face Trainer. Bound: listing the folder and the
time of each entry, which no look can do without.
"""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Report
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_scan import NO_LOOK, CheckpointLook, look_at_folder

CHECKPOINTS = 1000
LOOKS = 200


def run() -> Report:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        _fill(folder)
        before: CheckpointLook = NO_LOOK

        def look() -> None:
            nonlocal before
            before = look_at_folder(name, Timestamp(time.time_ns() // 1000), before)

        figure = _p99_ms(look)
        whole = sum(each.is_whole for each in before.found)
        if whole != len(before.found) or not whole:
            raise SystemExit(f"{whole} of {len(before.found)} checkpoints are whole")
        bound = _p99_ms(lambda: [entry.stat(follow_symlinks=False) for entry in os.scandir(name)])
    return Report(
        name="resume",
        figures={"look_ms_p99": figure},
        bounds={"look_ms_p99": bound},
        anchors={"look_ms_p99": 20},
        notes=(f"{LOOKS} looks at {CHECKPOINTS} checkpoints", "bound: listing the folder with times"),
    )


def _fill(folder: Path) -> None:
    for step in range(0, CHECKPOINTS, 2):
        with zipfile.ZipFile(folder / f"step-{step}.pt", "w") as archive:
            archive.writestr("data", b"x" * 10_000)
        trainer = folder / f"checkpoint-{step + 1}"
        trainer.mkdir()
        (trainer / "model.safetensors").write_bytes(b"x" * 10_000)
        (trainer / "trainer_state.json").write_text('{\n  "global_step": 1\n}\n')


def _p99_ms(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begun) * 1e3)
    return sorted(taken)[round(LOOKS * 0.99) - 1]
