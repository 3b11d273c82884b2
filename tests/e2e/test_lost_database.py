"""The database's file is removed, or replaced, under a live controller: it stops, and begins again for nobody."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
import sys

import pytest

from tests.e2e.processes import ControllerProcess
from tests.waiting import patient, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("busy", [False, True])
def test_it_stops_and_nothing_is_answered_that_is_lost(controller: ControllerProcess, how: str, *, busy: bool) -> None:
    database, process = controller.data / "moorings.db", controller.process
    assert process is not None
    assert controller.ask("POST", "/v1/claims?wait=20s", {"name": "kept", "size": 4})[1]["state"] == "READY"
    database.rename(controller.folder / "away.db")
    if how == "replaced":
        shutil.copy(controller.folder / "away.db", database)
    if busy:
        with contextlib.suppress(OSError, http.client.HTTPException):  # it may have ended by now
            assert controller.ask("POST", "/v1/claims", {"size": 1})[0] == 503
    assert process.wait(patient(20)) != 0
    assert "was removed or replaced while it was in use" in (controller.folder / "controller.log").read_text()
    (controller.folder / "away.db").rename(database)
    controller.start()
    assert [item["name"] for item in controller.ask("GET", "/v1/claims")[1]["items"]] == ["kept"]


def test_a_start_without_it_is_refused_until_an_admin_says_so(controller: ControllerProcess) -> None:
    assert controller.ask("POST", "/v1/claims?wait=20s", {"name": "old", "size": 4})[1]["state"] == "READY"
    assert controller.stop() == 0
    controller.start()  # the fence around its runs counts starts
    assert controller.stop() == 0
    (controller.data / "moorings.db").unlink()
    refused = subprocess.run(controller.command(), capture_output=True, text=True, check=False, timeout=patient(60))
    assert ("store.missing" in refused.stderr, "restore --new" in refused.stderr) == (True, True), refused.stderr
    assert not (controller.data / "moorings.db").exists()
    word = [sys.executable, "-m", "moorings.app.backup", "new", "--data", str(controller.data)]
    said = subprocess.run(word, capture_output=True, text=True, check=False, timeout=patient(60))
    assert "partitions of the installation before are strangers'" in said.stdout, said.stderr
    controller.credentials.unlink()
    controller.start()
    until(lambda: controller.ask("GET", "/v1/pools")[1]["items"][0]["free"] == 12)
    made = controller.ask("POST", "/v1/claims", {"name": "whole", "size": 16})[1]
    until(lambda: "no claim holds: old" in str(controller.ask("GET", f"/v1/claims/{made['id']}/explain")[1]))
    assert controller.ask("GET", "/v1/pools")[1]["items"][0]["free"] == 12, "a stranger's is never removed"
    assert controller.ask("DELETE", f"/v1/claims/{made['id']}")[0] == 200
    job = {"name": "j", "command": ["true"], "workdir": "/", "tasks": 1, "accelerators": {"kind": "ipu", "size": 1}}
    made = controller.ask("POST", "/v1/runs", {"job": job})[1]
    until(lambda: controller.ask("GET", f"/v1/runs/{made['id']}")[1]["state"] == "SUCCEEDED")
