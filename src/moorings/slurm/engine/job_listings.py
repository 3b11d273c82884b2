"""What is known of jobs that people submit to Slurm themselves: the agents' last listings, and the people's own.

A listing is old after a few seconds. Only the agent that has listed a job before can say that it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.ports.personal import ListedJob
from moorings.slurm.engine.run_folder import SlurmAttempt, SlurmAttemptState
from moorings.workloads.runs import RunId

LISTING_S = 20.0  # for so long an agent's listing counts
OWN_LISTING_S = 90.0  # and a person's own, which is made less often
SETTLE_S = 10.0  # after a person's word of an end, for an agent's


@dataclass(frozen=True, slots=True)
class AgentListing:
    """The jobs of runs, as one agent listed them at one moment."""

    at: Timestamp
    uids: frozenset[int]
    by_attempt: Mapping[tuple[RunId, int, int], Sequence[ListedJob]]  # run, attempt, uid


@dataclass(frozen=True, slots=True)
class FollowedAttempt:
    """The newest attempt of a run that is looked at, and the state in its copy."""

    attempt: SlurmAttempt
    state: SlurmAttemptState
    uid: int
    seen_by: str  # the agent that has listed its job: queue and instance; empty: none has


@dataclass(slots=True)
class JobListings:
    """The newest word on each job.

    Attributes:
        by_agent: its last listing.
        own: what a run's person has listed last, and since when that is known.
        looked_up: jobs that an agent has looked up in the accounting, by its name and the job's id.
    """

    by_agent: dict[str, AgentListing] = field(default_factory=dict)
    own: dict[RunId, tuple[Timestamp, ListedJob]] = field(default_factory=dict)
    looked_up: dict[tuple[str, int], ListedJob] = field(default_factory=dict)

    def add_own(self, run: RunId, job: ListedJob, now: Timestamp) -> None:
        """Take in a person's own word; an end counts from when it was said first."""
        before = self.own.get(run)
        is_over = job.ended_at is not None or not job.state
        since = before[0] if is_over and before is not None and before[1] == job else now
        self.own[run] = since, job

    def add_listing(
        self, agent: str, uids: Sequence[int], jobs: Sequence[ListedJob], past: Sequence[ListedJob], now: Timestamp
    ) -> None:
        """Take in an agent's complete listing of the jobs of these users, and jobs that it has looked up."""
        by_attempt: dict[tuple[RunId, int, int], list[ListedJob]] = {}
        for job in jobs:
            by_attempt.setdefault((job.run, job.attempt, job.uid), []).append(job)
        self.by_agent[agent] = AgentListing(now, frozenset(uids), by_attempt)
        self.looked_up |= {(agent, job.job_id): job for job in past}

    def forget(self, run: RunId, each: FollowedAttempt | None) -> None:
        """Forget the jobs of a run that has ended."""
        self.own.pop(run, None)
        if each is not None and each.state.job is not None:
            self.looked_up.pop((each.seen_by, each.state.job), None)

    def find(self, run: RunId, each: FollowedAttempt, now: Timestamp) -> tuple[str, ListedJob | None]:
        """The job of an attempt, and the agent that lists it; no agent: its person has listed it."""
        for agent, listing in self.by_agent.items():
            if seconds_between(listing.at, now) > LISTING_S:
                continue
            jobs = listing.by_attempt.get((run, each.attempt.number, each.uid), ())
            for job in jobs:
                if each.state.job in (None, job.job_id) or len(jobs) == 1:
                    return agent, job
        own = self.own.get(run)
        if own is None or own[1].attempt != each.attempt.number:
            return "", None
        if own[1].ended_at is not None or not own[1].state:
            is_awaited = seconds_between(own[0], now) < SETTLE_S and self.has_fresh(each.uid, now)
            return "", own[1] if not is_awaited else None  # an agent's word has the id of the job, too
        # Its person looks seldom: what the job itself says of its start is newer.
        is_current = seconds_between(own[0], now) <= OWN_LISTING_S and not each.state.began
        return "", own[1] if is_current else None

    def has_fresh(self, uid: int, now: Timestamp) -> bool:
        """Whether some agent lists this user's jobs now."""
        return any(uid in one.uids for one in self.by_agent.values() if seconds_between(one.at, now) <= LISTING_S)

    def is_missing(self, each: FollowedAttempt, now: Timestamp) -> bool:
        """Whether the agent that has listed the job before has listed this user's since, without it."""
        listing = self.by_agent.get(each.seen_by)
        fresh = listing is not None and seconds_between(listing.at, now) <= LISTING_S
        return fresh and listing is not None and each.uid in listing.uids
