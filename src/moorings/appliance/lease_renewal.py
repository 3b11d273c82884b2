"""Heartbeats to the controller: a thread renews leases over a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from moorings.client.client import Client
from moorings.core.model.errors import MooringsError

BEATS_A_LEASE: Final = 6
AGAIN_S: Final = 2.0  # while the controller is away
_GONE: Final = frozenset({"claim.unknown", "claim.ended", "claim.no_lease"})


class LeaseRenewer:
    """Renews the leases of claims, until they are dropped or ``stop`` is called.

    Args:
        connect: makes a client, for this thread alone.
        lease_s: of every claim; renewals come six times as often.
        warn: called with a lease that may be lost; in the thread.
    """

    def __init__(self, connect: Callable[[], Client], lease_s: float, warn: Callable[[str], None]) -> None:
        self._connect = connect
        self._lease_s = lease_s
        self._warn = warn
        self._lock = threading.Lock()
        self._claims: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def add(self, claim: str, name: str) -> None:
        """Renew the lease of a claim from now on; the claim is of that job."""
        with self._lock:
            self._claims[claim] = name

    def remove(self, claim: str) -> None:
        """Stop renewing the lease of a claim."""
        with self._lock:
            self._claims.pop(claim, None)

    def stop(self) -> None:
        """Stop renewing all leases."""
        self._stopped.set()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        beat_s = self._lease_s / BEATS_A_LEASE
        heard, warned, pause_s = time.monotonic(), False, beat_s
        with self._connect() as client:
            while not self._stopped.wait(pause_s):
                with self._lock:
                    claims = dict(self._claims)
                problem = next((error for claim in claims if (error := self._renew(client, claim)) is not None), None)
                if problem is None:
                    heard, warned, pause_s = time.monotonic(), False, beat_s
                    continue
                pause_s = min(AGAIN_S, beat_s)
                silent_s = time.monotonic() - heard
                if silent_s > self._lease_s and not warned:
                    warned = True
                    self._warn(
                        f"{', '.join(claims.values())}: the lease could not be renewed for {silent_s:.0f} s, and the "
                        f"controller ends the job unless it was away itself: {problem.detail}"
                    )

    def _renew(self, client: Client, claim: str) -> MooringsError | None:
        """Renew one; return the error, if any."""
        try:
            client.renew_claim(claim)
        except MooringsError as error:
            if error.code in _GONE:  # its job has ended: the follower reports that
                self.remove(claim)
                return None
            return error
        return None
