"""The embedded engine of a machine that people share: the root daemon starts each job as its person.

The controller has no privileges. It tells the daemon what to start and end, and reads what supervisors write. All of
that is a person's word about their own job: it is read without following links, within bounds, and ends no run.
A run has ended when the daemon says that nothing is left of it; and a supervisor that does not keep a deadline, because
its person has stopped it, say, is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import DAY_S, Timestamp, seconds_between
from moorings.engines.containers import find_runtime
from moorings.engines.fence import FileFence
from moorings.engines.launch import (
    as_unavailable,
    log_files_of_tasks,
    not_startable_error,
    parse_signal,
    rejected_error,
    unavailable_error,
)
from moorings.engines.logs import TaskLog, read_logs, skip_until
from moorings.engines.node_program import read_record
from moorings.engines.polling import wait_for_change
from moorings.engines.run_folder import RunFolder
from moorings.local.cpu_time import find_hierarchies, read_cpu_s
from moorings.local.engine import check_launch
from moorings.local.records import AttemptEnd, CancelRecord, RecordT, SupervisorStatus, YieldRecord
from moorings.local.shared_runs import SharedRunRecord, call_daemon, read_shared_run, read_states
from moorings.local.shared_supervisor import SharedRunFolder, order_to_send
from moorings.local.supervisor import FORWARDED_SIGNAL_MAX, WAKEUP_SIGNAL, forwarding_signal
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.privileged.spool import entry_uid
from moorings.workloads.idleness import UsageReading
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import CANNOT_START, SIGKILL_EXIT_CODE, EndReason, EndRecord, RunId, RunPhase, RunStatus

POLL_S, STARTING_POLL_S = 1.0, 0.1
SUBMIT_LOCK_WAIT_S = 5.0
RECORD_BYTES_MAX = 1 << 20
STATUS_BYTES_MAX, STATUS_BYTES_MAX_TASK = 16 << 10, 64  # every look reads those of all runs
DETAIL_CHARS_MAX = 500
UNUSED_S = float(DAY_S)  # after which no run is made of an entry: its person's command has long ended
MARGIN_S = 30.0  # after which a supervisor that should have ended its job is killed
YIELD_S_MIN = 2.0
REJECTED = (
    *("account.refused", "entry.used", "entry.unknown", "entry.invalid", "request.invalid"),
    *("limit.unavailable", "device.unknown"),
)


@dataclass(frozen=True, slots=True)
class SharedRun:
    """What is remembered of a run's newest attempt.

    Attributes:
        entry: in the root daemon's spool.
        attempt: the newest that was submitted.
        submitted_at: when it was first tried.
    """

    entry: str
    attempt: int
    tasks: int
    grace_s: float
    time_limit_s: float | None
    submitted_at: Timestamp

    @classmethod
    def of(cls, record: SharedRunRecord) -> SharedRun:
        """What is remembered of that record."""
        order, job = record.order, record.order.job
        return cls(
            entry=order.spool_entry,
            attempt=order.attempt,
            tasks=job.tasks,
            grace_s=job.checkpoint.grace_s,
            time_limit_s=job.time_limit_s,
            submitted_at=record.submitted_at,
        )


class SharedEngine:
    """Runs jobs as their people, by the root daemon.

    Args:
        folder: of what the controller keeps of runs; made if missing.
        control: the daemon's socket.
        clock: the time.
        output_bytes_max: maximum log size of all tasks of a run together; 0: no limit.
    """

    def __init__(self, folder: Path, control: Path, clock: Clock, output_bytes_max: int = 0) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder, self._control, self._clock = folder, control, clock
        self._output_bytes_max = output_bytes_max
        self._fence = FileFence(folder)
        self._known: dict[RunId, SharedRun] = {}
        self._kill_at_s: dict[tuple[RunId, int], float] = {}  # of an attempt, by time.monotonic
        self._changed = asyncio.Event()
        self._starting = False

    @property
    def name(self) -> str:
        return "local"

    @property
    def has_scheduler(self) -> bool:
        return False

    def check_job(self, job: JobSpec) -> Sequence[str]:
        if job.image is not None:
            find_runtime(job.image)
        return ()

    async def fence_below(self, epoch: Epoch) -> None:
        with as_unavailable(f"{self._folder} cannot be written"):
            await asyncio.to_thread(self._fence.raise_epoch, epoch, SUBMIT_LOCK_WAIT_S)

    async def submit(self, order: RunSubmission) -> str:
        if not order.spool_entry:
            hint = "'moor run' on this machine hands it in"
            raise rejected_error("the job was not handed in to this machine's root daemon", hint)
        if not RunFolder.id_pattern.fullmatch(order.run):
            raise rejected_error(f"{order.run[:120]!r} cannot be the id of a local run")
        check_launch(order)
        with as_unavailable(f"run {order.run} could not be started"):
            await asyncio.to_thread(self._submit, order)
        self._changed.set()
        return f"{order.run}/{order.attempt}"

    def _submit(self, order: RunSubmission) -> None:
        job = order.job
        with self._fence.hold_epoch(order.epoch, SUBMIT_LOCK_WAIT_S):
            known = self._load(order.run)
            if known is not None and known.attempt > order.attempt:
                return
            if known is None or known.attempt < order.attempt:
                record = SharedRunRecord(order, self._clock.now(), str(self._control))
                record.save(self._folder)
                self._known[order.run] = SharedRun.of(record)
            memory = job.resources.memory_bytes
            limits = {
                "cpus": job.resources.cpus * job.tasks,
                "memoryBytes": memory * job.tasks if memory is not None else None,
                "devices": [path for gcd in order.binding.gcds for path in gcd.device_files],
            }
            request = {"op": "start", "entry": order.spool_entry, "attempt": order.attempt}
            sent = order_to_send(order, self._output_bytes_max)
            answer = self._call_daemon(request | {"limits": limits, "order": sent})
        if answer.get("error") == "attempt.live":
            raise not_startable_error(order, "an earlier attempt has not ended")
        self._check(answer)

    def _check(self, answer: Mapping[str, Any]) -> None:
        if "error" in answer:
            detail, hint = str(answer.get("detail", "")), str(answer.get("hint", ""))
            raise (rejected_error if answer["error"] in REJECTED else unavailable_error)(detail, hint)

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        try:
            return await asyncio.to_thread(self._observe, runs)
        except (OSError, ValueError, MooringsError) as error:
            why = f"the root daemon cannot be asked: {error}"
            return [RunStatus(run, RunPhase.UNKNOWN, reason=why) for run in runs]

    def _observe(self, runs: Sequence[RunId]) -> list[RunStatus]:
        known = {run: found for run in runs if (found := self._load(run)) is not None}
        states = self._states([found.entry for found in known.values()])
        seen = [self._status(run, known.get(run), states) for run in runs]
        self._starting = any(status.phase is RunPhase.STARTING for status in seen)
        return seen

    def _states(self, entries: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """What the daemon knows of entries.

        Raises:
            OSError, ValueError: it cannot be asked.
        """
        return read_states(self._control, entries)

    @contextlib.contextmanager
    def hold_ended(self, _runs: Path, run: RunId, before: Timestamp) -> Iterator[bool]:
        """Let the daemon forget a run that ended before a time, for the block that removes its folder.

        Raises:
            OSError: the daemon cannot be asked, or is still removing what the job has left.
        """
        known = self._load(run)
        if known is None:
            yield False
            return
        try:
            state = self._states([known.entry])[known.entry]
            at_us = (state.get("end") or {}).get("at", 0) * 1_000_000
            ended = state["state"] == "ENDED" and max(at_us, known.submitted_at) < before
            gone = state["state"] == "ABSENT" and known.submitted_at < before
            if ended:
                gone = self._call_daemon({"op": "forget", "entry": known.entry}).get("state") == "ABSENT"
        except (ValueError, MooringsError) as error:
            raise OSError(str(error)) from error
        yield gone
        if gone:
            self._known.pop(run, None)

    def forget_unused(self, used: Collection[str]) -> int:
        """Let the daemon forget the jobs that were handed in a day ago, were never started and never will be.

        Args:
            used: the entries of all runs that have not ended.

        Returns: how many.

        Raises:
            OSError, ValueError, MooringsError: the daemon cannot be asked.
        """
        answer = self._call_daemon({"op": "unstarted", "ageS": UNUSED_S})
        self._check(answer)
        unused = [entry for entry in answer["entries"] if entry not in used]
        for entry in unused:
            self._call_daemon({"op": "forget", "entry": entry})
        return len(unused)

    def _status(self, run: RunId, known: SharedRun | None, states: Mapping[str, Mapping[str, Any]]) -> RunStatus:
        state = states.get(known.entry) if known is not None else None
        if known is None or state is None or state["state"] == "ABSENT" or state["attempt"] < known.attempt:
            return RunStatus(run, RunPhase.ABSENT, attempt=known.attempt if known is not None else 0)
        person = entry_uid(known.entry)
        folder = SharedRunFolder(Path(state["folder"]))
        looked = read_record(folder.path)
        status_bytes_max = STATUS_BYTES_MAX + STATUS_BYTES_MAX_TASK * known.tasks
        status = _read_person(folder.status, person, SupervisorStatus, status_bytes_max)
        started_at = self._clamped(status.started_at, known) if status is not None else None
        seen = RunStatus(
            run,
            RunPhase.RUNNING if status is not None and status.phase is RunPhase.RUNNING else RunPhase.STARTING,
            started_at,
            attempt=known.attempt,
            checkpoints=looked.found if looked is not None and not looked.fault else None,
            checkpoint_fault=looked.fault if looked is not None else "",
        )
        if state["state"] != "ENDED":
            self._enforce(run, known, float(state.get("ageS") or 0.0))
            return seen
        self._kill_at_s.pop((run, known.attempt), None)
        end = _read_person(folder.end, person, AttemptEnd)
        record = self._checked(end.record, known) if end is not None and end.attempt == known.attempt else None
        return replace(seen, phase=RunPhase.ENDED, end=_end_record(record, state["end"] or {}, self._clock.now()))

    def _clamped(self, at: Timestamp | None, known: SharedRun) -> Timestamp | None:
        """A time that a person wrote, as far as it can be."""
        return None if at is None else max(known.submitted_at, min(at, self._clock.now()))

    def _checked(self, said: EndRecord, known: SharedRun) -> EndRecord | None:
        """An end that a person wrote, if it could be one."""
        codes = [said.exit_code, *(code for code in said.task_codes if code is not None)]
        if len(said.task_codes) > known.tasks or not all(0 <= code < 256 for code in codes):
            return None
        detail = said.detail[:DETAIL_CHARS_MAX].encode("utf-8", "replace").decode()
        started_at, ended_at = (self._clamped(at, known) for at in (said.started_at, said.ended_at))
        return replace(said, detail=detail, started_at=started_at, ended_at=ended_at)

    def _enforce(self, run: RunId, known: SharedRun, age_s: float) -> None:
        """Kill what should have ended by now."""
        limit_s = known.time_limit_s
        is_late = limit_s is not None and age_s > limit_s + known.grace_s + MARGIN_S
        if is_late or time.monotonic() > self._kill_at_s.get((run, known.attempt), float("inf")):
            self._call_daemon({"op": "kill", "entry": known.entry, "attempt": known.attempt})

    async def cancel(self, run: RunId, reason: str) -> None:
        known = await asyncio.to_thread(self._load, run)
        if known is not None:
            self._kill_at_s.setdefault((run, known.attempt), time.monotonic() + known.grace_s + MARGIN_S)
            await self._request(known, "cancel", CancelRecord(known.attempt, reason))

    async def ask_to_yield(
        self, run: RunId, attempt: int, reason: str, deadline: Timestamp, *, until_saved: bool = False
    ) -> None:
        known = await asyncio.to_thread(self._load, run)
        if known is None or known.attempt != attempt:
            return
        by_s = time.monotonic() + max(seconds_between(self._clock.now(), deadline), YIELD_S_MIN)
        first = self._kill_at_s.get((run, attempt))
        if first is not None and (until_saved or by_s + MARGIN_S >= first):
            return  # the first request stays
        self._kill_at_s[run, attempt] = by_s + MARGIN_S
        await self._request(known, "yield", YieldRecord(attempt, reason, by_s, until_saved=until_saved))

    async def _request(self, known: SharedRun, name: str, record: CancelRecord | YieldRecord) -> None:
        request = {"op": "ask", "entry": known.entry, "attempt": known.attempt, "name": name, "signal": WAKEUP_SIGNAL}
        with as_unavailable("the root daemon cannot be asked"):
            answer = await asyncio.to_thread(self._call_daemon, request | {"record": to_plain(record)})
        if answer.get("error") != "attempt.ended":
            self._check(answer)

    async def signal(self, run: RunId, signal_name: str) -> None:
        number = forwarding_signal(parse_signal(signal_name, FORWARDED_SIGNAL_MAX).value)
        (seen,) = await self.observe([run])
        known = self._known.get(run)
        if seen.phase is not RunPhase.RUNNING or known is None:
            raise MooringsError("run.not_running", f"run {run} has no processes")
        request = {"op": "ask", "entry": known.entry, "attempt": known.attempt, "signal": number}
        with as_unavailable(f"run {run}"):
            answer = await asyncio.to_thread(self._call_daemon, request)
        if "error" in answer:
            raise MooringsError("run.not_running", f"run {run} is ending")

    async def find_terminal(self, run: RunId, *, attended: bool = False) -> str:
        known = await asyncio.to_thread(self._load, run)
        if known is None:
            raise MooringsError("run.not_running", f"run {run} has no processes")
        with as_unavailable("the root daemon cannot be asked"):
            state = (await asyncio.to_thread(self._states, [known.entry])).get(known.entry)
        if state is None or state["state"] in ("ABSENT", "ENDED"):
            raise MooringsError("run.not_running", f"run {run} has no processes")
        return str(SharedRunFolder(Path(state["folder"])).terminal)

    async def logs(
        self, run: RunId, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        with as_unavailable("the root daemon cannot be asked"):
            known = await asyncio.to_thread(self._load, run)
            if known is None:
                return
            answer = await asyncio.to_thread(self._call_daemon, {"op": "status", "entries": [known.entry]})
            self._check(answer)
        newest = answer["states"][0].get("folder")
        if newest is None:
            return
        person = entry_uid(known.entry)
        logs = [
            PersonLog(path, prefix, person, complete=number < known.attempt)
            for number in range(known.attempt + 1)
            for folder in (SharedRunFolder(Path(newest).parent / str(number)),)
            for path, prefix in log_files_of_tasks(run, known.tasks, task, partial(folder.log_path, number))
        ]

        async def ended() -> bool:
            (seen,) = await self.observe([run])
            return seen.phase in (RunPhase.ENDED, RunPhase.ABSENT) or seen.attempt != known.attempt

        with as_unavailable(f"the output of run {run} cannot be read"):
            await skip_until(logs, since)
            async for chunk in read_logs(logs, ended=ended if follow else None, pause=self._clock.sleep):
                yield chunk

    async def read_usage(self, runs: Sequence[RunId]) -> Mapping[RunId, UsageReading]:
        """The CPU time of runs (``ports.usage.UsageMeter``)."""
        return await asyncio.to_thread(self._read_usage, runs)

    def _read_usage(self, runs: Sequence[RunId]) -> dict[RunId, UsageReading]:
        found, readings = find_hierarchies(), {}
        for run in runs:
            known = self._load(run)
            used_s = read_cpu_s(found, known.entry, known.attempt) if known is not None else None
            if known is not None and used_s is not None:
                readings[run] = UsageReading(known.attempt, used_s)
        return readings

    async def wait_for_change(self) -> None:
        await wait_for_change(self._changed, self._clock, STARTING_POLL_S if self._starting else POLL_S)

    async def close(self) -> None:
        pass  # nothing is open

    def _load(self, run: RunId) -> SharedRun | None:
        if run not in self._known and (record := read_shared_run(self._folder, run)) is not None:
            self._known[run] = SharedRun.of(record)
        return self._known.get(run)

    def _call_daemon(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The daemon's answer.

        Raises:
            OSError, ValueError: there is none.
        """
        return call_daemon(self._control, request)


class PersonLog(TaskLog):
    """The output of a person's task: only what is theirs is read."""

    def __init__(self, path: Path, prefix: bytes, person: int, *, complete: bool) -> None:
        super().__init__(path, prefix, complete=complete)
        self._person = person

    def size(self) -> int:
        with contextlib.suppress(OSError), self._opened(self._path) as descriptor:
            return os.fstat(descriptor).st_size
        return 0

    def _read_raw(self, length: int) -> bytes:
        if length > 0:
            with contextlib.suppress(OSError), self._opened(self._path) as descriptor:
                return os.pread(descriptor, length, self._offset)
        return b""

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        with _opened(path, self._person) as descriptor:
            yield descriptor


@contextlib.contextmanager
def _opened(path: Path, person: int) -> Iterator[int]:
    """Open a file in a person's folder: no link, no pipe, and nobody else's (as a hard link would be)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != person:
            raise PermissionError(f"{path} is not a file of user {person}")
        yield descriptor
    finally:
        os.close(descriptor)


def _read_person(path: Path, person: int, kind: type[RecordT], bytes_max: int = RECORD_BYTES_MAX) -> RecordT | None:
    """A record that a person may have written; None: there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError), _opened(path, person) as descriptor:
        return from_plain(kind, json.loads(os.pread(descriptor, bytes_max, 0)))
    return None


def _end_record(said: EndRecord | None, seen: Mapping[str, Any], now: Timestamp) -> EndRecord:
    """How a run ended: what its supervisor said, and what the daemon saw."""
    if seen.get("oomKills"):
        detail = "it used more memory than it has"
        if said is None:
            return EndRecord(EndReason.EXITED, SIGKILL_EXIT_CODE, ended_at=now, detail=detail)
        return replace(
            said, detail=f"{detail}: {said.detail}" if said.detail else detail, ended_at=said.ended_at or now
        )
    may_be_stopped = said is None or (said.exit_code != 0 and said.ending in (EndReason.EXITED, EndReason.CANCELLED))
    if seen.get("stopped") and may_be_stopped:  # what its supervisor and its tasks saw is a signal
        end = said or EndRecord(EndReason.LOST, SIGKILL_EXIT_CODE)
        return replace(end, ending=EndReason.LOST, ended_at=end.ended_at or now, detail=str(seen["why"]))
    if said is not None:
        return replace(said, ended_at=said.ended_at or now)
    if seen.get("code") == CANNOT_START:
        detail = seen.get("why") or "its supervisor could not be started"
        return EndRecord(EndReason.NOT_STARTED, CANNOT_START, ended_at=now, detail=detail)
    return EndRecord(EndReason.LOST, SIGKILL_EXIT_CODE, ended_at=now, detail=seen.get("why") or "its supervisor died")
