"""What every test may rely on: no settings of the person who runs them, and Hypothesis profiles."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.postgresql import database_name, database_url, postgresql
from tests.slurm.scheduling import pytest_xdist_make_scheduler

# fixtures for every test, and a hook that pytest's controlling process looks for here alone
__all__ = ["database_name", "database_url", "postgresql", "pytest_xdist_make_scheduler"]

settings.register_profile("ci", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", deadline=None)
settings.register_profile("fuzz", deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees, or touches, the configuration of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(("MOORINGS_", "IPUOF_", "XDG_", "SLURM_", "VIPU_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
