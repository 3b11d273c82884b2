"""What looks at checkpoints in the Pods of a run: ``python3 -m moorings.app.kubernetes_checkpoints begin|watch JOB``.

``begin`` is an init container: it looks, and writes what this start of the task resumes from; its termination message
is the record of that checkpoint. ``watch`` runs beside the task until no process of it is left, and prints each new
record (``CheckpointRecord``) as a line of JSON: the controller reads its output. JOB is a ``WatchedJob`` as JSON.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from moorings.core.model.serialization import from_plain, to_plain
from moorings.engines.checkpoint_watch import CheckpointRecord, CheckpointWatch
from moorings.engines.node_program import STOP_SIGNALS, AttemptCheckpoints, WatchedJob, begin, record_of_start
from moorings.engines.processes import list_processes
from moorings.kubernetes.engine.checkpoint_containers import BEGAN, FOLDER, RESTART, RESUME

MESSAGE = Path("/dev/termination-log")
MESSAGE_CHARS_MAX = 4096
LOOK_S = 0.5  # between two looks whether the task has ended
START_S_MAX = 300.0  # without any process of a task: its image cannot be pulled, or has no shell
_PAUSE_PID = 1  # what holds the namespaces of a Pod


class PrintedCheckpoints(AttemptCheckpoints):
    """The record of a Pod, whose changes are printed."""

    def save(self, record: CheckpointRecord, *, durable: bool = True) -> None:
        """Save and print a record."""
        super().save(record, durable=durable)
        record = self.last_checkpoints() or record  # with what this start was given
        sys.stdout.write(json.dumps(to_plain(record)) + "\n")
        sys.stdout.flush()


def main(words: list[str] | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Do one of these, and end well in any case: a job runs also where nobody can look."""
    try:
        what, text = sys.argv[1:] if words is None else words
        job, start, folder = from_plain(WatchedJob, json.loads(text)), count_starts(environment), Path(FOLDER)
        if what == "begin":
            begin(folder, start, job, RESUME)
            report_choice(folder, start)
        elif environment.get("RANK", "0") == "0":
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the task has its grace period to save
            watch_task(folder, start, job)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)  # whatever thread still waits for a disk


def watch_task(folder: Path, start: int, job: WatchedJob) -> None:
    """Look until the task has ended, and print what is seen."""
    record = record_of_start(PrintedCheckpoints(folder), start)
    if not watch_until_ended(job.watch(record, start, pids_of_task), folder / BEGAN, time.sleep):
        fault = f"not looked at during this start: the task had not begun after {START_S_MAX:g} s"
        record.save(CheckpointRecord(start, (), fault), durable=False)


def report_choice(folder: Path, start: int) -> None:
    """Tell the task what was chosen or refused, and the controller what this start resumes from, if it does."""
    with contextlib.suppress(FileNotFoundError):
        (folder / RESUME).chmod(0o644)  # the task may be another user's
    given = record_of_start(AttemptCheckpoints(folder), start).resumed_from
    if given is None:
        return
    record = json.dumps(to_plain(CheckpointRecord(start, (), "", given)))
    if len(record) <= MESSAGE_CHARS_MAX:  # kubelet cuts longer ones; the next look tells of it, too
        MESSAGE.write_text(record)


def count_starts(environment: Mapping[str, str]) -> int:
    """How often the IPUJob of this Pod was started before: its restarts, and the earlier partitions of its claim."""
    _, _, attempt = environment.get("MOORINGS_PARTITION_ID", "").rpartition("-")  # ends with the claim's attempt
    numbers = (environment.get(RESTART, ""), attempt)
    return sum(int(number) for number in numbers if number.isdecimal())


def pids_of_task() -> list[int]:
    """The processes of the other containers of this Pod, which share their ids with us."""
    return [pid for pid in list_processes() if pid not in (_PAUSE_PID, os.getpid())]


def watch_until_ended(watch: CheckpointWatch, began: Path, pause: Callable[[float], None]) -> bool:
    """Look until the task has ended; returns whether it was seen to begin."""
    watch.start()
    waited_s, seen = 0.0, False
    while (alive := bool(pids_of_task())) or not (seen or began.exists() or waited_s >= START_S_MAX):
        seen = seen or alive
        pause(LOOK_S)
        waited_s += LOOK_S
    watch.finish()
    return seen or began.exists()


if __name__ == "__main__":
    main()
