"""One proxy, one controller, real Kubernetes: partitions come, are reset and go; nobody gets in who may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy_api.client import PartitionInformer
from tests.e2e.processes import ControllerProcess
from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.proxy.harbour import Harbour, in_state, let_go, partition, pools, wish
from tests.waiting import patient
from tests.waiting import until_async as until


@pytest.fixture
def harbour(tmp_path: Path, cluster: KubernetesCluster) -> Iterator[Harbour]:
    made = Harbour(tmp_path, cluster, [ControllerProcess(tmp_path / "one", pools(16))])
    try:
        made.start_controllers()
        made.start()
        yield made
    finally:
        made.stop()


async def test_a_partition_comes_is_reset_and_goes(harbour: Harbour) -> None:
    async with harbour.client() as client:
        request = wish(ipus=4, gcds=2, job="training")
        made = await client.create(request)
        assert made.state in ("WAITING", "PREPARING", "READY")
        ready = await in_state(client, request, "READY")
        assert ready.binding is not None
        assert len(ready.binding.gcds) == 2
        assert ready.node_selector == {"ipunode": "node0"}
        assert ready.controller == f"127.0.0.1:{harbour.controllers[0].port}"
        assert ready.name.startswith("training-")
        assert len(ready.name) <= 36
        assert await client.create(request) == ready, "asked again, it is no second one"
        assert len(harbour.claims(harbour.controllers[0])) == 1
        again = await client.reset(request.namespace, request.job, request.uid, 0)
        assert (again.state, again.binding) == ("READY", ready.binding)
        await let_go(client, request)
        assert harbour.claims(harbour.controllers[0]) == []
        assert await client.release(request.namespace, request.job, request.uid, 0) is None
        await client.create(request)  # with the same uid: a job that is started again
        assert (await in_state(client, request, "READY")).name == ready.name
        await let_go(client, request)


async def test_what_is_asked_with_other_numbers_is_a_conflict(harbour: Harbour) -> None:
    async with harbour.client() as client:
        await client.create(wish(ipus=4))
        with pytest.raises(MooringsError) as refused:
            await client.create(wish(ipus=8))
        assert refused.value.code == "key.conflict"


async def test_what_can_never_be_says_so(harbour: Harbour) -> None:
    async with harbour.client() as client:
        failed = await client.create(wish(ipus=64))
        assert (failed.state, failed.code) == ("FAILED", "claim.too_large")
        assert "64" in failed.message
        await let_go(client, wish(ipus=64))


async def test_a_watch_tells_everything_in_order_and_goes_on_where_it_was(harbour: Harbour) -> None:
    async with harbour.client() as client:
        begin = (await client.list()).version
        await client.create(wish(ipus=2))
        await in_state(client, wish(), "READY")
        await let_go(client, wish())
        seen = []
        async for version, change in client.watch(begin):
            seen.append((version, change.partition.state, change.gone, change.partition.binding is not None))
            if change.gone:
                break
        states = [state for _, state, _, _ in seen]
        assert states.index("READY") < states.index("RELEASING")
        assert all(bound == (state == "READY") for _, state, _, bound in seen)
        middle = next(version for version, state, _, _ in seen if state == "READY")
        async for version, change in client.watch(middle):
            assert (version, change.partition.state) == seen[states.index("READY") + 1][:2]
            break
        with pytest.raises(MooringsError) as refused:
            await anext(client.watch("0-5"))
        assert refused.value.code == "watch.expired"


async def test_the_view_follows(harbour: Harbour) -> None:
    changed: list[str] = []
    async with harbour.client() as client:
        view = PartitionInformer(client, changed.append)
        serving = asyncio.create_task(view.serve())
        await asyncio.wait_for(view.ready(), patient(10))
        assert view.is_synced
        await client.create(wish(3, 2))

        async def ready() -> bool:
            found = view.get("default", "job-3").get(0)
            return found is not None and found.state == "READY"

        await until(ready)
        assert set(changed) == {"default/job-3"}
        harbour.kill()

        async def blind() -> bool:
            return not view.is_synced

        await until(blind)
        assert view.get("default", "job-3")[0].state == "READY", "nothing is forgotten"
        harbour.start()

        async def sees() -> bool:
            return view.is_synced

        await until(sees)
        await until(ready)  # one that has just begun is told by its controller that it still is
        await let_go(client, wish(3))

        async def gone() -> bool:
            return not view.get("default", "job-3")

        await until(gone)
        serving.cancel()


async def test_stats_and_query_answer_as_the_vendors_proxy_does(harbour: Harbour) -> None:
    async with harbour.client() as client:
        await client.create(wish(ipus=4))
        await in_state(client, wish(), "READY")
        await asyncio.sleep(1.1)  # they are a second old at most
        assert harbour.ask("GET", "/stats") == (
            200,
            {"default": {"used": 4, "available": 12}, "total": {"used": 4, "available": 12}},
        )
        assert harbour.ask("POST", "/query", {"size": 2}) == (
            200,
            {"available": True, "numOfPartitions": 6, "message": ""},
        )
        assert harbour.ask("POST", "/query", {"size": 64})[1] == {
            "available": True,
            "numOfPartitions": 0,
            "message": "",
        }
        for bad in (b"", b"[1]", b"{}", b'{"size":"2"}', b'{"size":0}', b'{"size":true}'):
            status, told = harbour.ask("POST", "/query", bad)
            assert (status, told["available"], told["numOfPartitions"]) == (400, False, 0)
            assert told["message"]


async def test_who_may_do_what(harbour: Harbour) -> None:
    async with harbour.client() as client:
        await client.create(wish(ipus=1, job="mine"))
        await in_state(client, wish(job="mine"), "READY")
    mine = "/v1/partitions/default/mine/uid-mine/0"
    launcher, stranger = harbour.pod_token("mine-launcher", "mine-launcher"), harbour.token("stranger")
    second = harbour.pod_token("mine-launcher-1", "mine-launcher")
    intruder = harbour.pod_token("intruder", "mine-launcher")
    elsewhere = harbour.token(audience="https://kubernetes.default.svc.cluster.local")
    for token, status, code in (
        ("", 401, "auth.missing"),
        ("nonsense", 401, "auth.invalid"),
        (elsewhere, 401, "auth.invalid"),
        (stranger, 403, "auth.denied"),
        (intruder, 403, "auth.denied"),
        (harbour.token("mine-launcher"), 403, "auth.denied"),
    ):
        for method, path in (
            ("GET", "/v1/partitions"),
            ("GET", "/v1/partitions?namespace=default&job=mine"),
            ("POST", "/v1/partitions"),
            ("DELETE", mine),
            ("POST", f"{mine}/reset"),
            ("GET", "/v1/partitions/watch?since=0-0"),
        ):
            told = harbour.ask(method, path, {} if method == "POST" else None, token)
            assert (told[0], told[1]["code"]) == (status, code), path
    status, found = harbour.ask("GET", "/v1/partitions?namespace=default&job=mine", token=launcher)
    assert (status, [one["job"] for one in found["items"]]) == (200, ["mine"])
    assert harbour.ask("POST", f"{mine}/reset", token=launcher)[0] == 200
    assert harbour.ask("GET", "/v1/partitions?namespace=default&job=mine", token=second)[0] == 200
    assert harbour.ask("POST", f"{mine}/reset", token=second)[0] == 403
    assert "names no Pod" in harbour.ask("POST", f"{mine}/reset", token=harbour.token("mine-launcher"))[1]["hint"]
    for method, path in (
        ("GET", "/v1/partitions"),
        ("GET", "/v1/partitions?namespace=default&job=other"),
        ("POST", "/v1/partitions"),
        ("DELETE", mine),
        ("POST", "/v1/partitions/default/other/uid-other/0/reset"),
    ):
        assert harbour.ask(method, path, {} if method == "POST" else None, launcher)[0] == 403, path
    log = harbour.log.read_text()
    assert not any(token and token in log for token in (launcher, stranger, elsewhere, "nonsense"))


async def test_a_partition_that_vanishes_is_lost_and_can_be_let_go(harbour: Harbour) -> None:
    async with harbour.client() as client:
        await client.create(wish(ipus=4))
        ready = await in_state(client, wish(), "READY")
        faults = harbour.controllers[0].data / "simulated" / "pod16" / "faults.toml"
        faults.write_text(f'[[fault]]\nkind = "vanishes"\nnames = ["{ready.name}"]\nseconds = 0\n')
        lost = await in_state(client, wish(), "LOST", 60)
        assert lost.message
        assert lost.binding is None
        faults.unlink()
        await let_go(client, wish())


async def test_who_is_in_the_way_is_waited_for(harbour: Harbour) -> None:
    async with harbour.client() as client:
        await client.create(wish(1, 16, gcds=2))
        await in_state(client, wish(1), "READY")
        await client.create(wish(2, 8))
        waiting = await in_state(client, wish(2), "WAITING")
        assert waiting.controller == ""

        async def why() -> str:
            found = await partition(client, wish(2))
            return found.message if found is not None else ""

        assert await until(why) == "a block of 8 IPUs is kept for it"
        await let_go(client, wish(1))
        await in_state(client, wish(2), "READY")


async def test_fifty_at_once_for_sixteen_places(harbour: Harbour) -> None:
    async with harbour.client() as client:
        wishes = [wish(number) for number in range(50)]
        await asyncio.gather(*map(client.create, wishes))

        async def full() -> bool:
            found = (await client.list()).items
            return sum(one.state == "READY" for one in found) == 16 and len(found) == 50

        await until(full)
        served: set[str] = set()
        while len(served) < 50:
            ready = [one for one in (await client.list()).items if one.state == "READY" and one.job not in served]
            served |= {one.job for one in ready}
            assert sum(claim["state"] == "READY" for claim in harbour.claims(harbour.controllers[0])) <= 16
            await asyncio.gather(*(client.release(one.namespace, one.job, one.uid, one.instance) for one in ready))
            await asyncio.sleep(0.05)

        async def empty() -> bool:
            return not (await client.list()).items

        await until(empty)
        everything = harbour.claims(harbour.controllers[0], everything=True)
        assert len({claim["owner"] for claim in everything}) == len(everything) == 50


async def test_the_tracker_says_who_has_what_and_stays(harbour: Harbour, cluster: KubernetesCluster) -> None:
    async with harbour.client() as client:
        await client.create(wish(ipus=4, job="shown"))
        ready = await in_state(client, wish(job="shown"), "READY")

        async def written() -> bool:
            found = cluster.find("configmap", "ipu-partitions-tracker", "default")
            lines = found["data"]["partitions"].splitlines() if found else []
            told = [json.loads(line) for line in lines]
            return ("default/shown", ready.name) in {(one["job"], one["partition"]) for one in told}

        await until(written)
        harbour.kill()
        assert cluster.find("configmap", "ipu-partitions-tracker", "default") is not None


async def test_metrics_and_the_document(harbour: Harbour) -> None:
    async with harbour.client() as client:
        await client.create(wish(ipus=4))
        await in_state(client, wish(), "READY")
        assert await partition(client, wish()) is not None
    text = harbour.ask("GET", "/metrics")[1]
    assert 'moorings_proxy_partitions{namespace="default",state="READY"} 1.0' in text
    assert 'moorings_proxy_ipus_used{namespace="default"} 4.0' in text
    assert f'moorings_proxy_controller_reachable{{controller="127.0.0.1:{harbour.controllers[0].port}"}} 1.0' in text
    assert 'route="/v1/partitions",status="200"' in text
    document = harbour.ask("GET", "/openapi.json")[1]
    assert "/v1/partitions/{namespace}/{job}/{uid}/{instance}/reset" in document["paths"]
    assert harbour.ask("GET", "/nothing")[1]["code"] == "path.unknown"
    assert harbour.ask("POST", "/stats", {})[1]["code"] == "method.not_allowed"
