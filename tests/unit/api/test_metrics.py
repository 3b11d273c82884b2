"""``/metrics``: open, in Prometheus' form, with few labels and nobody's name."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moorings.api.metrics import CACHE_S, UNROUTED, standby_text


async def scrape(api) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = await api.get("/metrics", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples, metric: str, **labels: str) -> float:
    return float(samples[metric, tuple(sorted(labels.items()))])


@pytest.fixture
def fresh(monkeypatch):
    """Each scrape counts again."""
    monkeypatch.setattr("moorings.api.metrics.CACHE_S", 0.0)


async def test_the_numbers_are_there_without_a_key(api):
    samples = await scrape(api)
    assert value(samples, "moorings_devices", pool="pod16", state="free") == 16
    assert value(samples, "moorings_possible_partitions", pool="pod16", size="8") == 2
    assert value(samples, "moorings_pool_reachable", pool="pod16") == 1
    assert value(samples, "moorings_leader") == 1
    assert value(samples, "moorings_events_total") == 7
    assert value(samples, "moorings_seats", kind="watches") == 1024
    assert value(samples, "process_open_fds") > 0
    assert any(name == "moorings_build_info" for name, _ in samples)


async def test_counts_of_the_controller_become_histograms(api, controller):
    controller.meters.turns.observe(0.002)
    controller.meters.commits.observe(3.0)
    controller.meters.failures["store.unavailable"] += 2
    controller.meters.add_order("pod16", "create", "ok", 0.2)
    samples = await scrape(api)
    assert value(samples, "moorings_turn_duration_seconds_bucket", le="0.001") == 0
    assert value(samples, "moorings_turn_duration_seconds_bucket", le="0.0025") == 1
    assert value(samples, "moorings_commit_duration_seconds_sum") == 3.0
    assert value(samples, "moorings_turn_failures_total", code="store.unavailable") == 2
    order = {"pool": "pod16", "order": "create", "result": "ok"}
    assert value(samples, "moorings_driver_order_duration_seconds_count", **order) == 1
    assert value(samples, "moorings_driver_order_duration_seconds_bucket", le="+Inf", **order) == 1


async def test_requests_are_counted_by_route_never_by_path(api, fresh):
    for ident in ("claim-1", "claim-2", "claim-3"):
        await api.get(f"/v1/claims/{ident}")
    await api.get("/v1/pools")
    await api.get("/nowhere/at/all")
    await api.request("BREW", "/v1/pools")
    samples = await scrape(api)

    def answered(**labels: str) -> float:
        return value(samples, "moorings_http_request_duration_seconds_count", **labels)

    assert answered(method="GET", route="/v1/claims/{id}", status="404") == 3
    assert answered(method="GET", route="/v1/pools", status="200") == 1
    assert answered(method="other", route=UNROUTED, status="404") == 1
    assert answered(method="other", route=UNROUTED, status="405") == 1
    assert not any("claim-1" in str(labels) for _, labels in samples)


async def test_the_text_is_made_anew_only_after_a_while(api, controller):
    before = await scrape(api)
    controller.meters.failures["store.conflict"] += 1
    assert await scrape(api) == before
    await asyncio.sleep(CACHE_S)  # it is the time itself that is asked about
    assert value(await scrape(api), "moorings_turn_failures_total", code="store.conflict") == 1


async def test_it_says_when_nothing_can_be_saved(api, controller):
    from moorings.core.model.reasons import Reason

    controller.unready = Reason("store.unavailable", "no")
    assert value(await scrape(api), "moorings_ready") == 0


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
async def test_it_lives(api, path):
    answer = await api.get(path, headers={"Authorization": ""})
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


@pytest.mark.parametrize("ready", [True, False])
def test_one_that_stands_by_tells_only_of_itself(ready):
    families = {family.name: family for family in text_string_to_metric_families(standby_text(ready=ready).decode())}
    assert families["moorings_leader"].samples[0].value == 0
    assert families["moorings_ready"].samples[0].value == ready
    assert "process_open_fds" in families
    assert not any(name.startswith("moorings_claims") for name in families)
