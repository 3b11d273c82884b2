"""``moor replay``: a log that is exported, decided again, and tried with another policy."""

import contextlib
import gzip
import json
import sqlite3
import tarfile
from dataclasses import replace

import pytest

from moorings.cli import event_log
from moorings.cli.event_log import build_trace, last_policy, parse_log
from moorings.cli.main import main
from moorings.controller.rewind_recovery import CONTROLLER_NAME
from moorings.core.forecast.simulation import SimulatedJob
from moorings.core.model.claims import ClaimId
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.inputs import ReleaseClaim, SetProject
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project
from moorings.ports.store import EventRow, Seq
from moorings.wire.codec import encode, format_time
from moorings.wire.shapes import EventBody
from tests.unit.controller.test_replay import Log, answer, claim

POOLS = """[[pool]]
name = "pod8"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domain_size = 8 }
"""


def exported(log):
    """As ``moor events --after 0 -o json`` writes it."""
    items = []
    for row in log.rows:
        event = row.event
        body = EventBody(
            seq=row.seq,
            name=event.name,
            at=format_time(event.at),
            claim=event.claim,
            partition=event.partition,
            run=event.run,
            pool=event.pool,
            device=event.device,
            data=json.loads(event.data),
        )
        items.append(encode(body))
    return json.dumps({"apiVersion": "moorings/v1", "kind": "EventList", "items": items})


def lived():
    """One claim holds the pool for four turns, one waits for it and still holds it, one is withdrawn."""
    log = Log()
    log.turn(claim(1, 8, time_limit_s=60.0))
    log.turn(*(answer(one) for one in log.orders()), claim(2, 4, priority=3), claim(3, 1))
    log.turn(ReleaseClaim(ClaimId("claim-3"), "not now"))
    log.turn(ReleaseClaim(ClaimId("claim-1"), "done"))
    log.turn(*(answer(one) for one in log.orders()))
    log.turn(*(answer(one) for one in log.orders()))
    log.turn(claim(4, 8))
    return log


@pytest.fixture
def moor(moor, tmp_path, monkeypatch):
    """Runs a command in a folder with a log and its pools; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.json").write_text(exported(lived()))
    (tmp_path / "pools.toml").write_text(POOLS)
    (tmp_path / "other.toml").write_text("reserve = false\n")
    return lambda *arguments: moor("replay", *arguments, "--pools", "pools.toml")


def test_an_export_is_the_log_itself():
    log = lived()
    assert parse_log(exported(log), "log.json") == tuple(log.rows)
    assert last_policy(log.rows) == Policy()


def test_the_same_inputs_give_the_same_events(moor):
    assert moor("log.json") == (0, "7 turns, all the same, byte for byte\n", "")


def test_a_line_an_event_is_the_same_log(moor, tmp_path):
    lines = [json.dumps({"apiVersion": "moorings/v1", **item}) for item in json.loads(exported(lived()))["items"]]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert moor("log.jsonl") == (0, "7 turns, all the same, byte for byte\n", "")
    (tmp_path / "alone.jsonl").write_text(lines[0])
    code, out, err = moor("alone.jsonl")
    assert (code, out) == (1, "")
    assert err.startswith("error: alone.jsonl cannot be replayed: there is no turn in it (log.unreadable)\nhint: ")


def test_a_log_whose_numbers_leap_where_its_database_went_back_is_whole(moor, tmp_path):
    log = lived()
    for _ in range(2):
        log.turn_back()
        log.turn(claim(log.rows[-1].seq, 1))
    (tmp_path / "log.json").write_text(exported(log))
    assert moor("log.json") == (0, "9 turns, all the same, byte for byte\n", "")


@pytest.mark.parametrize("leaps", [True, False])  # again: where nobody knew how far numbers had come
def test_who_made_a_database_ready_and_died_before_it_was_saved_has_only_led(moor, tmp_path, leaps):
    log = lived()
    first = log.rows[-1]
    data = canonical_json({"epoch": 5, "holder": CONTROLLER_NAME})
    log.rows.append(EventRow(Seq(first.seq + 1_000), Event(name="controller.led", at=log.now, data=data)))
    done = len(log.rows)
    log.turn_back()
    if not leaps:
        log.rows[done:] = [replace(row, seq=row.seq - 999) for row in log.rows[done:]]
    log.turn(claim(log.rows[-1].seq, 1))
    (tmp_path / "log.json").write_text(exported(log))
    assert moor("log.json") == (0, "8 turns, all the same, byte for byte\n", "")


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("the last before", "stands where event"),
        ("controller.led", "stands where event"),
        ("database.turned_back", "was turned back there by a release that did not write down"),
    ],
)
def test_a_leap_excuses_no_event_that_is_missing(moor, tmp_path, lost, told):
    log = lived()
    last = log.rows[-1]
    log.turn_back()
    log.turn(SetProject(Project(name="lab"), None))
    log.rows = [row for row in log.rows if row.event.name != lost and (lost != "the last before" or row != last)]
    if lost == "database.turned_back":
        ends = log.rows[-1].seq - 1  # it was never written
        log.rows = [row if row.seq <= last.seq + 1_000 else replace(row, seq=row.seq - 1) for row in log.rows]
        assert log.rows[-1].seq == ends
    (tmp_path / "log.json").write_text(exported(log))
    code, out, err = moor("log.json")
    assert (code, out, told in err) == (1, "", True), err


def saved(folder, log, *, pools=POOLS, then=""):
    """A file as ``moor backup`` writes it, as far as a replay reads it; ``then`` is done to its database."""
    columns = ("seq", "name", "at", "claim", "partition", "run", "pool", "device", "version", "data")
    with contextlib.closing(sqlite3.connect(folder / "moorings.db")) as database:
        database.execute(f"CREATE TABLE outbox ({', '.join(columns)})")
        for row in log.rows:
            event = row.event
            about = (event.claim, event.partition, event.run, event.pool, event.device)
            values = (row.seq, event.name, event.at, *about, 1, event.data)
            database.execute(f"INSERT INTO outbox VALUES ({', '.join('?' * len(values))})", values)
        database.executescript(then)
        database.commit()
    with tarfile.open(folder / "backup.tar.gz", "w:gz") as tar:
        tar.add(folder / "moorings.db", "moorings.db")
        if pools is not None:
            (folder / "then.toml").write_text(pools)
            tar.add(folder / "then.toml", "pools.toml")
    return folder / "backup.tar.gz"


def test_a_backup_is_a_log_with_its_own_pools(moor, tmp_path, capsys):
    saved(tmp_path, lived())
    assert main(["replay", "backup.tar.gz"]) == 0
    assert capsys.readouterr().out == "7 turns, all the same, byte for byte\n"
    (tmp_path / "bare").mkdir()
    assert moor(str(saved(tmp_path / "bare", lived(), pools=None)))[0] == 0


def test_what_is_no_whole_backup_is_refused(moor, tmp_path):
    whole = saved(tmp_path, lived()).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "other.toml", "other.toml")
    with tarfile.open(tmp_path / "strange.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "other.toml", "moorings.db")
    for name in ("cut", "other", "strange"):
        code, out, err = moor(f"{name}.tar.gz")
        assert (code, out) == (1, "")
        assert err.startswith(f"error: {name}.tar.gz is no whole backup: ")
        assert "(log.unreadable)" in err
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert moor("binary.json")[2].startswith("error: binary.json cannot be read: it is not UTF-8")
    assert moor("none.json")[2].startswith("error: none.json cannot be read: No such file or directory")


COLUMNS = "seq, name, at, claim, partition, run, pool, device, version, data"
ENDLESS = """
    DROP TABLE outbox;
    CREATE VIEW outbox AS WITH RECURSIVE more(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM more)
        SELECT seq, 'key.made' AS name, 1 AS at, NULL AS claim, NULL AS partition, NULL AS run, NULL AS pool,
        NULL AS device, 1 AS version, '{}' AS data FROM more;
"""
FORGED = """
    PRAGMA writable_schema = ON;
    UPDATE sqlite_master SET type = 'table' WHERE name = 'outbox';
"""
RECKONED = f"""
    CREATE TABLE more ({COLUMNS.removesuffix(", data")}, data AS (hex(zeroblob(1 << 26))));
    INSERT INTO more SELECT {COLUMNS.removesuffix(", data")} FROM outbox;
    DROP TABLE outbox;
    ALTER TABLE more RENAME TO outbox;
"""


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("UPDATE outbox SET at = 'soon' WHERE seq = 3", "the time of event 3 is a text"),
        ("UPDATE outbox SET at = NULL WHERE seq = 3", "the time of event 3 is nothing"),
        ("UPDATE outbox SET seq = 'x' WHERE seq = 3", "the number of an event is a text"),
        ("UPDATE outbox SET name = 5 WHERE seq = 3", "the name of event 3 is a number"),
        ("UPDATE outbox SET data = x'00' WHERE seq = 3", "the data of event 3 is bytes"),
        ("UPDATE outbox SET pool = 1.5 WHERE seq = 3", "the pool of event 3 is a number, not a name"),
        ("ALTER TABLE outbox DROP COLUMN device", "no such column: device"),
        ("DROP TABLE outbox", "there is no table of events in it"),
        (ENDLESS, "there is no table of events in it"),
        (ENDLESS + FORGED, "malformed database schema"),
        (RECKONED, "there is no table of events in it"),
    ],
)
@pytest.mark.parametrize("policy", [(), ("--policy", "other.toml")])
def test_a_database_of_another_make_is_refused(moor, tmp_path, then, told, policy):
    saved(tmp_path, lived(), then=then)
    code, out, err = moor("backup.tar.gz", *policy)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: backup.tar.gz is no whole backup: {told}")
    assert "(log.unreadable)" in err


def test_nothing_but_the_columns_of_a_table_is_read():
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(
            "CREATE TABLE outbox (seq);" + ENDLESS.replace("DROP TABLE outbox;", "").replace("outbox", "endless")
        )
        database.set_authorizer(event_log._only_plain)
        assert list(database.execute("SELECT seq FROM outbox ORDER BY seq LIMIT 3")) == []
        for wish in ("seq FROM endless", "type FROM sqlite_master", "hex(seq) FROM outbox"):
            with pytest.raises(sqlite3.DatabaseError, match=r"prohibited|not authorized"):
                database.execute(f"SELECT {wish} LIMIT 3")


def test_a_backup_without_a_turn_is_refused(moor, tmp_path):
    saved(tmp_path, lived(), then="DELETE FROM outbox")
    assert moor("backup.tar.gz")[2].startswith("error: backup.tar.gz cannot be replayed: there is no turn in it")


def test_no_more_events_are_read_than_a_replay_can_hold(moor, tmp_path, monkeypatch):
    log = lived()
    saved(tmp_path, log)
    monkeypatch.setattr(event_log, "_EVENTS_MAX", len(log.rows))
    assert moor("backup.tar.gz")[0] == 0
    monkeypatch.setattr(event_log, "_EVENTS_MAX", len(log.rows) - 1)
    assert f"there are more than {len(log.rows) - 1} events in it" in moor("backup.tar.gz")[2]


def packed(path, *members):
    """A backup of these members: name, what its header says of its size, content."""
    with gzip.open(path, "wb") as file:
        for name, size, content in members:
            header = tarfile.TarInfo(name)
            header.size = size
            file.write(header.tobuf(tarfile.GNU_FORMAT) + content)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("moorings.db", 1 << 40, b"")], f"moorings.db in it has {1 << 40} bytes, and at most {1 << 32} are read"),
        ([("moorings.db", 8192, bytes(4096))], "unexpected end of data"),
        ([("other", 1 << 40, b""), ("moorings.db", 0, b"")], "there is more in it than a backup has"),
        ([("other.toml", 0, b"")], "there is no moorings.db in it"),
        ([("moorings.db", 0, b""), ("moorings.db", 0, b"")], "moorings.db is in it twice"),
        ([("moorings.db", 0, b""), ("pools.toml", 512, b"\xff" * 512)], "pools.toml in it is not UTF-8"),
    ],
)
def test_what_a_small_file_unpacks_to_has_a_bound(moor, tmp_path, members, told):
    packed(tmp_path / "bomb.tar.gz", *members)
    code, out, err = moor("bomb.tar.gz")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: bomb.tar.gz is no whole backup: {told} (log.unreadable)")


def test_what_is_unpacked_is_counted(moor, tmp_path, monkeypatch):
    saved(tmp_path, lived())
    size = len(gzip.decompress((tmp_path / "backup.tar.gz").read_bytes()))
    monkeypatch.setattr(event_log, "_UNPACKED_BYTES_MAX", size)
    assert moor("backup.tar.gz")[0] == 0
    monkeypatch.setattr(event_log, "_UNPACKED_BYTES_MAX", size // 8)
    assert "(log.unreadable)" in moor("backup.tar.gz")[2]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_is_not_read_at_any_length(moor, tmp_path, kind):
    header = tarfile.TarInfo("moorings.db")
    header.type, header.size = kind, 1 << 31
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)))
    assert "there is more in it than a backup has (log.unreadable)" in moor("bomb.tar.gz")[2]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_file_is_refused(moor, tmp_path, kind):
    with tarfile.open(tmp_path / "odd.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("moorings.db")
        member.type, member.linkname = kind, "moorings.db"
        tar.addfile(member)
    assert "moorings.db in it is no plain file (log.unreadable)" in moor("odd.tar.gz")[2]


def test_packed_bytes_that_are_damaged_are_told_in_words(moor, tmp_path):
    whole = bytearray(saved(tmp_path, lived()).read_bytes())
    for at in range(20, len(whole), len(whole) // 40):
        damaged = whole.copy()
        damaged[at] ^= 0xFF
        (tmp_path / "damaged.tar.gz").write_bytes(damaged)
        code, out, err = moor("damaged.tar.gz")
        assert (code, out) == (1, "")
        assert err.startswith("error: damaged.tar.gz is no whole backup: "), err
        assert "zlib" not in err


def test_what_follows_the_last_turn_is_no_part_of_the_trace(moor, tmp_path):
    items = json.loads(exported(lived()))["items"]
    at = items[-1]["at"]
    for name in ("claim.created", "claim.granted"):
        items.append({"seq": len(items) + 1, "name": name, "at": at, "claim": "claim-9", "data": {}})
    (tmp_path / "log.json").write_text(json.dumps({"items": items}))
    assert moor("log.json", "--policy", "other.toml")[0] == 0


def test_the_first_turn_that_is_not_the_same_is_shown(moor, tmp_path):
    forged = (tmp_path / "log.json").read_text().replace('"devices": "0-3"', '"devices": "4-7"')
    (tmp_path / "forged.json").write_text(forged)
    code, out, _ = moor("forged.json")
    assert code == 1
    first, logged, decided = out.splitlines()
    assert first.startswith("turn 5, which ends with event ")
    assert logged == '- the log: claim.granted claim-2 {"devices":"4-7","name":"c2"}'
    assert decided == '- now:     claim.granted claim-2 {"devices":"0-3","name":"c2"}'


def test_claims_that_held_something_are_a_trace():
    first = SimulatedJob(
        name="claim-1",
        arrives_s=0.0,
        runs_s=4.0,
        size=8,
        subject="ann",
        limit_s=60.0,
        preemptible=False,
        resumable=False,
    )
    second = SimulatedJob(
        name="claim-2",
        arrives_s=1.0,
        runs_s=2.0,
        size=4,
        subject="ann",
        priority=3,
        preemptible=False,
        resumable=False,
    )
    assert build_trace(lived().rows) == (first, second)


def test_claims_without_devices_are_no_trace():
    rows = [
        replace(row, event=replace(row.event, data=row.event.data.replace('"kind":"ipu"', '"kind":"machine"')))
        for row in lived().rows
    ]
    assert build_trace(rows) == ()


def test_another_policy_is_tried_on_the_log(moor, tmp_path):
    code, out, err = moor("log.json", "--policy", "other.toml", "--out", "tried")
    assert (code, err.splitlines()[0]) == (0, "7 turns, all the same, byte for byte")
    assert "A: the log's policy   B: other.toml" in out
    assert sorted(path.name for path in (tmp_path / "tried").iterdir()) == ["jobs.csv", "report.json", "timeline.svg"]
    assert [one["jobs"] for one in json.loads((tmp_path / "tried" / "report.json").read_text())["reports"]] == [2, 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("arrives,runs\n", "log.json is no export of an event log"),
        ('{"seq": 1, "name": "a.b"}\nnonsense', "log.json is no export of an event log"),
        ("", "log.json is no export of an event log: it is no JSON, at line 1, column 1"),
        ("[]", "log.json is no export of an event log: it is a list, not a document with items"),
        ("[\n]", "log.json is no export of an event log: it is a list, not a document with items"),
        ("5", "log.json is no export of an event log: it is a number, not a document with items"),
        ("null", "log.json is no export of an event log: it is nothing, not a document with items"),
        ('{"items": {}}', "log.json is no export of an event log: it is a document without a list of items"),
        ('{"items": ["x"]}', "log.json is no export of an event log: item 1 of it is a text, not an event"),
        ('{"items": []}', "log.json cannot be replayed: there is no turn in it"),
        ("[" * 100_000, "log.json is no export of an event log: it is nested too deeply"),
        ('{"items": [{"seq": 1}]}', "log.json is no export of an event log: the time of item 1 is nothing"),
        ('{"items": [{"seq": 2, "name": "a.b", "at": "2026-01-31T12:00:00Z"}]}', "log.json is not the whole log"),
    ],
)
def test_what_is_no_whole_log_is_refused(moor, tmp_path, text, told):
    (tmp_path / "log.json").write_text(text)
    code, out, err = moor("log.json")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {told}")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("name", 5, "the name of event 1 is a number"),
        ("name", None, "the name of event 1 is nothing"),
        ("seq", "1", "the number of an event is a text"),
        ("seq", True, "the number of an event is true or false"),
        ("at", 5, "the time of item 1 is a number"),
        ("at", "soon", "the time of item 1: 'soon' is not a time"),
        ("data", [], "the data of item 1 is a list"),
        ("claim", {}, "the claim of event 1 is a document, not a name"),
        ("device", 3, "the device of event 1 is a number, not a name"),
    ],
)
def test_an_event_of_another_make_is_refused(moor, tmp_path, key, value, told):
    items = json.loads(exported(lived()))["items"]
    (tmp_path / "log.json").write_text(json.dumps({"items": [{**item, key: value} for item in items]}))
    code, out, err = moor("log.json", "--policy", "other.toml")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: log.json is no export of an event log: {told} (log.unreadable)\nhint: ")


@pytest.mark.parametrize("text", ["nonsense", "[]", "[" * 100_000, '{"inputs":[["fly",{}]]}'])
def test_a_turn_of_another_make_is_told_in_words(moor, tmp_path, text):
    saved(tmp_path, lived(), then=f"UPDATE outbox SET data = '{text}' WHERE name = 'turn.decided'")
    code, out, err = moor("backup.tar.gz")
    assert (code, out) == (1, "")
    assert err.startswith("error: a turn in the log cannot be read")
    assert "Error(" not in err


def test_a_log_without_a_turn_has_no_policy():
    with pytest.raises(MooringsError, match="there is no turn in the log"):
        last_policy(())


def test_a_folder_is_written_only_with_a_policy(moor):
    assert moor("log.json", "--out", "tried")[0] == 2
