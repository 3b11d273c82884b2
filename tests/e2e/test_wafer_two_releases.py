"""An appliance's clients and its controller are of two releases while they are upgraded: jobs run as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.appliance import Site
from tests.released.code import released_code
from tests.waiting import until

pytest.importorskip("jax", reason="the extra `wafer` is not installed")

__all__ = ["released_code"]  # a fixture


@pytest.mark.slow
@pytest.mark.parametrize("old", ["client", "controller"])
def test_a_program_is_compiled_with_client_and_controller_of_two_releases(
    tmp_path: Path, released_code: Path, old: str
) -> None:
    site = Site(tmp_path, released_code if old == "controller" else None)
    try:
        program = site.program(tmp_path / "program")
        program.code = released_code if old == "client" else None
        code, text = program.run("--mode train --compile_only --job_labels team=nlp --num_csx 2")
        assert code == 0, text
        (entry,) = program.meta()["compile_jobs"]
        assert entry["state"] == "SUCCEEDED"
        run = site.job(entry["id"])
        assert run["labels"] == {"team": "nlp"}
        order = json.loads((site.controller.data / "runs" / run["id"] / "order.json").read_text())
        assert ("released" in str(order["job"]["environment"].get("PYTHONPATH"))) == (old == "client")
        assert [job["state"] for job in site.jobs()] == ["SUCCEEDED"]
        until(lambda: site.claims() == [])
    finally:
        assert site.controller.stop() == 0
