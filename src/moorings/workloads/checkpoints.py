"""Checkpoints: which entry of a job's checkpoint folder is one, whether it is whole, and which one a job resumes from.

Each framework finishes a checkpoint in its own way, and each rule below recognises that way from names, sizes and a few
bytes. Nothing is unpickled. An entry that no rule recognises counts as whole when two looks found it unchanged and no
process has it open for writing.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moorings.core.model.timestamps import Timestamp

PART_BYTES_MAX = 65_536  # of a file's beginning, and of its end, that a rule may read
TRACKERS = ("latest", "latest_checkpointed_iteration.txt")  # DeepSpeed's and Megatron's
TRAINER_STATE = "trainer_state.json"
_TRAINER_SENTINEL = "checkpoint-is-incomplete.txt"
_DCP_METADATA = ".metadata"
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
ORBAX_METADATA = "_CHECKPOINT_METADATA"
_ORBAX_COMMITTED = "commit_success.txt"
_ORBAX_MARKS = frozenset({ORBAX_METADATA, "_METADATA", "manifest.ocdbt", _ORBAX_COMMITTED})
_ORBAX_COMMIT_TIME = re.compile(rb'"commit_timestamp_nsecs"\s*:\s*(\d|null)')
_ZIP_SUFFIXES = (".pt", ".pth", ".ckpt", ".keras")
_TEMPORARY_SUFFIXES = (".tmp", ".part", ".partial")
_TEMPORARY_PREFIXES = ("tmp-", "tmp_", "tmp.")  # Hugging Face's tmp-checkpoint-5
# What trainers write beside their checkpoints. A text counts if its name says that it is one.
_NEVER_SAVED = re.compile(
    r"events\.out\.tfevents\..*|.*\.(log|out|err|lock|pid|py|sh|md|csv|tsv|jsonl|html|png|wandb)"
    r"|(runs|wandb|logs|lightning_logs|mlruns|tensorboard|code|__pycache__)",
    re.IGNORECASE | re.DOTALL,
)
_TEXT_SUFFIXES = (".json", ".txt", ".yaml", ".yml", ".toml", ".ini")
_SAVED = re.compile(r"(step|iter|epoch|checkpoint|ckpt|last|latest|state|saved)", re.IGNORECASE)
_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[=_-]?(\d{1,18})", re.IGNORECASE)
_EPOCH = re.compile(r"epoch[=_-]?(\d{1,18})", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"(?<!\d)(?<!\d\.)\d{1,18}(?!\d|\.\d)")  # not a loss of 0.32
_NUMBER = re.compile(r"\d{1,18}")
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d{1,18})\s*\]')


class CheckpointRule(StrEnum):
    """How an entry was judged."""

    ZIP = "zip"  # torch.save, Lightning, Keras: the directory at the file's end fits the file
    SAFETENSORS = "safetensors"  # the header's largest offset is the file's size
    TRAINER = "trainer"  # Hugging Face: trainer_state.json, written last, is complete
    TRACKER = "tracker"  # DeepSpeed, Megatron: the tracker file names this step, or a later one
    METADATA = "metadata"  # PyTorch's distributed checkpoints: .metadata, written last, is there
    ORBAX = "orbax"  # it has its final name, and says when it was committed
    UNCHANGED = "unchanged"  # anything else


@dataclass(frozen=True, slots=True)
class RunCheckpoint:
    """One checkpoint as last seen.

    Attributes:
        path: absolute.
        step: the step in its name; None: it has none.
        size_bytes: of the file, or of the folder's files.
        written_at: when it was last written.
        write_s: how long its writing took, as far as looks saw it; None: it was complete at the first look.
        is_whole: whether a job may resume from it.
        rule: how that was found.
        why: why it is not whole; else empty.
    """

    path: str
    step: int | None
    size_bytes: int
    written_at: Timestamp
    is_whole: bool
    rule: CheckpointRule
    write_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """What a look read of one entry of a checkpoint folder.

    Attributes:
        name: its name.
        is_folder: whether it is a folder.
        size_bytes: of the file, or of the folder's files.
        modified_at: when it, or a file in it, was last changed. A file's removal does not count: else an old checkpoint
            whose removal was broken off would be the newest.
        head: the first bytes of a file, at most ``PART_BYTES_MAX``.
        tail: the last bytes of a file; of a folder: those of its ``trainer_state.json`` or ``_CHECKPOINT_METADATA``.
        header_tail: of a safetensors file: the last bytes of its header.
        names: of a folder: the names in it.
    """

    name: str
    is_folder: bool
    size_bytes: int
    modified_at: Timestamp
    head: bytes = b""
    tail: bytes = b""
    header_tail: bytes = b""
    names: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """Whether an entry is whole by a rule; None: the rule needs two looks."""

    rule: CheckpointRule
    is_whole: bool | None
    why: str = ""


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name: after ``step``, ``iter`` or ``checkpoint``, else after ``epoch``.

    A name with none of these words: its last whole number.
    """
    numbers = _STEP.findall(name) or _EPOCH.findall(name) or _WHOLE_NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def judge_entry(
    entry: FolderEntry, tracker_step: int | None = None, tracked_at: Timestamp | None = None
) -> CheckpointVerdict:
    """Whether an entry is whole, by the rule of its kind.

    Args:
        entry: what was read of it.
        tracker_step: the step that a tracker file of the same folder names; None: there is none.
        tracked_at: when that file was written; None: not known.
    """
    return _judge_folder(entry, tracker_step, tracked_at) if entry.is_folder else _judge_file(entry)


def _judge_file(entry: FolderEntry) -> CheckpointVerdict:
    if entry.name.endswith(".safetensors"):
        return _verdict(CheckpointRule.SAFETENSORS, _safetensors_fault(entry))
    if entry.head.startswith(b"PK") or (entry.name.endswith(_ZIP_SUFFIXES) and entry.head in (b"", b"P")):
        return _verdict(CheckpointRule.ZIP, _zip_fault(entry))
    if entry.name.endswith(_TEMPORARY_SUFFIXES):
        return CheckpointVerdict(CheckpointRule.UNCHANGED, False, "its name is that of a file in progress")
    return CheckpointVerdict(CheckpointRule.UNCHANGED, None)


def _judge_folder(entry: FolderEntry, tracker_step: int | None, tracked_at: Timestamp | None) -> CheckpointVerdict:
    name, names = entry.name, entry.names
    if _ORBAX_TEMPORARY in name:
        return CheckpointVerdict(CheckpointRule.ORBAX, False, "Orbax has not given it its final name")
    if name.endswith(_TEMPORARY_SUFFIXES) or name.startswith(_TEMPORARY_PREFIXES):
        return CheckpointVerdict(CheckpointRule.UNCHANGED, False, "its name is that of a folder in progress")
    if _DCP_METADATA in names or any(each.endswith(".distcp") for each in names):
        fault = "" if _DCP_METADATA in names else f"it has no {_DCP_METADATA}, which is written last"
        return _verdict(CheckpointRule.METADATA, fault)
    if ORBAX_METADATA in names and TRAINER_STATE not in names:
        return _judge_orbax(entry)
    if name.startswith("checkpoint-") and name[11:].isdigit():
        return _verdict(CheckpointRule.TRAINER, _trainer_fault(entry))
    step = step_of(name)
    if tracker_step is not None and step is not None and name.startswith(("global_step", "iter_")):
        fault = "" if step <= tracker_step else f"the tracker file names step {tracker_step}"
        if step < tracker_step and tracked_at is not None and entry.modified_at > tracked_at:
            fault = f"it was changed after the tracker file, which names step {tracker_step}"  # begun anew
        return _verdict(CheckpointRule.TRACKER, fault)
    if name.isdigit() and names & _ORBAX_MARKS:
        return CheckpointVerdict(CheckpointRule.ORBAX, True)
    if name.startswith(("global_step", "iter_")):
        return CheckpointVerdict(CheckpointRule.TRACKER, False, f"no tracker file ({' or '.join(TRACKERS)}) names it")
    return CheckpointVerdict(CheckpointRule.UNCHANGED, None)


def _judge_orbax(entry: FolderEntry) -> CheckpointVerdict:
    """Without an atomic rename it has its final name from the beginning: then its time of commit is missing."""
    found = _ORBAX_COMMIT_TIME.search(entry.tail)
    if _ORBAX_COMMITTED in entry.names or (found is not None and found[1] != b"null"):
        return CheckpointVerdict(CheckpointRule.ORBAX, True)
    if found is None and len(entry.tail) >= PART_BYTES_MAX:
        return CheckpointVerdict(CheckpointRule.UNCHANGED, None)  # a user's metadata came after it
    return CheckpointVerdict(CheckpointRule.ORBAX, False, f"its {ORBAX_METADATA} has no time of commit")


def _verdict(rule: CheckpointRule, fault: str) -> CheckpointVerdict:
    return CheckpointVerdict(rule, not fault, fault)


def _trainer_fault(entry: FolderEntry) -> str:
    if _TRAINER_SENTINEL in entry.names:
        return f"{_TRAINER_SENTINEL} is there"
    if TRAINER_STATE not in entry.names:
        return f"it has no {TRAINER_STATE}, which is written last"
    # A nested object ends indented: only the last line of a complete file is a brace alone.
    return (
        "" if entry.tail.rstrip(b"\r\n").endswith((b"\n}", b"\n]")) or _is_json(entry.tail) else "its state is cut off"
    )


def _is_json(text: bytes) -> bool:
    if len(text) >= PART_BYTES_MAX:
        return False  # only its end was read
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _safetensors_fault(entry: FolderEntry) -> str:
    if len(entry.head) < 8:
        return "it has no header"
    header_bytes: int = struct.unpack("<Q", entry.head[:8])[0]
    if 8 + header_bytes > entry.size_bytes:
        return "its header is cut off"
    offsets = [int(end) for end in _OFFSETS.findall(entry.header_tail)]
    if not offsets and entry.header_tail.lstrip().startswith(b"{"):
        offsets = [0]  # no tensors
    if not offsets:
        return "its header cannot be read"
    wanted = 8 + header_bytes + max(offsets)
    return "" if wanted == entry.size_bytes else f"it has {entry.size_bytes} of {wanted} bytes"


def _zip_fault(entry: FolderEntry) -> str:
    """The end of central directory record must end the file, and the directory must end where that record begins."""
    tail, size = entry.tail, entry.size_bytes
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        return "the zip directory at its end is missing"
    begin = size - len(tail) + at
    directory_bytes, directory_at, comment_bytes = struct.unpack("<IIH", tail[at + 12 : at + 22])
    if len(tail) - at - 22 != comment_bytes:
        return "the zip directory at its end is cut off"
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        large_at = struct.unpack("<Q", tail[at - 12 : at - 4])[0]
        inside = large_at - (size - len(tail))
        if not 0 <= inside <= len(tail) - 56 or tail[inside : inside + 4] != b"PK\x06\x06":
            return "the zip64 directory at its end is missing"
        directory_bytes, directory_at = struct.unpack("<QQ", tail[inside + 40 : inside + 56])
        begin = large_at
    return "" if directory_at + directory_bytes == begin else "the zip directory does not fit the file"


def parse_tracker(text: bytes) -> int | None:
    """The step in a tracker file (``global_step100``, ``100``); None: it names none."""
    numbers = _NUMBER.findall(text[:200].decode("ascii", "replace"))
    return int(numbers[-1]) if numbers else None


def candidates(names: Iterable[str]) -> list[str]:
    """The names that may be checkpoints: those with a step or of the last one; any, if there are none of these.

    A text counts only if there is nothing else: ``latest.json`` beside ``step-5.pt`` points to it, and is written last.
    """
    shown = [name for name in names if not name.startswith(".") and name not in TRACKERS and _may_be_saved(name)]
    numbered = [name for name in shown if step_of(name) is not None or name.partition(".")[0] in ("last", "latest")]
    found = numbered or shown
    return [name for name in found if not name.endswith(_TEXT_SUFFIXES)] or found


def _may_be_saved(name: str) -> bool:
    if _NEVER_SAVED.fullmatch(name):
        return False
    return not name.endswith(_TEXT_SUFFIXES) or _SAVED.search(name) is not None


def newest_whole(found: Iterable[RunCheckpoint], since: Timestamp | None = None) -> RunCheckpoint | None:
    """The checkpoint to resume from: the whole one that was saved last; of two at once, the one of the later step.

    Args:
        found: those that there are.
        since: only later ones count; None: all.
    """
    whole = (each for each in found if each.is_whole and (since is None or each.written_at > since))
    return max(
        whole, key=lambda each: (each.written_at, -1 if each.step is None else each.step, each.path), default=None
    )


def torn_newer(found: Iterable[RunCheckpoint], chosen: RunCheckpoint | None) -> list[RunCheckpoint]:
    """The checkpoints that are not whole and newer than the chosen one, newest first."""
    torn = [each for each in found if not each.is_whole and (chosen is None or each.written_at > chosen.written_at)]
    return sorted(torn, key=lambda each: each.written_at, reverse=True)


def unchanged_since(entry: FolderEntry, before: Mapping[str, FolderEntry], *, is_open: bool) -> tuple[bool, str]:
    """Whether an entry without a rule is whole: equal at the look before, and not open for writing; else why not."""
    if not entry.size_bytes:
        return False, "it is empty"
    if is_open:
        return False, "a process has it open for writing"
    earlier = before.get(entry.name)
    if earlier is None or (earlier.size_bytes, earlier.modified_at, earlier.names) != (
        entry.size_bytes,
        entry.modified_at,
        entry.names,
    ):
        return False, "it has changed since the last look"
    return True, ""
