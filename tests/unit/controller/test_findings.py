"""What the controller finds when it looks at itself: every check seen to fail, and to pass."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.controller import doctor
from moorings.controller.doctor import (
    check_devices,
    check_guarantees,
    check_history,
    check_laws,
    check_log,
    check_memory,
    check_partitions,
    check_pools,
    check_queue,
    check_quotas_file,
    check_reclaims,
    check_replication,
    check_runs,
    check_slots,
    check_unrecorded_partitions,
)
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet, FleetChanges
from moorings.doctor.checks import CHECKS, check_family
from moorings.ports.store import Replication, Seq
from moorings.workloads.jobs import summarize_job
from moorings.workloads.runs import Run, RunId, RunState
from tests.e2e.rig import ADMIN, ANN, job, running
from tests.waiting import patient

POD = Pool(PoolName("pod4"), "ipu", "simulated", PowerOfTwo(1, 4, 4), ())
NOW = Timestamp(10_000 * 1_000_000)
LONG_AGO = Timestamp(1)


def partition(state: PartitionState, since: Timestamp = NOW, name: str = "p1") -> Partition:
    return Partition(
        id=PartitionId(name),
        name=name,
        claim=ClaimId("c1"),
        pool=POD.name,
        block=Block(range(2)),
        gcds=1,
        replicas_per_gcd=1,
        state=state,
        since=since,
    )


def waiting(size: int = 1, kind: str = "ipu") -> Claim:
    return Claim(
        id=ClaimId("c9"),
        name="c9",
        owner="user/ann",
        subject="ann",
        spec=ClaimSpec(kind=kind, size=size),
        state=ClaimState.PENDING,
        arrival=NOW,
    )


def fleet(*claims: Claim, partitions: tuple[Partition, ...] = (), out: int = 0) -> Fleet:
    devices = [Device(POD.name, index, DeviceState.QUARANTINED, "link", NOW) for index in range(out)]
    return Fleet.load([POD], claims, partitions, devices)


def verdicts(found) -> dict[str, str]:
    listed = [found] if hasattr(found, "verdict") else list(found)
    assert all(item.fix for item in listed if item.verdict == "FAIL"), "who is told of a failure is told what to do"
    assert {check_family(item.id) for item in listed} <= CHECKS.keys()
    return {item.id: item.verdict for item in listed}


def guaranteed(*, out: int = 0) -> Fleet:
    devices = [Device(POD.name, index, DeviceState.DRAINED, "", NOW) for index in range(out)]
    return Fleet.load([POD], (), (), devices, [Project(name="lab", shares=(ProjectShare(POD.name, ((2, 2),)),))])


def test_guarantees():
    assert verdicts(check_guarantees(fleet())) == {}
    assert verdicts(check_guarantees(guaranteed())) == {"guarantees.pod4": "PASS"}
    [lacking] = check_guarantees(guaranteed(out=1))
    assert verdicts(lacking) == {"guarantees.pod4": "WARN"}
    assert "1 devices are out of service" in lacking.evidence


def test_reclaims():
    asked = replace(
        waiting(), state=ClaimState.RECLAIMING, partition=PartitionId("p1"), asked_until=Timestamp(NOW - 121_000_000)
    )
    assert verdicts(check_reclaims(fleet(), NOW)) == {"reclaims": "PASS"}
    assert verdicts(check_reclaims(fleet(asked), Timestamp(NOW - 2_000_000))) == {"reclaims": "PASS"}
    assert verdicts(check_reclaims(fleet(asked), NOW)) == {"reclaims": "WARN"}


def test_laws():
    assert verdicts(check_laws(fleet())) == {"laws": "PASS"}
    assert verdicts(check_laws(fleet(partitions=(partition(PartitionState.ACTIVE),)))) == {"laws": "FAIL"}


def test_pools():
    made = fleet()
    assert verdicts(check_pools(made.pools.values())) == {"drivers.pod4": "PASS"}
    made.apply(FleetChanges(problems={POD.name: "no route to host"}))
    [found] = check_pools(made.pools.values())
    assert found.verdict == "FAIL"
    assert "no route to host" in found.evidence


@pytest.mark.parametrize(("out", "verdict"), [(0, "PASS"), (1, "WARN"), (4, "FAIL")])
def test_devices(out, verdict):
    assert verdicts(check_devices(fleet(out=out).pools.values())) == {"quarantine.pod4": verdict}


@pytest.mark.parametrize(
    ("state", "since", "moving", "broken"),
    [
        (PartitionState.ACTIVE, LONG_AGO, "PASS", "PASS"),
        (PartitionState.PROVISIONING, NOW, "PASS", "PASS"),
        (PartitionState.PROVISIONING, LONG_AGO, "FAIL", "PASS"),
        (PartitionState.REMOVING, LONG_AGO, "FAIL", "PASS"),
        (PartitionState.ERROR, LONG_AGO, "PASS", "WARN"),
    ],
)
def test_partitions(state, since, moving, broken):
    found = verdicts(check_partitions([partition(state, since)], NOW))
    assert found == {"partitions.moving": moving, "partitions.broken": broken}


def test_strangers():
    made = fleet()
    made.apply(
        FleetChanges(
            foreign={POD.name: {"theirs": Block(range(1)), "ours": Block(range(1, 2)), "x": Block(range(2, 3))}}
        )
    )
    found = verdicts(check_unrecorded_partitions(made.pools.values(), ["ours"], ["x"]))
    assert found == {"partitions.stray": "WARN", "partitions.spared": "WARN", "partitions.foreign": "WARN"}
    assert verdicts(check_unrecorded_partitions(fleet().pools.values(), [], [])) == {
        "partitions.stray": "PASS",
        "partitions.foreign": "PASS",
    }
    [_, _, foreign] = check_unrecorded_partitions(made.pools.values(), ["ours"], ["x"])
    assert "pod4/theirs" in foreign.evidence
    assert "ours" not in foreign.evidence


def test_runs():
    run = Run(
        id=RunId("run-1"),
        job=summarize_job(job("true")),
        engine="local",
        subject="ann",
        claim=ClaimId("c1"),
        state=RunState.STOPPING,
        created_at=LONG_AGO,
    )
    assert verdicts(check_runs([run], {"run-1": LONG_AGO}, NOW)) == {"runs.moving": "FAIL"}
    assert verdicts(check_runs([run], {"run-1": NOW}, NOW)) == {"runs.moving": "PASS"}
    assert verdicts(check_runs([run], {}, NOW)) == {"runs.moving": "PASS"}


def test_history_that_cannot_be_archived():
    assert verdicts(check_history("")) == {"history": "PASS"}
    failed = check_history("the disk of /arc is full")
    assert (failed.verdict, "the disk of /arc is full" in failed.evidence) == ("WARN", True)


def test_a_quotas_file_that_is_not_used():
    assert verdicts(check_quotas_file(None)) == {"quotas": "PASS"}
    failed = check_quotas_file(MooringsError("quotas.invalid", "q.toml:3: there is no account 'an'", hint="correct it"))
    assert (failed.verdict, "q.toml:3: there is" in failed.evidence, failed.fix) == ("FAIL", True, "correct it")


def test_queue():
    assert verdicts(check_queue(fleet(waiting(4)))) == {"queue": "PASS"}
    never = check_queue(fleet(waiting(8)))
    assert (never.verdict, "c9: pool pod4:" in never.evidence) == ("FAIL", True)
    assert verdicts(check_queue(fleet(waiting(1, "gpu")))) == {"queue": "FAIL"}


@pytest.mark.parametrize(
    ("memory", "store", "verdict"), [(5, 5, "PASS"), (5, 9, "PASS"), (5, 4, "FAIL"), (5, 5000, "WARN")]
)
def test_log(memory, store, verdict):
    assert verdicts(check_log(Seq(memory), Seq(store))) == {"events": verdict}


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        (None, "PASS"),
        (Replication(0, "", "on"), "PASS"),
        (Replication(1, "", "on"), "WARN"),
        (Replication(1, "*", "on"), "PASS"),
        (Replication(0, "FIRST 1 (a, b)", "remote_apply"), "PASS"),
        (Replication(1, "*", "local"), "WARN"),
        (Replication(1, "*", "remote_write"), "WARN"),
    ],
)
def test_a_standby_that_is_promoted_has_what_was_answered(how, verdict):
    finding = check_replication(how)
    assert (finding.id, finding.verdict, bool(finding.fix)) == ("replication", verdict, verdict == "WARN")


def test_memory():
    assert verdicts(check_memory([], 7)) == {"memory": "PASS"}
    assert verdicts(check_memory(["c1"], 7)) == {"memory": "FAIL"}


@pytest.mark.parametrize(("taken", "verdict"), [(0, "PASS"), (8, "WARN"), (10, "FAIL")])
def test_seats(taken, verdict):
    assert verdicts(check_slots("waits", taken, 10)) == {"seats.waits": verdict}


# -- asked of a whole controller


async def look(rig) -> dict[str, str]:
    told = await rig.controller.run_doctor(ADMIN)
    return verdicts(told.items)


async def test_a_healthy_controller_passes_everything(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.claim(4)
        await rig.controller.runs.create_run(ANN, job("sleep", "60"))
        found = await look(rig)
        assert set(found.values()) == {"PASS"}, found
        assert {"laws", "database", "memory", "events", "queue", "drivers.pod16"} <= found.keys()
        for view in await rig.controller.runs.list_runs(ADMIN, findings_page()):
            await rig.controller.runs.cancel_run(ADMIN, view.run.id, wait_s=15)


def findings_page():
    from moorings.ports.store import PageQuery

    return PageQuery()


async def test_only_admins_may_look(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        with pytest.raises(MooringsError, match="may not look into the controller"):
            await rig.controller.run_doctor(ANN)


async def test_memory_that_is_not_what_the_database_holds_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        claim = await rig.claim(4)
        good = rig.fleet.claims[claim.id]
        rig.fleet.claims[claim.id] = replace(good, attempt=7)
        told = {item.id: item for item in (await rig.controller.run_doctor(ADMIN)).items}
        assert told["memory"].verdict == "FAIL"
        assert claim.id in told["memory"].evidence
        rig.fleet.claims[claim.id] = good


async def test_a_database_that_fails_or_hangs_is_told_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "QUERY_TIMEOUT_S", 0.2)
    async with running(tmp_path) as rig:
        store = rig.assembly.loop.store
        hold = threading.Event()

        def fail() -> None:
            raise MooringsError("store.unavailable", "the disk is full", hint="free some space")

        monkeypatch.setattr(store, "ping", fail)
        monkeypatch.setattr(store, "load_unended", lambda: hold.wait(patient(30)))
        told = {item.id: item for item in (await rig.controller.run_doctor(ADMIN)).items}
        hold.set()
        assert (told["database"].verdict, told["database"].evidence) == ("FAIL", "the disk is full")
        assert (told["memory"].verdict, "has not answered" in told["memory"].evidence) == ("FAIL", True)
