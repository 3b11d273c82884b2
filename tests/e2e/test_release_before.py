"""A data folder and a backup of the release before open, and nothing of them is lost.

``release_before.tar.gz`` was written by a controller of the release before the high-water mark (tables of revision
0005), which was killed: a claim that holds a partition, one that waits, one that has ended, a run with its output, a
project, two access keys, and a backup of all that.
"""

from __future__ import annotations

import http.client
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.cli.main import main
from tests.e2e.processes import ControllerProcess, hand
from tests.released.site import KEEPS_ALL
from tests.waiting import patient, until

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).with_name("release_before.tar.gz")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ControllerProcess]:
    """The folder as it was left; its controller is not started."""
    folder = tmp_path / "site"
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    controller = ControllerProcess(folder, (folder / "pools.toml").read_text(), flags=KEEPS_ALL)
    yield controller
    if controller.process is not None and controller.process.poll() is None:
        assert controller.stop() == 0


def everything_is_there(controller: ControllerProcess) -> None:
    held = controller.ask("GET", "/v1/claims/kept")[1]
    assert held["state"] == "READY"
    assert controller.ask("GET", "/v1/claims/kept/binding")[0] == 200
    waits = controller.ask("GET", "/v1/claims/waits")[1]
    assert (waits["state"], waits["priority"]) == ("PENDING", 7)
    assert controller.ask("GET", "/v1/claims/gone")[1]["state"] == "RELEASED"
    run = controller.ask("GET", "/v1/runs/done")[1]
    assert run["state"] == "SUCCEEDED"
    assert controller.ask("GET", "/v1/projects/vision")[1]["shares"] == [{"pool": "pod16", "blocks": {"4": 1}}]
    secret = json.loads((controller.folder / "ann.key").read_text())["secret"]
    assert controller.ask("GET", "/v1/claims", key=secret)[0] == 200
    asked = {"name": "kept", "size": 4}, {"name": "waits", "size": 16, "priority": 7}
    for body in asked:
        again = controller.ask("POST", "/v1/claims", body, headers={"Idempotency-Key": str(body["name"])})
        assert again[1]["id"] == controller.ask("GET", f"/v1/claims/{body['name']}")[1]["id"], again
    connection = http.client.HTTPConnection("127.0.0.1", controller.port, timeout=patient(30))
    connection.request("GET", f"/v1/runs/{run['id']}/logs", None, {"Authorization": f"Bearer {controller.key}"})
    assert b"hello" in connection.getresponse().read()
    connection.close()


def test_a_folder_of_the_release_before(site: ControllerProcess) -> None:
    for _ in range(2):
        site.start()
        status, more = site.ask("POST", "/v1/claims?wait=30s", {"size": 4, "priority": 9})
        assert (status, more["state"]) == (201, "READY"), "it has looked at its hardware"
        assert site.holders() == {"kept": True, more["name"]: True}
        everything_is_there(site)
        assert site.ask("DELETE", f"/v1/claims/{more['id']}?wait=30s")[1]["state"] == "RELEASED"
        site.kill()
    assert "partition.stray_found" not in (site.folder / "controller.log").read_text()
    site.start()
    assert site.ask("DELETE", "/v1/claims/kept?wait=30s")[1]["state"] == "RELEASED"
    assert site.ask("DELETE", "/v1/projects/vision")[0] == 204, "what it is guaranteed cannot be lent to a whole pool"
    until(lambda: site.ask("GET", "/v1/claims/waits")[1]["state"] == "READY")
    assert site.holders() == {"waits": True}


def test_a_backup_of_the_release_before(site: ControllerProcess) -> None:
    hand(site, "restore", "--file", str(site.folder / "backup.tar.gz"))
    site.start()
    everything_is_there(site)
    assert site.holders() == {"kept": True}


def test_a_log_of_the_release_before_is_decided_as_it_was(
    site: ControllerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law 9, from one release to the next."""
    assert main(["replay", str(site.folder / "backup.tar.gz")]) == 0, capsys.readouterr()
