"""The supervisor on a shared machine: the root daemon starts it as the job's person, in the job's cgroup.

``python3 -I -m moorings.local.shared_supervisor FOLDER``; on its standard input ``job``, as its person handed it in,
``order``, from the controller (``order_to_send``), and ``attempt``.

The controller may have been taken over, and this process is the person. So an order is checked as what a stranger
sends: it names devices and numbers, sets no variable that a program obeys, and no checkpoint but one that the person
has saved in the job's own folder, because many programs execute what they load.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moorings.core.model.bindings import Binding
from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.processes import adopt_orphans
from moorings.local.records import AttemptEnd, RecordUnreadableError
from moorings.local.run_folder import LocalRunFolder
from moorings.local.supervisor import Supervisor
from moorings.ports.engine import RunSubmission
from moorings.workloads.jobs import JobSpec, check_job, element_of_run
from moorings.workloads.runs import CANNOT_START, EndReason, EndRecord, RunId

TASK_UMASK = 0o022  # of a login; the files of ours have modes of their own
FILE_TEXT_CHARS_MAX = 1 << 20
# What a binding may set: names of devices, and where the vendor's controller listens.
BINDING_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
API_VARIABLES = re.compile(r"IPUOF_VIPU_API_[A-Z_]{1,40}")
_DEVICE_FILE = re.compile(r"/dev/(?!pts/|shm/|mqueue/)[A-Za-z0-9._/-]{1,200}")  # no word of a container's mounts
_VALUE = re.compile(r"[A-Za-z0-9._:,@/+=\[\]-]{0,4096}")


class SharedRunFolder(LocalRunFolder):
    """The person's folder of one attempt; the requests are in root's folder around it.

    Args:
        attempt: root's folder of the attempt.
    """

    def __init__(self, attempt: Path) -> None:
        super().__init__(attempt / "run", attempt, group_reads=True)
        self._attempt = attempt

    def log_path(self, attempt: int, rank: int) -> Path:
        """Return the path of a task's output: a direct entry, so that no link leads a reader elsewhere."""
        return self.path / f"{rank}.log"

    def last_checkpoints(self) -> CheckpointRecord | None:
        """Return the checkpoints that were last seen, by this attempt or the newest one that has looked."""
        for number in range(int(self._attempt.name), -1, -1):  # the folder around them is root's, and not for reading
            found = LocalRunFolder(self._attempt.parent / str(number) / "run").last_checkpoints()
            if found is not None:
                return found
        return None


def order_to_send(order: RunSubmission, output_bytes_max: int = 0) -> dict[str, Any]:
    """An order as the controller sends it: without the job, but with the limit of its output."""
    return {
        "output_bytes_max": output_bytes_max,
        "run": order.run,
        "binding": to_plain(order.binding),
        "resume_from": order.resume_from,
        "resume_step": order.resume_step,
        "resume_since": order.resume_since,
    }


def parse_submission(given: Mapping[str, Any]) -> RunSubmission:
    """What to run.

    Raises:
        ValueError: the job or the order is none.
        MooringsError: the job is none that can run.
    """
    order = given["order"]
    job = check_job(from_plain(JobSpec, given["job"]))
    binding = from_plain(Binding, order["binding"])
    run = order["run"]
    if not isinstance(run, str) or not LocalRunFolder.id_pattern.fullmatch(run) or len(binding.gcds) != job.tasks:
        raise ValueError("the order is not one of this job")
    for gcd in binding.gcds:
        if not BINDING_VARIABLES.issuperset(gcd.environment) or len(gcd.file_text) > FILE_TEXT_CHARS_MAX:
            raise ValueError("the binding sets what no binding may set")
    if not all(map(API_VARIABLES.fullmatch, binding.api)):
        raise ValueError("the binding sets what no binding may set")
    values = [*binding.api.values(), *(value for gcd in binding.gcds for value in gcd.environment.values())]
    words = [binding.partition, *(device for gcd in binding.gcds for device in gcd.devices), *values]
    if not all(_VALUE.fullmatch(word) for word in words):
        raise ValueError("the binding has values that no binding has")
    if not all(_DEVICE_FILE.fullmatch(path) and ".." not in path for gcd in binding.gcds for path in gcd.device_files):
        raise ValueError("the binding names device files that are none")
    chosen, since = order.get("resume_from"), order.get("resume_since")
    if chosen is not None and (fault := checkpoint_fault(str(chosen), job.checkpoint_directory)):
        raise ValueError(f"checkpoint {chosen} {fault}")
    return RunSubmission(
        run=RunId(run),
        attempt=int(given["attempt"]),
        job=element_of_run(job, run),
        binding=binding,
        resume_from=None if chosen is None else str(chosen),
        resume_step=None if order.get("resume_step") is None else int(order["resume_step"]),
        resume_since=None if since is None else Timestamp(int(since)),
    )


def checkpoint_fault(path: str, directory: str | None) -> str:
    """Why a job is not given that checkpoint; empty: it is the person's own, in the job's folder."""
    folder, _, name = path.rpartition("/")
    if directory is None or folder != directory.rstrip("/") or name in ("", ".", ".."):
        return "is not in the job's folder of checkpoints"
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return ""  # the look before the start says so
    if found.st_uid != os.getuid() or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return "is another user's, or a link"
    return ""


def supervise(folder: SharedRunFolder, given: Mapping[str, Any]) -> None:
    """Run the job; return when its end is recorded."""
    try:
        order = parse_submission(given)
        output_bytes_max = int(given["order"].get("output_bytes_max", 0))
    except (ValueError, TypeError, KeyError, OverflowError, MooringsError, RecordUnreadableError) as error:
        detail = f"the job could not be started: {error}"
        folder.save_end(
            AttemptEnd(int(given["attempt"]), EndRecord(EndReason.NOT_STARTED, CANNOT_START, detail=detail))
        )
        return
    supervisor = Supervisor(folder, order, max(output_bytes_max, 0))
    supervisor.start()
    supervisor.wait_for_tasks()
    supervisor.record_end()


def main() -> None:
    """Supervise; the daemon sees how this process ends, and what is left."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    adopt_orphans()
    os.umask(TASK_UMASK)
    supervise(SharedRunFolder(Path(sys.argv[1])), json.load(sys.stdin))
    os._exit(0)  # at once: nothing needs cleanup


if __name__ == "__main__":
    main()
