"""The stores' suite on what leaves the database; ``store_suite`` builds on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Archive, Changes, EndedRecords, Epoch, IdempotencyRecord, Seq, Store
from moorings.testing.builders import NEW, NOW, a_claim, a_run, an_event, granted_claims, jobs_for
from moorings.testing.store_lists import OpenStore
from moorings.testing.store_projects import StoreProjectTests
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.runs import Run, RunState

OLD, LATER = Timestamp(NOW - 1_000), Timestamp(NOW + 1_000)
N_CLAIMS = 250  # more than fit into one statement
N_EVENTS = 12


def _ended_claim(number: int, at: Timestamp = OLD, **other: object) -> Claim:
    return a_claim(number, state=ClaimState.RELEASED, ended_at=at, **other)


def _ended_run(number: int, at: Timestamp = OLD, **other: object) -> Run:
    return a_run(number, state=RunState.SUCCEEDED, ended_at=at, **other)


def _ids(records: Sequence[Run | Claim]) -> list[str]:
    return [record.id for record in records]


class StoreHistoryTests(StoreProjectTests):
    """Tests of archiving; subclass ``StoreSuite``, which has all."""

    # ---------------------------------------------------------------------------------------------------------- events

    def _commit_turns(self, store: Store, epoch: Epoch, n_turns: int = N_EVENTS // 3) -> None:
        """Turns of three events, a second apart, after the event with the leader."""
        for turn in range(n_turns):
            names = ("claim.created", "claim.granted", "turn.decided")
            at = Timestamp(NOW + turn)
            store.commit(epoch, Changes(events=[an_event(name, at=at, claim=f"claim-{turn}") for name in names]))

    def test_a_stretch_is_the_oldest_events_up_to_the_end_of_a_turn(self, store: Store, epoch: Epoch) -> None:
        self._commit_turns(store, epoch)  # 1: controller.led; turns end at 4, 7, 10, 13
        assert store.next_archive_range(1, LATER) == (1, 4)
        assert store.next_archive_range(4, LATER) == (1, 4)
        assert store.next_archive_range(5, LATER) == (1, 7)
        assert store.next_archive_range(13, LATER) == (1, 13)
        assert store.next_archive_range(14, LATER) is None
        assert store.next_archive_range(5, Timestamp(NOW + 1)) is None  # of its second turn
        assert store.next_archive_range(5, Timestamp(NOW + 2)) == (1, 7)
        store.commit(epoch, Changes(events=[an_event("claim.created")]))
        assert store.next_archive_range(14, LATER) is None  # its turn has no end

    def test_events_leave_oldest_first_and_a_part_at_a_time(self, store: Store, epoch: Epoch) -> None:
        self._commit_turns(store, epoch)
        archive = Archive(Seq(1), Seq(7), "digest", "host", NOW)
        assert store.load_unended().last_archived_seq == 0
        assert store.delete_archived_events(epoch, archive, 3) == 3
        assert [row.seq for row in store.list_events(Seq(0), 100)] == list(range(4, 14))
        assert (store.load_unended().last_archived_seq, store.last_seq()) == (7, 13)
        assert store.next_archive_range(1, LATER) == (8, 10)  # what is about to leave is in no other archive
        assert store.delete_archived_events(epoch, archive, 100) == 4
        assert store.delete_archived_events(epoch, archive, 100) == 0
        assert [row.seq for row in store.list_events(Seq(0), 100)] == list(range(8, 14))
        assert store.list_events(Seq(0), 100, claim="claim-1") == []
        assert store.archives() == [archive]
        following = Archive(Seq(8), Seq(10), "digest", "other", LATER)
        assert store.delete_archived_events(epoch, following, 100) == 3
        assert store.archives() == [archive, following]
        assert store.commit(epoch, Changes(events=[an_event()])) == 14

    def test_only_the_oldest_events_leave_and_only_once(self, store: Store, epoch: Epoch) -> None:
        self._commit_turns(store, epoch)
        for first, last in ((2, 7), (5, 7)):
            with pytest.raises(MooringsError, match="does not begin with the oldest") as caught:
                store.delete_archived_events(epoch, Archive(Seq(first), Seq(last), "d", "host", NOW), 100)
            assert caught.value.code == "store.conflict"
        store.delete_archived_events(epoch, Archive(Seq(1), Seq(7), "d", "host", NOW), 2)
        for other in (Archive(Seq(1), Seq(7), "another", "host", NOW), Archive(Seq(3), Seq(10), "d", "host", NOW)):
            with pytest.raises(MooringsError) as caught:
                store.delete_archived_events(epoch, other, 100)
            assert caught.value.code == "store.conflict"
        assert [row.seq for row in store.list_events(Seq(0), 100)] == list(range(3, 14))

    def test_who_leads_no_longer_removes_nothing(self, store: Store, epoch: Epoch) -> None:
        self._commit_turns(store, epoch)
        store.commit(epoch, Changes(claims=[(_ended_claim(1), NEW)]))
        ended = store.list_ended(NOW, 10)
        store.begin_epoch("another", NOW)
        with pytest.raises(MooringsError) as caught:
            store.delete_archived_events(epoch, Archive(Seq(1), Seq(7), "d", "host", NOW), 100)
        assert caught.value.code == "store.fenced"
        with pytest.raises(MooringsError) as caught:
            store.delete_ended(epoch, ended)
        assert caught.value.code == "store.fenced"
        assert len(store.list_events(Seq(0), 100)) == 14
        assert (store.archives(), store.load_unended().last_archived_seq) == ([], 0)
        assert store.get_claim("claim-0001") is not None

    def test_who_knows_of_more_than_the_database_removes_nothing(self, store: Store, epoch: Epoch) -> None:
        self._commit_turns(store, epoch)
        with pytest.raises(MooringsError) as caught:
            store.delete_archived_events(epoch, Archive(Seq(1), Seq(7), "d", "host", NOW), 100, Seq(14))
        assert caught.value.code == "store.turned_back"

    def test_events_of_names_come_in_order_whatever_the_names(self, store: Store, epoch: Epoch) -> None:
        names = ["run.ended", "claim.created", "claimant.seen", "claim.granted", "claim_x.seen", "run.ended", "claim.z"]
        store.commit(epoch, Changes(events=[an_event(name, claim="c", run="r") for name in names]))

        claims = ["claim.created", "claim.granted", "claim.z"]
        for claim, run in ((None, None), ("c", None), (None, "r")):

            def found(
                *wanted: str, after: int = 0, limit: int = 100, claim: str | None = claim, run: str | None = run
            ) -> list[str]:
                rows = store.list_events(Seq(after), limit, claim=claim, run=run, names=wanted)
                return [row.event.name for row in rows]

            assert found("claim.*") == claims
            assert found("claim.*", limit=2) == claims[:2]
            assert found("claim.*", after=3) == claims[1:]
            assert found("run.*", "claim.created") == ["run.ended", "claim.created", "run.ended"]
            assert found("run.ended", "run.ended", "run.*") == ["run.ended"] * 2
            assert found("claim.created", limit=0) == []
            assert found("clai.*", "claim.", "claim.create") == []

    # --------------------------------------------------------------------------------------------------------- records

    def test_records_leave_that_ended_long_ago_and_are_referred_to_by_nothing(self, store: Store, epoch: Epoch) -> None:
        changes = granted_claims(5)  # an unended claim with a partition
        changes.claims += [(_ended_claim(number), NEW) for number in (1, 2, 3, 4)]
        changes.claims += [(_ended_claim(6, at=NOW), NEW), (a_claim(7), NEW), (_ended_claim(8), NEW)]
        changes.runs += [(_ended_run(1), NEW), (a_run(2), NEW), (_ended_run(4, at=NOW), NEW)]
        changes.runs += [(_ended_run(5), NEW), (_ended_run(9, claim=changes.claims[0][0].id, within=True), NEW)]
        changes.partitions += [(replace(granted_claims(8).partitions[0][0], claim=_ended_claim(8).id), NEW)]
        changes.jobs.update(jobs_for(*(run for run, _ in changes.runs)))
        store.commit(epoch, changes)

        first = store.list_ended(NOW, 100)
        # Of run 5 the claim has not ended; run 9 is only within it. Claims 1, 2 and 4 have runs, 8 has a partition.
        assert _ids(first.runs) == ["run-0001", "run-0009"]
        assert _ids(first.claims) == ["claim-0003"]
        assert (first.runs[0], first.claims[0]) == (_ended_run(1), _ended_claim(3))
        store.delete_ended(epoch, first)
        second = store.list_ended(NOW, 100)
        assert (_ids(second.runs), _ids(second.claims)) == ([], ["claim-0001"])
        store.delete_ended(epoch, second)
        assert not store.list_ended(NOW, 100)
        assert (store.get_claim("claim-0001"), store.get_run("run-0001")) == (None, None)
        assert store.get_claim("claim-0002") == _ended_claim(2)

    def test_the_oldest_records_leave_first(self, store: Store, epoch: Epoch) -> None:
        claims = [_ended_claim(number, at=Timestamp(OLD - number)) for number in range(5)]
        store.commit(epoch, Changes(claims=[(claim, NEW) for claim in claims]))
        assert store.list_ended(NOW, 3).claims == claims[:1:-1]

    def test_what_something_refers_to_does_not_leave(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, Changes(claims=[(_ended_claim(1), NEW)], runs=[(a_run(1), NEW)], jobs=jobs_for(a_run(1))))
        with pytest.raises(MooringsError) as caught:
            store.delete_ended(epoch, EndedRecords(claims=[_ended_claim(1)]))
        assert caught.value.code == "store.conflict"
        assert store.get_claim("claim-0001") == _ended_claim(1)

    def test_jobs_of_a_workflow_leave_together(self, store: Store, epoch: Epoch) -> None:
        def job(number: int, workflow: str) -> Run:
            part = WorkflowPart(ApplianceJobType.COMPILE, workflow)
            return _ended_run(number, job=replace(a_run(number).job, appliance=part), claim=None)

        runs = [job(1, "wf-1"), job(2, "wf-2"), replace(job(3, "wf-1"), ended_at=NOW)]
        pending = replace(job(4, "wf-3"), state=RunState.WAITING, ended_at=None)
        every = (*runs, job(5, "wf-3"), pending)
        store.commit(epoch, Changes(runs=[(run, NEW) for run in every], jobs=jobs_for(*every)))
        assert _ids(store.list_ended(NOW, 100).runs) == ["run-0002"]
        assert _ids(store.list_ended(LATER, 100).runs) == ["run-0001", "run-0002", "run-0003"]

    # ------------------------------------------------------------------------------------------------------------ keys

    def test_a_key_stays_used_when_what_it_made_has_left(self, open_store: OpenStore) -> None:
        store = open_store()
        epoch = store.begin_epoch("first", NOW)
        claims = [_ended_claim(number) for number in range(N_CLAIMS)]
        keys = [IdempotencyRecord("ann", f"k{number}", "digest", claim=claim.id) for number, claim in enumerate(claims)]
        live = IdempotencyRecord("ann", "live", "digest", claim=a_claim(999).id)
        of_run = IdempotencyRecord("bob", "k1", "digest", run=_ended_run(1, claim=None).id)
        new = [(claim, NEW) for claim in (*claims, a_claim(999))]
        run = _ended_run(1, claim=None)
        store.commit(epoch, Changes(claims=new, runs=[(run, NEW)], jobs=jobs_for(run), keys=[*keys, live, of_run]))
        store.delete_ended(epoch, store.list_ended(NOW, N_CLAIMS))
        store.close()

        again = open_store()
        pairs = [(use.subject, use.key) for use in (*keys, live, of_run)]
        used = again.find_idempotency_records([*pairs, ("bob", "k2"), ("eve", "k1"), ("an", "nk1")])
        assert used == {
            **{pair: replace(use, digest="") for pair, use in zip(pairs, keys, strict=False)},
            ("ann", "live"): live,
            ("bob", "k1"): replace(of_run, digest=""),
        }
        again.close()
