"""Looks at real folders: bounded, no links, and a file in progress is not whole."""

import json
import os
import time
from pathlib import Path

from moorings.core.model.timestamps import Timestamp
from moorings.engines import checkpoint_scan
from moorings.engines.checkpoint_scan import NO_LOOK, CheckpointLook, look_at_folder
from moorings.workloads.checkpoints import CheckpointRule, newest_whole
from tests.unit.workloads.test_checkpoints import safetensors_file, zip_file


def now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000 + 60_000_000)


def look(folder: Path, before: CheckpointLook = NO_LOOK, *open_files: str) -> CheckpointLook:
    return look_at_folder(str(folder), now(), before, is_open=lambda path, _: Path(path).name in open_files)


def wholes(found: CheckpointLook) -> dict[str, bool]:
    return {Path(each.path).name: each.is_whole for each in found.found}


def test_files_and_folders_of_each_framework_are_judged(tmp_path):
    (tmp_path / "step-1.pt").write_bytes(zip_file({"a": b"x"}))
    (tmp_path / "step-2.pt").write_bytes(zip_file({"a": b"x" * 99})[:-30])
    (tmp_path / "step-3.safetensors").write_bytes(safetensors_file([9, 9]))
    trainer = tmp_path / "checkpoint-4"
    trainer.mkdir()
    (trainer / "trainer_state.json").write_text(json.dumps({"global_step": 4}, indent=2) + "\n")
    deep = tmp_path / "global_step5"
    deep.mkdir()
    (deep / "zero.pt").write_bytes(b"1234")
    found = look(tmp_path)
    assert wholes(found) == {
        "step-1.pt": True,
        "step-2.pt": False,
        "step-3.safetensors": True,
        "checkpoint-4": True,
        "global_step5": False,
    }
    (tmp_path / "latest").write_text("global_step5")
    again = look(tmp_path, found)
    assert wholes(again)["global_step5"]
    assert {each.size_bytes for each in again.found if each.step == 5} == {4}


def test_what_no_rule_knows_is_whole_when_two_looks_agree_and_it_is_closed(tmp_path):
    file = tmp_path / "step-1.npz"
    file.write_bytes(b"half")
    first = look(tmp_path)
    assert wholes(first) == {"step-1.npz": False}
    file.write_bytes(b"half and half")
    second = look(tmp_path, first)
    assert wholes(second) == {"step-1.npz": False}
    assert wholes(look(tmp_path, second, "step-1.npz")) == {"step-1.npz": False}
    third = look(tmp_path, second)
    (whole,) = third.found
    assert (whole.is_whole, whole.rule) == (True, CheckpointRule.UNCHANGED)
    assert whole.write_s is not None
    (later,) = look(tmp_path, third).found
    assert later.write_s == whole.write_s


def test_links_devices_and_pipes_are_not_looked_at(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "step-9.pt").write_bytes(zip_file({"a": b"x"}))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "step-1.pt").symlink_to(outside / "step-9.pt")
    (folder / "step-2").symlink_to(outside)
    os.mkfifo(folder / "step-3.pt")
    (folder / "latest").symlink_to("/dev/zero")
    assert look(folder).found == ()
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert "is a symbolic link" in look(link).fault


def test_a_folder_that_cannot_be_looked_at_is_a_fault(tmp_path):
    assert look(tmp_path / "gone") == NO_LOOK
    (tmp_path / "file").write_text("")
    assert "Not a directory" in look(tmp_path / "file").fault


def test_of_very_many_entries_the_newest_are_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_scan, "JUDGED_MAX", 3)
    for step in range(6):
        file = tmp_path / f"step-{step}.pt"
        file.write_bytes(zip_file({"a": b"x"}))
        os.utime(file, (step, step))
    found = look(tmp_path)
    assert [each.step for each in found.found] == [5, 4, 3]
    assert found.left_out == 3
    monkeypatch.setattr(checkpoint_scan, "NAMES_MAX", 2)
    assert look(tmp_path).left_out == 1


def test_a_clock_that_is_ahead_does_not_make_a_checkpoint_the_newest_for_ever(tmp_path):
    for step, ahead_s in ((1, 1000), (2, 0)):
        file = tmp_path / f"step-{step}.pt"
        file.write_bytes(zip_file({"a": b"x"}))
        os.utime(file, (time.time() + ahead_s, time.time() + ahead_s))
    found = look_at_folder(str(tmp_path), Timestamp(time.time_ns() // 1000))
    chosen = newest_whole(found.found)
    assert chosen is not None
    assert chosen.written_at <= now()


def test_an_old_checkpoint_whose_removal_was_broken_off_is_not_the_newest(tmp_path):
    for step in (100, 200):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for name in ("model.safetensors", "trainer_state.json"):
            (folder / name).write_text('{\n  "step": 1\n}\n')
            os.utime(folder / name, (step, step))
    (tmp_path / "checkpoint-100" / "model.safetensors").unlink()
    chosen = newest_whole(look(tmp_path).found)
    assert chosen is not None
    assert chosen.step == 200


def test_a_change_deep_in_a_folder_is_a_change(tmp_path):
    inner = tmp_path / "step-5" / "shards" / "0"
    inner.mkdir(parents=True)
    first = look(tmp_path)
    assert [each.why for each in look(tmp_path, first).found] == ["it is empty"]
    (inner / "weights").write_bytes(b"x")
    second = look(tmp_path)
    (inner / "weights").write_bytes(b"xy")
    third = look(tmp_path, second)
    assert wholes(third) == {"step-5": False}
    assert [each.size_bytes for each in third.found] == [2]
    assert wholes(look(tmp_path, third)) == {"step-5": True}


def test_names_and_times_that_an_api_cannot_show_are_not_passed_on(tmp_path):
    (tmp_path / "step-1.bin").write_text("x")
    os.utime(tmp_path / "step-1.bin", (-5, -5))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/step-2-\xff.bin")).write_text("x")
    (found,) = look(tmp_path).found
    assert (found.step, found.written_at) == (1, 0)
