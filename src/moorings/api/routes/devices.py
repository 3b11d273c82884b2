"""``/v1/devices``: single accelerators, and taking them out of service."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.operations import Operation, list_response, object_response
from moorings.api.parameters import PAGING, POOL
from moorings.api.render import device_body
from moorings.wire.shapes import DeviceBody, DrainRequest


async def list_devices(call: RequestContext) -> Response:
    """List devices, by pool and index."""
    wanted = call.wanted("devices")
    views = call.controller.list_devices(wanted.page, pool=call.query(POOL))
    shown, after = wanted.cut(views, lambda view: view.device.id)
    return await call.answer_list(map(device_body, shown), after)


async def get_device(call: RequestContext) -> Response:
    """Show a device."""
    return call.answer(device_body(call.controller.get_device(call.path("id"))))


async def drain_device(call: RequestContext) -> Response:
    """Take a device out of service.

    The partition it is part of lives on; nothing new is placed on it until it is resumed. The reason is for whoever
    asks.
    """
    request = call.body(DrainRequest)
    return call.answer(device_body(await call.controller.drain_device(call.caller, call.path("id"), request.reason)))


async def resume_device(call: RequestContext) -> Response:
    """Put a device back into service."""
    return call.answer(device_body(await call.controller.resume_device(call.caller, call.path("id"))))


_DEVICE = object_response("Device", DeviceBody)

OPERATIONS = (
    Operation("GET", "/v1/devices", list_devices, list_response("Device", DeviceBody), query=(POOL, *PAGING)),
    Operation("GET", "/v1/devices/{id}", get_device, _DEVICE),
    Operation("POST", "/v1/devices/{id}/drain", drain_device, _DEVICE, body=DrainRequest),
    Operation("POST", "/v1/devices/{id}/resume", resume_device, _DEVICE),
)
