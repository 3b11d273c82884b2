"""What looks at checkpoints in Pods: which start it is, what the task is given, when it has ended."""

from __future__ import annotations

import json
import os
import signal
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from moorings.app import kubernetes_checkpoints as program
from moorings.core.model.serialization import to_plain
from moorings.engines.checkpoint_watch import CheckpointRecord, CheckpointWatch
from moorings.engines.node_program import WatchedJob, parse_record, read_record


@pytest.mark.parametrize(
    ("environment", "starts"),
    [
        ({"IPUJOB_RESTART": "0", "MOORINGS_PARTITION_ID": "claim-3k-0"}, 0),
        ({"IPUJOB_RESTART": "2", "MOORINGS_PARTITION_ID": "claim-3k-1"}, 3),
        ({"IPUJOB_RESTART": "1"}, 1),  # an operator that does not say which partition
        ({"MOORINGS_PARTITION_ID": "claim-3k-"}, 0),
    ],
)
def test_a_start_is_counted_by_restarts_and_by_partitions_given_back(environment: dict[str, str], starts: int) -> None:
    assert program.count_starts(environment) == starts


class ExitedError(Exception):
    """The program has ended."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    def leave(code: int) -> None:
        assert code == 0
        raise ExitedError

    monkeypatch.setattr(program, "FOLDER", str(tmp_path / "shared"))
    monkeypatch.setattr(program, "MESSAGE", tmp_path / "message")
    monkeypatch.setattr(os, "_exit", leave)
    for made in ("shared", "saves"):
        (tmp_path / made).mkdir()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield tmp_path
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)  # the program blocks some until its process ends


def run(folder: Path, what: str, environment: Mapping[str, str], ordered: str | None = None) -> None:
    job = WatchedJob(str(folder / "saves"), ("train",), (), resumable=True, ordered=ordered)
    with pytest.raises(ExitedError):
        program.main([what, json.dumps(to_plain(job))], environment)


@pytest.mark.parametrize("start", ["0", "1"])
def test_a_task_is_given_the_newest_whole_one_when_it_starts_again(folder: Path, start: str) -> None:
    with zipfile.ZipFile(folder / "saves" / "step-7.pt", "w") as file:
        file.writestr("state", "7")
    run(folder, "begin", {"IPUJOB_RESTART": start})
    resume = folder / "shared" / "resume"
    assert resume.exists() == (start == "1")
    record = read_record(folder / "shared")
    assert record is not None
    assert (record.attempt, len(record.found), record.resumed_from is not None) == (int(start), 1, start == "1")
    if start == "1":
        assert "step-7.pt" in resume.read_text()
        said = parse_record((folder / "message").read_bytes())
        assert said is not None
        assert said.resumed_from == record.resumed_from
        assert stat.S_IMODE(resume.stat().st_mode) == 0o644  # the task may be another user's


def test_a_task_of_any_user_is_told_that_its_checkpoint_is_gone(folder: Path) -> None:
    run(folder, "begin", {}, ordered=str(folder / "saves" / "step-7.pt"))
    resume = folder / "shared" / "resume"
    assert ("step-7.pt is gone" in resume.read_text(), (folder / "message").exists()) == (True, False)
    assert stat.S_IMODE(resume.stat().st_mode) == 0o644


def test_a_job_starts_where_nobody_can_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shared").rmdir()
    monkeypatch.setattr(program, "begin", lambda *_words: (folder / "shared" / "resume").write_text(""))
    run(folder, "begin", {})
    assert "No such file" in capsys.readouterr().err


def test_records_are_printed_one_a_line_with_what_this_start_was_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = program.PrintedCheckpoints(folder / "shared")
    store.save(CheckpointRecord(1, (), "it cannot be read\nnow"))
    (line,) = capsys.readouterr().out.splitlines()
    assert parse_record(line.encode()) == CheckpointRecord(1, (), "it cannot be read\nnow")


class Watch:
    """Looks that are only counted."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")

    def finish(self) -> None:
        self.done.append("finish")


@pytest.mark.parametrize(
    ("alive", "began", "pauses"),
    [
        ([[], [7], [7, 8], []], False, 3),  # it was started, ran, and is gone
        ([[]], True, 0),  # it had ended before we began
        ([[]], False, 600),  # it cannot be started: the Pod must not stay for that
    ],
    ids=["runs", "short", "unstarted"],
)
def test_the_looks_end_when_nothing_of_the_task_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alive: Sequence[list[int]], began: bool, pauses: int
) -> None:
    left = list(alive)
    monkeypatch.setattr(program, "pids_of_task", lambda: left.pop(0) if len(left) > 1 else left[0])
    if began:
        (tmp_path / "began").touch()
    watch = Watch()
    waited: list[float] = []
    begun = program.watch_until_ended(cast(CheckpointWatch, watch), tmp_path / "began", waited.append)
    assert begun == (pauses != 600)
    assert watch.done == ["start", "finish"]
    assert len(waited) == pauses


def test_whatever_goes_wrong_beside_a_task_says_nothing_of_the_task(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["watch", "{}"], ["watch"], ["begin", "not JSON"]):
        with pytest.raises(ExitedError):  # with 0
            program.main(words, {})
        assert "Traceback" in capsys.readouterr().err


def test_a_task_that_is_not_seen_to_begin_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "pids_of_task", list)
    monkeypatch.setattr(program, "START_S_MAX", 0)
    run(folder, "watch", {})
    record = parse_record(capsys.readouterr().out.splitlines()[-1].encode())
    assert record is not None
    assert "the task had not begun" in record.fault
