"""Outputs are copied whole, by whoever begins again, and old folders go."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.app.maintenance import prune
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.engine import output
from moorings.kubernetes.engine.output import FULL, GAP, LogCopyFile, copy_output
from moorings.kubernetes.engine.run_folder import KubernetesAttempt, KubernetesRunFolder, SubmittedIPUJob
from moorings.kubernetes.kube.api import KubeError
from moorings.kubernetes.kube.pod_streams import parse_status
from moorings.workloads.runs import EndReason, EndRecord


async def at_once(_seconds: float) -> None:
    """No time passes."""


class Source:
    """An output that is given in parts; a number is a refusal with that status."""

    def __init__(self, *turns: list[bytes | int]) -> None:
        self.turns = list(turns)

    async def __call__(self) -> AsyncIterator[bytes]:
        for part in self.turns.pop(0):
            if isinstance(part, int):
                raise KubeError(part, "Refused", "no")
            yield part

    def over(self) -> bool:
        return len(self.turns) <= 1


def never() -> bool:
    return False


@pytest.mark.parametrize(
    "turns",
    [
        ([b"one\n", b"two\n"],),
        ([b"one\n", 0], [b"one\ntwo\n"]),
        ([400], [b"one\n", b"two\n"]),
        ([b"one\ntw", 500], [b"on", b"e\nt", b"wo\n"]),
        ([b"one\ntwo\n", 0], [404]),
    ],
)
async def test_what_is_broken_off_goes_on_where_it_was(tmp_path: Path, turns: tuple[list[bytes | int], ...]) -> None:
    source = Source(*turns)
    await copy_output(source, tmp_path / "log", 0, source.over, never, at_once)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


async def test_a_node_that_has_dropped_the_beginning_leaves_a_gap_that_is_told_once(tmp_path: Path) -> None:
    source = Source([b"1\n2\n", 0], [b"5\n6\n", 0], [b"5\n6\n7\n"])
    await copy_output(source, tmp_path / "log", 0, source.over, never, at_once)
    assert (tmp_path / "log").read_bytes() == b"1\n2\n" + GAP + b"5\n6\n7\n"


@given(st.binary(max_size=40), st.integers(0, 40), st.lists(st.integers(1, 7), min_size=1))
def test_two_who_copy_the_same_write_the_same(tmp_path_factory: pytest.TempPathFactory, whole, known, sizes) -> None:
    path = tmp_path_factory.mktemp("copies") / "log"
    path.write_bytes(whole[:known])
    one, other = LogCopyFile(path, 0), LogCopyFile(path, 0)
    for copy in (one, other):
        place = 0
        for size in sizes:
            copy.write(whole[place : place + size])
            place += size
        copy.write(whole[place:])
    assert path.read_bytes() == whole


def test_an_output_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "OUTPUT_BYTES_MAX", 10)
    copy = LogCopyFile(tmp_path / "log", 0)
    for _ in range(10):
        copy.write(b"abcd")
    assert (tmp_path / "log").read_bytes() == b"abcdabcdabcd" + FULL


def test_the_last_word_of_an_exec_is_the_commands_code() -> None:
    assert parse_status(b'{"status":"Success"}') == 0
    failed = (
        b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}'
    )
    assert parse_status(failed) == 3
    with pytest.raises(KubeError, match="no such file"):
        parse_status(b'{"status":"Failure","reason":"InternalError","message":"no such file"}')


OLD, BEFORE, NEW = Timestamp(1_000 * SECOND), Timestamp(5_000 * SECOND), Timestamp(9_000 * SECOND)


def a_run(runs: Path, name: str, *, alive: bool = True, ended: Timestamp | None = None) -> None:
    attempt = KubernetesRunFolder(runs / name).attempt(0)
    attempt.save_order(SubmittedIPUJob("runs", name, 1, 1.0))
    if alive:
        attempt.save_alive()
    if ended is not None:
        attempt.save_end(EndRecord(EndReason.EXITED, 0, (0,), ended_at=ended))
    os.utime(attempt.path, (OLD / SECOND, OLD / SECOND))


def test_old_folders_go_and_of_what_may_live_nothing_does(tmp_path: Path) -> None:
    a_run(tmp_path, "run-old", ended=OLD)
    a_run(tmp_path, "run-new", ended=NEW)
    a_run(tmp_path, "run-lives")
    a_run(tmp_path, "run-unborn", alive=False)
    a_run(tmp_path, "run-spared", ended=OLD)
    a_run(tmp_path, "run-damaged", ended=OLD)
    (tmp_path / "run-damaged" / "0" / "order.json").write_bytes(b"{")
    gone = prune(tmp_path, BEFORE, {"run-spared"}, KubernetesRunFolder.hold_ended)
    assert sorted(gone) == ["run-old", "run-unborn"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run-damaged", "run-lives", "run-new", "run-spared"]


async def test_the_output_of_a_later_pod_follows_that_of_the_one_before_it(tmp_path: Path) -> None:
    attempt = KubernetesAttempt(tmp_path, 0)
    attempt.log_path(0).parent.mkdir()
    for uid, turns in (("u1", [b"one\n"]), ("u2", [b"one\ntwo\n"]), ("u2", [b"one\ntwo\nthree\n"])):
        source = Source([*turns])
        start = attempt.output_start(0, uid)
        await copy_output(source, attempt.log_path(0), start, source.over, never, at_once)
    assert attempt.log_path(0).read_bytes() == b"one\none\ntwo\nthree\n"


async def test_a_pod_of_the_same_name_is_not_copied_for_the_one_before_it(tmp_path: Path) -> None:
    source = Source([b"one\n", 0], [b"of another\n"])
    await copy_output(source, tmp_path / "log", 0, never, lambda: len(source.turns) < 2, at_once)
    assert (tmp_path / "log").read_bytes() == b"one\n"
