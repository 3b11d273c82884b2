"""Pods' output, copied to the controller's disk while it is written: a Pod that is deleted takes its output along.

What is written stands where it stands in the output, so that two who copy the same Pod write the same bytes in the same
places; and who begins anew compares what is there. A node keeps the newest part of a long output only (10 MiB, by
kubelet's default): where one that begins anew finds another beginning, the file says so and goes on with what there is.
Kubelet's timestamps as a place to go on from were refused: older kubelets put them into the middle of long lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from moorings.kubernetes.kube import KubeError

log = logging.getLogger("moorings.kubernetes.engine")

OUTPUT_BYTES_MAX = 1 << 30
AGAIN_S, AGAIN_S_MAX = 0.2, 5.0
SOON_S = 3.0  # kubelet tells of an end that much later than the output ends
GAP = b"\n[moorings: some of the output is missing here]\n"
FULL = b"\n[moorings: what follows is not kept: the output is longer than 1 GiB]\n"


class LogCopyFile:
    """A file that gets an output, from the output's beginning each time.

    Args:
        path: the file.
        shift: of places in the file against those in the output, as the copy before had it in the end.
    """

    def __init__(self, path: Path, shift: int) -> None:
        self.shift = shift
        self._path = path
        self._place = 0  # in the output
        self._known = path.stat().st_size if path.exists() else 0  # what stands there is compared

    def take(self, chunk: bytes) -> None:
        """The next piece.

        Raises:
            OSError: it cannot be written.
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            at = self._place + self.shift
            if at < self._known:
                there = os.pread(file, len(chunk), at)
                if there != chunk[: len(there)]:
                    size = os.fstat(file).st_size
                    os.pwrite(file, GAP, size)
                    at, self._known = size + len(GAP), 0
                    self.shift = at - self._place
            self._place += len(chunk)
            if at < OUTPUT_BYTES_MAX:
                full = at + len(chunk) >= OUTPUT_BYTES_MAX
                os.pwrite(file, chunk + FULL if full else chunk, at)
        finally:
            os.close(file)


async def copy_output(
    open_output: Callable[[], AsyncIterator[bytes]],
    path: Path,
    over: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]],
) -> None:
    """Copy an output until it has ended.

    Args:
        open_output: the output from its beginning, until its end.
        path: where it goes.
        over: whether nothing will be added.
        pause: waits so many seconds.
    """
    pause_s, shift = AGAIN_S, 0
    while True:
        final = over()  # asked first: what ended before we read is read to its end
        copy = await asyncio.to_thread(LogCopyFile, path, shift)
        try:
            async for chunk in open_output():
                await asyncio.to_thread(copy.take, chunk)
                pause_s = AGAIN_S
        except KubeError as error:
            if error.status == 404 or (final and error.status == 400):
                return  # the Pod, or its container, has gone
            log.debug("output.interrupted", extra={"file": str(path), "detail": error.detail})
        except OSError as error:
            log.warning("output.unwritten", extra={"file": str(path), "detail": str(error)})
        else:
            # An output that ends while its task runs was cut off: its kubelet was restarted.
            if final or await _ends_soon(over, pause):
                return
        shift = copy.shift
        await pause(pause_s)
        pause_s = min(pause_s * 2, AGAIN_S_MAX)


async def _ends_soon(over: Callable[[], bool], pause: Callable[[float], Awaitable[None]]) -> bool:
    """Whether that is told within a few seconds."""
    for _ in range(round(SOON_S / AGAIN_S)):
        if over():
            return True
        await pause(AGAIN_S)
    return over()
