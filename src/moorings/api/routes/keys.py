"""``/v1/keys``: access keys; for admins, but every caller may rotate the key of the request."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import PAGING
from moorings.api.render import key_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.core.model.access import Role
from moorings.ports.store import AccessKey
from moorings.wire import operations
from moorings.wire.shapes import KeyRequest, RotateRequest


def _age(key: AccessKey) -> str:
    return f"{key.created_at:020}:{key.id}"


async def list_keys(call: RequestContext) -> Response:
    """List access keys, oldest first; never their secrets."""
    shown, after = call.page_request("keys").page_of(await call.controller.list_keys(call.caller), _age)
    return await call.respond_list(map(key_body, shown), after)


async def create_key(call: RequestContext) -> Response:
    """Make an access key.

    Its secret is in this answer and nowhere else. It expires after `lifetimeS`, or the controller's usual time; agents'
    keys only if that is asked for.
    """
    request = call.parse_body(KeyRequest)
    key, secret = await call.controller.create_key(
        call.caller, request.subject, Role(request.role), request.owner_prefix, request.lifetime_s
    )
    return call.respond(key_body(key, secret))


async def rotate_key(call: RequestContext) -> Response:
    """Give an access key a new secret.

    It is in this answer and nowhere else. The old one works for `graceS` more, a day if that is left out. The key lives
    as long again as it was to live before; only an admin may give it another lifetime. A secret that was replaced
    rotates nothing; but where the answer was lost, it may ask again until the new one has been used.
    """
    request = call.parse_body(RotateRequest)
    key, secret = await call.controller.rotate_key(
        call.caller, call.secret, call.path_value("id"), request.grace_s, request.lifetime_s
    )
    call.service.key_revoked.wake_all()
    return call.respond(key_body(key, secret))


async def revoke_key(call: RequestContext) -> Response:
    """Revoke an access key, at once."""
    await call.controller.revoke_key(call.caller, call.path_value("id"))
    call.service.key_revoked.wake_all()
    return call.respond_empty()


ROUTES = (
    Route(operations.LIST_KEYS, list_keys, PAGING),
    Route(operations.CREATE_KEY, create_key),
    Route(operations.ROTATE_KEY, rotate_key),
    Route(operations.REVOKE_KEY, revoke_key),
)
