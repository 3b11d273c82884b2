"""Projects, quotas and estimates over HTTP, and what of them is not for everybody."""

import json
from dataclasses import replace

import httpx2
import pytest

from moorings.api.bodies import POLICY_CHARS_MAX
from moorings.api.render import event_body
from moorings.controller.turn_record import AnyInput, TurnContext, build_turn_event
from moorings.core.model.claims import ClaimId, ClaimSpec, ClaimState
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.inputs import DefragmentPool, ReleaseClaim, SetProject
from moorings.core.model.owners import HIDDEN
from moorings.core.model.policy import DEFAULT_POLICY, DefragmentMode, Policy
from moorings.core.model.projects import Project, ProjectShare, UserLimit
from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.core.placement.plans import SchedulePlan
from moorings.ports.store import EventRow, Seq
from moorings.wire.codec import decode
from moorings.wire.forecasts import (
    DefragmentBody,
    MoveBody,
    WhatIfAskedBody,
    WhatIfBody,
    WhatIfClaimBody,
    WhatIfSideBody,
)
from moorings.wire.shapes import ClaimBody, EstimateBody, ExplanationBody, ProjectBody, QuotaBody, ShareShape
from tests.unit.api.pretend import ADMIN, KEYS, START, USER, PretendController

AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}
VISION = {
    "shares": [{"pool": "pod16", "blocks": {"4": 2, "1": 3}}],
    "weight": 2,
    "devicesMax": 12,
    "userDevicesMax": 8,
    "priorityMax": 30,
    "waitingMax": 500,
    "waitingBytesMax": 1 << 26,
    "members": ["ann", "bob"],
    "aliases": ["slurm/alpha/vision"],
    "userLimits": {"bob": 0, "ann": 12},
}


async def test_a_project_with_slashes_in_its_name_is_made_shown_and_deleted(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    made = await api.put("/v1/projects/lab/vision", json=VISION, headers=AS_ADMIN)
    assert (made.status_code, made.json()["kind"]) == (200, "Project")
    asked = Project(
        name="lab/vision",
        shares=(ProjectShare(controller.pool.name, ((1, 3), (4, 2))),),
        weight=2.0,
        devices_max=12,
        user_devices_max=8,
        priority_max=30,
        waiting_max=500,
        waiting_bytes_max=1 << 26,
        members=("ann", "bob"),
        aliases=("slurm/alpha/vision",),
        user_limits=(UserLimit("ann", 12), UserLimit("bob", 0)),
    )
    assert controller.seen[-1] == (asked, None)
    shown = await api.get("/v1/projects/lab%2Fvision", headers=AS_ADMIN)
    assert decode(ProjectBody, shown.json()) == ProjectBody(
        name="lab/vision",
        shares=(ShareShape(pool="pod16", blocks={"1": 3, "4": 2}),),
        weight=2.0,
        version=1,
        devices_max=12,
        user_devices_max=8,
        priority_max=30,
        waiting_max=500,
        waiting_bytes_max=1 << 26,
        members=("ann", "bob"),
        aliases=("slurm/alpha/vision",),
        user_limits={"ann": 12, "bob": 0},
    )
    assert (await api.delete("/v1/projects/lab/vision", headers=AS_ADMIN)).status_code == 204
    assert (await api.get("/v1/projects/lab/vision")).json()["code"] == "project.unknown"


async def test_a_change_says_which_version_it_is_of(api: httpx2.AsyncClient, controller: PretendController) -> None:
    await api.put("/v1/projects/lab", json={"version": 3}, headers=AS_ADMIN)
    assert controller.seen[-1] == (Project(name="lab"), 3)


async def test_members_are_for_admins_and_others_see_whether_there_are_any(api: httpx2.AsyncClient) -> None:
    await api.put("/v1/projects/lab", json={"members": ["bob"]}, headers=AS_ADMIN)
    await api.put("/v1/projects/open", json={}, headers=AS_ADMIN)
    for address in ("/v1/projects/lab", "/v1/projects"):
        assert "bob" not in (await api.get(address)).text
        assert "bob" in (await api.get(address, headers=AS_ADMIN)).text
    told = [(item["name"], item["members"]) for item in (await api.get("/v1/projects")).json()["items"]]
    assert told == [("lab", [HIDDEN]), ("open", [])]


async def test_a_user_sees_its_own_limit_and_whether_others_have_one(api: httpx2.AsyncClient) -> None:
    reader = KEYS[USER].subject
    for limits, most, shown in (
        ({"bob": 3}, 4, {reader: 4}),
        ({"bob": 3, reader: 0}, 4, {reader: 0}),
        ({"bob": 3}, None, None),
    ):
        name = f"lab{len(limits)}{most}"
        whole = {"userLimits": limits, "userDevicesMax": most}
        await api.put(f"/v1/projects/{name}", json=whole, headers=AS_ADMIN)
        answer = (await api.get(f"/v1/projects/{name}")).json()
        assert (answer.get("userLimits"), answer["userLimitsHidden"]) == (shown, True)
        answer = (await api.get(f"/v1/projects/{name}", headers=AS_ADMIN)).json()
        assert (answer["userLimits"], answer.get("userLimitsHidden")) == (limits, None)
    await api.put("/v1/projects/open", json={"userDevicesMax": 4}, headers=AS_ADMIN)
    assert {"userLimits", "userLimitsHidden"}.isdisjoint((await api.get("/v1/projects/open")).json())


async def test_only_admins_change_projects(api: httpx2.AsyncClient) -> None:
    for answer in (await api.put("/v1/projects/lab", json={}), await api.delete("/v1/projects/lab")):
        assert (answer.status_code, answer.json()["code"]) == (403, "auth.denied")


@pytest.mark.parametrize(
    "body",
    [
        {"weight": 0},
        {"weight": 1e7},
        {"shares": [{"pool": "pod16", "blocks": {}}]},
        {"shares": [{"pool": "pod16", "blocks": {"04": 1}}]},
        {"shares": [{"pool": "pod16", "blocks": {"four": 1}}]},
        {"shares": [{"pool": "pod16", "blocks": {"4": 0}}]},
        {"shares": [{"pool": "pod16"}]},
        {"members": ["a" * 121]},
        {"members": ["a\0"]},
        {"aliases": ["slurm/a/b"] * 257},
        {"userLimits": {"a" * 121: 1}},
        {"userLimits": {"a\0": 1}},
        {"userLimits": {"ann": "4"}},
        {"userLimits": {"ann": None}},
        {"userLimits": ["ann"]},
        {"name": "lab"},
    ],
    ids=json.dumps,
)
async def test_a_body_out_of_bounds_is_refused(
    api: httpx2.AsyncClient, controller: PretendController, body: object
) -> None:
    answer = await api.put("/v1/projects/lab", json=body, headers=AS_ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (422, "body.invalid")
    assert controller.projects.list_projects(KEYS[ADMIN]) == []


async def test_projects_and_quotas_are_listed_page_by_page(api: httpx2.AsyncClient) -> None:
    names = ["a", "a-b", "a.b", "a/b", "a/b/c", "ab"]
    for name in reversed(names):
        await api.put(f"/v1/projects/{name}", json={}, headers=AS_ADMIN)
    for kind, field in (("projects", "name"), ("quotas", "project")):
        page = (await api.get(f"/v1/{kind}?limit=2")).json()
        seen = [item[field] for item in page["items"]]
        while "continue" in page:
            page = (await api.get(f"/v1/{kind}?limit=2&continue={page['continue']}")).json()
            seen += [item[field] for item in page["items"]]
        assert seen == names


async def test_a_quota_is_told_in_devices_and_in_blocks(api: httpx2.AsyncClient) -> None:
    await api.put("/v1/projects/lab", json={}, headers=AS_ADMIN)
    (item,) = (await api.get("/v1/quotas")).json()["items"]
    assert decode(QuotaBody, item) == QuotaBody(
        project="lab",
        pool="pod16",
        guaranteed=8,
        blocks={"4": 2},
        held=4,
        borrowed=0,
        waiting=0,
        waiting_devices=0,
        used_device_hours=1.235,
        weight=1.0,
    )


async def test_an_estimate_asks_for_what_a_claim_would(api: httpx2.AsyncClient, controller: PretendController) -> None:
    asked = {"size": 4, "pool": "pod16", "gcds": 2, "project": "lab", "priority": 3, "timeLimitS": 60}
    answer = await api.post("/v1/estimate", json={**asked, "preemptible": True})
    why = "1 claim that holds devices has no time limit"
    assert decode(EstimateBody, answer.json()) == EstimateBody(starts_now=False, why=why)
    spec = ClaimSpec(
        kind="ipu",
        size=4,
        gcds=2,
        pool=controller.pool.name,
        project="lab",
        priority=3,
        time_limit_s=60.0,
        preemptible=True,
    )
    assert controller.seen[-1] == ("estimate", spec)


async def test_another_policy_is_compared(api: httpx2.AsyncClient, controller: PretendController) -> None:
    await api.post("/v1/claims", json={"size": 4})
    [claim] = controller.claims.values()
    answer = await api.post("/v1/whatif", json={"policy": 'defragment = "on"'})
    assert controller.seen[-1] == ("whatif", replace(DEFAULT_POLICY, defragment=DefragmentMode.ON))
    found = decode(WhatIfBody, answer.json())
    assert found.claims == (
        WhatIfClaimBody(
            claim=claim.id,
            name=claim.name,
            project=claim.spec.project,
            size=claim.spec.size,
            then_at="2023-11-14T22:14:20.000000Z",
        ),
    )
    asked = WhatIfAskedBody(claim=claim.id, name=claim.name, project=claim.spec.project, yields=0, moves=1)
    assert found.now == WhatIfSideBody(yields=0, moves=0, utilisation=0.5)
    assert found.then == WhatIfSideBody(yields=0, moves=1, utilisation=0.75, asked=(asked,))


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("\nreserve = 3", "policy.invalid", "policy:2: reserve"),
        ("#" * (POLICY_CHARS_MAX + 1), "body.invalid", "policy"),
    ],
)
async def test_a_policy_that_cannot_be_read_is_refused(
    api: httpx2.AsyncClient, controller: PretendController, text: str, code: str, told: str
) -> None:
    answer = await api.post("/v1/whatif", json={"policy": text})
    assert (answer.status_code, answer.json()["code"], told in answer.json()["detail"]) == (422, code, True)
    assert controller.seen == []


async def test_room_is_told_to_all_and_made_for_admins(api: httpx2.AsyncClient, controller: PretendController) -> None:
    await api.post("/v1/claims", json={"size": 4})
    [claim] = controller.claims.values()
    told = await api.post("/v1/defragment", json={"size": 8, "pool": "pod16", "dryRun": True})
    assert controller.seen[-1] == (DefragmentPool(size=8, pool=controller.pool.name), True)
    moved = MoveBody(claim=claim.id, name=claim.name, project=claim.spec.project, devices="8-11", to="0-3")
    expected = DefragmentBody(pool="pod16", devices="8-15", cost_s=480.0, moves=(moved,))
    assert decode(DefragmentBody, told.json()) == expected
    asked = {"claim": "big", "costMaxS": 60}
    refused = await api.post("/v1/defragment", json=asked)
    assert (refused.status_code, refused.json()["code"]) == (403, "auth.denied")
    done = await api.post("/v1/defragment", json=asked, headers=AS_ADMIN)
    assert done.status_code == 200
    assert controller.seen[-1] == (DefragmentPool(claim=ClaimId("big"), cost_max=60.0), False)


@pytest.mark.parametrize("body", [{}, {"size": 8, "claim": "big"}])
async def test_room_is_made_for_a_size_or_a_claim(api: httpx2.AsyncClient, body: dict[str, object]) -> None:
    answer = await api.post("/v1/defragment", json={**body, "dryRun": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "claim.size_not_allowed")


# -- claims


async def a_claim(api: httpx2.AsyncClient) -> ClaimBody:
    return decode(ClaimBody, (await api.post("/v1/claims", json={"size": 4, "preemptible": True})).json())


async def test_an_explanation_tells_when_only_if_it_was_asked(api: httpx2.AsyncClient) -> None:
    claim = await a_claim(api)
    plainly = decode(ExplanationBody, (await api.get(f"/v1/claims/{claim.id}/explain")).json())
    assert plainly.estimate is None
    asked = decode(ExplanationBody, (await api.get(f"/v1/claims/{claim.id}/explain?when=true")).json())
    assert asked.estimate == EstimateBody(starts_now=False, starts_at="2023-11-14T22:14:20.000000Z")


async def test_a_claim_tells_its_cell_and_by_when_it_was_asked(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    claim = await a_claim(api)
    assert (claim.cell, claim.asked_until, claim.attempt, claim.preemptible) == (None, None, 0, True)
    controller.grant(claim.id)
    held = replace(controller.claims[claim.id], cell=Block.parse("0-7"), asked_until=START)
    controller.claims[claim.id] = replace(held, state=ClaimState.RECLAIMING)
    seen = decode(ClaimBody, (await api.get(f"/v1/claims/{claim.id}")).json())
    assert (seen.cell, seen.asked_until) == ("0-7", "2023-11-14T22:13:20.000000Z")


async def test_a_claim_yields_when_it_was_asked_to(api: httpx2.AsyncClient, controller: PretendController) -> None:
    claim = await a_claim(api)
    refused = await api.post(f"/v1/claims/{claim.id}/yield", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "claim.not_asked")
    controller.claims[claim.id] = replace(controller.claims[claim.id], state=ClaimState.RECLAIMING)
    answer = await api.post(f"/v1/claims/{claim.id}/yield", json={"why": "saved"})
    assert (answer.status_code, answer.json()["state"]) == (200, "YIELDING")
    assert controller.seen[-1] == ("yield", "saved")


@pytest.mark.parametrize(
    ("body", "at"), [({}, None), ({"at": "2023-11-14T22:13:20Z"}, START)], ids=["now", "at a time"]
)
async def test_a_checkpoint_is_told(
    api: httpx2.AsyncClient, controller: PretendController, body: object, at: Timestamp | None
) -> None:
    claim = await a_claim(api)
    answer = await api.post(f"/v1/claims/{claim.id}/checkpoint", json=body)
    assert answer.status_code == 200
    assert controller.seen[-1] == ("checkpoint", at)


async def test_a_checkpoint_at_no_time_is_refused(api: httpx2.AsyncClient) -> None:
    claim = await a_claim(api)
    answer = await api.post(f"/v1/claims/{claim.id}/checkpoint", json={"at": "yesterday"})
    assert (answer.status_code, answer.json()["code"]) == (422, "claim.invalid")


# -- the log


def test_the_log_hides_members_from_all_but_admins() -> None:
    project = Project(name="lab", members=("bob",), user_limits=(UserLimit("bob", 3),))
    occasion = TurnContext(START, START, Policy())
    given: list[AnyInput] = [SetProject(project, None), ReleaseClaim(ClaimId("claim-1"), "done")]
    events = [
        Event(name="project.set", at=START, data=canonical_json({"project": "lab", "is": to_plain(project)})),
        build_turn_event(occasion, given, SchedulePlan((), ())),
        Event(name="project.deleted", at=START, data=canonical_json({"project": "lab", "is": {}})),
    ]
    rows = [EventRow(Seq(number), event) for number, event in enumerate(events)]
    hidden, shown = ([event_body(row, KEYS[key]).data for row in rows] for key in (USER, ADMIN))
    assert ["bob" in json.dumps(data) for data in hidden] == [False, False, False]
    assert [json.dumps(data).count(HIDDEN) for data in hidden] == [2, 2, 0]
    assert ["bob" in json.dumps(data) for data in shown] == [True, True, False]
