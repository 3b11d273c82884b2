"""A claim for a Slurm job names the job's user, unless users must not see others' jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.job_table import ClusterIdentity, request_for
from moorings.wire.shapes import ClaimBody, ClaimRequest
from tests.cases import cases
from tests.unit.slurm.test_berths import JOB, OWNER, Controller, make

HOME = ClusterIdentity("lab", "00ff00ff00ff00ff")


@cases(
    ("user", "is_private", "person"),
    [("ann", False, "ann"), ("ann", True, None), ("", False, None), ("LAB\\ann", False, None)],
)
def test_a_claim_names_its_jobs_user(user: str, is_private: bool, person: str | None) -> None:
    assert request_for(replace(JOB, user=user), HOME, "", is_private=is_private).person == person


def test_before_privatedata_is_known_no_user_is_named() -> None:
    assert request_for(replace(JOB, user="ann"), HOME, "").person is None


class EarlierController(Controller):
    """Of a release in which a claim has no person."""

    def create_claim(self, request: ClaimRequest, key: str) -> ClaimBody:
        if request.person is not None:
            raise MooringsError("body.invalid", "person: extra inputs are not permitted")
        return super().create_claim(request, key)


@pytest.mark.anyio
async def test_an_earlier_controller_gets_no_field_that_it_does_not_know() -> None:
    table, _ = make(EarlierController())
    table.is_private = False
    await table.get_binding(replace(JOB, user="ann"))
    assert table.claims[OWNER].id == "claim-0"
