"""The loop when the database says no: nobody is told what is not saved, and nothing saved is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from moorings.controller.inbox import TRIES_MAX
from moorings.controller.loop import (
    IDLE_TURN_S,
    REQUEST_HOLD_S_MAX,
    RETRY_S,
    RETRY_S_MAX,
    CommittedChange,
    TurnLoop,
)
from moorings.controller.turn import KeyedInput, TurnOutcome
from moorings.core.invariants import find_violations
from moorings.core.model.access import Role
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, DrainDevice, PoolReachability, ReleaseClaim
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.ports.store import Changes, Epoch, ExpectedVersion, IdempotencyRecord, Seq, Store
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.testing.builders import NEW, NOW, a_claim, a_partition
from moorings.workloads.jobs import Accelerators, JobSpec, claim_spec_for
from moorings.workloads.run_turn import CreateRun, PauseRun, ResumeRun
from moorings.workloads.runs import Run, RunId, RunState
from tests.databases import open_new
from tests.waiting import patient

POD = Pool(PoolName("pod64"), "ipu", "simulated", PowerOfTwo(1, 64, 64))


def conflict() -> MooringsError:
    return MooringsError("store.conflict", "somebody else was faster")


def unavailable() -> MooringsError:
    return MooringsError("store.unavailable", "the disk is full", retryable=True)


@dataclass
class UnreliableStore:
    """The real store, with some answers spoilt.

    Attributes:
        refusals: what the next commits raise, with nothing saved.
        lost: what the next commits raise after all was saved.
        unreadable: what the next loads raise.
    """

    store: SqlStore
    refusals: list[MooringsError] = field(default_factory=list)
    lost: list[MooringsError] = field(default_factory=list)
    unreadable: list[MooringsError] = field(default_factory=list)
    n_commits: int = 0

    def commit(self, epoch: Epoch, changes: Changes, after: Seq) -> Seq:
        self.n_commits += 1
        if self.refusals:
            raise self.refusals.pop(0)
        saved = self.store.commit(epoch, changes, after)
        if self.lost:
            raise self.lost.pop(0)
        return saved

    def load_unended(self):
        if self.unreadable:
            raise self.unreadable.pop(0)
        return self.store.load_unended()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@dataclass
class PatientClock:
    """A second goes by whenever somebody looks; a nap takes no time, but is remembered; an idle one is a nap."""

    instant: int = NOW
    naps: list[float] = field(default_factory=list)

    def now(self) -> Timestamp:
        self.instant += SECOND
        return Timestamp(self.instant)

    async def sleep(self, seconds: float) -> None:
        if seconds == IDLE_TURN_S:
            await asyncio.sleep(seconds)
            return
        self.naps.append(seconds)
        await asyncio.sleep(0)


@dataclass
class Rig:
    loop: TurnLoop
    store: UnreliableStore
    clock: PatientClock
    epoch: Epoch
    serving: asyncio.Task[None] | None = None
    n_asked: int = 0

    def asks(self, size: int = 4, **more: Any) -> CreateClaim:
        self.n_asked += 1
        ident = ClaimId(f"claim-{self.n_asked}")
        spec = ClaimSpec(kind="ipu", size=size)
        return replace(CreateClaim(id=ident, name=ident, owner="user/ann", subject="ann", spec=spec), **more)

    async def claim(self, key: IdempotencyRecord | None = None, **more: Any) -> Claim:
        reply = await self.loop.submit(self.asks(**more), key)
        assert isinstance(reply, Claim), reply
        return reply

    async def refused(self, code: str, key: IdempotencyRecord | None = None, **more: Any) -> MooringsError:
        with pytest.raises(MooringsError) as caught:
            await self.claim(key, **more)
        assert caught.value.code == code
        return caught.value

    def saved(self) -> set[str]:
        return {str(claim.id) for claim in self.store.store.load_unended().claims}

    def told(self, name: str) -> int:
        return len(self.store.store.list_events(Seq(0), 1000, names=[name]))


@pytest.fixture
def store(tmp_path):
    store = open_new(tmp_path / "moorings.db")
    yield UnreliableStore(store)
    store.close()


def rig_over(store: UnreliableStore, *pools: Pool) -> Rig:
    clock = PatientClock()
    epoch = store.store.begin_epoch("test", clock.now())
    return Rig(TurnLoop(cast("Store", store), pools or (POD,), Policy(), clock, epoch), store, clock, epoch)


@contextlib.asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[Rig]:
    """The loop at work; at the end memory is what the database holds, and keeps the laws."""
    rig.serving = asyncio.create_task(rig.loop.serve())
    try:
        yield rig
    finally:
        rig.serving.cancel()
        await asyncio.gather(rig.serving, return_exceptions=True)
        rig.loop.close()
    assert find_violations(rig.loop.fleet) == []
    assert {str(ident) for ident in rig.loop.fleet.claims} == rig.saved()


@pytest.fixture
async def rig(store):
    async with serving(rig_over(store)) as rig:
        yield rig


# -- when all goes well --------------------------------------------------------------------------------------------


async def test_a_reply_comes_when_the_database_holds_it(rig):
    claim = await rig.claim()
    assert claim.state is ClaimState.GRANTED
    assert rig.saved() == {claim.id}
    assert rig.loop.seq == rig.store.last_seq()


async def test_a_demand_core_refuses_is_raised_and_nothing_is_saved(rig):
    await rig.refused("claim.too_large", size=128)
    assert rig.saved() == set()


async def test_one_refused_demand_does_not_spoil_the_turn_of_the_others(rig):
    before, refused, after = await asyncio.gather(
        rig.claim(size=4), rig.refused("claim.too_large", size=128), rig.claim(size=8)
    )
    assert "64" in refused.hint
    assert (before.state, after.state) == (ClaimState.GRANTED, ClaimState.GRANTED)


async def test_what_gathers_is_saved_at_once(rig):
    await rig.claim()
    before = rig.store.n_commits
    claims = await asyncio.gather(*(rig.claim(size=1) for _ in range(50)))
    assert rig.store.n_commits - before <= 2
    assert len(rig.saved()) == len({claim.id for claim in claims}) + 1


async def test_listeners_hear_of_what_was_saved_and_only_of_that(rig):
    heard: list[CommittedChange] = []
    await rig.claim()
    rig.loop.subscribe(heard.append)
    await rig.refused("claim.too_large", size=128)
    rig.store.refusals = [unavailable()]
    await rig.refused("store.unavailable")
    claim = await rig.claim()
    told = [known.id for change in heard for known in change.claims]
    assert told.count(claim.id) == 1
    assert set(told) <= rig.saved()


async def test_who_waits_for_news_hears_of_it(rig):
    claim = await rig.claim()
    before = rig.loop.seq
    waiting = asyncio.create_task(rig.loop.wait_for_change(before, 60))
    await asyncio.sleep(0)
    await rig.claim()
    await waiting
    assert rig.loop.seq > before
    await rig.loop.wait_for_change(before, 60)  # at once: the news is old
    assert claim.id in rig.saved()


async def test_who_waits_for_news_waits_no_longer_than_asked(rig):
    await rig.claim()
    await rig.loop.wait_for_change(Seq(10**9), 0)


# -- somebody else was faster --------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, TRIES_MAX])
async def test_a_conflict_is_tried_again_and_nobody_notices(rig, times):
    rig.store.refusals = [conflict() for _ in range(times)]
    claim = await rig.claim()
    assert claim.state is ClaimState.GRANTED
    assert (rig.told("claim.created"), rig.saved()) == (1, {claim.id})


async def test_a_conflict_without_end_is_told(rig):
    rig.store.refusals = [conflict() for _ in range(TRIES_MAX + 1)]
    await rig.refused("store.conflict")
    assert rig.saved() == set()
    assert (await rig.claim()).state is ClaimState.GRANTED


async def test_after_a_conflict_the_turn_decides_on_what_the_other_saved(rig):
    claim = await rig.claim()
    theirs = replace(claim, broken=2, version=claim.version + 1)
    rig.store.store.commit(rig.epoch, Changes(claims=[(theirs, ExpectedVersion(claim.version))]))
    released = await rig.loop.submit(ReleaseClaim(claim.id, "done"))
    assert isinstance(released, Claim)
    assert (released.state, released.broken, released.version) == (ClaimState.RELEASING, 2, theirs.version + 1)
    assert rig.store.get_claim(claim.id) == released


async def test_all_of_a_turn_is_tried_again(rig):
    rig.store.refusals = [conflict()]
    claims = await asyncio.gather(*(rig.claim() for _ in range(10)))
    assert rig.saved() == {claim.id for claim in claims}
    assert rig.told("claim.created") == 10


# -- the database does not answer ----------------------------------------------------------------------------------


async def test_what_could_not_be_saved_is_told_and_forgotten(rig):
    rig.store.refusals = [unavailable()]
    error = await rig.refused("store.unavailable")
    assert "disk is full" in str(error)
    claim = await rig.claim()
    assert rig.saved() == {claim.id}
    assert find_violations(rig.loop.fleet) == []


async def test_with_a_disk_that_is_nearly_full_work_ends_and_none_begins(rig, monkeypatch):
    claim = await rig.claim()

    def full() -> None:
        raise MooringsError("store.nearly_full", "0 MB left", retryable=True)

    monkeypatch.setattr(rig.store.store, "check_space", full)
    await rig.refused("store.nearly_full")
    with pytest.raises(MooringsError, match="0 MB left"):
        await rig.loop.submit(a_job(2))
    await rig.loop.submit(ReleaseClaim(claim.id, "done"))


async def test_the_problem_is_shown_while_there_is_one(rig):
    seen: list[str] = []
    rig.loop.subscribe(lambda _: seen.append(rig.loop.problem))
    rig.store.refusals = [unavailable()]
    await rig.refused("store.unavailable")
    await rig.claim()
    await rig.claim()
    assert "the disk is full" in seen
    assert rig.loop.problem == ""


async def test_a_lost_answer_is_no_lost_claim(rig):
    rig.store.lost = [unavailable()]
    await rig.refused("store.unavailable")
    (saved,) = rig.saved()
    later = await rig.claim()
    assert rig.saved() == {saved, later.id}
    assert {str(ident) for ident in rig.loop.fleet.claims} == rig.saved()


async def test_after_a_lost_answer_the_same_key_gives_the_same_claim(rig):
    key, wanted = IdempotencyRecord("ann", "k1", "d", ClaimId("claim-a")), {"id": ClaimId("claim-a"), "name": "mine"}
    rig.store.lost = [unavailable()]
    await rig.refused("store.unavailable", key, **wanted)
    again = IdempotencyRecord("ann", "k1", "d", ClaimId("claim-b"))
    claim = await rig.claim(again, id=ClaimId("claim-b"), name="mine")
    assert (claim.id, rig.saved()) == ("claim-a", {"claim-a"})


async def test_an_unsaved_key_can_be_used_again(rig):
    rig.store.refusals = [unavailable()]
    await rig.refused("store.unavailable", IdempotencyRecord("ann", "k1", "d", ClaimId("claim-1")))
    claim = await rig.claim(IdempotencyRecord("ann", "k1", "d", ClaimId("claim-2")))
    assert rig.saved() == {claim.id}


async def test_a_database_that_stays_away_is_asked_less_and_less_often(store):
    rig = rig_over(store)
    store.unreadable = [unavailable() for _ in range(8)]
    async with serving(rig):
        await rig.loop.wait_for_change(Seq(0), 60)  # the first good load
        assert (await rig.claim()).state is ClaimState.GRANTED
    pauses = [min(RETRY_S * 2**tries, RETRY_S_MAX) for tries in range(8)]
    assert rig.clock.naps == pytest.approx(pauses)


async def test_who_asks_while_the_database_is_away_is_told_so_at_once(store):
    rig = rig_over(store)
    store.unreadable = [unavailable() for _ in range(8)]
    async with serving(rig):
        await asyncio.gather(*(rig.refused("store.unavailable") for _ in range(3)))
        assert rig.loop.problem == "the disk is full"
        await rig.loop.wait_for_change(Seq(0), 60)


@dataclass
class WaitingClock(PatientClock):
    """Its long pauses last until somebody ends them."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, seconds: float) -> None:
        if seconds > REQUEST_HOLD_S_MAX:
            self.begun.set()
            await self.over.wait()
        await super().sleep(seconds)


async def test_who_asks_in_a_long_pause_is_told_at_once(store):
    rig = rig_over(store)
    rig.clock = rig.loop.clock = clock = WaitingClock()
    store.unreadable = [unavailable() for _ in range(5)]
    async with serving(rig):
        await clock.begun.wait()
        await rig.refused("store.unavailable")
        clock.over.set()
        await rig.loop.wait_for_change(Seq(0), 60)
        assert (await rig.claim()).state is ClaimState.GRANTED


async def test_after_a_good_turn_the_first_pause_is_short_again(rig):
    for _ in range(3):
        rig.store.refusals = [unavailable()]
        await rig.refused("store.unavailable")
        await rig.claim()
    assert rig.clock.naps == [RETRY_S] * 3


async def test_what_is_known_beside_the_records_survives_a_reload(rig):
    await rig.loop.submit(PoolReachability(POD.name, "the vendor is away"))
    rig.store.refusals = [unavailable()]
    await rig.refused("store.unavailable")
    claim = await rig.claim()
    assert rig.loop.fleet.pools[POD.name].unreachable_reason == "the vendor is away"
    assert claim.state is ClaimState.PENDING


async def test_nobody_arrives_before_somebody_who_was_there(rig):
    first = await rig.claim()
    rig.store.refusals = [unavailable()]
    await rig.refused("store.unavailable")
    rig.clock.instant = NOW - 1000 * SECOND  # and the clock is set back
    assert (await rig.claim()).arrival > first.arrival


async def test_nobody_arrives_before_somebody_who_has_gone(rig):
    await rig.claim(size=64)
    gone = await rig.claim()
    await rig.loop.submit(ReleaseClaim(gone.id, "changed my mind"))
    rig.store.refusals = [unavailable()]
    await rig.refused("store.unavailable")
    rig.clock.instant = NOW - 1000 * SECOND
    assert (await rig.claim()).arrival > gone.arrival


# -- another controller leads --------------------------------------------------------------------------------------


async def test_a_controller_that_no_longer_leads_ends(store):
    rig = rig_over(store)
    rig.serving = asyncio.create_task(rig.loop.serve())
    claim = await rig.claim()
    store.store.begin_epoch("another", rig.clock.now())
    await rig.refused("store.fenced")
    with pytest.raises(MooringsError) as caught:
        await rig.serving
    assert caught.value.code == "store.fenced"
    assert rig.saved() == {claim.id}
    rig.loop.close()


async def test_a_controller_that_was_replaced_reads_nothing_again(store):
    rig = rig_over(store)
    rig.serving = asyncio.create_task(rig.loop.serve())
    await rig.claim()
    reloaded = asyncio.Event()
    rig.loop.subscribe(lambda change: reloaded.set() if change.is_reload else None)
    store.store.begin_epoch("another", rig.clock.now())
    await rig.refused("store.fenced")
    goes_on = asyncio.create_task(reloaded.wait())
    await asyncio.wait([rig.serving, goes_on], return_when=asyncio.FIRST_COMPLETED)
    assert rig.serving.done(), "it went on after the fence"
    assert not goes_on.done()
    for task in (rig.serving, goes_on):
        task.cancel()
    await asyncio.gather(rig.serving, goes_on, return_exceptions=True)
    rig.loop.close()


@pytest.mark.parametrize("first", ["a commit", "a look"])
async def test_a_database_that_went_back_under_it_ends_it(store, tmp_path, first):
    """A standby that lagged was promoted. What was decided since is not in it: nothing may be decided from it."""
    rig = rig_over(store)
    rig.serving = asyncio.create_task(rig.loop.serve())
    early = await rig.claim()
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "moorings.db")) as now,
        contextlib.closing(sqlite3.connect(tmp_path / "earlier.db")) as copy,
    ):
        now.backup(copy)
    await rig.claim()
    current, store.store = store.store, open_sqlite(tmp_path / "earlier.db")
    if first == "a look":
        store.refusals.append(unavailable())
        await rig.refused("store.unavailable")
    else:
        await rig.refused("store.turned_back")
    with pytest.raises(MooringsError) as caught:
        await rig.serving
    assert (caught.value.code, "was turned back" in caught.value.detail) == ("store.turned_back", True)
    assert rig.saved() == {early.id}, "and nothing was saved in it"
    rig.loop.close()
    current.close()


async def test_a_database_whose_file_is_gone_ends_it_while_nobody_asks(store, tmp_path):
    rig = rig_over(store)
    rig.serving = asyncio.create_task(rig.loop.serve())
    claim = await rig.claim()
    (tmp_path / "moorings.db").rename(tmp_path / "away.db")
    with pytest.raises(MooringsError) as caught:
        await asyncio.wait_for(rig.serving, patient(30))
    assert caught.value.code == "store.removed"
    (tmp_path / "away.db").rename(tmp_path / "moorings.db")
    assert rig.saved() == {claim.id}
    rig.loop.close()


def assert_told(asking: asyncio.Task[Claim]) -> None:
    assert asking.done(), "nobody will ever answer"
    error = asking.exception()
    assert isinstance(error, MooringsError)
    assert (error.code, error.retryable) == ("controller.unreachable", True)


async def asked_before_the_end(store: UnreliableStore, count: int) -> list[asyncio.Task[Claim]]:
    rig = rig_over(store)
    waiting = [asyncio.create_task(rig.claim()) for _ in range(count)]
    await asyncio.sleep(0)
    rig.loop.close()
    await asyncio.sleep(0)
    return waiting


async def test_who_waits_in_vain_is_told_at_the_end(store):
    (asking,) = await asked_before_the_end(store, 1)
    assert_told(asking)


async def test_who_still_waits_at_the_end_is_told(store):
    for asking in await asked_before_the_end(store, 3):
        assert_told(asking)


async def test_who_comes_after_the_end_is_told(store):
    rig = rig_over(store)
    rig.loop.close()
    asking = asyncio.create_task(rig.claim())
    await asyncio.sleep(0)
    assert_told(asking)


async def test_whose_turn_is_under_way_at_the_end_is_told(store):
    rig = rig_over(store)
    saving, go_on = asyncio.Event(), threading.Event()
    here, commit = asyncio.get_running_loop(), store.store.commit

    def slow(epoch: Epoch, changes: Changes, after: Seq) -> Seq:
        here.call_soon_threadsafe(saving.set)
        assert go_on.wait(patient(30))
        return Seq(commit(epoch, changes, after))

    store.commit = slow
    rig.serving = asyncio.create_task(rig.loop.serve())
    asking = asyncio.create_task(rig.claim())
    await saving.wait()
    rig.serving.cancel()
    await asyncio.gather(rig.serving, return_exceptions=True)
    go_on.set()
    rig.loop.close()
    await asyncio.sleep(0)
    assert_told(asking)


async def test_who_was_replaced_cannot_confirm_that_it_leads(store):
    rig = rig_over(store)
    await rig.loop.confirm_leadership()
    store.store.begin_epoch("another", rig.clock.now())
    with pytest.raises(MooringsError) as caught:
        await rig.loop.confirm_leadership()
    assert caught.value.code == "store.fenced"
    rig.loop.close()


# -- time in which nobody could be heard ---------------------------------------------------------------------------


async def leased(rig: Rig) -> Claim:
    """A claim that is to be renewed every ten seconds; turns are taken by hand, a second apart."""
    await rig.loop.load()
    asking = asyncio.create_task(rig.claim(spec=ClaimSpec(kind="ipu", size=4, lease_s=10.0)))
    await asyncio.sleep(0)
    await rig.loop.turn()
    return await asking


async def turns(rig: Rig, count: int) -> None:
    for _ in range(count):
        await rig.loop.turn()


async def ends_with_a_lapse(rig: Rig, claim: Claim) -> None:
    """There is time to renew it, and no more than that."""
    await turns(rig, 8)
    assert rig.loop.fleet.claims[claim.id].state is ClaimState.GRANTED, "whoever wanted to renew it could not"
    await turns(rig, 4)
    assert rig.loop.fleet.claims[claim.id].state is ClaimState.RELEASING
    rig.loop.close()


async def test_no_lease_runs_while_the_process_stood_still(store):
    rig = rig_over(store)
    claim = await leased(rig)
    rig.clock.instant += 3600 * SECOND
    await ends_with_a_lapse(rig, claim)


async def test_no_lease_runs_longer_because_the_clock_was_set_back(store):
    rig = rig_over(store)
    claim = await leased(rig)
    rig.clock.instant -= 3600 * SECOND
    await ends_with_a_lapse(rig, claim)


async def test_no_lease_lapses_in_the_turn_after_the_database_was_away(store):
    rig = rig_over(store)
    claim = await leased(rig)
    store.refusals += [unavailable() for _ in range(15)]
    while store.refusals:
        rig.loop.submit_nowait(PoolReachability(POD.name, "no listing"))
        with pytest.raises(MooringsError):
            await rig.loop.turn()
    await rig.loop.load()
    await ends_with_a_lapse(rig, claim)


async def test_a_save_that_fails_now_and_then_prolongs_no_lease(store):
    rig = rig_over(store)
    claim = await leased(rig)
    for _ in range(4):
        store.refusals = [unavailable()]
        rig.loop.submit_nowait(PoolReachability(POD.name, "no listing"))
        with pytest.raises(MooringsError):
            await rig.loop.turn()
        await rig.loop.load()
        await turns(rig, 2)
    assert rig.loop.fleet.claims[claim.id].state is ClaimState.RELEASING
    rig.loop.close()


async def test_who_asks_while_the_database_cannot_be_read_is_told(store):
    rig = rig_over(store)
    rig.clock = rig.loop.clock = clock = WaitingClock()
    store.unreadable = [MooringsError("store.corrupt", "the disk is broken") for _ in range(5)]
    async with serving(rig):
        await clock.begun.wait()
        await rig.refused("store.corrupt")
        clock.over.set()
        await rig.loop.wait_for_change(Seq(0), 60)


# -- a fault of ours -----------------------------------------------------------------------------------------------


async def test_a_fault_in_a_turn_is_told_and_the_loop_goes_on(rig, caplog):
    with pytest.raises(MooringsError) as caught:
        await rig.loop.submit(cast("Any", "this is no input"))
    assert caught.value.code == "internal.error"
    assert "turn.failed" in caplog.text
    claim = await rig.claim()
    assert rig.saved() == {claim.id}


async def test_a_fault_that_one_demand_brings_is_that_one_s_alone(store):
    """The letters of a failed turn are tried alone: else they would fail together until nobody tries again."""
    rig = rig_over(store)
    together = [rig.asks() for _ in range(3)]
    tried: list[int] = []
    decide = rig.loop.decide

    def poisoned(demanded: Sequence[KeyedInput]) -> TurnOutcome:
        tried.append(len(demanded))
        if together[1] in [one.given for one in demanded]:
            raise RuntimeError("a fault of ours")
        return decide(demanded)

    rig.loop.decide = poisoned  # type: ignore[method-assign]
    async with serving(rig):
        answers = await asyncio.gather(*map(rig.loop.submit, together), return_exceptions=True)
    assert [getattr(one, "code", "granted") for one in answers] == ["granted", "internal.error", "granted"]
    assert [one for one in tried if one][:2] == [3, 1]


async def test_who_stopped_waiting_does_not_stop_the_turn(rig):
    waiting = asyncio.create_task(rig.claim())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    claim = await rig.claim()
    assert claim.state is ClaimState.GRANTED


# -- a run and its claim -------------------------------------------------------------------------------------------


def a_job(number: int, size: int = 1) -> CreateRun:
    job = JobSpec(name="digits", command=("true",), workdir="/", accelerators=Accelerators(size=size))
    ident, claim = RunId(f"run-{number}"), ClaimId(f"claim-{number}")
    return CreateRun(id=ident, claim=claim, job=job, engine="local", subject="ann")


async def test_a_run_and_its_claim_are_saved_at_once(rig):
    commits = rig.store.n_commits
    await rig.loop.submit(a_job(1))
    assert rig.store.n_commits == commits + 1
    saved = rig.store.store.load_unended()
    assert [run.claim for run in saved.runs] == [claim.id for claim in saved.claims] == ["claim-1"]


async def test_a_run_whose_claim_is_refused_leaves_nothing(rig):
    with pytest.raises(MooringsError) as caught:
        await rig.loop.submit(a_job(1, size=128))
    assert caught.value.code == "claim.too_large"
    assert rig.store.store.load_unended().runs == ()
    assert rig.loop.runs.by_id == {}
    assert rig.told("run.created") == 0


async def test_a_run_whose_next_claim_is_refused_stays_paused(rig):
    given = a_job(1, size=4)
    contract = CheckpointContract(resumable=True)
    given = replace(given, job=replace(given.job, checkpoint=contract, checkpoint_directory="/c"))
    await rig.loop.submit(given)
    paused = await rig.loop.submit(PauseRun(given.id, "ann", 60.0))
    assert paused.state is RunState.PAUSED
    spec = claim_spec_for(given.job)
    with pytest.raises(MooringsError) as caught:
        await rig.loop.submit(ResumeRun(given.id, ClaimId("claim-next"), replace(spec, size=128), Role.USER))
    assert caught.value.code == "claim.too_large"
    assert rig.loop.runs.by_id[given.id] == paused
    assert rig.told("run.resumed") == 0
    resumed = await rig.loop.submit(ResumeRun(given.id, ClaimId("claim-next"), spec, Role.USER))
    assert (resumed.state in (RunState.WAITING, RunState.STARTING), resumed.claim) == (True, "claim-next")


# -- idempotency keys ----------------------------------------------------------------------------------------------


def use(number: int, key: str = "k1", digest: str = "d") -> IdempotencyRecord:
    return IdempotencyRecord("ann", key, digest, ClaimId(f"claim-{number}"))


async def test_the_same_key_gives_the_same_claim(rig):
    first = await rig.claim(use(1))
    again = await rig.claim(use(2))
    assert (again.id, rig.told("claim.created")) == (first.id, 1)


async def test_the_same_key_many_times_at_once_makes_one_claim(rig):
    claims = await asyncio.gather(*(rig.claim(use(number)) for number in range(1, 11)))
    assert len({claim.id for claim in claims}) == 1
    assert rig.told("claim.created") == 1
    assert rig.loop.meters.failures == {}, "no commit was tried in vain for it"


async def test_the_same_key_with_another_request_is_refused(rig):
    await rig.claim(use(1))
    assert "another request" in str(await rig.refused("key.conflict", use(2, digest="other")))


async def test_a_key_belongs_to_who_used_it(rig):
    first = await rig.claim(use(1))
    other = await rig.claim(IdempotencyRecord("bob", "k1", "d", ClaimId("claim-2")))
    assert first.id != other.id


async def test_a_refused_demand_uses_no_key(rig):
    await rig.refused("claim.too_large", use(1), size=128)
    assert (await rig.claim(use(2))).state is ClaimState.GRANTED


async def test_a_key_of_a_run_gives_the_same_run(rig):
    first = await rig.loop.submit(a_job(1), IdempotencyRecord("ann", "k", "d", run=RunId("run-1")))
    again = await rig.loop.submit(a_job(2), IdempotencyRecord("ann", "k", "d", run=RunId("run-2")))
    assert isinstance(first, Run)
    assert isinstance(again, Run)
    assert first.id == again.id == "run-1"


async def test_a_key_outlives_the_controller(store):
    async with serving(rig_over(store)) as rig:
        first = await rig.claim(use(1))
    async with serving(rig_over(store)) as rig:
        assert (await rig.claim(use(2))).id == first.id


# -- beginning -----------------------------------------------------------------------------------------------------


async def test_a_new_controller_knows_what_the_last_one_saved(store):
    async with serving(rig_over(store)) as rig:
        claim = await rig.claim()
        await rig.loop.submit(DrainDevice(POD.name, 63, "board swap"))
    again = rig_over(store)
    await again.loop.load()
    assert again.loop.fleet.claims[claim.id].state is ClaimState.GRANTED
    assert set(again.loop.fleet.pools[POD.name].out_of_service) == {63}
    assert again.loop.seq == store.last_seq()
    again.loop.close()


@pytest.mark.parametrize(
    "pool",
    [
        Pool(PoolName("other"), "ipu", "simulated", PowerOfTwo(1, 64, 64)),
        Pool(POD.name, "ipu", "simulated", PowerOfTwo(1, 2, 2)),
    ],
    ids=["gone", "smaller"],
)
async def test_a_pools_file_that_no_longer_holds_what_is_in_use_is_refused(store, pool):
    partition = a_partition()
    claim = a_claim(state=ClaimState.GRANTED, pool=POD.name, partition=partition.id)
    first = rig_over(store)
    store.store.commit(first.epoch, Changes(claims=[(claim, NEW)], partitions=[(partition, NEW)]))
    rig = rig_over(store, pool)
    with pytest.raises(MooringsError, match="holds devices 0-3 of pool pod64") as caught:
        await rig.loop.load()
    assert caught.value.code == "pools.invalid"
    assert caught.value.hint
    first.loop.close()
    rig.loop.close()
