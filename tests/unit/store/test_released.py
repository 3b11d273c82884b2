"""A database, archives and marks of earlier releases are read: all that their controllers told of them is there."""

import gzip
import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from moorings.ports.store import Changes, PageQuery, Seq
from moorings.store.archive import list_archive_files, read_events
from moorings.store.log_position import LogPositionFile
from moorings.store.sqlite import open_sqlite
from moorings.testing.builders import NEW, NOW, an_event
from tests.released.site import NAMES, ReleasedSite


@pytest.fixture(params=NAMES, scope="module")
def site(request, tmp_path_factory):
    return ReleasedSite(request.param, tmp_path_factory.mktemp("site"))


@pytest.fixture
def store(site, tmp_path):
    for path in (site.folder / "data").glob("moorings.db*"):
        shutil.copy(path, tmp_path)
    with closing(open_sqlite(tmp_path / "moorings.db")) as store:
        yield store


GONE = "gone"


def test_every_record_is_in_the_state_that_was_told(store, site):
    for found, told in ((store.list_claims(PageQuery(1000)), "claims"), (store.list_runs(PageQuery(1000)), "runs")):
        states = {one["id"]: one["state"] for one in site.told[told] if one["name"] != GONE}
        assert {one.id: one.state for one in found} == states
    saved = store.load_unended()
    assert {one.id: one.state for one in saved.partitions} == {
        one["id"]: one["state"] for one in site.told["partitions"]
    }
    assert {one.name: one.version for one in saved.projects} == {
        one["name"]: one["version"] for one in site.told["projects"]
    }
    out = {one["id"]: one["state"] for one in site.told["devices"] if one["state"] != "IN_SERVICE"}
    assert {one.id: one.state for one in saved.devices} == out
    keys = {one["id"]: (one["subject"], one["role"]) for one in site.told["keys"]}
    assert keys.items() <= {one.id: (one.subject, one.role) for one in store.access_keys()}.items()


def test_every_state_that_can_rest_was_told(site):
    claims = {one["state"] for one in site.told["claims"]}
    assert claims == {
        *("PENDING", "GRANTED", "READY", "RECLAIMING", "YIELDING", "LOST"),
        *("RELEASING", "RELEASED", "CANCELLED", "FAILED"),
    }
    runs = {one["state"] for one in site.told["runs"]}
    assert runs == {
        *("WAITING", "RUNNING", "YIELDING", "STOPPING"),
        *("SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT", "LOST"),
    }


def test_jobs_are_whole(store, site):
    runs = {one["id"]: one for one in site.told["runs"] if one["name"] != GONE}
    jobs = store.get_jobs(list(runs))
    assert {ident: list(job.command) for ident, job in jobs.items()} == {
        ident: one["job"]["command"] for ident, one in runs.items()
    }
    (whole,) = (job for job in jobs.values() if job.name == "running")
    assert (whole.lease_s, whole.image, whole.labels["team"]) == (604800.0, "registry.example/train:1", "vision")


def test_archives_go_on_where_the_log_begins(store, site):
    (stretch,) = list_archive_files(site.folder / "data" / "archive")
    rows = list(read_events(stretch))
    assert [row.seq for row in rows] == list(range(1, stretch.last + 1))
    assert store.list_events(Seq(0), 1)[0].seq == stretch.last + 1
    (archive,) = store.archives()
    assert (archive.first, archive.last) == (stretch.first, stretch.last)


def test_ended_records_are_read_from_their_archive(site):
    """Their names there are for ever: nothing of ours reads them, but people do."""
    (path,) = (site.folder / "data" / "archive").glob("ended-*.jsonl.gz")
    run, claim = (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
    assert (run["run"]["job"]["name"], run["job"]["command"]) == (GONE, ["/bin/true"])
    assert claim["claim"]["name"] == GONE


def test_a_high_water_mark_is_read(store, site):
    known = LogPositionFile(site.folder / "data", store.installation()).read()
    assert known is not None
    assert known.is_covered_by(store.log_position())
    assert known.epoch == store.log_position().epoch


def test_records_are_written_again_as_the_same_rows(store, site, tmp_path):
    """A name in a column of JSON is for ever, too: one that is not known is passed over, and lost by the next save."""
    claims, runs, saved = store.list_claims(PageQuery(1000)), store.list_runs(PageQuery(1000)), store.load_unended()
    with closing(open_sqlite(tmp_path / "again.db")) as again:
        again.commit(
            again.begin_epoch("again", NOW),
            Changes(
                claims=[(claim, NEW) for claim in claims],
                partitions=[(partition, NEW) for partition in saved.partitions],
                devices=list(saved.devices),
                runs=[(run, NEW) for run in runs],
                jobs=dict(store.get_jobs([run.id for run in runs])),
                projects=[(project, NEW) for project in saved.projects],
                usage=list(saved.usage),
            ),
        )
        for key in store.access_keys():
            again.add_access_key(key, an_event("key.created"))
    tables = (
        "claims",
        "partitions",
        "partition_devices",
        "devices",
        "runs",
        "projects",
        "project_usage",
        "access_keys",
    )
    with (
        closing(sqlite3.connect(tmp_path / "moorings.db")) as old,
        closing(sqlite3.connect(tmp_path / "again.db")) as new,
    ):
        for table in tables:
            columns = ", ".join(f'"{row[1]}"' for row in old.execute(f'PRAGMA table_info("{table}")'))
            if table == "runs":  # the values of variables are written no more
                columns = columns.replace('"job"', "json_remove(job, '$.environment')")
            asked = f'SELECT {columns} FROM "{table}"'
            rows = sorted(map(repr, old.execute(asked)))
            assert rows
            assert sorted(map(repr, new.execute(asked))) == rows, table
