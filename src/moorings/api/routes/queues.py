"""``/v1/queues``: the queues of other schedulers, and what these may start now. For their agents."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import queued_jobs
from moorings.api.operations import Operation, list_response, object_response
from moorings.api.parameters import INSTANCE, PAGING, VERSION, WAIT
from moorings.api.render import queue_body
from moorings.core.announced import QueueReport
from moorings.wire.shapes import QueueBody, QueueRequest

QUEUES_MAX = 8  # at a time: each of their jobs is explained


async def tell_queue(call: RequestContext) -> Response:
    """Tell what waits in another scheduler's queue.

    The list replaces the one before. The answer tells what that scheduler may start now. While the list of one
    `instance` is believed, that of another is refused.
    """
    request = call.body(QueueRequest)
    jobs = queued_jobs(request)
    view = await call.controller.queues.tell(
        call.caller, request.queue, request.accelerator, jobs, request.for_s, instance=request.instance
    )
    return call.answer(queue_body(view))


async def list_queues(call: RequestContext) -> Response:
    """List the queues that other schedulers' agents tell of, with the jobs that wait there and why."""
    queues = call.controller.queues
    shown, after = call.wanted("queues", most=QUEUES_MAX).choose(queues.all(), _name)
    return await call.answer_list((queue_body(queues.view(told)) for told in shown), after)


def _name(told: QueueReport) -> str:
    return told.queue


async def get_queue(call: RequestContext) -> Response:
    """Show another scheduler's queue, and what it may start now.

    With `wait` the answer is held until the offer has another version than `version`.
    """
    wait_s = call.query(WAIT)
    queue = f"{call.path('kind')}/{call.path('cluster')}"
    work = call.controller.queues.get(
        call.caller, queue, wait_s=wait_s, version=call.query(VERSION), instance=call.query(INSTANCE)
    )
    return call.answer(queue_body(await call.hold(work, wait_s)))


OPERATIONS = (
    Operation("GET", "/v1/queues", list_queues, list_response("Queue", QueueBody), query=PAGING),
    Operation("POST", "/v1/queues", tell_queue, object_response("Queue", QueueBody), body=QueueRequest),
    Operation(
        "GET",
        "/v1/queues/{kind}/{cluster}",
        get_queue,
        object_response("Queue", QueueBody),
        query=(WAIT, VERSION, INSTANCE),
    ),
)
