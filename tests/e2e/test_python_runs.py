"""``moorings.submit`` from a program, on a real controller with the embedded engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import moorings
from tests.e2e.processes import ControllerProcess
from tests.waiting import patient, until


@pytest.fixture(autouse=True)
def _here(controller: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables by which a program finds the controller, and that it is this user's own."""
    settings = {
        "MOORINGS_SERVER": f"http://127.0.0.1:{controller.port}",
        "MOORINGS_DATA": str(controller.data),
        "MOORINGS_CREDENTIALS": str(controller.credentials),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def test_a_function_gets_devices_and_its_value_comes_back() -> None:
    def describe(word: str, *, end: str) -> tuple[str, str, str]:
        print(word, flush=True)
        return word + end, os.environ["MOORINGS_DEVICES"], os.environ["TRAVELS"]

    run = moorings.submit(partial(describe, end="!"), "hello", ipus=2, time="10m", env={"TRAVELS": "a=b"})
    assert run.result(patient(60)) == ("hello!", "pod16:0,pod16:1", "a=b")
    assert (run.logs(), run.state, run.done(), run.exception()) == ("hello\n", "SUCCEEDED", True, None)
    body = run.info()
    assert (body.name, body.job.accelerators.size, body.job.time_limit_s) == ("describe", 2, 600)
    assert moorings.find_run(run.id).result() == run.result()


def test_an_exception_is_raised_here_with_its_remote_traceback() -> None:
    class DivergedError(Exception):
        pass

    def diverge() -> None:
        raise DivergedError("at step 3")

    run = moorings.submit(diverge, size=0)
    with pytest.raises(DivergedError, match="at step 3") as caught:
        run.result(patient(60))
    assert f"in {run.id}:" in caught.value.__notes__[0]
    assert "in diverge" in caught.value.__notes__[0]
    assert isinstance(run.exception(), DivergedError)
    assert run.state == "FAILED"


def test_each_task_of_a_function_has_a_result() -> None:
    run = moorings.submit(lambda: int(os.environ["RANK"]), tasks=2, ipus=2)
    assert run.results(patient(60)) == [0, 1]
    with pytest.raises(moorings.MooringsError, match=r"results\(\) returns the value of each"):
        run.result()


def test_an_array_calls_a_function_for_each_element() -> None:
    runs = moorings.map_array(lambda a, b: a * b, range(4), [1, 2, 3, 4], at_once=2, name="sweep", size=0)
    assert [run.result(patient(60)) for run in runs] == [0, 2, 6, 12]
    bodies = [run.info() for run in runs]
    assert {(body.array.id, body.array.size, body.array.limit) for body in bodies if body.array} == {
        (bodies[0].id.removesuffix("-0"), 4, 2)
    }
    assert moorings.find_run(runs[3].id).result() == 12
    last = moorings.submit(["true"], size=0, after=runs)
    assert last.info().job.after == (bodies[0].id.removesuffix("-0"),)
    assert last.result(patient(60)) is None


def test_a_run_without_a_result_says_how_it_ended() -> None:
    cancelled = moorings.submit(signal.pause, size=0)
    with pytest.raises(TimeoutError, match="the time is up"):
        cancelled.result(timeout=0)
    cancelled.cancel()
    with pytest.raises(moorings.RunError, match=r"CANCELLED.*its function has returned nothing") as caught:
        cancelled.result(patient(60))
    assert (caught.value.code, caught.value.run.state) == ("run.unsuccessful", "CANCELLED")
    late = moorings.submit(signal.pause, size=0, time="1s")
    with pytest.raises(moorings.RunError, match="TIMED_OUT"):
        late.result(patient(60))
    died = moorings.submit(partial(os._exit, 5), size=0)
    with pytest.raises(moorings.RunError, match="exit code 5"):
        died.result(patient(60))
    cancelled.cancel()  # nothing: it has ended


def test_commands_files_and_tables_are_jobs_too(tmp_path: Path) -> None:
    first = moorings.submit(["sh", "-c", "echo ready; exit 3"], name="first", size=0)
    with pytest.raises(moorings.RunError, match="exit code 3"):
        first.result(patient(60))
    assert (first.logs(), first.results.__name__, repr(first)) == ("ready\n", "results", f"<moorings.Run {first.id}>")
    table = {"command": ("sh", "-c", "echo $X"), "accelerators": {"size": 0}, "environment": {"set": {"X": "1"}}}
    second = moorings.submit(table, after=moorings.submit(["true"], size=0), labels={"team": "nlp"})
    assert (second.result(patient(60)), second.results()) == (None, [])
    assert (second.logs(), second.info().name, second.info().labels) == ("1\n", "sh", {"team": "nlp"})
    (tmp_path / "job.toml").write_text('command = "echo file"\n[accelerators]\nsize = 0\n')
    third = moorings.submit(tmp_path / "job.toml", name="renamed")
    assert (third.result(patient(60)), third.logs(), third.info().name) == (None, "file\n", "renamed")


def test_a_program_with_an_event_loop_submits_and_waits() -> None:
    async def notebook() -> int:
        return moorings.submit(lambda: 7, size=0).result(patient(60))

    assert asyncio.run(notebook()) == 7


def test_a_refused_function_leaves_no_files(controller: ControllerProcess) -> None:
    with pytest.raises(moorings.MooringsError) as caught:
        moorings.submit(int, ipus=1 << 12)
    assert caught.value.code == "claim.too_large"
    assert list((controller.data / "functions").iterdir()) == []


def test_a_run_outlives_its_program_and_the_controller(controller: ControllerProcess, tmp_path: Path) -> None:
    go, program = tmp_path / "go", tmp_path / "program.py"
    program.write_text(
        "import sys, time, pathlib, moorings\n"
        "def wait(path):\n    while not pathlib.Path(path).exists(): time.sleep(0.05)\n    return 'went'\n"
        "print(moorings.submit(wait, sys.argv[1], size=0).id)\n"
    )
    argv = [sys.executable, str(program), str(go)]
    ident = subprocess.run(argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout.strip()
    run = moorings.find_run(ident)
    until(lambda: run.state == "RUNNING")
    controller.kill()
    go.touch()
    controller.start()
    assert run.result(patient(60)) == "went"
