"""Arrays at the command line: made, followed, cancelled, and folded into one line of the queue."""

from __future__ import annotations

from typing import Any

from moorings.cli.arrays import end_text, progress_text, worst_exit_code
from moorings.cli.folded_arrays import fold_elements, fold_waiting
from moorings.cli.output import OutputFormat, TableStyle, render_list
from moorings.cli.queue_entries import build_queue
from moorings.cli.resources import QUEUE_ENTRIES, RUNS
from moorings.wire.codec import encode
from moorings.wire.shapes import ArrayBody, ReasonBody, RunBody
from tests.cases import cases
from tests.unit.cli import samples
from tests.unit.cli.test_output import check_golden
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


# -- an array where a run is named -------------------------------------------------------------------------------------

NO_RUN = problem("run.unknown", "there is no such run", 404)
NO_CLAIM = problem("claim.unknown", "there is no such claim", 404)
WHY = ReasonBody(code="engine.waiting", message="Slurm job 14 is PENDING (Dependency)")
MIXED = [element(0, "SUCCEEDED", exit_code=0), element(1, "RUNNING"), *(element(index, reason=WHY) for index in (2, 3))]


def test_get_shows_the_runs_of_an_array(server, moor):
    server.on("GET", f"/v1/runs/{ARRAY}", NO_RUN)
    server.on("GET", "/v1/runs", runs(*MIXED))
    code, out, _ = moor("get", "run", ARRAY, "-o", "name")
    assert (code, out.split()) == (0, [f"run/{ARRAY}-{index}" for index in range(4)])


def test_a_list_of_runs_has_one_line_for_those_that_wait(server, moor):
    server.on("GET", "/v1/runs", runs(MIXED[0], MIXED[2], MIXED[1], MIXED[3]))  # as texts, -10 comes before -2
    lines = moor("get", "runs")[1].splitlines()[1:]
    assert [line.split()[:3] for line in lines] == [
        [f"{ARRAY}-0", "sweep-0", "SUCCEEDED"],
        [f"{ARRAY}-1", "sweep-1", "RUNNING"],
        [ARRAY, "sweep[2-3%2]", "WAITING"],
    ]
    assert len(moor("get", "runs", "-o", "name")[1].splitlines()) == 4


@cases("columns", [80, 100, 200])
def test_the_screen(columns):
    hundred = [element(index, "RUNNING") for index in range(2)]
    hundred += [element(index, reason=WHY) for index in range(2, 100)]
    look = TableStyle(width=columns)
    shown = [
        render_list(RUNS, fold_elements(hundred), OutputFormat("table"), samples.NOW, look),
        render_list(QUEUE_ENTRIES, fold_waiting(build_queue([], hundred)), OutputFormat("table"), samples.NOW, look),
    ]
    assert [len(text.splitlines()) for text in shown] == [4, 4]
    assert max(len(line) for text in shown for line in text.splitlines()) <= columns
    check_golden(f"array.{columns}.txt", "\n\n".join(shown) + "\n")


def test_describe_says_how_many_are_in_which_state(server, moor):
    server.on("GET", f"/v1/runs/{ARRAY}", NO_RUN)
    server.on("GET", "/v1/runs", runs(*MIXED))
    code, out, err = moor("describe", "run", ARRAY)
    assert code == 0
    for text in (ARRAY, "sweep", "1 RUNNING (1)", "1 SUCCEEDED (0)", "2 WAITING (2-3)", WHY.message):
        assert text in out
    assert f"moor describe run {ARRAY}-0" in err


def test_explain_is_about_the_first_that_waits(server, moor):
    server.on("GET", f"/v1/runs/{ARRAY}", NO_RUN)
    server.on("GET", f"/v1/claims/{ARRAY}", NO_CLAIM)
    server.on("GET", "/v1/runs", runs(*MIXED))
    for words in (("explain", ARRAY), ("explain", "run", ARRAY)):
        code, out, err = moor(*words)
        assert code == 0
        assert f"run {ARRAY}-2 is WAITING" in out
        assert WHY.message in out
        assert f"array {ARRAY}: 1 RUNNING (1), 1 SUCCEEDED (0), 2 WAITING (2-3)" in err


def test_the_output_of_an_array_is_that_of_one_of_its_runs(server, moor):
    server.on("GET", f"/v1/runs/{ARRAY}/logs", NO_RUN)
    server.on("GET", "/v1/runs", runs(*MIXED))
    code, _, err = moor("logs", ARRAY)
    assert code == 2
    assert f"moor logs {ARRAY}-1" in err


def test_an_array_that_runs_is_preferred_to_a_run_that_has_ended(server, moor):
    server.on("GET", "/v1/runs/sweep", body(samples.run("run-0ldold0ld0ld", "sweep", state="SUCCEEDED", claim=None)))
    server.on("GET", "/v1/runs", runs(element(0, "RUNNING"), element(1)))
    code, out, _ = moor("get", "run", "sweep")
    assert (code, f"{ARRAY}-0" in out) == (0, True)


def test_of_two_arrays_of_one_name_none_is_taken(server, moor):
    other = ArrayBody(id="run-0therotherot", index=0, size=1, limit=0)
    twin = samples.run("run-0therotherot-0", "sweep-0", state="WAITING", claim=None, array=other)
    server.on("GET", "/v1/runs/sweep", NO_RUN)
    server.on("GET", "/v1/runs", runs(element(0, "RUNNING"), element(1), twin))
    code, _, err = moor("get", "run", "sweep")
    assert (code, "2 arrays are called 'sweep'" in err) == (2, True)
    assert ARRAY in err


def test_an_array_that_has_ended_is_found_by_its_name(server, moor):
    server.on("GET", "/v1/runs/sweep", NO_RUN)
    server.on("GET", "/v1/runs", runs(), runs(*ENDED))
    code, out, _ = moor("get", "run", "sweep")
    assert (code, "SUCCEEDED" in out) == (0, True)


def test_a_command_for_one_run_names_one_of_an_array(server, moor):
    server.on("GET", "/v1/runs/sweep", NO_RUN)
    server.on("GET", "/v1/runs", runs(element(0, "SUCCEEDED"), element(1, "RUNNING")))
    code, _, err = moor("exec", "sweep", "--", "hostname")
    assert (code, "moor exec sweep-1" in err) == (2, True)
