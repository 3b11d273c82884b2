"""What made-up tokens cost the guard of the metrics, and the API server behind it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx2
import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.kube import token_review
from moorings.kubernetes.kube.api import KubeObject, ResourceType
from moorings.kubernetes.kube.token_review import REVIEWS_MAX
from moorings.kubernetes.operator.rbac_proxy import BELIEVED_S, REFUSED_S, RbacProxy, make_rbac_proxy_app
from tests.waiting import patient

ENDS = 10_000


def token(called: str, **changes: Any) -> str:
    """What looks like an account's token; a claim that is None is left out."""
    claims = {"iss": "https://a", "sub": "system:serviceaccount:a:prometheus", "exp": ENDS, **changes}
    claims = {key: value for key, value in claims.items() if value is not None}
    parts = ({"alg": "RS256"}, claims, called)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


GOOD = token("good")


class ApiServer:
    """Knows a few good tokens, and lets all but strangers read; only what the guard calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.good = {GOOD: "prometheus"}
        self.answers = asyncio.Event()
        self.answers.set()

    async def create(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        if kind.plural == "subjectaccessreviews":
            return {"status": {"allowed": body["spec"]["user"] != "stranger"}}
        assert kind.plural == "tokenreviews"
        sent = body["spec"]["token"]
        self.asked.append(sent)
        await self.answers.wait()
        user = {"username": self.good.get(sent)}
        return {"status": {"authenticated": sent in self.good, "user": user}}


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> Timestamp:
        return Timestamp(round(self.at * SECOND))


def guard(api: ApiServer, clock: Clock | None = None) -> RbacProxy:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text="a 1\n")))
    return RbacProxy(api, http, clock or Clock(), "http://operator/metrics")  # type: ignore[arg-type]


async def refused(of: RbacProxy, sent: str, address: str = "") -> str:
    """The code with which a token is refused."""
    with pytest.raises(MooringsError) as caught:
        await of.check(f"Bearer {sent}", address)
    return caught.value.code


@pytest.mark.parametrize(
    "sent",
    [
        *("x", "a.b.c", "..", "a." + "W10" * 10_000 + ".c", token("x", exp=999), token("x", exp="later")),
        *(token("x", exp=10**400), token("x", exp=float("nan")), token("x", iss=None), token("x", sub=None)),
    ],
)
async def test_what_cannot_be_good_is_refused_without_a_review(sent: str) -> None:
    api = ApiServer()
    assert await refused(guard(api), sent) == "auth.invalid"
    assert api.asked == []


async def test_a_token_without_an_end_and_one_of_another_issuer_s_are_reviewed() -> None:
    api = ApiServer()
    for sent in (token("secret", exp=None), token("person", sub="ann@example.org")):
        api.good[sent] = "ann"
        await guard(api).check(f"Bearer {sent}")
        assert api.asked.pop() == sent


async def test_a_yes_and_a_no_are_believed_for_a_while_and_no_longer_than_the_token_lasts() -> None:
    api, clock = ApiServer(), Clock()
    found, short, stranger = guard(api, clock), token("short", exp=1010), token("stranger")
    api.good |= {short: "prometheus", stranger: "stranger"}
    for _ in range(2):
        await found.check(f"Bearer {GOOD}")
        await found.check(f"bearer {short}")
        assert await refused(found, stranger) == "auth.denied"
        assert await refused(found, token("bad")) == "auth.invalid"
    assert api.asked == [GOOD, short, stranger, token("bad")]
    clock.at += REFUSED_S + 1
    api.good[token("bad")] = "prometheus"
    await found.check(f"Bearer {token('bad')}")
    clock.at = 1011
    assert await refused(found, short) == "auth.invalid"
    clock.at = 1001 + BELIEVED_S
    del api.good[GOOD]
    assert await refused(found, GOOD) == "auth.invalid"


async def test_bad_tokens_push_no_good_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_review, "REMEMBERED_MAX", 20)
    api = ApiServer()
    found = guard(api)
    await found.check(f"Bearer {GOOD}")
    for number in range(300):
        assert await refused(found, token(f"made up {number}")) == "auth.invalid"
    api.asked.clear()
    await found.check(f"Bearer {GOOD}")
    assert api.asked == []
    assert await refused(found, token("made up 299")) == "auth.invalid"
    assert api.asked == [], "the newest bad ones are known too"
    assert await refused(found, token("made up 0")) == "auth.invalid"
    assert api.asked == [token("made up 0")], "and no more of them than there is room for"


async def test_one_address_has_only_so_many_reviewed_at_the_same_time() -> None:
    api = ApiServer()
    api.answers.clear()
    transport = httpx2.ASGITransport(make_rbac_proxy_app(guard(api)), client=("10.0.0.1", 1))
    other = httpx2.ASGITransport(make_rbac_proxy_app(guard(api)), client=("10.0.0.2", 1))
    other.app = transport.app
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://guard") as one,
        httpx2.AsyncClient(transport=other, base_url="http://guard") as two,
    ):

        def ask(by: httpx2.AsyncClient, sent: str) -> asyncio.Task[httpx2.Response]:
            return asyncio.create_task(by.get("/metrics", headers={"Authorization": f"Bearer {sent}"}))

        others = [ask(one, token(f"made up {number}")) for number in range(40)]
        async with asyncio.timeout(patient(10)):
            while sum(task.done() for task in others) < 40 - REVIEWS_MAX // 2:  # noqa: ASYNC110 - no event of theirs
                await asyncio.sleep(0.01)
            mine = ask(two, GOOD)
            while GOOD not in api.asked:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        assert len(api.asked) == REVIEWS_MAX // 2 + 1
        api.answers.set()
        assert (await mine).status_code == 200
        told = [(await task).status_code for task in others]
    assert (told.count(401), told.count(503)) == (REVIEWS_MAX // 2, 40 - REVIEWS_MAX // 2)
