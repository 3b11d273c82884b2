"""``moor run`` against a recorded controller: the whole way, signals, lost connections, and what is said meanwhile."""

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from moorings.cli.main import main
from moorings.wire.codec import encode
from tests.unit.cli import samples
from tests.unit.client.recorded import Reply, body, problem, recorded, server_event
from tests.waiting import patient

RUN = "run-7f3kq2m4xw2a"
TIMES = {"started_at": "2026-01-31T12:00:00Z", "ended_at": "2026-01-31T12:00:01.500000Z"}
GRANTED = samples.claim("digits", state="GRANTED", **{**samples.READY, "partition": "digits"})
READY = samples.claim("digits", state="READY", **{**samples.READY, "partition": "digits"}, **samples.TIMES)
STORY = (
    f"{RUN}: {samples.WAITS}\n"
    f"{RUN}: GRANTED pod64 devices 16-31\n"
    f"{RUN}: waits for partition digits to be ACTIVE\n"
    f"{RUN}: partition digits ACTIVE after 0.4 s\n"
    f"{RUN}: running\n"
)


def ended(state="SUCCEEDED", exit_code=0, **more):
    return samples.run(state=state, exit_code=exit_code, **TIMES, **more)


@pytest.fixture
def waiting_run(server):
    """A controller whose next run waits, is granted, and runs; its end is for the test to record."""
    server.on("POST", "/v1/runs", Reply(encode(samples.run(state="WAITING")), 201))
    server.on("GET", "/v1/claims/claim-digits", body(samples.CLAIMS[1]), body(GRANTED), body(READY))
    server.on("GET", "/v1/events", Reply(chunks=[b": events after 0\n\n", server_event(1, "run.started", run=RUN)]))
    return server


@pytest.fixture
def moor(capfdbinary):
    def call(*arguments):
        code = main(arguments)
        shown = capfdbinary.readouterr()
        return code, shown.out, shown.err.decode()

    return call


def test_a_run_from_its_wish_to_its_exit_code(waiting_run, moor):
    waiting_run.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] one\n", b"[1] two\n"]))
    waiting_run.on("GET", f"/v1/runs/{RUN}", body(ended("FAILED", 3, detail="task 1 exited with 3")))
    code, out, err = moor("run", "--ipus", "16", "-n", "2", "--", "python3", "train.py", "--lr", "-1")
    assert (code, out) == (3, b"[0] one\n[1] two\n")
    assert err == STORY + f"{RUN}: FAILED after 1.5 s, exit code 3: task 1 exited with 3\n"
    asked = waiting_run.asked("POST", "/v1/runs")[0]
    assert asked.json["job"]["command"] == ["python3", "train.py", "--lr", "-1"]
    assert asked.json["job"]["accelerators"] == {"kind": "ipu", "size": 16}
    assert asked.headers["idempotency-key"]


def test_a_run_without_devices_has_no_partition(waiting_run, moor):
    ready = samples.claim("digits", state="READY", size=0, pool="machine", **samples.TIMES)
    waiting_run.on("GET", "/v1/claims/claim-digits", body(ready))
    waiting_run.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"one\n"]))
    waiting_run.on("GET", f"/v1/runs/{RUN}", body(ended()))
    code, _, err = moor("run", "--size", "0", "--cpus", "2", "--memory", "4G", "--", "./prepare.sh")
    assert code == 0
    assert f"{RUN}: GRANTED machine, without devices\n" in err
    assert "partition" not in err
    asked = waiting_run.asked("POST", "/v1/runs")[0].json["job"]
    assert asked["accelerators"] == {"kind": "ipu", "size": 0}
    assert asked["resources"] == {"cpus": 2, "memoryBytes": 4 << 30, "nodes": 1}


def test_quiet_leaves_only_the_output(waiting_run, moor):
    waiting_run.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] one\n"]))
    waiting_run.on("GET", f"/v1/runs/{RUN}", body(ended()))
    assert moor("run", "-q", "--ipus", "16", "-n", "2", "--", "x") == (0, b"[0] one\n", "")


def test_detach_prints_the_id_and_nothing_else(waiting_run, moor):
    assert moor("run", "--detach", "--ipus", "4", "--", "sleep", "9") == (0, f"{RUN}\n".encode(), "")
    assert len(waiting_run.seen) == 1


def test_a_lost_log_stream_is_read_again_and_nothing_comes_twice(waiting_run, moor):
    waiting_run.on(
        "GET",
        f"/v1/runs/{RUN}/logs",
        Reply(chunks=[b"[0] a\n", b"[1] b"], cut=True),
        Reply(chunks=[b"[1] b\n[0] a\n", b"[0] c\n"]),
    )
    waiting_run.on("GET", f"/v1/runs/{RUN}", body(ended()))
    code, out, err = moor("run", "--ipus", "4", "-n", "2", "--", "x")
    assert (code, out) == (0, b"[0] a\n[1] b\n[0] c\n")
    assert "was lost" in err
    assert err.endswith(f"{RUN}: SUCCEEDED after 1.5 s, exit code 0\n")


def test_a_stream_that_ended_with_the_controller_goes_on(waiting_run, moor):
    waiting_run.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] a\n"]), Reply(chunks=[b"[0] a\n", b"[0] b\n"]))
    waiting_run.on("GET", f"/v1/runs/{RUN}", body(samples.run()), body(ended()))
    assert moor("run", "--ipus", "4", "-n", "2", "--", "x")[:2] == (0, b"[0] a\n[0] b\n")


def test_a_claim_that_fails_ends_the_run(server, moor):
    server.on("POST", "/v1/runs", Reply(encode(samples.run(state="WAITING")), 201))
    server.on("GET", "/v1/claims/claim-digits", body(samples.claim("digits", state="FAILED", reason=samples.FULL)))
    server.on("GET", "/v1/events", Reply(chunks=[server_event(1, "run.ended", run=RUN)]))
    server.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[]))
    server.on("GET", f"/v1/runs/{RUN}", body(samples.run(state="FAILED", detail="the driver rejected it")))
    code, out, err = moor("run", "--ipus", "4", "--", "x")
    assert (code, out, err) == (1, b"", f"{RUN}: FAILED: the driver rejected it\n")


def test_a_refused_job_is_an_error(server, moor):
    server.on("POST", "/v1/runs", problem("claim.too_large", "the size is too large", 422, hint="try 64"))
    code, _, err = moor("run", "--ipus", "128", "--", "x")
    assert code == 2
    assert err == "error: the size is too large (claim.too_large)\nhint: try 64\nrequest id: req-1\n"


def test_an_error_under_way_says_what_becomes_of_the_run(waiting_run, moor):
    waiting_run.on("GET", "/v1/claims/claim-digits", problem("auth.invalid", "the key was revoked", 401))
    code, _, err = moor("run", "--ipus", "16", "--", "x")
    assert code == 4
    assert f"error: {RUN}: the key was revoked" in err
    assert f"moor cancel {RUN}" in err


def test_dry_run_shows_the_job_and_asks_nobody(server, moor, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('command = "python3 train.py"\n[accelerators]\nsize = 4\n')
    code, out, err = moor("run", str(file), "--dry-run", "--ipus", "8")
    assert (code, err, server.seen) == (0, "", [])
    assert b'"size": 8' in out


def start(server, *words):
    """``moor`` as a process of its own; the environment already names the server."""
    argv = [sys.executable, "-m", "moorings.cli.main", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_signals)


def test_a_closed_terminal_leaves_the_run_and_says_how_to_come_back(waiting_run):
    open_stream = threading.Event()
    waiting_run.on(
        "GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] one\n"], then=lambda: open_stream.wait(patient(30)))
    )
    with start(waiting_run, "run", "--ipus", "4", "-n", "2", "--", "x") as moor:
        assert moor.stdout is not None
        moor.stdout.readline()
        moor.send_signal(signal.SIGHUP)
        _, err = moor.communicate(timeout=patient(60))
    open_stream.set()
    assert moor.returncode == 129
    assert err.endswith(f"{RUN}: continues; 'moor logs -f {RUN}' shows its output, 'moor wait {RUN}' its end\n")
    assert not waiting_run.asked("POST", f"/v1/runs/{RUN}/cancel")


def hear_signals():
    """The tests may run where some are ignored (``nohup``, in the background of a shell), and children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_run_first_and_waits_for_its_end(waiting_run, number, code):
    cancelled = threading.Event()
    stopped = body(ended("CANCELLED", 143, detail="cancelled by ann"))

    def cancel(_seen):
        cancelled.set()
        return body(samples.run(state="STOPPING"))

    waiting_run.on("POST", f"/v1/runs/{RUN}/cancel", cancel)
    whole = Reply(chunks=[b"[0] one\n[0] last words\n"])
    waiting_run.on(
        "GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] one\n"], then=lambda: cancelled.wait(patient(30))), whole
    )
    waiting_run.on("GET", f"/v1/runs/{RUN}", stopped)
    with start(waiting_run, "run", "--ipus", "4", "-n", "2", "--", "x") as moor:
        assert moor.stdout is not None
        first = moor.stdout.readline()
        moor.send_signal(number)
        out, err = moor.communicate(timeout=patient(60))
    assert moor.returncode == code
    assert first + out == "[0] one\n[0] last words\n"
    assert f"{RUN}: {number.name}: cancelling" in err
    assert err.endswith(f"{RUN}: CANCELLED after 1.5 s, exit code 143: cancelled by ann\n")
    assert len(waiting_run.asked("POST", f"/v1/runs/{RUN}/cancel")) == 1


def test_a_signal_while_it_waits_cancels_too(server):
    asked = threading.Event()
    hold = threading.Event()

    def wait(_seen):
        asked.set()
        hold.wait(patient(30))
        return body(samples.CLAIMS[1])

    server.on("POST", "/v1/runs", Reply(encode(samples.run(state="WAITING")), 201))
    server.on("GET", "/v1/claims/claim-digits", wait)
    server.on("GET", "/v1/events", Reply(chunks=[server_event(1, "run.ended", run=RUN)]))
    gone = samples.run(state="CANCELLED", detail="cancelled by ann")
    server.on("POST", f"/v1/runs/{RUN}/cancel", body(gone))
    server.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[]))
    server.on("GET", f"/v1/runs/{RUN}", body(gone))
    with start(server, "run", "--ipus", "4", "--", "x") as moor:
        assert asked.wait(patient(30))
        moor.send_signal(signal.SIGINT)
        _, err = moor.communicate(timeout=patient(60))
    hold.set()
    assert moor.returncode == 130
    assert err.endswith(f"{RUN}: CANCELLED: cancelled by ann\n")


@pytest.mark.parametrize(
    ("words", "path", "said"),
    [
        (("wait", RUN), f"/v1/runs/{RUN}", f"not waited for: it continues; 'moor wait run/{RUN}' waits again"),
        (("logs", "-f", RUN), f"/v1/runs/{RUN}/logs", f"no longer followed: 'moor logs -f {RUN}' follows it again"),
        (("cancel", RUN), f"/v1/runs/{RUN}", f"not waited for; being cancelled: {RUN}"),
        (("watch", "claims"), "/v1/events", "no longer watched"),
        (("get", "claims"), "/v1/claims", "interrupted"),
    ],
)
def test_ctrl_c_says_what_goes_on_and_is_130(server, words, path, said):
    asked, hold = threading.Event(), threading.Event()

    def wait(_seen):
        asked.set()
        hold.wait(patient(30))
        return body(samples.run())

    server.on("GET", f"/v1/runs/{RUN}", body(samples.run()), wait)
    server.on("POST", f"/v1/runs/{RUN}/cancel", body(samples.run(state="STOPPING")))
    if words[0] != "wait":
        server.on("GET", path, wait)
    with start(server, *words) as moor:
        assert asked.wait(patient(30))
        moor.send_signal(signal.SIGINT)
        _, err = moor.communicate(timeout=patient(60))
    hold.set()
    assert (moor.returncode, err.splitlines()[-1]) == (130, said)


def test_a_run_that_is_paused_while_it_waits_is_followed_to_its_next_claim(server, moor):
    again = samples.claim("again", state="READY", **{**samples.READY, "partition": "again"}, **samples.TIMES)
    gone = samples.claim("digits", state="CANCELLED")
    server.on("POST", "/v1/runs", Reply(encode(samples.run(state="WAITING")), 201))
    server.on("GET", "/v1/claims/claim-digits", body(samples.CLAIMS[1]), body(gone))
    server.on("GET", "/v1/claims/claim-again", body(again))
    server.on(
        "GET",
        f"/v1/runs/{RUN}",
        body(samples.run(state="PAUSED")),
        body(samples.run(state="WAITING", claim="claim-again")),
        body(samples.run(state="RUNNING", claim="claim-again")),
        body(ended()),
    )
    server.on("GET", "/v1/events", Reply(chunks=[server_event(1, "run.started", run=RUN)]))
    server.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] one\n"]))
    code, out, err = moor("run", "--ipus", "16", "-n", "2", "--", "x")
    assert (code, out) == (0, b"[0] one\n")
    assert f"{RUN}: it is paused, and stays so; 'moor resume {RUN}' lets it wait again\n" in err
    assert f"{RUN}: partition again ACTIVE" in err


def test_a_signal_leaves_a_paused_run_as_it_is(server):
    asked, hold = threading.Event(), threading.Event()

    def wait(_seen):
        asked.set()
        hold.wait(patient(30))
        return body(samples.run(state="PAUSED"))

    server.on("POST", "/v1/runs", Reply(encode(samples.run(state="PAUSED")), 201))
    server.on("GET", f"/v1/runs/{RUN}", wait, body(samples.run(state="PAUSED")))
    with start(server, "run", "--ipus", "4", "--", "x") as moor:
        assert asked.wait(patient(30))
        moor.send_signal(signal.SIGINT)
        _, err = moor.communicate(timeout=patient(60))
    hold.set()
    assert moor.returncode == 130
    assert err.endswith(f"{RUN}: SIGINT: it stays paused; 'moor cancel {RUN}' ends it\n")
    assert not server.asked("POST", f"/v1/runs/{RUN}/cancel")


def test_a_signal_before_the_answer_finds_the_run_by_its_key(server):
    asked, hold = threading.Event(), threading.Event()
    made = Reply(encode(samples.run(state="CANCELLED")), 201)

    def make(_seen):
        asked.set()
        hold.wait(patient(30))
        return made

    server.on("POST", "/v1/runs", make, made)
    server.on("POST", f"/v1/runs/{RUN}/cancel", body(samples.run(state="CANCELLED")))
    server.on("GET", "/v1/events", Reply(chunks=[server_event(1, "run.ended", run=RUN)]))
    server.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[]))
    server.on("GET", f"/v1/runs/{RUN}", body(samples.run(state="CANCELLED")))
    with start(server, "run", "--ipus", "4", "--", "x") as moor:
        assert asked.wait(patient(30))
        moor.send_signal(signal.SIGTERM)
        moor.communicate(timeout=patient(60))
    hold.set()
    assert moor.returncode == 143
    keys = [seen.headers["idempotency-key"] for seen in server.asked("POST", "/v1/runs")]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert server.asked("POST", f"/v1/runs/{RUN}/cancel")


def test_a_reader_that_goes_away_cancels_the_run(waiting_run):
    cancelled = threading.Event()

    def more():
        return cancelled.wait(0.01)

    def cancel(_seen):
        cancelled.set()
        return body(samples.run(state="STOPPING"))

    waiting_run.on("POST", f"/v1/runs/{RUN}/cancel", cancel)
    waiting_run.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] line\n"] * 50_000))
    waiting_run.on("GET", f"/v1/runs/{RUN}", body(samples.run()))
    with start(waiting_run, "run", "--ipus", "4", "-n", "2", "--", "x") as moor:
        assert moor.stdout is not None
        moor.stdout.readline()
        moor.stdout.close()
        assert moor.wait(patient(60)) == 141
        assert moor.stderr is not None
        assert "its output was closed" in moor.stderr.read()
    assert cancelled.is_set()


def test_a_controller_that_restarts_under_way_is_waited_for(waiting_run, moor):
    """The first controller dies with the stream; another on the same address knows the run's end."""
    port = waiting_run.port

    with contextlib.ExitStack() as stack:

        def restart():
            threading.Thread(target=change).start()

        def change():
            waiting_run.close()
            second = stack.enter_context(recorded(port))
            second.on("GET", f"/v1/runs/{RUN}/logs", Reply(chunks=[b"[0] a\n[0] b\n"]))
            second.on("GET", f"/v1/runs/{RUN}", body(ended()))

        waiting_run.on(
            "GET",
            f"/v1/runs/{RUN}/logs",
            Reply(chunks=[b"[0] a\n"], cut=True, then=restart),
            problem("controller.busy", "stopping", 503, retryable=True),
        )
        code, out, err = moor("run", "--ipus", "4", "-n", "2", "--", "x")
    assert (code, out) == (0, b"[0] a\n[0] b\n")
    assert "trying again" in err
