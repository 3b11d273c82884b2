"""Reads what the container beside a task prints of its checkpoints: one record a line, of which the last one counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.node_program import RECORD_BYTES_MAX, parse_record
from moorings.kubernetes.kube.api import KubeError

log = logging.getLogger("moorings.kubernetes.engine")

AGAIN_S, AGAIN_S_MAX = 0.5, 60.0


async def read_records(
    open_output: Callable[[], AsyncIterator[bytes]],
    save: Callable[[CheckpointRecord], Awaitable[None]],
    over: Callable[[], bool],
    replaced: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]],
) -> None:
    """Save each record until the container has ended.

    Args:
        open_output: opens the output at its last line.
        save: saves a record.
        over: whether the task has ended, so that the output ends soon.
        replaced: whether another Pod has the name of this one by now.
        pause: waits so many seconds.
    """
    pause_s = AGAIN_S
    while not replaced():
        final = over()
        try:
            rest = b""
            async for chunk in open_output():
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[: RECORD_BYTES_MAX + 1]  # a longer line is none of ours
                last = next((line for line in reversed(lines) if line.startswith(b"{")), b"")
                if last and (record := await asyncio.to_thread(parse_record, last)) is not None:
                    pause_s = AGAIN_S
                    await save(record)
                    await pause(AGAIN_S)  # the job could print as fast as it likes
        except KubeError as error:
            if error.status == 404 or (final and error.status == 400):
                return  # the Pod, or the container, is gone
            log.debug("checkpoints.interrupted", extra={"detail": error.detail})
        else:
            if final:
                return
        await pause(pause_s)
        pause_s = min(pause_s * 2, AGAIN_S_MAX)
