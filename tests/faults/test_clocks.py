"""A wall clock that jumps, forward and back, under a controller or between two; and a controller that stands still.

What must not be fooled: leases (their owner has the whole of it to renew, and no more than it asked for), time limits
of runs, answers that wait, the queue's order and the events' order.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import broken_laws, left, settle, unsettled
from tests.faults.story import job, until_said
from tests.faults.victims import Forge, Victim, victim
from tests.waiting import within

HOURS = 5 * 3600.0
LEASE_S = 10  # a busy machine takes its turns within it
IDLE = "echo up >> said; until test -e gate; do sleep 0.02; done; exit 7"


class Adrift(Victim):
    """A victim whose wall clock is off by what stands in a file."""

    def start(self, faults: dict[str, Any] | None = None, limits: dict[str, int] | None = None) -> None:
        super().start({"clock": str(self.clock), **(faults or {})}, limits)

    @property
    def clock(self) -> Path:
        """By how many seconds it is off."""
        return self.folder / "clock"

    def set_off(self, seconds: float) -> None:
        """Set the clock."""
        draft = self.clock.with_suffix(".draft")
        draft.write_text(str(seconds))
        draft.rename(self.clock)


@pytest.fixture
def v(forge: Forge, template: Path, tmp_path: Path) -> Iterator[Adrift]:
    with victim(tmp_path / "v", forge, template, make=Adrift) as made:
        assert isinstance(made, Adrift)
        made.set_off(0)
        made.start()
        yield made


def claim(v: Victim, key: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = v.insist(
        "POST", "/v1/claims?wait=20s", {"size": 1, "pool": "quick", "leaseS": LEASE_S, **more}, key=key
    )
    assert made["state"] == "READY", made
    return made


def state(v: Victim, made: dict[str, Any]) -> str:
    found: str = v.insist("GET", f"/v1/claims/{made['id']}")["state"]
    return found


def turns(v: Victim, number: int) -> None:
    """Have the controller take some turns."""
    for _ in range(number):
        extra = v.insist("POST", "/v1/claims?wait=20s", {"size": 1, "pool": "quick"})
        v.insist("DELETE", f"/v1/claims/{extra['id']}?wait=20s")


def wait_until_lapsed(v: Victim, made: dict[str, Any]) -> None:
    """Wait until the claim has gone because nobody renewed it."""
    ended = v.insist("GET", f"/v1/claims/{made['id']}?wait=60s&for=ENDED")
    assert "its lease ran out" in ended["reason"]["message"], ended


@pytest.mark.slow
@pytest.mark.parametrize("hours", [HOURS, -HOURS])
def test_under_a_controller(hours: float, v: Adrift) -> None:
    leased, kept = claim(v, "leased"), claim(v, "kept")
    v.set_off(hours)
    turns(v, 5)
    assert (state(v, leased), state(v, kept)) == ("READY", "READY"), "its owner had no time to renew"
    begun = time.monotonic()
    v.insist("POST", f"/v1/claims/{kept['id']}/renew")
    with within(LEASE_S + 5):  # and not hours more than it asked for
        wait_until_lapsed(v, leased)
    v.insist("POST", f"/v1/claims/{kept['id']}/renew") if state(v, kept) == "READY" else None
    wait_until_lapsed(v, kept)
    assert time.monotonic() - begun > LEASE_S * 0.9
    settle(v, left)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [HOURS, -HOURS])
def test_between_two_controllers(hours: float, v: Adrift) -> None:
    leased, endless = claim(v, "leased"), claim(v, "endless", leaseS=None)
    v.kill()
    v.set_off(hours)
    v.start()
    turns(v, 5)
    assert (state(v, leased), state(v, endless)) == ("READY", "READY")
    with within(LEASE_S + 5):
        wait_until_lapsed(v, leased)
    assert state(v, endless) == "READY"
    v.insist("DELETE", f"/v1/claims/{endless['id']}?wait=20s")
    settle(v, left)


@pytest.mark.slow
def test_a_controller_that_stood_still(v: Adrift) -> None:
    """It is stopped for longer than the lease: who could not reach it loses nothing."""
    leased = claim(v, "leased")
    os.kill(v.pid, signal.SIGSTOP)
    time.sleep(LEASE_S + 1.5)  # what is tested is that this time does not count
    os.kill(v.pid, signal.SIGCONT)
    turns(v, 2)
    assert state(v, leased) == "READY"
    v.insist("POST", f"/v1/claims/{leased['id']}/renew")
    wait_until_lapsed(v, leased)
    settle(v, left)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [HOURS, -HOURS])
def test_runs_and_waits(hours: float, v: Adrift) -> None:
    """Limits are kept by a clock that nobody can set; the queue and the log keep their order."""
    long = v.insist("POST", "/v1/runs", job("long", IDLE, v.folder, timeLimitS=300), key="long")
    until_said(v, v.folder / "said", 1)
    holder = claim(v, "holder", size=16, leaseS=None)
    body = {"size": 16, "pool": "quick"}
    first = v.insist("POST", "/v1/claims", body, key="first")
    v.set_off(hours)
    begun = time.monotonic()
    second = v.insist("POST", "/v1/claims?wait=1s", body, key="second")
    assert time.monotonic() - begun > 0.9, "a second is a second, and not five hours, which nobody here would wait for"
    v.kill()
    v.start()
    third = v.insist("POST", "/v1/claims", body, key="third")
    waiting = [one["id"] for one in v.everything("claims?state=PENDING")]
    assert waiting == [first["id"], second["id"], third["id"]], "whoever came first is first, whatever the clock says"
    assert v.insist("GET", f"/v1/runs/{long['id']}")["state"] == "RUNNING", "its 300 s are not over"
    (v.folder / "gate").touch()
    ended = v.insist("GET", f"/v1/runs/{long['id']}?wait=20s")
    assert (ended["state"], ended["exitCode"]) == ("FAILED", 7)
    short = v.insist("POST", "/v1/runs", job("short", "sleep 60", v.folder, timeLimitS=1), key="short")
    v.set_off(-hours)
    ended = v.insist("GET", f"/v1/runs/{short['id']}?wait=20s")
    assert ended["state"] == "TIMED_OUT", ended
    v.set_off(0)
    for made in (holder, first, second, third):
        v.insist("DELETE", f"/v1/claims/{made['id']}")
    settle(v, left)


@pytest.mark.slow
def test_a_clock_that_jumps_all_the_time(v: Adrift) -> None:
    leased = claim(v, "leased")
    last_renewal = time.monotonic()
    for number in range(40):
        v.set_off(HOURS * (number % 5 - 2))
        turns(v, 1)
        if time.monotonic() - last_renewal > LEASE_S / 3:
            v.insist("POST", f"/v1/claims/{leased['id']}/renew")
            last_renewal = time.monotonic()
    assert state(v, leased) == "READY"
    assert broken_laws(v.data) == []
    v.set_off(0)
    wait_until_lapsed(v, leased)
    settle(v, unsettled)
    settle(v, left)
