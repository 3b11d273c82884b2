"""The program that sees checkpoints where Moorings is not installed, run as a node runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.engines import node_program
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.node_archive import TOO_OLD
from moorings.engines.node_program import AttemptCheckpoints, WatchedJob, build_archive, read_record
from moorings.workloads.checkpoints import newest_whole
from tests.waiting import patient, until


class Node:
    """A node with the program, an attempt's folder and a folder of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.attempt, self.saves = folder / "attempt", folder / "saves"
        self.archive = folder / "looks.pyz"
        for made in (self.attempt, self.saves):
            made.mkdir()
        self.archive.write_bytes(build_archive())
        self.write(WatchedJob(str(self.saves), ("train", "a b"), ("--from={}",), True))

    def write(self, job: WatchedJob) -> None:
        (self.attempt / "watched.json").write_text(json.dumps(to_plain(job)))

    def save(self, step: int, *, torn: bool = False) -> Path:
        path = self.saves / f"step-{step}.pt"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("state", str(step))
        if torn:
            os.truncate(path, path.stat().st_size - 7)
        os.utime(path, (time.time() + step - 1000, time.time() + step - 1000))
        return path

    def command(self, *words: str) -> list[str]:
        # -I: neither a variable nor the current folder shows it our own source; -S: nor what is installed here
        return [sys.executable, "-I", "-S", str(self.archive), *words]

    def begin(self, start: int) -> CheckpointRecord:
        subprocess.run(self.command("begin", str(self.attempt), str(start)), check=True, timeout=patient(30))
        return self.record()

    def record(self) -> CheckpointRecord:
        found = read_record(self.attempt)
        assert found is not None
        return found

    def given(self, start: int) -> list[str]:
        """What a task of that start gets: the variables, and its words."""
        show = 'printf "%s\\n" "$MOORINGS_RESUME_FROM" "$MOORINGS_RESUME_STEP" "$@"'
        script = f'. "$0"; {show}'
        words = ["/bin/sh", "-c", script, str(self.attempt / f"resume.{start}")]
        environment = {"MOORINGS_RESUME_STEP": "3"}
        return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_later_start_is_given_the_newest_whole_checkpoint(node: Node) -> None:
    whole = node.save(20)
    torn = node.save(30, torn=True)
    record = node.begin(1)
    assert [(each.path, each.is_whole) for each in record.found] == [(str(torn), False), (str(whole), True)]
    assert record.resumed_from == newest_whole(record.found)
    assert node.given(1) == [str(whole), "20", "train", "a b", f"--from={whole}"]


def test_the_first_start_is_given_nothing_by_the_node(node: Node) -> None:
    node.save(20)
    record = node.begin(0)
    assert (record.resumed_from, len(record.found)) == (None, 1)
    assert not (node.attempt / "resume.0").exists()


def test_a_later_start_of_a_job_that_cannot_resume_is_given_nothing(node: Node) -> None:
    node.write(WatchedJob(str(node.saves), ("train",), (), False))
    node.save(20)
    assert node.begin(1).resumed_from is None
    assert not (node.attempt / "resume.1").exists()


def test_a_checkpoint_without_a_step_removes_that_of_the_one_before(node: Node) -> None:
    path = node.saves / "last.ckpt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("state", "x")
    node.begin(2)
    assert node.given(2)[:2] == [str(path), ""]


def test_what_has_no_rule_and_may_be_cut_is_not_given(node: Node) -> None:
    (node.saves / "step-5.bin").write_text("its writer was killed")
    record = node.begin(1)
    assert (record.resumed_from, record.found[0].why) == (None, "its writer may have been killed")


def test_a_folder_that_cannot_be_looked_at_is_said(node: Node) -> None:
    node.write(WatchedJob("/dev/null", ("train",), (), True))
    assert node.begin(1).fault == "/dev/null: Not a directory"


def test_a_folder_that_its_program_makes_later_is_no_fault(node: Node) -> None:
    node.write(WatchedJob("/nowhere/at/all", ("train",), (), True))
    assert node.begin(1) == CheckpointRecord(1, ())


def test_a_disk_that_hangs_holds_a_start_up_for_a_bounded_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_program, "BEGIN_S_MAX", 0.05)
    job = WatchedJob("/hangs", ("train",), (), True)
    never = threading.Event()
    node_program._within(0.05, never.wait, lambda: node_program._record_timeout(node.attempt, 1, job))
    assert node.record().fault == "/hangs could not be looked at within 0.05 s"
    never.set()


@pytest.fixture
def watching(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(node.command("watch", str(node.attempt), "0")) as process:
        yield process
        process.kill()


def test_what_is_saved_is_seen_while_the_job_runs_and_at_its_end(node: Node, watching: subprocess.Popen[bytes]) -> None:
    until(lambda: read_record(node.attempt) is not None)
    node.save(20)
    until(lambda: any(each.is_whole for each in node.record().found))
    node.save(30)
    watching.send_signal(signal.SIGTERM)  # Slurm's: the tasks may still save
    watching.send_signal(signal.SIGWINCH)
    assert watching.wait(patient(15)) == 0
    assert [each.step for each in node.record().found] == [30, 20]


def test_it_ends_with_its_parent(node: Node) -> None:
    words = " ".join(node.command("watch", str(node.attempt), "0"))
    shell = subprocess.run(["/bin/sh", "-c", f"{words} & echo $!; sleep 1"], capture_output=True, text=True, check=True)
    pid = int(shell.stdout)
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())


def test_it_keeps_what_its_start_was_given(node: Node) -> None:
    whole = node.save(20)
    node.begin(1)
    with subprocess.Popen(node.command("watch", str(node.attempt), "1")) as process:
        node.save(30)
        until(lambda: len(node.record().found) == 2)
        process.send_signal(signal.SIGWINCH)
        process.wait(patient(15))
    given = node.record().resumed_from
    assert given is not None
    assert given.path == str(whole)


TASK = """
trap : USR1 USR2 TERM
shift
"$@" &
shift "$#"
( exec /bin/sh -c "$PROGRAM" )
exit "$?"
"""


@pytest.mark.parametrize(
    ("handles", "gets"),
    [("USR1 USR2", "USR2"), ("USR1", "USR1"), ("TERM", "TERM"), ("HUP", "nothing")],
)
def test_a_program_is_warned_by_the_first_signal_that_it_handles(node: Node, handles: str, gets: str) -> None:
    (node.attempt / "task.sh").write_text(TASK)
    heard = node.attempt / "heard"
    traps = "".join(f"trap 'echo {name} > {heard}' {name}; " for name in handles.split())
    program = f"{traps} touch {node.attempt}/ready; while [ ! -e {heard} ]; do sleep 0.1 & wait $!; done; exit 0"
    words = ["/bin/sh", str(node.attempt / "task.sh"), "0", *node.command("hear", str(node.attempt), "3")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PROGRAM": program}) as task:
        until((node.attempt / "ready").exists)
        (node.attempt / "warn.2").write_text("TERM\n")  # of an earlier start
        (node.attempt / "warn.3.draft").write_text("USR2 USR1 TERM\n")
        (node.attempt / "warn.3.draft").rename(node.attempt / "warn.3")
        assert task.stderr is not None
        said = task.stderr.readline()
        if gets == "nothing":
            heard.touch()
        assert task.wait(patient(15)) == 0
    name = f"SIG{gets}" if gets != "nothing" else gets
    assert said == f"moorings: {os.uname().nodename}: warned 1 task: {name}\n"
    assert heard.read_text() == ("" if gets == "nothing" else f"{gets}\n")


def test_an_older_python_says_so(node: Node, tmp_path: Path) -> None:
    with zipfile.ZipFile(node.archive) as archive:
        (tmp_path / "main.py").write_bytes(archive.read("__main__.py"))
    script = "import sys; sys.version_info = (3, 9, 2); sys.argv = ['x']; exec(open('main.py').read())"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        TOO_OLD,
        "moorings: checkpoints cannot be seen with Python 3.9: 3.11 is needed\n",
    )


def a_record(times: int = 1, **more: object) -> bytes:
    found = {"path": "/c/a", "step": 1, "size_bytes": 1, "written_at": 1, "is_whole": True, "rule": "zip", **more}
    return json.dumps({"attempt": 0, "found": [found] * times}).encode()


def test_a_record_is_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.json").write_bytes(a_record())
    assert read_record(tmp_path) is not None


def test_a_folder_in_the_place_of_a_record_is_none_and_leaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.json").mkdir()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert [read_record(tmp_path) for _ in range(5)] == [None] * 5
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_was_known_is_kept_when_a_disk_hangs(node: Node) -> None:
    whole = node.save(20)
    node.begin(0)
    node_program._record_timeout(node.attempt, 1, WatchedJob("/hangs", ("train",), (), True))
    assert [each.path for each in node.record().found] == [str(whole)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"attempt": "x", "found": []}',
        b'{"attempt": 0, "found": [], "fault": "\\ud800"}',
        b"[" * 9999,
        *(a_record(written_at=10**400), a_record(written_at=-1), a_record(step=1 << 63), a_record(write_s=1e300)),
        *(a_record(path="x" * 9999), a_record(99)),
    ],
    ids=["empty", "cut", "list", "wrong", "surrogate", "deep", "late", "early", "step", "slow", "path", "many"],
)
def test_a_record_that_is_none_is_left_out(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "checkpoints.json").write_bytes(text)
    assert read_record(tmp_path) is None


def test_a_record_is_not_followed_to_another_place(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.json").symlink_to("/etc/passwd")
    assert AttemptCheckpoints(tmp_path).last_checkpoints() is None


def test_the_archive_is_the_same_for_the_same_code() -> None:
    first = build_archive()
    build_archive.cache_clear()
    assert build_archive() == first


def test_a_checkpoint_from_before_the_run_is_not_given(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.save(7)
    for since_s, given in ((time.time(), False), (time.time() - 2000, True)):
        since = Timestamp(round(since_s * SECOND))
        node.write(WatchedJob(str(node.saves), ("train",), (), True, since))
        assert (node.begin(1).resumed_from is not None) == given


def test_a_chosen_checkpoint_that_is_torn_or_gone_starts_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    torn, gone, earlier = node.save(3, torn=True), node.saves / "step-4.pt", node.save(7)
    since = Timestamp(round(time.time() * SECOND))

    def refusal(ordered: Path) -> str:
        node.write(WatchedJob(str(node.saves), ("train",), (), True, since, ordered=str(ordered)))
        assert node.begin(0).resumed_from is None
        said = '_moorings_refuse() { echo "$@"; exit 3; }\n. "$0"\necho begins'
        words = ["/bin/sh", "-c", said, str(node.attempt / "resume.0")]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    assert refusal(torn).startswith(f"126 checkpoint {torn} is not whole: ")
    assert refusal(gone).startswith(f"126 checkpoint {gone} is gone; ")
    (node.attempt / "resume.0").unlink()
    assert refusal(earlier) == ""
    assert not (node.attempt / "resume.0").exists()


def test_a_pod_that_is_made_again_as_it_was_is_given_what_its_run_has_saved(tmp_path: Path) -> None:
    """Drained, say: then its start is counted as the first."""
    node = Node(tmp_path)
    node.write(WatchedJob(str(node.saves), ("train",), (), True, Timestamp(round((time.time() - 2000) * SECOND))))
    node.save(7)
    assert node.begin(0).resumed_from is not None
