"""Backup and restore with real processes: the records turn back, the world does not, and no job pays for it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from examples.demo import processes_of
from tests.e2e.processes import POOLS, ControllerProcess, Twin, start_leading
from tests.postgresql import PostgresqlServer
from tests.waiting import patient, until

pytestmark = pytest.mark.slow


def tool(what: str, data: Path, file: Path | None = None) -> tuple[int, str, str]:
    """What ``moor backup`` and ``moor restore`` run."""
    named = ["--file", str(file)] if file is not None else []
    done = subprocess.run(
        [sys.executable, "-m", "moorings.app.backup", what, "--data", str(data), *named],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
    return done.returncode, done.stdout, done.stderr


def make_run(controller: ControllerProcess, gate: Path, size: int) -> dict[str, Any]:
    """A run whose job continues until there is a file ``gate``."""
    job = {
        "name": gate.name,
        "command": ["sh", "-c", f"until test -e {gate}; do sleep 0.05; done; echo through"],
        "workdir": "/tmp",
        "environment": {"PATH": "/usr/bin:/bin"},
        "tasks": 1,
        "accelerators": {"size": size},
        "timeLimitS": 110,  # should the test fail, nothing of it is left for long
    }
    status, run = controller.ask("POST", "/v1/runs", {"job": job})
    assert status == 201, run
    return dict(run)


def start_run(controller: ControllerProcess, gate: Path, size: int = 2) -> str:
    ident: str = make_run(controller, gate, size)["id"]
    until(lambda: controller.ask("GET", f"/v1/runs/{ident}")[1]["state"] == "RUNNING")
    return ident


def claim(controller: ControllerProcess, name: str, size: int) -> str:
    status, made = controller.ask("POST", "/v1/claims?wait=20s", {"name": name, "size": size})
    assert (status, made["state"]) == (201, "READY"), made
    return str(made["id"])


def in_hardware(controller: ControllerProcess) -> dict[str, bool]:
    """Partitions whose devices are not free, and whether a claim holds them."""
    devices = controller.ask("GET", "/v1/devices?limit=100")[1]["items"]
    return {device["partition"]: "claim" in device for device in devices if "partition" in device}


def test_a_job_of_after_the_backup_keeps_its_partition_through_a_restore(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "backup.tar.gz"
    before = start_run(controller, tmp_path / "before")
    released = claim(controller, "released-since", 4)
    assert tool("save", controller.data, file)[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600

    # The world continues.
    assert controller.ask("DELETE", f"/v1/claims/{released}?wait=20s")[0] == 200
    since = start_run(controller, tmp_path / "since")
    claim(controller, "by-hand-since", 4)
    revoked = controller.ask("POST", "/v1/keys", {"subject": "eve"})[1]
    last = controller.ask("GET", "/v1/events?limit=1000")[1]["items"][-1]["seq"]

    code, _, err = tool("restore", controller.data, file)
    assert (code, "another controller uses" in err) == (5, True), "not under a controller that runs"
    assert controller.stop() == 0
    code, told, err = tool("restore", controller.data, file)
    assert code == 0, err
    assert since in told, "whose jobs are not in the backup is told"
    assert "until 'moor restore --finish'" in told
    aside = next(controller.data.glob("before-restore-*"))
    assert aside.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in aside.iterdir()} >= {"moorings.db", "pepper"}

    controller.start()
    assert controller.ask("GET", "/v1/keys")[0] == 200, "the access key still works"
    assert revoked["id"] not in {key["id"] for key in controller.ask("GET", "/v1/keys")[1]["items"]}
    assert controller.ask("GET", f"/v1/runs/{before}")[1]["state"] == "RUNNING"
    assert controller.ask("GET", f"/v1/runs/{since}")[0] == 404, "no record knows it"
    # Several listings later: what nobody holds is still there, and given to nobody.
    log = tmp_path / "controller.log"
    told_of = [
        f"msg=partition.stray_spared logger=moorings.controller partition={name} " for name in (since, "by-hand-since")
    ]
    until(lambda: all(line in log.read_text() for line in told_of))
    assert processes_of(since) != [], "the job lives"
    assert in_hardware(controller)[since] is False
    # A claim that was released since finds that its partition has gone; nobody's job is under it.
    until(lambda: controller.ask("GET", f"/v1/claims/{released}")[1]["state"] == "LOST")
    assert controller.ask("DELETE", f"/v1/claims/{released}?wait=30s")[0] == 200
    until(lambda: in_hardware(controller).get("by-hand-since") is False)
    # Event numbers only rise.
    assert controller.ask("GET", "/v1/events?limit=1000")[1]["items"][-1]["seq"] > last

    findings = {item["id"]: item for item in controller.ask("GET", "/v1/doctor")[1]["items"]}
    assert findings["partitions.spared"]["verdict"] == "WARN"
    assert findings["laws"]["verdict"] == findings["memory"]["verdict"] == "PASS"

    # The admin has seen to it: what is by hand goes, what is under a job goes when the job has ended.
    assert tool("finish", controller.data)[0] == 0
    until(lambda: "by-hand-since" not in in_hardware(controller))
    assert processes_of(since) != []
    assert since in in_hardware(controller), "law 3, also now"
    (tmp_path / "since").touch()
    until(lambda: since not in in_hardware(controller))
    (tmp_path / "before").touch()
    ended = controller.ask("GET", f"/v1/runs/{before}?wait=20s")[1]
    assert (ended["state"], ended["exitCode"]) == ("SUCCEEDED", 0)
    until(lambda: in_hardware(controller) == {})
    # The devices of the claim that was lost were set aside; everything else is free again.
    pool = controller.ask("GET", "/v1/pools/pod16")[1]
    assert (pool["free"], pool["outOfService"]) == (16, 0), pool


def wait_for_room(controller: ControllerProcess, gate: Path, size: int = 4) -> str:
    """A run that has no room now."""
    run = make_run(controller, gate, size)
    assert run["state"] == "WAITING", run
    return str(run["id"])


def test_a_run_that_waited_then_and_runs_now_is_not_started_again_and_keeps_its_devices(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    """Its claim's next partition must not be taken for the one its job computes on (laws 1 and 3)."""
    file, gate = tmp_path / "b.tar.gz", tmp_path / "gate"
    first, second = claim(controller, "first", 8), claim(controller, "second", 8)
    run = wait_for_room(controller, gate)
    assert tool("save", controller.data, file)[0] == 0
    assert controller.ask("DELETE", f"/v1/claims/{first}?wait=20s")[0] == 200
    until(lambda: controller.ask("GET", f"/v1/runs/{run}")[1]["state"] == "RUNNING")
    before = processes_of(run)
    assert controller.stop() == 0
    code, told, err = tool("restore", controller.data, file)
    assert (code, err) == (0, "")
    assert f"{run} started since: they are not started again" in told
    controller.start()

    assert controller.ask("GET", f"/v1/runs/{run}")[1]["state"] == "RUNNING", "at once, and the truth"
    until(lambda: controller.ask("GET", f"/v1/claims/{first}")[1]["state"] == "LOST")
    for ident in (first, second):
        assert controller.ask("DELETE", f"/v1/claims/{ident}?wait=20s")[0] == 200
    # Everything else is free: whoever asks for half gets it beside the job, and never under it.
    half = claim(controller, "half", 8)
    partition = controller.ask("GET", f"/v1/partitions/{controller.ask('GET', f'/v1/claims/{half}')[1]['partition']}")
    devices = {
        item["index"]: item["partition"]
        for item in controller.ask("GET", "/v1/devices?limit=100")[1]["items"]
        if "partition" in item
    }
    assert sorted(devices.values()).count(run) == 4, devices
    assert partition[1]["size"] == 8
    assert set(before) & set(processes_of(run)), "the job goes on"
    gate.touch()
    ended = controller.ask("GET", f"/v1/runs/{run}?wait=20s")[1]
    assert (ended["state"], ended["exitCode"]) == ("SUCCEEDED", 0)
    logs = list((controller.data / "runs" / run / "logs").rglob("*.log"))
    assert [path.read_text() for path in logs] == ["through\n"], "nothing was started again"
    assert tool("finish", controller.data)[0] == 0
    until(lambda: run not in in_hardware(controller))


def test_what_was_reset_then_is_not_reset_under_the_job_that_came_since(tmp_path: Path) -> None:
    controller = ControllerProcess(tmp_path, pools=f"{POOLS}reset_s = 1.5\n")
    controller.start()
    try:
        held = claim(controller, "held", 8)
        partition = controller.ask("GET", f"/v1/claims/{held}")[1]["partition"]
        assert controller.ask("POST", f"/v1/partitions/{partition}/reset")[1]["state"] == "RESETTING"
        file = tmp_path / "b.tar.gz"
        assert tool("save", controller.data, file)[0] == 0
        until(lambda: controller.ask("GET", f"/v1/partitions/{partition}")[1]["state"] == "ACTIVE")
        assert controller.stop() == 0
        assert tool("restore", controller.data, file)[0] == 0
        controller.start()
        assert controller.ask("GET", f"/v1/partitions/{partition}")[1]["state"] == "ACTIVE"
        resets = [
            item
            for item in controller.ask("GET", "/v1/events?limit=1000")[1]["items"]
            if item["name"] == "partition.reset"
        ]
        assert len(resets) == 1, "by whoever asked"
    finally:
        assert controller.stop() == 0


def test_a_postgresql_database_that_its_own_tools_restored(
    tmp_path: Path, postgresql: PostgresqlServer, database_name: str
) -> None:
    """``pg_dump``, a claim and its job, ``pg_restore``: the job keeps its partition."""
    twin = Twin(tmp_path, POOLS, database=postgresql.url(database_name), shared=tmp_path / "shared")
    restored = f"{database_name}_restored"
    start_leading(twin)
    assert twin.stop() == 0
    postgresql.execute(f"CREATE DATABASE {restored} TEMPLATE {database_name} OWNER moorings")
    try:
        start_leading(twin)
        claim(twin, "since", 4)
        epoch = twin.ask("GET", "/v1/events?limit=1000")[1]["items"][-1]["seq"]
        code, _, err = external(twin)
        assert (code, "another controller uses" in err) == (5, True)
        assert twin.stop() == 0

        twin.database = postgresql.url(restored)
        code, told, err = external(twin)
        assert (code, err) == (0, "")
        assert "events go on at" in told
        assert (tmp_path / "shared" / "restored.json").exists()
        start_leading(twin)
        until(lambda: "msg=partition.stray_spared" in twin.log())
        assert in_hardware(twin) == {"since": False}
        assert twin.ask("GET", "/v1/events?limit=1000")[1]["items"][-1]["seq"] > epoch
        assert start_run(twin, tmp_path / "gate"), "the fence lets the new leader pass"
        (tmp_path / "gate").touch()
        finished = subprocess.run(
            [sys.executable, "-m", "moorings.app.backup", "finish", "--data", str(twin.data)],
            env=twin.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(60),
        )
        assert "are removed from now on" in finished.stdout, finished.stderr
        until(lambda: "since" not in in_hardware(twin))
    finally:
        if twin.process is not None and twin.process.poll() is None:
            assert twin.stop() == 0
        postgresql.execute(f"DROP DATABASE {restored}")


def external(twin: Twin) -> tuple[int, str, str]:
    """``moor restore --external`` with the controller's own settings."""
    words = ["external", "--data", str(twin.data), "--shared", str(twin.shared)]
    done = subprocess.run(
        [sys.executable, "-m", "moorings.app.backup", *words],
        env=twin.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
    return done.returncode, done.stdout, done.stderr


def test_the_log_of_a_backup_is_decided_again_the_same(controller: ControllerProcess, tmp_path: Path) -> None:
    claim(controller, "held", 4)
    assert controller.ask("PUT", "/v1/projects/lab", {})[0] == 200
    assert tool("save", controller.data, tmp_path / "b.tar.gz")[0] == 0
    command = [sys.executable, "-m", "moorings.cli.main", "replay", str(tmp_path / "b.tar.gz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(60))
    assert (done.returncode, "all the same, byte for byte" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_key_revoked_since_the_backup_stays_revoked(controller: ControllerProcess, tmp_path: Path) -> None:
    key = controller.ask("POST", "/v1/keys", {"subject": "eve"})[1]
    file = tmp_path / "b.tar.gz"
    assert tool("save", controller.data, file)[0] == 0
    assert controller.ask("GET", "/v1/pools", key=key["secret"])[0] == 200
    assert controller.ask("DELETE", f"/v1/keys/{key['id']}")[0] == 204
    assert controller.stop() == 0
    assert tool("restore", controller.data, file)[0] == 0
    controller.start()
    assert controller.ask("GET", "/v1/pools", key=key["secret"])[0] == 401


def test_a_secret_replaced_since_the_backup_stays_replaced(controller: ControllerProcess, tmp_path: Path) -> None:
    key = controller.ask("POST", "/v1/keys", {"subject": "eve"})[1]
    other = controller.ask("POST", "/v1/keys", {"subject": "bob"})[1]
    file = tmp_path / "b.tar.gz"
    assert tool("save", controller.data, file)[0] == 0
    rotated = controller.ask("POST", f"/v1/keys/{key['id']}/rotate", {"graceS": 0}, key=key["secret"])[1]
    later = tmp_path / "later.tar.gz"
    assert tool("save", controller.data, later)[0] == 0
    assert controller.stop() == 0
    assert tool("restore", controller.data, file)[0] == 0
    controller.start()
    assert controller.ask("GET", "/v1/pools", key=key["secret"])[1].get("code") == "auth.expired"
    assert [controller.ask("GET", "/v1/pools", key=one["secret"])[0] for one in (rotated, other)] == [200, 200]
    newest = controller.ask("POST", f"/v1/keys/{key['id']}/rotate", {"graceS": 0}, key=rotated["secret"])[1]
    newest_file = tmp_path / "newest.tar.gz"
    assert tool("save", controller.data, newest_file)[0] == 0
    for backup in (later, newest_file, file):  # whichever follows which, the newest secret stays
        assert controller.stop() == 0
        assert tool("restore", controller.data, backup)[0] == 0
        controller.start()
        asked = [controller.ask("GET", "/v1/pools", key=one["secret"])[0] for one in (key, rotated, newest)]
        assert asked == [401, 401, 200], backup


def test_a_backup_under_load_is_one_moment(controller: ControllerProcess, tmp_path: Path) -> None:
    halt = threading.Event()

    def load(number: int) -> None:
        while not halt.is_set():
            status, made = controller.ask("POST", "/v1/claims?wait=1s", {"size": 1})
            assert status == 201
            controller.ask("DELETE", f"/v1/claims/{made['id']}")

    clients = [threading.Thread(target=load, args=(number,)) for number in range(3)]
    for client in clients:
        client.start()
    files = [tmp_path / f"{number}.tar.gz" for number in range(5)]
    codes = [tool("save", controller.data, file)[0] for file in files]
    halt.set()
    for client in clients:
        client.join(patient(30))
    assert codes == [0] * 5
    seqs = []
    for file in files:
        with tarfile.open(file) as tar:
            tar.extract("moorings.db", tmp_path / file.stem, filter="data")
        with sqlite3.connect(tmp_path / file.stem / "moorings.db") as database:
            seq = database.execute("SELECT seq FROM installation").fetchone()[0]
            assert database.execute("SELECT max(seq) FROM outbox").fetchone()[0] == seq, "log and counter agree"
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
            seqs.append(seq)
        database.close()
    assert seqs == sorted(seqs)
    assert seqs[0] < seqs[-1], "there was load"


def test_a_restore_that_was_cut_off_keeps_controllers_away_until_it_is_done_again(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "b.tar.gz"
    claim(controller, "kept", 4)
    assert tool("save", controller.data, file)[0] == 0
    assert controller.stop() == 0
    # As after a kill between taking the old records away and putting the new ones there.
    (controller.data / "restoring.json").write_text(json.dumps({"from": str(file)}))
    (controller.data / "moorings.db").rename(tmp_path / "old.db")
    with pytest.raises(AssertionError, match=r"a restore into .* was interrupted \(backup.unfinished\)"):
        controller.start()
    assert not (controller.data / "moorings.db").exists(), "no empty database was made in its place"
    assert tool("restore", controller.data, file)[0] == 0
    controller.start()
    assert controller.ask("GET", "/v1/claims/kept")[1]["state"] == "READY"


def test_the_policy_turns_back_with_the_records(controller: ControllerProcess, tmp_path: Path) -> None:
    data, policy = controller.data, controller.data / "policy.toml"
    with_policy, without, older = (tmp_path / f"{name}.tar.gz" for name in ("with", "without", "older"))
    assert tool("save", data, without)[0] == 0
    policy.write_text("reserve = false\n")
    assert tool("save", data, with_policy)[0] == 0
    policy.write_text("reserve = true\n")
    assert controller.stop() == 0

    assert tool("restore", data, with_policy)[0] == 0
    assert policy.read_text() == "reserve = false\n"
    assert policy.stat().st_mode & 0o777 == 0o600
    [aside] = data.glob("before-restore-*/policy.toml")
    assert aside.read_text() == "reserve = true\n"

    with tarfile.open(with_policy) as tar:
        content = tar.extractfile("manifest.json")
        assert content is not None
        manifest = json.load(content)
    del manifest["policyFile"], manifest["files"]["policy.toml"]  # of a release whose backups had no policy
    rewritten(with_policy, older, {"policy.toml": None}, manifest)
    policy.write_text("backfill = false\n")
    assert tool("restore", data, older)[0] == 0
    assert policy.read_text() == "backfill = false\n"

    assert tool("restore", data, without)[0] == 0
    assert not policy.exists(), "the defaults were in force then"
    policy.write_text("backfill = false\n")
    controller.start()  # with what it found, however it came there


def test_a_policy_file_that_is_elsewhere_is_saved_too_and_must_be_readable(tmp_path: Path) -> None:
    policy, file = tmp_path / "mine.toml", tmp_path / "b.tar.gz"
    policy.write_text("reserve = false\n")
    controller = ControllerProcess(tmp_path, flags=("--policy", str(policy)))
    controller.start()
    try:
        assert tool("save", controller.data, file)[0] == 0
        policy.unlink()
        code, _, err = tool("save", controller.data, tmp_path / "c.tar.gz")
        assert (code, "the policy file that the controller uses, cannot be read" in err) == (2, True), err
    finally:
        assert controller.stop() == 0
    copy = controller.data / "policy.toml"
    assert f"the policy file was {policy} then; its copy is {copy}" in tool("restore", controller.data, file)[1]
    assert copy.read_text() == "reserve = false\n"


def test_what_is_no_whole_backup_changes_nothing(controller: ControllerProcess, tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    assert tool("save", controller.data, file)[0] == 0
    code, _, err = tool("save", controller.data, file)
    assert (code, "is there already" in err) == (2, True)
    assert controller.stop() == 0
    before = (controller.data / "moorings.db").read_bytes()

    def refused(path: Path, told: str) -> None:
        code, _, err = tool("restore", controller.data, path)
        assert code != 0
        assert told in err
        assert (controller.data / "moorings.db").read_bytes() == before
        assert not list(controller.data.glob("before-restore-*"))

    refused(tmp_path / "none", "there is no")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(file.read_bytes()[:-500])
    refused(cut, "no whole backup")
    refused(rewritten(file, tmp_path / "1.tar.gz", {"pepper": b"0" * 64}), "pepper is not what the manifest says")
    refused(rewritten(file, tmp_path / "2.tar.gz", {"moorings.db": None}), "no whole backup")
    refused(newer(file, tmp_path), "newer release")
    link = tmp_path / "link.tar.gz"
    with tarfile.open(file) as tar, tarfile.open(link, "w:gz") as out:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        out.addfile(tar.getmember("manifest.json"), manifest)
        member = tarfile.TarInfo("moorings.db")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(member)
    refused(link, "is no file")
    assert tool("restore", controller.data, file)[0] == 0


def rewritten(file: Path, to: Path, changed: dict[str, bytes | None], manifest: dict | None = None) -> Path:
    """The backup with other members; None: without it."""
    import io

    with tarfile.open(file) as tar, tarfile.open(to, "w:gz") as out:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            assert content is not None
            new = changed.get(member.name, content.read())
            if member.name == "manifest.json" and manifest is not None:
                new = json.dumps(manifest).encode()
            if new is not None:
                member.size = len(new)
                out.addfile(member, io.BytesIO(new))
    return to


def newer(file: Path, folder: Path) -> Path:
    """A backup that a later release has made."""
    import hashlib

    with tarfile.open(file) as tar:
        tar.extract("moorings.db", folder / "newer", filter="data")
        content = tar.extractfile("manifest.json")
        assert content is not None
        manifest = json.load(content)
    path = folder / "newer" / "moorings.db"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    content_new = path.read_bytes()
    manifest["files"]["moorings.db"] = {
        "bytes": len(content_new),
        "sha256": hashlib.sha256(content_new).hexdigest(),
    }
    return rewritten(file, folder / "newer.tar.gz", {"moorings.db": content_new}, manifest)
