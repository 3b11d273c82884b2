"""What is dear to make is made once, and not once by each worker of pytest-xdist.

As its documents recommend: a folder that the workers share, and a lock on a file. Without workers it is made there all
the same, and used by one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` filled: by the worker that came first, while the others wait.

    Args:
        tmp_path_factory: pytest's fixture.
        name: of the folder; the same in each worker.
        make: fills an empty folder. It is called again if it failed, by the next worker.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made = shared / f"once-{name}"
    with (shared / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            draft = shared / f"once-{name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            make(draft)
            draft.rename(made)
    return made
