"""Runs parts of a doctor in threads: one that hangs (a disk, a name server) costs its own findings."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from moorings.doctor.findings import FAIL, Finding

FindingQueue = queue.SimpleQueue[tuple[str, Finding | None]]


def run_concurrently(
    parts: Mapping[str, Callable[[], Iterable[Finding]]], limit_s: float, late: Callable[[str], Finding]
) -> Iterator[tuple[str, Finding]]:
    """The findings as they are known, each with its part; ``late`` gives the one of a part without an end in time."""
    done: FindingQueue = queue.SimpleQueue()
    for name, part in parts.items():
        # Daemons: one that hangs in a read of a dead disk must not keep the process alive.
        threading.Thread(target=_collect, args=(name, part, done), daemon=True).start()
    open_, until = set(parts), time.monotonic() + limit_s
    while open_:
        try:
            name, finding = done.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            break
        if finding is None:
            open_.discard(name)
        else:
            yield name, finding
    for name in sorted(open_):
        yield name, late(name)


def _collect(name: str, part: Callable[[], Iterable[Finding]], done: FindingQueue) -> None:
    try:
        for finding in part():
            done.put((name, finding))
    except Exception as error:  # a fault in one part must not stop the others
        done.put((name, Finding(name, FAIL, f"internal error in moor: {error!r}", "please report it")))
    finally:
        done.put((name, None))
