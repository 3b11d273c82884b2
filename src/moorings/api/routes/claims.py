"""``/v1/claims``: requesting partitions, and releasing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import checkpoint_at, claim_spec, waiting_since
from moorings.api.operations import Operation, list_response, object_response
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
from moorings.api.render import binding_body, claim_body, explanation_body
from moorings.controller.projects import ESTIMATE_S_MAX
from moorings.wire.shapes import (
    BindingBody,
    CheckpointRequest,
    ClaimBody,
    ClaimRequest,
    ExplanationBody,
    YieldRequest,
)

if TYPE_CHECKING:
    from moorings.controller.views import ClaimView
    from moorings.ports.store import PageQuery


async def list_claims(call: RequestContext) -> Response:
    """List claims.

    By arrival. Those that have not ended, unless a state or `all` is given.
    """
    wanted = call.wanted("claims")
    states = call.query(CLAIM_STATES) or (None if call.query(ALL) else CLAIMS_UNENDED)
    owner_prefix, pool = call.query(OWNER_PREFIX), call.query(POOL)

    async def read(page: PageQuery) -> Sequence[ClaimView]:
        return await call.controller.list_claims(page, states=states, owner_prefix=owner_prefix, pool=pool)

    shown, after = wanted.cut(await wanted.gather(read, _id), _id)
    return await call.answer_list(map(claim_body, shown), after)


def _id(view: ClaimView) -> str:
    return view.claim.id


async def create_claim(call: RequestContext) -> Response:
    """Ask for a partition.

    The answer is 201 also when the idempotency key was used before: then it is the claim that key made, as it stands
    now.
    """
    request = call.body(ClaimRequest)
    wait_s = call.query(WAIT)
    view = await call.hold(
        call.controller.create_claim(
            call.caller,
            claim_spec(request),
            name=request.name,
            owner=request.owner,
            key=call.idempotency_key(),
            since=waiting_since(request),
            wait_s=wait_s,
            until=call.query(FOR),
        ),
        wait_s,
    )
    return call.answer(claim_body(view), location=f"/v1/claims/{view.claim.id}")


async def get_claim(call: RequestContext) -> Response:
    """Show a claim.

    With `wait` the answer is held until what `for` names.
    """
    wait_s = call.query(WAIT)
    work = call.controller.get_claim(call.path("id"), wait_s=wait_s, until=call.query(FOR))
    return call.answer(claim_body(await call.hold(work, wait_s)))


async def release_claim(call: RequestContext) -> Response:
    """Release a claim.

    Its partition is removed and the claim ends; with `wait` the answer is held until it has. Releasing again is no
    error. With `onlyWaiting` a claim that has been granted meanwhile is left alone.
    """
    wait_s = call.query(WAIT)
    work = call.controller.release_claim(
        call.caller, call.path("id"), wait_s=wait_s, only_waiting=call.query(ONLY_WAITING)
    )
    return call.answer(claim_body(await call.hold(work, wait_s)))


async def renew_claim(call: RequestContext) -> Response:
    """Renew a claim's lease: it runs anew from now."""
    return call.answer(claim_body(await call.controller.renew_claim(call.caller, call.path("id"))))


async def yield_claim(call: RequestContext) -> Response:
    """Yield a claim that was asked to: its job has stopped.

    Its partition is removed, and the claim waits again, in its old place.
    """
    request = call.body(YieldRequest)
    return call.answer(claim_body(await call.controller.yield_claim(call.caller, call.path("id"), request.why)))


async def checkpoint_claim(call: RequestContext) -> Response:
    """Tell that the job of a claim has saved its state.

    What it did before is not lost if it is stopped; those that lose least are asked to yield first.
    """
    at = checkpoint_at(call.body(CheckpointRequest))
    return call.answer(claim_body(await call.controller.checkpoint(call.caller, call.path("id"), at)))


async def explain_claim(call: RequestContext) -> Response:
    """Explain why a claim is where it is, and what would change it.

    With `when` also when it starts, at the latest, as things stand.
    """
    when = call.query(WHEN)
    work = call.controller.explain_claim(call.path("id"), when_for=call.caller if when else None)
    return call.answer(explanation_body(await call.hold(work, ESTIMATE_S_MAX if when else 0.0)))


async def get_binding(call: RequestContext) -> Response:
    """Show what the claim's job is given.

    Only to its owner and to admins, and only while the partition is usable; with `wait` the answer is held until it is.
    """
    wait_s = call.query(WAIT)
    ident = call.path("id")
    if wait_s:  # without a work slot; the driver is asked in one, like any work
        await call.hold(call.controller.await_binding(call.caller, ident, wait_s), wait_s)
        await call.controller.authenticate(call.secret)  # the key may have been revoked meanwhile
    return call.answer(binding_body(await call.controller.claim_binding(call.caller, ident)))


_CLAIM = object_response("Claim", ClaimBody)

OPERATIONS = (
    Operation(
        "POST",
        "/v1/claims",
        create_claim,
        object_response("Claim", ClaimBody, status=201),
        body=ClaimRequest,
        query=(WAIT, FOR),
        keyed=True,
    ),
    Operation("DELETE", "/v1/claims/{id}", release_claim, _CLAIM, query=(WAIT, ONLY_WAITING)),
    Operation("GET", "/v1/claims/{id}", get_claim, _CLAIM, query=(WAIT, FOR)),
    Operation(
        "GET",
        "/v1/claims",
        list_claims,
        list_response("Claim", ClaimBody),
        query=(CLAIM_STATES, OWNER_PREFIX, POOL, ALL, *PAGING),
    ),
    # Also by an expired key: it only says that its holder is alive, and an expired lease would end a job.
    Operation("POST", "/v1/claims/{id}/renew", renew_claim, _CLAIM, after_expiry=True),
    Operation("POST", "/v1/claims/{id}/yield", yield_claim, _CLAIM, body=YieldRequest),
    Operation("POST", "/v1/claims/{id}/checkpoint", checkpoint_claim, _CLAIM, body=CheckpointRequest),
    Operation(
        "GET", "/v1/claims/{id}/explain", explain_claim, object_response("Explanation", ExplanationBody), query=(WHEN,)
    ),
    Operation("GET", "/v1/claims/{id}/binding", get_binding, object_response("Binding", BindingBody), query=(WAIT,)),
)
