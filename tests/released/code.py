"""The code of a release as it was, so that its programs can be run beside today's.

Half of a site is of the release before while it is upgraded: agents, operators, supervisors of jobs, people's commands.
Recordings tell what an old program wrote; only the old program tells how it takes what a new one answers. The code is
kept here and not taken from git, for a checkout may have no history. It needs what it imports as today's environment
has it: where a major version of a dependency ends that, this archive ends, too. It was made by::

    git archive HEAD src/moorings deploy/slurm | xz -9e > tests/released/moorings-VERSION.tar.xz
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).with_name("moorings-0.1.0.tar.xz")


def environment_of(code: Path | None) -> dict[str, str]:
    """Variables with which ``python -m moorings...`` is the code in that folder; None: today's."""
    return {**os.environ, **({"PYTHONPATH": str(code / "src")} if code is not None else {})}


@pytest.fixture(scope="session")
def released_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``src`` and ``deploy/slurm`` of the release; ``environment_of`` makes Python take it."""
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder
