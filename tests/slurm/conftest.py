"""A real Slurm for the tests of this folder; each says what it needs by its fixtures.

``slurm``: one plain cluster of four nodes and 64 licenses ``ipu``, kept for the whole session. A test gets it quiet and
may kill, stop and submit as it likes: afterwards daemons are started again and jobs and reservations removed. Who needs
another slurm.conf, files beside it or accounting makes a cluster for a module (0.1 s, with accounting 3 s)::

    @pytest.fixture(scope="module")
    def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
        cluster = SlurmCluster(new_folder(), release=slurm_release, extra_conf="JobSubmitPlugins=lua")
        cluster.write_conf("job_submit.lua", SCRIPT)
        with cluster:
            yield cluster

Every test here is marked ``slurm``, and one process of pytest runs them all (``tests.lanes``).
``pytest tests/slurm --slurm-release=24.11`` runs them on another release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.programs import RELEASE, SUITES

_FOLDER = Path(__file__).parent
_OPTION = "--slurm-release"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, choices=[*SUITES], default=RELEASE, help="the release of Slurm that tests/slurm run on")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm_release(pytestconfig: pytest.Config) -> str:
    """The release to test on."""
    return str(pytestconfig.getoption(_OPTION, default=RELEASE))  # not known where pytest was not told of this folder


@pytest.fixture(scope="session")
def _plain_cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    with SlurmCluster(new_folder(), licenses="ipu:64", release=slurm_release) as cluster:
        yield cluster


@pytest.fixture
def slurm(_plain_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The plain cluster, quiet before and after."""
    yield _plain_cluster
    _plain_cluster.settle()
