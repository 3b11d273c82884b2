"""Copies Pods' output to the controller's disk as it is written: deleting a Pod loses its output.

Each byte has the same offset in the file as in the output, so two copiers of one Pod write the same bytes to the same
offsets; a copier that starts again compares with the present content. A node keeps only the newest part of a long
output (10 MiB, by kubelet's default): if a copier finds another beginning, the file says so and continues there.
Rejected: resuming at kubelet's timestamps. Older kubelets put them into the middle of long lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from moorings.kubernetes.kube.api import KubeError

log = logging.getLogger("moorings.kubernetes.engine")

OUTPUT_BYTES_MAX = 1 << 30
AGAIN_S, AGAIN_S_MAX = 0.2, 5.0
SOON_S = 3.0  # kubelet reports the end of a task so much later than its output ends
GAP = b"\n[moorings: some of the output is missing here]\n"
FULL = b"\n[moorings: what follows is not kept: the output is longer than 1 GiB]\n"


class LogCopyFile:
    """A file for one output, which is always fed from its beginning.

    Args:
        path: the file.
        shift: offset in the file minus offset in the output; as the last copy had it at its end, if there was one.
    """

    def __init__(self, path: Path, shift: int) -> None:
        self.shift = shift
        self._path = path
        self._place = 0  # offset in the output
        self._known = path.stat().st_size if path.exists() else 0  # bytes to compare with

    def write(self, chunk: bytes) -> None:
        """Take the next chunk.

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
    start: int,
    over: Callable[[], bool],
    replaced: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]],
) -> None:
    """Copy an output until its end.

    Args:
        open_output: opens the output at its beginning.
        path: the file.
        start: where it begins in the file.
        over: whether the output is complete.
        replaced: whether another Pod has the name of this one by now.
        pause: waits so many seconds.
    """
    pause_s, shift = AGAIN_S, start
    while not replaced():
        final = over()  # checked before reading: a complete output is read to its end
        copy = await asyncio.to_thread(LogCopyFile, path, shift)
        try:
            async for chunk in open_output():
                await asyncio.to_thread(copy.write, chunk)
                pause_s = AGAIN_S
        except KubeError as error:
            if error.status == 404 or (final and error.status == 400):
                return  # the Pod, or its container, is gone
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
    """Whether the output becomes complete within a few seconds."""
    for _ in range(round(SOON_S / AGAIN_S)):
        if over():
            return True
        await pause(AGAIN_S)
    return over()
