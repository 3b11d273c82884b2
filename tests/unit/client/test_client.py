"""The typed client: lists to their end, streams that continue, and where the log's end is."""

import itertools
from collections.abc import Iterable

import pytest

from moorings.client.client import Client
from moorings.client.requests import EventFilter
from moorings.client.transport import Endpoint, RetryPolicy, Transport
from moorings.core.model.errors import MooringsError
from tests.unit.client.recorded import Reply, event, listing, problem, server_event

DEVICE = {"id": "p:0", "pool": "p", "accelerator": "ipu", "index": 0, "domain": 0, "state": "IN_SERVICE"}


@pytest.fixture
def client(server) -> Iterable[Client]:
    with Client(Transport(Endpoint(server.url, timeout_s=10), RetryPolicy(20, 0.01, 0.05))) as made:
        yield made


def log_of(count, named=None):
    """A recorded event log of ``count`` events; where names are asked for, only those ``named``."""

    def answer(seen):
        after, limit = int(seen.query.get("after", 0)), int(seen.query.get("limit", 100))
        wanted = named if named is not None and "name" in seen.query else bool
        found = [seq for seq in range(after + 1, count + 1) if wanted(seq)][:limit]
        return listing("Event", [event(seq, "turn.decided") for seq in found])

    return answer


def test_a_list_is_read_to_its_end(server, client):
    server.on("GET", "/v1/devices", listing("Device", [DEVICE], "t1"), listing("Device", [DEVICE, DEVICE]))
    assert len(client.list_devices("p")) == 3
    assert [seen.query.get("continue") for seen in server.seen] == [None, "t1"]


def test_unknown_fields_of_a_newer_controller_are_passed_over(server, client):
    server.on("GET", "/v1/devices/p:0", Reply({**DEVICE, "colour": "blue"}))
    assert client.device("p:0").id == "p:0"


def test_a_watch_goes_on_where_it_was_after_a_loss(server, client):
    server.on(
        "GET",
        "/v1/events",
        Reply(chunks=[b": hello\n\n", server_event(5, "run.created") + server_event(6, "run.starting")], cut=True),
        Reply(chunks=[server_event(7, "run.started")], cut=True),
    )
    batches = list(itertools.islice(client.watch_events(EventFilter(run="r"), after=4), 4))
    assert [[item.seq for item in batch] for batch in batches] == [[], [5, 6], [], [7]]
    assert [seen.headers["last-event-id"] for seen in server.seen] == ["4", "6"]
    assert server.seen[0].query == {"watch": "1", "run": "r"}


def test_a_watch_that_the_server_ends_is_opened_again(server, client):
    server.on("GET", "/v1/events", Reply(chunks=[server_event(1, "run.created")]), Reply(chunks=[], cut=False))
    batches = list(itertools.islice(client.watch_events(), 3))
    assert [len(batch) for batch in batches] == [0, 1, 0]


def test_a_refused_watch_raises(server, client):
    server.on("GET", "/v1/events", problem("auth.invalid", "no", 401))
    with pytest.raises(MooringsError) as caught:
        next(client.watch_events())
    assert caught.value.code == "auth.invalid"


def test_logs_come_as_they_are(server, client):
    server.on("GET", "/v1/runs/r/logs", Reply(chunks=[b"a\n", b"\xffb"]))
    assert b"".join(client.logs("r")) == b"a\n\xffb"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100, 1023])
def test_the_last_sequence_number_is_found_without_reading_the_log(server, client, count):
    server.on("GET", "/v1/events", log_of(count))
    assert client.last_seq() == count
    assert all(seen.query["limit"] == "1" for seen in server.seen)
    assert len(server.seen) <= 2 * max(count, 1).bit_length() + 1


def test_the_last_events_of_a_name_are_looked_for_from_the_end(server, client):
    server.on("GET", "/v1/events", log_of(100_000, named=lambda seq: seq % 50 == 0))
    server.seen.clear()
    assert [item.seq for item in client.last_events(EventFilter(names=("run.ended",)), 3)] == [99_900, 99_950, 100_000]
    assert all(int(seen.query["after"]) > 99_000 for seen in server.seen if "name" in seen.query)
    server.on("GET", "/v1/events", log_of(1000, named=lambda seq: seq == 7))
    assert [item.seq for item in client.last_events(EventFilter(names=("run.ended",)), 3)] == [7]


def test_the_last_events_of_the_whole_log(server, client):
    server.on("GET", "/v1/events", log_of(2500))
    assert [item.seq for item in client.last_events(EventFilter(), 3)] == [2498, 2499, 2500]
    assert [item.seq for item in client.last_events(EventFilter(claim="c"), 2)] == [2499, 2500]


def test_names_of_the_first_release_still_work() -> None:
    assert Client.claim is Client.get_claim
    assert Client.events is Client.list_events
