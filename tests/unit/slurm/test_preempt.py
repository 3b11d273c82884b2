"""Preemption by a job of higher rank: by Slurm's own rules, with the least loss, and only if the job can then start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.formats import JobRecord
from moorings.slurm.host.job_table import JobStart, build_queue_payload
from moorings.slurm.host.preemption import choose_victims
from moorings.slurm.host.preemption_rules import PreemptionRules, PreemptType, Qos, SlurmPartition, parse_rules
from moorings.slurm.host.site import enforces_accounts
from moorings.wire.shapes import DeviceBody, PoolBody, TopologyShape
from tests.cases import cases
from tests.unit.slurm.test_ledger import HOME, NONCE, a_job, by_id

NOW = Timestamp(10_000 * SECOND)
TIERS = PreemptionRules(
    by=PreemptType.TIERS,
    mode="REQUEUE",
    partitions={
        "normal": SlurmPartition(1, "REQUEUE"),
        "urgent": SlurmPartition(9, "REQUEUE"),
        "safe": SlurmPartition(1, "OFF"),
    },
)
POOL = PoolBody(
    name="pod",
    accelerator="ipu",
    driver="simulated",
    reachable=True,
    devices=16,
    free=0,
    out_of_service=0,
    largest=0,
    waiting=0,
    partitions=0,
    topology=TopologyShape(type="power-of-two", domains=1, domain_size=16, max_block=16),
    available={},
)


def running(job_id: int, lasted_s: int, **more: Any) -> JobRecord:
    return a_job(job_id, "RUNNING", start_time=Timestamp(NOW - lasted_s * SECOND), **more)


def waiting(job_id: int, ipus: int, **more: Any) -> JobRecord:
    known = {"reason": "Licenses", "partition": "urgent"} | more
    return a_job(job_id, "PENDING", ipus=ipus, **known)


def devices(*held: tuple[JobRecord | str, range], out: int | None = None) -> list[DeviceBody]:
    """Those of the pool: who holds which."""
    owners: dict[int, str] = {}
    for holder, span in held:
        owner = holder if isinstance(holder, str) else JobStart(holder.job_id, NONCE, holder.restarts).owner(HOME)
        owners |= dict.fromkeys(span, owner)
    return [
        DeviceBody(
            id=f"pod:{index}",
            pool="pod",
            accelerator="ipu",
            index=index,
            domain=0,
            state="DRAINED" if index == out else "IN_SERVICE",
            partition="p" if index in owners else None,
            owner=owners.get(index),
        )
        for index in range(16)
    ]


def displaced(
    jobs: list[JobRecord], found: list[DeviceBody], rules: PreemptionRules = TIERS, next_up: int | None = 9
) -> tuple[int, tuple[int, ...]] | None:
    """The job that is helped, and the preempted ones; ``next_up`` gets free devices (None: another claim)."""
    first = {POOL.name: JobStart(next_up, NONCE, 0).owner(HOME)} if next_up is not None else {}
    chosen = choose_victims(by_id(*jobs), [(POOL, found)], first, HOME, rules, NOW)
    return (chosen.waiting.job_id, tuple(job.job_id for job in chosen.victims)) if chosen is not None else None


OLD, YOUNG, LITTLE = running(1, 900, ipus=8), running(2, 60, ipus=4), running(3, 30, ipus=4)
FULL = devices((OLD, range(8)), (YOUNG, range(8, 12)), (LITTLE, range(12, 16)))


def test_who_started_last_goes_and_no_more_than_are_needed() -> None:
    assert displaced([OLD, YOUNG, LITTLE, waiting(9, 4)], FULL) == (9, (3,))
    assert displaced([OLD, YOUNG, LITTLE, waiting(9, 8)], FULL) == (9, (2, 3))
    assert displaced([OLD, YOUNG, LITTLE, waiting(9, 16)], FULL) == (9, (1, 2, 3))


def test_the_first_in_slurm_s_order_is_helped() -> None:
    low, high = waiting(8, 4, priority=99, partition="normal"), waiting(9, 4, priority=1)
    assert displaced([OLD, YOUNG, LITTLE, low, high], FULL) == (9, (3,))
    told = build_queue_payload(by_id(low, high), HOME, "", 120, TIERS.tier)
    assert [job.owner.split("/")[2] for job in told.jobs] == ["9", "8"]


@pytest.mark.parametrize(
    "wants",
    [
        waiting(9, 4, partition="normal"),
        waiting(9, 4, reason="Dependency"),
        waiting(9, 4, reason="Resources"),
        waiting(9, 4, order=None),
        waiting(9, 32),
    ],
)
def test_nobody_is_displaced_for(wants: JobRecord) -> None:
    assert displaced([OLD, YOUNG, LITTLE, wants], FULL) is None


def test_who_may_not_be_displaced_keeps_his_place() -> None:
    safe = replace(LITTLE, partition="safe")
    assert displaced([OLD, YOUNG, safe, waiting(9, 4)], FULL) == (9, (2,))
    assert displaced([OLD, YOUNG, safe, waiting(9, 8)], FULL) == (9, (1,))
    assert displaced([OLD, YOUNG, safe, waiting(9, 16)], FULL) is None
    new = replace(TIERS, exempt_s=45.0)
    assert displaced([OLD, YOUNG, LITTLE, waiting(9, 4)], FULL, new) == (9, (2,))
    assert displaced([OLD, YOUNG, LITTLE, waiting(9, 4)], FULL, replace(TIERS, by=PreemptType.NONE)) is None


def test_what_others_hold_or_is_broken_is_no_way() -> None:
    found = devices((OLD, range(8)), ("user/ann", range(8, 10)), (LITTLE, range(12, 16)), out=15)
    assert displaced([OLD, LITTLE, waiting(9, 4)], found) == (9, (1,))
    assert displaced([LITTLE, waiting(9, 8)], found) is None, "nothing is known of the job that holds 0-7"


def test_where_any_devices_will_do_the_free_ones_are_used_first() -> None:
    pool = replace(POOL, topology=TopologyShape(type="any-subset", domains=1, domain_size=16, max_block=16))
    one, other = running(1, 60, ipus=4), running(2, 60, ipus=4)
    found = devices((one, range(4)), (other, range(4, 8)), ("user/ann", range(8, 14)))
    first = {pool.name: JobStart(9, NONCE, 0).owner(HOME)}
    chosen = choose_victims(by_id(one, other, waiting(9, 6)), [(pool, found)], first, HOME, TIERS, NOW)
    assert chosen is not None
    assert chosen.victims == (one,)


def test_where_a_block_is_free_or_is_being_freed_nobody_goes() -> None:
    assert displaced([OLD, LITTLE, waiting(9, 4)], devices((OLD, range(8)), (LITTLE, range(12, 16)))) is None
    for state in ("COMPLETING", "COMPLETED"):
        ending = a_job(2, state, ipus=4)
        assert displaced([OLD, ending, LITTLE, waiting(9, 4)], FULL) is None
    requeued = a_job(2, "PENDING", ipus=4, restarts=1, reason="BeginTime")
    assert displaced([OLD, requeued, LITTLE, waiting(9, 4)], FULL) is None
    assert displaced([OLD, requeued, LITTLE, waiting(9, 8)], FULL) == (9, (3,)), "half of it is"


def test_by_qos_only_those_that_are_named() -> None:
    rules = parse_rules(
        {"PreemptType": "preempt/qos", "PreemptMode": "GANG,REQUEUE", "PreemptExemptTime": "00:00:00"},
        b"",
        b"normal||cluster|\nhigh|normal,low|cluster|\nlow||cancel|00:02:00\nheld||off|\nslow||cluster|\n",
    )
    normal, held, low = running(1, 60, qos="normal"), running(2, 60, qos="held"), running(3, 60, qos="low")
    high = waiting(9, 4, qos="high")
    assert [rules.may_preempt(high, job, NOW) for job in (normal, held, low)] == [True, False, False]
    assert not rules.may_preempt(waiting(9, 4, qos="slow"), normal, NOW)
    assert rules.may_preempt(high, replace(low, start_time=Timestamp(NOW - 120 * SECOND)), NOW)
    assert (rules.is_requeued(normal), rules.is_requeued(low)) == (True, False)
    assert not rules.is_requeued(replace(normal, requeue=False)), "as Slurm does: what cannot be requeued is cancelled"
    assert rules.qos["low"] == Qos(frozenset(), "CANCEL", 120.0)


def test_the_tiers_as_sinfo_tells_them() -> None:
    rows = b"".join(
        f"{name:<128}|{tier:<12}|{mode:<32}|\n".encode()
        for name, tier, mode in (("normal*", 1, "REQUEUE"), ("urgent", 9, "OFF"))
    )
    rules = parse_rules({"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}, rows)
    assert rules.partitions == {"normal": SlurmPartition(1, "REQUEUE"), "urgent": SlurmPartition(9, "OFF")}
    assert rules.tier(a_job(1, partition="normal,urgent")) == 9
    with pytest.raises(MooringsError, match="cannot be read"):
        parse_rules({}, b"", b"normal||cluster|soon\n")


@pytest.mark.parametrize(("told", "seconds"), [("30 sec", 30.0), ("2 sec", 2.0), ("", 30.0), ("soon", 30.0)])
def test_how_long_slurm_waits_before_it_kills(told: str, seconds: float) -> None:
    assert parse_rules({"KillWait": told}, b"").kill_wait_s == seconds


@cases(
    ("kind", "enforce", "believed"),
    [
        ("accounting_storage/slurmdbd", "associations", True),
        ("accounting_storage/slurmdbd", "associations,limits,qos", True),
        ("accounting_storage/slurmdbd", "nojobs,LIMITS", True),
        ("accounting_storage/slurmdbd", "safe", True),
        ("accounting_storage/slurmdbd", "qos", True),
        ("accounting_storage/slurmdbd", "all", True),
        ("accounting_storage/slurmdbd", "none", False),
        ("accounting_storage/slurmdbd", "", False),
        ("accounting_storage/slurmdbd", "nojobs,nosteps", False),
        ("accounting_storage/slurmdbd", "associationsx", False),
        ("accounting_storage/none", "associations", False),
        ("", "associations", False),
    ],
)
def test_accounts_are_believed_where_slurm_enforces_them(kind: str, enforce: str, believed: bool) -> None:
    config = {"AccountingStorageType": kind, "AccountingStorageEnforce": enforce}
    assert enforces_accounts(config) is believed


@cases(
    ("told", "private"), [("none", False), ("", False), ("accounts,usage", False), ("jobs", True), ("users,Jobs", True)]
)
def test_what_users_are_not_to_see_of_each_other(told: str, private: bool) -> None:
    assert parse_rules({"PrivateData": told}, b"").private is private
    assert PreemptionRules().private, "until it was read"


def test_nothing_is_believed_that_was_not_read() -> None:
    assert not enforces_accounts({})


def test_nobody_goes_for_a_block_that_somebody_else_would_get() -> None:
    jobs = [OLD, YOUNG, LITTLE, waiting(9, 4), waiting(10, 4, priority=0)]
    assert displaced(jobs, FULL, next_up=None) is None, "a claim of others waits before it"
    assert displaced(jobs, FULL, next_up=8) is None, "a job of this cluster that has another reason to wait does"
    assert displaced(jobs, FULL, next_up=10) == (10, (3,))


def test_in_each_pool_another_may_be_first() -> None:
    there = replace(POOL, name="there")
    young = devices((YOUNG, range(16)))
    nine = {name: JobStart(9, NONCE, 0).owner(HOME) for name in (POOL.name, there.name)}
    jobs = by_id(OLD, YOUNG, waiting(9, 4))
    pools = [(POOL, devices((OLD, range(16)))), (there, young)]
    for next_up, victim in ((nine, 2), ({POOL.name: nine[POOL.name]}, 1), ({there.name: nine[there.name]}, 2)):
        chosen = choose_victims(jobs, pools, next_up, HOME, TIERS, NOW)
        assert chosen is not None
        assert [job.job_id for job in chosen.victims] == [victim]
