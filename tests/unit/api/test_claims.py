import asyncio
from dataclasses import replace

import httpx2
import pytest

from moorings.core.model.claims import ENDED, ClaimSpec, ClaimState, QueueMode
from moorings.wire.codec import decode
from moorings.wire.shapes import BindingBody, ClaimBody, ExplanationBody
from tests.unit.api.pretend import START, PretendController


async def create(api: httpx2.AsyncClient, **body: object) -> str:
    answer = await api.post("/v1/claims", json={"size": 4, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_a_claim_is_made_and_answered_as_its_wire_shape(api: httpx2.AsyncClient) -> None:
    answer = await api.post("/v1/claims", json={"size": 4, "name": "train", "timeLimitS": 60})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/claims/{answer.json()['id']}"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    body = decode(ClaimBody, answer.json())
    assert (body.name, body.owner, body.state, body.position) == ("train", "user/ann", "PENDING", 1)
    assert body.reason is not None
    assert body.reason.until == "2023-11-14T22:13:20.000005Z"
    assert answer.json()["apiVersion"] == "moorings/v1"
    assert (answer.json()["kind"], body.accelerator) == ("Claim", "ipu")
    assert "grantedAt" not in answer.json(), "absent fields are left out"


async def test_everything_in_the_request_reaches_the_controller(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    body = {
        "accelerator": "gpu",
        "size": 8,
        "gcds": 2,
        "replicasPerGcd": 2,
        "pool": "hgx",
        "name": "n",
        "owner": "user/ann/x",
        "resources": {"memory": 5},
        "project": "nlp",
        "priority": -3,
        "timeLimitS": 1.5,
        "preemptible": True,
        "checkpoint": {"resumable": True, "warnSignal": "USR2", "warnS": 1, "graceS": 2},
        "leaseS": 30,
        "queue": "never",
        "waitingSince": "2023-11-14T22:13:20Z",
        "person": "bob",
    }
    answer = await api.post("/v1/claims?wait=0.001&for=GRANTED", json=body, headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 201
    [(spec, name, owner, key, since, wait_s, until)] = controller.seen
    assert (name, owner, key, since, wait_s, until) == ("n", "user/ann/x", "k1", START, 0.001, "GRANTED")
    assert isinstance(spec, ClaimSpec)
    assert (spec.kind, spec.size, spec.gcds, spec.replicas_per_gcd, spec.pool) == ("gpu", 8, 2, 2, "hgx")
    assert (spec.project, spec.priority, spec.time_limit_s, spec.preemptible) == ("nlp", -3, 1.5, True)
    assert spec.checkpoint.warn_signal == "USR2"
    assert spec.queue is QueueMode.NEVER
    told = answer.json()
    assert {name: told[name] for name in body if name not in ("queue", "checkpoint", "waitingSince")} == {
        name: value for name, value in body.items() if name not in ("queue", "checkpoint", "waitingSince")
    }


async def test_the_same_idempotency_key_gives_the_same_claim(api: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "2b1d"}
    first = await api.post("/v1/claims", json={"size": 4}, headers=headers)
    second = await api.post("/v1/claims", json={"size": 4}, headers=headers)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"]


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\there"])
async def test_an_idempotency_key_that_cannot_be_kept_is_refused(api: httpx2.AsyncClient, key: str) -> None:
    answer = await api.post("/v1/claims", json={"size": 4}, headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["code"]) == (422, "key.invalid")


async def test_a_ready_claim_shows_its_partition_by_id_and_by_name(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    ident = await create(api, name="train")
    controller.grant(ident)
    for called in (ident, "train"):
        body = decode(ClaimBody, (await api.get(f"/v1/claims/{called}")).json())
        assert (body.state, body.partition, body.devices, body.pool) == ("READY", "train", "0-3", "pod16")
        assert body.ready_at == "2023-11-14T22:13:20.000001Z"


async def test_a_wait_is_answered_when_it_happens(api: httpx2.AsyncClient, controller: PretendController) -> None:
    ident = await create(api)
    waiting = asyncio.create_task(api.get(f"/v1/claims/{ident}?wait=10m&for=READY"))
    await controller.waits_begun.wait()
    controller.grant(ident)
    assert (await waiting).json()["state"] == "READY"


async def test_a_wait_that_ends_in_vain_answers_how_things_stand(api: httpx2.AsyncClient) -> None:
    ident = await create(api)
    answer = await api.get(f"/v1/claims/{ident}?wait=1ms")
    assert (answer.status_code, answer.json()["state"]) == (200, "PENDING")


async def test_releasing_a_claim_answers_with_it_and_may_be_repeated(api: httpx2.AsyncClient) -> None:
    ident = await create(api)
    for _ in range(2):
        answer = await api.delete(f"/v1/claims/{ident}?wait=5s")
        assert (answer.status_code, answer.json()["state"]) == (200, "RELEASED")


async def test_a_list_leaves_out_what_has_ended_unless_asked(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    idents = [await create(api) for _ in range(2)]
    await api.delete(f"/v1/claims/{idents[0]}")
    assert [item["id"] for item in (await api.get("/v1/claims")).json()["items"]] == idents[1:]
    assert [item["id"] for item in (await api.get("/v1/claims?all=true")).json()["items"]] == idents
    ended = (await api.get("/v1/claims?state=RELEASED&state=FAILED")).json()
    assert [item["id"] for item in ended["items"]] == idents[:1]
    assert (ended["apiVersion"], ended["kind"]) == ("moorings/v1", "ClaimList")
    asked = [seen[1] for seen in controller.seen[2:]]
    assert asked == [frozenset(ClaimState) - ENDED, None, {ClaimState.RELEASED, ClaimState.FAILED}]


async def test_filters_of_a_list_reach_the_controller(api: httpx2.AsyncClient, controller: PretendController) -> None:
    answer = await api.get("/v1/claims?ownerPrefix=slurm/alpha/&pool=pod16&limit=7&all=true")
    assert answer.json() == {"apiVersion": "moorings/v1", "kind": "ClaimList", "items": []}
    page, states, owner_prefix, pool = controller.seen[-1]
    assert (page.limit, states, owner_prefix, pool) == (8, None, "slurm/alpha/", "pod16")


async def test_a_lease_is_renewed_or_there_is_none(api: httpx2.AsyncClient) -> None:
    leased, plain = await create(api, leaseS=60), await create(api)
    answer = await api.post(f"/v1/claims/{leased}/renew")
    assert answer.json()["leaseUntil"] == "2023-11-14T22:14:20.000000Z"
    answer = await api.post(f"/v1/claims/{plain}/renew")
    assert (answer.status_code, answer.json()["code"]) == (409, "claim.no_lease")


async def test_explanation_and_binding_have_their_wire_shapes(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    ident = await create(api)
    answer = await api.get(f"/v1/claims/{ident}/explain")
    assert answer.json()["kind"] == "Explanation"
    assert decode(ExplanationBody, answer.json()).reasons[0].code == "claim.no_room"
    answer = await api.get(f"/v1/claims/{ident}/binding?wait=5s")
    assert controller.seen[-1] == ("binding", ident, 5.0), "what it waits for is the controller's to know"
    assert answer.json()["kind"] == "Binding"
    binding = decode(BindingBody, answer.json())
    assert binding.gcds[0].devices == ("pod16:0",)
    assert binding.api == {"IPUOF_VIPU_API_HOST": "vipu"}


async def test_whose_key_was_revoked_while_he_waited_gets_no_binding(
    api: httpx2.AsyncClient, controller: PretendController, monkeypatch: pytest.MonkeyPatch
) -> None:
    ident = await create(api)

    async def revoked(*_: object) -> None:
        controller.keys.clear()

    monkeypatch.setattr(controller, "wait_for_binding", revoked)
    answer = await api.get(f"/v1/claims/{ident}/binding?wait=5s")
    assert answer.status_code == 401
    assert answer.json()["code"] == "auth.invalid"


async def test_a_claim_nobody_made_is_unknown(api: httpx2.AsyncClient) -> None:
    answer = await api.get("/v1/claims/claim-0")
    assert (answer.status_code, answer.json()["code"]) == (404, "claim.unknown")


async def test_a_claim_that_holds_a_partition_is_not_released_if_only_waiting_is_said(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    ident = await create(api)
    controller.claims = {known: replace(claim, state=ClaimState.READY) for known, claim in controller.claims.items()}
    answer = await api.delete(f"/v1/claims/{ident}?onlyWaiting=true")
    assert (answer.status_code, answer.json()["code"]) == (409, "claim.held")
    assert (await api.delete(f"/v1/claims/{ident}?onlyWaiting=false")).json()["state"] == "RELEASED"
    assert (await api.delete(f"/v1/claims/{ident}?onlyWaiting=perhaps")).json()["code"] == "page.invalid"
