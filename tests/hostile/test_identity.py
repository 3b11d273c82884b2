"""No caller is taken for another, and names given by callers are only shown.

Over HTTP on a real controller: keys that are almost right, owners that look like others, keys that are revoked under
way, and names and reasons that try to write to a log, a stream or a terminal.
"""

import asyncio
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.app.logs import configure
from moorings.core.model.access import Caller, Role, check_owner_access
from moorings.core.model.claims import check_owner
from moorings.core.model.errors import MooringsError
from tests.hostile.effort import tried
from tests.hostile.harbour import Harbour
from tests.waiting import patient

# Clears the screen, sets the title, goes back to the line's begin, forges a line, turns the reading direction, rings.
SPELL = "\x1b[2J\x1b]0;owned\x07\rerror: forged\nts=2026-01-01 level=info msg=forged\u202egnp.exe\u2028\x9b31m"


def admin(port_of_call: Harbour) -> httpx2.Client:
    return httpx2.Client(base_url=port_of_call.url, headers=port_of_call.bearer(Role.ADMIN), timeout=patient(60))


def key_of(port_of_call: Harbour, subject: str) -> tuple[str, str]:
    """The id and the secret of a new key."""
    with admin(port_of_call) as client:
        made = client.post("/v1/keys", json={"subject": subject}).json()
        return made["id"], made["secret"]


def authorization(secret: str) -> dict[bytes, bytes]:
    return {b"Authorization": f"Bearer {secret}".encode("latin-1")}


def as_(port_of_call: Harbour, secret: str) -> httpx2.Client:
    return httpx2.Client(base_url=port_of_call.url, headers=authorization(secret), timeout=patient(60))


def test_a_key_that_is_wrong_in_one_character_is_none(port_of_call: Harbour) -> None:
    _, secret = key_of(port_of_call, "ann")
    wrong = {secret[:at] + ("0" if secret[at] != "0" else "1") + secret[at + 1 :] for at in range(len(secret))}
    wrong |= {
        secret[:-1],
        secret + "0",
        secret.upper(),
        secret + "_",
        secret.replace("_", "__", 1),
        f'"{secret}"',
        f"{secret},{secret}",
    }
    wrong |= {secret[: secret.rindex("_")] + "_", "moor_" + "_" + secret, secret + "\x85", secret + "\xa0"}
    with as_(port_of_call, secret) as client:
        assert client.get("/v1/claims").status_code == 200
        for guess in sorted(wrong):
            answer = client.get("/v1/claims", headers=authorization(guess))
            assert (answer.status_code, answer.json()["code"]) == (401, "auth.invalid"), guess


OWNERS = [
    "user/anna",
    "user/an",
    "user/",
    "user",
    "user//ann",
    "/user/ann",
    "user/ann/",
    "USER/ann",
    "user/Ann",
    "user/ann/../anna",
    "user/ann/..",
    "user/./ann",
    "user/аnn",
    "user/ａnn",
    "user/ann\u200b",
    "user/ann\n",
    "user/ann\x00",
    "user/ann%2f..",
    "user\\ann",
    "slurm/ann",
    "local/ann",
    "user/ann;user/anna",
    "user/ann user/anna",
    " user/ann",
    "*",
    "user/*",
    "",
    ".",
]


@pytest.mark.parametrize("owner", OWNERS)
def test_an_owner_that_is_not_ones_own_is_refused(port_of_call: Harbour, owner: str) -> None:
    _, secret = key_of(port_of_call, "ann")
    with as_(port_of_call, secret) as client:
        answer = client.post("/v1/claims", json={"size": 1, "owner": owner})
        assert answer.json()["code"] in ("owner.denied", "owner.invalid", "body.invalid")
        made = client.post("/v1/claims", json={"size": 1, "owner": "user/ann/mine"}).json()
        assert made["owner"] == "user/ann/mine"


def test_what_belongs_to_somebody_whose_name_begins_alike_is_not_touched(port_of_call: Harbour) -> None:
    (_, ann), (_, anna) = key_of(port_of_call, "ann"), key_of(port_of_call, "anna")
    with as_(port_of_call, anna) as hers, as_(port_of_call, ann) as his:
        made = hers.post("/v1/claims", json={"size": 1, "leaseS": 600}).json()
        for method, path in (("DELETE", ""), ("POST", "/renew"), ("GET", "/binding")):
            answer = his.request(method, f"/v1/claims/{made['id']}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "claim.unknown")
        shown = his.get("/v1/claims?ownerPrefix=user/ann&limit=1000").json()["items"]
        assert made["id"] not in [item["id"] for item in shown]


def test_the_same_key_of_another_subject_makes_another_claim(port_of_call: Harbour) -> None:
    (_, ann), (_, bob) = key_of(port_of_call, "ann"), key_of(port_of_call, "bob")
    same = {"Idempotency-Key": "retry-1"}
    with as_(port_of_call, ann) as one, as_(port_of_call, bob) as two:
        first = one.post("/v1/claims", json={"size": 1}, headers=same).json()
        other = two.post("/v1/claims", json={"size": 1}, headers=same).json()
        again = one.post("/v1/claims", json={"size": 1}, headers=same).json()
    assert first["id"] == again["id"] != other["id"]
    assert other["owner"] == "user/bob"


@pytest.mark.parametrize(
    "subject", ["", ".", "..", "ann\n", "ann/x", "аnn", "ａnn", "an n", "ann\x1b", "\u202eann", "x" * 65, "ann\x7f"]
)
def test_a_subject_that_could_be_taken_for_another_gets_no_key(port_of_call: Harbour, subject: str) -> None:
    with admin(port_of_call) as client:
        assert client.post("/v1/keys", json={"subject": subject}).json()["code"] == "key.invalid"


parts = st.text("ab./-_@АA", min_size=1, max_size=3)


@tried(1000)
@given(st.lists(parts, min_size=1, max_size=3).map("/".join), st.lists(parts, min_size=1, max_size=4).map("/".join))
def test_a_prefix_covers_whole_parts_of_owners_that_can_be(prefix: str, rest: str) -> None:
    caller = Caller("ann", Role.AGENT, f"slurm/{prefix}", "k")
    owner = f"slurm/{rest}"
    try:
        check_owner(owner)
        check_owner(caller.owner_prefix)
        check_owner_access(caller, owner, "", "act")
    except MooringsError:
        return
    mine = caller.owner_prefix.split("/")
    assert owner.split("/")[: len(mine)] == mine


async def test_a_watch_ends_when_its_key_is_revoked_under_way(port_of_call: Harbour) -> None:
    ident, secret = key_of(port_of_call, "eve")
    async with (
        httpx2.AsyncClient(base_url=port_of_call.url, timeout=patient(60)) as client,
        client.stream("GET", "/v1/events?watch=1", headers={"Authorization": f"Bearer {secret}"}) as stream,
    ):
        lines = stream.aiter_lines()
        assert (await anext(lines)).startswith(": events after")
        revoked = await client.delete(f"/v1/keys/{ident}", headers=port_of_call.bearer(Role.ADMIN))
        assert revoked.status_code == 204
        with contextlib.suppress(httpx2.RemoteProtocolError):
            async with asyncio.timeout(patient(30)):
                told = [line async for line in lines]
                assert not any("data:" in line for line in told), "not even that it was revoked"
        again = await client.get("/v1/claims", headers={"Authorization": f"Bearer {secret}"})
        assert again.status_code == 401


# -- what somebody names -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spelled(port_of_call: Harbour) -> Harbour:
    """A controller in which every free text holds the spell."""
    job = {"name": "n", "command": ["true", SPELL], "workdir": f"/{SPELL}", "environment": {"A": SPELL}}
    with admin(port_of_call) as client:
        assert client.post("/v1/devices/pod64:63/drain", json={"reason": SPELL}).status_code == 200
        assert client.post("/v1/runs", json={"job": job}).status_code == 201
        assert client.post("/v1/runs", json={"job": {**job, "image": SPELL}}).json()["code"] == "job.invalid"
        assert client.post("/v1/claims", json={"size": 64}).status_code == 201  # its reason tells of the device
    return port_of_call


def quiet(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


COMMANDS = [
    ["get", "devices", "-o", "wide"],
    ["get", "runs", "--all", "-o", "wide"],
    ["get", "claims", "-o", "yaml"],
    ["status"],
    ["get", "devices", "-o", "json"],
    ["get", "runs", "--all", "-o", "csv"],
    ["get", "devices", "-o", "name"],
    ["get", "devices", "-o", "custom-columns=A:.reason"],
    ["describe", "device", "pod64:63"],
    ["events"],
    ["events", "-o", "json"],
    ["get", SPELL],
    ["describe", "claim", SPELL],
    ["delete", "claim", SPELL, "--yes"],
    [SPELL],
    ["run", "--name", SPELL, "--", "true"],
    ["get", "claims", "-o", SPELL],
    ["--server", f"http://{SPELL}", "status"],
]


@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: " ".join(command).encode("unicode_escape").decode()[:40]
)
def test_no_text_of_somebody_else_acts_on_a_terminal(spelled: Harbour, command: list[str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(spelled.keys[Role.ADMIN])
    environment = {
        **os.environ,
        "MOORINGS_SERVER": spelled.url,
        "MOORINGS_ACCESS_KEY_FILE": str(key),
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "moorings.cli.main", *command],
        env=environment,
        capture_output=True,
        check=False,
        timeout=patient(60),
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert quiet(out), ascii(out)
    assert quiet(err), ascii(err)
    assert out or err
    assert not any(line.startswith(("ts=", "error: forged")) for line in (out + err).split("\n"))


async def test_no_text_of_somebody_else_breaks_a_stream(spelled: Harbour) -> None:
    async with (
        httpx2.AsyncClient(base_url=spelled.url, headers=spelled.bearer(Role.ADMIN), timeout=patient(60)) as client,
        client.stream("GET", "/v1/events?watch=1&after=0&name=device.*&name=run.*") as stream,
    ):
        lines = stream.aiter_bytes()
        text = b""
        while b"event: device.drained" not in text or not text.endswith(b"\n\n"):
            text += await anext(lines)
    for block in text.decode().split("\n\n"):
        for line in filter(None, block.split("\n")):
            assert line.startswith((":", "id: ", "event: ", "data: "))
            if line.startswith("data: "):
                json.loads(line[6:])


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_no_text_of_somebody_else_forges_a_log(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure("info", style)
        logging.getLogger("moorings.controller").info(
            "device.drained", extra={"reason": SPELL, "claim": f'a" b={SPELL}'}
        )
        logging.getLogger("moorings.controller").info(SPELL)
        try:
            int(SPELL)
        except ValueError:
            logging.getLogger("moorings.controller").exception("request.failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3, "one line an event"
    assert quiet(stream.getvalue())


def test_a_header_cannot_be_made_from_a_value(spelled: Harbour) -> None:
    with admin(spelled) as client:
        for sent in ("a\tb", "\x7f", "é", "x" * 65, "<script>"):
            answer = client.get("/v1/claims", headers={b"X-Request-Id": sent.encode("latin-1")})
            if answer.status_code == 400:  # no character of a header: it never became a request
                assert "x-request-id" not in answer.headers
            else:
                assert answer.headers["x-request-id"] != sent
                assert answer.headers["x-request-id"].isalnum()
