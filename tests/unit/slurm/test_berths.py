"""From a start to its binding: lost answers, lost partitions, a controller that is away, and what is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.model.claims import USABLE
from moorings.core.model.errors import MooringsError
from moorings.slurm.formats import JobRecord
from moorings.slurm.host import claim_table as module
from moorings.slurm.host.claim_table import WAITING_STATES, ClaimTable, NoPartitionError
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.job_table import JobStart
from moorings.slurm.host.license_gate import sizes_awaiting_devices, sizes_without_licenses
from moorings.wire.shapes import BindingBody, ClaimBody, ClaimRequest, GcdBody, ReasonBody
from tests.unit.slurm.test_ledger import HOME, NONCE, a_claim, a_job, by_id
from tests.waiting import until_async

T = TypeVar("T")
JOB = a_job(1)
OWNER = JobStart(1, NONCE, 0).owner(HOME)
AWAY = MooringsError("controller.unreachable", "no answer", retryable=True)


class Controller:
    """Answers as the controller does, from the claims it has; ``lose`` answers are lost on their way."""

    is_full = False

    def __init__(self, state: str = "READY") -> None:
        self.state = state
        self.lose = 0
        self.taken: set[str] = set()
        self.by_key: dict[str, ClaimBody] = {}
        self.limits: dict[str, float | None] = {}
        self.asked = 0  # for bindings
        self.keeps: MooringsError | None = None  # why there is no binding now

    async def __call__(self, ask: Callable[[Client], T], *, waits: bool = False) -> T:
        await asyncio.sleep(0)
        answer = ask(cast(Client, self))
        if self.lose:
            self.lose -= 1
            raise AWAY
        return answer

    def create_claim(self, request: ClaimRequest, key: str) -> ClaimBody:
        if request.name in self.taken:
            raise MooringsError("claim.name_taken", "an older job of that id")
        if key in self.by_key and self.limits[key] != request.time_limit_s:
            raise MooringsError("key.conflict", "the key was used with another request")
        self.limits[key] = request.time_limit_s
        made = replace(a_claim(1), id=f"claim-{len(self.by_key)}", name=request.name or "", state=self.state)
        return self.by_key.setdefault(key, made)

    def list_claims(self, where: ClaimFilter) -> tuple[ClaimBody, ...]:
        assert where == ClaimFilter(owner_prefix=OWNER, all=True)
        return tuple(self.by_key.values())

    def get_claim(self, ident: str, *, wait_s: float = 0, until: str | None = None) -> ClaimBody:
        return replace(next(c for c in self.by_key.values() if c.id == ident), state=self.state)

    def binding(self, ident: str, *, wait_s: float = 0) -> BindingBody:
        self.asked += 1
        if self.keeps is not None:
            raise self.keeps
        if self.state not in USABLE:
            raise MooringsError(
                "claim.not_ready", f"claim {ident} is {self.state}", retryable=self.state in WAITING_STATES
            )
        return BindingBody(partition=f"of-{ident}", api={}, gcds=(GcdBody(gcd=0, devices=("pod:0",)),))


def make(controller: Controller, patience_s: float = 5.0, fails: int = 0) -> tuple[ClaimTable, list[str]]:
    """Berths, and what they tell; Slurm cannot be told the first ``fails`` times that a job is given up."""
    told: list[str] = []

    async def give_up(_job: JobRecord, message: str) -> bool:
        told.append(message)
        return len(told) - 1 > fails

    calls: Any = controller
    return ClaimTable(
        cast(ControllerClient, calls), HOME, "", patience_s, give_up, lambda: told.append("settled")
    ), told


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "AGAIN_S", 0.02)


async def test_a_claim_whose_answer_was_lost_is_found_again() -> None:
    controller = Controller()
    controller.lose = 3
    berths, told = make(controller)
    assert (await berths.get_binding(JOB)).partition == "of-claim-0"
    assert len(controller.by_key) == 1
    assert told == ["settled"]
    assert berths.claims[OWNER].id == "claim-0"


async def test_a_name_that_an_older_job_of_the_id_still_has_is_made_longer() -> None:
    controller = Controller()
    controller.taken.add("slurm_1")
    berths, _ = make(controller)
    await berths.get_binding(JOB)
    assert berths.claims[OWNER].name == f"slurm_1_{NONCE}"


async def test_a_partition_that_was_lost_is_handed_to_no_further_step() -> None:
    controller = Controller()
    berths, _ = make(controller)
    await berths.get_binding(JOB)
    claim = berths.claims[OWNER]
    assert berths.get_binding(JOB).done(), "each step is answered from the first"
    controller.state = "LOST"
    berths.update(replace(claim, state="LOST"))
    with pytest.raises(NoPartitionError, match="its claim is LOST"):
        await berths.get_binding(JOB)


async def test_a_claim_that_somebody_ended_is_not_made_anew() -> None:
    controller = Controller()
    berths, _ = make(controller)
    await berths.get_binding(JOB)
    controller.by_key = {key: replace(claim, state="RELEASED") for key, claim in controller.by_key.items()}
    berths.remove(OWNER)
    with pytest.raises(NoPartitionError, match="its claim is RELEASED"):
        await berths.get_binding(JOB)
    assert OWNER not in berths.claims


async def test_a_job_that_slurm_runs_again_after_its_claim_was_released_gets_another() -> None:
    """A killed slurmctld had not saved that it ran; each agent and each answer lost finds the same claim."""
    controller = Controller()
    berths, _ = make(controller)
    for n in range(3):
        assert (await berths.get_binding(JOB)).partition == f"of-claim-{n}"
        for key, claim in controller.by_key.items():
            reason = ReasonBody(code="claim.released", message="released by agent")
            controller.by_key[key] = replace(claim, state="RELEASED", reason=reason)
        berths.forget(OWNER)
        berths.remove(OWNER)
    controller.lose = 1
    await berths.get_binding(JOB)
    another, _ = make(controller)
    assert (await another.get_binding(JOB)).partition == "of-claim-3"
    assert len(controller.by_key) == 4


async def test_another_time_limit_by_then_makes_no_second_claim() -> None:
    """An admin changed it after an answer was lost; or slurmctld runs the job again, and says another one."""
    controller = Controller()
    first, _ = make(controller)
    await first.get_binding(JOB)
    another, _ = make(controller)
    assert (await another.get_binding(replace(JOB, limit_s=77.0))).partition == "of-claim-0"
    assert len(controller.by_key) == 1
    reason = ReasonBody(code="claim.released", message="released by agent")
    controller.by_key = {key: replace(one, state="RELEASED", reason=reason) for key, one in controller.by_key.items()}
    third, _ = make(controller)
    assert (await third.get_binding(replace(JOB, limit_s=78.0))).partition == "of-claim-1"


async def test_a_wait_in_vain_ends() -> None:
    berths, told = make(Controller("PENDING"), patience_s=0.05)
    with pytest.raises(NoPartitionError, match=r"no partition within 0\.05 s"):
        await berths.get_binding(JOB)
    assert told == ["settled", "no partition within 0.05 s: its claim is PENDING"]


async def test_a_job_that_slurm_cannot_take_back_now_is_not_refused() -> None:
    """Refused, it would end FAILED, where a moment later it could have gone back into the queue."""
    controller = Controller("PENDING")
    berths, told = make(controller, patience_s=0.02, fails=2)
    with pytest.raises(NoPartitionError, match=r"no partition within 0\.02 s"):
        await berths.get_binding(JOB)
    assert told == ["settled", *["no partition within 0.02 s: its claim is PENDING"] * 3]


async def test_a_partition_that_comes_while_slurm_is_away_is_the_jobs() -> None:
    controller = Controller("PENDING")
    berths, told = make(controller, patience_s=0.02, fails=1_000_000)
    work = berths.get_binding(JOB)
    await until_async(lambda: len(told) > 2, what="it is given up in vain")
    controller.state = "READY"
    assert (await work).partition == "of-claim-0"


async def test_a_job_that_holds_its_partition_is_never_given_up() -> None:
    """Law 3: an agent that was started anew does not know how long the job has run; this may be one more step of it."""
    controller = Controller()
    controller.keeps = MooringsError("partition.not_active", "it is being reset", retryable=True)
    berths, told = make(controller, patience_s=0.02)
    work = berths.get_binding(JOB)
    await until_async(lambda: told)
    await asyncio.sleep(0.2)
    assert not work.done()
    assert told == ["settled"], "it was never given up"
    controller.keeps = None
    assert (await work).partition == "of-claim-0"


@pytest.mark.parametrize("code", ["auth.expired", "auth.invalid"])
async def test_a_job_that_holds_its_partition_waits_for_the_agents_next_key(code: str) -> None:
    """Law 3: a key of ours that is refused says nothing of the job, and ends none of its steps."""
    controller = Controller()
    controller.keeps = MooringsError(code, "the access key has expired")
    berths, told = make(controller, patience_s=0.02)
    work = berths.get_binding(JOB)
    await until_async(lambda: controller.asked > 5)
    assert not work.done()
    assert told == ["settled"], "it was never given up"
    controller.keeps = None
    assert (await work).partition == "of-claim-0"


class Expired(Controller):
    """One for which the agent's key has expired."""

    def create_claim(self, request: ClaimRequest, key: str) -> ClaimBody:
        raise MooringsError("auth.expired", "the access key has expired")


async def test_a_start_that_meets_an_expired_key_goes_back_into_the_queue_and_is_told_why() -> None:
    berths, told = make(Expired("PENDING"), patience_s=0.05)
    with pytest.raises(NoPartitionError, match="the access key has expired"):
        await berths.get_binding(JOB)
    assert told == ["settled", "no partition within 0.05 s: the access key has expired"]


async def test_after_a_refusal_the_next_step_of_a_job_that_holds_its_partition_asks_again() -> None:
    controller = Controller()
    controller.keeps = MooringsError("driver.fault", "its driver cannot tell")
    berths, _ = make(controller)
    with pytest.raises(NoPartitionError, match="its driver cannot tell"):
        await berths.get_binding(JOB)
    controller.keeps = None
    assert (await berths.get_binding(JOB)).partition == "of-claim-0"


async def test_a_start_that_waits_has_its_binding_from_one_call() -> None:
    controller = Controller("PENDING")
    berths, _ = make(controller)
    work = berths.get_binding(JOB)
    while OWNER not in berths.claims:  # noqa: ASYNC110 - a plain value
        await asyncio.sleep(0)
    assert sizes_awaiting_devices(berths.claims.values(), {OWNER}) == [4]
    controller.state = "READY"
    assert (await work).partition == "of-claim-0"
    assert (berths.claims[OWNER].state, sizes_awaiting_devices(berths.claims.values(), {OWNER})) == ("READY", [])


async def test_devices_are_in_use_beside_the_licenses_until_the_job_is_over() -> None:
    controller = Controller("PENDING")
    berths, _ = make(controller, patience_s=0.05)
    with pytest.raises(NoPartitionError):
        await berths.get_binding(JOB)
    assert sizes_without_licenses(berths.claims.values(), (), ()) == [], "it has no devices"
    berths.update(replace(berths.claims[OWNER], state="READY"))
    assert sizes_without_licenses(berths.claims.values(), {OWNER}, ()) == [], "it has its licenses"
    assert sizes_without_licenses(berths.claims.values(), (), ()) == [4], (
        "it is completing, or merely missing from a list"
    )
    assert sizes_without_licenses(berths.claims.values(), (), {berths.claims[OWNER].id}) == []


async def test_a_claim_that_is_ready_is_known_to_be_though_its_binding_cannot_be_had() -> None:
    """Else its job would be given up at the end of its patience."""
    controller = Controller()
    controller.keeps = MooringsError("partition.not_active", "it is being reset", retryable=True)
    berths, told = make(controller, patience_s=0.02)
    berths.claims[OWNER] = controller.create_claim(ClaimRequest(size=4, name="slurm_1"), "key")
    berths.claims[OWNER] = replace(berths.claims[OWNER], state="PENDING")
    work = berths.get_binding(JOB)
    await until_async(lambda: berths.claims[OWNER].state == "READY")
    await asyncio.sleep(0.1)
    assert (berths.claims[OWNER].state, work.done(), told) == ("READY", False, [])
    controller.keeps = None
    assert (await work).partition == "of-claim-0"


async def test_a_controller_that_is_busy_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 1e6)
    controller = Controller("PENDING")
    controller.keeps = MooringsError("server.busy", "too many wait", retryable=True)
    berths, _ = make(controller)
    work = berths.get_binding(JOB)
    await until_async(lambda: controller.asked)
    await asyncio.sleep(0.05)
    assert controller.asked == 1
    work.cancel()


async def test_of_jobs_that_are_over_nothing_is_kept() -> None:
    """Also of one that got no partition, or whose start was asked for while the controller was away."""
    controller = Controller("FAILED")
    berths, _ = make(controller, patience_s=60)
    with pytest.raises(NoPartitionError):
        await berths.get_binding(JOB)
    controller.lose = 1_000_000
    other = a_job(2)
    work = berths.get_binding(other)
    berths.forget_finished(by_id(JOB, other))
    assert len(berths.bindings) == 2
    berths.forget_finished({})
    assert list(berths.bindings.values()) == [work], "one list without it does not stop what is under way"
    berths.forget_finished(by_id(a_job(2, "CANCELLED")))
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (berths.bindings, berths.claims, berths.settled_at) == ({}, {}, {})
