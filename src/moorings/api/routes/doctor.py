"""``/v1/doctor``: the controller's checks of itself; for admins."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.controller.doctor import check_slots
from moorings.doctor.findings import build_finding_body
from moorings.wire import operations


async def get_findings(call: RequestContext) -> Response:
    """Look at the controller, its database, its pools and its queue.

    Only reads. Takes up to some seconds if the database does not answer.
    """
    found = await call.controller.run_doctor(call.caller)
    service = call.service
    seats = {"waits": service.wait_slots, "watches": service.watch_slots, "follows": service.follow_slots}
    held = tuple(build_finding_body(check_slots(kind, of.n_held, of.total)) for kind, of in seats.items())
    return call.respond(replace(found, items=(*found.items, *held)))


ROUTES = (Route(operations.GET_FINDINGS, get_findings),)
