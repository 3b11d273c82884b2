"""What an admin may not join."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.app.wiring import check_slurm_user
from moorings.core.model.errors import MooringsError
from moorings.slurm.engine.settings import SlurmEngineSettings

SLURM = SlurmEngineSettings(Path("/shared/runs"))


def test_jobs_never_become_roots_on_a_cluster() -> None:
    with pytest.raises(MooringsError) as caught:
        check_slurm_user(SLURM, 0)
    assert caught.value.code == "config.invalid"
    assert "as root" in caught.value.detail
    assert "a user of its own" in caught.value.hint


def test_another_user_may_submit_and_root_may_do_without() -> None:
    check_slurm_user(SLURM, 1000)
    check_slurm_user(None, 0)
