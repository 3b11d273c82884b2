"""A site that an earlier release left opens: nothing of it is lost, whatever state it was in."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moorings.app.recovery import protection_reason
from moorings.cli.main import main
from tests.e2e.processes import ControllerProcess, hand
from tests.released.code import environment_of, released_code
from tests.released.site import KEEPS_ALL, NAMES, ReleasedSite
from tests.waiting import patient, until

__all__ = ("released_code",)

pytestmark = pytest.mark.slow

# Of what was under way: where it may be by now. All else is as it was.
CLAIMS = {
    "GRANTED": {"GRANTED", "READY"},
    "RECLAIMING": {"RECLAIMING", "YIELDING", "PENDING"},
    "YIELDING": {"YIELDING", "PENDING"},
    "RELEASING": {"RELEASING", "RELEASED"},
    "PENDING": {"PENDING", "GRANTED", "READY"},
}
OF_DEAD_RUNS = {"READY": {"RELEASING", "RELEASED"}, "RECLAIMING": {"YIELDING", "PENDING", "GRANTED", "READY"}}
RUNS = {
    "RUNNING": {"LOST"},  # nothing of it is left
    "STOPPING": {"LOST", "CANCELLED"},
    "YIELDING": {"WAITING", "STARTING", "RUNNING"},  # or started again, where its devices are
}
GONE = "gone"  # has left the database for an archive
ALWAYS = {"reason", "position", "claimState", "leaseUntil", "lastUsedAt"}
MOVES = {
    "state",
    "partition",
    "partitionId",
    "devices",
    "pool",
    "attempt",
    "readyAt",
    "grantedAt",
    "endedAt",
    "askedUntil",
}
MOVES_OF_RUNS = MOVES | {"exitCode", "taskCodes", "detail", "scheduledAt"}


@pytest.fixture(params=NAMES)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> ReleasedSite:
    return ReleasedSite(request.param, tmp_path / "site")


@pytest.fixture
def site(released: ReleasedSite) -> Iterator[ControllerProcess]:
    """Its controller, which is not started."""
    folder = released.folder
    flags = (*KEEPS_ALL, "--policy", str(folder / "policy.toml"))
    controller = ControllerProcess(folder, (folder / "pools.toml").read_text(), flags=flags)
    yield controller
    if controller.process is not None and controller.process.poll() is None:
        for run in controller.ask("GET", "/v1/runs")[1]["items"]:
            controller.ask("POST", f"/v1/runs/{run['id']}/cancel?wait=20s")
        assert controller.stop() == 0


def items(controller: ControllerProcess, kind: str) -> dict[str, dict[str, Any]]:
    found = controller.ask("GET", f"/v1/{kind}?limit=100{'&all=true' if kind in ('claims', 'runs') else ''}")[1]
    return {item.get("name") or item["id"]: item for item in found["items"]}


def same(now: Mapping[str, Any], then: Mapping[str, Any], *but: str) -> None:
    """What was told then is told now; there may be more."""
    for name, value in then.items():
        if name == "job":  # that release showed the values of its variables
            value = value | {"environment": dict.fromkeys(value["environment"], "")}
        if name not in ALWAYS and name not in but:
            assert now.get(name) == value, (then.get("name") or then.get("id"), name)


def everything_is_there(controller: ControllerProcess, released: ReleasedSite, *but: str) -> None:
    dead = {one["claim"] for one in released.told["runs"] if one["state"] in RUNS}

    def at_rest() -> bool:
        runs = items(controller, "runs")
        return all(runs[name]["state"] in RUNS.get(one["state"], {one["state"]}) for name, one in rested.items())

    rested = {name: run for name, run in released.items("runs").items() if name != GONE}
    until(at_rest, what=lambda: {name: run["state"] for name, run in items(controller, "runs").items()})
    for name, run in items(controller, "runs").items():
        if name == GONE:  # a backup of before has it
            continue
        same(run, rested[name], *but, *(MOVES_OF_RUNS if rested[name]["state"] in RUNS else ()))
    claims = items(controller, "claims")
    for name, then in released.items("claims").items():
        if name == GONE:
            continue
        may = (OF_DEAD_RUNS if then["id"] in dead else CLAIMS).get(then["state"], {then["state"]})
        assert claims[name]["state"] in may, (name, then["state"], claims[name]["state"])
        same(claims[name], then, *but, *(MOVES if then["state"] in CLAIMS or then["id"] in dead else ()))
    for name, project in items(controller, "projects").items():
        same(project, released.items("projects")[name], "devices", "used", "holds", "waiting")
    devices = items(controller, "devices")
    for ident, then in released.items("devices").items():
        same(devices[ident], then, "partition", "claim", "owner")
    assert {one["state"] for one in devices.values()} == {"IN_SERVICE", "DRAINED", "QUARANTINED"}
    keys = items(controller, "keys")
    for name, key in released.items("keys").items():
        same(keys[name], key)


@pytest.mark.smoke
def test_a_site_of_a_release_opens_and_nothing_is_lost(site: ControllerProcess, released: ReleasedSite) -> None:
    site.start()
    everything_is_there(site, released)
    site.kill()
    site.start()
    everything_is_there(site, released)
    log = (site.folder / "controller.log").read_text()
    assert "partition.stray_found" not in log
    assert "store.past_unknown" not in log, "its high-water mark was read"
    assert "engine.run_damaged" not in log
    for name, status in (("admin", 200), ("user", 200), ("agent", 200), ("viewer", 200), ("new", 200)):
        assert site.ask("GET", "/v1/claims", key=secrets(released)[name])[0] == status, name
    assert site.ask("GET", "/v1/claims", key=secrets(released)["revoked"])[0] == 401
    for claim in ("kept", "waits", "released"):  # the same key gives the same claim, for ever
        again = site.ask("POST", "/v1/claims", released.asked(claim), headers={"Idempotency-Key": claim})
        assert again[1].get("id") == released.items("claims")[claim]["id"], again
    assert GONE not in items(site, "runs")
    assert site.ask("POST", "/v1/claims", released.asked(GONE), headers={"Idempotency-Key": GONE})[0] == 410
    assert output(site, "succeeded") == "hello\n"
    assert output(site, "failed") == "oh no\n"
    assert "begun" in output(site, "running")
    assert site.ask("GET", "/v1/claims/kept/binding")[0] == 200
    assert site.ask("DELETE", "/v1/claims/kept?wait=30s")[1]["state"] == "RELEASED"
    more = site.ask("POST", "/v1/claims?wait=30s", {"size": 2, "pool": "pod16"})[1]
    assert more["state"] == "READY"


def secrets(released: ReleasedSite) -> dict[str, str]:
    found: dict[str, str] = json.loads((released.folder / "keys.json").read_text())
    return found


def output(controller: ControllerProcess, job: str) -> str:
    ident = items(controller, "runs")[job]["id"]
    connection = http.client.HTTPConnection("127.0.0.1", controller.port, timeout=patient(30))
    connection.request("GET", f"/v1/runs/{ident}/logs", None, {"Authorization": f"Bearer {controller.key}"})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_a_backup_of_a_release_is_restored(site: ControllerProcess, released: ReleasedSite) -> None:
    hand(site, "restore", "--file", str(site.folder / "backup.tar.gz"))
    site.start()
    everything_is_there(site, released, "attempt")  # names of partitions are unlike those made since


def test_a_folder_restored_by_a_release_is_finished_by_today(site: ControllerProcess, released: ReleasedSite) -> None:
    note = site.data / "restored.json"
    shutil.copy(released.folder / "restored" / note.name, note)
    site.start()
    assert "backup.tar.gz was restored" in (protection_reason(site.data) or "")
    hand(site, "finish")
    until(lambda: not note.exists())


def test_a_restore_that_a_release_began_is_ended_by_today(
    site: ControllerProcess, released: ReleasedSite, released_code: Path
) -> None:
    dies = "orders.put_back = lambda *_, **__: os._exit(9)"
    argv = ["restore", "--data", str(site.data), "--file", str(site.folder / "backup.tar.gz")]
    script = f"import os; from moorings.app import backup, backup_orders as orders; {dies}; backup.main({argv!r})"
    done = subprocess.run([sys.executable, "-c", script], env=environment_of(released_code), check=False)
    assert done.returncode == 9
    assert not (site.data / "moorings.db").exists()
    assert (site.data / "restoring.json").exists()
    hand(site, "restore", "--file", str(site.folder / "backup.tar.gz"))
    assert not (site.data / "restoring.json").exists()
    site.start()
    everything_is_there(site, released, "attempt")


def test_logs_of_a_release_are_decided_as_they_were(
    site: ControllerProcess, released: ReleasedSite, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law 9, from one release to the next, and where one has gone on after the other."""
    assert main(["replay", str(released.folder / "backup.tar.gz")]) == 0, capsys.readouterr()
    site.start()
    everything_is_there(site, released)
    hand(site, "save", "--file", str(site.folder / "later.tar.gz"))
    archive = str(site.data / "archive")
    assert main(["replay", str(site.folder / "later.tar.gz"), "--archive", archive]) == 0, capsys.readouterr()


def test_moor_reads_what_a_release_wrote_for_its_user(site: ControllerProcess, released: ReleasedSite) -> None:
    site.port = int(site.credentials.read_text().partition("127.0.0.1:")[2].partition('"')[0])
    site.start()  # where it was
    home = released.folder / "home"
    given = {**os.environ, "HOME": str(home), "MOORINGS_CREDENTIALS": str(site.credentials)}

    def moor(*words: str) -> str:
        argv = [sys.executable, "-m", "moorings.cli.main", *words]
        done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False, timeout=patient(60))
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    assert "default" in moor("config", "view")
    assert "kept" in moor("get", "claims")
    assert "ann" in moor("pki", "show")
    assert "csctl" in moor("wafer", "install-csctl", str(home / "bin")), "it knows its own file again"
    given["MOORINGS_ACCESS_KEY"] = json.loads((home / "ann.json").read_text())["secret"]
    assert "pod" in moor("get", "pools")
    assert moor("get", "claims") == "", "a key of that release sees what its subject sees now, and this is another's"
