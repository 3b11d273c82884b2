"""Telling systemd how we are: the notify protocol and its watchdog (sd_notify(3)), in a datagram each.

The protocol is one datagram of ``KEY=VALUE`` lines to the socket that ``NOTIFY_SOCKET`` names; the library for it would
be a dependency for ten lines. Without that variable nothing is sent, so the same program runs anywhere.

The watchdog is fed only while the scheduling loop goes round: a process that still answers health checks but decides
nothing any more is what a watchdog is for. A database that is away does not stop the loop: a restart would not bring it
back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger("moorings.controller")

CHECKS_PER_TIMEOUT = 4  # how often progress is looked for within the watchdog's time
LOOK_S_MIN = 0.05


class SystemdNotifier:
    """Speaks to whoever started this process, if it listens.

    Args:
        environment: of this process; ``NOTIFY_SOCKET`` names the socket, with ``@`` for an abstract one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment, os.getpid()) if name else 0.0
        """Within which time it must hear from us; 0: it does not wait for it."""

    def send(self, **told: str | int) -> None:
        """Tell something: ``send(READY=1, STATUS="leads")``. A listener that has gone is no error."""
        if not self._address:
            return
        lines = "\n".join(f"{key}={str(value).replace(chr(10), ' ')}" for key, value in told.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)  # a listener that does not read must not hold the loop up
                channel.sendto(lines.encode(), self._address)
        except OSError as error:
            log.warning("notify.failed", extra={"detail": str(error)})

    def reloading(self) -> None:
        """Tell that the configuration is being read anew; ``send(READY=1)`` tells when that is done."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float:
    """The watchdog's time, if it is this process that is watched; 0 if not, or if it cannot be read."""
    wanted = environment.get("WATCHDOG_PID", "")
    micros = environment.get("WATCHDOG_USEC", "")
    if (wanted and wanted != str(pid)) or not micros.isascii() or not micros.isdigit():
        return 0.0
    return int(micros) / 1e6


async def feed_watchdog(notifier: SystemdNotifier, progress: Callable[[], int | None]) -> None:
    """Tell the watchdog that we live whenever there was progress, until cancelled; at once if there is none to feed.

    Args:
        notifier: who is told.
        progress: a number that changes while the work goes on; None: there is no work to watch now.
    """
    if not notifier.watchdog_s:
        return
    seen: int | None = None
    while True:
        now = progress()
        if now is None or now != seen:
            seen = now
            notifier.send(WATCHDOG=1)
        await asyncio.sleep(max(notifier.watchdog_s / CHECKS_PER_TIMEOUT, LOOK_S_MIN))
