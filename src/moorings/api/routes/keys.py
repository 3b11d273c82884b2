"""``/v1/keys``: access keys; for admins."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import Call
from moorings.api.operations import NOTHING, Operation, many, one
from moorings.api.parameters import PAGING
from moorings.api.render import key_body
from moorings.core.access import Role
from moorings.ports.store import AccessKey
from moorings.wire.shapes import KeyBody, KeyRequest


def _age(key: AccessKey) -> str:
    return f"{key.created_at:020}:{key.id}"


async def list_keys(call: Call) -> Response:
    """List access keys, oldest first; never their secrets."""
    shown, after = call.wanted("keys").choose(await call.controller.list_keys(call.caller), _age)
    return await call.answer_list(map(key_body, shown), after)


async def create_key(call: Call) -> Response:
    """Make an access key.

    Its secret is in this answer and nowhere else.
    """
    request = call.body(KeyRequest)
    key, secret = await call.controller.create_key(
        call.caller, request.subject, Role(request.role), request.owner_prefix
    )
    return call.answer(key_body(key, secret))


async def revoke_key(call: Call) -> Response:
    """Revoke an access key, at once."""
    await call.controller.revoke_key(call.caller, call.path("id"))
    call.service.revoked.ring()
    return call.answer_nothing()


OPERATIONS = (
    Operation("GET", "/v1/keys", list_keys, many("Key", KeyBody), query=PAGING),
    Operation("POST", "/v1/keys", create_key, one("Key", KeyBody, status=201), body=KeyRequest),
    Operation("DELETE", "/v1/keys/{id}", revoke_key, NOTHING),
)
