"""Jobs of runs as reports and listings carry them: the wire's form of what Slurm shows."""

from __future__ import annotations

from moorings.slurm.engine.submission import parse_run_comment
from moorings.slurm.formats import AccountedJob, JobRecord, SlurmJobPhase
from moorings.wire.codec import format_time
from moorings.wire.shapes import SlurmJobShape


def listed_job_shape(job: JobRecord) -> SlurmJobShape | None:
    """A listed job; None: its comment names no run."""
    named = parse_run_comment(job.comment)
    if named is None:
        return None
    has_ended = job.phase is SlurmJobPhase.ENDED and job.end_time is not None
    return SlurmJobShape(
        run=named[0],
        attempt=named[1],
        job=job.job_id,
        uid=job.uid,
        state=job.state,
        reason=job.reason,
        restarts=job.restarts,
        exit_code=job.status[0],
        exit_signal=job.status[1],
        started=bool(job.nodes),
        ended_at=format_time(job.end_time) if has_ended and job.end_time is not None else None,
    )


def past_job_shape(job: AccountedJob, run: str, attempt: int, uid: int) -> SlurmJobShape | None:
    """An ended job in the accounting, of that run and user; None: it has not ended."""
    if job.ended is None:
        return None
    return SlurmJobShape(
        run=run,
        attempt=attempt,
        job=job.job_id,
        uid=uid,
        state=job.state,
        exit_code=job.status[0],
        exit_signal=job.status[1],
        started=job.started is not None,
        ended_at=format_time(job.ended),
    )
