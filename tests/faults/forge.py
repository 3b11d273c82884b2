"""Forks controllers off one process that has imported everything: a start takes a twentieth of the processor's time.

Hundreds of starts fit into a test then. What is forked is the controller's own ``main``, a process of its own in a
session of its own, killed with SIGKILL like any other; only the imports are shared. The tests in ``tests/e2e`` start
it as people do, with ``python -m``.

Run as ``python forge.py``: one JSON order a line in, one JSON answer a line out.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

INSIDE = Path(__file__).parent / "inside"
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def main() -> None:
    """Serve until standard input ends."""
    import moorings.app.controller  # noqa: F401 - what the children share

    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            answer = {"pid": _start(order)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        code = _controller(order)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    os._exit(code)


def _controller(order: dict[str, Any]) -> int:
    import moorings.app.controller as controller

    os.setsid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # the forge dies with the tests
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    os.closerange(3, 256)
    for name, value in order.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if not order["reserve"]:
        # It is 6,000 pages more to be killed at, whenever the database gets round to it.
        importlib.import_module("moorings.store.sqlite").SqliteDatabase.keep_reserve = lambda _: None
    if order.get("faults") is not None:
        _trouble(order["faults"])
    return controller.main(order["arguments"])


def _trouble(faults: dict[str, Any]) -> None:
    sys.path.insert(0, str(INSIDE))
    kill_points: Any = importlib.import_module("kill_points")
    counter = kill_points.obey(faults)
    kill_points.watch_sqlite(counter, faults.get("broken"))
    kill_points.watch_server(counter)


if __name__ == "__main__":
    main()
