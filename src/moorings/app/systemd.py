"""Reports the process's state to systemd: the notify protocol and its watchdog (sd_notify(3)), one datagram each.

The protocol is one datagram of ``KEY=VALUE`` lines to the socket in ``NOTIFY_SOCKET``; its library would be a
dependency for ten lines. Without that variable nothing is sent, so the same program runs anywhere.

The watchdog is fed only while the scheduling loop makes progress: it must catch a process that answers health checks
but decides nothing. A database that is away does not stop the loop: a restart would not bring it back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger("moorings.controller")

CHECKS_PER_TIMEOUT = 4  # how often progress is checked within the watchdog's time
LOOK_S_MIN = 0.05


class SystemdNotifier:
    """Reports to this process's supervisor, if it listens.

    Args:
        environment: of this process; ``NOTIFY_SOCKET`` names the socket, with ``@`` for an abstract one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment, os.getpid()) if name else 0.0
        """The watchdog's limit in seconds; 0: there is no watchdog."""

    def send(self, **state: str | int) -> None:
        """Send a notification: ``send(READY=1, STATUS="leads")``. A listener that has gone is no error."""
        if not self._address:
            return
        lines = "\n".join(f"{key}={str(value).replace(chr(10), ' ')}" for key, value in state.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)  # a listener that does not read must not block the loop
                channel.sendto(lines.encode(), self._address)
        except OSError as error:
            log.warning("notify.failed", extra={"detail": str(error)})

    def reloading(self) -> None:
        """Report the start of a reload; ``send(READY=1)`` reports its end."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float:
    """The watchdog's time, if it watches this process; 0 if not, or if it cannot be read."""
    wanted = environment.get("WATCHDOG_PID", "")
    micros = environment.get("WATCHDOG_USEC", "")
    if (wanted and wanted != str(pid)) or not micros.isascii() or not micros.isdigit():
        return 0.0
    return int(micros) / 1e6


async def feed_watchdog(notifier: SystemdNotifier, progress: Callable[[], int | None]) -> None:
    """Feed the watchdog after each progress, until cancelled; return at once without a watchdog.

    Args:
        notifier: the channel to systemd.
        progress: a number that changes while the work continues; None: there is no work to watch now.
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
