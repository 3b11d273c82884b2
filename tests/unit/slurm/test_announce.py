"""Which waiting jobs the controller is told of: those that could start if there were a partition for them."""

from __future__ import annotations

from typing import Any

import pytest

from moorings.slurm.formats import JobRecord
from moorings.slurm.host.job_table import build_queue_payload, start_of
from moorings.slurm.host.preemption_rules import PreemptionRules, SlurmPartition
from tests.unit.slurm.test_ledger import HOME, a_job, by_id

TIERS = PreemptionRules(partitions={"normal": SlurmPartition(1, ""), "urgent": SlurmPartition(9, "")})


def waiting(job_id: int, reason: str, **more: Any) -> JobRecord:
    return a_job(job_id, "PENDING", reason=reason, **more)


def told(*jobs: JobRecord) -> list[int]:
    """The jobs that are told, in order."""
    request = build_queue_payload(by_id(*jobs), HOME, "", 120, TIERS.tier)
    starts = [start_of(job.owner) for job in request.jobs]
    return [start.job_id for start in starts if start is not None]


def test_behind_a_job_that_waits_for_ipus() -> None:
    assert told(waiting(1, "Licenses"), waiting(2, "Priority"), waiting(3, "Priority", priority=0)) == [1, 2, 3]


def test_not_behind_one_that_waits_for_nodes() -> None:
    assert told(waiting(1, "Resources"), waiting(2, "Priority")) == []
    assert told(waiting(2, "Priority")) == [], "a plain job before it is not in the listing"


@pytest.mark.parametrize("reason", ["None", ""])
def test_what_slurm_has_not_looked_at_yet_is_told(reason: str) -> None:
    assert told(waiting(1, reason)) == [1]
    assert told(waiting(1, "Resources"), waiting(2, reason)) == [2]


def test_not_before_the_job_that_waits_for_ipus() -> None:
    first, later = waiting(1, "Priority", priority=9), waiting(2, "Licenses", priority=5)
    assert told(first, later) == [2]
    assert told(waiting(1, "Priority"), waiting(2, "Licenses")) == [2], "of equals the one that came first is first"


def test_only_in_a_partition_of_its_own() -> None:
    licenses = waiting(1, "Licenses", partition="other", priority=9)
    assert told(licenses, waiting(2, "Priority", partition="normal")) == [1]
    assert told(licenses, waiting(2, "Priority", partition="normal,other")) == [1, 2]
    several = waiting(1, "Licenses", partition="other,normal")
    assert told(several, waiting(2, "Priority", partition="normal")) == [1, 2]


def test_in_a_partition_the_tier_of_another_one_counts_for_nothing() -> None:
    """In ``normal`` the second stands behind the first, though as a whole it comes before it, by its better tier."""
    licenses = waiting(1, "Licenses", priority=9)
    assert told(licenses, waiting(2, "Priority", partition="normal,urgent")) == [2, 1]


def test_only_a_waiting_job_of_ours_stands_before_others() -> None:
    assert told(a_job(1, reason="Licenses"), waiting(2, "Priority")) == []
    assert told(waiting(1, "Licenses", order=None), waiting(2, "Priority")) == []
