"""When the gate stays open at the end of a job: what the agent must know for it, and what it leaves out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from moorings.slurm.formats import JobRecord
from moorings.slurm.host.agent import FRESH_S, Agent, AgentSettings
from moorings.wire.shapes import QueuedJobShape, QueueRequest
from tests.unit.slurm.test_gate import licenses
from tests.unit.slurm.test_ledger import HOME, a_claim, a_job, by_id

OPEN, SHUT = 8, 12  # of ipu_4 held back, of 32: others have 8 of them, two jobs of 4 hold 8, and 16 are offered
STARTED = licenses(dict.fromkeys((1, 2, 4), 4))  # one of the two has ended in Slurm since it was listed


def running(number: int, state: str = "RUNNING", **more: Any) -> JobRecord:
    return a_job(number, state, ipus=4, **{"licenses": {"ipu": 4}, **more})


@pytest.fixture
async def agent() -> Agent:
    nothing: Any = None
    made = Agent(AgentSettings(cluster=HOME.cluster, instance=HOME.instance), nothing, cast(Any, nothing))
    made._jobs = by_id(running(1), running(2))
    made._listed_at = asyncio.get_running_loop().time()
    offers, berths = made._offers, made._berths
    offers.counts, offers.held, offers.alone = {1: 16, 2: 8, 4: 4, 8: 2, 16: 1}, {4: 2}, True
    offers.asked_at = made._listed_at
    for claim in (a_claim(1), a_claim(2)):
        berths.claims[claim.owner] = replace(claim, state="READY")
        berths.settled_at[claim.owner] = made._listed_at
    return made


def kept(agent: Agent) -> int:
    return agent._to_reserve(STARTED)["ipu_4"]


async def test_what_a_job_gives_back_is_open_for_the_next(agent: Agent) -> None:
    assert kept(agent) == OPEN


async def test_it_is_shut_where_others_wait_or_a_larger_job_does(agent: Agent) -> None:
    agent._offers.alone = False
    assert kept(agent) == SHUT
    agent._offers.alone = True
    agent._offers._news = QueueRequest(queue=HOME.queue, jobs=(QueuedJobShape(owner=f"{HOME.queue}/9/a", size=8),))
    assert kept(agent) == SHUT


async def test_it_is_shut_where_a_larger_job_has_begun_and_waits(agent: Agent) -> None:
    agent._jobs |= by_id(running(3))
    large = replace(a_claim(3), state="PENDING", size=8)
    agent._berths.claims[large.owner] = large
    assert kept(agent) == SHUT


async def test_it_is_shut_by_an_old_list(agent: Agent) -> None:
    assert agent._listed_at is not None
    agent._listed_at -= FRESH_S + 1
    assert kept(agent) == SHUT


async def test_devices_in_use_by_who_has_no_licenses_are_not_open(agent: Agent) -> None:
    """Its job is completing, merely missing from the list, or an admin has taken its licenses."""
    for job in (running(2, "COMPLETING"), None, running(2, licenses={})):
        agent._jobs = by_id(running(1)) | (by_id(job) if job is not None else {})
        assert kept(agent) == SHUT
    agent._jobs = by_id(running(1))
    agent._releasing.add(a_claim(2).id)
    assert kept(agent) == OPEN, "its job is over"
