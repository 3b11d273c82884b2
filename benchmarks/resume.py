"""What stopping and resuming costs: a look at checkpoints, a pause, and the steps that are done again.

A look is at a folder of 1,000 checkpoints, half of them files of torch.save's form, half folders of the Hugging Face
Trainer. Bound: listing the folder and the time of each entry, which no look can do without.

A run is paused again and again by a real controller and its supervisor. It does 20 steps a second, and saves after
every hundredth and when it is warned. Of each pause: the time from the request until its claim is released and the
partition removed, and the steps that the next attempt does again.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.claims_http import POOLS, start_controller
from benchmarks.report import Report
from moorings.client.client import Client
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_scan import NO_LOOK, CheckpointLook, look_at_folder
from moorings.engines.checkpoint_watch import SETTLED_S
from moorings.wire.shapes import CheckpointShape, JobShape, RunRequest

CHECKPOINTS = 1000
LOOKS = 200
PAUSES = 8
STEPS_A_SAVE = 100
WORKS_S = 2.0  # between two pauses

PROGRAM = f"""
import os, signal, time, zipfile
folder = os.environ["MOORINGS_CHECKPOINT_DIR"]
step = int(os.environ.get("MOORINGS_RESUME_STEP", "0"))
def save(*_):
    with zipfile.ZipFile(folder + "/draft", "w") as file:
        file.writestr("state", str(step))
    os.rename(folder + "/draft", folder + "/step-%d.pt" % step)
signal.signal(signal.SIGUSR2, save)
while True:
    time.sleep(0.05)
    step += 1
    if step % {STEPS_A_SAVE} == 0:
        save()
    with open(folder + "/../done.new", "w") as file:
        file.write(str(step))
    os.rename(folder + "/../done.new", folder + "/../done")
"""


def run() -> Report:
    """Measure."""
    figure, bound = _looks()
    frees, lost = _pauses()
    return Report(
        name="resume",
        figures={
            "look_ms_p99": figure,
            "pause_to_free_s_p50": statistics.median(frees),
            "lost_steps_max": float(max(lost)),
        },
        bounds={"look_ms_p99": bound, "pause_to_free_s_p50": SETTLED_S},
        anchors={"look_ms_p99": 20, "lost_steps_max": STEPS_A_SAVE},
        notes=(
            f"{LOOKS} looks at {CHECKPOINTS} checkpoints; bound: listing the folder with times",
            f"{PAUSES} pauses, the longest {max(frees):.2f} s; bound: the time for which its folder must be quiet",
            f"a save is {STEPS_A_SAVE} steps after the last",
        ),
    )


def _pauses() -> tuple[list[float], list[int]]:
    """Of each pause: seconds until the devices were free, and the steps that were lost."""
    frees: list[float] = []
    lost: list[int] = []
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        (folder / "pools.toml").write_text(POOLS)
        (folder / "saves").mkdir()
        (folder / "work.py").write_text(PROGRAM)
        job = JobShape(
            name="works",
            command=(sys.executable, str(folder / "work.py")),
            workdir=name,
            checkpoint=CheckpointShape(resumable=True),
            checkpoint_directory=str(folder / "saves"),
        )
        process, url, key = start_controller(folder)
        try:
            with Client(Transport(Endpoint(url, key))) as client:
                ident = client.create_run(RunRequest(job=job)).id
                for _ in range(PAUSES):
                    _until(lambda: client.get_run(ident).state == "RUNNING")
                    time.sleep(WORKS_S)
                    begun = time.perf_counter()
                    client.pause_run(ident, wait_s=60.0)
                    _until(lambda: not client.list_partitions())
                    frees.append(time.perf_counter() - begun)
                    done = int((folder / "done").read_text())
                    client.resume_run(ident)
                    _until(lambda: client.get_run(ident).state == "RUNNING")
                    given = client.get_run(ident).resumed_from
                    lost.append(done - (given.step or 0) if given is not None else done)
                client.cancel_run(ident, wait_s=60.0)
        finally:
            process.terminate()
            process.wait(20)
    return frees, lost


def _until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def _looks() -> tuple[float, float]:
    """The time of a look, and its bound: p99, milliseconds."""
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
        return figure, _p99_ms(lambda: [entry.stat(follow_symlinks=False) for entry in os.scandir(name)])


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
