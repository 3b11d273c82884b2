"""``run.py CSX`` on a real controller: modes, resuming, what is refused, and everything that can end it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.appliance import SECRET, Program, Site, Way
from tests.waiting import until

pytest.importorskip("jax", reason="the extra `wafer` is not installed")

LINE = re.compile(r"\| Train Device=CSX, Step=(\d+), Loss=([\d.]+), Rate=[\d.]+ samples/sec, GlobalRate=[\d.]+ samples")
DATED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (wsjob-[a-z0-9]{22})  (compile train|compile eval|train|eval) *  ")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    assert made.controller.stop() == 0


@pytest.fixture
def program(site: Site, tmp_path: Path) -> Iterator[Program]:
    yield site.program(tmp_path / "quick")
    nothing_left(site)


@pytest.fixture
def slow(site: Site, tmp_path: Path) -> Iterator[Program]:
    """Takes 50 ms a step, and would for an hour; its lease is short."""
    made = site.program(tmp_path / "slow", pause_s=0.05, lease_s=8.0)
    made.change("max_steps: 30", "max_steps: 72000")
    yield made
    nothing_left(site)


def nothing_left(site: Site) -> None:
    assert site.jobs(ended=False) == []
    until(lambda: site.claims() == [])


def of_kind(program: Program, kind: str) -> list[str]:
    return [str(job["id"]) for job in program.meta()[f"{kind}_jobs"]]


# -- what it does ------------------------------------------------------------------------------------------------------


def test_training_goes_on_where_it_was_and_compiles_once(program: Program) -> None:
    words = "--mode train --num_csx 2 --num_wgt_servers 2 --job_labels team=nlp run=a/b --job-priority p1"
    code, text = program.run(words)
    assert code == 0, text
    steps = [(int(step), float(loss)) for step, loss in LINE.findall(text)]
    assert [step for step, _ in steps] == [5, 10, 15, 20, 25, 30]
    assert steps[-1][1] < steps[0][1]
    told = {kind: ident for ident, kind in DATED.findall(text)}
    assert told.keys() == {"compile train", "train"}
    assert "made in" in text
    meta = program.meta()
    assert (of_kind(program, "compile"), of_kind(program, "execute")) == ([told["compile train"]], [told["train"]])
    train = meta["execute_jobs"][0]
    assert train["state"] == "SUCCEEDED"
    assert train["queued_time"] <= train["scheduled_time"] <= train["start_time"] <= train["end_time"]
    assert "| Train Device=CSX, Step=30" in Path(train["log_path"]).read_text()
    compiled, trained = (program.site.job(told[kind]) for kind in ("compile train", "train"))
    for job in (compiled, trained):
        assert job["labels"] == {"run": "a/b", "team": "nlp"}
        assert job["job"]["priority"] == -199
        assert job["job"]["appliance"]["workflow"] == train["workflow"]
        assert job["job"]["leaseS"] == 60.0
        assert SECRET not in str(job)
        assert program.site.controller.key not in str(job)
    assert (compiled["job"]["accelerators"]["size"], trained["job"]["accelerators"]["size"]) == (0, 2)
    assert trained["job"]["tasks"] == 2
    assert compiled["job"]["accelerators"]["resources"] == {"memory": 67 << 30}
    assert trained["job"]["accelerators"]["resources"] == {"memory": 32 << 30}

    code, text = program.run(f"{words} --max_steps 40")
    assert code == 0, text
    assert [int(step) for step, _ in LINE.findall(text)] == [35, 40]
    assert "found in the cache" in text
    assert program.checkpoints() == [30, 40]
    assert len(of_kind(program, "execute")) == 2

    meta = program.meta()  # as it stands when the client was killed before it saw the end
    ended = dict(meta["execute_jobs"][1])
    meta["execute_jobs"][1] |= {"state": "RUNNING", "end_time": None}
    (program.model_dir / "run_meta.json").write_text(json.dumps(meta))
    code, text = program.run(f"{words} --max_steps 40")
    assert (code, len(of_kind(program, "execute"))) == (0, 2)
    assert "nothing is left to do: checkpoint_40.npz has 40 steps, and max_steps is 40" in text
    assert program.meta()["execute_jobs"][1] == ended


def test_an_eval_looks_at_the_newest_whole_checkpoint(program: Program) -> None:
    code, text = program.run("--mode eval --model_dir mistyped")
    assert code == 2
    mistyped = program.folder / "mistyped"
    assert f"error: --model_dir: {mistyped} has no checkpoint to evaluate (params.invalid)" in text
    assert not mistyped.exists()
    assert program.run("--mode train")[0] == 0
    (program.model_dir / "checkpoint_99.npz").write_bytes(b"PK\x03\x04 cut")
    code, text = program.run("--mode eval")
    assert code == 0, text
    assert "warning: checkpoint_99.npz cannot be used: it is damaged" in text
    assert re.search(r"eval +done after [\d.]+ s: step 30, loss [\d.]+ over 2 batches", text)


def test_train_and_eval_take_turns_on_the_same_systems(program: Program) -> None:
    program.change("eval_steps: 2", "eval_steps: 2\n  eval_frequency: 20")
    code, text = program.run("--mode train_and_eval")
    assert code == 0, text
    assert [kind for _, kind in DATED.findall(text) if kind] == [
        *("compile train", "compile train", "compile eval", "compile eval"),
        *("train", "train", "eval", "eval", "train", "train", "eval", "eval"),
    ]
    assert re.findall(r"done after [\d.]+ s: step (\d+)", text) == ["20", "20", "30", "30"]
    assert "reserved for its jobs: system 0\n" in text
    claims = {program.site.job(ident)["claim"] for ident in of_kind(program, "execute")}
    assert len(claims) == 1


def test_compile_only_and_validate_only(program: Program) -> None:
    before = len(program.site.jobs())
    code, text = program.run("--mode train --validate_only")
    assert code == 0, text
    assert "params.yaml: all is well; nothing was queued" in text
    assert len(program.site.jobs()) == before
    assert not program.model_dir.exists()
    code, text = program.run("--mode train --compile-only")
    assert code == 0, text
    assert (len(of_kind(program, "compile")), len(of_kind(program, "execute"))) == (1, 0)


def test_a_job_that_fails_says_why(program: Program) -> None:
    assert program.run("--mode train --max_steps 2")[0] == 0
    program.change("  batch_size: 32\n  pause_s", "  broken: true\n  batch_size: 32\n  pause_s")
    code, text = program.run()
    assert code == 1
    assert "to resume from" not in text, "it failed on that checkpoint, and would again"
    assert "the data has a hole" in text
    assert re.search(r"train +FAILED after [\d.]+ s, exit code 1: ", text)
    assert program.meta()["execute_jobs"][1]["state"] == "FAILED"


def test_whoever_may_not_start_jobs_is_told_so_first(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = program.site.controller
    key = controller.ask("POST", "/v1/keys", {"subject": "vera", "role": "viewer"})[1]["secret"]
    with monkeypatch.context() as patch:
        patch.setattr(type(controller), "key", "wrong")
        code, text = program.run()
        assert (code, text.split(":")[0]) == (4, "error"), text
        assert not program.model_dir.exists()
        patch.setattr(type(controller), "key", key)
        code, text = program.run()
        assert (code, text.split(":")[0]) == (4, "error"), text


@pytest.mark.parametrize(
    ("words", "before", "after", "told"),
    [
        ("--mode train", "hidden_size", "hidden_sise", "error: params.yaml:2: the key 'hidden_sise' is not known in"),
        ("--mode train", "max_steps: 30", "max_steps: many", "error: params.yaml:11: runconfig.max_steps must be a"),
        ("--mode train", "model:", "model: [", "error: params.yaml:"),
        ("--mode train", "hidden_size: 8", "hidden_size: 0", "error: params.yaml:2: model.hidden_size: 0 is less than"),
        ("--mode train --num_csx 8", "", "", "error: --num_csx: 8 is more than there are: 4 systems in a pool at most"),
        ("--mode train --num_csx 0", "", "", "error: --num_csx: 0 is not from 1 to 4096"),
        ("--mode train --num_csx 3", "", "", "error: params.yaml:4: train_input.batch_size: 32 cannot be divided by"),
        ("--mode train --model_dir params.yaml/x", "", "", "error: --model_dir: "),
        (
            "--mode train",
            "max_steps: 30",
            "max_steps: 30\n  compile_memory_gi: 201",
            "error: params.yaml:12: compile_m",
        ),
        ("--mode fly", "", "", "run.py: error: argument --mode: invalid choice: 'fly'"),
        ("--mode train --compile_only --validate_only", "", "", "not allowed with argument --compile_only"),
        ("--mode train --mount_dirs /nowhere", "", "", "error: --mount_dirs: there is no /nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_queued(
    program: Program, words: str, before: str, after: str, told: str
) -> None:
    known = len(program.site.jobs())
    program.change(before, after)
    code, text = program.run(words)
    assert code == 2, text
    assert told in text
    assert len(program.site.jobs()) == known


def test_a_params_file_that_is_missing_and_a_controller_that_is_away(program: Program) -> None:
    code, text = program.run("--server http://127.0.0.1:1")
    assert code == 2, "the mode is looked at first"
    code, text = program.run("--mode train --server http://127.0.0.1:1")
    assert code == 7, text
    (program.folder / "params.yaml").unlink()
    code, text = program.run()
    assert code == 2
    assert "error: params.yaml: there is no such file (params.invalid)" in text


# -- what ends it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_cancels_the_job_with_a_checkpoint(slow: Program, number: signal.Signals) -> None:
    with slow.started() as started:
        started.until("Step=5,")
        started.signal(number)
        assert started.end() == 128 + number
    assert f"{number.name}: cancelling" in started.text
    assert f"exit code 143: {number.name} to run.py" in started.text
    (job,) = slow.meta()["execute_jobs"]
    assert job["state"] == "CANCELLED"
    assert slow.site.job(job["id"])["state"] == "CANCELLED"
    (step,) = slow.checkpoints()
    assert step >= 5
    assert f"run the same command again to resume from checkpoint_{step}.npz, step {step}" in started.text


def test_ctrl_c_while_it_waits_and_job_time_counts_no_queue(slow: Program, site: Site, tmp_path: Path) -> None:
    other = site.program(tmp_path / "other", lease_s=8.0)
    with slow.started("--mode train --num_csx 4") as holder:
        holder.until("Step=5,")
        with other.started("--mode train --num_csx 4") as waiting:
            told = waiting.until("queued: ")
            assert of_kind(slow, "execute")[0] in told, "who has the systems is said"
            assert "queued: position 1" in told
            waiting.signal(signal.SIGINT)
            assert waiting.end() == 130
            assert "  CANCELLED while it waited: SIGINT to run.py" in waiting.text
        with other.started("--mode train --num_csx 4 --job_time_sec 20") as waiting:
            waiting.until("queued: ")
            time.sleep(21)  # longer than its limit
            holder.signal(signal.SIGTERM)
            assert waiting.end() == 0, waiting.text
        assert holder.end() == 143


def test_its_time_is_over(slow: Program) -> None:
    code, text = slow.run("--mode train --job_time_sec 20")  # a busy machine trains some of it
    assert code == 124
    assert re.search(r"train +FAILED after [\d.]+ s: job_time_sec 20 s is over", text)
    (compiled,), (job,) = slow.meta()["compile_jobs"], slow.meta()["execute_jobs"]
    assert (compiled["state"], job["state"], slow.site.job(job["id"])["state"]) == ("SUCCEEDED", "FAILED", "TIMED_OUT")
    assert len(slow.checkpoints()) == 1


def test_a_client_that_was_killed_holds_nothing_and_the_next_one_goes_on(slow: Program) -> None:
    with slow.started() as started:
        started.until("Step=5,")
        started.signal(signal.SIGKILL)
        (ident,) = of_kind(slow, "execute")
        # its lease of 8 s, and the time of a checkpoint
        until(lambda: slow.site.job(ident)["state"] == "CANCELLED", 15)
    assert slow.site.job(ident)["detail"] == "nobody renewed its lease of 8 s"
    (step,) = slow.checkpoints()
    with slow.started() as started:  # killed, and started again within its lease
        started.until(f"checkpoint_{step}.npz")
        started.until("Step=")
        started.signal(signal.SIGKILL)
        started.process.wait()
    left = of_kind(slow, "execute")[1]
    with slow.started() as started:
        started.until(f"{left}  of an earlier start still runs: cancelling it")
        newest = slow.checkpoints()
        started.until("Loaded checkpoint")
        assert f"checkpoint_{max(slow.checkpoints())}.npz" in started.lines[-1], newest
        started.until("Step=")
        started.signal(signal.SIGTERM)
        assert started.end() == 143
    assert len(slow.checkpoints()) == 3
    assert [job["state"] for job in slow.meta()["execute_jobs"]] == ["CANCELLED"] * 3


def test_two_do_not_train_in_one_folder(slow: Program) -> None:
    with slow.started() as started:
        started.until("Step=")
        code, text = slow.run("--mode train --model_dir model_dir")
        assert code == 2
        assert f"error: --model_dir: {slow.model_dir} is in use by another run.py (params.invalid)" in text
        started.signal(signal.SIGINT)
        assert started.end() == 130


def test_a_record_of_another_folder_ends_no_job(slow: Program, site: Site, tmp_path: Path) -> None:
    other = site.program(tmp_path / "other")
    other.model_dir.mkdir()
    with slow.started() as started:
        started.until("Step=")
        (ident,) = of_kind(slow, "execute")
        shutil.copy(slow.model_dir / "run_meta.json", other.model_dir)
        code, text = other.run("--mode train --compile_only")
        assert code == 0, text
        assert f"{ident}  stands in run_meta.json, but is no job of this folder: left alone" in text
        assert site.job(ident)["state"] == "RUNNING"
        assert other.meta()["execute_jobs"][0]["state"] == "UNKNOWN"
        started.signal(signal.SIGINT)
        assert started.end() == 130


def test_a_controller_that_restarts_is_waited_for(slow: Program) -> None:
    controller = slow.site.controller
    with slow.started() as started:
        started.until("Step=5,")
        controller.kill()
        time.sleep(10)  # longer than the lease: none runs while the controller is away
        controller.start()
        last = [int(step) for step, _ in LINE.findall(started.text)][-1]
        started.until("trying again for up to")
        while (step := int(LINE.findall(started.until("Step="))[0][0])) < last + 300:
            pass
        started.signal(signal.SIGTERM)
        assert started.end() == 143
    steps = [int(step) for step, _ in LINE.findall(started.text)]
    assert steps == sorted(set(steps)), "no line is lost, none comes twice"
    assert len(of_kind(slow, "execute")) == 1
    assert step in steps


@pytest.fixture
def way(site: Site) -> Iterator[Way]:
    made = Way(site.controller.port)
    yield made
    made.close()


def test_a_client_that_is_cut_off_for_less_than_its_lease_goes_on(site: Site, tmp_path: Path, way: Way) -> None:
    program = site.program(tmp_path / "program", pause_s=0.05, lease_s=20.0)
    program.change("max_steps: 30", "max_steps: 72000")
    with program.started(port=way.port) as started:
        started.until("Step=5,")
        way.cut()
        started.until("trying again for up to")
        time.sleep(10)
        way.mend()
        last = [int(step) for step, _ in LINE.findall(started.text)][-1]
        while int(LINE.findall(started.until("Step="))[0][0]) < last + 200:
            pass
        time.sleep(10)  # the lease it had before is over
        started.until("Step=")
        started.signal(signal.SIGINT)
        assert started.end() == 130
    steps = [int(step) for step, _ in LINE.findall(started.text)]
    assert steps == sorted(set(steps))
    nothing_left(site)


def test_a_client_that_is_cut_off_for_longer_hears_that_its_job_has_ended(slow: Program, way: Way) -> None:
    with slow.started(port=way.port) as started:
        started.until("Step=5,")
        way.cut()
        (ident,) = of_kind(slow, "execute")
        until(lambda: slow.site.job(ident)["state"] == "CANCELLED")
        started.until("the lease could not be renewed for")
        way.mend()
        assert started.end() == 1
    assert "CANCELLED after" in started.text
    assert "nobody renewed its lease of 8 s" in started.text
    assert slow.meta()["execute_jobs"][0]["state"] == "CANCELLED"


def test_a_second_ctrl_c_leaves_at_once(site: Site, tmp_path: Path) -> None:
    program = site.program(tmp_path / "program", pause_s=4.0, lease_s=8.0)  # a step, and with it TERM, takes long
    with program.started() as started:
        started.until("weight server")
        started.signal(signal.SIGINT)
        started.until("cancelling; once more")
        started.signal(signal.SIGINT)
        assert started.end(3) == 130
        assert "not waited for" in started.text
    until(lambda: site.jobs(ended=False) == [])
    nothing_left(site)


def test_whoever_cancels_it_elsewhere_is_heard(slow: Program) -> None:
    with slow.started() as started:
        started.until("Step=5,")
        (ident,) = of_kind(slow, "execute")
        status, _ = slow.site.controller.ask("POST", f"/v1/runs/{ident}/cancel")
        assert status == 200
        assert started.end() == 1
    assert re.search(r"train +CANCELLED after", started.text)
