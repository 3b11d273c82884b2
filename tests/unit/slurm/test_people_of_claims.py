"""A claim for a Slurm job names the job's user, unless users must not see others' jobs."""

from __future__ import annotations

from dataclasses import replace

from moorings.slurm.host.job_table import ClusterIdentity, request_for
from tests.cases import cases
from tests.unit.slurm.test_berths import JOB

HOME = ClusterIdentity("lab", "00ff00ff00ff00ff")


@cases(
    ("user", "is_private", "person"),
    [("ann", False, "ann"), ("ann", True, None), ("", False, None), ("LAB\\ann", False, None)],
)
def test_a_claim_names_its_jobs_user(user: str, is_private: bool, person: str | None) -> None:
    assert request_for(replace(JOB, user=user), HOME, "", is_private=is_private).person == person


def test_before_privatedata_is_known_no_user_is_named() -> None:
    assert request_for(replace(JOB, user="ann"), HOME, "").person is None
