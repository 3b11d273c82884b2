"""``/v1/runs``: starting jobs, following and stopping them."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import (
    ALL,
    ARRAY,
    ATTENDED,
    FOLLOW,
    PAGING,
    RUN_STATES,
    RUNS_UNENDED,
    SINCE,
    SUBJECT,
    TASK,
    WAIT,
)
from moorings.api.parse_requests import job_spec, run_report, submitter
from moorings.api.render import run_body, run_report_body, terminal_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.api.streams import StreamResponse, stream_output
from moorings.wire import operations
from moorings.wire.shapes import (
    LabelsRequest,
    PauseRequest,
    PriorityRequest,
    ResumeRequest,
    RunReportRequest,
    RunRequest,
)

RUNS_A_PAGE_MAX = 100  # a job may have 0.4 MB: a thousand of them would be half a gigabyte for one request


async def list_runs(call: RequestContext) -> Response:
    """List runs.

    By creation. Those that have not ended, unless a state or `all` is given. A page has 100 of them at most, whatever
    `limit` says, because each tells its whole job.
    """
    wanted = call.page_request("runs", most=RUNS_A_PAGE_MAX)
    states = call.query_value(RUN_STATES) or (None if call.query_value(ALL) else RUNS_UNENDED)
    views = await call.controller.runs.list_runs(
        call.caller,
        wanted.page,
        states=states,
        subject=call.query_value(SUBJECT),
        array=call.query_value(ARRAY),
    )
    shown, after = wanted.split_page(views, lambda view: view.run.id)
    return await call.respond_list((run_body(view) for view in shown), after)


async def create_run(call: RequestContext) -> Response:
    """Start a job.

    It starts when its partition may be used. Of an array the answer is its first element. The answer is
    201 also when the idempotency key was used before: then it is the run that key made, as it stands now.
    """
    request = call.parse_body(RunRequest)
    view = await call.controller.runs.create_run(
        call.caller,
        job_spec(request.job),
        engine=request.engine,
        within=request.claim,
        key=call.idempotency_key(),
        resume=request.resume,
        resume_from=request.resume_from,
        spool_entry=request.spool_entry,
        spool_entries=request.spool_entries or (),
        submitter=submitter(request.submitter),
        token_digests=(request.submitter.token_digests if request.submitter is not None else None) or (),
    )
    return call.respond(run_body(view), location=f"/v1/runs/{view.run.id}")


async def get_run(call: RequestContext) -> Response:
    """Show a run.

    With `wait` the answer is held until the run has ended.
    """
    wait_s = call.query_value(WAIT)
    work = call.controller.runs.get_run(call.caller, call.path_value("id"), wait_s=wait_s)
    return call.respond(run_body(await call.wait_for(work, wait_s)))


async def cancel_run(call: RequestContext) -> Response:
    """Cancel a run.

    Its processes get TERM, and KILL after their grace period; with `wait` the answer is held until the run has ended.
    Cancelling again is no error.
    """
    wait_s = call.query_value(WAIT)
    work = call.controller.runs.cancel_run(call.caller, call.path_value("id"), wait_s=wait_s)
    return call.respond(run_body(await call.wait_for(work, wait_s)))


async def pause_run(call: RequestContext) -> Response:
    """Pause a run.

    It is warned as before a preemption, and stopped once it has saved a whole checkpoint, at the latest after
    `saveTimeoutS`; then its devices are free. With `wait` the answer is held until it is `PAUSED`. Pausing again is no
    error.
    """
    wait_s = call.query_value(WAIT)
    save_timeout_s = call.parse_body(PauseRequest).save_timeout_s
    work = call.controller.runs.pause_run(
        call.caller, call.path_value("id"), save_timeout_s=save_timeout_s, wait_s=wait_s
    )
    return call.respond(run_body(await call.wait_for(work, wait_s)))


async def resume_run(call: RequestContext) -> Response:
    """Resume a paused run.

    It waits in the queue again, with a new claim, and is given its newest whole checkpoint or the one of `resumeFrom`.
    """
    request = call.parse_body(ResumeRequest)
    view = await call.controller.runs.resume_run(call.caller, call.path_value("id"), resume_from=request.resume_from)
    return call.respond(run_body(view))


async def label_run(call: RequestContext) -> Response:
    """Change the labels of a run.

    Of one that has not ended. Labels that are not named stay.
    """
    request = call.parse_body(LabelsRequest)
    changes: dict[str, str | None] = {**dict.fromkeys(request.remove), **request.labels}
    view = await call.controller.runs.label_run(call.caller, call.path_value("id"), changes)
    return call.respond(run_body(view))


async def prioritise_run(call: RequestContext) -> Response:
    """Change the priority of a run.

    Of one that has not ended; all jobs of a workflow of an appliance have the same.
    """
    view = await call.controller.runs.set_run_priority(
        call.caller, call.path_value("id"), call.parse_body(PriorityRequest).priority
    )
    return call.respond(run_body(view))


async def report_run(call: RequestContext) -> Response:
    """Report on a run that its person submits to Slurm.

    Files that the answer does not need again, and output from where the answer says that it is known. A report makes,
    keeps and ends no claim; it ends no run either, which takes Slurm's word.
    """
    report = run_report(call.parse_body(RunReportRequest))
    run, known = await call.controller.personal_runs.report_run(call.caller, call.path_value("id"), report)
    return call.respond(run_report_body(run, known))


async def get_logs(call: RequestContext) -> Response:
    """Show what a run's tasks printed.

    All tasks, each line after its rank in brackets if there are several, or one `task`.
    """
    chunks = await call.controller.runs.logs(
        call.caller,
        call.path_value("id"),
        task=call.query_value(TASK),
        follow=call.query_value(FOLLOW),
        since=call.query_value(SINCE),
    )
    seats, key = call.service.follow_slots, call.caller.key_id
    seats.require(key)
    return StreamResponse(
        stream_output(call.service, chunks, call.authenticate), "text/plain; charset=utf-8", lambda: seats.release(key)
    )


async def get_terminal(call: RequestContext) -> Response:
    """Show where the terminal of a run is.

    The socket of its supervisor on the controller's machine, or on Kubernetes the container of its task 0: the
    terminal, commands beside the tasks and connections to ports go by it.
    """
    run, place = await call.controller.runs.find_terminal(
        call.caller, call.path_value("id"), attended=call.query_value(ATTENDED)
    )
    return call.respond(terminal_body(run, place))


ROUTES = (
    Route(operations.CREATE_RUN, create_run),
    Route(operations.GET_RUN, get_run, (WAIT,)),
    Route(operations.LIST_RUNS, list_runs, (RUN_STATES, SUBJECT, ARRAY, ALL, *PAGING)),
    Route(operations.CANCEL_RUN, cancel_run, (WAIT,)),
    Route(operations.PAUSE_RUN, pause_run, (WAIT,)),
    Route(operations.RESUME_RUN, resume_run),
    Route(operations.LABEL_RUN, label_run),
    Route(operations.PRIORITISE_RUN, prioritise_run),
    Route(operations.REPORT_RUN, report_run),
    Route(operations.GET_TERMINAL, get_terminal, (ATTENDED,)),
    Route(operations.GET_LOGS, get_logs, (TASK, FOLLOW, SINCE), content={"text/plain": {"schema": {"type": "string"}}}),
)
