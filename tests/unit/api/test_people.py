"""On a Unix socket the kernel says who asks, and nothing that is sent does."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from moorings.api.application import make_application
from moorings.api.server import ApiServer
from moorings.controller.service import Controller
from moorings.core.model.access import Caller, Role
from tests.unit.api.pretend import ADMIN, USER, PretendController
from tests.unit.api.sockets import Client

JOB = b'{"job": {"name": "n", "command": ["true"], "workdir": "/"}}'
WE = os.getuid()


@pytest.fixture
async def client(controller: PretendController, tmp_path: Path) -> AsyncIterator[Client]:
    """Connected to the API's Unix socket, as whoever runs the tests; that is ann."""
    controller.people[WE] = Caller("ann", Role.USER, "user/ann", f"uid-{WE}", uid=WE)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "api"))
    listening.listen()
    server = ApiServer(make_application(cast("Controller", controller)))
    done = asyncio.create_task(server.serve(sockets=[listening]))
    connected = Client(*await asyncio.open_unix_connection(str(tmp_path / "api")))
    yield connected
    await connected.close()
    server.should_exit = True
    await done


async def test_a_person_needs_no_key(client: Client) -> None:
    for _ in range(2):
        client.ask("POST", "/v1/runs", JOB, authorization="")
        answer = await client.answer()
        assert (answer.status, answer.json()["subject"]) == (201, "ann"), answer.body


async def test_a_person_is_shown_its_own_name(client: Client) -> None:
    client.ask("GET", "/v1/whoami", authorization="")
    answer = await client.answer()
    shown = {
        "apiVersion": "moorings/v1",
        "kind": "Caller",
        "subject": "ann",
        "role": "user",
        "ownerPrefix": "user/ann",
    } | {"submitsTo": ["slurm"]}
    assert (answer.status, answer.json()) == (200, shown)


@pytest.mark.parametrize("secret", [USER, ADMIN, "moor_x_y", "x"])
async def test_a_key_counts_for_nothing_there(client: Client, secret: str) -> None:
    client.ask("GET", "/v1/runs", authorization=f"Bearer {secret}")
    answer = await client.answer()
    assert (answer.status, answer.json()["code"]) == (401, "auth.invalid")
    assert "takes no access key" in answer.json()["detail"]


async def test_no_header_says_who_it_is(client: Client, controller: PretendController) -> None:
    controller.people.clear()
    named = {"x_forwarded_for": "127.0.0.1", "x_remote_user": "root", "moorings_person": "0", "forwarded": "for=root"}
    client.ask("GET", "/v1/runs", authorization="", **named)
    answer = await client.answer()
    assert (answer.status, answer.json()["code"]) == (403, "auth.denied")


async def test_a_stream_ends_when_its_person_may_not_any_more(client: Client, controller: PretendController) -> None:
    client.ask("GET", "/v1/events?watch=1", authorization="")
    assert (await client.head()).status == 200
    assert b"events after" in await client.chunk()
    controller.people.clear()
    controller.tell("run.created")
    assert await client.reader.read() == b"", "cut off, without the end of a whole answer"


async def test_health_needs_no_account(client: Client, controller: PretendController) -> None:
    controller.people.clear()
    client.ask("GET", "/healthz", authorization="")
    assert (await client.answer()).status == 200
