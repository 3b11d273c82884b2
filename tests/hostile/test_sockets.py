"""Bytes no client of ours sends, on a real socket: each is refused or means one thing, and the server lives on.

``tests/unit/api/test_server.py`` has the limits of heads and bodies; here stand the shapes by which two servers in a
row come to read one request as two, or another one.
"""

import asyncio
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.api.limits import ApiLimits
from tests.hostile.effort import tried
from tests.hostile.mutation import mutations
from tests.unit.api.pretend import USER, PretendController
from tests.unit.api.sockets import Answer, Client, Served, connected, serving

QUICK = ApiLimits(head_timeout_s=0.5, body_timeout_s=0.5, keep_alive_s=0)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
AUTH = b"authorization: Bearer " + USER.encode() + b"\r\n"
CLAIM = b'{"size": 4}'
GET = b"GET /healthz HTTP/1.1\r\nhost: m\r\n"
POST = b"POST /v1/claims HTTP/1.1\r\nhost: m\r\n" + AUTH


async def statuses(served: Served, data: bytes) -> list[int]:
    """The statuses of all answers on a connection that sends ``data`` and waits for the end."""
    async with connected(served) as client:
        client.send(data)
        return [int(found) for found in STATUS.findall(await client.reader.read())]


async def alive(served: Served) -> None:
    async with connected(served) as client:
        client.ask("GET", "/healthz")
        assert (await client.answer()).json() == {"status": "alive"}


REFUSED = {
    "length and chunks": POST
    + b"content-length: 11\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 11\r\ncontent-length: 12\r\n\r\n" + CLAIM,
    "two lengths in one": POST + b"content-length: 11, 11\r\n\r\n" + CLAIM,
    "a length with a sign": POST + b"content-length: +11\r\n\r\n" + CLAIM,
    "a length below zero": POST + b"content-length: -1\r\n\r\n" + CLAIM,
    "a length in hex": POST + b"content-length: 0xb\r\n\r\n" + CLAIM,
    "a length with a blank": POST + b"content-length: 1 1\r\n\r\n" + CLAIM,
    "a blank before the colon": POST + b"content-length : 11\r\n\r\n" + CLAIM,
    "a blank before the name": POST + b" content-length: 11\r\n\r\n" + CLAIM,
    "chunked, then not": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a chunk without a size": POST + b"transfer-encoding: chunked\r\n\r\n\r\n" + CLAIM,
    "a chunk below zero": POST + b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
    "a chunk beyond reason": POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n",
    "a chunk longer than it says": POST + b"transfer-encoding: chunked\r\n\r\n1\r\n" + CLAIM + b"\r\n0\r\n\r\n",
    "a folded header": GET + b"x: a\r\n b\r\n\r\n",
    "a header without a colon": GET + b"nonsense\r\n\r\n",
    "a header without a name": GET + b": x\r\n\r\n",
    "a NUL in a header": GET + b"x: a\0b\r\n\r\n",
    "a bare CR in a header": GET + b"x: a\rb\r\n\r\n",
    "a NUL in the address": b"GET /\0healthz HTTP/1.1\r\n\r\n",
    "an address that is not ASCII": b"GET /v1/claims/\xff\xfe HTTP/1.1\r\n\r\n",
    "an address with a blank": b"GET /v1/a b HTTP/1.1\r\n\r\n",
    "no address": b"GET  HTTP/1.1\r\n\r\n",
    "a method that is none": b"G\xc3\x89T / HTTP/1.1\r\n\r\n",
    "a method in lower case": b"get / HTTP/1.1\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "HTTP/0.9": b"GET /\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a mail": b"EHLO mail\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "four megabytes of nothing": b"\0" * (1 << 22),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_could_be_read_in_two_ways_is_not_read(
    controller: PretendController, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(controller, QUICK) as served:
        found = await statuses_or_cut(served, REFUSED[name])
        assert found in ([], [400], [404], [413], [422]), "refused once, and nothing of the rest is served"
        assert controller.claims == {}
        await alive(served)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def statuses_or_cut(served: Served, data: bytes) -> list[int]:
    try:
        return await statuses(served, data)
    except ConnectionError:  # what it had not read when it closed: the kernel tells us so
        return []


MEANS_ONE_THING = {
    "an absolute address": (b"GET http://evil.example/healthz HTTP/1.1\r\nhost: m\r\n\r\n", [200]),
    "another host": (b"GET /healthz HTTP/1.1\r\nhost: evil.example\r\n\r\n", [200]),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", [200]),
    "two hosts": (b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", [400]),
    "a host with a path": (b"GET /healthz HTTP/1.1\r\nhost: a/../v1/claims\r\n\r\n", [200]),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", [200]),
    "all of it asterisk": (b"OPTIONS * HTTP/1.1\r\nhost: m\r\n\r\n", [404]),
    "a websocket": (
        b"GET /v1/events HTTP/1.1\r\nhost: m\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
        [401],
    ),
    "HTTP/2 by upgrade": (GET + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n\r\n", [200]),
    "dots": (b"GET /healthz/../v1/claims HTTP/1.1\r\nhost: m\r\n\r\n", [404]),
    "coded dots": (b"GET /v1/claims/%2e%2e/%2e%2e/healthz HTTP/1.1\r\nhost: m\r\n\r\n", [404]),
    "a coded slash": (b"GET /v1%2Fclaims HTTP/1.1\r\nhost: m\r\n\r\n", [404]),
    "slashes": (b"GET //healthz HTTP/1.1\r\nhost: m\r\n\r\n", [404]),
    "a coded newline behind": (b"POST /v1/claims/x/renew%0A HTTP/1.1\r\nhost: m\r\n" + AUTH + b"\r\n", [404]),
    "a fragment": (b"GET /healthz#/v1/claims HTTP/1.1\r\nhost: m\r\n\r\n", [200]),
    "a forwarded host": (GET + b"x-forwarded-host: evil\r\nx-original-url: /v1/claims\r\n\r\n", [200]),
    "another method in a header": (GET + b"x-http-method-override: DELETE\r\n\r\n", [200]),
    "fifty requests at once": ((GET + b"\r\n") * 50, [200] * 50),
    "expectation": (POST + b"expect: 100-continue\r\ncontent-length: 11\r\n\r\n" + CLAIM, [100, 201]),
    "five hundred headers": (GET + b"".join(b"x%d: y\r\n" % number for number in range(500)) + b"\r\n", [200]),
}


@pytest.mark.parametrize("name", MEANS_ONE_THING)
async def test_what_is_odd_but_clear_is_answered(controller: PretendController, name: str) -> None:
    data, wanted = MEANS_ONE_THING[name]
    async with serving(controller, QUICK) as served:
        assert await statuses(served, data) == wanted
        await alive(served)


async def test_no_more_requests_are_taken_ahead_of_their_answers_than_there_is_room(
    controller: PretendController,
) -> None:
    async with serving(controller, ApiLimits(pipelined_max=8, keep_alive_s=0)) as served:
        found = await statuses_or_cut(served, (GET + b"\r\n") * 10_000)
        assert len(found) <= 10
        assert await statuses(served, (GET + b"\r\n") * 9) == [200] * 9


@pytest.mark.parametrize("name", [b"authorization", b"idempotency-key", b"content-length", b"last-event-id"])
async def test_a_header_that_decides_is_there_once(controller: PretendController, name: bytes) -> None:
    values = {b"authorization": b"Bearer " + USER.encode(), b"content-length": b"11"}
    line = name + b": " + values.get(name, b"7") + b"\r\n"
    given_already = line if name == b"authorization" else AUTH + line
    async with serving(controller, QUICK) as served:
        head = b"POST /v1/claims HTTP/1.1\r\nhost: m\r\n"
        length = b"" if name == b"content-length" else b"content-length: 11\r\n"
        assert await statuses_or_cut(served, head + given_already + line + length + b"\r\n" + CLAIM) == [400]
        assert controller.claims == {}
        await alive(served)


BODIES = {
    "a BOM": b'\xef\xbb\xbf{"size": 4}',
    "UTF-16": '{"size": 4}'.encode("utf-16"),
    "half a pair": b'{"size": 4, "name": "\\ud83d"}',
    "a number beyond floats": b'{"size": 4, "timeLimitS": 1e400}',
    "a number of 5000 digits": b'{"size": ' + b"1" * 5000 + b"}",
    "a fraction of 5000 digits": b'{"size": 4, "timeLimitS": 0.' + b"1" * 5000 + b"1e999}",
    "NaN": b'{"size": 4, "leaseS": NaN}',
    "a list a hundred thousand deep": b'{"size": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "an object a hundred thousand deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a comment": b'{"size": 4} // four',
    "single quotes": b"{'size': 4}",
    "a trailing comma": b'{"size": 4,}',
    "an octal": b'{"size": 04}',
    "a tab in a name": b'{"size": 4, "name": "a\tb"}',
    "many fields": b"{" + b",".join(b'"f%d":1' % number for number in range(50_000)) + b"}",
    "many errors": b'{"size": 4, "resources": {' + b",".join(b'"r%d":""' % n for n in range(50_000)) + b"}}",
}


@pytest.mark.parametrize("name", BODIES)
async def test_json_that_is_not_what_it_seems(controller: PretendController, name: str) -> None:
    async with serving(controller) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", BODIES[name])
        answer = await client.answer()
        assert answer.status in (400, 422)
        assert answer.json()["code"] in ("body.not_json", "body.not_utf8", "body.invalid")
        assert len(answer.body) < 4000
        assert controller.claims == {}
        await alive(served)


async def test_a_field_given_twice_counts_once_and_is_checked_as_it_counts(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", b'{"size": 4, "size": 8}')
        answer = await client.answer()
        assert answer.status == 422, "another program may read the first one"
        assert controller.claims == {}


async def answer_to_drips(client: Client, drop: bytes) -> Answer:
    """The answer to a request whose end never comes: one more drop does, again and again."""

    async def drip() -> None:
        while True:
            client.send(drop)
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    try:
        return await client.answer()
    finally:
        dripping.cancel()


async def test_a_body_that_drips_is_not_waited_for(controller: PretendController) -> None:
    """Each byte comes in time; all of them do not."""
    async with serving(controller, ApiLimits(body_timeout_s=0.3)) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", content_length="1000")
        assert (await answer_to_drips(client, b" ")).status == 400


async def test_a_head_that_drips_is_not_waited_for(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(head_timeout_s=0.3)) as served, connected(served) as client:
        client.send(GET)
        assert (await answer_to_drips(client, b"x: y\r\n")).status == 400


CORPUS = [
    *REFUSED.values(),
    *(data for data, _ in MEANS_ONE_THING.values()),
    POST + b"content-length: 11\r\n\r\n" + CLAIM,
    POST + b"transfer-encoding: chunked\r\n\r\nb\r\n" + CLAIM + b"\r\n0\r\n\r\n",
]
WORDS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b":",
    b" ",
    b"\t",
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"0\r\n\r\n",
]


@tried(15)
@given(st.lists(mutations([data for data in CORPUS if len(data) < 10_000], WORDS), min_size=20, max_size=20))
async def test_requests_that_were_damaged_on_the_way(pieces: list[bytes]) -> None:
    faults: list[str] = []

    class Faults(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            faults.append(self.format(record))

    handler = Faults(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        async with serving(PretendController(), QUICK) as served:
            for found in await asyncio.gather(*(statuses_or_cut(served, piece) for piece in pieces)):
                assert all(status < 500 for status in found)
            await alive(served)
    finally:
        logging.getLogger().removeHandler(handler)
    assert faults == []
