"""The routes, one file a resource. ``ROUTES`` has all of them, the busiest first: they are tried in this order."""

from __future__ import annotations

from moorings.api.route import Route
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
    whoami,
)

ROUTES: tuple[Route, ...] = (
    *claims.ROUTES,
    *runs.ROUTES,
    *partitions.ROUTES,
    *events.ROUTES,
    *pools.ROUTES,
    *devices.ROUTES,
    *keys.ROUTES,
    *queues.ROUTES,
    *projects.ROUTES,
    *estimate.ROUTES,
    *whatif.ROUTES,
    *defragment.ROUTES,
    *appliance.ROUTES,
    *doctor.ROUTES,
    *whoami.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
)
