"""The port ``Mirror`` on Slurm: a step for as long as the work runs.

srun's input is the lifeline. It stays open while we live. At the end of the work we write the result. If we are killed,
it closes and the step is FAILED. Everything slow happens in a thread of each step's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.ports.mirror import Mirror, MirroredWork, NoMirror, OnCancel, WatchHandle
from moorings.slurm.commands import SlurmCommands, build_environment
from moorings.slurm.formats import JobRecord, SlurmJobPhase, build_jobs, parse_jobs
from moorings.slurm.surrogate.detection import NotInJob, find_job, load_ancestors
from moorings.slurm.surrogate.step import (
    BEAT,
    COMPLETED,
    FAILED,
    Begun,
    Signalled,
    build_remove,
    build_step,
    check_name,
    load_placeholder,
    parse_line,
)

BEGIN_S = 10.0  # until the placeholder's first line; a step only waits for a slurmctld or a node that is down
AGAIN_S = 60.0  # between two tries to make a step
END_S = 5.0  # for the step to end after the result was written
KILL_S = 2.0  # for srun to end its step
BEAT_S = 3.0  # how late a placeholder may report a signal, at worst
TICK_S = 0.5  # srun may end while another process still holds its output
OUTPUT_LINES_MAX = 20
LINE_BYTES_MAX = 4096

Warn = Callable[[str], None]


def find_mirror(environment: Mapping[str, str], warn: Warn) -> Mirror:
    """Return a mirror of our Slurm job; outside of one, or under srun, a mirror that shows nothing.

    Args:
        environment: this process's variables.
        warn: called with a sentence if work cannot be shown; from another thread.
    """
    job = find_job(environment, load_ancestors())
    return NoMirror() if isinstance(job, NotInJob) else SlurmMirror(environment, job, warn)


class SlurmMirror:
    """Shows work as steps of a job.

    Args:
        environment: the variables needed to reach Slurm.
        job: its id.
        warn: called with a sentence if work cannot be shown.
    """

    def __init__(self, environment: Mapping[str, str], job: int, warn: Warn) -> None:
        self._environment = environment
        self._job = job
        self._warn = warn
        self._lock = threading.Lock()
        self._ours: bool | None = None  # None: not asked yet

    def begin(self, name: str, on_cancel: OnCancel) -> MirroredWork:
        argv = build_step(self._job, check_name(name), load_placeholder())
        return _MirroredStep(self, argv, on_cancel)

    def watch_limit(self, on_cancel: OnCancel, lead_s: float) -> WatchHandle:
        return TimeLimitWatch(self._environment, self._job, on_cancel, lead_s)

    # -- for its steps, in their threads -------------------------------------------------------------------------------

    def check_ours(self) -> None:
        """Raise if the job is another user's: root could make steps in any job. Asked once.

        Raises:
            MooringsError: ``slurm.denied``, or why Slurm did not answer.
        """
        with self._lock:
            if self._ours is None:
                self._ours = load_job(self._environment, self._job).uid == os.getuid()
        if not self._ours:
            raise MooringsError("slurm.denied", f"job {self._job} is another user's")

    def start(self, argv: list[str], lifeline: int) -> subprocess.Popen[bytes]:
        """Start srun with this as its input."""
        return subprocess.Popen(
            argv,
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=build_environment(self._environment),
            cwd="/",
            start_new_session=True,  # the client handles Ctrl-C
        )

    def remove(self, step: int) -> None:
        """End a step without a holder."""
        with contextlib.suppress(MooringsError):  # Slurm is down: the step ends with its job
            remove_step(self._environment, self._job, step)

    def warn(self, text: str) -> None:
        """Warn the client's user."""
        self._warn(text)


_lifelines: weakref.WeakSet[_Lifeline] = weakref.WeakSet()


class _Lifeline:
    """A pipe; its end shows the other side that we are dead. No child of ours may hold it, forked or started."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)  # the reader may hang
        self._open = True
        _lifelines.add(self)

    def write(self, word: bytes) -> None:
        """Write a word if the pipe is open; it may have no reader."""
        if self._open:
            with contextlib.suppress(OSError):
                os.write(self._writing, word)

    def cut(self) -> None:
        if self._open:
            self._open = False
            os.close(self._writing)


def _cut_all() -> None:
    for lifeline in list(_lifelines):
        lifeline.cut()


os.register_at_fork(after_in_child=_cut_all)


class _MirroredStep:
    """One step: a thread makes, follows and ends it; ``end`` only writes the result and waits."""

    def __init__(self, mirror: SlurmMirror, argv: list[str], on_cancel: OnCancel) -> None:
        self._mirror = mirror
        self._argv = argv
        self._on_cancel = on_cancel
        self._lock = threading.Lock()
        self._lifeline = _Lifeline()
        self._process: subprocess.Popen[bytes] | None = None
        self._finished = threading.Event()  # set: the result of the work is written
        self._given_up = False
        self._cancelled = False
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="slurm-surrogate", daemon=True)
        self._thread.start()

    def end(self, ok: bool) -> None:
        with self._lock:
            if not self._finished.is_set():
                self._finished.set()
                self._lifeline.write(COMPLETED if ok else FAILED)
                self._lifeline.cut()
        if self._thread is threading.current_thread():  # a callback for a cancel ends the work at once
            return
        self._thread.join(END_S)
        if self._thread.is_alive():  # Slurm is down, or hangs
            self._given_up = True
            self._signal(signal.SIGTERM)
            self._thread.join(KILL_S)
            self._signal(signal.SIGKILL)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._run_step():
                if self._finished.wait(AGAIN_S):  # nothing is left to show
                    return
        finally:
            os.close(self._lifeline.reading)

    def _run_step(self) -> bool:
        """Make the step and follow it to its end; False: it could not be made."""
        try:
            self._mirror.check_ours()
            process = self._process = self._mirror.start(self._argv, self._lifeline.reading)
        except MooringsError as error:
            self._warn_once(error.detail)
            return error.code == "slurm.denied"
        except OSError as error:
            self._warn_once(f"srun cannot be run: {error.strerror or error}")
            return False
        if self._given_up:  # in the meantime
            process.kill()
        output: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        step = self._follow(process, output)
        in_order = self._finished.is_set()
        if step is None:
            self._warn_once(" ".join(output) or f"srun made none within {BEGIN_S:g} s")
        else:
            self._cancel("its Slurm step was ended from outside")
        self._reap(process)
        if step is not None and (not in_order or process.returncode < 0):  # srun was killed: its step may live
            self._mirror.remove(step)
        return step is not None

    def _follow(self, process: subprocess.Popen[bytes], output: deque[str]) -> int | None:
        """Read srun's output until it ends; return the step's number, if it began."""
        step: int | None = None
        deadline = time.monotonic() + BEGIN_S
        beat = time.monotonic()
        for line in _lines(process):
            match parse_line(line):
                case Begun(number):
                    step = number
                case Signalled(name):
                    self._cancel(f"Slurm sent its step SIG{name}")
                case None:
                    output.extend([line.strip()] if line else [])
            now = time.monotonic()
            if step is None and now > deadline:
                break
            if step is not None and now - beat > BEAT_S:
                beat = now
                with self._lock:
                    self._lifeline.write(BEAT)
        return step

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Make sure that srun has ended; without a step in time, srun cancels its request."""
        assert process.stdout is not None
        process.stdout.close()
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        process.kill()
        process.wait()

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(number)

    def _warn_once(self, why: str) -> None:
        """Warn, once, that there is no step."""
        if not self._warned and not self._finished.is_set():
            self._warned = True
            self._mirror.warn(f"no Slurm step shows this work, which continues: {why}")

    def _cancel(self, why: str) -> None:
        with self._lock:
            if self._cancelled or self._finished.is_set():
                return
            self._cancelled = True
        self._on_cancel(why)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield its output line by line until it has ended, and an empty line now and then."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    poll = select.poll()
    poll.register(output, select.POLLIN)
    rest = b""
    while True:
        if not poll.poll(TICK_S * 1000):
            if process.poll() is not None:
                return
            yield ""
            continue
        chunk = os.read(output, LINE_BYTES_MAX)
        if not chunk:
            return
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[-LINE_BYTES_MAX:]
        for line in whole:
            yield line.decode("utf-8", "replace")


# -- time limit --------------------------------------------------------------------------------------------------------
# The time limit of our job, for a client whose work has no step yet for Slurm to warn.

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
                    return self._notify("the Slurm job has ended")
                # Slurm is down: its last answer holds, and it is asked again.
            left_s = LOOK_S if known is None else time_left_s(known.end_time, self._lead_s, time.time())
            if left_s <= 0:
                return self._notify("the time limit of the Slurm job is near")
            if known is not None and known.phase is SlurmJobPhase.ENDED:
                return self._notify("the Slurm job has ended")
            self._stopped.wait(min(left_s, LOOK_S))

    def _notify(self, why: str) -> None:
        if not self._stopped.is_set():
            self._on_cancel(why)


def time_left_s(ends: Timestamp | None, lead_s: float, now_s: float) -> float:
    """Return seconds until work in the job must end, ``lead_s`` before the job does; infinite without a time limit."""
    return float("inf") if ends is None else ends / SECOND - lead_s - now_s


# -- queries of jobs ---------------------------------------------------------------------------------------------------
# Requests to Slurm about our own job, from a thread of ours: a client's main thread belongs to the client.

ASK_S = 20.0


def load_job(environment: Mapping[str, str], job: int) -> JobRecord:
    """Return the job as Slurm lists it now.

    Raises:
        MooringsError: ``slurm.job_unknown``, or one of ``SlurmCommands.ask``.
    """
    answer = asyncio.run(SlurmCommands(environment, timeout_s=ASK_S).run_checked(build_jobs(jobs=[job])))
    for record in parse_jobs(answer):  # one id may list the tasks of an array, or a job's components
        if record.job_id == job:
            return record
    raise MooringsError(
        "slurm.job_unknown", f"Slurm does not know job {job}", hint="is SLURM_JOB_ID another cluster's?"
    )


def remove_step(environment: Mapping[str, str], job: int, step: int) -> None:
    """End a step of the job; an ended one is not an error.

    Raises:
        MooringsError: one of ``SlurmCommands.run``.
    """
    asyncio.run(SlurmCommands(environment, timeout_s=ASK_S).run(build_remove(job, step)))
