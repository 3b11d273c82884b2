"""One worker of pytest runs all of this folder, so that one plain cluster serves it; ``tests/kubernetes`` likewise.

``xdist_group`` marks would say so, but with pytest 9.2 pytest-xdist 3.8 takes no notice of them, and says nothing
(pytest-xdist#1386: it writes the group into an attribute that a node's id no longer comes from). A scheduler of one's
own is in its public hooks, and needs no marks.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # xdist has no types

_FOLDERS = ("tests/slurm/", "tests/kubernetes/")


class FolderScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """As ``--dist loadgroup``, with each of these folders as one group."""

    def _split_scope(self, nodeid: str) -> str:
        found = [folder for folder in _FOLDERS if nodeid.startswith(folder)]
        return found[0] if found else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FolderScheduling | None:
    """The scheduler for ``--dist loadgroup``; xdist's own for the others."""
    return FolderScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
