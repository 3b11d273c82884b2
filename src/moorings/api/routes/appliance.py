"""``/v1/appliance/jobs``: the jobs of wafer-scale appliances as a list; each is a run under the same id."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import ALL, APPLIANCE_KIND, LABELS, PAGING, RUN_STATES, RUNS_UNENDED, SUBJECT, WORKFLOW
from moorings.api.render import appliance_job_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.ports.store import ApplianceJobQuery
from moorings.wire import operations


async def list_appliance_jobs(call: RequestContext) -> Response:
    """List the jobs of appliances.

    By creation. Those that have not ended, unless a state or `all` is given.
    """
    wanted = call.page_request("runs")
    states = call.query_value(RUN_STATES) or (None if call.query_value(ALL) else RUNS_UNENDED)
    labels = call.query_value(LABELS)
    part = ApplianceJobQuery(call.query_value(APPLIANCE_KIND), call.query_value(WORKFLOW), dict(labels))
    views = await call.controller.runs.list_run_heads(
        call.caller, wanted.page, states=states, subject=call.query_value(SUBJECT), part=part
    )
    shown, after = wanted.split_page(views, lambda view: view.run.id)
    return await call.respond_list((appliance_job_body(view) for view in shown), after)


ROUTES = (
    Route(
        operations.LIST_APPLIANCE_JOBS,
        list_appliance_jobs,
        (RUN_STATES, SUBJECT, APPLIANCE_KIND, WORKFLOW, LABELS, ALL, *PAGING),
    ),
)
