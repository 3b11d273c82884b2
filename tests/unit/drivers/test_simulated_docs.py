"""The reference page says what is so: its examples can be used, and it leaves nothing out."""

import re
from dataclasses import fields
from pathlib import Path

from moorings.core.model.pools import parse_pools
from moorings.drivers.simulated.faults import FaultKind
from moorings.drivers.simulated.faults_file import parse_faults
from moorings.drivers.simulated.settings import SimulatedSettings

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "simulated.md").read_text()
POOLS, FAULTS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_can_be_used():
    (entry,) = parse_pools(POOLS)
    assert SimulatedSettings.read(entry.settings) == SimulatedSettings(
        provision_s=2, provision_per_device_s=0.05, seed=42
    )
    assert [fault.kind for fault in parse_faults(FAULTS)] == [
        FaultKind.TIMEOUT_AFTER_SUCCESS,
        FaultKind.AGENT_DOWN,
        FaultKind.REMOVAL_FAILS,
    ]


def test_every_setting_and_every_fault_is_told():
    told = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert {field.name for field in fields(SimulatedSettings)} <= told
    assert set(FaultKind) <= told
