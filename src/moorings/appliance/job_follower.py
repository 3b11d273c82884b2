"""One job of a workflow, from the queue to its end: why it waits, its output, and its step in Slurm meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from moorings.client.client import Client
from moorings.core.model.claims import WAITING
from moorings.ports.mirror import Mirror, MirroredWork, OnCancel
from moorings.terminal.following import RunFollower, has_reached, wait_for_start, waiting_text, watch_claim
from moorings.terminal.progress import Progress
from moorings.wire.shapes import ClaimBody, RunBody
from moorings.workloads.runs import RunState

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
        """Report when it runs."""
        if wait_for_start(self._client, self.job.id):
            self._mirrored = self._mirror.begin(step_name(self.job), self._on_cancel)
            self._begun = True
            self.job = self._client.get_run(self.job.id)
            self._progress.report(f"{self.title}  running{_on(self.job.devices)}")
            self._changed(self.job)


def wait_for_systems(client: Client, progress: Progress, ident: str, title: str) -> ClaimBody:
    """The claim once it is READY, or has ended; reports why it waits."""
    for claim in watch_claim(client, ident, "READY"):
        if claim.state in WAITING:
            progress.show_waiting(f"{title}  queued: {waiting_text(claim)}")
        elif not has_reached(claim, "READY"):
            progress.show_waiting(f"{title}  scheduled{_on(claim.devices or '')}: is being made ready")
    progress.clear()
    return claim


def step_name(job: RunBody) -> str:
    """A job's name in Slurm: its own name, and its number of systems."""
    systems = job.job.accelerators.size
    return f"{job.id}-csx{systems}" if systems else job.id


def describe_systems(devices: str) -> str:
    """The systems as text: ``system 0``, ``systems 0-3``."""
    return f"{'system' if devices.isdecimal() else 'systems'} {devices}"


def _on(devices: str) -> str:
    return f" on {describe_systems(devices)}" if devices else ""
