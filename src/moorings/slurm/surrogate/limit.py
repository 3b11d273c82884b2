"""The time limit of our job, for a client whose work has no step yet for Slurm to warn."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND, Timestamp
from moorings.ports.mirror import OnCancel
from moorings.slurm.formats import JobRecord, SlurmJobPhase
from moorings.slurm.surrogate.asking import load_job

LOOK_S = 60.0  # an admin may change the limit


class TimeLimitWatch:
    """Asks Slurm for the end of the job, now and every minute, and calls back in time.

    Args:
        environment: the variables needed to reach Slurm.
        job: its id.
        on_cancel: called once at most.
        lead_s: how long before the limit; seconds.
    """

    def __init__(self, environment: Mapping[str, str], job: int, on_cancel: OnCancel, lead_s: float) -> None:
        self._environment = environment
        self._job = job
        self._on_cancel = on_cancel
        self._lead_s = lead_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="slurm-limit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        known: JobRecord | None = None
        while not self._stopped.is_set():
            try:
                known = load_job(self._environment, self._job)
            except MooringsError as error:
                if error.code == "slurm.job_unknown" and known is not None:
                    return self._tell("the Slurm job has ended")
                # Slurm is down: its last answer holds, and it is asked again.
            left_s = LOOK_S if known is None else time_left_s(known.ends, self._lead_s, time.time())
            if left_s <= 0:
                return self._tell("the time limit of the Slurm job is near")
            if known is not None and known.phase is SlurmJobPhase.ENDED:
                return self._tell("the Slurm job has ended")
            self._stopped.wait(min(left_s, LOOK_S))

    def _tell(self, why: str) -> None:
        if not self._stopped.is_set():
            self._on_cancel(why)


def time_left_s(ends: Timestamp | None, lead_s: float, now_s: float) -> float:
    """Return seconds until work in the job must end, ``lead_s`` before the job does; infinite without a time limit."""
    return float("inf") if ends is None else ends / SECOND - lead_s - now_s
