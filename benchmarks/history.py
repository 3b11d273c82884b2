"""A long history: 10,000,000 events of 1,000,000 claims that have ended, beside 10,000 of 1,000.

Each is an SQLite database of its own, filled by SQL with rows as the controller writes them: ten events a claim's life,
a run for every second claim, an idempotency key for each; nothing waits. What is measured at the short history is the
bound: a page, a start and a commit must cost what they give or change, not what happened before.

``MOORINGS_BENCH_EVENTS`` sets another length: ten millions take some GB in the temporary folder, and some minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Table

from benchmarks.claims_http import start_controller
from benchmarks.report import Report
from moorings.app.folders import DEFAULT_POOLS
from moorings.core.model.claims import ClaimState
from moorings.core.model.events import canonical_json
from moorings.core.model.timestamps import SECOND
from moorings.ports.store import Epoch, IdempotencyRecord, PageQuery, Seq
from moorings.store import rows, tables
from moorings.store.sqlite import open_sqlite
from moorings.testing.builders import NOW, a_claim, a_job, a_run, granted_claims
from moorings.workloads.runs import RunState

EVENTS = int(os.environ.get("MOORINGS_BENCH_EVENTS", "10000000"))
EVENTS_SHORT = 10_000
LIFE = (
    *("claim.created", "turn.decided", "claim.granted", "partition.active", "claim.ready", "turn.decided"),
    *("claim.releasing", "partition.removed", "claim.released", "turn.decided"),
)
RARE, RARE_EVERY = "device.drained", 5_000  # in the place of a turn
ROUNDS, STARTS, PAGE = 60, 5, 100
NEW_CLAIMS = 100_000_000  # numbers of claims that the measured commits make
SEED = 5
LIMIT = 1.5


def run() -> Report:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        histories = [_History(Path(name) / str(n_events), n_events) for n_events in (EVENTS_SHORT, EVENTS)]
        os.sync()  # else what is measured waits for what the filling has left to the disk
        took = [history.asked() for history in histories]
        short, long = ({figure: _usual(calls) for figure, calls in each.items()} for each in _in_turn(took))
        size = histories[1].path.stat().st_size
    return Report(
        name="history",
        figures=long,
        bounds=short,
        anchors={figure: LIMIT * cost for figure, cost in short.items()},
        notes=(
            f"{EVENTS:,} events, {EVENTS // len(LIFE):,} claims; bound: {EVENTS_SHORT:,} events",
            f"anchor: {LIMIT:g} times the bound of this run",
            f"{size / EVENTS:.0f} bytes an event, with its part of claims, runs and keys",
        ),
    )


def _usual(took_ms: Sequence[float]) -> float:
    """The lower quartile: a shared machine is slow for seconds, and the median of one figure then falls into that."""
    return statistics.quantiles(took_ms, n=4)[0]


def _in_turn(asked: Sequence[Mapping[str, Callable[[], object]]]) -> list[dict[str, list[float]]]:
    """Milliseconds of each call; short and long by turns, for the speed of a machine changes."""
    took: list[dict[str, list[float]]] = [{} for _ in asked]
    for figure in asked[0]:
        for _ in range(STARTS if figure == "start_ms" else ROUNDS):
            for calls, found in zip(asked, took, strict=True):
                begun = time.perf_counter()
                told = calls[figure]()
                found.setdefault(figure, []).append((time.perf_counter() - begun) * 1000)
                if isinstance(told, subprocess.Popen):
                    told.terminate()
                    told.wait()
    return took


class _History:
    """A data folder with a history."""

    def __init__(self, folder: Path, n_events: int) -> None:
        folder.mkdir()
        (folder / "pools.toml").write_text(DEFAULT_POOLS)
        self.path, self._folder, self._n_events = folder / "data" / "moorings.db", folder, n_events
        process = self._start()  # it makes its database
        process.terminate()
        process.wait()
        _fill(self.path, n_events)

    def _start(self) -> subprocess.Popen[bytes]:
        return start_controller(self._folder)[0]

    def asked(self) -> dict[str, Callable[[], object]]:
        """What is measured."""
        store = open_sqlite(self.path)
        chance, n_events, n_claims = random.Random(SEED), self._n_events, self._n_events // len(LIFE)
        first, numbers = store.last_seq() - n_events, iter(range(NEW_CLAIMS, NEW_CLAIMS + ROUNDS))
        leading: list[Epoch] = []

        def at(share: float) -> Seq:
            return Seq(max(0, first + int(n_events * share) - chance.randrange(PAGE)))

        def claim() -> str:
            return a_claim(chance.randrange(n_claims)).id

        def page(share: float) -> str:
            return a_claim(int(n_claims * share) - chance.randrange(PAGE)).id

        def commit() -> None:
            if not leading:  # not before: the controllers that start lead, too
                leading.append(store.begin_epoch("bench", NOW))
            store.commit(leading[0], granted_claims(next(numbers)))

        return {
            "start_ms": self._start,
            "page_first_ms": lambda: store.list_events(Seq(0), PAGE),
            "page_middle_ms": lambda: store.list_events(at(0.5), PAGE),
            "page_last_ms": lambda: store.list_events(at(1 - 2 * PAGE / n_events), PAGE),
            "name_first_ms": lambda: store.list_events(Seq(0), PAGE, names=["claim.released"]),
            "name_middle_ms": lambda: store.list_events(at(0.5), PAGE, names=["claim.released"]),
            "name_last_ms": lambda: store.list_events(at(0.8), PAGE, names=["claim.released"]),
            "name_rare_ms": lambda: store.list_events(at(0.4), 1, names=[RARE]),
            "name_none_ms": lambda: store.list_events(Seq(0), PAGE, names=["pool.unreachable"]),
            "noun_middle_ms": lambda: store.list_events(at(0.5), PAGE, names=["claim.*"]),
            "claim_events_ms": lambda: store.list_events(Seq(0), PAGE, claim=claim()),
            "claim_ms": lambda: store.get_claim(claim()),
            "claims_middle_ms": lambda: store.list_claims(PageQuery(PAGE, page(0.5))),
            "runs_of_user_ms": lambda: store.list_runs(PageQuery(PAGE), subject="ann"),
            "key_ms": lambda: store.find_idempotency_records([("ann", _key(chance.randrange(n_claims)))]),
            "load_ms": store.load_unended,
            "commit_ms": commit,
        }


# -- the history -------------------------------------------------------------------------------------------------------


def _key(number: int) -> str:
    return f"moor-{number:032x}"


def _fill(path: Path, n_events: int) -> None:
    n_claims = n_events // len(LIFE)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in ("synchronous = OFF", "cache_size = -1000000", "foreign_keys = OFF"):
            database.execute(f"PRAGMA {pragma}")
        (last,) = database.execute("SELECT seq FROM installation").fetchone()
        database.execute("BEGIN")
        _insert(database, tables.claims, (_claim_row(number) for number in range(n_claims)))
        _insert(database, tables.runs, (_run_row(number) for number in range(0, n_claims, 2)))
        keys = (
            IdempotencyRecord("ann", _key(number), f"{number:064x}", claim=a_claim(number).id)
            for number in range(n_claims)
        )
        _insert(database, tables.idempotency_keys, map(rows.key_use_row, keys))
        _insert(database, tables.outbox, _event_rows(last, n_claims))
        database.execute("UPDATE installation SET seq = seq + ?", (n_claims * len(LIFE),))
        database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _insert(database: sqlite3.Connection, table: Table, values: Iterator[rows.RowTuple]) -> None:
    names = [f'"{name}"' for name in table.c.keys()]
    database.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)


_CLAIM = rows.claim_row(replace(a_claim(), state=ClaimState.RELEASED, version=5))
_RUN = rows.run_row(replace(a_run(), state=RunState.SUCCEEDED, version=4), a_job())
_DATA = canonical_json(
    {"kind": "ipu", "owner": "user/ann", "priority": 0, "project": "default", "size": 4, "subject": "ann"}
)
_TURN = canonical_json({"granted": [], "inputs": [["driver_answered", "x" * 300]], "now": NOW, "policy": "x" * 100})


def _claim_row(number: int) -> rows.RowTuple:
    claim, at = a_claim(number), NOW + number * SECOND
    own: dict[str, str | int | None] = {"id": claim.id, "name": claim.name, "owner": claim.owner, "arrival": at}
    return _with(_CLAIM, tables.claims, {**own, "granted_at": at, "ready_at": at, "ended_at": at + SECOND})


def _run_row(number: int) -> rows.RowTuple:
    run, at = a_run(number), NOW + number * SECOND
    own: dict[str, str | int | None] = {"id": run.id, "name": run.job.name, "created_at": at, "claim": run.claim}
    return _with(_RUN, tables.runs, {**own, "started_at": at, "ended_at": at + SECOND})


def _with(row: rows.RowTuple, table: Table, values: Mapping[str, str | int | None]) -> rows.RowTuple:
    """The row, with other values in these columns."""
    return tuple(values.get(name, old) for name, old in zip(table.c.keys(), row, strict=True))


def _event_rows(last: int, n_claims: int) -> Iterator[rows.RowTuple]:
    seq = last
    for number in range(n_claims):
        claim, at = a_claim(number).id, NOW + number * SECOND
        for name in LIFE:
            seq += 1
            if name == "turn.decided":
                told = RARE if not seq % RARE_EVERY else name
                yield (seq, told, at, None, None, None, None, None, 1, _TURN)
            else:
                yield (seq, name, at, claim, None, None, "pod64", None, 1, _DATA)
