"""Commands against a recorded controller: what is asked, what is shown where, and the exit code."""

import io
import json
import subprocess
import sys
import tarfile
import time
from dataclasses import replace

import pytest
import yaml

from moorings.cli.main import main
from moorings.core.model.timestamps import Timestamp
from moorings.terminal.console import Console
from moorings.terminal.following import last_lines
from moorings.wire.codec import encode, format_time
from moorings.wire.shapes import CheckpointBody, FindingBody, FindingsBody, PauseBody, ReasonBody
from tests.cases import cases
from tests.unit.cli import samples
from tests.unit.client.recorded import Reply, body, event, listing, problem, server_event

FULL_POOL = {"apiVersion": "moorings/v1", "kind": "PoolList"}


def as_list(kind, items):
    return listing(kind, [encode(item) for item in items])


def now():
    return Timestamp(time.time_ns() // 1000)


@pytest.mark.parametrize(
    "words",
    [
        ("get", "pools"),
        ("get", "pool"),
        ("list", "po"),
        ("ls", "pools"),
        ("get", "-q", "pools"),
        ("-q", "get", "pools"),
    ],
)
def test_nouns_and_verbs_have_several_spellings(server, moor, words):
    server.on("GET", "/v1/pools", as_list("Pool", samples.POOLS))
    code, out, err = moor(*words)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split()[:3] == ["NAME", "KIND", "DRIVER"]


def test_an_empty_list_is_told_on_stderr_and_is_no_failure(server, moor):
    server.on("GET", "/v1/partitions", listing("Partition", []))
    assert moor("get", "partitions", "--pool", "pod1") == (0, "", "No partitions found in pool pod1.\n")
    code, out, err = moor("get", "partitions", "-o", "json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"apiVersion": "moorings/v1", "kind": "PartitionList", "items": []}


def test_filters_reach_the_controller(server, moor):
    server.on("GET", "/v1/claims", as_list("Claim", samples.CLAIMS))
    moor("get", "claims", "--state", "pending", "--owner", "user/ann", "--pool", "pod64")
    assert server.seen[0].query == {
        "state": "PENDING",
        "ownerPrefix": "user/ann",
        "pool": "pod64",
        "all": "true",
        "limit": "1000",
    }


def test_one_thing_by_name_in_each_spelling(server, moor):
    server.on("GET", "/v1/partitions/p64", body(samples.PARTITIONS[0]))
    for words in (("partition", "p64"), ("partition/p64",), ("parts", "partition/p64")):
        assert moor("get", *words, "-o", "name") == (0, "partition/p64\n", "")


def test_names_of_another_noun_are_refused(server, moor):
    code, _, err = moor("delete", "partition", "claim/p64")
    assert code == 2
    assert "is no partition" in err
    assert server.seen == []


def test_those_that_exist_are_shown_and_the_missing_one_is_the_error(server, moor):
    server.on("GET", "/v1/partitions/p64", body(samples.PARTITIONS[0]))
    server.on("GET", "/v1/partitions/no", problem("partition.unknown", "there is no partition 'no'", 404))
    code, out, err = moor("get", "partitions", "p64", "no", "-o", "name")
    assert (code, out) == (3, "partition/p64\n")
    assert err == "error: there is no partition 'no' (partition.unknown)\nrequest id: req-1\n"


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("auth.denied", 403, 4),
        ("pool.unknown", 404, 3),
        ("claim.no_room", 409, 6),
        ("key.conflict", 409, 5),
        ("store.unavailable", 503, 7),
        ("body.invalid", 422, 2),
        ("internal.error", 500, 1),
        ("moon.full", 418, 1),
    ],
)
def test_exit_codes_come_from_the_one_table(server, moor, code, status, exit_code):
    server.on("GET", "/v1/pools", problem(code, "because\x1b[2J", status, hint="do this"))
    got, out, err = moor("get", "pools")
    assert (got, out) == (exit_code, "")
    assert err == f"error: because\\x1b[2J ({code})\nhint: do this\nrequest id: req-1\n"


def test_a_missing_key_is_told_in_the_words_of_a_terminal(server, moor):
    server.on("GET", "/v1/pools", problem("auth.missing", "no access key", 401, hint="send the header Authorization"))
    code, _, err = moor("get", "pools")
    assert code == 4
    assert "moor config view --show-origin" in err
    assert "header" not in err


def test_no_controller_is_exit_code_7_with_a_hint(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    code, out, err = moor("get", "pools")
    assert (code, out) == (7, "")
    assert "moor up" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    assert "Traceback" in moor("get", "pools", "--debug")[2]


def test_wrong_usage_is_exit_code_2(moor):
    for words in (
        ("frobnicate",),
        ("get", "frobs"),
        ("get", "pools", "--frob"),
        ("run",),
        ("get", "pools", "-o", "xml"),
    ):
        code, out, err = moor(*words)
        assert (code, out) == (2, ""), words
        assert err.startswith("error: "), words


def test_the_key_and_the_trace(server, moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_ACCESS_KEY", "moor_secret")
    server.on("GET", "/v1/pools", as_list("Pool", samples.POOLS))
    _, _, err = moor("-v", "get", "pools")
    assert server.seen[0].headers["authorization"] == "Bearer moor_secret"
    assert f"GET {server.url}/v1/pools?limit=1000: 200" in err
    assert "secret" not in err


def test_config_view_shows_origins_and_keeps_the_key_back(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_ACCESS_KEY", "moor_abcdefghijklm")
    code, out, _ = moor("config", "view", "--show-origin")
    assert code == 0
    assert "moor_abc..." in out
    assert "abcdefghijklm" not in out
    assert "environment MOORINGS_ACCESS_KEY" in out


def test_use_context_changes_one_line_of_the_file(moor, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "moorings" / "config.toml"
    file.parent.mkdir()
    file.write_text('# mine\noutput = "wide"\n[contexts.pod1]\nserver = "http://pod1"\n')
    assert moor("config", "use-context", "pod1")[0] == 0
    assert file.read_text() == 'context = "pod1"\n# mine\noutput = "wide"\n[contexts.pod1]\nserver = "http://pod1"\n'
    assert moor("config", "use-context", "pod2")[0] == 2
    file.write_text(file.read_text() + "[contexts.pod2]\n")
    assert moor("config", "use-context", "pod2")[0] == 0
    assert file.read_text().startswith('context = "pod2"\n# mine\n')


def test_the_configured_form_of_output_holds_for_lists(server, moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_OUTPUT", "name")
    server.on("GET", "/v1/pools", as_list("Pool", samples.POOLS))
    assert moor("get", "pools") == (0, "pool/pod256\npool/wse\n", "")


def test_create_partition_is_refused_at_once_without_room(server, moor):
    server.on("POST", "/v1/claims", problem("claim.no_room", "no room for 64 devices", 409, hint="try 16"))
    code, out, err = moor("create", "partition", "p64", "--size", "64")
    assert (code, out) == (6, "")
    assert "hint: try 16; --wait waits for room" in err
    assert server.seen[0].json == {**_asked(), "queue": "never"}


def _asked():
    return {
        "name": "p64",
        "size": 64,
        "accelerator": "ipu",
        "gcds": 1,
        "replicasPerGcd": 1,
        "resources": {},
        "project": "default",
        "priority": 0,
        "preemptible": False,
        "checkpoint": {"resumable": False, "warnS": 120.0, "graceS": 30.0},
    }


def test_create_partition_waits_and_says_why(server, moor):
    waiting = samples.claim(state="PENDING", reason=samples.FULL, position=2)
    granted = samples.claim(state="GRANTED", **samples.READY)
    ready = samples.claim(state="READY", **samples.READY, **samples.TIMES)
    server.on("POST", "/v1/claims", Reply(encode(waiting), 201))
    server.on("GET", "/v1/claims/claim-p64", body(waiting), body(granted), body(ready))
    code, out, err = moor("create", "partition", "p64", "--size", "16", "--wait")
    assert (code, out) == (0, "partition/p64 created in pod64, devices 16-31\n")
    assert err.splitlines() == [
        f"p64: {samples.WAITS}",
        "p64: GRANTED pod64 devices 16-31",
        "p64: waits for partition p64 to be ACTIVE",
        "p64: partition p64 ACTIVE after 0.4 s",
    ]
    assert [seen.query["for"] for seen in server.asked("GET", "/v1/claims/claim-p64")] == [
        "GRANTED",
        "GRANTED",
        "READY",
    ]


def test_create_partition_tells_why_it_came_to_nothing(server, moor):
    server.on("POST", "/v1/claims", Reply(encode(samples.claim(state="PENDING")), 201))
    reason = ReasonBody(code="driver.unknown", message="the driver said no")
    server.on("GET", "/v1/claims/claim-p64", body(samples.claim(state="FAILED", reason=reason)))
    code, out, err = moor("create", "partition", "p64", "--size", "16")
    assert (code, out) == (2, "")
    assert "error: claim p64 is FAILED: the driver said no" in err


def test_a_wait_has_a_limit(server, moor):
    waiting = samples.claim(state="PENDING", reason=samples.FULL, position=2)
    server.on("POST", "/v1/claims", Reply(encode(waiting), 201))
    server.on("GET", "/v1/claims/claim-p64", body(waiting))
    code, out, err = moor("create", "partition", "p64", "--size", "16", "--wait", "--timeout", "50ms")
    assert (code, out) == (124, "")
    assert "the time is up" in err


def test_nonsense_is_refused_before_any_network(server, moor):
    for words in (
        ("create", "partition", "P64!", "--size", "4"),
        ("create", "partition", "x" * 37, "--size", "4"),
        ("create", "claim", "--size", "4", "--gcds", "3"),
        ("create", "claim", "--size", "0"),
        ("create", "claim", "--size", "1", "--memory", "4000"),
        ("run", "--ipus", "4", "-n", "3", "--", "true"),
        ("run", "--ipus", "4", "--size", "4", "--", "true"),
        ("run", "--env", "NOPE_NOT_SET", "--", "true"),
        ("run", "python3", "train.py"),
        ("drain", "device", "pod64", "--reason", "x"),
    ):
        assert moor(*words)[0] in (2, 3), words
    assert server.seen == []


def test_create_key_shows_the_secret_alone_on_stdout(server, moor):
    key = {**encode(samples.KEYS[1]), "secret": "moor_x"}
    server.on("POST", "/v1/keys", Reply(key, 201))
    code, out, err = moor("create", "key", "ann", "--role", "agent", "--owner-prefix", "slurm/c1")
    assert (code, out) == (0, "moor_x\n")
    assert "only now" in err
    assert server.seen[0].json == {"subject": "ann", "role": "agent", "ownerPrefix": "slurm/c1"}


@pytest.mark.parametrize(("words", "lifetime_s"), [("90d", 90 * 86_400.0), ("never", 0.0)])
def test_create_key_says_how_long_it_works(server, moor, words, lifetime_s):
    server.on("POST", "/v1/keys", Reply({**encode(samples.KEYS[2]), "secret": "moor_x"}, 201))
    code, _, err = moor("create", "key", "bob", "--expires", words)
    assert (code, "works until 2026-12-31T12:00:00Z" in err) == (0, True)
    assert server.seen[0].json == {"subject": "bob", "role": "user", "lifetimeS": lifetime_s}


@pytest.mark.parametrize(
    ("words", "told"),
    [*((words, "duration.invalid") for words in ("0", "soon", "-1d", "")), ("3s", "1 minute"), ("3661d", "3660 days")],
)
def test_a_lifetime_that_is_none_is_refused_before_the_controller_is_asked(server, moor, words, told):
    code, _, err = moor("create", "key", "bob", "--expires", words)
    assert (code, told in err, server.seen) == (2, True, [])


def test_delete_waits_until_nothing_is_left(server, moor):
    server.on("DELETE", "/v1/partitions/p64", body(samples.claim(state="RELEASING")))
    server.on(
        "GET", "/v1/claims/claim-p64", body(samples.claim(state="RELEASING")), body(samples.claim(state="RELEASED"))
    )
    assert moor("delete", "partition", "p64", "-qy") == (0, "partition/p64 deleted\n", "")
    assert [seen.method for seen in server.seen] == ["DELETE", "GET", "GET"]
    assert moor("rm", "partition", "p64", "--no-wait", "--yes") == (0, "partition/p64 is being deleted\n", "")


def test_runs_are_not_deleted(server, moor):
    code, _, err = moor("delete", "run", "digits")
    assert code == 2
    assert "moor cancel digits" in err


def test_drain_takes_ranges_and_says_who_keeps_it(server, moor):
    for index in (3, 4):
        held = samples.device(index, "DRAINED", owner="user/ann" if index == 3 else None)
        server.on("POST", f"/v1/devices/pod64:{index}/drain", body(held))
    code, out, _ = moor("drain", "device", "pod64:3-4", "--reason", "link errors", "-y")
    assert code == 0
    assert out == "device/pod64:3 drained; user/ann keeps it until its end\ndevice/pod64:4 drained\n"
    assert server.seen[0].json == {"reason": "link errors"}


def test_a_range_of_one_fate_is_one_line(server, moor):
    devices = [samples.device(index, "DRAINED" if index != 2 else "IN_SERVICE") for index in range(6)]
    server.on("GET", "/v1/pools/pod64", body(samples.pool("pod64")))
    server.on("GET", "/v1/devices", as_list("Device", devices))
    for device in devices:
        server.on("GET", f"/v1/devices/{device.id}", body(device))
        server.on("POST", f"/v1/devices/{device.id}/resume", body(samples.device(device.index)))
    code, out, err = moor("resume", "pool", "pod64")
    assert (code, err) == (0, "device/pod64:2 is in service\n")
    assert out == "device/pod64:0-1 resumed\ndevice/pod64:3-5 resumed\n"


def test_what_was_done_before_an_error_is_told(server, moor):
    for index in (3, 4):
        server.on("POST", f"/v1/devices/pod64:{index}/drain", body(samples.device(index, "DRAINED")))
    server.on("POST", "/v1/devices/pod64:5/drain", problem("device.unknown", "no device", 404))
    code, out, err = moor("drain", "device", "pod64:3-5", "--reason", "x", "--yes")
    assert (code, out) == (3, "device/pod64:3-4 drained\n")
    assert err.startswith("error: no device (device.unknown)\n")


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "partition", "p64"),
        ("delete", "claim", "p64"),
        ("delete", "key", "key-3hq2"),
        ("reset", "partition", "p64"),
        ("drain", "device", "pod64:3", "--reason", "x"),
        ("drain", "pool", "pod64", "--reason", "x"),
    ],
)
def test_what_takes_away_needs_yes_where_nobody_can_be_asked(server, moor, words):
    code, out, err = moor(*words)
    assert (code, out) == (2, "")
    assert "no terminal to ask at" in err
    assert "hint: say --yes (-y)" in err
    assert server.seen == []


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("delete", "partition", "p64"), "/v1/partitions/p64"),
        (("delete", "claim", "p64"), "/v1/claims/p64"),
        (("reset", "partition", "p64"), "/v1/partitions/p64"),
        (("drain", "device", "pod64:3", "--reason", "x"), "/v1/devices/pod64:3"),
        (("drain", "pool", "pod64", "--reason", "x"), "/v1/pools/pod64"),
    ],
)
def test_nobody_is_asked_about_what_does_not_exist(server, moor, monkeypatch, words, path):
    monkeypatch.setattr(Console, "can_ask", True)
    server.on("GET", path, problem("path.unknown", "there is no such thing", 404))
    code, out, err = moor(*words)
    assert (code, out) == (3, "")
    assert "?" not in err
    assert [(seen.method, seen.path) for seen in server.seen] == [("GET", path)]


def test_an_answer_of_no_takes_nothing_away(server, moor, monkeypatch):
    monkeypatch.setattr(Console, "can_ask", True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    server.on("GET", "/v1/keys", as_list("Key", samples.KEYS))
    code, _, err = moor("delete", "key", samples.KEYS[0].id)
    assert code == 130
    assert err.endswith("nothing was changed\n")
    assert f"Revoke {samples.KEYS[0].id}?" in err
    assert [seen.method for seen in server.seen] == ["GET"]
    assert moor("delete", "key", "key-nope")[0] == 3


def test_resume_passes_over_what_is_in_service(server, moor):
    server.on("GET", "/v1/pools/pod64", body(samples.POOLS[0]))
    server.on("GET", "/v1/devices", as_list("Device", []))
    server.on("GET", "/v1/devices/pod64:3", body(samples.device(3)))
    server.on("GET", "/v1/devices/pod64:8", body(samples.device(8, "DRAINED")))
    server.on("POST", "/v1/devices/pod64:8/resume", body(samples.device(8)))
    code, out, err = moor("resume", "device", "pod64:3,8")
    assert (code, out, err) == (0, "device/pod64:8 resumed\n", "device/pod64:3 is in service\n")


def test_reset(server, moor):
    server.on("POST", "/v1/partitions/p64/reset", body(samples.partition(state="RESETTING")))
    assert moor("reset", "partition", "p64", "-y")[:2] == (0, "partition/p64 reset, RESETTING\n")


def test_explain_a_run_explains_its_claim(server, moor):
    server.on("GET", "/v1/runs/digits", body(samples.RUNS[1]))
    told = {"claim": "claim-digits", "state": "PENDING", "summary": "full", "reasons": [encode(samples.FULL)]}
    server.on("GET", "/v1/claims/claim-digits/explain", Reply(told))
    code, out, _ = moor("explain", "run", "digits")
    assert code == 0
    assert out.startswith("claim claim-digits is PENDING: full\n- waits for 16 devices")
    assert json.loads(moor("explain", "run/digits", "-o", "json")[1])["reasons"][0]["code"] == "pool.full"


@pytest.mark.parametrize(
    ("state", "summary"),
    [
        ("READY", "claim p64 is READY: partition p64 (ACTIVE), devices 0-63 of pod64"),
        ("RELEASED", "claim p64 is RELEASED"),
    ],
)
def test_explain_says_it_once(server, moor, state, summary):
    told = {"claim": "claim-p64", "state": state, "summary": summary}
    server.on("GET", "/v1/claims/p64/explain", Reply(told))
    assert moor("explain", "claim", "p64")[:2] == (0, summary + "\n")


def test_describe_shows_the_story(server, moor):
    server.on("GET", "/v1/claims/p64", body(samples.CLAIMS[0]))
    server.on("GET", "/v1/events", listing("Event", [event(3, "claim.granted", claim="claim-p64")]))
    code, out, _ = moor("describe", "claim", "p64")
    assert code == 0
    assert "Owner:" in out
    assert out.splitlines()[-1].split()[:3] == ["3", "2026-01-31T12:00:00Z", "claim.granted"]
    assert server.asked("GET", "/v1/events")[0].query["claim"] == "claim-p64"


def test_events_after_a_number(server, moor):
    server.on("GET", "/v1/events", listing("Event", [event(8, "run.ended", run="r")]))
    code, out, _ = moor("events", "--after", "7", "--name", "run.*", "--no-headers")
    assert (code, out.split()[0]) == (0, "8")
    assert server.seen[0].query == {"after": "7", "limit": "1000", "name": "run.*"}


def test_logs_come_as_they_are(server, capfdbinary):
    server.on("GET", "/v1/runs/digits/logs", Reply(chunks=[b"[0] a\n", b"[1] \xff\n"]))
    assert main(["logs", "digits", "--task", "1"]) == 0
    assert capfdbinary.readouterr().out == b"[0] a\n[1] \xff\n"
    assert server.seen[0].query == {"task": "1"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("wait", "x", "--timeout", "10"), "hint: write 10s or 10m\n"),
        (("create", "claim", "--size", "4", "--lease", "60"), "hint: write 60s or 60m\n"),
        (("create", "key", "ann", "--expires", "90"), "hint: write 90d or 90h\n"),
        (("get", "runs", "--request-timeout", "5"), "hint: write 5s or 5m\n"),
    ],
)
def test_a_number_without_a_unit_is_refused_with_both_spellings(moor, words, hint):
    code, _, err = moor(*words)
    assert (code, err.endswith(hint)) == (2, True), err


@cases(
    ("tail", "shown"),
    [("0", b""), ("1", b"no end"), ("2", b"c\nno end"), ("3", b"\nc\nno end"), ("9", b"a\nb\n\nc\nno end")],
)
def test_the_last_lines_of_an_output(tail, shown):
    assert b"".join(last_lines([b"a", b"\nb\n\n", b"c\nno", b" end"], int(tail))) == shown


def test_of_a_followed_output_only_the_last_lines_and_what_comes_are_shown(server, capfdbinary):
    running = samples.run(started_at="2026-01-31T11:31:00Z")
    server.on("GET", "/v1/runs/digits", body(running))
    server.on("GET", f"/v1/runs/{running.id}", body(samples.run(state="SUCCEEDED", exit_code=0)))
    server.on(
        "GET",
        f"/v1/runs/{running.id}/logs",
        Reply(chunks=[b"[0] a\n[1] b\n[0] c\n"]),
        Reply(chunks=[b"[0] a\n[0] c\n[1] b\n", b"[1] d\n"]),
    )
    assert main(["logs", "-f", "digits", "--tail", "1"]) == 0
    assert capfdbinary.readouterr().out == b"[0] c\n[1] d\n"


def test_logs_of_a_rank_are_those_of_the_task(server, capfdbinary):
    server.on("GET", "/v1/runs/digits/logs", Reply(chunks=[b"a\nb\n"]))
    assert main(["logs", "digits", "--rank", "1", "--tail", "1"]) == 0
    assert capfdbinary.readouterr().out == b"b\n"
    assert server.seen[0].query == {"task": "1"}


def nothing_runs_or_waits(server):
    """Names are looked up among what has not ended first."""
    server.on("GET", "/v1/runs", listing("Run", []))
    server.on("GET", "/v1/claims", listing("Claim", []))


def test_cancel_waits_for_the_end(server, moor):
    nothing_runs_or_waits(server)
    server.on("POST", "/v1/runs/digits/cancel", body(samples.run(state="STOPPING")))
    server.on("GET", "/v1/runs/run-7f3kq2m4xw2a", body(samples.run(state="CANCELLED", exit_code=143)))
    code, out, err = moor("cancel", "digits")
    assert (code, out) == (0, "run/run-7f3kq2m4xw2a cancelled\n")
    assert "STOPPING" in err


PAUSE = PauseBody(by="ann", asked_at="2026-01-31T09:00:00.000000Z", stops_at="2026-01-31T09:02:30.000000Z")
SAVED = CheckpointBody(
    run="run-7f3kq2m4xw2a",
    path="/c/step-7.pt",
    step=7,
    size_bytes=9,
    written_at="2026-01-31T09:00:00.000000Z",
    whole=True,
    rule="zip",
)


def test_pause_waits_until_the_devices_are_free_and_says_from_what_it_resumes(server, moor):
    server.on("POST", "/v1/runs/digits/pause", body(samples.run(state="YIELDING", pause=PAUSE)))
    server.on(
        "GET",
        "/v1/runs/run-7f3kq2m4xw2a",
        body(samples.run(state="PAUSED", pause=replace(PAUSE, stops_at=None), resume_point=SAVED)),
    )
    code, out, err = moor("pause", "digits", "--save-timeout", "5m")
    assert (code, out) == (0, "run/run-7f3kq2m4xw2a paused; it resumes from /c/step-7.pt\n")
    assert err == "run-7f3kq2m4xw2a: saves a checkpoint\n"
    assert json.loads(server.seen[0].body) == {"saveTimeoutS": 300}


def test_the_checkpoints_of_a_run_are_listed_with_why_nobody_can_look(server, moor):
    server.on("GET", "/v1/runs/digits", body(samples.run(checkpoints=(SAVED,), checkpoint_fault="/c is a link")))
    code, out, err = moor("get", "checkpoints", "digits")
    assert (code, "step-7.pt" in out) == (0, True)
    assert err == "warning: the checkpoints of run-7f3kq2m4xw2a cannot be looked at: /c is a link\n"


def test_what_a_run_would_resume_from_is_described_once_it_is_paused(server, moor):
    server.on("GET", "/v1/events", Reply({"items": []}))
    for state, shown in (("RUNNING", False), ("PAUSED", True)):
        server.on("GET", "/v1/runs/digits", body(samples.run(state=state, resume_point=SAVED)))
        assert ("Resume point" in moor("describe", "run", "digits")[1]) == shown


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"state": "SUCCEEDED", "exit_code": 0}, 1, "ended by itself: SUCCEEDED"),
        ({"state": "WAITING"}, 1, "was resumed since"),
        ({"state": "PAUSED", "pause": PAUSE}, 0, "paused before it began"),
        (
            {"state": "PAUSED", "pause": PAUSE, "started_at": "2026-01-31T08:00:00.000000Z"},
            0,
            "paused; no checkpoint of it is whole",
        ),
        (
            {"state": "PAUSED", "pause": PAUSE, "checkpoint_fault": "/c is a symbolic link"},
            0,
            "paused; its checkpoints cannot be looked at: /c is a symbolic link",
        ),
    ],
    ids=["ended", "resumed", "unstarted", "unsaved", "unseen"],
)
def test_what_pause_says_of_each_outcome(server, moor, more, code, words):
    server.on("POST", "/v1/runs/digits/pause", body(samples.run(**more)))
    assert moor("pause", "digits")[:2] == (code, f"run/run-7f3kq2m4xw2a {words}\n")


def test_a_pause_that_takes_too_long_goes_on(server, moor):
    server.on("POST", "/v1/runs/digits/pause", body(samples.run(state="YIELDING", pause=PAUSE)))
    server.on("GET", "/v1/runs/run-7f3kq2m4xw2a", body(samples.run(state="YIELDING", pause=PAUSE)))
    code, _, err = moor("pause", "digits", "--timeout", "50ms")
    assert (code, "it continues: 'moor pause run-7f3kq2m4xw2a'" in err) == (124, True)
    assert moor("pause", "digits", "--no-wait")[1] == "run/run-7f3kq2m4xw2a is being paused\n"


def test_resume_means_a_run_unless_a_noun_says_otherwise(server, moor):
    server.on("POST", "/v1/runs/digits/resume", body(samples.run(state="WAITING")))
    for words in (["digits"], ["run", "digits"], ["run/digits"], ["digits", "--from", "step-7.pt"]):
        assert moor("resume", *words)[:2] == (0, "run/run-7f3kq2m4xw2a resumed\n"), words
    assert moor("resume", "--from", "step-7.pt", "digits")[0] == 0, "as with other commands"
    chosen = {"resumeFrom": "step-7.pt"}
    assert [json.loads(one.body) for one in server.seen] == [{}, {}, {}, chosen, chosen]
    assert moor("resume")[0] == 2
    assert moor("resume", "digits", "--bogus")[0] == 2


def test_wait_gives_the_runs_own_exit_code(server, moor):
    nothing_runs_or_waits(server)
    server.on("GET", "/v1/runs/digits", body(samples.RUNS[1]))
    server.on("GET", "/v1/runs/run-waits4567abc", body(samples.RUNS[1]), body(samples.run(state="FAILED", exit_code=9)))
    code, out, err = moor("wait", "digits")
    assert (code, out) == (9, "")
    assert f"run-waits4567abc: {samples.WAITS}" in err


def test_wait_for_a_claim_that_is_no_run(server, moor):
    nothing_runs_or_waits(server)
    server.on("GET", "/v1/runs/p64", problem("run.unknown", "no run", 404))
    server.on("GET", "/v1/claims/p64", body(samples.CLAIMS[0]))
    server.on("GET", "/v1/claims/claim-p64", body(samples.CLAIMS[0]))
    code, out, _ = moor("wait", "p64", "--for", "ready")
    assert (code, out) == (0, "claim/p64 READY\n")
    assert moor("wait", "p64", "--for", "ended", "--timeout", "50ms")[0] == 124


def test_a_bare_number_is_seconds_for_waits_and_minutes_for_time_limits(server, moor):
    waiting = samples.claim(state="PENDING")
    server.on("POST", "/v1/claims", Reply(encode(waiting), 201))
    assert moor("create", "claim", "--size", "4", "--time", "60", "--lease", "60s")[0] == 0
    asked = server.seen[-1].json
    assert (asked["timeLimitS"], asked["leaseS"]) == (3600.0, 60.0)
    server.on("GET", "/v1/claims/p64", body(waiting))
    server.on("GET", "/v1/claims/claim-p64", body(waiting))
    assert moor("wait", "claim/p64", "--timeout", "0")[0] == 124


def test_the_first_look_is_at_once(server, moor):
    server.on("GET", "/v1/claims/p64", body(samples.CLAIMS[0]))
    assert moor("wait", "claim/p64")[0] == 0
    assert [seen.query.get("wait") for seen in server.asked("GET", "/v1/claims/p64")] == [None]


@pytest.mark.parametrize("words", [("get", "pools"), ("get", "runs"), ("events",)])
def test_an_order_by_a_field_that_does_not_exist_is_wrong_usage(server, moor, words):
    code, out, err = moor(*words, "--sort-by", "nope")
    assert (code, out) == (2, "")
    assert "has no field 'nope'" in err
    assert "hint: fields: " in err
    assert server.seen == []


def test_use_context_says_what_contexts_there_are(moor, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "moorings" / "config.toml"
    file.parent.mkdir()
    file.write_text("[contexts.pod1]\n[contexts.pod2]\n")
    code, _, err = moor("config", "use-context", "nope")
    assert code == 2
    assert err == "error: there is no context 'nope' (config.invalid)\nhint: there are: pod1, pod2\n"


def test_no_word_of_the_controller_reaches_the_terminal_raw(server, moor):
    evil = "\x1b[2J\u202egnp\n"
    claim = {**encode(samples.CLAIMS[1]), "name": evil, "state": evil, "owner": evil}
    told = {"claim": evil, "state": evil, "summary": evil, "reasons": [{"code": evil, "message": evil, "until": evil}]}
    server.on("GET", "/v1/claims", listing("Claim", [claim]))
    server.on("GET", "/v1/claims/x", Reply(claim))
    server.on("GET", "/v1/claims/x/explain", Reply(told))
    server.on("GET", "/v1/events", listing("Event", [event(1, evil, claim=evil)]))
    server.on("POST", "/v1/claims", Reply(claim, 201))
    forms = ("table", "wide", "csv", "name", "json", "yaml", "custom-columns=A:.name")
    outputs = [moor("get", "claims", "-o", form)[1] for form in forms]
    outputs += [
        moor(*words)[1] for words in (("describe", "claim", "x"), ("explain", "claim", "x"), ("events", "--after", "0"))
    ]
    outputs.append(moor("create", "claim", "--size", "4")[1])
    for out in outputs:
        assert "gnp" in out, outputs
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert all(json.loads(outputs[forms.index("json")])["items"][0][name] == evil for name in ("name", "owner"))
    assert yaml.safe_load(outputs[forms.index("yaml")])["items"][0]["name"] == evil
    assert len(outputs[forms.index("csv")].splitlines()) == 2


def test_wait_for_what_is_neither(server, moor):
    nothing_runs_or_waits(server)
    server.on("GET", "/v1/runs/x", problem("run.unknown", "no run", 404))
    server.on("GET", "/v1/claims/x", problem("claim.unknown", "no claim", 404))
    code, _, err = moor("wait", "x")
    assert code == 3
    assert "no run or claim 'x'" in err


def test_status(server, moor):
    server.on("GET", "/version", Reply({"version": "0.1.0", "apiVersion": "moorings/v1", "installation": "i"}))
    server.on("GET", "/readyz", Reply({"status": "ready"}))
    server.on("GET", "/v1/pools", as_list("Pool", samples.POOLS))
    server.on("GET", "/v1/claims", as_list("Claim", samples.CLAIMS))
    server.on("GET", "/v1/runs", as_list("Run", samples.RUNS[:2]))
    code, out, _ = moor("status")
    assert code == 0
    assert out.splitlines()[0] == f"controller  {server.url} (0.1.0), ready"
    assert "1 PENDING, 1 READY" in out
    data = json.loads(moor("status", "-o", "json")[1])
    assert data["ready"] is True
    assert data["runs"] == {"RUNNING": 1, "WAITING": 1}


def test_doctor_finds_and_says_what_to_do(server, moor):
    server.on("GET", "/version", Reply({"version": "0.1.0", "apiVersion": "moorings/v1", "installation": "i"}))
    server.on(
        "GET", "/readyz", problem("store.unavailable", "the database cannot be written", 503, hint="free the disk")
    )
    server.on("GET", "/v1/pools", as_list("Pool", samples.POOLS))
    server.on("GET", "/v1/devices", as_list("Device", samples.DEVICES))
    broken = FindingBody(id="laws", verdict="FAIL", evidence="law 1", fix="report it")
    server.on("GET", "/v1/doctor", lambda _seen: body(FindingsBody(at=format_time(now()), items=(broken,))))
    code, out, _ = moor("doctor", "-o", "json")
    verdicts = {item["id"]: item["verdict"] for item in json.loads(out)["items"]}
    assert code == 8
    assert verdicts == {
        "credentials": "SKIP",
        "configuration": "PASS",
        "transport": "PASS",
        "controller": "PASS",
        "version": "PASS",
        "ready": "FAIL",
        "clock": "PASS",
        "inside": "PASS",
        "laws": "FAIL",
        "host": "SKIP",
        "pools.pod256": "PASS",
        "pools.wse": "FAIL",
        "devices.service": "WARN",
        "devices.foreign": "PASS",
    }
    code, out, _ = moor("doctor", "--only", "ready")
    assert (code, out.splitlines()[2].strip()) == (
        8,
        "fix: free the disk; more: docs/how-to/find-out-what-is-wrong.md#ready",
    )
    assert moor("doctor", "--only", "version,controller")[0] == 0
    server.on("GET", "/v1/doctor", problem("auth.denied", "no", 403))
    assert "SKIP     inside" in " ".join(moor("doctor", "--only", "inside")[1].split("\n"))


@pytest.mark.parametrize("only", ["xyz", "ready,xyz", "", ",", "readyx", "host.xyz"])
def test_doctor_refuses_to_look_at_what_there_is_not(moor, monkeypatch, only):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    code, out, err = moor("doctor", "--only", only)
    assert (code, out) == (2, "")
    assert "the checks are credentials, configuration, " in err


def test_doctor_tells_what_could_not_be_looked_at(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    code, out, _ = moor("doctor", "--only", "laws,pools.pod64")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["SKIP", "laws"], ["SKIP", "pools.pod64"]]


def test_a_password_in_the_server_s_address_is_not_in_the_bundle(moor, monkeypatch, tmp_path):
    monkeypatch.setenv("MOORINGS_SERVER", "http://ann:tops3/cr@et@127.0.0.1:1")
    file = tmp_path / "diag.tar.gz"
    for server in ("http://ann:tops3cret@127.0.0.1:1", "http://ann:tops3/cr@et@127.0.0.1:1"):
        monkeypatch.setenv("MOORINGS_SERVER", server)
        code, out, err = moor("diag", str(file), "--data", str(tmp_path / "none"))
        assert code == 0, err
        with tarfile.open(file) as tar:
            pieces = "".join(tar.extractfile(member).read().decode() for member in tar.getmembers())  # type: ignore[union-attr]
        assert "127.0.0.1" in pieces
        assert "controller " in out
        assert [secret for secret in ("tops3", "cr@et", "@et") if secret in out + err + pieces] == []
        file.unlink()


def test_the_doctor_keeps_a_password_in_the_server_s_address_back(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", "http://ann:tops3cret@127.0.0.1:1")
    _, out, err = moor("doctor", "--only", "configuration,controller")
    assert "http://ann:[left out]@127.0.0.1:1" in out
    assert "tops3cret" not in out + err


def test_a_bundle_that_cannot_be_written_is_refused_before_anything_is_gathered(server, moor, tmp_path):
    there = tmp_path / "there"
    there.write_text("mine")
    for file in (tmp_path / "nope" / "x", there):
        code, out, err = moor("diag", str(file))
        assert (code, out) == (2, "")
        assert f"{file} cannot be written" in err
    assert server.seen == []
    assert there.read_text() == "mine"


@pytest.mark.parametrize(("word", "meant"), [("gte", "'get'"), ("lst", "'get'"), ("statsu", "'status'")])
def test_a_command_that_does_not_exist_is_refused_with_what_may_be_meant(moor, word, meant):
    code, out, err = moor(word)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: there is no command '{word}'\nhint: did you mean {meant}")
    assert "did you mean" not in moor("xqzw")[2]


def test_doctor_without_a_controller(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    code, out, _ = moor("doctor")
    assert code == 8
    assert "FAIL     controller" in out
    assert "SKIP     pools" in out


def test_version(server, moor):
    server.on("GET", "/version", Reply({"version": "9.9.9", "apiVersion": "moorings/v1", "installation": "i"}))
    code, out, _ = moor("version")
    assert code == 0
    assert "controller  9.9.9" in out
    assert moor("version", "--client")[0] == 0
    assert moor("--version")[1].startswith("moor ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(moor, shell):
    code, out, _ = moor("completion", shell)
    assert code == 0
    assert "_MOOR_COMPLETE" in out


def test_completion_gives_live_names_and_is_silent_offline(server, monkeypatch, capsys):
    monkeypatch.setenv("_MOOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "moor get partition p")
    monkeypatch.setenv("COMP_CWORD", "3")
    server.on("GET", "/v1/partitions", as_list("Partition", samples.PARTITIONS))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == "plain,p64\n"
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    with pytest.raises(SystemExit):
        main([])
    shown = capsys.readouterr()
    assert (shown.out.strip(), shown.err) == ("", "")


def test_watch_shows_the_list_then_what_changes_then_how_it_ended(server, moor):
    waiting, running, ended = (
        samples.RUNS[1],
        samples.run("run-waits4567abc"),
        samples.run("run-waits4567abc", state="SUCCEEDED"),
    )
    server.on(
        "GET",
        "/v1/runs",
        as_list("Run", [waiting]),
        as_list("Run", [waiting]),
        as_list("Run", [running]),
        as_list("Run", []),
    )
    server.on("GET", "/v1/runs/run-waits4567abc", body(ended))
    server.on(
        "GET",
        "/v1/events",
        Reply(
            chunks=[server_event(1, "turn.decided"), server_event(2, "run.started"), server_event(3, "run.ended")],
            cut=True,
        ),
        problem("auth.invalid", "the key was revoked", 401),
    )
    code, out, err = moor("watch", "runs", "-o", "json")
    assert code == 4
    assert "revoked" in err
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["WAITING", "RUNNING", "SUCCEEDED"]


LIGHT = """
import sys
from moorings.cli.main import main
code = main(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["--version"], ["get", "partitions"], ["run", "--dry-run", "--", "true"]])
def test_what_must_start_fast_imports_nothing_heavy(server, words):
    server.on("GET", "/v1/partitions", as_list("Partition", samples.PARTITIONS))
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "fastapi", "starlette", "sqlalchemy", "yaml", "structlog", "asyncio", "uvicorn", "alembic"}
    loaded = set(done.stderr.split())
    assert not loaded & heavy
    if words == ["--version"]:
        assert not loaded & {"http", "json", "tomllib"}
