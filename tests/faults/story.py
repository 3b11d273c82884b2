"""What clients do to a controller in the kill tests: every use case once, each request repeated until it is answered.

Its order is fixed and its requests carry keys, so it can be told to the end whatever dies under it, and its end is the
same each time: that is what the tests compare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import waiting
from tests.faults.victims import Victim

GATED = "echo up >> started; until test -e gate; do sleep 0.01; done; exit 7"
ENDLESS = "echo up >> endless; while :; do sleep 0.05; done"


def job(name: str, script: str, folder: Path, *, tasks: int = 1, size: int = 1, **more: Any) -> dict[str, Any]:
    """A run's request."""
    environment = {"PATH": "/usr/bin:/bin", **more.pop("environment", {})}
    return {
        "job": {
            "name": name,
            "command": ["sh", "-c", script],
            "workdir": str(folder),
            "environment": environment,
            "tasks": tasks,
            "accelerators": {"size": size, "pool": "slow"},
            **more,
        }
    }


def tell(victim: Victim) -> None:
    """The whole story, from an empty controller to an empty one; asserts what each client is promised."""
    v = victim
    first = v.insist("POST", "/v1/claims?wait=20s", {"size": 8, "pool": "quick"}, key="first")
    large = v.insist("POST", "/v1/claims", {"size": 16, "pool": "quick"}, key="large")
    small = v.insist("POST", "/v1/claims", {"size": 16, "pool": "quick", "leaseS": 600}, key="small")
    assert (large["state"], small["state"]) == ("PENDING", "PENDING")
    gated = v.insist("POST", "/v1/runs", job("gated", GATED, v.folder, tasks=2, size=2), key="gated")
    endless = v.insist("POST", "/v1/runs", job("endless", ENDLESS, v.folder), key="endless")
    v.insist("POST", f"/v1/claims/{small['id']}/renew")
    held = v.insist("GET", f"/v1/claims/{first['id']}?wait=20s")
    assert held["state"] == "READY", held
    v.insist("POST", f"/v1/partitions/{held['partitionId']}/reset")
    waiting = [claim["id"] for claim in v.everything("claims?state=PENDING")]
    assert waiting == [large["id"], small["id"]], "each keeps its place"
    v.insist("DELETE", f"/v1/claims/{first['id']}?wait=20s")
    assert until(v, "claims", large, "READY")["state"] == "READY"
    v.insist("DELETE", f"/v1/claims/{large['id']}")
    until_said(v, v.folder / "endless", 1)
    v.insist("POST", f"/v1/runs/{endless['id']}/cancel")
    until_said(v, v.folder / "started", 2)
    (v.folder / "gate").touch()
    ended = until(v, "runs", gated, "FAILED")
    assert ended["exitCode"] == 7, ended
    assert until(v, "runs", endless, "CANCELLED")["exitCode"] == 143
    assert until(v, "claims", small, "READY")["state"] == "READY"
    v.insist("DELETE", f"/v1/claims/{small['id']}?wait=20s")
    for key, made in (("first", first), ("large", large), ("small", small)):
        body = {"size": made["size"], "pool": "quick", **({"leaseS": 600} if key == "small" else {})}
        assert v.insist("POST", "/v1/claims", body, key=key)["id"] == made["id"], "a key gives its claim for ever"
    assert len((v.folder / "started").read_text().split()) == 2, "each task was started once"
    assert (v.folder / "endless").read_text() == "up\n"


def until(victim: Victim, noun: str, made: dict[str, Any], state: str) -> dict[str, Any]:
    """The claim or run once it is in that state, or has ended in another."""
    while True:
        found: dict[str, Any] = victim.insist("GET", f"/v1/{noun}/{made['id']}?wait=20s")
        if found["state"] == state or found.get("endedAt"):
            assert found["state"] == state, found
            return found


def until_said(victim: Victim, path: Path, n_lines: int) -> None:
    """Wait until jobs have written so many lines to a file; their controller is started again when it has died."""

    def said() -> bool:
        if path.exists() and path.read_bytes().count(b"\n") >= n_lines:
            return True
        victim.mend()
        return False

    waiting.until(said, 60, what=lambda: victim.log()[-3000:])
