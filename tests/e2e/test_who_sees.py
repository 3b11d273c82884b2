"""What others have is not there for whom it is not: every route of the API, asked by strangers.

Each operation is in one of the tables here, so a new one has to say what a stranger gets from it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from moorings.api.application import make_application
from moorings.api.render import claim_body
from moorings.core.model.access import Caller, Role
from moorings.core.model.claims import ENDED, WAITING, ClaimSpec, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.owners import HIDDEN
from moorings.core.model.projects import Project
from moorings.core.model.queue_reports import QueuedJob
from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import PageQuery, Seq
from moorings.wire.operations import OPERATIONS, Operation
from moorings.workloads.runs import RunState
from tests.e2e.rig import ADMIN, Rig, job, running
from tests.waiting import patient

ANN = Caller("annabel", Role.USER, "user/annabel", "k-ann")
BOB = Caller("bob", Role.USER, "user/bob", "k-bob")  # a member of ann's project
BOSS = Caller("boss", Role.USER, "user/boss", "k-boss")  # its admin
EVE = Caller("eve", Role.USER, "user/eve", "k-eve")
LAB: Final = Project(name="annalab", members=("annabel", "bob"), admins=("boss",))
UNENDED: Final = frozenset(ClaimState) - ENDED
NOBODY: Final = "nobody-1"  # no record has this id or name
JOB: Final = {"name": "j", "command": ["true"], "workdir": "/"}


@dataclass(frozen=True)
class Things:
    """What ann has, and what of it is nobody else's business."""

    rig: Rig
    claim: str
    waiting: str
    run: str
    partition: str
    ids: frozenset[str]
    api: httpx2.AsyncClient
    keys: Mapping[str, str]
    names: frozenset[str] = field(
        default=frozenset(
            {"annabel", "annalab", "ann-held", "ann-waits", "ann-job", "ann-label", "ann-env", "ann-word"}
        )
    )

    async def ask(self, who: str, operation: Operation[Any], address: str, body: object = None) -> httpx2.Response:
        sent = {"Authorization": f"Bearer {self.keys[who]}"}
        content = None if body is None else json.dumps(body)
        return await self.api.request(operation.method, address, headers=sent, content=content)


@pytest.fixture
async def things(tmp_path: Path) -> AsyncIterator[Things]:
    async with running(tmp_path) as rig:
        await rig.controller.projects.set_project(ADMIN, LAB, None)
        controller, spec = rig.controller, ClaimSpec(kind="ipu", size=4, project="annalab", priority=-3)
        held = await controller.create_claim(ANN, spec, name="ann-held", owner=None, key=None, wait_s=patient(10))
        assert held.claim.state is ClaimState.READY
        assert held.partition is not None
        known = replace(
            job("sh", "-c", "echo ann-word; sleep 1000", project="annalab"),
            name="ann-job",
            environment={"PATH": "/usr/bin:/bin", "WORD": "ann-env"},
            labels={"word": "ann-label"},
        )
        run = (await controller.runs.create_run(ANN, known)).run
        await rig.until(lambda: rig.assembly.loop.runs.by_id[run.id].state is RunState.RUNNING)
        waits = await controller.create_claim(
            ANN, replace(spec, size=16), name="ann-waits", owner=None, key=None, wait_s=0
        )
        job_there = QueuedJob("slurm/alpha/7/annabel", replace(spec, size=8, project="annalab"), Timestamp(0))
        await controller.queues.report_queue(ADMIN, "slurm/alpha", "ipu", [job_there], 600.0)
        keys = {}
        for name, role, prefix in (
            ("stranger", Role.USER, None),
            ("other agent", Role.AGENT, "slurm/beta"),
            ("viewer", Role.VIEWER, None),
            ("admin", Role.ADMIN, None),
        ):
            _, keys[name] = await controller.create_key(ADMIN, name.replace(" ", "-"), role, prefix)
        ids = {held.claim.id, waits.claim.id, run.id, held.partition.id, run.claim or ""}
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=make_application(controller)), base_url="http://moorings"
        ) as api:
            yield Things(rig, held.claim.id, waits.claim.id, run.id, held.partition.id, frozenset(ids), api, keys)
        for ident in (run.id,):
            await controller.runs.cancel_run(ADMIN, ident, wait_s=patient(20))


# ------------------------------------------------------------------------------------------------- what each route is

# About one record: by its id or name, in the path or the body. To a stranger it is not there.
CLAIM: Final = ("claim.unknown", ("claim", "ann-held"))
RUN: Final = ("run.unknown", ("run", "ann-job"))
PARTITION: Final = ("partition.unknown", ("partition", "ann-held"))
ABOUT: Final[Mapping[str, tuple[str, tuple[str, str]]]] = {
    **dict.fromkeys(("get_claim", "release_claim", "renew_claim", "yield_claim", "checkpoint_claim"), CLAIM),
    **dict.fromkeys(("explain_claim", "get_binding"), CLAIM),
    **dict.fromkeys(("get_run", "cancel_run", "pause_run", "resume_run", "label_run", "prioritise_run"), RUN),
    "get_logs": RUN,
    "get_terminal": RUN,
    **dict.fromkeys(("get_partition", "delete_partition", "reset_partition"), PARTITION),
    "get_project": ("project.unknown", ("annalab", "annalab")),
}
BODIES: Final[Mapping[str, object]] = {
    "yield_claim": {},
    "checkpoint_claim": {},
    "pause_run": {},
    "resume_run": {},
    "label_run": {"labels": {"a": "b"}},
    "prioritise_run": {"priority": -9},
}
# Named in the body of a request that makes something of the caller's own.
NAMED: Final[tuple[tuple[str, str, Callable[[str], object], tuple[str, str]], ...]] = (
    ("create_run", "claim.unknown", lambda ident: {"job": JOB, "claim": ident}, ("claim", "ann-held")),
    ("create_run", "run.unknown", lambda ident: {"job": JOB, "resume": ident}, ("run", "ann-job")),
    ("defragment", "claim.unknown", lambda ident: {"claim": ident, "dryRun": True}, ("waiting", "ann-waits")),
)
# Lists, and answers about everything at once: what is another's is not in them.
SEEN: Final[Mapping[str, tuple[str, object]]] = {
    "list_claims": ("/v1/claims?all=1", None),
    "list_runs": ("/v1/runs?all=1", None),
    "list_partitions": ("/v1/partitions", None),
    "list_events": ("/v1/events?limit=1000", None),
    "list_devices": ("/v1/devices", None),
    "get_device": ("/v1/devices/pod16:0", None),
    "list_pools": ("/v1/pools", None),
    "who_am_i": ("/v1/whoami", None),
    "get_pool": ("/v1/pools/pod16", None),
    "get_capacity": ("/v1/pools/pod16/capacity?size=1", None),
    "list_queues": ("/v1/queues", None),
    "list_projects": ("/v1/projects", None),
    "list_quotas": ("/v1/quotas", None),
    "list_appliance_jobs": ("/v1/appliance/jobs?all=1", None),
    "estimate": ("/v1/estimate", {"size": 16}),
    "what_if": ("/v1/whatif", {"policy": "reserve = false"}),
    "defragment": ("/v1/defragment", {"size": 16, "dryRun": True}),
}
# More questions to the same routes.
FILTERED: Final = (
    "/v1/claims?ownerPrefix=user/annabel",
    "/v1/runs?subject=annabel",
    "/v1/runs?subject=annabel&all=1",
    "/v1/appliance/jobs?subject=annabel",
    "/v1/events?claim={claim}",
    "/v1/events?run={run}",
    "/v1/events?name=claim.*&name=run.*&name=turn.decided&name=project.*&name=queue.*",
)
MAKES_OWN: Final[Mapping[str, object]] = {
    "create_claim": {"size": 16, "queue": "never"},  # refused: the reason names nobody
    "create_run": {"job": JOB | {"accelerators": {"kind": "ipu", "size": 16}}},
    "create_partition": {"name": "mine", "size": 16},
}
ADMINS_ONLY: Final = frozenset(
    {"drain_device", "resume_device", "list_keys", "create_key", "revoke_key", "set_project", "delete_project"}
    | {"get_findings"}
)
OWN_KEY_ONLY: Final = frozenset({"rotate_key"})
AGENTS_ONLY: Final = frozenset({"tell_queue", "get_queue"})
OPEN: Final = frozenset(operation.name for operation in OPERATIONS if operation.is_open)
BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
STRANGERS: Final = ("stranger", "other agent", "viewer")


def test_every_route_says_what_a_stranger_gets_from_it() -> None:
    known = {*ABOUT, *SEEN, *MAKES_OWN, *ADMINS_ONLY, *OWN_KEY_ONLY, *AGENTS_ONLY, *OPEN}
    assert {operation.name for operation in OPERATIONS} == known


def told(answer: httpx2.Response, ident: str) -> tuple[int, object]:
    """The whole answer about a thing of that name, whatever the name is."""
    said = answer.json()
    said.pop("requestId", None)
    said.pop("instance", None)
    return answer.status_code, json.loads(json.dumps(said).replace(ident, "<it>"))


def leaks(things: Things, who: str, text: str) -> list[str]:
    """What of ann's is in a text; a viewer may know that there are claims and partitions, by their ids."""
    secret = things.names if who == "viewer" else {*things.names, *things.ids}
    return sorted(word for word in {*secret, things.run} if word in text)


async def test_no_route_tells_a_stranger_of_what_another_has(things: Things) -> None:
    """One test, because what ann has takes seconds to make."""
    for who in STRANGERS:
        for name, (code, idents) in ABOUT.items():
            await is_not_there(things, who, name, code, idents)
        for name, code, body_of, idents in NAMED:
            if who != "stranger" and name == "create_run":  # these start no jobs at all
                continue
            for given in idents:
                ident = str(getattr(things, given, given))
                answer = await things.ask(who, BY_NAME[name], BY_NAME[name].path, body_of(ident))
                other = await things.ask(who, BY_NAME[name], BY_NAME[name].path, body_of(NOBODY))
                assert answer.status_code == 404, (who, name, answer.text)
                assert told(answer, ident) == told(other, NOBODY), (who, name)
                assert answer.json()["code"] == code
        for name, (address, sent) in SEEN.items():
            answer = await things.ask(who, BY_NAME[name], address, sent)
            assert answer.status_code in (200, 404, 409, 422), (who, name, answer.text)
            assert leaks(things, who, answer.text) == [], (who, name, answer.text)
        for address in FILTERED:
            answer = await things.ask(who, BY_NAME["list_claims"], address.format(claim=things.claim, run=things.run))
            assert answer.status_code == 200, (address, answer.text)
            assert answer.json()["items"] == [], (who, address)
        for name in ADMINS_ONLY | OWN_KEY_ONLY:
            operation = BY_NAME[name]
            address = operation.path.format(id="pod16:0" if "devices" in operation.path else NOBODY, project="annalab")
            body: object = {"drain_device": {"reason": "x"}, "create_key": {"subject": "x", "role": "viewer"}}.get(
                name, {}
            )
            answer = await things.ask(who, operation, address, body if operation.body is not None else None)
            assert answer.status_code == 403, (who, name, answer.text)
            assert leaks(things, who, answer.text.replace("annalab", "")) == []
        for name in AGENTS_ONLY:
            operation = BY_NAME[name]
            sent = {"queue": "slurm/alpha"} if operation.body is not None else None
            answer = await things.ask(who, operation, operation.path.format(kind="slurm", cluster="alpha"), sent)
            assert (answer.status_code, answer.json()["code"]) == (403, "owner.denied"), (who, name)
    for name in OPEN:
        answer = await things.api.request("GET", BY_NAME[name].path)
        shown = ["annalab"] if name == "get_metrics" else []  # its numbers are by project, for who may reach it
        assert leaks(things, "stranger", answer.text) == shown, name
    for name, sent in MAKES_OWN.items():
        answer = await things.ask("stranger", BY_NAME[name], BY_NAME[name].path, sent)
        assert answer.status_code in (201, 409), answer.text
        assert leaks(things, "stranger", answer.text) == [], (name, answer.text)
    for kind in ("claims", "runs", "events"):  # and of the stranger's own things there is everything
        answer = await things.ask("stranger", BY_NAME[f"list_{kind}"], f"/v1/{kind}")
        assert answer.json()["items"], kind
        assert leaks(things, "stranger", answer.text) == [], kind
    mine = (await things.ask("stranger", BY_NAME["list_claims"], "/v1/claims")).json()["items"][0]
    for more in ("", "?when=1"):
        answer = await things.ask("stranger", BY_NAME["explain_claim"], f"/v1/claims/{mine['id']}/explain{more}")
        assert answer.status_code == 200
        assert "another job of" in answer.text
        assert leaks(things, "stranger", answer.text) == [], answer.text


async def is_not_there(things: Things, who: str, name: str, code: str, idents: tuple[str, str]) -> None:
    """By id and by name the answer is the one about a thing that does not exist; a viewer knows a claim by its id."""
    operation = BY_NAME[name]
    by_id, by_name = str(getattr(things, idents[0], idents[0])), idents[1]
    body = BODIES.get(name)
    unknown = await things.ask(who, operation, operation.path.format(id=NOBODY, project=NOBODY), body)
    assert (unknown.status_code, unknown.json()["code"]) == (404, code), (who, name, unknown.text)
    for ident in (by_id, by_name):
        answer = await things.ask(who, operation, operation.path.format(id=ident, project=ident), body)
        if who == "viewer" and code in ("claim.unknown", "partition.unknown") and ident == by_id:
            looks = name in ("get_claim", "explain_claim", "get_partition")
            assert answer.status_code == (200 if looks else 403), (name, answer.text)
            assert leaks(things, who, answer.text.replace(things.run, "")) == [] or not looks, (name, answer.text)
        else:
            assert told(answer, ident) == told(unknown, NOBODY), (who, name, ident)


async def test_a_viewer_sees_the_queue_without_names(things: Things) -> None:
    listed = (await things.ask("viewer", BY_NAME["list_claims"], "/v1/claims")).json()["items"]
    assert {item["id"] for item in listed} == things.ids - {things.run, things.partition}
    for item in listed:
        assert {item[name] for name in ("name", "owner", "subject", "project")} == {HIDDEN}
    waiting = next(item for item in listed if item["id"] == things.waiting)
    assert (waiting["state"], waiting["size"], waiting["position"]) == ("PENDING", 16, 1)
    assert (waiting["reason"]["message"], waiting["reason"].get("blockers", [])) == (HIDDEN, [])
    (queue,) = (await things.ask("viewer", BY_NAME["list_queues"], "/v1/queues")).json()["items"]
    assert [(each["owner"], each["size"]) for each in queue["jobs"]] == [(HIDDEN, 8)]
    sums = (await things.ask("viewer", BY_NAME["list_quotas"], "/v1/quotas")).json()["items"]
    whole = (await things.ask("admin", BY_NAME["list_quotas"], "/v1/quotas")).json()["items"]
    for count in ("held", "borrowed", "waiting", "waitingDevices"):
        assert sum(row[count] for row in sums) == sum(row[count] for row in whole)
    assert HIDDEN in {row["project"] for row in sums}


async def test_people_of_one_machine_see_who_runs_and_who_waits_without_other_names(things: Things) -> None:
    """Lists say it; what is asked for by its id or name is not there."""
    controller, person = things.rig.controller, replace(EVE, uid=61003)
    shown = await controller.list_claims(person, PageQuery(), states=UNENDED)
    assert {view.claim.id for view in shown} == things.ids - {things.run, things.partition}
    for body in map(claim_body, shown):
        assert body.subject == "annabel"
        assert leaks(things, "viewer", json.dumps(to_plain(body)).replace("annabel", "", 1)) == []
    assert await controller.list_claims(person, PageQuery()) == [], "not what has ended"
    assert await controller.list_claims(person, PageQuery(), states=WAITING, owner_prefix="user/annabel") == []
    for ident in (things.claim, "ann-held"):
        with pytest.raises(MooringsError) as refused:
            await controller.get_claim(person, ident)
        assert refused.value.code == "claim.unknown"
    assert await controller.runs.list_runs(person, PageQuery()) == []


async def test_members_see_all_of_it_and_admins_of_the_project_end_it(things: Things) -> None:
    controller = things.rig.controller
    for caller in (BOB, BOSS):
        shown = await controller.runs.get_run(caller, "ann-job")
        assert shown.job is not None
        assert shown.job.environment["WORD"] == "ann-env"
        assert (await controller.get_claim(caller, "ann-held")).claim.id == things.claim
        assert len(await controller.list_claims(caller, PageQuery())) == 3
        assert [view.run.id for view in await controller.runs.list_runs(caller, PageQuery())] == [things.run]
        chunks = await controller.runs.logs(caller, things.run, task=None, follow=False)
        assert b"ann-word" in b"".join([chunk async for chunk in chunks])
        names = {row.event.name for row in await controller.list_events(caller, Seq(0), 1000)}
        assert {"claim.ready", "run.started", "partition.active", "project.set"} <= names
        assert names.isdisjoint({"turn.decided", "controller.led", "key.created", "queue.told"})
        assert [project.name for project in controller.projects.list_projects(caller)] == ["annalab"]
    with pytest.raises(MooringsError) as refused:
        await controller.runs.cancel_run(BOB, things.run)
    assert refused.value.code == "owner.denied"
    with pytest.raises(MooringsError) as refused:
        await controller.release_claim(BOB, things.waiting)
    assert refused.value.code == "owner.denied"
    with pytest.raises(MooringsError) as refused:
        await controller.get_binding(BOSS, things.claim)
    assert refused.value.code == "owner.denied", "what a job is given is its owner's"
    with pytest.raises(MooringsError) as refused:
        await controller.runs.set_run_priority(BOSS, things.run, 50)
    assert refused.value.code == "priority.denied", "the ceiling is that of users"
    await controller.runs.set_run_priority(BOSS, things.run, -9)
    assert (await controller.release_claim(BOSS, things.waiting)).claim.is_ended
    ended = await controller.runs.cancel_run(BOSS, things.run, wait_s=patient(20))
    assert ended.run.state is RunState.CANCELLED


async def test_who_leaves_a_project_sees_nothing_of_it_any_more(things: Things) -> None:
    controller = things.rig.controller
    follows = await controller.runs.logs(BOB, things.run, task=None, follow=True)
    assert b"ann-word" in await anext(follows)
    seen = await controller.list_events(BOB, Seq(0), 1000)
    assert any(row.event.run == things.run for row in seen)
    await controller.projects.set_project(ADMIN, replace(LAB, members=("annabel",)), 1)
    with pytest.raises(MooringsError) as refused:
        await controller.runs.get_run(BOB, things.run)
    assert refused.value.code == "run.unknown"
    assert await controller.list_events(BOB, Seq(0), 1000) == []
    assert await controller.list_claims(BOB, PageQuery()) == []
    await follows.aclose()  # type: ignore[attr-defined]  # a generator


async def test_output_that_is_followed_ends_with_a_membership(things: Things) -> None:
    controller, talks = (
        things.rig.controller,
        job("sh", "-c", "while :; do echo word; sleep 0.1; done", project="annalab"),
    )
    run = (await controller.runs.create_run(ANN, talks)).run
    try:
        followed = await controller.runs.logs(BOB, run.id, task=None, follow=True)
        assert await anext(followed) != b""
        lab = await controller.projects.set_project(ADMIN, replace(LAB, members=("annabel",)), 1)
        assert lab.members == ("annabel",)
        with pytest.raises(MooringsError) as refused:
            async for _ in followed:
                pass
        assert refused.value.code == "run.unknown"
    finally:
        await controller.runs.cancel_run(ADMIN, run.id, wait_s=patient(20))


async def test_an_admin_of_a_project_changes_its_members_and_nothing_else(things: Things) -> None:
    projects = things.rig.controller.projects
    others = replace(LAB, members=("annabel", "carl"))
    changed = await projects.set_project(BOSS, others, 1)
    assert (changed.members, changed.admins, changed.version) == (("annabel", "carl"), ("boss",), 2)
    for caller, wanted, version, code in (
        (BOSS, others, 1, "project.changed"),
        (BOSS, others, None, "project.changed"),
        (BOSS, others, 3, "project.changed"),  # the one that is only to be: what is compared is what is changed
        (BOSS, replace(others, admins=("boss", "bob")), 2, "auth.denied"),
        (BOSS, replace(others, devices_max=64), 2, "auth.denied"),
        (BOSS, replace(others, open=True), 2, "auth.denied"),
        (BOSS, Project(name="annalab/sub"), None, "auth.denied"),
        (Caller("boss", Role.VIEWER, "", "k"), others, 2, "auth.denied"),
        (BOB, others, 2, "auth.denied"),
        (EVE, others, 2, "auth.denied"),
    ):
        with pytest.raises(MooringsError) as refused:
            await projects.set_project(caller, wanted, version)
        assert refused.value.code == code, (caller, wanted, version)
    below = await projects.set_project(ADMIN, Project(name="annalab/sub", members=("bob",)), None)
    assert (await projects.set_project(BOSS, replace(below, members=()), 1)).members == ()
    assert [projects.knows_people(caller, below) for caller in (ADMIN, BOSS, EVE)] == [True, True, False]


async def test_an_open_project_is_for_everybody_to_see(things: Things) -> None:
    controller = things.rig.controller
    await controller.projects.set_project(ADMIN, replace(LAB, open=True), 1)
    assert (await controller.runs.get_run(EVE, "ann-job")).run.id == things.run
    assert len(await controller.list_claims(EVE, PageQuery())) == 3
    with pytest.raises(MooringsError) as refused:
        await controller.runs.cancel_run(EVE, things.run)
    assert refused.value.code == "owner.denied"
