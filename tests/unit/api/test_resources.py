import inspect
from dataclasses import replace

import httpx2
import pytest

from moorings.api.render import run_body
from moorings.controller.projects import ProjectService
from moorings.controller.run_service import RunService
from moorings.controller.service import Controller
from moorings.controller.views import RunView
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.testing.builders import a_job
from moorings.wire.codec import decode, format_time
from moorings.wire.shapes import CapacityBody, ClaimBody, DeviceBody, KeyBody, PartitionBody, PoolBody, RunBody
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.jobs import JobSpec, summarize_job
from moorings.workloads.runs import Run, RunId, RunPause, RunState
from tests.cases import cases
from tests.unit.api.pretend import ADMIN, START, USER, PretendController, PretendProjects, PretendRuns

AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}
JOB = {"name": "digits", "command": ["python3", "train.py"], "workdir": "/home/ann"}


# -- partitions


async def test_a_partition_made_by_hand_is_a_claim_of_the_caller(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    answer = await api.post("/v1/partitions", json={"name": "p4", "size": 4}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201
    claim = decode(ClaimBody, answer.json())
    assert (claim.name, claim.owner) == ("p4", "user/ann")
    assert answer.headers["location"] == f"/v1/claims/{claim.id}"
    controller.grant(claim.id)
    answer = await api.get("/v1/partitions/p4")
    assert decode(PartitionBody, answer.json()).devices == "0-3"
    assert (await api.post("/v1/partitions/p4/reset")).json()["state"] == "RESETTING"
    assert (await api.delete("/v1/partitions/p4?wait=1s")).json()["state"] == "RELEASED"
    assert (await api.get("/v1/partitions/p4")).json()["code"] == "partition.unknown"
    assert (await api.delete("/v1/partitions/p4")).json()["code"] == "partition.unknown"


async def test_partitions_are_listed_by_address_page_by_page(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    for number in range(12):
        made = await api.post("/v1/partitions", json={"name": f"p{number}", "size": 1})
        controller.grant(made.json()["id"])
    page = (await api.get("/v1/partitions?limit=5")).json()
    seen = [item["devices"] for item in page["items"]]
    while "continue" in page:
        assert len(page["items"]) == 5
        page = (await api.get(f"/v1/partitions?limit=5&continue={page['continue']}")).json()
        seen += [item["devices"] for item in page["items"]]
    assert seen == [str(number) for number in range(12)]
    assert (await api.get("/v1/partitions?pool=pod16&limit=1000")).json()["items"] != []
    assert (await api.get("/v1/partitions?pool=nope")).json()["code"] == "pool.unknown"


# -- pools and devices


async def test_a_pool_says_how_it_is_wired_and_what_is_free(api: httpx2.AsyncClient) -> None:
    answer = await api.get("/v1/pools/pod16")
    pool = decode(PoolBody, answer.json())
    assert (pool.topology.type, pool.topology.max_block, pool.devices, pool.free) == ("power-of-two", 16, 16, 12)
    assert pool.available == {"1": 12, "8": 1}
    listed = (await api.get("/v1/pools")).json()
    assert listed["kind"] == "PoolList"
    assert [item["name"] for item in listed["items"]] == ["pod16"]
    assert (await api.get("/v1/pools/nope")).json()["code"] == "pool.unknown"


async def test_capacity_needs_a_size(api: httpx2.AsyncClient) -> None:
    answer = await api.get("/v1/pools/pod16/capacity?size=8")
    assert decode(CapacityBody, answer.json()) == CapacityBody(pool="pod16", size=8, partitions=1, free=12, largest=8)
    answer = await api.get("/v1/pools/pod16/capacity")
    assert (answer.status_code, answer.json()["code"]) == (422, "page.invalid")


async def test_devices_are_listed_drained_and_resumed(api: httpx2.AsyncClient) -> None:
    first = (await api.get("/v1/devices?limit=10")).json()
    rest = (await api.get(f"/v1/devices?limit=10&continue={first['continue']}")).json()
    assert [item["index"] for item in first["items"] + rest["items"]] == list(range(16))
    assert "since" not in first["items"][0]
    denied = await api.post("/v1/devices/pod16:3/drain", json={"reason": "fan"})
    assert (denied.status_code, denied.json()["code"]) == (403, "auth.denied")
    drained = await api.post("/v1/devices/pod16:3/drain", json={"reason": "fan"}, headers=AS_ADMIN)
    device = decode(DeviceBody, drained.json())
    assert (device.state, device.reason, device.since) == ("DRAINED", "fan", "2023-11-14T22:13:20.000000Z")
    assert (await api.get("/v1/devices/pod16:3")).json()["state"] == "DRAINED"
    assert (await api.post("/v1/devices/pod16:3/resume", headers=AS_ADMIN)).json()["state"] == "IN_SERVICE"


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "x" * 501}])
async def test_a_drain_needs_a_reason(api: httpx2.AsyncClient, body: dict[str, str]) -> None:
    answer = await api.post("/v1/devices/pod16:3/drain", json=body, headers=AS_ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (422, "body.invalid")
    assert "body.reason" in answer.json()["detail"]


# -- runs


async def test_a_job_reaches_the_controller_whole(api: httpx2.AsyncClient, controller: PretendController) -> None:
    job = {
        **JOB,
        "environment": {"PATH": "/bin"},
        "tasks": 2,
        "accelerators": {"kind": "ipu", "size": 4, "replicas": 2, "pool": "pod16"},
        "resources": {"cpus": 2, "memoryBytes": 1 << 30, "nodes": 1},
        "checkpoint": {"resumable": True},
        "checkpointDirectory": "/home/ann/ckpt",
    }
    answer = await api.post("/v1/runs", json={"job": job}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/runs/{answer.json()['id']}"
    body = decode(RunBody, answer.json())
    assert (answer.json()["kind"], body.state, body.subject, body.position) == ("Run", "WAITING", "ann", 1)
    spec, engine, key = controller.seen[-1]
    assert isinstance(spec, JobSpec)
    assert (engine, key) == ("local", "k")
    assert (spec.command, spec.tasks, spec.accelerators.replicas) == (("python3", "train.py"), 2, 2)
    assert spec.resources.memory_bytes == 1 << 30
    assert body.job.command == ("python3", "train.py")
    assert body.job.checkpoint_directory == "/home/ann/ckpt"


async def test_a_run_is_listed_cancelled_and_shown(api: httpx2.AsyncClient) -> None:
    ident = (await api.post("/v1/runs", json={"job": JOB})).json()["id"]
    assert [item["id"] for item in (await api.get("/v1/runs")).json()["items"]] == [ident]
    cancelled = (await api.post(f"/v1/runs/{ident}/cancel?wait=5s")).json()
    assert (cancelled["state"], cancelled["taskCodes"]) == ("CANCELLED", [143, None])
    assert (await api.get("/v1/runs")).json()["items"] == []
    assert (await api.get("/v1/runs?state=CANCELLED")).json()["items"] != []
    assert (await api.get("/v1/runs/run-0")).json()["code"] == "run.unknown"


def test_a_run_is_shown_with_what_it_has_saved_and_what_it_would_resume_from() -> None:
    """An earlier run may have left newer steps in its folder, or its user has chosen an older one than the newest."""
    found = RunCheckpoint("/c/step-9.pt", 9, 1, Timestamp(50), is_whole=True, rule=CheckpointRule.ZIP)
    own = replace(found, path="/c/step-3.pt", step=3, written_at=Timestamp(200))
    chosen = replace(found, path="/c/step-1.pt", step=1)
    ident = RunId("run-1")
    job = summarize_job(a_job())
    pause = RunPause("ann", Timestamp(300), 1.0, 0)
    run = Run(
        id=ident,
        job=job,
        engine="local",
        subject="ann",
        claim=None,
        state=RunState.YIELDING,
        created_at=Timestamp(100),
        checkpoints=(own, found),
        pause=pause,
    )

    def shown(run: Run) -> RunBody:
        return run_body(RunView(run, None, None, None, None, job=a_job()))

    body = shown(run)
    assert [each.step for each in body.checkpoints or ()] == [3]
    assert (body.resume_point and body.resume_point.step, body.pause and body.pause.stops_at is not None) == (3, True)
    body = shown(replace(run, state=RunState.PAUSED, resumed_from=chosen, chosen_at=Timestamp(250)))
    assert (body.resume_point and body.resume_point.step, body.pause and body.pause.stops_at) == (1, None)
    assert shown(replace(run, checkpoints=(found,), resumed_from=None)).resume_point is None


async def test_a_run_is_paused_and_resumed(api: httpx2.AsyncClient, controller: PretendController) -> None:
    ident = (await api.post("/v1/runs", json={"job": JOB})).json()["id"]
    paused = (await api.post(f"/v1/runs/{ident}/pause?wait=5s", json={"saveTimeoutS": 60})).json()
    assert (paused["state"], paused["pause"]["by"]) == ("PAUSED", "ann")
    assert [item["id"] for item in (await api.get("/v1/runs?state=PAUSED")).json()["items"]] == [ident]
    resumed = (await api.post(f"/v1/runs/{ident}/resume", json={"resumeFrom": "step-7.pt"})).json()
    assert (resumed["state"], "pause" in resumed) == ("WAITING", False)
    assert controller.seen[-2:] == [("pause", ident, 60, 5), ("resume", ident, "step-7.pt")]
    bad = await api.post(f"/v1/runs/{ident}/pause", json={"saveTimeoutS": -1})
    assert (bad.status_code, bad.json()["code"]) == (422, "body.invalid")


async def test_output_is_plain_text(api: httpx2.AsyncClient) -> None:
    ident = (await api.post("/v1/runs", json={"job": JOB})).json()["id"]
    answer = await api.get(f"/v1/runs/{ident}/logs")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text == "[0] step 1\n[1] step 1\n"
    assert (await api.get(f"/v1/runs/{ident}/logs?task=1&follow=true")).text == "[1] step 1\n"
    assert (await api.get("/v1/runs/run-0/logs")).json()["code"] == "run.unknown"


# -- keys


async def test_the_secret_of_a_key_is_told_once(api: httpx2.AsyncClient) -> None:
    answer = await api.post("/v1/keys", json={"subject": "bob"}, headers=AS_ADMIN)
    assert answer.status_code == 201
    key = decode(KeyBody, answer.json())
    assert (key.subject, key.role, key.secret) == ("bob", "user", "moor_bob_secret")
    listed = await api.get("/v1/keys", headers=AS_ADMIN)
    assert {item["id"] for item in listed.json()["items"]} == {"admin", "ann", "bob"}
    assert "secret" not in listed.text
    gone = await api.delete("/v1/keys/bob", headers=AS_ADMIN)
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await api.delete("/v1/keys/bob", headers=AS_ADMIN)).json()["code"] == "key.unknown"
    assert (await api.get("/v1/keys")).json()["code"] == "auth.denied"


async def test_a_key_has_the_lifetime_that_was_asked_for(api: httpx2.AsyncClient) -> None:
    answer = await api.post("/v1/keys", json={"subject": "bob", "lifetimeS": 3600}, headers=AS_ADMIN)
    key = decode(KeyBody, answer.json())
    assert key.expires_at == format_time(add_seconds(START, 3600))
    answer = await api.get("/v1/claims", headers={"Authorization": f"Bearer {key.secret}"})
    assert answer.headers["moorings-key-expires"] == key.expires_at
    assert "moorings-key-expires" not in (await api.get("/v1/claims")).headers


async def test_a_rotation_tells_the_new_secret_and_how_long_the_old_one_works(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    answer = await api.post("/v1/keys/ann/rotate", json={"graceS": 60, "lifetimeS": 0})
    assert answer.status_code == 200
    key = decode(KeyBody, answer.json())
    assert (key.secret, key.old_secret_until) == ("moor_ann_new", format_time(add_seconds(START, 60)))
    assert "digest" not in answer.text
    await api.post("/v1/keys/ann/rotate", json={})
    assert controller.seen[-2:] == [("rotate", "ann", USER, 60.0, 0.0), ("rotate", "ann", USER, None, None)]
    for wrong in ({"graceS": -1}, {"graceS": "1h"}, {"lifetimeS": 1e10}, {"grace": 1}):
        assert (await api.post("/v1/keys/ann/rotate", json=wrong)).json()["code"] == "body.invalid"


# -- the controller itself


async def test_health_readiness_and_version_are_open(app: object, controller: PretendController) -> None:
    transport = httpx2.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=transport, base_url="http://m") as stranger:
        assert (await stranger.get("/healthz")).json() == {"status": "alive"}
        assert (await stranger.get("/readyz")).json() == {"status": "ready"}
        version = (await stranger.get("/version")).json()
        assert (version["kind"], version["apiVersion"], version["installation"]) == ("Version", "moorings/v1", "inst-1")
        assert (await stranger.get("/openapi.json")).json()["openapi"].startswith("3.1")
        controller.unready = Reason("store.unavailable", "the disk is full", hint="make room")
        unready = await stranger.get("/readyz")
        assert (unready.status_code, unready.json()["code"]) == (503, "store.unavailable")
        assert (unready.json()["detail"], unready.json()["hint"]) == ("the disk is full", "make room")
        assert unready.headers["retry-after"] == "1"


# -- these tests themselves


@cases(
    ("real_one", "pretender", "name"),
    [
        (real, pretender, name)
        for real, pretender in (
            (Controller, PretendController),
            (RunService, PretendRuns),
            (ProjectService, PretendProjects),
        )
        for name in vars(pretender)
        if not name.startswith("_") and name not in ("tell", "grant", "installation")
    ],
)
def test_the_pretend_controller_has_the_real_ones_signatures(real_one: type, pretender: type, name: str) -> None:
    real, pretend = (inspect.signature(getattr(each, name)) for each in (real_one, pretender))
    assert {key: (value.kind, value.default) for key, value in pretend.parameters.items()} == {
        key: (value.kind, value.default) for key, value in real.parameters.items()
    }
