"""Connection, informer, election and events against a real API server, with everything that is daily life to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.kube import client
from moorings.kubernetes.kube.api import (
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    POD,
    SECRET,
    TOKEN_REVIEW,
    KubeError,
    ResourceType,
)
from moorings.kubernetes.kube.client import KubeClient, KubeTimeouts, connect
from moorings.kubernetes.kube.events import COMBINED, SIMILAR_MAX, EventRecorder
from moorings.kubernetes.kube.informer import Informer, ObjectKey
from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.ways import Front, Way
from tests.processes import launch
from tests.waiting import patient, until_async, within

QUICK = KubeTimeouts(call_s=5, silence_s=2)


@contextlib.asynccontextmanager
async def connected(path: Path, patience: KubeTimeouts | None = None) -> AsyncIterator[KubeClient]:
    kube = connect({}, path=str(path), patience=patience)
    try:
        yield kube
    finally:
        await kube.close()


@contextlib.asynccontextmanager
async def informed(kube: KubeClient, namespace: str, **more: Any) -> AsyncIterator[tuple[Informer, list[ObjectKey]]]:
    told: list[ObjectKey] = []
    informer = Informer(kube, CONFIG_MAP, namespace=namespace, on_change=told.append, labels="mine", **more)
    serving = asyncio.create_task(informer.serve())
    try:
        await until_async(lambda: informer.synced.is_set(), 30)
        yield informer, told
    finally:
        serving.cancel()
        await asyncio.wait((serving,))
        assert serving.cancelled(), serving.exception()


async def test_a_definition_that_is_missing_is_told_once_in_words(
    cluster: KubernetesCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kind = ResourceType("graphcore.ai", "v1alpha1", "Nothing", "nothings")
    async with connected(cluster.kubeconfig) as kube:
        informer = Informer(kube, kind, on_change=lambda _: None)
        serving = asyncio.create_task(informer.serve())
        try:
            await until_async(lambda: informer._failures >= 3, 30)
        finally:
            serving.cancel()
            await asyncio.wait((serving,))
    told = [record for record in caplog.records if record.message == "informer.undefined"]
    assert [record.__dict__["detail"] for record in told] == [
        "the definition of Nothings is missing: kubectl apply -f CRDs/"
    ]


def config_map(name: str, **labels: str) -> dict:
    return {"metadata": {"name": name, "labels": {"mine": "yes", **labels}}, "data": {"k": "v"}}


def names(informer: Informer) -> set[str]:
    return {found["metadata"]["name"] for found in informer}


# -- calls ---------------------------------------------------------------------------------------------------------


async def test_objects_are_made_changed_and_removed(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig) as kube:
        made = await kube.create(CONFIG_MAP, config_map("a"), namespace)
        assert made["metadata"]["uid"]
        changed = await kube.patch(CONFIG_MAP, "a", {"data": {"k": None, "n": "1"}}, namespace)
        assert changed["data"] == {"n": "1"}
        moves = [{"op": "test", "path": "/data/n", "value": "1"}, {"op": "replace", "path": "/data/n", "value": "2"}]
        assert (await kube.patch(CONFIG_MAP, "a", moves, namespace))["data"] == {"n": "2"}
        found = await kube.get(CONFIG_MAP, "a", namespace)
        assert (await kube.replace(CONFIG_MAP, {**found, "data": {}}))["metadata"]["name"] == "a"
        await kube.create(CONFIG_MAP, config_map("b", colour="red"), namespace)
        red = await kube.list(CONFIG_MAP, namespace, labels="colour=red")
        assert [one["metadata"]["name"] for one in red.items] == ["b"]
        named = await kube.list(CONFIG_MAP, fields=f"metadata.name=a,metadata.namespace={namespace}")
        assert [one["metadata"]["name"] for one in named.items] == ["a"]
        await kube.delete(CONFIG_MAP, "a", namespace)
        await kube.delete(CONFIG_MAP, "a", namespace)  # one that is gone is no error
        with pytest.raises(KubeError) as caught:
            await kube.get(CONFIG_MAP, "a", namespace)
        assert (caught.value.status, caught.value.reason, caught.value.retryable) == (404, "NotFound", False)


async def test_a_status_is_written_by_its_own_path_and_a_pod_is_removed_at_once(
    cluster: KubernetesCluster, namespace: str
):
    async with connected(cluster.kubeconfig) as kube:
        spec = {"containers": [{"name": "c", "image": "none"}], "automountServiceAccountToken": False}
        await kube.create(POD, {"metadata": {"name": "p"}, "spec": spec}, namespace)
        pod = await kube.patch(POD, "p", {"status": {"phase": "Running"}}, namespace, subresource="status")
        assert pod["status"]["phase"] == "Running"
        await kube.delete(POD, "p", namespace, uid=pod["metadata"]["uid"], grace_s=0)
        with pytest.raises(KubeError):
            await kube.get(POD, "p", namespace)


async def test_only_that_very_object_is_removed(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig) as kube:
        first = await kube.create(CONFIG_MAP, config_map("a"), namespace)
        await kube.delete(CONFIG_MAP, "a", namespace)
        second = await kube.create(CONFIG_MAP, config_map("a"), namespace)
        await kube.delete(CONFIG_MAP, "a", namespace, uid=first["metadata"]["uid"])
        assert (await kube.get(CONFIG_MAP, "a", namespace))["metadata"]["uid"] == second["metadata"]["uid"]


async def test_who_comes_second_is_told(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig) as kube:
        old = await kube.create(CONFIG_MAP, config_map("a"), namespace)
        with pytest.raises(KubeError) as caught:
            await kube.create(CONFIG_MAP, config_map("a"), namespace)
        assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
        await kube.replace(CONFIG_MAP, {**old, "data": {"new": "1"}}, namespace)
        with pytest.raises(KubeError) as caught:
            await kube.replace(CONFIG_MAP, {**old, "data": {"old": "1"}}, namespace)
        assert (caught.value.status, caught.value.reason, caught.value.retryable) == (409, "Conflict", True)
        del old["metadata"]["resourceVersion"]
        assert (await kube.replace(CONFIG_MAP, {**old, "data": {"any": "1"}}, namespace))["data"] == {"any": "1"}


def note_calls(kube: KubeClient, note: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the targets of its calls and watches noted."""

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def made(verb: str, target: str, **more: Any) -> Any:
            note(target)
            return method(verb, target, **more)

        return made

    for name in ("call", "stream"):
        monkeypatch.setattr(kube._http, name, noting(getattr(kube._http, name)))


async def test_a_long_list_comes_in_pages_of_one_moment(
    cluster: KubernetesCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "PAGE", 10)
    async with connected(cluster.kubeconfig) as kube:
        await asyncio.gather(*(kube.create(CONFIG_MAP, config_map(f"c{n}"), namespace) for n in range(34)))
        pages = []

        def count(target):
            pages.append(target)
            if len(pages) == 2:  # what happens in the middle of a list is not in it
                cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/c9")

        note_calls(kube, count, monkeypatch)
        listed = await kube.list(CONFIG_MAP, namespace, labels="mine")
        assert {one["metadata"]["name"] for one in listed.items} == {f"c{n}" for n in range(34)}
        assert len(pages) == 4
        assert ["continue=" in target for target in pages] == [False, True, True, True]
        assert len((await kube.list(CONFIG_MAP, namespace, labels="mine")).items) == 33


async def test_what_may_not_be_done_is_refused_and_nothing_of_a_secret_is_told(
    cluster: KubernetesCluster, namespace: str, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        async with connected(cluster.make_kubeconfig("nobody")) as kube:
            with pytest.raises(KubeError) as caught:
                await kube.get(CONFIG_MAP, "a", namespace)
            assert (caught.value.status, caught.value.code) == (403, "kubernetes.refused")
            assert "nobody" in caught.value.detail
        async with connected(cluster.kubeconfig) as kube:
            secret = {"metadata": {"name": "s"}, "stringData": {"k": "hunter2"}, "type": "kubernetes.io/tls"}
            with pytest.raises(KubeError) as caught:
                await kube.create(SECRET, secret, namespace)
            assert caught.value.status == 422
            await kube.create(SECRET, {**secret, "type": "Opaque"}, namespace)
    assert "hunter2" not in caplog.text + str(caught.value)


async def test_a_rotated_token_is_read_again(cluster: KubernetesCluster, namespace: str, tmp_path: Path):
    document = yaml.safe_load(cluster.make_token_kubeconfig(namespace, "default").read_text())
    document["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    (tmp_path / "token").write_text("over")
    async with connected(tmp_path / "config") as kube:
        with pytest.raises(KubeError) as caught:
            await kube.get(NAMESPACE, namespace)
        assert caught.value.status == 401
        (tmp_path / "token").write_text(cluster.token(namespace, "default"))
        with pytest.raises(KubeError) as caught:
            await kube.get(NAMESPACE, namespace)
        assert caught.value.status == 403, "known by now, and allowed nothing"
        assert f"system:serviceaccount:{namespace}:default" in caught.value.detail


async def test_a_token_is_reviewed_for_its_audience(cluster: KubernetesCluster, namespace: str):
    token = cluster.token(namespace, "default", "moorings-proxy")
    async with connected(cluster.kubeconfig) as kube:
        spec = {"token": token, "audiences": ["moorings-proxy"]}
        review = await kube.create(TOKEN_REVIEW, {"spec": spec})
        assert review["status"]["user"]["username"] == f"system:serviceaccount:{namespace}:default"


async def test_nobody_there_and_nobody_who_answers_are_errors_that_pass(cluster: KubernetesCluster, tmp_path: Path):
    way = Way(cluster)
    async with way.open(cluster, tmp_path) as path, connected(path, KubeTimeouts(call_s=0.5)) as kube:
        way.silent = True
        with within(2), pytest.raises(KubeError) as caught:  # by default a call may take ten
            await kube.list(POD)
        assert (caught.value.status, caught.value.reason) == (0, "Timeout")
        assert (caught.value.code, caught.value.retryable) == ("kubernetes.unreachable", True)
        way.cut(refuse=True)
        with pytest.raises(KubeError) as caught:
            await kube.list(POD)
        assert (caught.value.status, caught.value.reason) == (0, "Unreachable")
        with pytest.raises(KubeError):
            _ = [event async for event in kube.watch(POD, since="1")]


async def test_a_server_that_stops_in_the_middle_of_an_answer_is_not_waited_for(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
):
    way = Way(cluster)
    async with way.open(cluster, tmp_path) as path, connected(path, KubeTimeouts(call_s=5)) as kube:
        await kube.list(POD, namespace)
        way.freeze()
        with pytest.raises(KubeError) as caught:
            await kube.list(POD, namespace)  # on the connection that is kept
        assert caught.value.reason == "Timeout"
        way.renew()
        await kube.list(POD, namespace)


async def test_how_long_to_wait_is_told_by_a_server_that_is_asked_too_much(cluster: KubernetesCluster, tmp_path: Path):
    front = Front(cluster, tmp_path)
    async with front.open() as path, connected(path) as kube:
        front.refusals = 1
        with pytest.raises(KubeError) as caught:
            await kube.list(NAMESPACE)
        assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
        assert (caught.value.code, caught.value.retryable) == ("kubernetes.unreachable", True)
        assert (await kube.list(NAMESPACE)).items


# -- watching ------------------------------------------------------------------------------------------------------


async def test_a_watch_tells_what_changes_and_ends_when_its_time_is_over(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig, KubeTimeouts(watch_s=1)) as kube:
        since = (await kube.list(CONFIG_MAP, namespace)).resource_version
        await kube.create(CONFIG_MAP, config_map("a"), namespace)
        await kube.patch(CONFIG_MAP, "a", {"data": {"k": "w"}}, namespace)
        await kube.delete(CONFIG_MAP, "a", namespace)
        watching = kube.watch(CONFIG_MAP, namespace, since=since, labels="mine")
        types = [event.type async for event in watching if event.type != "BOOKMARK"]
        assert types == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_from_too_long_ago_is_refused(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig, KubeTimeouts(watch_s=5)) as kube:
        since = (await kube.list(CONFIG_MAP)).resource_version
        await kube.create(CONFIG_MAP, config_map("a"), namespace)
        cluster.kill_api_server()
        await asyncio.to_thread(cluster.start_api_server)  # a new server remembers nothing of before
        with pytest.raises(KubeError) as caught:
            _ = [event async for event in kube.watch(CONFIG_MAP, since=since)]
        assert (caught.value.status, caught.value.reason) == (410, "Expired")


async def test_an_informer_follows_and_finds_by_owner(cluster: KubernetesCluster, namespace: str):
    owners: list[str] = []
    async with (
        connected(cluster.kubeconfig) as kube,
        informed(kube, namespace, index=lambda found: [found["metadata"]["labels"]["job"]], on_index=owners.append) as (
            informer,
            told,
        ),
    ):
        assert informer.age_s < patient(5)
        for number in range(6):
            await kube.create(CONFIG_MAP, config_map(f"c{number}", job=f"j{number % 2}"), namespace)
        await kube.create(CONFIG_MAP, {"metadata": {"name": "not-mine"}}, namespace)
        await until_async(lambda: len(informer) == 6, 10)
        assert {one["metadata"]["name"] for one in informer.indexed("j1")} == {"c1", "c3", "c5"}
        assert "managedFields" not in next(iter(informer))["metadata"]
        await kube.patch(CONFIG_MAP, "c1", {"metadata": {"labels": {"job": "j0"}}}, namespace)
        await until_async(lambda: len(informer.indexed("j0")) == 4, 10)
        assert owners[-2:] in (["j0", "j1"], ["j1", "j0"])
        await kube.delete(CONFIG_MAP, "c0", namespace)
        await until_async(lambda: len(informer) == 5, 10)
        assert told[-1] == ObjectKey(namespace, "c0")
        assert informer.get(namespace, "c0") is None
        found = informer.get(namespace, "c2")
        assert found is not None
        assert found["data"] == {"k": "v"}


async def test_a_server_that_is_killed_and_comes_back_is_followed_on(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig) as kube, informed(kube, namespace) as (informer, told):
        await kube.create(CONFIG_MAP, config_map("before"), namespace)
        await until_async(lambda: names(informer) == {"before"}, 10)
        for number in range(2):
            cluster.kill_api_server()
            await until_async(lambda: informer._failures > 0, 10)
            assert names(informer) == {"before"} | {f"after{n}" for n in range(number)}, (
                "nothing is forgotten meanwhile"
            )
            await asyncio.to_thread(cluster.start_api_server)
            cluster.api("POST", f"/api/v1/namespaces/{namespace}/configmaps", config_map(f"after{number}"))
            await until_async(lambda: {"before", *(f"after{n}" for n in range(number + 1))} == names(informer), 40)  # noqa: B023
        assert told.count(ObjectKey(namespace, "before")) == 1, "what has not changed is not told again"


async def test_what_was_removed_while_nobody_watched_is_told_when_the_past_is_forgotten(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    way = Way(cluster)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with caplog.at_level(logging.DEBUG, "moorings.kubernetes.informer"):
        async with (
            way.open(cluster, tmp_path) as config,
            connected(config, QUICK) as kube,
            informed(kube, namespace) as (informer, told),
        ):
            for name in ("stays", "goes", "changes"):
                cluster.api("POST", path, config_map(name))
            await until_async(lambda: len(informer) == 3, 10)
            told.clear()
            way.cut(refuse=True)
            cluster.api("DELETE", f"{path}/goes")
            cluster.api("PATCH", f"{path}/changes", {"data": {"k": "w"}}, content_type="application/merge-patch+json")
            cluster.api("POST", path, config_map("comes"))
            # A new server remembers nothing of before, and answers 410.
            cluster.kill_api_server()
            await asyncio.to_thread(cluster.start_api_server)
            way.cut(refuse=False)
            await until_async(lambda: names(informer) == {"stays", "changes", "comes"}, 40)
            assert {key.name for key in told} == {"goes", "changes", "comes"}
            cluster.api("POST", path, config_map("later"))
            await until_async(lambda: "later" in names(informer), 10)
    assert 410 in {getattr(record, "status", None) for record in caplog.records}


async def test_a_peer_that_falls_silent_is_noticed(cluster: KubernetesCluster, namespace: str, tmp_path: Path):
    way = Way(cluster)
    async with (
        way.open(cluster, tmp_path) as config,
        connected(config, QUICK) as kube,
        informed(kube, namespace) as (informer, _),
    ):
        way.freeze()
        way.renew()  # as if a firewall had forgotten what is open
        cluster.api("POST", f"/api/v1/namespaces/{namespace}/configmaps", config_map("unheard"))
        begun = time.monotonic()
        await until_async(lambda: names(informer) == {"unheard"}, 10)
        assert time.monotonic() - begun > 0.5, "it was not silent"
        assert informer.age_s <= time.monotonic() - begun, "heard of since"


async def test_an_idle_watch_is_no_old_news(
    cluster: KubernetesCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    """Each silence ends in a new watch, without a list, and the server counts as heard of."""
    async with connected(cluster.kubeconfig, KubeTimeouts(silence_s=0.5)) as kube:
        lists = []

        note_calls(kube, lambda target: lists.append("watch=" not in target), monkeypatch)
        begun = time.monotonic()
        async with informed(kube, namespace) as (informer, _):
            await until_async(lambda: len(lists) > 4, 20)
            assert sum(lists) == 1
            assert time.monotonic() - begun - informer.age_s > 1, "three silences are over: it was heard of after them"


async def test_a_server_that_is_asked_too_much_gets_the_time_it_wants(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
):
    front = Front(cluster, tmp_path)
    front.refusals = 3
    async with connected(cluster.kubeconfig) as kube:  # not through the front: it would have a refusal of its own
        await kube.create(CONFIG_MAP, config_map("a"), namespace)
    async with front.open() as path, connected(path) as kube, informed(kube, namespace) as (informer, _):
        await until_async(lambda: names(informer) == {"a"}, 10)
    gaps = [later - earlier for earlier, later in zip(front.asked_at, front.asked_at[1:], strict=False)]
    assert len(gaps) == 2
    assert min(gaps) > 0.95


# -- the election --------------------------------------------------------------------------------------------------

LEASE_S, RENEW_S, RETRY_S = 9.0, 6.0, 1.0  # a busy machine renews in time
LONG_S = 3600.0  # a lease that is over is not why another leads


class Candidate:
    def __init__(self, kubeconfig: Path, namespace: str, identity: str, folder: Path, lease_s: float) -> None:
        self._file = folder / identity
        words = [str(kubeconfig), namespace, "moorings", identity, str(lease_s), str(RENEW_S), str(RETRY_S)]
        with self._file.open("wb") as output:
            argv = [sys.executable, "-m", "tests.kubernetes.candidate", *words]
            self._process = launch(argv, stdout=output, stderr=output)

    def said(self) -> list[str]:
        return self._file.read_text().splitlines()

    def led(self) -> list[float]:
        """Moments at which it led, by the clock that all processes of a machine share."""
        return [float(line.split()[1]) for line in self.said() if line.startswith("leads ") and line[-1:].isdigit()]

    def send(self, number: signal.Signals) -> float:
        self._process.send_signal(number)
        return time.monotonic()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> float:
        """End it in good order; when."""
        self._process.terminate()
        assert self._process.wait(patient(20)) == 0, self.said()[-5:]
        return time.monotonic()


@pytest.fixture
def candidate(cluster: KubernetesCluster, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Candidate]]:
    there: list[Candidate] = []

    def start(identity: str, kubeconfig: Path | None = None, lease_s: float = LEASE_S) -> Candidate:
        one = Candidate(kubeconfig or cluster.kubeconfig, namespace, identity, tmp_path, lease_s)
        there.append(one)
        return one

    yield start
    for one in there:
        one.end()


def no_two_led(one: Candidate, other: Candidate) -> None:
    """Two never led at the same time: between two moments of one, close together, there is none of the other."""
    moments = sorted([(at, 0) for at in one.led()] + [(at, 1) for at in other.led()])
    terms = [who for n, (_, who) in enumerate(moments) if n == 0 or moments[n - 1][1] != who]
    assert len(terms) <= 2, f"they took turns {len(terms)} times"


def renewed(cluster: KubernetesCluster, namespace: str) -> float:
    """When the lease was renewed last, or a little before, by the clock of ``Candidate.led``."""
    told = datetime.fromisoformat(cluster.get("lease", "moorings", namespace)["spec"]["renewTime"])
    return time.monotonic() - (datetime.now(UTC) - told).total_seconds()


async def test_a_killed_leader_is_followed_within_the_lease(cluster, namespace, candidate):
    first = candidate("first")
    await until_async(first.led, 20)
    second = candidate("second")
    await until_async(lambda: "stands" in second.said(), 20)
    await asyncio.sleep(RETRY_S * 3)
    assert not second.led()
    renewed_at = renewed(cluster, namespace)
    first.send(signal.SIGKILL)
    await until_async(second.led, LEASE_S + RETRY_S)
    assert second.led()[0] >= renewed_at + LEASE_S, "its lease was over"
    no_two_led(first, second)
    lease = cluster.get("lease", "moorings", namespace)["spec"]
    assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("second", 1)


async def test_a_leader_that_stops_is_followed_at_once(cluster, namespace, candidate):
    first = candidate("first", lease_s=LONG_S)
    await until_async(first.led, 20)
    second = candidate("second", lease_s=LONG_S)
    await until_async(lambda: "stands" in second.said(), 20)
    await asyncio.to_thread(first.stop)
    assert first.said()[-1] == "stopped"
    await until_async(second.led, 20, what="it does not wait for the lease")
    no_two_led(first, second)
    await asyncio.to_thread(second.stop)
    lease = cluster.get("lease", "moorings", namespace)["spec"]
    assert lease.get("holderIdentity", "") == ""


async def test_a_leader_that_hung_does_not_believe_to_lead(cluster, namespace, candidate):
    first = candidate("first")
    await until_async(first.led, 20)
    second = candidate("second")
    renewed_at = renewed(cluster, namespace)
    first.send(signal.SIGSTOP)
    await until_async(second.led, 20)
    assert second.led()[0] >= renewed_at + LEASE_S
    before = len(first.led())
    first.send(signal.SIGCONT)
    await until_async(lambda: "stopped" in first.said(), 20)
    assert len(first.led()) <= before + 1, "one line may have been on its way"
    await asyncio.sleep(RETRY_S * 3)
    no_two_led(first, second)


async def test_a_leader_that_reaches_no_server_stops_before_another_begins(
    cluster: KubernetesCluster, candidate, tmp_path: Path
):
    way = Way(cluster)
    async with way.open(cluster, tmp_path) as path:
        first = candidate("first", path)
        await until_async(first.led, 20)
        second = candidate("second")
        way.freeze()
        await until_async(second.led, 20)
        assert "stopped" in first.said()
        assert max(first.led()) < second.led()[0]
        no_two_led(first, second)


# -- events --------------------------------------------------------------------------------------------------------


def wall() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


@contextlib.asynccontextmanager
async def recording(kube: KubeClient) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(kube, "ipu-operator", "replica-1", wall)
    serving = asyncio.create_task(recorder.serve())
    try:
        yield recorder
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


async def test_what_is_told_again_is_counted_and_shown_to_people(cluster: KubernetesCluster, namespace: str):
    async with connected(cluster.kubeconfig) as kube, recording(kube) as recorder:
        about = await kube.create(CONFIG_MAP, config_map("a"), namespace)
        found: list[dict] = []

        async def seen(count: int) -> bool:
            found[:] = (await kube.list(EVENT, namespace)).items
            return bool(sum(event["count"] for event in found) == count)

        async def wait(count: int) -> None:
            await until_async(lambda: seen(count), 20, what=lambda: found)

        for count in range(1, 4):
            recorder.record(about, "Warning", "NoRoom", "waiting for a partition of 4 IPUs")
            await wait(count)
        recorder.record(about, "Normal", "Granted", "x" * 3000)
        await wait(4)
        assert sorted(event["count"] for event in found) == [1, 3]
        shown = cluster.kubectl("describe", "configmap", "a", "-n", namespace)
        assert "waiting for a partition of 4 IPUs" in shown
        assert "(x3 over" in shown
        # The server forgets events; the next one of the same begins again.
        for event in found:
            await kube.delete(EVENT, event["metadata"]["name"], namespace)
        recorder.record(about, "Warning", "NoRoom", "waiting for a partition of 4 IPUs")
        await wait(4)
        assert recorder.dropped == 0


async def test_a_flood_is_held_back_and_nobody_waits(cluster: KubernetesCluster, namespace: str, tmp_path: Path):
    way = Way(cluster)
    async with way.open(cluster, tmp_path) as path, connected(path, KubeTimeouts(call_s=5)) as kube:
        about = await kube.create(CONFIG_MAP, config_map("a"), namespace)
        async with recording(kube) as recorder:
            for number in range(1000):
                recorder.record(about, "Normal", "Busy", f"step {number}")
            assert recorder.dropped == 975

            async def combined() -> int:
                told = (await kube.list(EVENT, namespace)).items
                return len(told) if any(one["message"].startswith(COMBINED) for one in told) else 0

            assert await until_async(combined, 20) <= SIMILAR_MAX + 1
            way.cut(refuse=True)
            for number in range(5000):  # without a pause: nothing of it can wait for the server
                other = {**about, "metadata": {**about["metadata"], "name": f"n{number}", "uid": f"u{number}"}}
                recorder.record(other, "Normal", "Busy", "nobody hears this")
            assert recorder.dropped >= 975 + 4000
            assert len(recorder._pending) <= 1000
