"""The launcher's init container, as a process without any library, beside servers that misbehave."""

from __future__ import annotations

import contextlib
import signal
import socket
import stat
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import moorings
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.names import worker_names
from moorings.kubernetes.kube.certificates import make_certificates
from moorings.kubernetes.kube.serving_certificate import load_certificate
from moorings.kubernetes.launcher import init
from moorings.kubernetes.launcher.init import (
    InstancePartition,
    StartupWait,
    WorkerWatcher,
    choose_kubectl,
    install_kubectl,
    parse_worker_status,
    wait_for_clean_partition,
    waiting_text,
)
from moorings.kubernetes.launcher.pod_api import PodApi
from moorings.net.tls import make_bare_context
from tests.cases import cases
from tests.launcher import LauncherProcess
from tests.unit.kubernetes.cluster_stand_in import Cluster, Proxy, pod, serve_cluster, serve_proxy
from tests.waiting import patient, until

NAMES = ["job-worker-0", "job-worker-1"]


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def proxy():
    return Proxy()


@pytest.fixture
def start(tmp_path, cluster, proxy):
    """Starts launchers beside a cluster and a proxy."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho plain\n")
    (tmp_path / "proxy-token").write_text("the-proxys-token\n")
    started: list[LauncherProcess] = []
    with serve_cluster(cluster, tmp_path / "account") as port, serve_proxy(proxy) as url:
        environment = {
            "PYTHONPATH": str(Path(moorings.__file__).resolve().parents[1]),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
            "MOORINGS_WORKERS": str(len(NAMES)),
            "MOORINGS_PARTITION": "team/job/u-1/0",
            "MOORINGS_PROXY_URL": url,
            "MOORINGS_PROXY_TOKEN_FILE": str(tmp_path / "proxy-token"),
        }

        def run(*more: str, **changes: str) -> LauncherProcess:
            given = ["--into", str(tmp_path / "bin"), "--kubectl", str(kubectl), "--account", str(tmp_path / "account")]
            started.append(LauncherProcess({**environment, **changes}, *given, *more))
            return started[-1]

        yield run
        for one in started:
            one.process.kill()
            one.end()
            for stream in (one.process.stdout, one.process.stderr):
                assert stream is not None
                stream.close()


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_it_waits_for_all_workers_and_says_for_which(start, cluster, proxy, tmp_path):
    cluster.put(pod(NAMES[0], "Running", ready=True))
    process = start()
    process.wait_for(r"^waiting for 1 of 2 workers: job-worker-1 is not there yet$")
    cluster.put(pod(NAMES[1], waiting="ContainerCreating"))
    process.wait_for(r"job-worker-1 is Pending: ContainerCreating$")
    cluster.put(pod(NAMES[1], waiting="ErrImagePull"))
    process.wait_for(r"job-worker-1 is Pending: ErrImagePull$")
    cluster.put(pod(NAMES[1], "Running"))
    process.wait_for(r"job-worker-1 is Running: not Ready$")
    assert proxy.asked == [], "the partition comes after the workers"
    cluster.put(pod(NAMES[1], "Running", ready=True))
    assert process.end() == 0
    assert process.lines[-2:] == ["2 of 2 workers are Ready\n", "the partition is READY\n"]
    assert {name for _, name in cluster.asked} == set(NAMES), "each is asked for by its name"
    kubectl = tmp_path / "bin" / "kubectl"
    assert subprocess.run([kubectl], capture_output=True, text=True, check=True).stdout == "plain\n"
    assert stat.S_IMODE(kubectl.stat().st_mode) == 0o755


@pytest.fixture
def ready(cluster):
    for name in NAMES:
        cluster.put(pod(name, "Running", ready=True))
    return cluster


def test_a_partition_that_was_not_used_is_only_looked_at(start, ready, proxy):
    assert start().end() == 0
    assert proxy.asked == ["GET /v1/partitions?namespace=team&job=job"]
    assert proxy.tokens == ["Bearer the-proxys-token"]


def test_one_that_was_used_is_reset_once_and_waited_for(start, ready, proxy):
    proxy.states = ["PREPARING", "PREPARING", "READY"]
    process = start(MOORINGS_RESET="1")
    assert process.end() == 0
    assert [line.split()[0] for line in proxy.asked] == ["POST", "GET", "GET"]
    assert proxy.asked[0] == "POST /v1/partitions/team/job/u-1/0/reset"
    process.wait_for("waiting for the partition: it is PREPARING")


@pytest.mark.parametrize("state", ["WAITING", "PREPARING", "SOMETHING_NEW", ""])
def test_a_state_that_is_not_ready_is_not_ready(start, ready, proxy, state):
    proxy.states = [state]
    process = start("--timeout", "2")
    assert process.end() == 124
    assert "still waiting for the partition" in process.errors


@pytest.mark.parametrize("state", ["FAILED", "LOST", "RELEASING"])
def test_a_partition_that_will_never_be_ready_is_the_end(start, ready, proxy, state):
    proxy.states, proxy.message = [state], "two blocks broke under it"
    process = start(MOORINGS_RESET="1")
    assert process.end() == 1
    assert f"error: the partition is {state}: two blocks broke under it (partition.unusable)" in process.errors


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_worker_that_has_ended_is_the_end(start, cluster, phase):
    cluster.put(pod(NAMES[0], "Running", ready=True))
    process = start()
    process.wait_for("job-worker-1 is not there yet")
    cluster.put(pod(NAMES[1], phase, code=137))
    assert process.end() == 1
    words = f"job-worker-1 has ended ({phase}: container main ended with 137: its last words)"
    assert f"error: a worker will not come up: {words} (worker.failed)\nhint: 'kubectl logs'" in process.errors


def test_time_runs_out_with_what_was_waited_for(start, cluster):
    cluster.put(pod(NAMES[0], waiting="ImagePullBackOff"))
    process = start("--timeout", "1")
    assert process.end() == 124
    assert "after 1 s still waiting for 2 of 2 workers: job-worker-0 is Pending: ImagePullBackOff" in process.errors


def test_sigterm_ends_it_at_once(start, cluster):
    cluster.watch_s = 3600.0  # it does not wait until its watch is over
    process = start()
    process.wait_for("waiting for")
    process.process.send_signal(signal.SIGTERM)
    assert process.end() == 143


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MOORINGS_WORKERS", ""),
        ("MOORINGS_WORKERS", "job-worker-0"),
        ("MOORINGS_PARTITION", "team/job/u-1"),
        ("MOORINGS_PARTITION", "team/job/u-1/x"),
        ("MOORINGS_PROXY_URL", ""),
        ("KUBERNETES_SERVICE_HOST", ""),
        ("KUBERNETES_SERVICE_PORT", "tcp://10.0.0.1:443"),
    ],
)
def test_what_the_operator_did_not_set_is_told(start, name, value):
    process = start(**{name: value})
    assert process.end() == 2
    errors = process.errors
    assert name in errors
    assert "hint: " in errors


def test_a_worker_that_ends_while_the_partition_is_prepared(start, ready, proxy):
    proxy.states = ["PREPARING"]
    process = start()
    process.wait_for("it is PREPARING")
    ready.put(pod(NAMES[0], "Failed", code=1))
    proxy.states = ["READY"]
    assert process.end() == 1


# -- an API server that misbehaves -------------------------------------------------------------------------------------


@pytest.fixture
def workers(tmp_path, cluster, monkeypatch):
    """Starts watching and waits in a thread; what is told, and how it ended."""
    monkeypatch.setattr(init, "PAUSE_S", 0.02)
    monkeypatch.setattr(init, "PAUSE_S_MAX", 0.1)
    monkeypatch.setattr(init, "DENIED_S", 0.5)

    class Waiting:
        def __init__(self, port: int, account: Path) -> None:
            self.told: list[str] = []
            self.error: MooringsError | None = None
            self._api = PodApi("127.0.0.1", port, "team", account)
            self.thread = threading.Thread(target=self._wait)
            self.thread.start()

        def _wait(self) -> None:
            with contextlib.closing(WorkerWatcher(self._api, NAMES)) as watched:
                try:
                    watched.wait(StartupWait(20, self.told.append))
                except MooringsError as error:
                    self.error = error

        def end(self) -> MooringsError | None:
            self.thread.join(patient(30))
            assert not self.thread.is_alive(), self.told
            return self.error

    with serve_cluster(cluster, tmp_path / "account") as port:
        yield lambda: Waiting(port, tmp_path / "account")


@pytest.mark.parametrize("fault", ["drop", "silence", "garbage", 500, 503, 429, 403, 401, 410])
def test_a_list_that_fails_is_made_again(workers, ready, fault):
    ready.faults = [fault] * 4
    assert workers().end() is None
    assert ready.faults == []


@pytest.mark.parametrize("fault", ["drop", "silence", "garbage", 500, 429, 410])
def test_a_watch_that_fails_is_begun_again(workers, cluster, fault):
    cluster.watch_faults = [fault] * 6
    waiting = workers()
    until(lambda: not cluster.watch_faults, what="the faults were met")
    for name in NAMES:
        cluster.put(pod(name, "Running", ready=True))
    assert waiting.end() is None
    assert cluster.count("list") > 2


def test_watches_end_all_the_time_and_nothing_is_missed(workers, cluster):
    cluster.watch_s = 0.05
    waiting = workers()
    for phase in ("Pending", "Running", "Pending", "Running"):
        for name in NAMES:
            cluster.put(pod(name, phase))
        seen = cluster.count("watch")
        until(lambda: cluster.count("watch") > seen + 2, what="they are begun again")  # noqa: B023 - it is awaited here
    for name in NAMES:
        cluster.put(pod(name, "Running", ready=True))
    assert waiting.end() is None


def test_a_watch_that_is_too_old_lists_again(workers, cluster):
    waiting = workers()
    until(lambda: cluster.count("watch") == 2, what="both are watched")
    with cluster.changed:
        cluster.forgotten = 10**9
        cluster.changed.notify_all()
    until(lambda: cluster.count("list") > 4, what="they list again")
    cluster.forgotten = 0
    for name in NAMES:
        cluster.put(pod(name, "Running", ready=True))
    assert waiting.end() is None
    assert not any("not known:" in text for text in waiting.told), "nothing of this is worth a word"


def test_a_pod_that_goes_while_nobody_watches_is_not_ready(workers, cluster):
    cluster.put(pod(NAMES[0], "Running", ready=True))
    waiting = workers()
    until(lambda: cluster.count("watch") == 2, what="both are watched")
    cluster.faults = [503] * 10_000
    cluster.watch_faults = ["drop"] * 2
    until(
        lambda: f"{NAMES[0]} is not known: " in "".join(waiting.told[-1:]),
        what="its watch was dropped, what was seen is old",
    )
    cluster.remove(NAMES[0])
    cluster.faults.clear()
    both = f"waiting for 2 of 2 workers: {NAMES[0]} is not there yet; {NAMES[1]} is not there yet"
    until(lambda: waiting.told[-1:] == [both], what="it is told")
    cluster.put(pod(NAMES[1], "Running", ready=True))
    until(lambda: waiting.told[-1:] == [f"waiting for 1 of 2 workers: {NAMES[0]} is not there yet"], what="it is told")
    cluster.put(pod(NAMES[0], "Running", ready=True))
    assert waiting.end() is None


def test_one_that_is_being_deleted_is_not_ready(workers, cluster):
    going = pod(NAMES[0], "Running", ready=True)
    going["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    cluster.put(going)
    cluster.put(pod(NAMES[1], "Running", ready=True))
    waiting = workers()
    until(lambda: f"waiting for 1 of 2 workers: {NAMES[0]} is being deleted" in waiting.told, what="it is told")
    cluster.put(pod(NAMES[0], "Running", ready=True))
    assert waiting.end() is None


def test_what_is_refused_for_long_is_told_with_the_rights_that_are_missing(workers, ready):
    ready.faults = [403] * 10_000
    error = workers().end()
    assert error is not None
    assert error.code == "kubernetes.refused"
    assert "may not be looked at: a fault" in error.detail
    assert "list and watch its workers" in error.hint


def test_a_token_that_was_exchanged_is_read_anew(workers, ready, tmp_path):
    ready.token = "another"
    waiting = workers()
    until(lambda: any("Unauthorized" in text for text in waiting.told), what="it was refused")
    (tmp_path / "account" / "token").write_text("another\n")
    assert waiting.end() is None


def test_an_api_server_that_comes_back_is_found(tmp_path, ready, monkeypatch):
    """With another certificate of another authority: what the kubelet puts into the folder is read again."""
    monkeypatch.setattr(init, "PAUSE_S", 0.05)
    told: list[str] = []
    with serve_cluster(Cluster(), tmp_path / "account") as port:
        pass
    watched = WorkerWatcher(PodApi("127.0.0.1", port, "team", tmp_path / "account"), NAMES)
    waiting = threading.Thread(target=watched.wait, args=(StartupWait(30, told.append),))
    waiting.start()
    until(lambda: any("does not answer" in text for text in told), what="it is away")
    with serve_cluster(ready, tmp_path / "account", port):
        waiting.join(patient(30))
        assert not waiting.is_alive()
        watched.close()


# -- many workers ------------------------------------------------------------------------------------------------------


def test_many_workers_are_read_over_one_connection_by_one_thread(tmp_path, cluster):
    every = worker_names("many", 1, 300)  # watches of other tests may not have ended yet
    for name in every[1:]:
        cluster.put(pod(name, waiting="ContainerCreating"))
    told: list[str] = []
    with serve_cluster(cluster, tmp_path / "account") as port:
        watched = WorkerWatcher(PodApi("127.0.0.1", port, "team", tmp_path / "account"), every)
        waiting = threading.Thread(target=watched.wait, args=(StartupWait(patient(30), told.append),))
        waiting.start()
        until(lambda: any("is not there yet" in text for text in told), what="one round is over")
        assert [one.name for one in threading.enumerate() if one.name.startswith("see many-")] == [
            "see many-worker-300"
        ]
        for name in every:
            cluster.put(pod(name, "Running", ready=True))
        waiting.join(patient(30))
        assert not waiting.is_alive(), told[-1:]
        watched.close()
    assert {kind for kind, _ in cluster.asked} == {"get"}
    assert {name for _, name in cluster.asked} == set(every)
    assert cluster.connections < 10


@pytest.mark.parametrize("fault", ["drop", "garbage", 500, 403])
def test_many_workers_of_which_one_cannot_be_read_are_read_again(tmp_path, cluster, fault):
    every = worker_names("job", 0, 20)
    for name in every:
        cluster.put(pod(name, "Running", ready=True))
    cluster.faults.append(fault)
    told: list[str] = []
    with serve_cluster(cluster, tmp_path / "account") as port:
        watched = WorkerWatcher(PodApi("127.0.0.1", port, "team", tmp_path / "account"), every)
        watched.wait(StartupWait(30, told.append))
        watched.close()
    assert any("is not known: " in text for text in told)


# -- a proxy that misbehaves -------------------------------------------------------------------------------------------


def problem(status: int, code: str, *, retryable: bool = False) -> tuple[int, Any]:
    body = {"code": code, "detail": f"it says {code}", "status": status, "retryable": retryable, "title": code}
    return status, body | {"type": "about:blank", "hint": "", "requestId": "r"}


@pytest.fixture
def place(tmp_path, proxy, monkeypatch):
    monkeypatch.setattr(init, "PAUSE_S", 0.02)
    monkeypatch.setattr(init, "LOOK_S", 0.02)
    monkeypatch.setattr(init, "DENIED_S", 0.5)
    (tmp_path / "token").write_text("a-token")
    with serve_proxy(proxy) as url:
        yield InstancePartition(url, "team", "job", "u-1", 0, tmp_path / "token")


def clean(place: InstancePartition, *, reset: bool = False, timeout_s: float = 20.0) -> list[str]:
    told: list[str] = []
    wait_for_clean_partition(place, StartupWait(timeout_s, told.append), reset=reset)
    return told


@pytest.mark.parametrize(
    "answer",
    [
        problem(503, "controller.busy", retryable=True),
        problem(404, "partition.unknown"),
        problem(401, "auth.invalid"),
        problem(403, "auth.denied"),
        (502, "a balancer's words"),
    ],
)
@pytest.mark.parametrize("reset", [True, False])
def test_what_can_pass_is_asked_again(place, proxy, answer, reset):
    proxy.answers = [answer] * 3
    told = clean(place, reset=reset)
    assert told[0].startswith(f"waiting for the proxy {place.url}: ")
    assert [line.split()[0] for line in proxy.asked] == ["POST" if reset else "GET"] * 4


@pytest.mark.parametrize("code", ["partition.not_active", "claim.not_ready"])
def test_a_reset_that_cannot_be_now_is_asked_for_until_it_was_done(place, proxy, code):
    """A proxy that has just started knows no binding yet: that the partition becomes READY then makes it no cleaner."""
    proxy.answers = [problem(409, code, retryable=True)]
    proxy.states = ["READY", "PREPARING", "READY"]
    told = clean(place, reset=True)
    assert [line.split()[0] for line in proxy.asked] == ["POST", "GET", "POST", "GET"]
    assert told[0] == "waiting until the partition can be reset: it is READY"
    assert told[1] == "waiting for the partition: it is PREPARING"


def test_one_that_cannot_be_reset_for_it_is_lost_is_the_end(place, proxy):
    proxy.answers, proxy.states = [problem(409, "partition.not_active")], ["LOST"]
    with pytest.raises(MooringsError) as caught:
        clean(place, reset=True)
    assert caught.value.code == "partition.unusable"


def test_another_conflict_does_not_count_as_reset(place, proxy):
    proxy.answers = [problem(409, "store.conflict", retryable=True)]
    clean(place, reset=True)
    assert [line.split()[0] for line in proxy.asked] == ["POST", "POST"]


@pytest.mark.parametrize("answer", [problem(422, "body.invalid"), problem(409, "owner.taken"), problem(400, "x.y")])
def test_what_cannot_pass_is_the_end(place, proxy, answer):
    proxy.answers = [answer]
    with pytest.raises(MooringsError, match="it says"):
        clean(place, reset=True)
    assert len(proxy.asked) == 1


def test_a_denial_that_stays_is_the_end(place, proxy):
    proxy.answers = [problem(403, "auth.denied")] * 10_000
    with pytest.raises(MooringsError) as caught:
        clean(place)
    assert caught.value.code == "auth.denied"
    assert len(proxy.asked) > 2


def test_a_partition_the_proxy_does_not_know_yet_is_waited_for(place, proxy):
    proxy.answers = [(200, {"version": "1", "complete": False, "items": []})]
    assert clean(place) == ["waiting for the partition: it is not known to the proxy"]


def test_a_proxy_that_is_away_is_waited_for(tmp_path, proxy, place):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    away = InstancePartition(f"http://127.0.0.1:{port}", "team", "job", "u-1", 0, place.token_file)
    told: list[str] = []
    work = threading.Thread(
        target=wait_for_clean_partition, args=(away, StartupWait(30, told.append)), kwargs={"reset": True}
    )
    work.start()
    until(lambda: bool(told), what="it is told")
    assert "nothing listens at" in told[0]
    with serve_proxy(proxy, port):
        work.join(patient(30))
        assert not work.is_alive()
    assert proxy.asked[0].startswith("POST")


OF_JOB = ("team", "job", "u-1", 0)


@pytest.mark.parametrize("proxy_first", [True, False])
def test_a_proxy_or_a_launcher_of_another_age_is_waited_for(place, proxy, tmp_path, proxy_first):
    """One of them speaks TLS and the other not, or it is by another authority: the operator makes another launcher."""
    held = make_certificates(["127.0.0.1"], datetime.now(UTC))
    context = make_bare_context()
    load_certificate(context, held)
    (tmp_path / "other.crt").write_bytes(make_certificates(["127.0.0.1"], datetime.now(UTC)).ca)
    (tmp_path / "ca.crt").write_bytes(held.ca)
    with serve_proxy(proxy, context=context) as url:
        plain = url.replace("https:", "http:")
        asked = (
            [
                InstancePartition(plain, *OF_JOB, place.token_file),
                InstancePartition(url, *OF_JOB, place.token_file, f"{tmp_path}/other.crt"),
            ]
            if proxy_first
            else [
                InstancePartition(place.url.replace("http:", "https:"), *OF_JOB, place.token_file, f"{tmp_path}/ca.crt")
            ]
        )
        for one in asked:
            with pytest.raises(MooringsError, match=r"after 0\.1 s still waiting for the proxy"):
                clean(one, timeout_s=0.1)
        assert clean(InstancePartition(url, *OF_JOB, place.token_file, f"{tmp_path}/ca.crt")) == []


def test_a_token_that_is_not_there_is_told(place):
    lost = InstancePartition(place.url, "team", "job", "u-1", 0, place.token_file / "not")
    with pytest.raises(MooringsError, match="cannot be read") as caught:
        clean(lost)
    assert caught.value.code == "config.invalid"


# -- its parts ---------------------------------------------------------------------------------------------------------


def test_progress_is_told_when_it_is_news_and_every_minute(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr("moorings.kubernetes.launcher.init.time.monotonic", lambda: now_s)
    told: list[str] = []
    patience = StartupWait(0, told.append)
    for at_s, text in ((0, "a"), (1, "a"), (2, "b"), (61, "b"), (62, "b"), (63, "a")):
        now_s = 1000.0 + at_s
        patience.log_wait(text)
    assert told == ["a", "b", "b", "a"]
    now_s += 10**9
    patience.log_wait("without an end")


def unschedulable() -> Any:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are\nfree"}
    return {"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": [condition]}}


@cases(
    ("found", "words"),
    [
        (None, "is not there yet"),
        ({"metadata": {}}, "is Pending"),
        (unschedulable(), "is Pending: Unschedulable: 0/3 nodes are free"),
        (pod("a", waiting="PodInitializing"), "is Pending"),
        (pod("a", "Running", waiting="CrashLoopBackOff"), "is Running: CrashLoopBackOff"),
        (pod("a", "Unknown", ready=False), "is Unknown"),
        ({"metadata": {}, "status": {"phase": "Failed", "reason": "Evicted"}}, "has ended (Failed: Evicted)"),
    ],
)
def test_what_a_pod_is_in_words(found, words):
    assert parse_worker_status(found).text == words
    assert not parse_worker_status(found).ready


def test_many_workers_are_not_all_named():
    sights = {f"w-{number}": parse_worker_status(None) for number in range(64)}
    text = waiting_text(sights)
    assert text.startswith("waiting for 64 of 64 workers: w-0 is not there yet; ")
    assert text.endswith("w-4 is not there yet; and 59 more")
    assert waiting_text({"w": parse_worker_status(pod("w", "Running", ready=True))}) == ""


def test_the_kubectl_of_a_version_is_taken_if_it_is_there(tmp_path):
    own = tmp_path / "kubectl"
    for name in ("1.27.3", "v1.30.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kubectl").write_text(name)
    for version, wanted in (("1.27.3", "1.27.3"), ("v1.27.3", "1.27.3"), ("1.30.0", "v1.30.0"), ("v1.30.0", "v1.30.0")):
        assert choose_kubectl(own, version, tmp_path) == tmp_path / wanted / "kubectl"
    for version in ("", "1.2.3", "../1.27.3/x"):
        assert choose_kubectl(own, version, tmp_path) == own


def test_kubectl_is_put_there_whole_even_if_it_is_in_use(tmp_path):
    kubectl = tmp_path / "kubectl"
    kubectl.write_bytes(Path("/bin/sleep").read_bytes())
    install_kubectl(kubectl, tmp_path / "bin")
    running = subprocess.Popen([tmp_path / "bin" / "kubectl", "60"])
    try:
        kubectl.write_text("another")
        install_kubectl(kubectl, tmp_path / "bin")
        assert (tmp_path / "bin" / "kubectl").read_text() == "another"
        assert [path.name for path in (tmp_path / "bin").iterdir()] == ["kubectl"]
    finally:
        running.kill()
        running.wait()


def test_a_kubectl_that_is_not_there_is_told(tmp_path):
    with pytest.raises(MooringsError) as caught:
        install_kubectl(tmp_path / "none", tmp_path / "bin")
    assert caught.value.code == "config.invalid"
    assert "no such file" in caught.value.detail
    with contextlib.suppress(FileNotFoundError):
        assert not (tmp_path / "bin" / "kubectl").exists()
