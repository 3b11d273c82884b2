"""A client of the port ``Mirror``, as a program in a job: ``python -m surrogates NAME:SECONDS:ok ...``.

One step after the other (``+`` before a name: together with the one before it), and a line of JSON for each thing that
happens. Work whose step is cancelled ends at once, as failed, and the client with it; on SIGTERM, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from moorings.ports.mirror import Mirror, MirroredWork, NoMirror
from moorings.slurm.surrogate.mirror import find_mirror

_saying = threading.Lock()


def say(what: str, **more: object) -> None:
    """Print what has happened."""
    with _saying:
        print(json.dumps({"what": what, "at": time.time(), **more}), flush=True)


def main() -> None:
    """Show the work that the arguments name; ``limit:LEAD`` waits for the job's time limit instead."""
    mirror = find_mirror(os.environ, lambda text: say("warning", text=text))
    say("mirror", none=isinstance(mirror, NoMirror), pid=os.getpid())
    cancelled = threading.Event()

    def on_cancel(why: str) -> None:
        say("cancel", why=why)
        cancelled.set()

    signal.signal(signal.SIGTERM, lambda *_: cancelled.set())
    if sys.argv[1].startswith("limit:"):
        watch = mirror.watch_limit(on_cancel, float(sys.argv[1][6:]))
        cancelled.wait(60)
        watch.stop()
        return
    running: list[tuple[MirroredWork, float, bool, str]] = []
    for word in [*sys.argv[1:], ""]:
        if running and not word.startswith("+"):
            _finish(running, cancelled)
        if word and not cancelled.is_set():
            running.append(_begin(mirror, word, on_cancel))


def _begin(mirror: Mirror, word: str, on_cancel) -> tuple[MirroredWork, float, bool, str]:
    name, seconds, how = word.removeprefix("+").split(":")
    before = time.monotonic()
    shown = mirror.begin(name, on_cancel)
    say("begin", name=name, took=time.monotonic() - before)
    return shown, time.monotonic() + float(seconds), how == "ok", name


def _finish(running: list[tuple[MirroredWork, float, bool, str]], cancelled: threading.Event) -> None:
    while running:
        shown, until, ok, name = running.pop(0)
        cancelled.wait(max(0.0, until - time.monotonic()))
        before = time.monotonic()
        shown.end(ok and not cancelled.is_set())
        say("end", name=name, took=time.monotonic() - before)


if __name__ == "__main__":
    main()
