"""Follow a run or a claim, with its progress on stderr, also through restarts of the controller.

There is no tight polling: the controller holds its responses (``?wait=``) and streams events and logs. A wait is
repeated every few seconds only to keep the displayed reason fresh.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from moorings.client.client import Client
from moorings.client.requests import EventFilter
from moorings.client.transport import Retries
from moorings.core.model.claims import ENDED as CLAIM_ENDED
from moorings.core.model.claims import WAITING, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import seconds_between
from moorings.terminal.durations import Deadline
from moorings.terminal.progress import Progress
from moorings.wire.codec import parse_time
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import ClaimBody, ReasonBody, RunBody
from moorings.workloads.runs import ENDED as RUN_ENDED
from moorings.workloads.runs import RunState

REASON_FRESH_S = 2.0  # the maximum age of the displayed reason
STARTING_POLL_S = 0.05  # of a run that is started again: an event of its first start has been seen
TURN_FRESH_S = 1.0  # of a reason from another scheduler's queue
END_WAIT_S = 5.0

_RANK = re.compile(rb"\[(\d+)\] ")


class LogDeduplicator:
    """The new part of a run's output, however often it is read from the beginning.

    One task's output is the same bytes each time, so bytes are counted. Lines of several tasks may interleave
    differently at each reading, so lines are counted for each rank.

    Args:
        woven: whether lines begin with ``[rank] ``.
    """

    def __init__(self, *, woven: bool) -> None:
        self._woven = woven
        self._printed = 0
        self._skip = 0
        self._lines: Counter[bytes] = Counter()
        self._seen: Counter[bytes] = Counter()
        self._rank = b""
        self._rest = b""

    def restart(self) -> None:
        """Prepare for reading the output from its beginning again."""
        self._skip, self._seen, self._rank, self._rest = self._printed, Counter(), b"", b""

    def new_bytes(self, chunk: bytes) -> bytes:
        """The new bytes of ``chunk``."""
        if not self._woven:
            new = chunk[self._skip :]
            self._skip = max(0, self._skip - len(chunk))
            self._printed += len(new)
            return new
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return b"".join(line + b"\n" for line in lines if self._is_new(line))

    def finish(self) -> bytes:
        """The rest: a last line without an end; the output is complete."""
        rest, self._rest = self._rest, b""
        return rest if rest and self._is_new(rest) else b""

    def _is_new(self, line: bytes) -> bool:
        prefix = _RANK.match(line)
        self._rank = prefix[1] if prefix else self._rank
        self._seen[self._rank] += 1
        if self._seen[self._rank] <= self._lines[self._rank]:
            return False
        self._lines[self._rank] = self._seen[self._rank]
        return True


class RunFollower:
    """Follows one run: reports why it waits, copies its output, returns it once it has ended.

    Args:
        client: retries, so that it survives a restart of the controller.
        progress: where to report.
        write: receives the output.
        since: only what was written after this time of the API.
    """

    def __init__(
        self, client: Client, progress: Progress, write: Callable[[bytes], None], *, since: str | None = None
    ) -> None:
        self._client = client
        self._since = since
        self._progress = progress
        self._take = write
        self._started = False
        self._copy: LogDeduplicator | None = None

    def follow(self, run: RunBody, *, task: int | None = None) -> RunBody:
        """The run once it has ended; may be called again after an interrupt, and continues where it was."""
        run = self.wait_for_turn(run)
        if not self._started:
            self._wait_for_start(run)
        return self.copy_logs(run, task=task)

    def wait_for_turn(self, run: RunBody) -> RunBody:
        """The run once it waits no more: it has its partition, or has ended."""
        while run.state in (RunState.WAITING, RunState.PAUSED):
            if run.state == RunState.PAUSED:
                self._progress.show_waiting(f"{run.id}: {_paused_text(run)}")
                run = self._client.get_run(run.id, wait_s=END_WAIT_S)
                continue
            if run.claim is None:
                run = self._wait_in_queue(run)
                if run.claim is None:
                    break
                continue
            claim = self._wait_for_partition(run, run.claim)
            if claim.state == ClaimState.READY:
                break
            run = self._client.get_run(run.id)  # its claim has ended: with the run, or because that is paused
            if run.claim == claim.id and run.state == RunState.WAITING:
                break
        return run

    def wait_for_processes(self, run: RunBody) -> RunBody:
        """The run once its processes run, or it has ended."""
        while True:
            run = self._client.get_run(self.wait_for_turn(run).id)
            if run.state == RunState.RUNNING or run.state in RUN_ENDED:
                break
            if not self._started:
                self._wait_for_start(run)
            elif run.state not in (RunState.WAITING, RunState.PAUSED):
                time.sleep(STARTING_POLL_S)
        return run

    def copy_logs(self, run: RunBody, *, task: int | None = None) -> RunBody:
        """Copy the output to its end; return the run once it has ended."""
        self._copy = self._copy or _deduplicator(run, task)
        lost, attempt = self._client.connections_lost, run.attempt
        while True:
            self._copy_stream(run.id, task, self._copy)
            run = self._client.get_run(run.id, wait_s=END_WAIT_S)
            if run.state in RUN_ENDED:
                break
            if run.attempt != attempt:
                attempt = run.attempt
                self._progress.report(f"{run.id}: {requeued_text(run)}")
        if lost != self._client.connections_lost:  # the stream may have ended with the controller, not with the run
            for chunk in self._new_chunks(run.id, task, self._copy, follow=False):
                self._write(chunk)
        self._write(self._copy.finish())
        return run

    def skip_to_last_lines(self, run: RunBody, count: int, *, task: int | None = None) -> None:
        """Write only the last lines of the present output; ``copy_logs`` then continues behind it."""
        self._copy = _deduplicator(run, task)
        for chunk in last_lines(self._new_chunks(run.id, task, self._copy, follow=False), count):
            self._write(chunk)

    def _copy_stream(self, ident: str, task: int | None, copy: LogDeduplicator) -> None:
        """Copy new output until the stream ends, from the beginning again after each lost connection."""
        retries = Retries(self._client.retry_policy)
        while True:
            try:
                for chunk in self._new_chunks(ident, task, copy, follow=True):
                    retries = Retries(self._client.retry_policy)
                    self._write(chunk)
            except MooringsError as error:
                retries.wait(error)
            else:
                return

    def _new_chunks(self, ident: str, task: int | None, copy: LogDeduplicator, *, follow: bool) -> Iterator[bytes]:
        copy.restart()
        for chunk in self._client.logs(ident, task=task, follow=follow, since=self._since):
            yield copy.new_bytes(chunk)

    def _write(self, chunk: bytes) -> None:
        if chunk:
            self._progress.clear()
            self._take(chunk)

    def _wait_for_partition(self, run: RunBody, ident: str) -> ClaimBody:
        """Its claim, once that is READY or has ended."""
        claim = wait_for_claim(self._client, self._progress, ident, "READY", name=run.id)
        assert claim is not None, "without a limit it comes to an end"
        return claim

    def _wait_in_queue(self, run: RunBody) -> RunBody:
        """The run once its engine's scheduler has started it, or it has a claim; reports why it waits until then."""
        while run.state == RunState.WAITING and run.claim is None:
            why = format_wait(run.reason, run.position) if run.reason else f"submitted to {run.engine}"
            self._progress.show_waiting(f"{run.id}: {why}")
            run = self._client.get_run(run.id, wait_s=TURN_FRESH_S)
        self._progress.clear()
        return run

    def _wait_for_start(self, run: RunBody) -> None:
        started = wait_for_start(self._client, run.id)
        self._started = True
        if started:
            self._progress.report(f"{run.id}: running")


def _deduplicator(run: RunBody, task: int | None) -> LogDeduplicator:
    return LogDeduplicator(woven=task is None and run.job.tasks > 1)


def last_lines(chunks: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The last lines of an output; what stands behind the last line end counts as one."""
    lines: deque[bytes] = deque(maxlen=count)
    rest: list[bytes] = []  # of one line, which may be long
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            lines.append(b"".join(rest) + b"\n")
            lines.extend(line + b"\n" for line in others[:-1])
            rest = others[-1:]
    if last := b"".join(rest):
        lines.append(last)
    yield from lines


def _paused_text(run: RunBody) -> str:
    if run.pause is not None and run.pause.resumes_at is not None and run.reason is not None:
        return run.reason.message
    return f"it is paused, and stays so; 'moor resume {run.id}' lets it wait again"


def requeued_text(run: RunBody) -> str:
    """That an attempt of a run is over, and another one will come."""
    if run.state == RunState.PAUSED:
        return f"{_paused_text(run)} (attempt {run.attempt})"
    return f"it was stopped, and resumes later (attempt {run.attempt})"


def wait_for_start(client: Client, ident: str) -> bool:
    """Wait until a run's processes have started; False: it ended before.

    It is read from the event log's beginning, so that no event is missed.
    """
    wanted = EventFilter(run=ident, names=("run.started", "run.ended"))
    events = (event for batch in client.watch_events(wanted, after=0) for event in batch)
    return next(events).name == "run.started"


def wait_for_claim(
    client: Client, progress: Progress, ident: str, until: str, *, name: str, limit: Deadline | None = None
) -> ClaimBody | None:
    """The claim once it has reached ``until`` or has ended; None if the limit came first. Reports why it waits."""
    reported = False
    for claim in watch_claim(client, ident, until, limit):
        if claim.state in WAITING:
            reported = False
            progress.show_waiting(f"{name}: {waiting_text(claim)}")
        elif not reported and claim.devices is not None and until != "ENDED":
            reported = True
            progress.report(f"{name}: GRANTED {claim.pool} devices {claim.devices}")
        if has_reached(claim, until):
            if until == "READY" and claim.state == ClaimState.READY and claim.partition is None:
                progress.report(f"{name}: GRANTED {claim.pool}, without devices")
            elif until == "READY" and claim.state == ClaimState.READY:
                progress.report(f"{name}: partition {claim.partition} ACTIVE{_after(claim)}")
            progress.clear()
            return claim
        if claim.state == ClaimState.GRANTED and until == "READY":
            progress.show_waiting(f"{name}: waits for partition {claim.partition} to be ACTIVE")
    progress.clear()
    return None


def watch_claim(client: Client, ident: str, until: str, limit: Deadline | None = None) -> Iterator[ClaimBody]:
    """The claim as it changes, until it has reached ``until`` or the limit is over.

    The first request does not wait: the user sees a reason at once.
    """
    limit = limit or Deadline(None)
    goal, wait_s = "GRANTED" if until == "READY" else until, 0.0
    while True:
        claim = client.get_claim(ident, wait_s=wait_s, until=goal)
        yield claim
        if has_reached(claim, until) or limit.is_over:
            return
        goal = "GRANTED" if until == "READY" and claim.state in WAITING else until
        wait_s = limit.remaining_s(REASON_FRESH_S)


def has_reached(claim: ClaimBody, until: str) -> bool:
    """Whether a claim has reached ``until`` (GRANTED, READY, ENDED), or never will."""
    if claim.state in CLAIM_ENDED:
        return True
    if until == "ENDED":
        return False
    return claim.state not in WAITING and (until == "GRANTED" or claim.state != ClaimState.GRANTED)


def waiting_text(claim: ClaimBody) -> str:
    """Why a claim waits, as ``format_wait`` says it."""
    message = f"waits for {claim.size} devices"
    return format_wait(claim.reason or ReasonBody(code="pool.full", message=message), claim.position)


def format_wait(reason: ReasonBody, position: int | None) -> str:
    """Why something waits. Its place in the queue and the time come first: a narrow terminal cuts the rest."""
    known = [f"position {position}"] if position is not None else []
    if reason.until:
        known.append(f"expected by {_local_time(reason.until)}")
    return ": ".join(filter(None, (", ".join(known), reason.message)))


def _local_time(text: str) -> str:
    """An API time on the clock of this machine; with its day if that is not today."""
    at = datetime.fromisoformat(text).astimezone()
    return at.strftime("%H:%M:%S" if at.date() == datetime.now(at.tzinfo).date() else "%Y-%m-%d %H:%M")


def run_end_text(run: RunBody) -> str:
    """How a run ended, in one line."""
    parts = [f"{run.id}: {run.state}"]
    if run.started_at and run.ended_at:
        seconds = _seconds(run.started_at, run.ended_at)
        parts.append(f"after {seconds:.1f} s" if seconds < 120 else f"after {duration_text(seconds)}")
    text = " ".join(parts)
    if run.exit_code is not None:
        text += f", exit code {run.exit_code}"
    reason = run.reason.message if run.reason is not None and run.state != RunState.SUCCEEDED else ""
    detail = run.detail or reason
    return f"{text}: {detail}" if detail else text


def run_exit_code(run: RunBody) -> int:
    """The exit code of ``moor run``: the job's own code; without one, 124 for the time limit, else 1."""
    if run.state == RunState.SUCCEEDED:
        return 0
    return run.exit_code or (ExitCode.TIMEOUT if run.state == RunState.TIMED_OUT else ExitCode.FAILED)


def _after(claim: ClaimBody) -> str:
    if claim.granted_at is None or claim.ready_at is None:
        return ""
    return f" after {_seconds(claim.granted_at, claim.ready_at):.1f} s"


def _seconds(since: str, until: str) -> float:
    """The seconds between two API times; at least 0, as clocks may disagree."""
    return max(0.0, seconds_between(parse_time(since), parse_time(until)))
