"""``/v1/queues``: the queues of other schedulers, and what these may start now. For their agents."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import INSTANCE, PAGING, VERSION, WAIT
from moorings.api.parse_requests import listed_job, queued_jobs
from moorings.api.render import queue_body, submitted_jobs_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.core.model.queue_reports import QueueReport
from moorings.wire import operations
from moorings.wire.shapes import QueueRequest, SubmittedJobsRequest

QUEUES_MAX = 8  # at a time: each of their jobs is explained


async def tell_queue(call: RequestContext) -> Response:
    """Tell what waits in another scheduler's queue.

    The list replaces the one before. The answer tells what that scheduler may start now. While the list of one
    `instance` is believed, that of another is refused.
    """
    request = call.parse_body(QueueRequest)
    jobs = queued_jobs(request)
    view = await call.controller.queues.report_queue(
        call.caller, request.queue, request.accelerator, jobs, request.for_s, instance=request.instance
    )
    return call.respond(queue_body(view))


async def list_queues(call: RequestContext) -> Response:
    """List the queues that other schedulers' agents tell of, with the jobs that wait there and why."""
    queues = call.controller.queues
    shown, after = call.page_request("queues", most=QUEUES_MAX).page_of(queues.list_reports(), _name)
    return await call.respond_list((queue_body(queues.view(call.caller, told)) for told in shown), after)


def _name(told: QueueReport) -> str:
    return told.queue


async def get_queue(call: RequestContext) -> Response:
    """Show another scheduler's queue, and what it may start now.

    With `wait` the answer is held until the offer has another version than `version`.
    """
    wait_s = call.query_value(WAIT)
    queue = f"{call.path_value('kind')}/{call.path_value('cluster')}"
    work = call.controller.queues.get_queue(
        call.caller, queue, wait_s=wait_s, version=call.query_value(VERSION), instance=call.query_value(INSTANCE)
    )
    return call.respond(queue_body(await call.wait_for(work, wait_s)))


async def report_jobs(call: RequestContext) -> Response:
    """Report the jobs of runs that people submit to Slurm themselves.

    In a complete listing of the users that the last answer named. A job counts for the run of its comment only if it is
    that run's submitter's. The answer says what is to be done with which of them.
    """
    request = call.parse_body(SubmittedJobsRequest)
    reply = await call.controller.personal_runs.report_jobs(
        call.caller,
        f"{call.path_value('kind')}/{call.path_value('cluster')}",
        request.instance,
        request.uids,
        [listed_job(each) for each in request.jobs],
        [listed_job(each) for each in request.accounted],
    )
    return call.respond(submitted_jobs_body(reply))


ROUTES = (
    Route(operations.LIST_QUEUES, list_queues, PAGING),
    Route(operations.TELL_QUEUE, tell_queue),
    Route(operations.GET_QUEUE, get_queue, (WAIT, VERSION, INSTANCE)),
    Route(operations.REPORT_JOBS, report_jobs),
)
