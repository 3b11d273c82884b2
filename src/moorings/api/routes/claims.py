"""``/v1/claims``: requesting partitions, and releasing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response

from moorings.api.parameters import (
    ALL,
    CLAIM_STATES,
    CLAIMS_UNENDED,
    FOR,
    ONLY_WAITING,
    OWNER_PREFIX,
    PAGING,
    POOL,
    WAIT,
    WHEN,
)
from moorings.api.parse_requests import checkpoint_at, claim_spec, waiting_since
from moorings.api.render import binding_body, claim_body, explanation_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.controller.projects import ESTIMATE_S_MAX
from moorings.wire import operations
from moorings.wire.shapes import (
    CheckpointRequest,
    ClaimRequest,
    YieldRequest,
)

if TYPE_CHECKING:
    from moorings.controller.views import ClaimView
    from moorings.ports.store import PageQuery


async def list_claims(call: RequestContext) -> Response:
    """List claims.

    By arrival. Those that have not ended, unless a state or `all` is given.
    """
    wanted = call.page_request("claims")
    states = call.query_value(CLAIM_STATES) or (None if call.query_value(ALL) else CLAIMS_UNENDED)
    owner_prefix, pool = call.query_value(OWNER_PREFIX), call.query_value(POOL)

    async def read(page: PageQuery) -> Sequence[ClaimView]:
        return await call.controller.list_claims(call.caller, page, states=states, owner_prefix=owner_prefix, pool=pool)

    shown, after = wanted.split_page(await wanted.read_page(read, _id), _id)
    return await call.respond_list(map(claim_body, shown), after)


def _id(view: ClaimView) -> str:
    return view.claim.id


async def create_claim(call: RequestContext) -> Response:
    """Ask for a partition.

    The answer is 201 also when the idempotency key was used before: then it is the claim that key made, as it stands
    now.
    """
    request = call.parse_body(ClaimRequest)
    wait_s = call.query_value(WAIT)
    view = await call.wait_for(
        call.controller.create_claim(
            call.caller,
            claim_spec(request),
            name=request.name,
            owner=request.owner,
            key=call.idempotency_key(),
            since=waiting_since(request),
            wait_s=wait_s,
            until=call.query_value(FOR),
        ),
        wait_s,
    )
    return call.respond(claim_body(view), location=f"/v1/claims/{view.claim.id}")


async def get_claim(call: RequestContext) -> Response:
    """Show a claim.

    With `wait` the answer is held until what `for` names.
    """
    wait_s = call.query_value(WAIT)
    work = call.controller.get_claim(call.caller, call.path_value("id"), wait_s=wait_s, until=call.query_value(FOR))
    return call.respond(claim_body(await call.wait_for(work, wait_s)))


async def release_claim(call: RequestContext) -> Response:
    """Release a claim.

    Its partition is removed and the claim ends; with `wait` the answer is held until it has. Releasing again is no
    error. With `onlyWaiting` a claim that has been granted meanwhile is left alone.
    """
    wait_s = call.query_value(WAIT)
    work = call.controller.release_claim(
        call.caller, call.path_value("id"), wait_s=wait_s, only_waiting=call.query_value(ONLY_WAITING)
    )
    return call.respond(claim_body(await call.wait_for(work, wait_s)))


async def renew_claim(call: RequestContext) -> Response:
    """Renew a claim's lease: it runs anew from now."""
    return call.respond(claim_body(await call.controller.renew_claim(call.caller, call.path_value("id"))))


async def yield_claim(call: RequestContext) -> Response:
    """Yield a claim that was asked to: its job has stopped.

    Its partition is removed, and the claim waits again, in its old place.
    """
    request = call.parse_body(YieldRequest)
    return call.respond(claim_body(await call.controller.yield_claim(call.caller, call.path_value("id"), request.why)))


async def checkpoint_claim(call: RequestContext) -> Response:
    """Tell that the job of a claim has saved its state.

    What it did before is not lost if it is stopped; those that lose least are asked to yield first.
    """
    at = checkpoint_at(call.parse_body(CheckpointRequest))
    return call.respond(claim_body(await call.controller.record_checkpoint(call.caller, call.path_value("id"), at)))


async def explain_claim(call: RequestContext) -> Response:
    """Explain why a claim is where it is, and what would change it.

    With `when` also when it starts, at the latest, as things stand.
    """
    when = call.query_value(WHEN)
    work = call.controller.explain_claim(call.caller, call.path_value("id"), when=when)
    return call.respond(explanation_body(await call.wait_for(work, ESTIMATE_S_MAX if when else 0.0)))


async def get_binding(call: RequestContext) -> Response:
    """Show what the claim's job is given.

    Only to its owner and to admins, and only while the partition is usable; with `wait` the answer is held until it is.
    """
    wait_s = call.query_value(WAIT)
    ident = call.path_value("id")
    if wait_s:  # without a work slot; the driver is asked in one, like any work
        await call.wait_for(call.controller.wait_for_binding(call.caller, ident, wait_s), wait_s)
        await call.authenticate()  # the key may have been revoked meanwhile
    return call.respond(binding_body(await call.controller.get_binding(call.caller, ident)))


ROUTES = (
    Route(operations.CREATE_CLAIM, create_claim, (WAIT, FOR)),
    Route(operations.RELEASE_CLAIM, release_claim, (WAIT, ONLY_WAITING)),
    Route(operations.GET_CLAIM, get_claim, (WAIT, FOR)),
    Route(operations.LIST_CLAIMS, list_claims, (CLAIM_STATES, OWNER_PREFIX, POOL, ALL, *PAGING)),
    Route(operations.RENEW_CLAIM, renew_claim),
    Route(operations.YIELD_CLAIM, yield_claim),
    Route(operations.CHECKPOINT_CLAIM, checkpoint_claim),
    Route(operations.EXPLAIN_CLAIM, explain_claim, (WHEN,)),
    Route(operations.GET_BINDING, get_binding, (WAIT,)),
)
