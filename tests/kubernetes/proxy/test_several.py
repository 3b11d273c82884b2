"""One proxy, two controllers: tried in order, queued in both, the first grant wins; away and back; killed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.proxy import program
from moorings.kubernetes.proxy.claims import InstanceKey, claim_name
from moorings.kubernetes.proxy_api.client import ProxyClient
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from tests.e2e.processes import ControllerProcess
from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.proxy.harbour import Harbour, in_state, let_go, partition, pools, wish
from tests.waiting import patient
from tests.waiting import until_async as until


@pytest.fixture
def harbour(tmp_path: Path, cluster: KubernetesCluster) -> Iterator[Harbour]:
    one = ControllerProcess(tmp_path / "one", pools(8, provision_s=0.05))
    two = ControllerProcess(tmp_path / "two", pools(16, provision_s=0.05))
    made = Harbour(tmp_path, cluster, [one, two])
    try:
        made.start_controllers()
        made.start()
        yield made
    finally:
        made.stop()


def name(controller: ControllerProcess) -> str:
    return f"127.0.0.1:{controller.port}"


def states(harbour: Harbour) -> list[list[str]]:
    """Of the claims on each controller."""
    return [sorted(claim["state"] for claim in harbour.claims(one)) for one in harbour.controllers]


async def test_they_are_tried_in_order_and_what_fits_one_only_goes_there(harbour: Harbour) -> None:
    one, two = harbour.controllers
    async with harbour.client() as client:
        await client.create(wish(1, 8))
        assert (await in_state(client, wish(1), "READY")).controller == name(one)
        await client.create(wish(2, 8))
        second = await in_state(client, wish(2), "READY")
        assert (second.controller, second.node_selector) == (name(two), {"ipunode": "node1"})
        await let_go(client, wish(1))
        await let_go(client, wish(2))
        await client.create(wish(3, 16, gcds=1))
        assert (await in_state(client, wish(3), "READY")).controller == name(two), "the first has none so large"
        assert states(harbour) == [[], ["READY"]]


@pytest.mark.parametrize("first", [0, 1])
async def test_where_no_room_is_it_waits_in_both_and_the_first_grant_wins(harbour: Harbour, first: int) -> None:
    async with harbour.client() as client:
        holders = [wish(1, 8), wish(2, 16)]
        for holder in holders:
            await client.create(holder)
            await in_state(client, holder, "READY")
        waiting = wish(3, 8)
        await client.create(waiting)
        await in_state(client, waiting, "WAITING")

        async def queued() -> bool:
            return states(harbour) == [["PENDING", "READY"], ["PENDING", "READY"]]

        await until(queued)
        await let_go(client, holders[first])
        ready = await in_state(client, waiting, "READY")
        assert ready.controller == name(harbour.controllers[first])

        async def withdrawn() -> bool:
            return all(found == ["READY"] for found in states(harbour))

        await until(withdrawn)
        others = harbour.claims(harbour.controllers[1 - first], everything=True)
        assert [claim["state"] for claim in others if "job-3" in claim["owner"]] == ["CANCELLED"]


async def test_one_that_is_away_holds_nobody_up_and_gets_the_waiting_when_it_is_back(harbour: Harbour) -> None:
    one, two = harbour.controllers
    async with harbour.client() as client:
        await client.create(wish(1, 8))
        held = await in_state(client, wish(1), "READY")
        one.kill()
        await client.create(wish(2, 16))
        assert (await in_state(client, wish(2), "READY", 60)).controller == name(two)
        await client.create(wish(3, 4))
        await in_state(client, wish(3), "WAITING")
        assert await partition(client, wish(1)) == held, "what is known of its claims is not forgotten"
        assert not (await client.list()).complete
        left = await client.release("default", "job-1", "uid-job-1", 0)
        assert left is not None
        assert left.state == "RELEASING"

        async def told() -> bool:
            found = await partition(client, wish(1))
            return found is not None and name(one) in found.message

        await until(told)
        one.start()
        assert (await in_state(client, wish(3), "READY", 60)).controller == name(one)

        async def settled() -> bool:
            return states(harbour) == [["READY"], ["READY"]] and (await client.list()).complete

        await until(settled)
        assert await partition(client, wish(1)) is None


async def test_a_job_is_not_given_what_may_be_held_where_nobody_answers(harbour: Harbour) -> None:
    """An earlier proxy may have asked there; of a job that is younger than the proxy that is ruled out."""
    one, two = harbour.controllers
    harbour.kill()
    one.kill()
    harbour.start()
    async with harbour.client() as client:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        await client.create(wish(1, 4, job_created_at=now))
        ready = await in_state(client, wish(1), "READY", 60)
        assert (ready.controller, ready.fresh) == (name(two), True), "it is new though another does not answer"
        await client.create(wish(2, 4, job_created_at="2020-01-01T00:00:00Z"))

        async def held_back() -> bool:
            found = await partition(client, wish(2))
            return found is not None and found.state == "PREPARING" and name(one) in found.message

        await until(held_back, 60)
        assert [claim["state"] for claim in harbour.claims(two)] == ["READY", "READY"]
        one.start()
        await in_state(client, wish(2), "READY", 60)
        harbour.kill()
        harbour.start()
        assert not (await in_state(client, wish(1), "READY", 60)).fresh, "an earlier proxy has given it out"


async def test_the_list_is_read_anew_within_seconds(harbour: Harbour) -> None:
    one, two = harbour.controllers
    async with harbour.client() as client:
        await client.create(wish(1, 8))
        assert (await in_state(client, wish(1), "READY")).controller == name(one)
        harbour.write_list(two)

        async def known(*names: str) -> bool:
            return [
                key for key in names if f'reachable{{controller="{key}"}}' in harbour.ask("GET", "/metrics")[1]
            ] == [*names]

        async def second_only() -> bool:
            await client.create(wish(2, 2))
            await in_state(client, wish(2), "READY")
            controller = (await in_state(client, wish(2), "READY")).controller
            await let_go(client, wish(2))
            return controller == name(two)

        await let_go(client, wish(1))
        await client.create(wish(4, 8))
        await until(second_only, 10)
        (harbour.folder / "controllers").write_text("nonsense")
        await until(lambda: "controllers.not_read" in harbour.log.read_text())
        n_set = harbour.log.read_text().count("controllers.set")
        await asyncio.sleep(3)  # it has read it again meanwhile
        assert harbour.log.read_text().count("controllers.set") == n_set
        assert (await in_state(client, wish(4), "READY")).state == "READY", "a list that cannot be read changes nothing"
        harbour.write_list(one, two)
        await until(lambda: known(name(one), name(two)), 10)
        assert (await partition(client, wish(4))) is not None


async def test_a_running_partition_stays_when_its_controller_leaves_the_list(harbour: Harbour) -> None:
    one, two = harbour.controllers
    async with harbour.client() as client:
        await client.create(wish(1, 8))
        held = await in_state(client, wish(1), "READY")
        harbour.write_list(two)

        async def told() -> bool:
            return harbour.log.read_text().count("controllers.set") == 2

        await until(told)
        assert await partition(client, wish(1)) == held
        await let_go(client, wish(1))
        assert harbour.claims(one) == []

        async def retired() -> bool:
            return "controller.retired" in harbour.log.read_text()

        await until(retired)


async def test_a_proxy_that_is_killed_at_any_moment_leaves_one_partition_each_or_none(harbour: Harbour) -> None:
    """However often: the operator asks again for what is not there, and every instance has one partition at the end."""
    chance = int.from_bytes(os.urandom(2), "big")
    wishes = [wish(number, 4) for number in range(8)]  # two more than there is room for
    async with harbour.client() as client:
        for turn in range(8):
            asked = [asyncio.create_task(client.create(one)) for one in wishes]
            await asyncio.sleep(((chance + turn * 37) % 100) / 500)
            harbour.kill()
            await asyncio.gather(*asked, return_exceptions=True)
            owners = [claim["owner"] for one in harbour.controllers for claim in harbour.claims(one)]
            assert len(owners) <= 2 * len(wishes), chance
            harbour.start()
        await asyncio.gather(*map(client.create, wishes))

        async def settled() -> bool:
            found = (await client.list()).items
            held = [c["owner"] for one in harbour.controllers for c in harbour.claims(one) if c["state"] == "READY"]
            ready = [one for one in found if one.state == "READY"]
            return len(ready) == 6 == len(held) == len(set(held)) and len(found) == 8

        await until(settled, 30)
        await asyncio.gather(*(client.release("default", one.job, one.uid, 0) for one in wishes))

        async def nothing() -> bool:
            return not (await client.list()).items and states(harbour) == [[], []]

        await until(nothing)


async def test_two_proxies_at_the_same_time_make_one_partition(harbour: Harbour) -> None:
    other = Harbour(harbour.folder / "other", harbour.kubernetes, harbour.controllers, tokens=harbour.tokens)
    other.folder.mkdir()
    (other.folder / "controllers").symlink_to(harbour.folder / "controllers")
    (other.folder / "keys").symlink_to(harbour.folder / "keys")
    try:
        other.start()
        async with harbour.client() as client, other.client() as twin:
            wishes = [wish(number, 4) for number in range(6)]
            await asyncio.gather(*(each.create(one) for one in wishes for each in (client, twin)))
            for one in wishes:
                first = await in_state(client, one, "READY")
                second = await in_state(twin, one, "READY")
                assert (first.controller, first.name, first.binding) == (second.controller, second.name, second.binding)
            held = [claim["owner"] for one in harbour.controllers for claim in harbour.claims(one)]
            assert len(held) == len(set(held)) == 6
    finally:
        other.controllers = []
        other.stop()


async def test_a_key_that_is_worth_nothing_is_told_of(harbour: Harbour) -> None:
    harbour.kill()
    for file in (harbour.folder / "keys").iterdir():
        file.write_text("mk-nobody")
    harbour.start()
    async with harbour.client() as client:
        asked = await client.create(wish(1))
        told = await until(lambda: refused(client, asked))
    assert told is not None
    names = ", ".join(name(controller) for controller in harbour.controllers)
    assert told.message == f"{names} refuses the proxy's access key"


async def refused(client: ProxyClient, body: PartitionBody) -> PartitionBody | None:
    """The partition once it is told why it has none."""
    found = await client.list(body.namespace, body.job)
    told = next((one for one in found.items if one.code == "controller.unreachable"), None)
    return told if told is not None and "key" in told.message else None


async def test_two_clusters_of_one_name_leave_each_others_partitions_alone(harbour: Harbour) -> None:
    """And what a release made that told them not apart is taken in."""
    one = harbour.controllers[0]
    other = Harbour(harbour.folder / "other", harbour.kubernetes, harbour.controllers, tokens=harbour.tokens)
    other.flags = ("--cluster-uid", "another")
    other.folder.mkdir()
    (other.folder / "controllers").symlink_to(harbour.folder / "controllers")
    (other.folder / "keys").symlink_to(harbour.folder / "keys")
    try:
        async with harbour.client() as client:
            await client.create(wish(1, 4))
            held = await in_state(client, wish(1), "READY")
            other.start()
            async with other.client() as stranger:
                await until(lambda: is_complete(stranger))
                assert (await stranger.list()).items == ()
                assert "cluster.name_shared" in other.log.read_text()
                told = f'moorings_proxy_foreign_claims{{controller="{name(one)}"}} 1.0'
                assert told in other.ask("GET", "/metrics")[1]
                await stranger.create(wish(2, 2))
                await in_state(stranger, wish(2), "READY")
                assert [found.job for found in (await stranger.list()).items] == ["job-2"]
                assert (await client.list()).items == (held,), "nor is it told of by an event"
                assert await stranger.release("default", "job-1", "uid-job-1", 0) is None
                harbour.kill()
                harbour.start()
                place = InstanceKey("default", "job-3", "uid-job-3", 0)
                old = {"size": 1, "gcds": 1, "name": claim_name(place, "lab"), "owner": place.owner("lab")}
                assert one.ask("POST", "/v1/claims", old)[0] == 201
                ready = await in_state(client, wish(3), "READY")
                assert ready.controller == name(one)
                assert {found.job for found in (await client.list()).items} == {"job-1", "job-3"}
                again = await partition(client, wish(1))
                assert again is not None
                assert (again.claim, again.binding) == (held.claim, held.binding)
    finally:
        other.controllers = []
        other.stop()


async def is_complete(client: ProxyClient) -> bool:
    return (await client.list()).complete


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_mark_of_a_cluster_is_waited_for(
    cluster: KubernetesCluster, namespace: str, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """By a proxy that gets the right a moment later, and for a while by one that never does."""
    monkeypatch.setattr(program, "MARK_S", 0.1)
    if allowed:
        monkeypatch.setattr(program, "DENIED_MAX", 1_000_000)
    cluster.kubectl("create", "serviceaccount", "proxy", "-n", namespace)
    kube = connect({}, path=str(cluster.make_token_kubeconfig(namespace, "proxy")))
    stopping = asyncio.Event()
    found = asyncio.create_task(program.find_cluster_uid(kube, stopping))
    try:
        if allowed:
            role = ("--verb=get", "--resource=namespaces", "--resource-name=kube-system")
            await asyncio.to_thread(cluster.kubectl, "create", "clusterrole", namespace, *role)
            whom = (f"--clusterrole={namespace}", f"--serviceaccount={namespace}:proxy")
            await asyncio.to_thread(cluster.kubectl, "create", "clusterrolebinding", namespace, *whom)
        uid = cluster.api("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
        assert await asyncio.wait_for(found, patient(30)) == (uid if allowed else "")
        stopping.set()
        assert await program.find_cluster_uid(kube, stopping) == ""
    finally:
        found.cancel()
        await kube.close()
        if allowed:
            cluster.kubectl("delete", f"clusterrole/{namespace}", f"clusterrolebinding/{namespace}")
