"""``/v1/runs``: starting jobs, following and stopping them."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import job_spec
from moorings.api.events_stream import StreamResponse, stream_output
from moorings.api.operations import Operation, ResponseSpec, list_response, object_response
from moorings.api.parameters import ALL, FOLLOW, PAGING, RUN_STATES, RUNS_UNENDED, SUBJECT, TASK, WAIT
from moorings.api.render import run_body
from moorings.wire.shapes import LabelsRequest, PriorityRequest, RunBody, RunRequest

RUNS_A_PAGE_MAX = 100  # a job may have 0.4 MB: a thousand of them would be half a gigabyte for one request


async def list_runs(call: RequestContext) -> Response:
    """List runs.

    By creation. Those that have not ended, unless a state or `all` is given. A page has 100 of them at most, whatever
    `limit` says, because each tells its whole job.
    """
    wanted = call.wanted("runs", most=RUNS_A_PAGE_MAX)
    states = call.query(RUN_STATES) or (None if call.query(ALL) else RUNS_UNENDED)
    views = await call.controller.runs.list(wanted.page, states=states, subject=call.query(SUBJECT))
    shown, after = wanted.cut(views, lambda view: view.run.id)
    return await call.answer_list((run_body(view, call.caller) for view in shown), after)


async def create_run(call: RequestContext) -> Response:
    """Start a job.

    It starts when its partition may be used. The answer is 201 also when the idempotency key was used before: then it
    is the run that key made, as it stands now.
    """
    request = call.body(RunRequest)
    view = await call.controller.runs.create(
        call.caller,
        job_spec(request.job),
        engine=request.engine,
        within=request.claim,
        key=call.idempotency_key(),
    )
    return call.answer(run_body(view, call.caller), location=f"/v1/runs/{view.run.id}")


async def get_run(call: RequestContext) -> Response:
    """Show a run.

    With `wait` the answer is held until the run has ended.
    """
    wait_s = call.query(WAIT)
    work = call.controller.runs.get(call.path("id"), wait_s=wait_s)
    return call.answer(run_body(await call.hold(work, wait_s), call.caller))


async def cancel_run(call: RequestContext) -> Response:
    """Cancel a run.

    Its processes get TERM, and KILL after their grace period; with `wait` the answer is held until the run has ended.
    Cancelling again is no error.
    """
    wait_s = call.query(WAIT)
    work = call.controller.runs.cancel(call.caller, call.path("id"), wait_s=wait_s)
    return call.answer(run_body(await call.hold(work, wait_s), call.caller))


async def label_run(call: RequestContext) -> Response:
    """Change the labels of a run.

    Of one that has not ended. Labels that are not named stay.
    """
    request = call.body(LabelsRequest)
    changes: dict[str, str | None] = {**dict.fromkeys(request.remove), **request.labels}
    view = await call.controller.runs.label(call.caller, call.path("id"), changes)
    return call.answer(run_body(view, call.caller))


async def prioritise_run(call: RequestContext) -> Response:
    """Change the priority of a run.

    Of one that has not ended; all jobs of a workflow of an appliance have the same.
    """
    view = await call.controller.runs.prioritise(call.caller, call.path("id"), call.body(PriorityRequest).priority)
    return call.answer(run_body(view, call.caller))


async def get_logs(call: RequestContext) -> Response:
    """Show what a run's tasks printed.

    All tasks, each line after its rank in brackets if there are several, or one `task`. Only to who started it and to
    admins.
    """
    chunks = await call.controller.runs.logs(
        call.caller, call.path("id"), task=call.query(TASK), follow=call.query(FOLLOW)
    )
    seats, key = call.service.follows, call.caller.key_id
    seats.take(key)
    return StreamResponse(
        stream_output(call.service, chunks, call.secret), "text/plain; charset=utf-8", lambda: seats.leave(key)
    )


OPERATIONS = (
    Operation("POST", "/v1/runs", create_run, object_response("Run", RunBody, status=201), body=RunRequest, keyed=True),
    Operation("GET", "/v1/runs/{id}", get_run, object_response("Run", RunBody), query=(WAIT,)),
    Operation("GET", "/v1/runs", list_runs, list_response("Run", RunBody), query=(RUN_STATES, SUBJECT, ALL, *PAGING)),
    Operation("POST", "/v1/runs/{id}/cancel", cancel_run, object_response("Run", RunBody), query=(WAIT,)),
    Operation("POST", "/v1/runs/{id}/labels", label_run, object_response("Run", RunBody), body=LabelsRequest),
    Operation("POST", "/v1/runs/{id}/priority", prioritise_run, object_response("Run", RunBody), body=PriorityRequest),
    Operation(
        "GET",
        "/v1/runs/{id}/logs",
        get_logs,
        ResponseSpec(200, "the output, as it is", content={"text/plain": {"schema": {"type": "string"}}}),
        query=(TASK, FOLLOW),
    ),
)
