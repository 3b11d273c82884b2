"""One job of a workflow, from the queue to its end: why it waits, its output, and its step in Slurm meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from moorings.cli.following import RunFollower, has_reached, waiting_text
from moorings.cli.progress import Progress
from moorings.client.client import Client
from moorings.client.requests import EventFilter
from moorings.core.claims import WAITING, ClaimState
from moorings.core.instants import SECOND
from moorings.ports.mirror import Mirror, MirroredWork, OnCancel
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ClaimBody, RunBody
from moorings.workloads.runs import RunState

REASON_FRESH_S = 2.0  # the maximum age of the displayed reason
LEAD_S = 30.0  # before Slurm's limit: waiting jobs have little to do


class JobFollower:
    """Follows one job; ``follow`` may be called again after an interrupt, and continues where it was.

    Args:
        client: retries, so that it survives a restart of the controller.
        progress: where to report.
        mirror: shows the job elsewhere while it runs.
        job: as created.
        title: its name in a line.
        write: receives its output.
        changed: called with it when it begins to run.
        on_cancel: called if it is cancelled from outside; in another thread.
    """

    def __init__(
        self,
        client: Client,
        progress: Progress,
        mirror: Mirror,
        job: RunBody,
        *,
        title: str,
        write: Callable[[bytes], None],
        changed: Callable[[RunBody], None],
        on_cancel: OnCancel,
    ) -> None:
        self.job = job
        self.title = title
        self._client = client
        self._progress = progress
        self._mirror = mirror
        self._changed = changed
        self._on_cancel = on_cancel
        self._follower = RunFollower(client, progress, write)
        self._mirrored: MirroredWork | None = None
        self._begun = False

    def follow(self) -> RunBody:
        """The job once it has ended."""
        if not self._begun:
            watch = self._mirror.watch_limit(self._on_cancel, LEAD_S)
            try:
                if self.job.claim is not None:
                    wait_for_systems(self._client, self._progress, self.job.claim, self.title)
                self._await_start()
            finally:
                watch.stop()
        ended = self._follower.copy_logs(self.job)
        self.end(ok=ended.state == RunState.SUCCEEDED)
        return ended

    def end(self, *, ok: bool) -> None:
        """Stop showing it."""
        if self._mirrored is not None:
            self._mirrored.end(ok)

    def _await_start(self) -> None:
        """Report when it runs, from the event log's beginning, so that no event is missed."""
        wanted = EventFilter(run=self.job.id, names=("run.started", "run.ended"))
        for batch in self._client.watch_events(wanted, after=0):
            if not batch:
                continue
            if batch[0].name == "run.started":
                self._mirrored = self._mirror.begin(step_name(self.job), self._on_cancel)
                self._begun = True
                self.job = self._client.run(self.job.id)
                self._progress.say(f"{self.title}  running{_on(self.job.devices)}")
                self._changed(self.job)
            return


def wait_for_systems(client: Client, progress: Progress, ident: str, title: str) -> ClaimBody:
    """The claim once it is READY, or has ended; reports why it waits."""
    goal, wait_s = "GRANTED", 0.0
    while True:
        claim = client.claim(ident, wait_s=wait_s, until=goal)
        if claim.state in WAITING:
            goal = "GRANTED"
            progress.wait(f"{title}  queued: {waiting_text(claim)}{_expected(claim)}")
        elif has_reached(claim, "READY"):
            progress.clear()
            return claim
        elif claim.state == ClaimState.GRANTED:
            goal = "READY"
            progress.wait(f"{title}  scheduled{_on(claim.devices or '')}: is being made ready")
        wait_s = REASON_FRESH_S


def step_name(job: RunBody) -> str:
    """A job's name in Slurm: its own name, and its number of systems."""
    systems = job.job.accelerators.size
    return f"{job.id}-csx{systems}" if systems else job.id


def _expected(claim: ClaimBody) -> str:
    until = claim.reason.until if claim.reason is not None else None
    if until is None:
        return ""
    at_s = parse_time(until) / SECOND
    return f"; expected by {time.strftime('%H:%M:%S', time.localtime(at_s))}"


def describe_systems(devices: str) -> str:
    """The systems as text: ``system 0``, ``systems 0-3``."""
    return f"{'system' if devices.isdecimal() else 'systems'} {devices}"


def _on(devices: str) -> str:
    return f" on {describe_systems(devices)}" if devices else ""
