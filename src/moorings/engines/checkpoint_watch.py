"""Looks at a run's checkpoint folder beside its tasks, in a thread of its own, and records what it sees.

The folder is the user's choice, and its disk may hang: nothing waits for a look, but for a bounded time at the end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.engines.checkpoint_scan import NO_LOOK, CheckpointLook, look_at_folder
from moorings.engines.processes import hides_files, open_for_writing
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint

LOOK_S_MIN, LOOK_S_MAX = 1.0, 5.0  # between two looks: more often while the run is young
YOUNG_SHARE = 20
LOOK_SHARE = 20  # a slow folder is looked at for a twentieth of the time
SAVE_LOOK_S = 0.5  # between two looks while a checkpoint is expected
BASELINE_S_MAX = 1.0  # how long a warning waits for the look before it
# A saved checkpoint counts when its folder has been quiet for this time: other files may belong to it. Without a rule
# a pause between two of its files looks like its end.
SETTLED_S = 2.0
SETTLED_S_UNCHANGED = 5.0
BUSY_FACTOR = 3  # of that time, for a folder that is never quiet because its program saves all the time
LAST_PAUSE_S = 0.2  # between the last two looks, of which an entry without a rule needs both
LAST_S_MAX = 5.0  # how long the end of a run waits for the last look
FIRST_S_MAX = 10.0  # how long the start of an attempt waits for the look before it
DOUBTED_S = 60.0  # without a record of what was whole: so long before the newest one a killed process may have written
HIDDEN_QUIET_S = 60.0  # a file without a rule has to be quiet so long if we may not see what a process has open
SHOWN_MAX = 16  # checkpoints that are recorded
WHOLE_KEPT = 4  # of these: the newest whole ones


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The newest checkpoints of one attempt's folder, newest first, as they were last seen.

    Attributes:
        attempt: of the run; of a job that its scheduler starts again, the start.
        fault: why the folder could not be looked at; else empty.
        resumed_from: what that start was given, if whoever looks has chosen it.
    """

    attempt: int
    found: tuple[RunCheckpoint, ...]
    fault: str = ""
    resumed_from: RunCheckpoint | None = field(default=None, metadata=OMIT_IF_DEFAULT)


class CheckpointStore(Protocol):
    """Where the looks at a run's checkpoints are recorded."""

    def last_checkpoints(self) -> CheckpointRecord | None:
        """The last record, of whichever attempt.

        Raises:
            ValueError: it cannot be read.
        """
        ...

    def save(self, record: CheckpointRecord, *, durable: bool = True) -> None:
        """Save a record.

        Raises:
            OSError: that failed.
        """
        ...


class CheckpointWatch:
    """The looks of one attempt.

    What has no rule counts as whole when it stays unchanged; so does a file whose writer was killed. So of those last
    written before an attempt began, or before a process may have been killed, only those count that were whole by then.

    Args:
        record: where to record them.
        attempt: its attempt.
        directory: the checkpoint folder.
        pids: returns the processes of the run.
        is_later: whether a process of the run may have been killed before; None: if ``attempt`` is not 0.

    Attributes:
        resumed_from: what this attempt was given, if a look has chosen it.
    """

    def __init__(
        self,
        record: CheckpointStore,
        attempt: int,
        directory: str,
        pids: Callable[[], list[int]],
        *,
        is_later: bool | None = None,
    ) -> None:
        self._store = record
        self._attempt = attempt
        self._is_later = attempt > 0 if is_later is None else is_later
        self._directory = directory
        self._pids = pids
        self.resumed_from: RunCheckpoint | None = None
        self._look = NO_LOOK
        self._saved: CheckpointRecord | None = None
        self._last_open: frozenset[str] | None = frozenset()
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._expected_since_s: float | None = None
        self._baseline: frozenset[RunCheckpoint] | None = None  # the whole ones before the expected one
        self._has_baseline = threading.Event()
        self._saved_since_s: float | None = None
        self._looked_at_s = self._quiet_since_s = 0.0
        self._needs_quiet_s = SETTLED_S
        self._doubted_until: Timestamp | None = None
        self._trusted: frozenset[RunCheckpoint] | None = None  # None: nobody knows what was whole by then
        self._thread = threading.Thread(target=self._serve, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._doubt_earlier()
        self._thread.start()

    def look_now(self) -> tuple[RunCheckpoint, ...]:
        """Look twice in this thread, while no process of the run is there; returns the checkpoints."""
        self._doubt_earlier()
        self._look_last()
        return self._look.found

    def look_before(self) -> tuple[RunCheckpoint, ...] | None:
        """Look while no process of the run is there; returns the checkpoints, or None if that takes too long.

        The last look of the attempt before may be seconds older than its end, if it was lost, and its program may have
        removed since then what was found.
        """
        found: list[RunCheckpoint] = []
        before = CheckpointWatch(self._store, self._attempt, self._directory, list)  # it may look for ever
        thread = threading.Thread(target=lambda: found.extend(before.look_now()), name="checkpoints", daemon=True)
        thread.start()
        thread.join(FIRST_S_MAX)
        return None if thread.is_alive() else tuple(found)

    def fault_of(self, path: str, found: Iterable[RunCheckpoint]) -> str:
        """Return why that checkpoint cannot be resumed from, after such a look; empty: nothing speaks against it."""
        known = next((each for each in found if each.path == path), None)
        if known is not None:
            is_torn = known.rule is not CheckpointRule.UNCHANGED and known.why
            fault = f"is not whole: {known.why}" if is_torn else ""
        else:
            ours = os.path.dirname(path) == self._directory.rstrip("/")  # noqa: PTH120
            fault = "is gone" if ours and _is_gone(path) else ""
        return f"checkpoint {path} {fault}; 'moor run --resume RUN --from' begins with another one" if fault else ""

    def record(self) -> CheckpointRecord:
        """What there is to record after the last look."""
        return self._record_of(self._look)

    def _doubt_earlier(self) -> None:
        if self._is_later:
            saved: CheckpointRecord | None = None
            with contextlib.suppress(ValueError):
                saved = self._store.last_checkpoints()
            self._doubt(saved.found if saved is not None else None)

    def writer_was_killed(self) -> None:
        """A process of the run may have been killed while it wrote."""
        if self._baseline is None or self.has_saved():
            self._doubt(self._look.found)
        else:  # an unchanged one that came since may lack files
            rules = [each for each in self._look.found if each.rule is not CheckpointRule.UNCHANGED]
            self._doubt([*rules, *self._baseline])

    def _doubt(self, known: Iterable[RunCheckpoint] | None) -> None:
        self._trusted = None if known is None else frozenset(_identity(each) for each in known if each.is_whole)
        self._doubted_until = _now()

    def expect_save(self) -> None:
        """The run is about to be told to save: look once before that, and more often from now on.

        Returns after that look, or after ``BASELINE_S_MAX``: then what is saved before the look ends counts as old.
        """
        if self._expected_since_s is None:
            self._expected_since_s = time.monotonic()
            self._woken.set()
            self._has_baseline.wait(BASELINE_S_MAX)

    def has_saved(self) -> bool:
        """Whether it has saved a whole checkpoint since ``expect_save``, and nothing in its folder changes any more."""
        since_s = self._saved_since_s
        if since_s is None:
            return False
        now_s = time.monotonic()
        quiet_s, needed_s = self._looked_at_s - self._quiet_since_s, self._needs_quiet_s  # as far as looks have seen
        return quiet_s >= needed_s or now_s - since_s >= needed_s * BUSY_FACTOR

    def finish(self, *, processes_left: bool = False) -> None:
        """Look a last time, now that the run ends; returns after a bounded time.

        Args:
            processes_left: whether processes of the run may still write.
        """
        self._last_open = None if processes_left else frozenset()
        self._ending.set()
        self._woken.set()
        self._thread.join(LAST_S_MAX)

    def _serve(self) -> None:
        started_s = time.monotonic()
        pause_s = LOOK_S_MIN
        while True:
            if self._woken.wait(pause_s):
                self._woken.clear()
            if self._ending.is_set():
                break
            begun_s = time.monotonic()
            before = self._look
            self._look_once(None)
            if self._expected_since_s is not None and begun_s >= self._expected_since_s:
                self._note_saved(before, begun_s)
            now_s = time.monotonic()
            usual_s = min(LOOK_S_MAX, max(LOOK_S_MIN, (now_s - started_s) / YOUNG_SHARE))
            usual_s = usual_s if self._expected_since_s is None else SAVE_LOOK_S
            pause_s = max(usual_s, (now_s - begun_s) * LOOK_SHARE)
        self._look_last()

    def _look_last(self) -> None:
        self._look_once(self._last_open)
        time.sleep(LAST_PAUSE_S)
        self._look_once(self._last_open)

    def _look_once(self, open_paths: frozenset[str] | None) -> None:
        """Look once; ``open_paths`` None: those that processes of the run have open, if an entry needs to know."""
        known = open_paths

        hidden = False

        def is_open(path: str, modified_at: Timestamp) -> bool:
            nonlocal known, hidden
            if known is None:
                pids = self._pids()
                known, hidden = open_for_writing(pids, real), hides_files(pids)
            if hidden and seconds_between(modified_at, _now()) < HIDDEN_QUIET_S:
                return True
            path = f"{real.rstrip('/')}/{path.rpartition('/')[2]}"
            return path in known or any(each.startswith(f"{path}/") for each in known)

        real = os.path.realpath(self._directory)  # as the kernel names what is open
        look = look_at_folder(self._directory, _now(), self._look, is_open=is_open)
        if look.fault:
            self._save(replace(self._look, fault=look.fault))  # the next look may be compared with this one
            return
        newest = max((each.written_at for each in look.found if self._is_doubted(each)), default=None)
        found = tuple(self._without_doubt(each, newest) for each in look.found)
        self._look = replace(look, found=found)
        self._save(self._look)

    def _note_saved(self, before: CheckpointLook, begun_s: float) -> None:
        """Note what a look has found that began after a checkpoint was expected."""
        whole, now_s, self._looked_at_s = _whole(self._look), time.monotonic(), begun_s
        if self._baseline is None:
            self._baseline, self._quiet_since_s = whole, now_s
            self._has_baseline.set()
            return
        if self._look.entries != before.entries:
            self._quiet_since_s = now_s
        new = whole - self._baseline
        if new and self._saved_since_s is None:
            self._saved_since_s = now_s
        has_unchanged = any(each.rule is CheckpointRule.UNCHANGED for each in new)
        self._needs_quiet_s = SETTLED_S_UNCHANGED if has_unchanged else SETTLED_S

    def _is_doubted(self, found: RunCheckpoint) -> bool:
        """Whether its writer may have been killed."""
        until = self._doubted_until
        return until is not None and found.rule is CheckpointRule.UNCHANGED and found.written_at <= until

    def _without_doubt(self, found: RunCheckpoint, newest: Timestamp | None) -> RunCheckpoint:
        """The checkpoint; not whole, if it was the ``newest`` when its writer may have been killed, or nearly so."""
        if not found.is_whole or newest is None or not self._is_doubted(found):
            return found
        if self._trusted is not None and _identity(found) in self._trusted:
            return found
        if self._trusted is None and seconds_between(found.written_at, newest) > DOUBTED_S:
            return found
        return replace(found, is_whole=False, why="its writer may have been killed")

    def _save(self, look: CheckpointLook) -> None:
        record = self._record_of(look)
        if record == self._saved:
            return
        with contextlib.suppress(OSError):  # a full disk: the next look tries again
            self._store.save(record, durable=False)
            self._saved = record
            return
        sys.stderr.write("the checkpoints cannot be recorded, trying again\n")

    def _record_of(self, look: CheckpointLook) -> CheckpointRecord:
        return CheckpointRecord(self._attempt, _newest(look.found), look.fault, self.resumed_from)


def _newest(found: Sequence[RunCheckpoint]) -> tuple[RunCheckpoint, ...]:
    """The newest of them, and some whole ones however many torn ones are newer: a job resumes from these."""
    whole = [each for each in found if each.is_whole][:WHOLE_KEPT]
    others = [each for each in found if each not in whole][: SHOWN_MAX - len(whole)]
    return tuple(each for each in found if each in whole or each in others)


def _whole(look: CheckpointLook) -> frozenset[RunCheckpoint]:
    return frozenset(_identity(each) for each in look.found if each.is_whole)


def _is_gone(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)  # others: nobody here may look
    return False


def _identity(found: RunCheckpoint) -> RunCheckpoint:
    return replace(found, write_s=None)


def _now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)
