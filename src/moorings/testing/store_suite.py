"""The contract of ``ports.store``, as tests for every store.

A store's test module subclasses ``StoreSuite`` and gives it a fixture ``open_store``: a function without arguments that
opens the same database each time it is called, a fresh one for each test. It must survive pickling, since one test
opens the database in a process of its own and kills that::

    class TestSqliteStore(StoreSuite):
        @pytest.fixture
        def open_store(self, tmp_path):
            return functools.partial(open_sqlite, tmp_path / "moorings.db")

Refused: one list of tests parametrized over all stores. It would have to know every store, and a store outside this
project could not run it.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest

from moorings.core.model.claims import ENDED as ENDED_CLAIMS
from moorings.core.model.claims import (
    CheckpointContract,
    Claim,
    ClaimId,
    ClaimSpec,
    ClaimState,
    PartitionId,
    PoolBlock,
    QueueMode,
)
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import canonical_json
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Block
from moorings.ports.store import (
    Changes,
    Epoch,
    ExpectedVersion,
    IdempotencyRecord,
    Leader,
    LogPosition,
    PageQuery,
    Seq,
    Store,
)
from moorings.testing.builders import (
    NEW,
    NOW,
    POOL,
    a_claim,
    a_partition,
    a_run,
    an_access_key,
    an_event,
    granted_claims,
    jobs_for,
)
from moorings.testing.store_history import StoreHistoryTests
from moorings.testing.store_lists import OpenStore
from moorings.workloads.arrays import ArrayPart
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.dependencies import AfterEnd, Dependency, RunHold
from moorings.workloads.jobs import Accelerators, JobSpec, Resources, summarize_job
from moorings.workloads.runs import ENDED as ENDED_RUNS
from moorings.workloads.runs import LossRecord, Run, RunId, RunPause, RunState

LARGE_TURN = 77  # records of each kind; not a round number, whatever batch size an implementation has
KILL_AFTER = (1, 4, 9)  # commits of a process before it is killed
PATIENCE_S = 60.0  # for another thread or process; no test waits for it if all is well


def _grant_until_killed(open_store: OpenStore, done: Connection) -> None:
    store = open_store()
    epoch = store.begin_epoch("doomed", NOW)
    for number in itertools.count():
        store.commit(epoch, granted_claims(number))
        done.send(number)


class StoreSuite(StoreHistoryTests):
    """Tests to subclass; see above."""

    # ------------------------------------------------------------------------------------------------- the whole of it

    def test_a_new_store_is_empty_and_knows_its_installation(self, store: Store) -> None:
        saved = store.load_unended()
        assert (saved.claims, saved.partitions, saved.devices, saved.runs) == ((), (), (), ())
        assert (saved.projects, saved.usage) == ((), ())
        assert saved.seq == store.last_seq() == 0
        assert store.list_events(Seq(0), 10) == []
        assert store.list_claims(PageQuery()) == []
        assert store.list_runs(PageQuery()) == []
        assert store.access_keys() == []
        assert store.installation().isalnum()
        store.ping()

    def test_what_was_saved_is_there_when_it_is_opened_again(self, open_store: OpenStore) -> None:
        store = open_store()
        epoch = store.begin_epoch("first", NOW)
        changes = granted_claims(1, 2)
        changes.runs.append((a_run(1), NEW))
        changes.jobs.update(jobs_for(a_run(1)))
        changes.devices.append(Device(POOL, 63, DeviceState.DRAINED, "fan", NOW))
        changes.keys.append(IdempotencyRecord("ann", "k", "d", claim=ClaimId("claim-0001")))
        store.commit(epoch, changes)
        store.add_access_key(an_access_key(), an_event("key.created"))
        before = store.load_unended(), store.list_events(Seq(0), 100), store.installation(), store.access_keys()
        used = store.find_idempotency_records([("ann", "k")])
        store.close()

        again = open_store()
        assert (
            again.load_unended(),
            again.list_events(Seq(0), 100),
            again.installation(),
            again.access_keys(),
        ) == before
        assert again.find_idempotency_records([("ann", "k")]) == used
        assert again.begin_epoch("second", NOW) > epoch
        again.close()

    def test_records_come_back_as_they_were(self, store: Store, epoch: Epoch) -> None:
        claim = a_claim(
            1,
            spec=ClaimSpec(
                kind="ipu",
                size=8,
                gcds=2,
                replicas_per_gcd=4,
                pool=POOL,
                resources={"memory": 1 << 40},
                project="vision",
                priority=-3,
                time_limit_s=0.1 + 0.2,
                preemptible=True,
                checkpoint=CheckpointContract(resumable=True, warn_signal="USR2", warn_s=1.5, grace_s=2),
                lease_s=30.0,
                queue=QueueMode.NEVER,
            ),
            state=ClaimState.RECLAIMING,
            version=7,
            attempt=2,
            broken=1,
            pool=POOL,
            partition=PartitionId("part-0001"),
            reason=Reason("queue.no_room", "wörk \x00 \udce9 it out", ("claim-0002",), NOW, "wait"),
            granted_at=NOW,
            ready_at=Timestamp(NOW + 1),
            lease_until=Timestamp(NOW + 2),
            cell=Block.of(range(16, 32)),
            checkpoint_at=Timestamp(NOW - 1),
            asked_until=Timestamp(NOW + 3),
            kept=PoolBlock(PoolName("hgx"), Block.of([1, 4, 6])),
        )
        partition = a_partition(
            1, block=Block.of([0, 3, 5]), state=PartitionState.ERROR, version=3, reason="\udce9 vendor \x00 speaks"
        )
        job = JobSpec(
            name="train",
            command=("sh", "-c", "echo 'ü' \udcff"),
            workdir="/",
            environment={"B": "2", "A": "1"},
            tasks=2,
            accelerators=Accelerators("gpu", 2, 4, "hgx"),
            resources=Resources(3, 1 << 33, 2),
            time_limit_s=60.0,
            checkpoint_directory="/c",
            image="registry.example/a:1",
            after=("prepare:any",),
            array="0-3%2",
        )
        run = a_run(
            1,
            job=replace(summarize_job(job, 1234), array=ArrayPart("run-a", 1, 4, 2)),
            state=RunState.STOPPING,
            version=4,
            attempt=1,
            reference="local:4711",
            started_at=NOW,
            exit_code=-1,
            task_codes=(0, None, 143),
            stop_reason="asked",
            detail="by ann",
        )
        hold = RunHold((Dependency("run-0001", AfterEnd.ANY),), ClaimId("claim-later"), claim.spec)
        held = a_run(2, claim=None, hold=hold)
        device = Device(POOL, 9, DeviceState.QUARANTINED, "it broke", NOW)
        event = an_event(
            "claim.granted",
            claim="c",
            partition="p",
            run="r",
            pool="q",
            device="q:1",
            data=canonical_json({"é": [1, None]}),
        )
        last = store.commit(
            epoch,
            Changes(
                claims=[(claim, NEW)],
                partitions=[(partition, NEW)],
                devices=[device],
                runs=[(run, NEW), (held, NEW)],
                jobs={run.id: job, **jobs_for(held)},
                events=[event],
            ),
        )
        saved = store.load_unended()
        assert saved.claims == (claim,)
        assert saved.partitions == (partition,)
        assert saved.devices == (device,)
        assert store.get_jobs([run.id, RunId("nobody")]) == {run.id: replace(job, environment={"A": "", "B": ""})}, (
            "names alone are in it"
        )
        assert saved.runs == (run, held)
        assert [row.event for row in store.list_events(Seq(last - 1), 10)] == [event]

    # ------------------------------------------------------------------------------------------------------- one life

    def test_a_life_from_new_to_ended(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1))
        claim, partition = store.load_unended().claims[0], store.load_unended().partitions[0]

        ready = replace(claim, state=ClaimState.READY, version=2, ready_at=NOW)
        active = replace(partition, state=PartitionState.ACTIVE, version=2)
        store.commit(epoch, Changes(claims=[(ready, ExpectedVersion(1))], partitions=[(active, ExpectedVersion(1))]))
        assert store.load_unended().claims == (ready,)
        assert store.load_unended().partitions == (active,)

        # Two steps in one turn: the version grows by two, the save replaces what the database has.
        released = replace(ready, state=ClaimState.RELEASED, version=4, ended_at=NOW)
        store.commit(epoch, Changes(claims=[(released, ExpectedVersion(2))], removed=[(partition.id, 2)]))
        saved = store.load_unended()
        assert (saved.claims, saved.partitions) == ((), ())
        assert store.get_claim(claim.id) == released

    def test_a_claim_may_leave_its_cell_and_what_was_asked_of_it(self, store: Store, epoch: Epoch) -> None:
        cell, kept = Block.of(range(16)), PoolBlock(POOL, Block.of(range(8, 12)))
        moved = a_claim(1, cell=cell, checkpoint_at=NOW, asked_until=Timestamp(NOW + 1), kept=kept)
        other = a_claim(2)
        store.commit(epoch, Changes(claims=[(moved, NEW), (other, NEW)]))
        assert store.load_unended().claims == (moved, other)
        waits = a_claim(1, version=2)
        bound = a_claim(2, version=2, cell=Block.of([7]), checkpoint_at=Timestamp(NOW + 2))
        store.commit(epoch, Changes(claims=[(waits, ExpectedVersion(1)), (bound, ExpectedVersion(1))]))
        assert store.load_unended().claims == (waits, bound)

    def test_a_large_turn_is_saved_whole(self, store: Store, epoch: Epoch) -> None:
        numbers = range(LARGE_TURN)
        new = granted_claims(*numbers)
        new.keys += [IdempotencyRecord("ann", f"k{number}", "d") for number in numbers]
        store.commit(epoch, new)
        saved = store.load_unended()
        assert list(saved.claims) == [claim for claim, _ in new.claims]
        assert list(saved.partitions) == [partition for partition, _ in new.partitions]
        assert [row.event for row in store.list_events(Seq(1), 1000)] == new.events

        ready = [replace(claim, state=ClaimState.READY, version=2, attempt=at) for at, claim in enumerate(saved.claims)]
        active = [replace(partition, state=PartitionState.ACTIVE, version=2) for partition in saved.partitions]
        devices = [Device(POOL, number, DeviceState.DRAINED, f"fan {number}", NOW) for number in numbers]
        changes = Changes(
            claims=[(claim, ExpectedVersion(1)) for claim in ready],
            partitions=[(partition, ExpectedVersion(1)) for partition in active],
            devices=devices,
        )
        store.commit(epoch, changes)
        saved = store.load_unended()
        assert (list(saved.claims), list(saved.partitions), list(saved.devices)) == (ready, active, devices)

        in_service = [replace(device, state=DeviceState.IN_SERVICE) for device in devices]
        removed = [(partition.id, 2) for partition in active]
        store.commit(epoch, Changes(removed=removed, devices=in_service))
        assert (store.load_unended().partitions, store.load_unended().devices) == ((), ())

    def test_a_run_changes_and_ends(self, store: Store, epoch: Epoch) -> None:
        run = a_run(1)
        store.commit(epoch, Changes(claims=[(a_claim(1), NEW)], runs=[(run, NEW)], jobs=jobs_for(run)))
        running = replace(run, state=RunState.RUNNING, version=2, started_at=NOW, reference="local:1")
        store.commit(epoch, Changes(runs=[(running, ExpectedVersion(1))]))
        assert store.load_unended().runs == (running,)
        ended = replace(running, state=RunState.FAILED, version=3, exit_code=7, task_codes=(7,), ended_at=NOW)
        store.commit(epoch, Changes(runs=[(ended, ExpectedVersion(2))]))
        assert store.load_unended().runs == ()
        assert store.get_run(run.id) == ended

    def test_a_run_is_paused_and_gets_another_claim(self, store: Store, epoch: Epoch) -> None:
        run, first, second = a_run(1), a_claim(1), a_claim(2)
        store.commit(epoch, Changes(claims=[(first, NEW)], runs=[(run, NEW)], jobs=jobs_for(run)))
        pause = RunPause("ann", NOW, 60.0, 7, "its partition disappeared", Timestamp(NOW + SECOND))
        paused = replace(run, state=RunState.PAUSED, version=2, attempt=1, pause=pause)
        store.commit(epoch, Changes(runs=[(paused, ExpectedVersion(1))]))
        assert store.load_unended().runs == (paused,)
        chosen = RunCheckpoint("/c/step-7.pt", 7, 9, NOW, True, CheckpointRule.ZIP)
        resumed = replace(
            paused,
            state=RunState.WAITING,
            version=3,
            claim=second.id,
            pause=None,
            resumed_from=chosen,
            chosen_at=NOW,
            loss_record=LossRecord(2, chosen.path, 1),
        )
        store.commit(epoch, Changes(claims=[(second, NEW)], runs=[(resumed, ExpectedVersion(2))]))
        assert store.load_unended().runs == (resumed,)

    def test_a_run_may_have_no_claim(self, store: Store, epoch: Epoch) -> None:
        run = a_run(1, claim=None, engine="slurm", reference="1234")
        store.commit(epoch, Changes(runs=[(run, NEW)], jobs=jobs_for(run)))
        assert store.load_unended().runs == (run,)
        assert store.get_run(run.id) == run

    @pytest.mark.parametrize("state", list(ClaimState))
    def test_only_ended_claims_are_not_loaded(self, store: Store, epoch: Epoch, state: ClaimState) -> None:
        claim = a_claim(1, state=state)
        store.commit(epoch, Changes(claims=[(claim, NEW)]))
        assert store.load_unended().claims == (() if state in ENDED_CLAIMS else (claim,))
        assert store.get_claim(claim.id) == claim

    @pytest.mark.parametrize("state", list(RunState))
    def test_only_ended_runs_are_not_loaded(self, store: Store, epoch: Epoch, state: RunState) -> None:
        run = a_run(1, state=state)
        store.commit(epoch, Changes(claims=[(a_claim(1), NEW)], runs=[(run, NEW)], jobs=jobs_for(run)))
        assert store.load_unended().runs == (() if state in ENDED_RUNS else (run,))
        assert store.get_run(run.id) == run

    def test_claims_are_loaded_in_the_order_of_arrival(self, store: Store, epoch: Epoch) -> None:
        late, early, same = (
            a_claim(1, arrival=Timestamp(9)),
            a_claim(2, arrival=Timestamp(3)),
            a_claim(0, arrival=Timestamp(9)),
        )
        store.commit(epoch, Changes(claims=[(late, NEW), (early, NEW), (same, NEW)]))
        assert store.load_unended().claims == (early, same, late)

    def test_a_device_back_in_service_has_no_record(self, store: Store, epoch: Epoch) -> None:
        quarantined = Device(POOL, 1, DeviceState.QUARANTINED, "broke", NOW)
        other = Device(PoolName("hgx"), 1, DeviceState.DRAINED, "fan", NOW)
        store.commit(epoch, Changes(devices=[quarantined, other]))
        drained = replace(quarantined, state=DeviceState.DRAINED, reason="still broken")
        store.commit(epoch, Changes(devices=[drained]))
        assert set(store.load_unended().devices) == {drained, other}
        store.commit(epoch, Changes(devices=[replace(drained, state=DeviceState.IN_SERVICE, reason="")]))
        assert store.load_unended().devices == (other,)
        store.commit(epoch, Changes(devices=[replace(drained, state=DeviceState.IN_SERVICE, reason="")]))
        assert store.load_unended().devices == (other,)

    # ----------------------------------------------------------------------------------------- law 1: devices and names

    def test_a_device_cannot_be_taken_by_a_later_commit(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1))
        second = Changes(claims=[(a_claim(2), NEW)], partitions=[(a_partition(2, block=Block.of([7, 8, 9, 10])), NEW)])
        assert f"{POOL}:7" in self.refused_commit(store, epoch, second).detail

    def test_a_device_cannot_be_taken_twice_by_one_commit(self, store: Store, epoch: Epoch) -> None:
        both = Changes(
            claims=[(a_claim(1), NEW), (a_claim(2), NEW)],
            partitions=[
                (a_partition(1, block=Block.of([0, 1])), NEW),
                (a_partition(2, block=Block.of([1, 2])), NEW),
            ],
        )
        assert f"{POOL}:1" in self.refused_commit(store, epoch, both).detail

    def test_the_same_device_number_of_another_pool_is_another_device(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1))
        elsewhere = a_partition(2, pool=PoolName("hgx"), block=a_partition(1).block, name="job-1")
        store.commit(epoch, Changes(claims=[(a_claim(2), NEW)], partitions=[(elsewhere, NEW)]))
        assert {partition.id for partition in store.load_unended().partitions} == {"part-0001", "part-0002"}

    def test_devices_and_name_of_a_removed_partition_can_be_taken_by_the_same_commit(
        self, store: Store, epoch: Epoch
    ) -> None:
        store.commit(epoch, granted_claims(1))
        heir = a_partition(2, block=a_partition(1).block, name="job-1")
        store.commit(
            epoch,
            Changes(removed=[(PartitionId("part-0001"), 1)], claims=[(a_claim(2), NEW)], partitions=[(heir, NEW)]),
        )
        assert store.load_unended().partitions == (heir,)

    def test_a_failed_removal_leaves_the_devices_taken(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1))
        self.refused_commit(store, epoch, Changes(removed=[(PartitionId("part-0001"), 9)]))
        thief = a_partition(2, block=a_partition(1).block)
        self.refused_commit(store, epoch, Changes(claims=[(a_claim(2), NEW)], partitions=[(thief, NEW)]))

    def test_names_of_live_partitions_are_unique_in_a_pool(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1))
        namesake = Changes(claims=[(a_claim(2), NEW)], partitions=[(a_partition(2, name="job-1"), NEW)])
        assert "job-1" in self.refused_commit(store, epoch, namesake).detail

    def test_a_partition_belongs_to_a_claim(self, store: Store, epoch: Epoch) -> None:
        error = self.refused_commit(store, epoch, Changes(partitions=[(a_partition(5), NEW)]))
        assert "claim-0005" in error.detail

    # ---------------------------------------------------------------------------------------------- versions, ids, keys

    @pytest.mark.parametrize("kind", ["claims", "partitions", "runs"])
    @pytest.mark.parametrize("expected", [1, 3])
    def test_a_save_of_another_version_is_a_conflict(
        self, store: Store, epoch: Epoch, kind: str, expected: int
    ) -> None:
        def saves(*pairs: tuple[Claim | Partition | Run, ExpectedVersion]) -> Changes:
            return Changes(**{kind: list(pairs)})  # type: ignore[arg-type]

        new = granted_claims(1, 2)
        new.runs += [(a_run(1), NEW), (a_run(2), NEW)]
        new.jobs |= jobs_for(a_run(1), a_run(2))
        store.commit(epoch, new)
        good, stale = getattr(store.load_unended(), kind)
        store.commit(epoch, saves((replace(stale, version=2), ExpectedVersion(1))))
        changes = saves(
            (replace(good, version=2), ExpectedVersion(1)), (replace(stale, version=9), ExpectedVersion(expected))
        )
        assert f"0002 has version 2, not {expected}" in self.refused_commit(store, epoch, changes).detail

    def test_a_save_of_what_is_not_there_is_a_conflict(self, store: Store, epoch: Epoch) -> None:
        assert (
            "claim-0001"
            in self.refused_commit(store, epoch, Changes(claims=[(a_claim(1, version=2), ExpectedVersion(1))])).detail
        )

    def test_a_removal_of_another_version_is_a_conflict(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1, 2))
        removed = [(PartitionId("part-0001"), 1), (PartitionId("part-0002"), 2)]
        assert "part-0002 has version 1, not 2" in self.refused_commit(store, epoch, Changes(removed=removed)).detail

    def test_a_removal_of_what_is_not_there_is_a_conflict(self, store: Store, epoch: Epoch) -> None:
        assert "part-0001" in self.refused_commit(store, epoch, Changes(removed=[(PartitionId("part-0001"), 1)])).detail

    def test_what_identifies_a_record_never_changes(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, granted_claims(1))
        self.refused_commit(
            store, epoch, Changes(claims=[(a_claim(1, owner="user/eve", version=2), ExpectedVersion(1))])
        )
        moved = a_partition(1, block=Block.of(range(8, 12)), version=2)
        self.refused_commit(store, epoch, Changes(partitions=[(moved, ExpectedVersion(1))]))

    def test_an_id_is_used_once(self, store: Store, epoch: Epoch) -> None:
        changes = granted_claims(1)
        changes.runs.append((a_run(1), NEW))
        changes.jobs.update(jobs_for(a_run(1)))
        store.commit(epoch, changes)
        assert (
            "claim-0001"
            in self.refused_commit(store, epoch, Changes(claims=[(a_claim(2), NEW), (a_claim(1), NEW)])).detail
        )
        same = a_partition(2, id=PartitionId("part-0001"))
        error = self.refused_commit(store, epoch, Changes(claims=[(a_claim(2), NEW)], partitions=[(same, NEW)]))
        assert "part-0001" in error.detail
        assert (
            "run-0001"
            in self.refused_commit(store, epoch, Changes(runs=[(a_run(1), NEW)], jobs=jobs_for(a_run(1)))).detail
        )
        twice = Changes(claims=[(a_claim(3), NEW), (a_claim(3), NEW)])
        assert "claim-0003" in self.refused_commit(store, epoch, twice).detail

    def test_an_idempotency_key_is_used_once_for_ever(self, store: Store, epoch: Epoch) -> None:
        use = IdempotencyRecord("ann", "k1", "digest", claim=ClaimId("claim-0001"))
        store.commit(epoch, Changes(claims=[(a_claim(1, state=ClaimState.CANCELLED), NEW)], keys=[use]))
        again = Changes(claims=[(a_claim(2), NEW)], keys=[replace(use, digest="other", claim=ClaimId("claim-0002"))])
        assert "k1" in self.refused_commit(store, epoch, again).detail
        other = IdempotencyRecord("bob", "k1", "digest", run=RunId("run-0001"))
        store.commit(epoch, Changes(keys=[other]))
        pairs = [("ann", "k1"), ("bob", "k1"), ("ann", "k2"), ("eve", "k1")]
        assert store.find_idempotency_records(pairs) == {("ann", "k1"): use, ("bob", "k1"): other}
        assert store.find_idempotency_records([]) == {}

    def test_many_keys_are_found_at_once(self, store: Store, epoch: Epoch) -> None:
        uses = [IdempotencyRecord("ann", f"k{number}", "d") for number in range(1000)]
        store.commit(epoch, Changes(keys=uses))
        assert len(store.find_idempotency_records([("ann", f"k{number}") for number in range(500, 1500)])) == 500

    # ---------------------------------------------------------------------------------------------------------- leading

    def test_an_earlier_leader_saves_nothing_more(self, open_store: OpenStore) -> None:
        old, new = open_store(), open_store()
        first = old.begin_epoch("first", NOW)
        old.commit(first, granted_claims(1))
        second = new.begin_epoch("second", NOW)
        assert second > first
        error = self.refused_commit(old, first, granted_claims(2), "store.fenced")
        assert "second" in error.detail
        self.refused_commit(new, first, granted_claims(2), "store.fenced")
        new.commit(second, granted_claims(2))
        third = old.begin_epoch("first again", NOW)
        old.commit(third, granted_claims(3))
        self.refused_commit(new, second, granted_claims(4), "store.fenced")
        assert len(old.load_unended().claims) == len(new.load_unended().claims) == 3
        old.close()
        new.close()

    def test_nobody_saves_before_somebody_leads(self, store: Store) -> None:
        self.refused_commit(store, Epoch(1), granted_claims(1), "store.turned_back")

    def test_nobody_saves_who_knows_of_more_than_the_database(self, store: Store, epoch: Epoch) -> None:
        """It was turned back under a leader: a lagging standby was promoted, say."""
        last = store.commit(epoch, granted_claims(1))
        error = self.refused_commit(store, epoch, granted_claims(2), "store.turned_back", after=Seq(last + 1))
        assert f"at event {last} of epoch {epoch}" in error.detail
        self.refused_commit(store, epoch, Changes(), "store.turned_back", after=Seq(last + 1))
        self.refused_commit(store, Epoch(epoch + 1), granted_claims(2), "store.turned_back", after=last)
        assert store.commit(epoch, Changes(), last) == last
        assert store.commit(epoch, granted_claims(2), last) > last

    def test_how_far_it_has_come_is_told_and_only_rises(self, store: Store, epoch: Epoch) -> None:
        last = store.commit(epoch, granted_claims(1))
        assert store.log_position() == LogPosition(last, epoch)
        store.advance_to(LogPosition(Seq(last - 1), Epoch(epoch + 4)))
        assert store.log_position() == LogPosition(last, Epoch(epoch + 4))
        store.advance_to(LogPosition(Seq(last + 9), epoch))
        assert store.log_position() == LogPosition(Seq(last + 9), Epoch(epoch + 4))

    def test_leading_is_told(self, store: Store) -> None:
        epoch = store.begin_epoch("host-1/4711", NOW)
        (row,) = store.list_events(Seq(0), 10)
        assert (row.event.name, row.event.at) == ("controller.led", NOW)
        assert row.event.data == canonical_json({"epoch": epoch, "holder": "host-1/4711"})

    def test_before_anybody_led_there_is_no_leader(self, store: Store) -> None:
        assert store.get_leader() == Leader("", "", Epoch(0), None)

    def test_the_last_leader_and_its_address_are_known_to_all(self, open_store: OpenStore, store: Store) -> None:
        other = open_store()
        first = store.begin_epoch("host-1", NOW, url="https://host-1:8090")
        assert store.get_leader() == other.get_leader() == Leader("host-1", "https://host-1:8090", first, NOW)
        later = Timestamp(NOW + 5)
        second = other.begin_epoch("host-2", later, url="https://host-2:8090")
        assert store.get_leader() == other.get_leader() == Leader("host-2", "https://host-2:8090", second, later)
        third = store.begin_epoch("host-1", later)  # a leader without an address does not inherit another's
        assert other.get_leader() == Leader("host-1", "", third, later)
        other.close()

    # ------------------------------------------------------------------------------------------------------ the outbox

    def test_events_are_numbered_in_the_order_of_commits(self, store: Store, epoch: Epoch) -> None:
        start = store.last_seq()
        last = store.commit(
            epoch, Changes(events=[an_event(data=canonical_json({"n": number})) for number in range(3)])
        )
        store.add_access_key(an_access_key(), an_event("key.created"))
        store.commit(epoch, Changes(claims=[(a_claim(1), NEW)]))
        end = store.commit(epoch, Changes(events=[an_event("turn.decided")]))
        found = store.list_events(start, 100)
        assert [row.seq for row in found] == list(range(start + 1, end + 1))
        assert [row.event.name for row in found] == [*["claim.created"] * 3, "key.created", "turn.decided"]
        assert [row.event.data for row in found[:3]] == ['{"n":0}', '{"n":1}', '{"n":2}']
        assert last == start + 3
        assert store.last_seq() == store.load_unended().seq == end

    def test_a_refused_commit_uses_no_number(self, store: Store, epoch: Epoch) -> None:
        start = store.last_seq()
        self.refused_commit(store, epoch, Changes(removed=[(PartitionId("none"), 1)], events=[an_event()]))
        assert store.commit(epoch, Changes(events=[an_event()])) == start + 1

    def test_events_are_read_from_a_number_on(self, store: Store, epoch: Epoch) -> None:
        start = store.last_seq()
        store.commit(epoch, Changes(events=[an_event()] * 10))
        assert [row.seq - start for row in store.list_events(Seq(start + 4), 3)] == [5, 6, 7]
        assert [row.seq - start for row in store.list_events(Seq(start + 9), 3)] == [10]
        assert store.list_events(Seq(start + 10), 3) == []
        assert store.list_events(Seq(0), 0) == []

    def test_events_are_chosen_by_claim_run_and_name(self, store: Store, epoch: Epoch) -> None:
        events = [
            an_event("claim.created", claim="c1"),
            an_event("claim.created", claim="c2", run="r1"),
            an_event("run.created", claim="c2", run="r1"),
            an_event("partition.active", claim="c1"),
            an_event("claimant.seen"),
        ]
        start = store.last_seq()
        store.commit(epoch, Changes(events=events))

        def found(**chosen: object) -> list[int]:
            return [row.seq - start - 1 for row in store.list_events(start, 100, **chosen)]  # type: ignore[arg-type]

        assert found(claim="c1") == [0, 3]
        assert found(run="r1") == [1, 2]
        assert found(claim="c2", run="r1", names=["run.*"]) == [2]
        assert found(names=["claim.*"]) == [0, 1]
        assert found(names=["claim.created", "partition.*"]) == [0, 1, 3]
        assert found(names=["claim"]) == []
        assert found(names=["%.created"]) == []
        assert found(claim="c3") == []
        assert store.list_events(start, 1, claim="c1")[0].seq == start + 1

    def test_text_that_is_not_unicode_does_not_stop_a_commit(self, store: Store, epoch: Epoch) -> None:
        start = store.last_seq()
        store.commit(epoch, Changes(events=[an_event(data=canonical_json({"command": "ls \udce9", "é": "ü"}))]))
        (row,) = store.list_events(start, 10)
        assert row.event.data == canonical_json({"command": "ls \udce9", "é": "ü"})

    # ----------------------------------------------------------------------------------------------------- access keys

    def test_access_keys_are_kept_oldest_first(self, store: Store) -> None:
        keys = [an_access_key(number) for number in range(3)]
        for key in keys:
            store.add_access_key(key, an_event("key.created"))
        assert store.access_keys() == keys[::-1]
        assert store.access_key("key1") == keys[1]
        assert store.access_key("key9") is None
        assert [row.event.name for row in store.list_events(Seq(0), 10)] == ["key.created"] * 3

    def test_an_access_keys_id_is_used_once(self, store: Store) -> None:
        store.add_access_key(an_access_key(), an_event("key.created"))
        with pytest.raises(MooringsError) as caught:
            store.add_access_key(an_access_key(subject="eve"), an_event("key.created"))
        assert caught.value.code == "key.exists"
        assert store.access_keys() == [an_access_key()]
        assert store.last_seq() == 1

    def test_an_access_key_gets_a_new_secret_once(self, store: Store) -> None:
        old = an_access_key(expires_at=Timestamp(NOW + 9))
        store.add_access_key(old, an_event("key.created"))
        new = replace(
            old, digest="2", rotated_at=NOW, previous_digest=old.digest, previous_valid_until=Timestamp(NOW + 5)
        )
        assert not store.rotate_access_key(new, "3", an_event("key.rotated"))
        assert store.access_key("key0") == old
        assert store.rotate_access_key(new, old.digest, an_event("key.rotated"))
        assert not store.rotate_access_key(replace(new, digest="4"), old.digest, an_event("key.rotated"))
        assert store.access_keys() == [new]
        assert store.revoke_access_key("key0", an_event("key.revoked"))
        assert not store.rotate_access_key(replace(new, digest="4"), "2", an_event("key.rotated"))
        assert not store.rotate_access_key(an_access_key(9), "2", an_event("key.rotated"))
        assert store.access_keys() == [replace(new, revoked_at=NOW)]
        assert [row.event.name for row in store.list_events(Seq(0), 10)] == [
            "key.created",
            "key.rotated",
            "key.revoked",
        ]

    def test_an_access_key_is_revoked_once(self, store: Store) -> None:
        store.add_access_key(an_access_key(), an_event("key.created"))
        later = Timestamp(NOW + 5)
        assert store.revoke_access_key("key0", an_event("key.revoked", at=later))
        assert store.access_key("key0") == an_access_key(revoked_at=later)
        assert not store.revoke_access_key("key0", an_event("key.revoked", at=Timestamp(later + 1)))
        assert not store.revoke_access_key("key9", an_event("key.revoked"))
        assert store.access_key("key0") == an_access_key(revoked_at=later)
        assert [row.event.name for row in store.list_events(Seq(0), 10)] == ["key.created", "key.revoked"]

    # ---------------------------------------------------------------------------------------------- others at same time

    def test_a_record_that_cannot_be_kept_is_refused_as_a_fault(self, store: Store, epoch: Epoch) -> None:
        # Not ``store.unavailable``: the code that let half a surrogate pair into a name must be fixed.
        changes = granted_claims(1)
        changes.claims.append((a_claim(2, name="job-\udce9"), NEW))
        self.refused_commit(store, epoch, changes, "internal.error")

    def test_readers_see_whole_commits_while_a_writer_works(self, store: Store, epoch: Epoch) -> None:
        # Each commit makes two claims with their partitions and four events. Readers continue as long as it writes.
        start, written = store.last_seq(), threading.Event()

        def watch() -> int:
            n_claims = n_reads = 0
            while not written.is_set() or not n_reads:
                saved = store.load_unended()
                assert len(saved.claims) % 2 == 0
                assert {partition.claim for partition in saved.partitions} == {claim.id for claim in saved.claims}
                assert saved.seq == start + 2 * len(saved.claims)
                assert len(saved.claims) >= n_claims
                n_claims, n_reads = len(saved.claims), n_reads + 1
            return n_reads

        with ThreadPoolExecutor() as threads:
            readers = [threads.submit(watch) for _ in range(3)]
            try:
                for number in range(0, 200, 2):
                    store.commit(epoch, granted_claims(number, number + 1))
            finally:
                written.set()
            assert all(reader.result(PATIENCE_S) for reader in readers)

    def test_of_two_writers_each_gets_its_own_numbers(self, open_store: OpenStore, store: Store, epoch: Epoch) -> None:
        other = open_store()
        start = store.last_seq()

        def add_keys() -> None:
            for number in range(25):
                other.add_access_key(an_access_key(number), an_event("key.created"))

        with ThreadPoolExecutor() as threads:
            adding = threads.submit(add_keys)
            given = [store.commit(epoch, Changes(events=[an_event("turn.decided")] * 2)) for _ in range(25)]
            adding.result(PATIENCE_S)
        found = store.list_events(start, 1000)
        assert [row.seq for row in found] == list(range(start + 1, start + 76))
        names = {row.seq: row.event.name for row in found}
        assert all(names[last] == names[Seq(last - 1)] == "turn.decided" for last in given)
        other.close()

    @pytest.mark.parametrize("kill_after", KILL_AFTER)
    def test_a_killed_writer_leaves_whole_commits(self, open_store: OpenStore, kill_after: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        mine, theirs = spawn.Pipe(duplex=False)
        writer = spawn.Process(target=_grant_until_killed, args=(open_store, theirs), daemon=True)
        writer.start()
        theirs.close()
        promised = -1
        while promised < kill_after:
            assert mine.poll(PATIENCE_S), "the writer wrote nothing"
            promised = mine.recv()
        writer.kill()  # during one of the commits that follow
        writer.join()
        while mine.poll():
            try:
                promised = mine.recv()
            except EOFError:
                break

        store = open_store()
        saved = store.load_unended()
        n_saved = len(saved.claims)
        assert n_saved in {promised + 1, promised + 2}  # all promised ones; perhaps one with a lost response
        assert [claim.id for claim in saved.claims] == [a_claim(number).id for number in range(n_saved)]
        assert [partition.claim for partition in saved.partitions] == [claim.id for claim in saved.claims]
        events = [row.event for row in store.list_events(Seq(1), 3 * n_saved)]
        assert events == [event for number in range(n_saved) for event in granted_claims(number).events]
        assert saved.seq == 1 + 2 * n_saved
        epoch = store.begin_epoch("heir", NOW)
        thief = a_partition(9000, block=a_partition(n_saved - 1).block)
        self.refused_commit(store, epoch, Changes(claims=[(a_claim(9000), NEW)], partitions=[(thief, NEW)]))
        store.commit(epoch, granted_claims(n_saved))
        store.close()
