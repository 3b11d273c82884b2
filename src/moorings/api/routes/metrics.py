"""``/metrics``: numbers for Prometheus; open to all, like the health checks."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.metrics import MEDIA_TYPE
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.wire import operations


async def get_metrics(call: RequestContext) -> Response:
    """Give the controller's numbers to a monitoring system.

    In Prometheus' text form. Labels are pools, states and routes; never users or claims.
    """
    return Response(call.service.metrics.text(), headers={"Content-Type": MEDIA_TYPE})


ROUTES = (Route(operations.GET_METRICS, get_metrics, content={"text/plain": {"schema": {"type": "string"}}}),)
