"""Arrays at the command line: made, followed, cancelled, and folded into one line of the queue."""

from __future__ import annotations

from typing import Any

from moorings.cli.arrays import end_text, fold_waiting, progress_text, worst_exit_code
from moorings.cli.queue_entries import build_queue
from moorings.wire.codec import encode
from moorings.wire.shapes import ArrayBody, RunBody
from tests.unit.cli import samples
from tests.unit.client.recorded import Reply, body, listing, problem

ARRAY = "run-7f3kq2m4xw2a"


def element(index: int, state: str = "WAITING", **more: Any) -> RunBody:
    part = ArrayBody(id=ARRAY, index=index, size=4, limit=2)
    made: RunBody = samples.run(f"{ARRAY}-{index}", f"sweep-{index}", state=state, claim=None, array=part, **more)
    return made


def runs(*elements: RunBody) -> Reply:
    return listing("Run", [encode(each) for each in elements])


ENDED = [
    element(0, "SUCCEEDED", exit_code=0),
    element(1, "FAILED", exit_code=3),
    element(2, "FAILED", exit_code=7),
    element(3, "SUCCEEDED", exit_code=0),
]
TEXT = f"{ARRAY}: 2 FAILED (1-2), 2 SUCCEEDED"


def test_waiting_elements_are_one_line_of_the_queue():
    elements = [element(0, "RUNNING"), element(1), element(3), element(2)]
    entries = fold_waiting(build_queue([], [*elements, samples.run(claim=None, state="WAITING")]))
    assert [(entry.name, entry.ident) for entry in entries] == [
        ("sweep-0", f"{ARRAY}-0"),
        ("digits", "run-7f3kq2m4xw2a"),
        ("sweep[1-3%2]", ARRAY),
    ]


def test_the_texts_of_an_array():
    assert progress_text([element(0, "SUCCEEDED"), element(1, "RUNNING"), element(2), element(3)]) == (
        "1 of 4 ended, 1 run, 2 wait"
    )
    assert end_text(ARRAY, ENDED) == TEXT
    assert worst_exit_code(ENDED) == 7


def test_an_array_ends_with_the_highest_exit_code(server, moor):
    server.on("POST", "/v1/runs", Reply(encode(element(0)), 201))
    server.on("GET", "/v1/runs", runs(element(0, "RUNNING"), element(1)), runs(*ENDED))
    server.on("GET", f"/v1/runs/{ARRAY}-1", body(ENDED[1]))
    code, out, err = moor("run", "--array", "0-3%2", "--ipus", "4", "--", "x")
    assert (code, out) == (7, "")
    assert err == f"{ARRAY}: 0 of 2 ended, 1 run, 1 wait\n{TEXT}\n"
    assert server.asked("POST", "/v1/runs")[0].json["job"]["array"] == "0-3%2"
    assert server.asked("GET", "/v1/runs")[0].query["array"] == ARRAY


def test_a_detached_array_prints_its_id(server, moor):
    server.on("POST", "/v1/runs", Reply(encode(element(0)), 201))
    assert moor("run", "--detach", "--array", "0-3", "--ipus", "4", "--", "x") == (0, f"{ARRAY}\n", "")


def test_an_array_is_waited_for_by_its_id(server, moor):
    server.on("GET", f"/v1/runs/{ARRAY}", problem("run.unknown", "there is no such run", 404))
    server.on("GET", f"/v1/claims/{ARRAY}", problem("claim.unknown", "there is no such claim", 404))
    server.on("GET", "/v1/runs", runs(*ENDED))
    code, _, err = moor("wait", ARRAY)
    assert (code, err) == (7, f"{TEXT}\n")


def test_an_array_is_cancelled_from_its_end(server, moor):
    server.on("POST", f"/v1/runs/{ARRAY}/cancel", problem("run.unknown", "there is no such run", 404))
    server.on("GET", "/v1/runs", runs(element(0, "RUNNING", started_at="2026-01-31T12:00:00Z"), element(1)))
    for index in (0, 1):
        server.on("POST", f"/v1/runs/{ARRAY}-{index}/cancel", body(element(index, "CANCELLED")))
    code, out, _ = moor("cancel", ARRAY, "--no-wait")
    assert (code, out) == (0, f"array/{ARRAY} 2 runs cancelled\n")
    asked = [seen.path for seen in server.seen if seen.path.endswith("/cancel")]
    assert asked[1:] == [f"/v1/runs/{ARRAY}-1/cancel", f"/v1/runs/{ARRAY}-0/cancel"]


def test_what_is_no_array_either_is_unknown(server, moor):
    server.on("POST", f"/v1/runs/{ARRAY}/cancel", problem("run.unknown", "there is no such run", 404))
    server.on("GET", "/v1/runs", runs())
    code, _, err = moor("cancel", ARRAY)
    assert code != 0
    assert "run.unknown" in err


def test_the_output_of_an_element_is_shown(server, moor):
    server.on("GET", f"/v1/runs/{ARRAY}-3/logs", Reply(chunks=[b"part 3\n"]))
    assert moor("logs", ARRAY, "--index", "3")[:2] == (0, "part 3\n")
