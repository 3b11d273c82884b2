"""``moor replay``: a log that is exported, decided again, and tried with another policy."""

import contextlib
import json
import sqlite3
import tarfile

import pytest

from moorings.cli.logs import parse_log, policy_of, trace_of
from moorings.cli.main import main
from moorings.core.claims import ClaimId
from moorings.core.errors import MooringsError
from moorings.core.inputs import ReleaseClaim
from moorings.core.policy import Policy
from moorings.core.simulate import SimulatedJob
from moorings.wire.codec import encode, time_text
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
            at=time_text(event.at),
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
def moor(capsys, tmp_path, monkeypatch):
    """Runs a command in a folder with a log and its pools; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.json").write_text(exported(lived()))
    (tmp_path / "pools.toml").write_text(POOLS)
    (tmp_path / "other.toml").write_text("reserve = false\n")

    def call(*arguments):
        code = main(["replay", *arguments, "--pools", "pools.toml"])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_an_export_is_the_log_itself():
    log = lived()
    assert parse_log(exported(log), "log.json") == tuple(log.rows)
    assert policy_of(log.rows) == Policy()


def test_the_same_inputs_give_the_same_events(moor):
    assert moor("log.json") == (0, "7 turns, all the same, byte for byte\n", "")


def test_a_line_an_event_is_the_same_log(moor, tmp_path):
    lines = [json.dumps({"apiVersion": "moorings/v1", **item}) for item in json.loads(exported(lived()))["items"]]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert moor("log.jsonl") == (0, "7 turns, all the same, byte for byte\n", "")
    (tmp_path / "alone.jsonl").write_text(lines[0])
    assert moor("alone.jsonl") == (0, "0 turns, all the same, byte for byte\n", "")


def saved(folder, log, *, pools=POOLS):
    """A file as ``moor backup`` writes it, as far as a replay reads it."""
    columns = ("seq", "name", "at", "claim", "partition", "run", "pool", "device", "version", "data")
    with contextlib.closing(sqlite3.connect(folder / "moorings.db")) as database:
        database.execute(f"CREATE TABLE outbox ({', '.join(columns)})")
        for row in log.rows:
            event = row.event
            about = (event.claim, event.partition, event.run, event.pool, event.device)
            values = (row.seq, event.name, event.at, *about, 1, event.data)
            database.execute(f"INSERT INTO outbox VALUES ({', '.join('?' * len(values))})", values)
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
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert moor("binary.json")[2].startswith("error: binary.json cannot be read: it is not UTF-8")
    assert moor("none.json")[2].startswith("error: none.json cannot be read: No such file or directory")


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
    assert trace_of(lived().rows) == (first, second)


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
        ('{"items": [{"seq": 1}]}', "log.json is no export of an event log"),
        ('{"items": [{"seq": 2, "name": "a.b", "at": "2026-01-31T12:00:00Z"}]}', "log.json is not the whole log"),
    ],
)
def test_what_is_no_whole_log_is_refused(moor, tmp_path, text, told):
    (tmp_path / "log.json").write_text(text)
    code, out, err = moor("log.json")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {told}")


def test_a_log_without_a_turn_has_no_policy():
    with pytest.raises(MooringsError, match="there is no turn in the log"):
        policy_of(())


def test_a_folder_is_written_only_with_a_policy(moor):
    assert moor("log.json", "--out", "tried")[0] == 2
