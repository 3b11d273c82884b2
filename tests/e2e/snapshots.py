"""Runs a training's script, and copies its checkpoint folder before everything that the training does there in Python.

``python snapshots.py COPIES SCRIPT ...``: each copy is what a kill at that moment would leave.
"""

import contextlib
import os
import runpy
import shutil
import sys
import threading
from pathlib import Path

copies, folder = Path(sys.argv[1]), os.environ["MOORINGS_CHECKPOINT_DIR"]
changes = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
one_at_a_time = threading.RLock()
copying = threading.local()


def on_event(event, arguments):
    if event not in changes or getattr(copying, "on", False):
        return
    if event == "open" and (not isinstance(arguments[1], str) or arguments[1].startswith("r")):
        return
    if any(isinstance(each, (str, os.PathLike)) and os.fspath(each).startswith(folder) for each in arguments):
        copy()


def copy():
    with one_at_a_time:
        copying.on = True
        with contextlib.suppress(shutil.Error, OSError):  # another thread's file has gone meanwhile
            shutil.copytree(folder, copies / f"{len(list(copies.iterdir())):05}")
        copying.on = False


sys.addaudithook(on_event)
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
copy()
