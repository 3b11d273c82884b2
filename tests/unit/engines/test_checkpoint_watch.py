"""What has no rule is whole only if nobody can have been killed while writing it; a fault makes nothing unseen."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moorings.engines import checkpoint_watch
from moorings.engines.checkpoint_scan import NO_LOOK
from moorings.engines.checkpoint_watch import CheckpointRecord, CheckpointWatch
from moorings.local.run_folder import LocalRunFolder
from moorings.workloads.checkpoints import newest_whole
from tests.waiting import until

DIED = "its writer may have been killed"
ZIP = b"PK\x05\x06" + bytes(18)  # with nothing in it


@pytest.fixture
def record(tmp_path: Path) -> LocalRunFolder:
    folder = LocalRunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def saves(tmp_path: Path) -> Path:
    folder = tmp_path / "saves"
    folder.mkdir()
    return folder


def watch(record: LocalRunFolder, attempt: int, saves: Path) -> CheckpointWatch:
    return CheckpointWatch(record, attempt, str(saves), list)


def seen(record: LocalRunFolder) -> CheckpointRecord:
    found = record.last_checkpoints()
    assert found is not None
    return found


def whys(record: LocalRunFolder) -> dict[str, str]:
    return {Path(each.path).name: "" if each.is_whole else each.why for each in seen(record).found}


def test_a_file_of_a_killed_attempt_is_not_whole_in_the_next_one(record, saves):
    (saves / "step-1.bin").write_text("whole")
    first = watch(record, 0, saves)
    first.start()
    first.finish()
    assert whys(record) == {"step-1.bin": ""}
    (saves / "step-2.bin").write_text("torn, and the supervisor died too")
    second = watch(record, 1, saves)
    second.start()
    time.sleep(0.01)
    (saves / "step-3.bin").write_text("by the second attempt")
    second.finish()
    assert whys(record) == {"step-1.bin": "", "step-2.bin": DIED, "step-3.bin": ""}
    third = watch(record, 2, saves)
    third.start()
    third.finish()
    assert whys(record) == {"step-1.bin": "", "step-2.bin": DIED, "step-3.bin": ""}


def test_a_file_that_was_being_written_when_a_process_was_killed_is_not_whole(record, saves, monkeypatch):
    """However long the others go on."""
    monkeypatch.setattr(checkpoint_watch, "LOOK_S_MIN", 0.01)
    monkeypatch.setattr(checkpoint_watch, "LOOK_S_MAX", 0.01)
    looks = watch(record, 0, saves)
    (saves / "step-1.bin").write_text("torn")
    looks.writer_was_killed()
    looks.start()
    time.sleep(0.3)
    (saves / "step-2.bin").write_text("by another rank")
    looks.finish()
    assert whys(record) == {"step-1.bin": DIED, "step-2.bin": ""}


def test_a_folder_that_cannot_be_looked_at_makes_nothing_unseen(record, saves, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_watch, "LOOK_S_MIN", 0.01)
    (saves / "step-1.bin").write_text("whole")
    looks = watch(record, 0, saves)
    looks.start()
    until(lambda: record.last_checkpoints() is not None and whys(record) == {"step-1.bin": ""})
    saves.rename(tmp_path / "elsewhere")
    saves.symlink_to(tmp_path / "elsewhere")
    looks.finish()
    assert "is a symbolic link" in seen(record).fault
    assert whys(record) == {"step-1.bin": ""}


def test_an_attempt_is_given_what_is_there_when_it_begins(record, saves):
    """The last look of the attempt before may be older than its end: what it found may have been removed since."""
    (saves / "step-1.pt").write_bytes(ZIP)
    watch(record, 0, saves)._look_once(frozenset())
    (saves / "step-1.pt").unlink()
    (saves / "step-2.pt").write_bytes(ZIP)
    (saves / "step-3.pt").write_bytes(ZIP[:-1])
    looks = watch(record, 1, saves)
    found = looks.look_before()
    assert found is not None
    chosen = newest_whole(found)
    assert chosen is not None
    assert chosen.step == 2
    looks.resumed_from = chosen
    looks.start()
    looks.finish()
    assert seen(record).resumed_from == chosen
    assert newest_whole(found, chosen.written_at) is None


def test_what_is_torn_or_gone_is_not_resumed_from(record, saves, tmp_path):
    (saves / "step-1.pt").write_bytes(ZIP)
    (saves / "step-2.pt").write_bytes(ZIP[:-1])
    (saves / "step-3.bin").write_bytes(b"by no rule")
    looks = watch(record, 1, saves)
    found = looks.look_before()
    assert found is not None
    faults = {name: looks.fault_of(f"{saves}/{name}", found) for name in ("step-1.pt", "step-3.bin", "step-4.pt")}
    gone = f"checkpoint {saves}/step-4.pt is gone; 'moor run --resume RUN --from' begins with another one"
    assert faults == {"step-1.pt": "", "step-3.bin": "", "step-4.pt": gone}
    assert looks.fault_of(f"{saves}/step-2.pt", found).startswith(f"checkpoint {saves}/step-2.pt is not whole: ")
    assert looks.fault_of(f"{tmp_path}/step-9.pt", found) == ""  # of another folder: its program will see
    deaf = saves / ("n" * 300)  # nobody can say whether it is there
    assert looks.fault_of(str(deaf), found) == ""


def test_a_start_does_not_wait_for_a_look_that_hangs(record, saves, monkeypatch):
    monkeypatch.setattr(checkpoint_watch, "FIRST_S_MAX", 0.01)
    goes_on = threading.Event()

    def hangs(*_, **__):
        goes_on.wait()
        return NO_LOOK

    monkeypatch.setattr(checkpoint_watch, "look_at_folder", hangs)
    assert watch(record, 1, saves).look_before() is None
    goes_on.set()
    until(lambda: [each for each in threading.enumerate() if each.name == "checkpoints"] == [])


def test_many_torn_ones_leave_room_for_the_whole_ones_before(record, saves):
    for number in range(30):
        (saves / f"step-{number}.pt").write_bytes(ZIP if number < 6 else ZIP[:-1])
        os.utime(saves / f"step-{number}.pt", (number + 1, number + 1))
    watch(record, 0, saves)._look_once(frozenset())
    found = seen(record).found
    assert len(found) == checkpoint_watch.SHOWN_MAX
    assert [each.step for each in found if each.is_whole] == [5, 4, 3, 2]
    assert [each.step for each in found][:2] == [29, 28]


def test_what_is_open_below_a_link_is_open(record, saves, tmp_path):
    (tmp_path / "home").symlink_to(tmp_path)
    (saves / "step-1.bin").write_text("half")
    program = f"import sys; a = open({str(saves / 'step-1.bin')!r}, 'a'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        looks = CheckpointWatch(record, 0, str(tmp_path / "home" / "saves"), lambda: [writer.pid, os.getpid()])
        for _ in range(2):
            looks._look_once(None)
        assert whys(record) == {"step-1.bin": "a process has it open for writing"}
        writer.kill()


def test_without_a_record_only_the_newest_may_have_been_torn(record, saves):
    """As in a Pod, which knows nothing of the one before it."""
    for step, age_s in ((1, 300), (2, 95), (3, 30)):
        path = saves / f"step-{step}.bin"
        path.write_text("saved")
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    looks = watch(record, 1, saves)
    looks.start()
    looks.finish()
    assert whys(record) == {"step-1.bin": "", "step-2.bin": "", "step-3.bin": DIED}


def test_the_first_start_of_a_later_attempt_doubts_too(record, saves):
    (saves / "step-1.bin").write_text("torn by the attempt before")
    found = CheckpointWatch(record, 0, str(saves), list, is_later=True).look_now()
    assert [each.why for each in found] == [DIED]


def test_a_file_has_to_be_quiet_for_long_if_nobody_may_see_who_writes_it(record, saves, monkeypatch):
    monkeypatch.setattr(checkpoint_watch, "hides_files", lambda _pids: True)
    monkeypatch.setattr(checkpoint_watch, "LOOK_S_MIN", 0.01)
    monkeypatch.setattr(checkpoint_watch, "LOOK_S_MAX", 0.01)
    for step, age_s in ((1, 120), (2, 1)):
        path = saves / f"step-{step}.bin"
        path.write_text("saved")
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    looks = watch(record, 0, saves)
    looks.start()
    until(lambda: record.last_checkpoints() is not None and whys(record).get("step-1.bin") == "")
    assert whys(record)["step-2.bin"] != ""
    looks.finish()  # then no process is left that could write
    assert whys(record) == {"step-1.bin": "", "step-2.bin": ""}
