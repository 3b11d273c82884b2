"""An access key that expires ends requests and streams, and nothing that its subject has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from moorings.api.application import make_application
from moorings.core.model.access import Role
from moorings.core.model.claims import ClaimState
from moorings.core.model.timestamps import DAY_S, Timestamp, add_seconds
from moorings.workloads.runs import RunState
from tests.e2e.rig import ADMIN, QuickClock, Rig, job, running
from tests.waiting import patient


class JumpingClock(QuickClock):
    """A clock that jumps ahead when it is told to."""

    ahead_s = 0.0

    def now(self) -> Timestamp:
        return add_seconds(super().now(), self.ahead_s)


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def rig(tmp_path: Path, clock: JumpingClock):
    async with running(tmp_path, clock=clock) as made:
        yield made


def as_(rig: Rig, secret: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=make_application(rig.controller)),
        base_url="http://moorings",
        headers={"Authorization": f"Bearer {secret}"},
        timeout=patient(60),
    )


async def test_an_expired_key_ends_no_claim_and_no_run_and_its_subject_s_next_key_releases_them(
    rig: Rig, clock: JumpingClock
) -> None:
    key, first = await rig.controller.create_key(ADMIN, "ann", Role.USER, None, DAY_S)
    async with as_(rig, first) as api:
        held = (await api.post("/v1/claims?wait=20s", json={"size": 4})).json()
        caller = await rig.controller.authenticate(first)
        run = await rig.controller.runs.create_run(caller, job("sleep", "600"), key="k")
        await rig.until(lambda: rig.assembly.loop.runs.by_id[run.run.id].state is RunState.RUNNING)
        waits = (await api.post("/v1/claims", json={"size": 16})).json()
        clock.ahead_s = 2 * DAY_S
        refused = await api.delete(f"/v1/claims/{held['id']}")
        assert (refused.status_code, refused.json().get("code")) == (401, "auth.expired")
    await asyncio.sleep(0.5)  # some turns, and looks at the hardware
    claims = rig.fleet.claims
    assert (claims[held["id"]].state, claims[waits["id"]].state) == (ClaimState.READY, ClaimState.PENDING)
    assert rig.assembly.loop.runs.by_id[run.run.id].state is RunState.RUNNING
    assert held["partition"] in await rig.hardware()
    _, second = await rig.controller.rotate_key(ADMIN, "", key.id)
    async with as_(rig, second) as api:
        assert (await api.delete(f"/v1/claims/{waits['id']}")).status_code == 200
        assert (await api.post(f"/v1/runs/{run.run.id}/cancel?wait=20s")).json()["state"] == "CANCELLED"
        released = await api.delete(f"/v1/claims/{held['id']}?wait=20s")
        assert released.json()["state"] == "RELEASED"
    await rig.nothing_left()


async def test_a_lease_is_renewed_with_a_key_that_has_expired_but_with_no_revoked_or_replaced_one(
    rig: Rig, clock: JumpingClock
) -> None:
    key, secret = await rig.controller.create_key(ADMIN, "ann", Role.USER, None, 600)
    async with as_(rig, secret) as api:
        claim = (await api.post("/v1/claims?wait=20s", json={"size": 1, "leaseS": 3600})).json()
        for clock.ahead_s in (3000.0, 6000.0):
            assert (await api.post(f"/v1/claims/{claim['id']}/renew")).status_code == 200
        assert rig.fleet.claims[claim["id"]].state is ClaimState.READY
        assert (await api.get(f"/v1/claims/{claim['id']}")).json().get("code") == "auth.expired"
        _, fresh = await rig.controller.rotate_key(ADMIN, "", key.id)
        assert (await api.post(f"/v1/claims/{claim['id']}/renew")).json().get("code") == "auth.expired"
    async with as_(rig, fresh) as api:
        assert (await api.post(f"/v1/claims/{claim['id']}/renew")).status_code == 200
        await rig.controller.revoke_key(ADMIN, key.id)
        assert (await api.post(f"/v1/claims/{claim['id']}/renew")).json().get("code") == "auth.invalid"
    await rig.controller.release_claim(ADMIN, claim["id"], wait_s=patient(20))


async def test_a_holder_rotates_over_the_api_and_the_doctor_warns_in_time(rig: Rig, clock: JumpingClock) -> None:
    key, first = await rig.controller.create_key(ADMIN, "ann", Role.USER, None, 30 * DAY_S)

    async def warned() -> tuple[str, str]:
        (finding,) = [one for one in (await rig.controller.run_doctor(ADMIN)).items if one.id == "keys"]
        return finding.verdict, finding.evidence

    assert (await warned())[0] == "PASS"
    clock.ahead_s = 20 * DAY_S
    verdict, evidence = await warned()
    assert verdict == "WARN"
    assert f"{key.id} (user ann) in 9d" in evidence
    async with as_(rig, first) as api:
        answer = await api.post(f"/v1/keys/{key.id}/rotate", json={"graceS": 0})
        assert answer.status_code == 200
        assert (await api.get("/v1/pools")).json().get("code") == "auth.expired"
    assert (await warned())[0] == "PASS"
    async with as_(rig, answer.json()["secret"]) as api:
        assert (await api.get("/v1/pools")).headers["moorings-key-expires"] == answer.json()["expiresAt"]
    clock.ahead_s = 51 * DAY_S
    assert await warned() == ("PASS", f"no access key expires within 14 days; expired of late: {key.id} (ann)")
