"""The rows of ``moor get queue``, ``moor top`` and ``moor motd``: what runs and waits now, with its user.

Built here from the lists of claims and of runs. An operation of the API for it was refused: it would repeat both lists.
Names of other people's jobs may be missing in them: the API decides what a caller sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moorings.core.model.owners import HIDDEN, external_job_id, is_within
from moorings.wire.shapes import ArrayBody, ClaimBody, IdleBody, PoolBody, ReasonBody, RunBody

if TYPE_CHECKING:
    from moorings.client.client import Client

_USER_OWNERS = "user/"
_RUN_OWNERS = ("local/", "appliance/", HIDDEN)  # of claims that belong to a run, which the caller may not see

# States of runs and of claims, as the API writes them; their modules would cost each login 20 ms more.
_RUN_WAITS, _RUN_PAUSED, _RUN_RUNS = "WAITING", "PAUSED", "RUNNING"
_CLAIM_READY = "READY"
_CLAIM_WAITS = ("ANNOUNCED", "PENDING")

# The states of a claim as those of its run, so that one column has one vocabulary, whether the run can be seen or not.
_RUN_STATES: dict[str, str] = {
    "PENDING": _RUN_WAITS,
    "GRANTED": "STARTING",
    _CLAIM_READY: _RUN_RUNS,
    "RECLAIMING": "YIELDING",
    "YIELDING": "YIELDING",
    "RELEASING": "STOPPING",
}

# For a narrow column; a reason without a short form is shown as the controller words it.
_SHORT_REASONS = {
    "claim.broken": "its devices broke",
    "machine.full": "CPUs or memory in use",
    "pool.fragmented": "free ones scattered",
    "pool.full": "devices in use",
    "pool.resource_short": "resources in use",
    "pool.unreachable": "pool unreachable",
    "project.guaranteed": "kept for projects",
    "project.limit": "limit reached",
    "queue.aged": "an older one first",
    "queue.kept_for_other": "kept for another",
    "queue.next_turn": "starts now",
    "queue.reserved": "its block in use",
    "run.array_limit": "limit of its array",
    "run.dependency": "after another run",
    "run.retrying": "retries later",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A claim or a run that runs or waits.

    Attributes:
        name: of the run, else of the claim; empty: the caller may not see it.
        user: the subject, or the user for whom a program claims.
        state: of the run, else of the claim.
        is_waiting: whether it holds no devices yet.
        position: in the queue, 1 is next; None: it runs, or waits in another scheduler.
        size: devices, of the kind ``accelerator``.
        since: when it began to run, or to wait.
        reason: why it waits, or gives its devices back.
        idle: that it holds devices and has not worked for long.
        labels: of the run; None: it has none.
        array: the place of the run in its array; None: it is in none.
    """

    name: str
    user: str
    state: str
    is_waiting: bool
    size: int
    accelerator: str
    project: str
    priority: int
    position: int | None = None
    pool: str | None = None
    devices: str | None = None
    since: str | None = None
    time_limit_s: float | None = None
    reason: ReasonBody | None = None
    run: str | None = None
    claim: str | None = None
    idle: IdleBody | None = None
    labels: Mapping[str, str] | None = None
    array: ArrayBody | None = None

    @property
    def ident(self) -> str:
        """The id of its run, else of its claim."""
        return self.run or self.claim or self.name

    @property
    def short_reason(self) -> str:
        """Why it waits, in about three words; empty: it runs."""
        if self.reason is None or self.state in (_RUN_RUNS, _CLAIM_READY):
            return ""
        return _SHORT_REASONS.get(self.reason.code, self.reason.message)


def build_queue(claims: Iterable[ClaimBody], runs: Iterable[RunBody]) -> list[QueueEntry]:
    """What runs, by its start; behind it what waits, in the order of the queue.

    Args:
        claims: those that have not ended.
        runs: those that have not ended; read before the claims, so that a run with a claim that is not there has ended.
    """
    holders = [run for run in runs if run.claim is not None]
    others = [run for run in runs if run.claim is None and _is_queued(run)]
    run_of = {run.claim: run for run in holders}
    engine_jobs = {(run.engine, run.reference): run for run in others if run.reference is not None}
    entries, claim_of = [], {}
    for claim in claims:
        scheduled = engine_jobs.get((claim.owner.partition("/")[0], external_job_id(claim.owner)))
        if scheduled is None:
            entries.append(_claim_entry(claim, run_of.get(claim.id)))
        else:  # the claim that its scheduler's agent made for it: one job is one row
            claim_of[scheduled.id] = claim
    entries += [_run_entry(run, claim_of.get(run.id)) for run in others]
    return sorted(entries, key=_order)


def load_queue(client: Client) -> list[QueueEntry]:
    """What runs and waits now, as ``build_queue`` orders it."""
    runs = client.list_runs()
    return build_queue(client.list_claims(), runs)


def select_entries(
    entries: Iterable[QueueEntry], *, user: str | None = None, project: str | None = None, pool: PoolBody | None = None
) -> list[QueueEntry]:
    """The entries of a user, of a project and those below it, and of a pool.

    A waiting one that names no pool is of every pool of its kind.
    """
    return [
        entry
        for entry in entries
        if (user is None or entry.user == user)
        and (project is None or is_within(entry.project, project))
        and (pool is None or entry.pool == pool.name or (entry.pool is None and entry.accelerator == pool.accelerator))
    ]


def _is_queued(run: RunBody) -> bool:
    """Whether a run without a claim runs or waits: a paused one does neither, unless it resumes by itself."""
    return run.state != _RUN_PAUSED or (run.pause is not None and run.pause.resumes_at is not None)


def _claim_entry(claim: ClaimBody, run: RunBody | None) -> QueueEntry:
    waits = claim.state in _CLAIM_WAITS
    started = (run.started_at if run is not None else None) or claim.ready_at or claim.granted_at
    return QueueEntry(
        name=_seen(run.name if run is not None else claim.name),
        user=user_of(claim, run),
        state=_state(claim, run),
        is_waiting=waits,
        size=claim.size,
        accelerator=claim.accelerator,
        project=_seen(claim.project),
        priority=claim.priority,
        position=claim.position if waits else None,
        pool=claim.pool,
        devices=claim.devices,
        since=claim.created_at if waits else started,
        time_limit_s=claim.time_limit_s,
        reason=claim.reason,
        run=run.id if run is not None else None,
        claim=claim.id,
        idle=run.idle if run is not None else None,
        array=run.array if run is not None else None,
        labels=(run.labels or None) if run is not None else None,
    )


def _run_entry(run: RunBody, claim: ClaimBody | None) -> QueueEntry:
    """A run on an engine with a scheduler of its own, with the claim of its job there if that is known."""
    waits = run.state in (_RUN_WAITS, _RUN_PAUSED)
    return QueueEntry(
        name=run.name,
        user=run.subject,
        state=run.state,
        is_waiting=waits,
        size=run.job.accelerators.size,
        accelerator=run.job.accelerators.kind,
        project=run.job.project,
        priority=run.priority,
        pool=claim.pool if claim is not None else run.pool,
        devices=claim.devices if claim is not None else None,
        since=run.created_at if waits else run.started_at,
        time_limit_s=run.job.time_limit_s,
        reason=run.reason,
        run=run.id,
        claim=claim.id if claim is not None else None,
        idle=run.idle,
        array=run.array,
        labels=run.labels or None,
    )


def _seen(name: str) -> str:
    return "" if name == HIDDEN else name


def user_of(claim: ClaimBody, run: RunBody | None = None) -> str:
    """The user of a claim: of its run, else the one for whom a program claims."""
    if run is not None:
        return run.subject
    if claim.owner.startswith(_USER_OWNERS):
        return claim.owner.removeprefix(_USER_OWNERS)
    return claim.person or claim.subject


def _state(claim: ClaimBody, run: RunBody | None) -> str:
    if run is not None and (run.state != _RUN_WAITS or claim.state in _CLAIM_WAITS):
        return run.state
    if run is not None or claim.owner.startswith(_RUN_OWNERS):
        return _RUN_STATES.get(claim.state, claim.state)
    return claim.state


def _order(entry: QueueEntry) -> tuple[bool, bool, int, str, str]:
    return (entry.is_waiting, entry.position is None, entry.position or 0, entry.since or "~", entry.ident)
