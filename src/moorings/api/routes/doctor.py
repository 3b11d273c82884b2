"""``/v1/doctor``: the controller's checks of itself; for admins."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.operations import Operation, object_response
from moorings.controller.findings import check_slots
from moorings.wire.shapes import FindingsBody


async def get_findings(call: RequestContext) -> Response:
    """Look at the controller, its database, its pools and its queue.

    Only reads. Takes up to some seconds if the database does not answer.
    """
    found = await call.controller.findings(call.caller)
    service = call.service
    seats = {"waits": service.waits, "watches": service.watches, "follows": service.follows}
    held = tuple(check_slots(kind, of.taken, of.total) for kind, of in seats.items())
    return call.answer(replace(found, items=(*found.items, *held)))


OPERATIONS = (Operation("GET", "/v1/doctor", get_findings, object_response("Findings", FindingsBody)),)
