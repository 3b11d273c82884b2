"""The stores' suite on lists, their order and their pages; the other parts build on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pytest

from moorings.core.model.access import Ownership
from moorings.core.model.claims import Claim, ClaimId, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import PUBLIC_EVENTS, Event
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import SEES_ALL, Visibility, ownership_of
from moorings.ports.store import LOG_START, Changes, Epoch, ExpectedVersion, PageQuery, Seq, Store
from moorings.testing.builders import NEW, NOW, POOL, a_claim, a_run, an_event, jobs_for
from moorings.workloads.run_turn import ownership_of_run
from moorings.workloads.runs import Run, RunId, RunState

OpenStore = Callable[[], Store]

_CALLERS: Final = (
    SEES_ALL,
    Visibility(),
    Visibility(subject="ann"),
    Visibility(subject="ann", owner_prefix="user/ann"),
    Visibility(subject="ann", projects=frozenset({"lab"})),
    Visibility(subject="zoe", projects=frozenset({"lab", "lab/x"})),
    Visibility(subject="zoe", projects=frozenset({"lab", *(f"more-{number}" for number in range(2000))})),
    Visibility(owner_prefix="slurm/c1", acts_for_many=True),
    Visibility(owner_prefix="slurm/c1"),
    Visibility(owner_prefix="local"),
    Visibility(owner_prefix="local/run-0003"),
    Visibility(owner_prefix="slurm/c", subject="zoe"),
)


def _owned_records() -> tuple[list[Claim], list[Run], list[Event]]:
    owners = ("user/ann", "user/anna", "user/ann/x", "slurm/c1/7/a", "slurm/c10/7/a", "slurm/c1", "local/run-9")
    projects = ("lab", "lab/x", "labour", "default")
    claims, runs, events = [], [], []
    for number in range(28):
        subject, owner, project = ("ann", "bob", "")[number % 3] or "slurm", owners[number % 7], projects[number % 4]
        state = (ClaimState.PENDING, ClaimState.RELEASED)[number % 2]
        spec = replace(a_claim().spec, project=project)
        claim = a_claim(number, subject=subject, owner=owner, state=state, spec=spec)
        run_state = (RunState.RUNNING, RunState.FAILED)[number // 3 % 2]
        run = a_run(number, subject=subject, state=run_state, job=replace(a_run(number).job, project=project))
        claims.append(claim)
        runs.append(run)
        events.append(an_event("claim.created", claim=claim.id, ownership=ownership_of(claim)))
        events.append(an_event("run.created", run=run.id, claim=claim.id, ownership=ownership_of_run(run)))
        events.append(an_event(("turn.decided", "pool.reachable", "device.drained")[number % 3]))
    return claims, runs, events


class StoreListTests:
    """Tests of reading; subclass ``StoreSuite``, which has all."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("a subclass has this fixture")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        store = open_store()
        yield store
        store.close()

    @pytest.fixture
    def epoch(self, store: Store) -> Epoch:
        return store.begin_epoch("first", NOW)

    def refused_commit(
        self, store: Store, epoch: Epoch, changes: Changes, code: str = "store.conflict", after: Seq = LOG_START
    ) -> MooringsError:
        """The error of a refused commit; nothing of it is saved."""
        before, seq = store.load_unended(), store.last_seq()
        changes.events.append(an_event("turn.decided"))
        with pytest.raises(MooringsError) as caught:
            store.commit(epoch, changes, after)
        assert caught.value.code == code, caught.value.detail
        assert store.load_unended() == before
        assert store.last_seq() == seq
        assert store.list_events(seq, 10) == []
        return caught.value

    def test_ids_and_owners_are_compared_by_code_points(self, store: Store, epoch: Epoch) -> None:
        ids = ["B", "Z", "_", "a", "b", "é", "\uffff", "\U0001f600"]
        claims = [a_claim(id=ClaimId(ident), name=ident, owner=f"user/{ident}") for ident in ids]
        store.commit(epoch, Changes(claims=[(claim, NEW) for claim in reversed(claims)]))
        assert [claim.id for claim in store.load_unended().claims] == ids
        assert self.ids_of_all_pages(lambda page: store.list_claims(page), 3) == ids
        assert [claim.id for claim in store.list_claims(PageQuery(), owner_prefix="user/B")] == ["B"]
        assert [claim.id for claim in store.list_claims(PageQuery(), owner_prefix="user/\U0001f600")] == ["\U0001f600"]

    def test_a_number_may_be_as_large_as_a_moment(self, store: Store, epoch: Epoch) -> None:
        # Microseconds since 1970 are beyond 32 bits, and a year 9999 is beyond those of today.
        far = Timestamp(253_402_300_800_000_000)
        claim = a_claim(1, arrival=far, lease_until=far, version=1 << 40)
        store.commit(epoch, Changes(claims=[(claim, NEW)], events=[an_event(at=far)]))
        assert store.load_unended().claims == (claim,)
        assert store.list_claims(PageQuery(after=claim.id)) == []

    def test_claims_are_listed_a_page_at_a_time(self, store: Store, epoch: Epoch) -> None:
        claims = [a_claim(number, arrival=Timestamp(NOW + number // 3)) for number in range(20)]
        store.commit(epoch, Changes(claims=[(claim, NEW) for claim in reversed(claims)]))
        assert self.ids_of_all_pages(lambda page: store.list_claims(page), 7) == [claim.id for claim in claims]
        assert store.list_claims(PageQuery(limit=0)) == []
        assert store.list_claims(PageQuery(after="claim-9999")) == []

    def test_claims_are_chosen_by_state_owner_and_pool(self, store: Store, epoch: Epoch) -> None:
        states = (ClaimState.PENDING, ClaimState.READY, ClaimState.RELEASED)
        claims = [
            a_claim(
                number,
                state=states[number % 3],
                owner=("user/ann", "user/anna", "slurm/c1/7")[number % 2 + (number > 8)],
                pool=POOL if number % 4 == 0 else None,
            )
            for number in range(12)
        ]
        store.commit(epoch, Changes(claims=[(claim, NEW) for claim in claims]))

        def expected(chosen: Callable[[Claim], bool]) -> list[str]:
            return [claim.id for claim in claims if chosen(claim)]

        live = frozenset({ClaimState.PENDING, ClaimState.READY})
        for size in (1, 2, 100):
            listed = self.ids_of_all_pages(lambda page: store.list_claims(page, states=live), size)
            assert listed == expected(lambda claim: claim.state in live)
            listed = self.ids_of_all_pages(
                lambda page: store.list_claims(page, states=live, owner_prefix="user/anna"), size
            )
            assert listed == expected(lambda claim: claim.state in live and claim.owner == "user/anna")
            listed = self.ids_of_all_pages(lambda page: store.list_claims(page, pool=POOL, owner_prefix="user/"), size)
            assert listed == expected(lambda claim: claim.pool == POOL and claim.owner.startswith("user/"))
        assert [claim.id for claim in store.list_claims(PageQuery(), owner_prefix="user/ann")] == expected(
            lambda claim: claim.owner.startswith("user/ann")
        )
        assert store.list_claims(PageQuery(), owner_prefix="user%") == []
        assert len(store.list_claims(PageQuery(), owner_prefix="")) == len(claims)
        assert store.list_claims(PageQuery(), states=frozenset()) == []
        assert store.list_claims(PageQuery(), pool="none") == []

    def test_the_runs_of_an_array_are_those_whose_ids_begin_with_its_own(self, store: Store, epoch: Epoch) -> None:
        idents = ("run-a", "run-a-0", "run-a-10", "run-ab-1", "run-a_-2", "run-b-0")
        runs = [a_run(number, id=RunId(ident), claim=None) for number, ident in enumerate(idents)]
        store.commit(epoch, Changes(runs=[(run, NEW) for run in runs], jobs=jobs_for(*runs)))
        assert [run.id for run in store.list_runs(PageQuery(), array="run-a")] == ["run-a-0", "run-a-10"]
        assert [run.id for run in store.list_runs(PageQuery(), array="run-_")] == []

    def test_runs_are_listed_a_page_at_a_time(self, store: Store, epoch: Epoch) -> None:
        runs = [
            a_run(
                number,
                created_at=Timestamp(NOW + number // 2),
                subject=("ann", "bob")[number % 2],
                state=(RunState.RUNNING, RunState.FAILED, RunState.LOST)[number % 3],
            )
            for number in range(12)
        ]
        store.commit(
            epoch,
            Changes(
                claims=[(a_claim(number), NEW) for number in range(12)],
                runs=[(run, NEW) for run in runs],
                jobs=jobs_for(*runs),
            ),
        )
        ended = frozenset({RunState.FAILED, RunState.LOST})
        for size in (1, 5, 100):
            assert self.ids_of_all_pages(lambda page: store.list_runs(page), size) == [run.id for run in runs]
            listed = self.ids_of_all_pages(lambda page: store.list_runs(page, states=ended, subject="bob"), size)
            assert listed == [run.id for run in runs if run.state in ended and run.subject == "bob"]

    # ------------------------------------------------------------------------------------------------- who sees what

    def test_a_caller_is_given_what_it_sees_in_whole_pages(self, store: Store, epoch: Epoch) -> None:
        """Everything in every mixture: what is given is what the rule includes, in order, and pages are full."""
        claims, runs, events = _owned_records()
        changes = Changes(claims=[(claim, NEW) for claim in claims], runs=[(run, NEW) for run in runs], events=events)
        changes.jobs.update(jobs_for(*runs))
        last = store.commit(epoch, changes)
        numbered = list(enumerate(events, last - len(events) + 1))
        live = frozenset({ClaimState.PENDING})
        ended = frozenset({RunState.FAILED})
        for visible in _CALLERS:
            shown = [claim for claim in claims if visible.includes_claim(claim)]
            shown_runs = [run for run in runs if visible.includes(ownership_of_run(run))]
            seen = [seq for seq, event in numbered if event.name in PUBLIC_EVENTS or visible.includes(event.ownership)]
            for size in (1, 3, 100):

                def claims_of(page: PageQuery, visible: Visibility = visible) -> Sequence[Claim]:
                    return store.list_claims(page, visible=visible)

                def live_claims_of(page: PageQuery, visible: Visibility = visible) -> Sequence[Claim]:
                    return store.list_claims(page, visible=visible, states=live)

                def runs_of(page: PageQuery, visible: Visibility = visible) -> Sequence[Run]:
                    return store.list_runs(page, visible=visible, states=ended)

                assert self.ids_of_all_pages(claims_of, size) == [claim.id for claim in shown], visible
                pending = [claim.id for claim in shown if claim.state in live]
                assert self.ids_of_all_pages(live_claims_of, size) == pending, visible
                failed = [run.id for run in shown_runs if run.state in ended]
                assert self.ids_of_all_pages(runs_of, size) == failed, visible
                assert self.seqs_of_all_pages(store, last - len(events), size, visible) == seen, visible
            for claim in claims:
                assert store.get_claim(claim.id, visible) == (claim if claim in shown else None), visible
            for run in runs:
                assert store.get_run(run.id, None, visible) == (run if run in shown_runs else None), visible

    def seqs_of_all_pages(self, store: Store, start: int, size: int, visible: Visibility) -> list[int]:
        """The numbers of the events on all pages, read one after the other."""
        found: list[int] = []
        while True:
            page = store.list_events(Seq(found[-1] if found else start), size, visible=visible)
            found += [row.seq for row in page]
            if len(page) < size:
                return found

    def test_a_name_means_what_the_caller_sees_of_it(self, store: Store, epoch: Epoch) -> None:
        mine = a_claim(1, name="train", subject="ann", owner="user/ann", state=ClaimState.RELEASED)
        theirs = a_claim(2, name="train", subject="bob", owner="user/bob", state=ClaimState.READY)
        job = replace(a_run().job, name="train")
        my_run, their_run = a_run(1, job=job, subject="ann"), a_run(2, job=job, subject="bob")
        changes = Changes(claims=[(mine, NEW), (theirs, NEW)], runs=[(my_run, NEW), (their_run, NEW)])
        changes.jobs.update(jobs_for(my_run, their_run))
        store.commit(epoch, changes)
        ann, eve = Visibility(subject="ann"), Visibility(subject="eve")
        assert (store.get_claim("train"), store.get_claim("train", ann)) == (theirs, mine)
        assert (store.get_run("train"), store.get_run("train", None, ann)) == (their_run, my_run)
        for ident in ("train", "claim-0001", "claim-0002"):
            assert store.get_claim(ident, eve) is None
            assert store.get_run(ident.replace("claim", "run"), None, eve) is None

    def test_events_are_chosen_among_those_that_are_seen(self, store: Store, epoch: Epoch) -> None:
        mine, theirs = Ownership("ann", "user/ann", "lab"), Ownership("bob", "user/bob", "lab")
        events = [
            an_event("claim.created", claim="c1", ownership=mine),
            an_event("claim.created", claim="c2", ownership=theirs),
            an_event("run.created", claim="c1", run="r1", ownership=mine),
            an_event("device.drained", pool="pod", device="pod:1"),
            an_event("turn.decided"),
        ]
        start = store.last_seq()
        store.commit(epoch, Changes(events=events))
        ann, lab = Visibility(subject="ann"), Visibility(projects=frozenset({"lab"}))

        def found(visible: Visibility, **chosen: object) -> list[int]:
            rows = store.list_events(start, 100, visible=visible, **chosen)  # type: ignore[arg-type]
            return [row.seq - start for row in rows]

        assert (found(ann), found(lab), found(Visibility())) == ([1, 3, 4], [1, 2, 3, 4], [4])
        assert (found(ann, claim="c1"), found(ann, claim="c2"), found(lab, claim="c2")) == ([1, 3], [], [2])
        assert (found(ann, run="r1"), found(Visibility(), run="r1")) == ([3], [])
        assert (found(ann, names=["claim.*"]), found(lab, names=["claim.created"])) == ([1], [1, 2])
        assert found(ann, names=["turn.decided"]) == []
        assert found(ann, names=["turn.decided", "device.*"]) == [4]
        assert [row.event.ownership for row in store.list_events(start, 3)] == [mine, theirs, mine]

    def ids_of_all_pages(self, read: Callable[[PageQuery], Sequence[Claim] | Sequence[Run]], size: int) -> list[str]:
        """The ids of all pages, read one after the other."""
        ids: list[str] = []
        while True:
            page = read(PageQuery(size, ids[-1] if ids else None))
            assert len(page) <= size
            ids.extend(item.id for item in page)
            if len(page) < size:
                return ids

    def test_a_claim_is_found_by_id_and_by_name(self, store: Store, epoch: Epoch) -> None:
        ended = a_claim(1, name="train", state=ClaimState.RELEASED)
        live = a_claim(2, name="train", state=ClaimState.READY)
        later = a_claim(3, name="train", state=ClaimState.FAILED)
        odd = a_claim(4, name="claim-0001")  # a name like another claim's id
        store.commit(epoch, Changes(claims=[(claim, NEW) for claim in (ended, live, later, odd)]))
        assert store.get_claim("claim-0001") == ended
        assert store.get_claim("train") == live
        store.commit(epoch, Changes(claims=[(replace(live, state=ClaimState.RELEASED, version=2), ExpectedVersion(1))]))
        assert store.get_claim("train") == later
        assert store.get_claim("nobody") is None

    def test_a_run_is_found_by_id_and_by_name(self, store: Store, epoch: Epoch) -> None:
        first = a_run(1, job=replace(a_run().job, name="train"))
        second = a_run(2, job=replace(a_run().job, name="train"), state=RunState.FAILED)
        claims = [(a_claim(1), NEW), (a_claim(2), NEW)]
        store.commit(epoch, Changes(claims=claims, runs=[(second, NEW), (first, NEW)], jobs=jobs_for(first, second)))
        assert store.get_run("run-0001") == first
        assert store.get_run("train") == second
        assert store.get_run("nobody") is None
