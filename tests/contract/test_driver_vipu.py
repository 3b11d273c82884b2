"""The vipu driver keeps the contract of every driver, over a stand-in of the vendor's command, release by release."""

import pytest

from moorings.testing.driver_suite import DriverSuite
from tests.unit.drivers.vipu_rig import VipuRig


class TestAtOnce(DriverSuite):
    """A release that does not wait, and tells states in its JSON."""

    @pytest.fixture
    def rig(self, tmp_path):
        return VipuRig(tmp_path)


class TestOtherRelease(DriverSuite):
    """A release that waits until a partition is ready, removes slowly, and tells states in a table alone."""

    @pytest.fixture
    def rig(self, tmp_path):
        words = {"ACTIVE": "PS_ACTIVE", "PROVISIONING": "PS_PENDING", "ERROR": "PS_ERROR", "REMOVING": "PS_DELETING"}
        return VipuRig(
            tmp_path,
            waits=True,
            provision_s=0.2,
            reset_s=0.2,
            remove_s=0.2,
            json_states=False,
            layout=1,
            wrapped=False,
            words=words,
        )
