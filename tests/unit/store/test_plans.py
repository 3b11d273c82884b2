"""Reads and saves cost what they give or change, not what the database holds: SQLite finds and orders by an index."""

from dataclasses import replace

import pytest
from sqlalchemy import event

from moorings.core.model.claims import ClaimState
from moorings.core.model.devices import Device, DeviceState
from moorings.core.model.events import PUBLIC_EVENTS
from moorings.core.model.projects import ProjectUsage
from moorings.core.model.visibility import Visibility
from moorings.ports.store import Changes, ExpectedVersion, PageQuery, Seq
from moorings.testing.builders import NEW, NOW, POOL, a_project, granted_claims
from moorings.workloads.runs import RunState
from tests.databases import open_new


@pytest.fixture
def store(tmp_path):
    store = open_new(tmp_path / "moorings.db")
    yield store
    store.close()


MEMBER = Visibility(subject="ann", projects=frozenset({"lab", "lab/x"}))
AGENT = Visibility(subject="agent", owner_prefix="slurm/c1", acts_for_many=True)
READS = {
    "claim": lambda store: store.get_claim("x"),
    "claims": lambda store: store.list_claims(PageQuery(after="x")),
    "claims in states": lambda store: store.list_claims(
        PageQuery(), states=frozenset({ClaimState.RELEASED, ClaimState.READY})
    ),
    "run": lambda store: store.get_run("x"),
    "runs": lambda store: store.list_runs(PageQuery(after="x")),
    "runs in states": lambda store: store.list_runs(PageQuery(), states=frozenset({RunState.FAILED, RunState.LOST})),
    "runs of a subject": lambda store: store.list_runs(PageQuery(), subject="ann"),
    "events": lambda store: store.list_events(Seq(5), 10),
    "events of names": lambda store: store.list_events(
        Seq(5), 10, names=["claim.ready", "claim.released", "run.ended"]
    ),
    "events of a noun": lambda store: store.list_events(Seq(0), 10, names=["controller.*", "key.*"]),
    "events of a run, by name": lambda store: store.list_events(Seq(5), 10, run="x", names=["run.*", "claim.ready"]),
    "a stretch": lambda store: store.next_archive_range(5, NOW),
    "ended records": lambda store: store.list_ended(NOW, 10),
    "claims that are seen": lambda store: store.list_claims(PageQuery(after="x"), visible=MEMBER),
    "waiting claims that are seen": lambda store: store.list_claims(
        PageQuery(), states=frozenset({ClaimState.PENDING, ClaimState.READY}), visible=MEMBER
    ),
    "claims that an agent sees": lambda store: store.list_claims(PageQuery(), visible=AGENT),
    "runs that are seen": lambda store: store.list_runs(PageQuery(), visible=MEMBER),
    "ended runs that are seen": lambda store: store.list_runs(
        PageQuery(), states=frozenset({RunState.FAILED}), visible=MEMBER
    ),
    "a claim that is seen": lambda store: store.get_claim("x", MEMBER),
    "a run that is seen": lambda store: store.get_run("x", None, MEMBER),
    "events of a claim": lambda store: store.list_events(Seq(5), 10, claim="x"),
    "events of a run": lambda store: store.list_events(Seq(5), 10, run="x"),
    "keys": lambda store: store.find_idempotency_records([("a", "b"), ("c", "d")]),
}


def plans_of(store, act):
    asked = []

    def note(_connection, _cursor, statement, parameters, *_others):
        if statement.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            asked.append((statement, parameters))

    event.listen(store._database.engine, "before_cursor_execute", note)
    act(store)
    event.remove(store._database.engine, "before_cursor_execute", note)
    with store._database.read() as connection:
        return [
            row[3]
            for statement, parameters in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]


@pytest.mark.parametrize("name", READS)
def test_a_read_neither_sorts_nor_scans(store, name):
    plan = plans_of(store, READS[name])
    assert plan
    assert [step for step in plan if "TEMP B-TREE" in step] == []
    # A scan along an index, cut off by the page's limit, is as good as a search; so is one of all rows by number.
    scans = [step for step in plan if step.startswith("SCAN") and "USING" not in step]
    assert [step for step in scans if step != "SCAN names"] == []  # these are the names there are, some dozens


def test_events_that_are_seen_are_found_by_whose_they_are_and_merged(store):
    """However long the log: each list is found by its index, in its order, and at most a page of it is sorted."""
    plan = plans_of(store, lambda store: store.list_events(Seq(5), 10, names=["claim.*"], visible=MEMBER))
    assert sum("INDEX ix_outbox_subject (subject=? AND seq>?)" in step for step in plan) == 1
    assert sum("INDEX ix_outbox_project (project=? AND seq>?)" in step for step in plan) == 2
    assert sum("INDEX ix_outbox_name (name=? AND seq>?)" in step for step in plan) == len(PUBLIC_EVENTS)
    assert [step for step in plan if step.startswith("SCAN outbox")] == []


def test_events_of_names_are_found_by_their_names_and_merged(store):
    store.begin_epoch("test", NOW)
    plan = plans_of(store, READS["events of names"])
    assert sum("COVERING INDEX ix_outbox_name (name=? AND seq>?)" in step for step in plan) == 3
    plan = plans_of(store, READS["events of a noun"])
    assert any("ix_outbox_name (name>?)" in step for step in plan)  # from one name to the next
    assert any("ix_outbox_name (name=? AND seq>?)" in step for step in plan)
    plan = plans_of(store, READS["events of a run, by name"])
    assert [step for step in plan if "outbox" in step] == ["SEARCH outbox USING INDEX ix_outbox_run (run=? AND seq>?)"]


def test_old_records_are_found_by_their_ends(store):
    plan = plans_of(store, READS["ended records"])
    for table in ("runs", "claims"):
        assert f"SEARCH {table} USING INDEX ix_{table}_ended_at (ended_at<?)" in plan


def test_loading_does_not_read_what_has_ended(store):
    plan = plans_of(store, lambda store: store.load_unended())
    assert [step for step in plan if step.startswith("SEARCH claims")]
    assert [step for step in plan if step.startswith("SEARCH runs")]
    assert [step for step in plan if step.startswith(("SCAN claims", "SCAN runs"))] == []


def test_a_save_finds_its_records_by_their_ids(store):
    epoch = store.begin_epoch("test", NOW)
    new = granted_claims(1, 2, 3)
    new.projects += [(a_project(1), NEW), (a_project(2), NEW)]
    store.commit(epoch, new)
    saved = store.load_unended()
    changes = Changes(
        claims=[(replace(claim, version=2), ExpectedVersion(1)) for claim in saved.claims],
        partitions=[(replace(partition, version=2), ExpectedVersion(1)) for partition in saved.partitions],
        devices=[Device(POOL, number, DeviceState.DRAINED, "", NOW) for number in range(3)],
        projects=[(a_project(1, version=2), ExpectedVersion(1))],
        projects_removed=[("lab-0002", 1)],
        usage=[ProjectUsage(f"lab-{number}", 5, NOW) for number in range(3)],
    )
    plan = plans_of(store, lambda store: store.commit(epoch, changes))
    plan += plans_of(store, lambda store: store.commit(epoch, Changes(removed=[(p.id, 2) for p in saved.partitions])))
    scanned = {step for step in plan if step.startswith("SCAN") and "installation" not in step}
    assert scanned <= {"SCAN given", "SCAN CONSTANT ROW"}
    keys = ("id=?", "device=?", "name=?", "project=?")
    searched = {step.split()[1] for step in plan if step.startswith("SEARCH") and any(key in step for key in keys)}
    assert {"claims", "partitions", "devices", "projects", "project_usage"} <= searched
