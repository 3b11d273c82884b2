"""``/v1/devices``: single accelerators, and taking them out of service."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import PAGING, POOL
from moorings.api.render import device_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.wire import operations
from moorings.wire.shapes import DrainRequest


async def list_devices(call: RequestContext) -> Response:
    """List devices, by pool and index."""
    wanted = call.page_request("devices")
    views = call.controller.list_devices(call.caller, wanted.page, pool=call.query_value(POOL))
    shown, after = wanted.split_page(views, lambda view: view.device.id)
    return await call.respond_list(map(device_body, shown), after)


async def get_device(call: RequestContext) -> Response:
    """Show a device."""
    return call.respond(device_body(call.controller.get_device(call.caller, call.path_value("id"))))


async def drain_device(call: RequestContext) -> Response:
    """Take a device out of service.

    The partition it is part of lives on; nothing new is placed on it until it is resumed. The reason is for whoever
    asks.
    """
    request = call.parse_body(DrainRequest)
    return call.respond(
        device_body(await call.controller.drain_device(call.caller, call.path_value("id"), request.reason))
    )


async def resume_device(call: RequestContext) -> Response:
    """Put a device back into service."""
    return call.respond(device_body(await call.controller.resume_device(call.caller, call.path_value("id"))))


ROUTES = (
    Route(operations.LIST_DEVICES, list_devices, (POOL, *PAGING)),
    Route(operations.GET_DEVICE, get_device),
    Route(operations.DRAIN_DEVICE, drain_device),
    Route(operations.RESUME_DEVICE, resume_device),
)
