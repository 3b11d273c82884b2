"""What a release said to its database, kept for ever in ``released``, to be replayed on the tables of later ones.

A controller of the release before still runs while a new one upgrades the tables beneath it. Its code is not here
any more, but its statements are. Refused: taking the old code from git (a checkout may have no history, and the old
code needs the old versions of what it imports) and writing its statements by hand (they would say what we believe).

Before a step NNNN+1 is added, freeze release NNNN, on SQLite and on a server (``python -m tests.postgresql`` is one)::

    python -m tests.unit.store.recording > tests/unit/store/released/NNNN-sqlite.json
    python -m tests.unit.store.recording postgresql://… > tests/unit/store/released/NNNN-postgresql.json
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import event

from moorings.core.model.claims import ClaimId, ClaimState
from moorings.core.model.devices import Device, DeviceState
from moorings.core.model.partitions import PartitionState
from moorings.core.model.projects import ProjectUsage
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Changes, ExpectedVersion, IdempotencyRecord, PageQuery, Seq
from moorings.testing.builders import (
    NEW,
    NOW,
    POOL,
    a_project,
    a_run,
    an_access_key,
    an_event,
    granted_claims,
    jobs_for,
)
from moorings.workloads.runs import RunState

RELEASED = Path(__file__).parent / "released"


def released():
    """Each release and kind of database that was recorded."""
    return sorted(tuple(path.stem.split("-")) for path in RELEASED.glob("*.json"))


def recorded(release, kind):
    """The transactions of that release: whether each was committed, and its statements with their values."""
    return json.loads((RELEASED / f"{release}-{kind}.json").read_text())


def replay(engine, transactions):
    """Carry them out again; what each statement gave."""
    return [_replay_one(engine, transaction) for transaction in transactions]


def _replay_one(engine, transaction):
    gave = []
    with engine.connect() as connection:
        for statement, values in transaction["statements"]:
            result = connection.exec_driver_sql(statement, tuple(map(_value, values)))
            gave.append([tuple(row) for row in result] if result.returns_rows else result.rowcount)
        if transaction["committed"]:
            connection.commit()
    return gave


def _value(told):
    """A value of a statement; JSON has no bytes."""
    return bytes.fromhex(told["bytes"]) if isinstance(told, dict) else told


def live(store):
    """A bit of everything a store can be asked, twice, so that it is also asked after an upgrade in between."""
    for first in (1, 11):
        _live_a_while(store, first)


def _live_a_while(store, first):
    epoch = store.begin_epoch(f"host-{first}", NOW)
    new = granted_claims(first, first + 1)
    new.runs.append((a_run(first), NEW))
    new.jobs.update(jobs_for(a_run(first)))
    new.devices.append(Device(POOL, 63, DeviceState.DRAINED, "fan", NOW))
    new.keys.append(IdempotencyRecord("ann", f"k{first}", "digest", claim=ClaimId(f"claim-{first:04d}")))
    new.projects += [(a_project(first), NEW), (a_project(first + 1), NEW)]
    new.usage += [ProjectUsage("default", 5, NOW), ProjectUsage(f"lab-{first:04d}", 5, NOW)]
    store.commit(epoch, new)
    saved = store.load_unended()
    claim, partition, run = saved.claims[-2], saved.partitions[-2], saved.runs[-1]
    store.commit(
        epoch,
        Changes(
            claims=[(replace(claim, state=ClaimState.RELEASED, version=2, ended_at=NOW), ExpectedVersion(1))],
            partitions=[(replace(saved.partitions[-1], state=PartitionState.ACTIVE, version=2), ExpectedVersion(1))],
            removed=[(partition.id, 1)],
            devices=[Device(POOL, 63, DeviceState.IN_SERVICE, "", NOW)],
            runs=[(replace(run, state=RunState.FAILED, version=2, exit_code=1, ended_at=NOW), ExpectedVersion(1))],
            projects=[(a_project(first + 1, version=2, weight=2), ExpectedVersion(1))],
            projects_removed=[(f"lab-{first:04d}", 1)],
            usage=[ProjectUsage("default", 6, NOW)],
            events=[an_event("claim.released", claim=claim.id)],
        ),
    )
    store.find_idempotency_records([("ann", f"k{first}"), ("ann", "none")])
    store.get_claim(claim.id)
    store.list_claims(
        PageQuery(1, after=claim.id), states=frozenset({ClaimState.RELEASED}), owner_prefix="user/", pool=POOL
    )
    store.get_run(run.job.name, "ann")
    store.list_runs(PageQuery(), states=frozenset({RunState.FAILED}), subject="ann")
    store.list_events(Seq(0), 100, claim=claim.id, names=["claim.*"])
    store.list_events(Seq(0), 100, run=run.id)
    store.last_seq()
    key = an_access_key(first)
    store.add_access_key(key, an_event("key.created"))
    store.access_key(key.id)
    store.access_keys()
    store.rotate_access_key(replace(key, digest=f"new{first}", rotated_at=NOW), key.digest, an_event("key.rotated"))
    store.revoke_access_key(key.id, an_event("key.revoked", at=Timestamp(NOW + 5)))
    store.ping()


def record(store):
    """The transactions of ``live``."""
    transactions: list[dict[str, Any]] = []
    engine = store._database.engine
    event.listen(engine, "checkout", lambda *_: transactions.append({"committed": False, "statements": []}))
    event.listen(engine, "commit", lambda _: transactions[-1].update(committed=True))

    @event.listens_for(engine, "before_cursor_execute")
    def note(_connection, _cursor, statement, values, *_others):
        transactions[-1]["statements"].append((statement, list(values)))

    live(store)
    return transactions


def main():
    if len(sys.argv) > 1:
        from moorings.store.postgresql import open_postgresql

        store = open_postgresql(sys.argv[1], installation="recorded")
    else:
        from moorings.store.sqlite import open_sqlite

        store = open_sqlite(Path(tempfile.mkdtemp()) / "moorings.db", installation="recorded")
    json.dump(
        record(store), sys.stdout, indent=1, default=lambda value: {"bytes": bytes(getattr(value, "obj", value)).hex()}
    )
    sys.stdout.write("\n")
    store.close()


if __name__ == "__main__":
    main()
