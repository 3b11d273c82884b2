"""Jobs as real processes: what they end with, and that nothing is left when one of them is told to end or is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.procfs import lives
from tests.unit.appliance.tiny import compiled, execute, order_in, start_tasks
from tests.waiting import patient, until

ENDLESS = {"runconfig": {"checkpoint_steps": 20}}


def ends(processes: list[subprocess.Popen[str]], within_s: float = 20) -> list[str]:
    """What each printed; they must have ended."""
    deadline = time.monotonic() + patient(within_s)
    try:
        return [process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def servers_of(text: str) -> list[int]:
    found = re.search(r"\(processes ([0-9, ]+)\)", text)
    assert found, text
    return [int(pid) for pid in found[1].split(", ")]


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_compile_then_train_then_find(tmp_path: Path):
    order = replace(order_in(tmp_path), act="compile")
    answer: dict[str, object] = {}
    for found in (False, True):
        [process] = start_tasks(order)
        [text] = ends([process], 60)
        assert process.returncode == 0, text
        assert ("Compile found" if found else "Compile was successful") in text
        answer = json.loads((Path(order.folder) / "compiled-train.json").read_text())
        assert answer["found"] is found
    order = replace(order, act="train", artifact=str(answer["artifact"]), systems=1, label="wsjob-x |")
    processes = start_tasks(order)
    [text] = ends(processes, 60)
    assert processes[0].returncode == 0, text
    assert "wsjob-x | | Train Device=CSX, Step=6, Loss=" in text
    assert json.loads((Path(order.folder) / "trained.json").read_text())["step"] == 6


def test_term_ends_with_a_checkpoint_and_143_and_no_process_is_left(tmp_path: Path):
    order = compiled(order_in(tmp_path, systems=2, weight_servers=2, last_step=1_000_000, params=ENDLESS))
    processes = start_tasks(order)
    model = Path(order.model_dir)
    until(lambda: (model / "checkpoint_20.npz").exists())
    servers = children(processes[0].pid)
    assert len(servers) == 2
    for pid in [process.pid for process in processes] + servers:  # as the engine does: to all at once
        os.kill(pid, signal.SIGTERM)
    texts = ends(processes)
    assert [process.returncode for process in processes] == [143, 143], texts
    assert not any(map(lives, servers))
    answer = json.loads((Path(order.folder) / "trained.json").read_text())
    assert answer["checkpoint"] == str(model / f"checkpoint_{answer['step']}.npz")
    whole = compiled(order_in(tmp_path / "whole", compile_dir=order.compile_dir, systems=2, last_step=answer["step"]))
    with np.load(answer["checkpoint"]) as stopped, np.load(execute(whole).answer["checkpoint"]) as straight:
        assert {name: stopped[name].tobytes() for name in stopped} == {
            name: straight[name].tobytes() for name in straight
        }


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["system 0", "system 1", "server"])
def test_a_kill_ends_all_soon_and_the_last_checkpoint_stays(tmp_path: Path, victim: str):
    order = compiled(order_in(tmp_path, systems=2, weight_servers=2, last_step=1_000_000, params=ENDLESS))
    processes = start_tasks(order)
    model = Path(order.model_dir)
    until(lambda: (model / "checkpoint_20.npz").exists())
    servers = children(processes[0].pid)
    pids = {"system 0": processes[0].pid, "system 1": processes[1].pid, "server": servers[1]}
    os.kill(pids[victim], signal.SIGKILL)
    texts = ends(processes, 15)
    codes = [process.returncode for process in processes]
    until(lambda: not any(map(lives, servers)), 10)
    match victim:
        case "system 0":
            assert codes == [-9, 1], texts
            assert "error: weight server" in texts[1] or "error: system 0 has gone" in texts[1]
        case "system 1":
            assert codes == [1, -9], texts
            assert "error: system 1 has gone" in texts[0]
        case _:
            assert codes == [1, 1], texts
            assert "error: weight server 1 has gone: it was killed by SIGKILL" in texts[0]
    assert not any("Traceback" in text for text in texts), texts
    with np.load(model / "checkpoint_20.npz") as kept:
        assert kept["step"] == 20
    assert not [path for path in model.iterdir() if path.name.startswith(".")] or victim == "system 0"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_end_while_a_system_is_awaited_leaves_nothing(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    order = compiled(order_in(tmp_path, systems=2, weight_servers=2))
    notice = Path(order.folder) / "servers.json"
    first, second = start_tasks(order)
    second.kill()  # as it starts: it never comes
    until(lambda: notice.exists() or first.poll() is not None)
    assert list(runtime.rglob("*.sock"))
    first.send_signal(number)
    texts = ends([first, second])
    assert first.returncode == (-9 if number == signal.SIGKILL else 143), texts
    assert "error" not in texts[0]
    until(lambda: not list(runtime.iterdir()) and not notice.exists(), 20)
    runtime.rmdir()


def test_an_order_for_another_number_of_systems_or_another_program_is_refused(tmp_path: Path):
    order = compiled(order_in(tmp_path, systems=2))
    for wrong, tasks, why in (
        (order, 1, "the order is for 2 systems, and WORLD_SIZE says 1"),
        (replace(order, artifact="0" * 64, systems=1), 1, "the model, params or batches changed after compilation"),
    ):
        [process] = start_tasks(wrong, tasks)
        [text] = ends([process], 60)
        assert process.returncode == 1
        assert f"error: {why}" in text


def test_importing_the_appliance_needs_neither_jax_nor_numpy():
    code = (
        "import sys; import moorings.appliance, moorings.appliance.execution, moorings.appliance.layers; "
        "sys.exit(any(name in sys.modules for name in ('jax', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=patient(60)).returncode == 0
