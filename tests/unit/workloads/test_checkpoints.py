"""Which entries of a checkpoint folder are whole; real files are cut at random bytes and never taken for whole."""

import io
import json
import struct
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.timestamps import Timestamp
from moorings.workloads.checkpoints import (
    PART_BYTES_MAX,
    CheckpointRule,
    FolderEntry,
    RunCheckpoint,
    candidates,
    judge_entry,
    newest_whole,
    parse_tracker,
    step_of,
    torn_newer,
    unchanged_since,
)
from tests.cases import cases

NOW = Timestamp(1_000_000)
BEGUN = b'{"metrics": {}, "init_timestamp_nsecs": 1795712762778216009, "commit_timestamp_nsecs": null}'
COMMITTED = BEGUN.replace(b"null", b"1795712762810162195")


def file_entry(name: str, content: bytes) -> FolderEntry:
    """What a look reads of a file with this content."""
    header = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    begin = max(8, 8 + header - PART_BYTES_MAX)
    return FolderEntry(
        name,
        is_folder=False,
        size_bytes=len(content),
        modified_at=NOW,
        head=content[:8],
        tail=content[-PART_BYTES_MAX:],
        header_tail=content[begin : 8 + header] if 8 + header <= len(content) else b"",
    )


def folder_entry(name: str, *names: str, tail: bytes = b"") -> FolderEntry:
    return FolderEntry(name, is_folder=True, size_bytes=1, modified_at=NOW, names=frozenset(names), tail=tail)


def zip_file(parts: dict[str, bytes], *, zip64: bool = False) -> bytes:
    """A file as torch.save writes it: members that are stored, one after the other."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in parts.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=zip64) as member:
                member.write(content)
    content = target.getvalue()
    if not zip64:
        return content
    end = content[-22:]
    count, directory_bytes, directory_at = struct.unpack("<HII", end[10:20])
    record_at = len(content) - 22
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, directory_bytes, directory_at)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, record_at, 1)
    return content[:-22] + record + locator + end[:12] + b"\xff" * 8 + end[20:]


def safetensors_file(sizes: list[int]) -> bytes:
    header, at = {}, 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"\7" * at


PARTS = st.dictionaries(st.text("abc/", min_size=1, max_size=5), st.binary(max_size=200), min_size=1, max_size=5)


@given(PARTS, st.booleans(), st.data())
def test_a_zip_is_whole_and_no_part_of_it_is(parts, zip64, data):
    content = zip_file(parts, zip64=zip64)
    assert judge_entry(file_entry("step-1.pt", content)).is_whole
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    assert not judge_entry(file_entry("step-1.pt", cut)).is_whole


def test_a_zip_within_a_cut_zip_does_not_make_it_whole():
    inner = zip_file({"a": b"x" * 50})
    content = zip_file({"inner": inner, "more": b"y" * 50})
    end = content.index(inner) + len(inner)
    assert not judge_entry(file_entry("step-1.pt", content[:end])).is_whole


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.data())
def test_safetensors_are_whole_and_no_part_of_them_is(sizes, data):
    content = safetensors_file(sizes)
    assert judge_entry(file_entry("model.safetensors", content)).is_whole
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    assert not judge_entry(file_entry("model.safetensors", cut)).is_whole


def test_of_a_long_header_its_end_is_enough():
    content = safetensors_file([4] * 3000)
    assert struct.unpack("<Q", content[:8])[0] > 2 * PART_BYTES_MAX
    assert judge_entry(file_entry("model.safetensors", content)).is_whole
    assert not judge_entry(file_entry("model.safetensors", content[:-1])).is_whole


@given(
    st.recursive(
        st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ),
    st.data(),
)
def test_a_trainer_s_folder_is_whole_once_its_state_is_complete(value, data):
    text = (json.dumps({"log_history": value, "step": 5}, indent=2, sort_keys=True) + "\n").encode()
    whole = folder_entry("checkpoint-500", "trainer_state.json", "model.safetensors", tail=text[-PART_BYTES_MAX:])
    assert judge_entry(whole).is_whole
    cut = text[: data.draw(st.integers(0, len(text) - 3))]
    assert not judge_entry(replace(whole, tail=cut[-PART_BYTES_MAX:])).is_whole


@cases(
    ("entry", "tracker", "rule", "whole"),
    [
        (folder_entry("checkpoint-5", "model.safetensors"), None, CheckpointRule.TRAINER, False),
        (folder_entry("global_step5", "a.pt"), 5, CheckpointRule.TRACKER, True),
        (folder_entry("global_step5", "a.pt"), 4, CheckpointRule.TRACKER, False),
        (folder_entry("global_step5", "a.pt"), None, CheckpointRule.TRACKER, False),
        (folder_entry("iter_0000100", "mp_rank_00"), 200, CheckpointRule.TRACKER, True),
        (folder_entry("iter_0000100", "__0_0.distcp"), 200, CheckpointRule.METADATA, False),
        (folder_entry("step-9", "__0_0.distcp", ".metadata"), None, CheckpointRule.METADATA, True),
        (folder_entry("7", "_CHECKPOINT_METADATA", "default", tail=COMMITTED), None, CheckpointRule.ORBAX, True),
        (folder_entry("mine", "_CHECKPOINT_METADATA", "d", tail=COMMITTED), None, CheckpointRule.ORBAX, True),
        (folder_entry("7", "_CHECKPOINT_METADATA", "default", tail=BEGUN), None, CheckpointRule.ORBAX, False),
        (folder_entry("7", "_CHECKPOINT_METADATA", "default", tail=BEGUN[:60]), None, CheckpointRule.ORBAX, False),
        (folder_entry("7", "_CHECKPOINT_METADATA", "commit_success.txt"), None, CheckpointRule.ORBAX, True),
        (folder_entry("7", "_CHECKPOINT_METADATA", tail=b" " * PART_BYTES_MAX), None, CheckpointRule.UNCHANGED, None),
        (folder_entry("7", "_METADATA", "manifest.ocdbt"), None, CheckpointRule.ORBAX, True),  # before Orbax 0.5
        (folder_entry("7.orbax-checkpoint-tmp-3", "default"), None, CheckpointRule.ORBAX, False),
        (folder_entry("mine", "weights"), None, CheckpointRule.UNCHANGED, None),
        (file_entry("mine.npz.tmp", b"abc"), None, CheckpointRule.UNCHANGED, False),
        (file_entry("mine.npz", b"abc"), None, CheckpointRule.UNCHANGED, None),
        (file_entry("empty.pt", b""), None, CheckpointRule.ZIP, False),
        (file_entry("begun.pt", b"P"), None, CheckpointRule.ZIP, False),
        (file_entry("legacy.pt", b"\x80\x02\x8a\x0a"), None, CheckpointRule.UNCHANGED, None),
    ],
)
def test_each_kind_has_its_rule(entry, tracker, rule, whole):
    verdict = judge_entry(entry, tracker)
    assert (verdict.rule, verdict.is_whole) == (rule, whole)
    assert bool(verdict.why) is (whole is False)


@cases(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("epoch=3-step=1200.ckpt", 1200),
        ("global_step100", 100),
        ("iter_0000100", 100),
        ("step-0000042.npz", 42),
        ("17", 17),
        ("model-3-40.pt", 40),
        ("last.ckpt", None),
        ("epoch=10-val_loss=0.32.ckpt", 10),
        ("model-40-0.98.pt", 40),
        ("model.12.pt", 12),
        ("acc0.98.pt", None),
    ],
)
def test_the_step_is_read_from_the_name(name, step):
    assert step_of(name) == step


def test_entries_with_a_step_leave_out_the_others():
    assert candidates(["step-1", "config.json", "latest", ".hidden-1", "last.ckpt"]) == ["step-1", "last.ckpt"]
    assert candidates(["model.bin", "other"]) == ["model.bin", "other"]


def test_what_trainers_write_beside_their_checkpoints_is_none():
    beside = ["runs", "config.json", "train_2.log", "events.out.tfevents.1700000000.host.12.0", "wandb", "notes.txt"]
    assert candidates(beside) == []
    assert candidates([*beside, "epoch=3.ckpt", "step-4.json", "latest.json"]) == ["epoch=3.ckpt"]
    assert candidates([*beside, "step-4.json"]) == ["step-4.json"], "unless it is all that is saved"


@pytest.mark.parametrize("name", ["tmp-checkpoint-5", "step-5.tmp"])
def test_a_folder_in_progress_is_not_whole(name):
    assert judge_entry(folder_entry(name, "weights")).is_whole is False


def test_a_zip_whose_tail_is_short_is_judged():
    content = b"PK\x03\x04PK\x06\x07zzPK\x05\x06" + b"\0" * 18
    assert judge_entry(file_entry("step-1.pt", content)).is_whole is False


def test_a_folder_begun_anew_below_the_tracker_s_old_step_is_not_whole():
    entry = folder_entry("global_step10", "a.pt")
    assert judge_entry(entry, 1000, Timestamp(NOW - 1)).is_whole is False
    assert judge_entry(entry, 1000, NOW).is_whole
    assert judge_entry(entry, 10, Timestamp(NOW - 1)).is_whole, "rank 0 may see its own write first"


@pytest.mark.parametrize(("text", "step"), [(b"global_step100\n", 100), (b"250", 250), (b"release", None), (b"", None)])
def test_a_tracker_names_a_step(text, step):
    assert parse_tracker(text) == step


def checkpoint(name: str, written_at: int, *, whole: bool = True, step: int | None = None) -> RunCheckpoint:
    return RunCheckpoint(
        f"/c/{name}", step, 1, Timestamp(written_at), whole, CheckpointRule.ZIP, why="" if whole else "cut"
    )


def test_the_newest_whole_one_is_chosen_and_newer_torn_ones_are_named():
    found = [
        checkpoint("a", 1),
        checkpoint("b", 2, step=3),
        checkpoint("c", 2, step=4),
        checkpoint("d", 3, whole=False),
    ]
    chosen = newest_whole(found)
    assert chosen is not None
    assert chosen.path == "/c/c"
    assert [each.path for each in torn_newer(found, chosen)] == ["/c/d"]
    assert newest_whole([found[3]]) is None
    assert torn_newer([found[3]], None) == [found[3]]


def test_an_unknown_kind_is_whole_at_the_second_look_unless_it_is_open():
    entry = file_entry("mine.npz", b"abc")
    assert unchanged_since(entry, {}, is_open=False) == (False, "it has changed since the last look")
    assert unchanged_since(entry, {"mine.npz": entry}, is_open=False) == (True, "")
    assert not unchanged_since(entry, {"mine.npz": entry}, is_open=True)[0]
    assert not unchanged_since(replace(entry, size_bytes=4), {"mine.npz": entry}, is_open=False)[0]
