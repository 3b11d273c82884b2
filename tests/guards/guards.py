"""Every guard, law by law."""

from __future__ import annotations

from tests.guards.appliance import APPLIANCE_JOBS
from tests.guards.attacked import ATTACKED
from tests.guards.guard import Guard
from tests.guards.ipujobs import IPUJOBS
from tests.guards.jobs import JOBS
from tests.guards.leaving import LEAVING
from tests.guards.lending import LENDING
from tests.guards.lifetimes import LIVES
from tests.guards.order import ORDER
from tests.guards.personal import PERSONAL
from tests.guards.privacy import PRIVACY
from tests.guards.queued import QUEUED
from tests.guards.secure import SECURE
from tests.guards.sharing import SHARING
from tests.guards.vendor import VENDOR

GUARDS: tuple[Guard, ...] = (
    *SHARING,
    *JOBS,
    *LEAVING,
    *LENDING,
    *ORDER,
    *PRIVACY,
    *PERSONAL,
    *SECURE,
    *QUEUED,
    *VENDOR,
    *IPUJOBS,
    *APPLIANCE_JOBS,
    *ATTACKED,
    *LIVES,
)
