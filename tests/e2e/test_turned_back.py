"""A database that goes back under its controllers, by real streaming replication: no job loses its partition."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.processes import LEADS, POOLS, Twin, start_leading
from tests.postgresql import ROLE, PostgresqlServer, find_programs
from tests.waiting import patient, until

pytestmark = pytest.mark.slow


@pytest.fixture
def primary() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(find_programs())
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgresqlServer) -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(find_programs(), primary)
    yield server
    server.remove()


def url_of(database: str, *servers: PostgresqlServer) -> str:
    """One URL with both servers; whichever can be written is used."""
    hosts = ",".join(quote(str(server.folder), safe="") for server in servers)
    ports = ",".join(str(server.port) for server in servers)
    return f"postgresql://{ROLE}@/{database}?host={hosts}&port={ports}&target_session_attrs=read-write"


@pytest.fixture
def twin(tmp_path: Path, primary: PostgresqlServer, standby: PostgresqlServer) -> Iterator[Twin]:
    """A controller that leads from the primary."""
    url = url_of(primary.make_database(), primary, standby)
    twin = Twin(tmp_path, f"{POOLS}reset_s = 3.0\n", database=url, shared=tmp_path / "shared")
    start_leading(twin)
    yield twin
    if twin.process is not None and twin.process.poll() is None:
        assert twin.stop() == 0


def claim(twin: Twin, name: str, size: int = 4) -> dict[str, str]:
    status, made = twin.ask("POST", "/v1/claims?wait=20s", {"name": name, "size": size})
    assert (status, made["state"]) == (201, "READY"), made
    return dict(made)


def in_hardware(twin: Twin) -> set[str]:
    """Names of the partitions whose devices are not free."""
    return {item["partition"] for item in twin.ask("GET", "/v1/devices")[1]["items"] if "partition" in item}


def claims(twin: Twin) -> dict[str, str]:
    return {item["name"]: item["state"] for item in twin.ask("GET", "/v1/claims")[1]["items"]}


def caught_up(primary: PostgresqlServer, standby: PostgresqlServer) -> None:
    at = str(primary.execute("SELECT pg_current_wal_lsn()")[0][0])
    until(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{at}'") == [(True,)])


@pytest.mark.parametrize("controller", ["goes on", "is killed, too"])
def test_a_standby_that_lagged_is_promoted(
    twin: Twin, primary: PostgresqlServer, standby: PostgresqlServer, controller: str
) -> None:
    """Laws 2, 3: a claim that the new primary never heard of has a partition, and a job on it, for all we know."""
    claim(twin, "before")
    caught_up(primary, standby)
    standby.cut_off()
    claim(twin, "since")
    if controller != "goes on":
        twin.kill()
    led = twin.log().count(LEADS)
    primary.crash()
    standby.promote()
    if controller != "goes on":
        twin.start()
    until(lambda: twin.log().count(LEADS) > led)
    assert "msg=store.turned_back" in twin.log()
    until(lambda: "msg=partition.stray_spared" in twin.log())
    assert in_hardware(twin) == {"before", "since"}
    assert claims(twin) == {"before": "READY"}
    claim(twin, "after", 8)
    assert twin.ask("POST", "/v1/claims?wait=0s", {"name": "no-room", "size": 4})[1]["state"] == "PENDING"
    assert in_hardware(twin) == {"before", "since", "after"}, "and its devices are given to nobody"

    told = subprocess.run(
        [sys.executable, "-m", "moorings.app.backup", "finish", "--data", str(twin.data), "--shared", str(twin.shared)],
        env=twin.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
    assert "are removed from now on" in told.stdout, told.stderr
    until(lambda: "since" not in in_hardware(twin))
    until(lambda: claims(twin) == {"before": "READY", "after": "READY", "no-room": "READY"})


def test_a_reset_that_was_done_since_is_not_done_again(
    twin: Twin, primary: PostgresqlServer, standby: PostgresqlServer
) -> None:
    """Law 3: in the promoted database the partition is still being reset, and by now a job computes on it."""
    made = claim(twin, "held")
    partition = twin.ask("GET", f"/v1/claims/{made['id']}")[1]["partition"]
    assert twin.ask("POST", f"/v1/partitions/{partition}/reset")[1]["state"] == "RESETTING"
    caught_up(primary, standby)
    standby.cut_off()
    until(lambda: twin.ask("GET", f"/v1/partitions/{partition}")[1]["state"] == "ACTIVE")
    led = twin.log().count(LEADS)
    primary.crash()
    standby.promote()
    until(lambda: twin.log().count(LEADS) > led)
    assert "msg=store.turned_back" in twin.log()
    assert twin.ask("GET", f"/v1/partitions/{partition}")[1]["state"] == "ACTIVE"


def test_a_synchronous_standby_loses_nothing(twin: Twin, primary: PostgresqlServer, standby: PostgresqlServer) -> None:
    assert verdict(twin) == "WARN", "a standby follows, and nothing waits for it"
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
    until(lambda: verdict(twin) == "PASS")
    claim(twin, "before")
    claim(twin, "since")
    led = twin.log().count(LEADS)
    primary.crash()
    standby.promote()
    until(lambda: twin.log().count(LEADS) > led)
    assert claims(twin) == {"before": "READY", "since": "READY"}
    assert "turned_back" not in twin.log()
    assert not (twin.shared / "restored.json").exists()


def verdict(twin: Twin) -> str:
    with contextlib.suppress(StopIteration):
        findings = twin.ask("GET", "/v1/doctor")[1]["items"]
        return str(next(item["verdict"] for item in findings if item["id"] == "replication"))
    return ""
