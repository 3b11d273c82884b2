"""What the API page says of who may, asked of a real controller with a key of every role."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from moorings.wire import operations
from moorings.wire.operations import (
    ADMINS,
    AGENTS,
    EVERYBODY,
    HOLDERS,
    LISTERS,
    LOOKERS,
    MANAGERS,
    OPERATIONS,
    READERS,
    SEERS,
    STARTERS,
    Operation,
)
from tests.e2e.processes import ControllerProcess
from tests.waiting import patient

DENIED = (401, 403)
RECORDS = ("claims", "runs", "partitions")  # whoever does not see one is told that it does not exist
NUMBERS = count()
JOB = {"name": "j", "command": ["true"], "workdir": "/"}

# The callers that may act on bob's things. The agent's key acts for user/bob, the stranger's for
# user/carol, slurm's for a queue.
CALLERS = ("admin", "bob", "ann", "agent", "stranger", "viewer", "slurm")
MAY = {
    READERS: set(CALLERS),
    LISTERS: set(CALLERS),
    SEERS: {"admin", "bob"},
    LOOKERS: {"admin", "bob", "agent", "viewer"},
    MANAGERS: {"admin", "bob"},
    operations.RELEASE_CLAIM.callers: {"admin", "bob", "agent"},
    ADMINS: {"admin"},
    HOLDERS: {"admin", "bob", "agent"},
    AGENTS: {"admin", "slurm"},
    STARTERS: {"admin", "bob"},
    operations.LIST_PROJECTS.callers: set(CALLERS),
    operations.SET_PROJECT.callers: {"admin"},
    operations.DEFRAGMENT.callers: {"admin"},
    operations.PRIORITISE_RUN.callers: {"admin", "bob"},
    operations.ROTATE_KEY.callers: {"admin"},  # another's
    operations.REPORT_RUN.callers: {"admin", "bob"},
    operations.CREATE_CLAIM.callers: {"admin", "bob", "agent"},
    operations.CREATE_RUN.callers: {"admin", "bob", "ann"},
    operations.CREATE_PARTITION.callers: {"admin", "bob", "ann"},
}


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    process = ControllerProcess(tmp_path_factory.mktemp("controller"))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def keys(controller: ControllerProcess) -> dict[str, str]:
    made = {"admin": controller.key}
    wanted = {
        "bob": {"role": "user"},
        "ann": {"role": "user"},
        "viewer": {"role": "viewer"},
        "agent": {"role": "agent", "ownerPrefix": "user/bob"},
        "stranger": {"role": "agent", "ownerPrefix": "user/carol"},
        "slurm": {"role": "agent", "ownerPrefix": "slurm/alpha"},
    }
    for subject, body in wanted.items():
        status, key = controller.ask("POST", "/v1/keys", {"subject": subject, **body})
        assert status == 201
        made[subject] = key["secret"]
    return made


def address_of(operation: Operation[Any], controller: ControllerProcess, bob: str) -> str:
    """The operation's address, about a new thing of bob's where it is about one."""
    about = operation.path.split("/")[2] if operation.path.startswith("/v1/") else ""
    if "{" not in operation.path:
        return operation.path + ("?size=1" if operation.name == "get_capacity" else "")
    if about in ("claims", "partitions"):
        name = f"held-{next(NUMBERS)}"
        status, claim = controller.ask("POST", "/v1/claims?wait=20s", {"name": name, "size": 1}, key=bob)
        assert status == 201
        return operation.path.format(id=claim["id"] if about == "claims" else claim["partitionId"])
    if about == "runs":
        status, run = controller.ask("POST", "/v1/runs", {"job": JOB}, key=bob)
        assert status == 201
        return operation.path.format(id=run["id"])
    if about == "queues":
        return operation.path.format(kind="slurm", cluster="alpha")
    if about == "projects":
        return operation.path.format(project="lab/vision")
    suffix = "?size=1" if operation.path.endswith("capacity") else ""
    return operation.path.format(id={"devices": "pod16:15", "keys": "nobody"}.get(about, ""), pool="pod16") + suffix


def body_of(operation: Operation[Any]) -> Any:
    return {
        "create_claim": {"size": 1, "owner": "user/bob", "queue": "wait"},
        "create_partition": {"name": f"mine-{next(NUMBERS)}", "size": 1},
        "create_run": {"job": JOB},
        "yield_claim": {},
        "checkpoint_claim": {},
        "set_project": {"version": 7},
        "estimate": {"size": 1},
        "defragment": {"size": 8},
        "what_if": {"policy": "reserve = false"},
        "drain_device": {"reason": "a test"},
        "tell_queue": {"queue": "slurm/alpha"},
        "report_run": {"attempt": 0},
        "report_jobs": {"instance": "0011223344556677"},
        "pause_run": {},
        "resume_run": {},
        "label_run": {"labels": {"a": "b"}},
        "prioritise_run": {"priority": -200},
        "rotate_key": {},
        "create_key": {"subject": f"s{next(NUMBERS)}", "role": "viewer"},
    }.get(operation.name)


def status_of(controller: ControllerProcess, operation: Operation[Any], address: str, key: str | None) -> int:
    """The status of an answer, whatever its body."""
    sent = {"Authorization": f"Bearer {key}"} if key is not None else {}
    body = body_of(operation)
    connection = http.client.HTTPConnection("127.0.0.1", controller.port, timeout=patient(30))
    try:
        connection.request(operation.method, address, None if body is None else json.dumps(body), sent)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_who_may(operation: Operation[Any], controller: ControllerProcess, keys: dict[str, str]) -> None:
    who = operation.callers
    address = address_of(operation, controller, keys["bob"])
    stranger = status_of(controller, operation, address, None)
    assert (stranger == 401) is (who != EVERYBODY)
    if who == EVERYBODY:
        return
    may = MAY[who]
    callers = sorted(CALLERS, key=lambda caller: caller in may)  # the refused first: the others change things
    answered = {caller: status_of(controller, operation, address, keys[caller]) for caller in callers}
    refusals = (*DENIED, 404) if operation.tag in RECORDS else DENIED
    assert {caller for caller, status in answered.items() if status not in refusals} == may, answered
