"""The whole controller on PostgreSQL, and what becomes of its promises when the server or the way to it fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from moorings.controller.service import Controller
from moorings.core.model.claims import Claim, ClaimSpec, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.ports.store import PageQuery
from moorings.store.postgresql import open_postgresql
from moorings.store.session import DatabaseTimeouts
from moorings.workloads.runs import RunState
from tests.e2e.rig import ADMIN, ANN, Rig, job, running
from tests.postgresql import ROLE
from tests.severing import Cut, SeveredWay
from tests.waiting import patient

N_AT_ONCE = 12
TRIES = 200


async def ask(rig: Rig, key: str, size: int = 1) -> Claim:
    """A claim that is READY; the same one for the same key."""
    spec = ClaimSpec(kind="ipu", size=size)
    view = await rig.controller.create_claim(
        ANN, spec, name=None, owner=None, key=key, wait_s=patient(20), until="READY"
    )
    return view.claim


async def insist(rig: Rig, key: str) -> Claim:
    """The claim of that key, asked for until there is an answer, as a client does."""
    for _ in range(TRIES):
        try:
            return await ask(rig, key)
        except MooringsError as error:
            if error.code != "store.unavailable":
                raise
            await rig.clock.sleep(0.5)  # a client waits before it tries again
    raise AssertionError(f"no answer in {TRIES} tries")


async def all_claims(controller: Controller) -> list[Claim]:
    return [view.claim for view in await controller.list_claims(ADMIN, PageQuery(1000), states=None)]


@pytest.mark.smoke
async def test_claims_and_runs_from_wish_to_release(tmp_path: Path, database_url: str) -> None:
    async with running(tmp_path, store=open_postgresql(database_url)) as rig:
        claim = await rig.claim(4, gcds=2)
        assert claim.state is ClaimState.READY
        assert await rig.hardware() == {claim.name}
        view = await rig.controller.runs.create_run(ANN, job("true", size=2))
        ended = await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(60))
        assert ended.run.state is RunState.SUCCEEDED
        assert (await rig.release(claim)).state is ClaimState.RELEASED
        await rig.nothing_left()


async def test_a_controller_that_ends_goes_on_from_what_is_there(tmp_path: Path, database_url: str) -> None:
    async with running(tmp_path, store=open_postgresql(database_url)) as rig:
        first = await rig.claim(4)
        waiting = [asyncio.create_task(rig.claim(4)) for _ in range(3)]
        await rig.until(lambda: len(rig.fleet.claims) == 4)
        for task in waiting:
            task.cancel()
    async with running(tmp_path, store=open_postgresql(database_url)) as rig:
        await rig.until(lambda: [claim.state for claim in rig.fleet.claims.values()] == [ClaimState.READY] * 4)
        assert first.id in rig.fleet.claims
        for claim in list(rig.fleet.claims.values()):
            await rig.release(claim)
        await rig.nothing_left()


@pytest.mark.parametrize("cut", Cut)
async def test_a_lost_answer_to_a_commit_gives_the_same_key_the_same_claim(tmp_path, postgresql, database_name, cut):
    way = SeveredWay(postgresql.port)
    patience = DatabaseTimeouts(answer_s=1.0) if cut is Cut.SILENCE else DatabaseTimeouts()
    store = open_postgresql(postgresql.tcp_url(database_name, port=way.port), patience=patience)
    try:
        async with running(tmp_path, store=store) as rig:
            await ask(rig, "before")
            await rig.until(lambda: not rig.assembly.loop._inbox)
            way.arm(cut)
            with pytest.raises(MooringsError) as caught:
                await ask(rig, "k")
            assert caught.value.code == "store.unavailable"
            assert caught.value.retryable
            assert way.cut.is_set()
            if cut is Cut.LATE:
                # A loop that read without waiting for the lost commit would do so now.
                locked = f"datname = '{database_name}' AND wait_event_type = 'Lock'"
                waits = f"SELECT 1 FROM pg_stat_activity WHERE {locked}"
                await rig.until(lambda: not rig.assembly.loop._needs_reload or bool(postgresql.execute(waits)))
                way.late.set()
            if cut is not Cut.BEFORE:  # it was saved: the loop finds it again by itself, and makes what it wants
                await rig.until(lambda: [claim.state for claim in rig.fleet.claims.values()] == [ClaimState.READY] * 2)
            claim = await ask(rig, "k")
            assert (await ask(rig, "k")).id == claim.id
            found = await all_claims(rig.controller)
            assert len(found) == 2
            assert await rig.hardware() == {one.name for one in found}
            for one in found:
                await rig.release(one)
            await rig.nothing_left()
    finally:
        way.close()


async def test_a_server_that_crashes_under_load_loses_nothing_and_doubles_nothing(tmp_path, postgresql, database_url):
    store = open_postgresql(database_url)
    async with running(tmp_path, store=store) as rig:
        asked = [asyncio.create_task(insist(rig, f"k{number}")) for number in range(N_AT_ONCE)]
        await rig.until(lambda: bool(rig.fleet.claims))
        for _ in range(3):
            await asyncio.to_thread(postgresql.crash)
            await asyncio.to_thread(postgresql.start)
            more = len(asked)
            asked += [asyncio.create_task(insist(rig, f"k{more}"))]
        claims = await asyncio.gather(*asked)
        assert len({claim.id for claim in claims}) == len(claims)
        assert {claim.id for claim in await all_claims(rig.controller)} == {claim.id for claim in claims}
        again = await asyncio.gather(*(insist(rig, f"k{number}") for number in range(len(asked))))
        assert [claim.id for claim in again] == [claim.id for claim in claims]
        for claim in claims:
            await rig.release(claim)
        await rig.nothing_left()


async def test_while_an_sql_shell_holds_a_lock_callers_are_told_and_then_it_heals(tmp_path, postgresql, database_name):
    store = open_postgresql(postgresql.url(database_name), patience=DatabaseTimeouts(lock_s=0.2))
    async with running(tmp_path, store=store) as rig:
        claim = await ask(rig, "before")
        with psycopg.connect(postgresql.url(database_name, role="postgres")) as shell:
            shell.execute("SELECT * FROM installation FOR UPDATE")
            with pytest.raises(MooringsError) as caught:
                await ask(rig, "k")
            assert caught.value.code == "store.unavailable"
            assert (await rig.controller.get_claim(ADMIN, claim.id)).claim.state is ClaimState.READY  # reading goes on
            shell.rollback()
        await rig.release(claim)
        await rig.release(await insist(rig, "k"))
        await rig.nothing_left()


async def test_without_a_session_to_be_had_callers_are_told_and_then_it_heals(tmp_path, postgresql, database_name):
    async with running(tmp_path, store=open_postgresql(postgresql.url(database_name))) as rig:
        claim = await ask(rig, "before")
        ours = f"datname = '{database_name}' AND application_name = 'moorings'"
        try:
            postgresql.execute(
                f"ALTER ROLE {ROLE} CONNECTION LIMIT 0",
                f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {ours}",
            )
            with pytest.raises(MooringsError) as caught:
                await ask(rig, "k")
            assert caught.value.code == "store.unavailable"
        finally:
            postgresql.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")
        await rig.release(claim)
        await rig.release(await insist(rig, "k"))
        await rig.nothing_left()
