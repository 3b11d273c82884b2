"""The routes, one file a resource. ``OPERATIONS`` has all of them, the busiest first: they are tried in this order."""

from __future__ import annotations

from moorings.api.operations import Operation
from moorings.api.routes import (
    appliance,
    claims,
    defragment,
    devices,
    doctor,
    estimate,
    events,
    health,
    keys,
    metrics,
    partitions,
    pools,
    projects,
    queues,
    runs,
    whatif,
)

OPERATIONS: tuple[Operation, ...] = (
    *claims.OPERATIONS,
    *runs.OPERATIONS,
    *partitions.OPERATIONS,
    *events.OPERATIONS,
    *pools.OPERATIONS,
    *devices.OPERATIONS,
    *keys.OPERATIONS,
    *queues.OPERATIONS,
    *projects.OPERATIONS,
    *estimate.OPERATIONS,
    *whatif.OPERATIONS,
    *defragment.OPERATIONS,
    *appliance.OPERATIONS,
    *doctor.OPERATIONS,
    *health.OPERATIONS,
    *metrics.OPERATIONS,
)
