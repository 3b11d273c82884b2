"""``/v1/appliance/jobs``: the jobs of wafer-scale appliances as a list; each is a run under the same id."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.operations import Operation, list_response
from moorings.api.parameters import ALL, APPLIANCE_KIND, LABELS, PAGING, RUN_STATES, RUNS_UNENDED, SUBJECT, WORKFLOW
from moorings.api.render import appliance_job_body
from moorings.ports.store import ApplianceJobQuery
from moorings.wire.shapes import ApplianceJobBody


async def list_appliance_jobs(call: RequestContext) -> Response:
    """List the jobs of appliances.

    By creation. Those that have not ended, unless a state or `all` is given.
    """
    wanted = call.wanted("runs")
    states = call.query(RUN_STATES) or (None if call.query(ALL) else RUNS_UNENDED)
    labels = call.query(LABELS)
    part = ApplianceJobQuery(call.query(APPLIANCE_KIND), call.query(WORKFLOW), dict(labels))
    views = await call.controller.runs.list_briefly(wanted.page, states=states, subject=call.query(SUBJECT), part=part)
    shown, after = wanted.cut(views, lambda view: view.run.id)
    return await call.answer_list((appliance_job_body(view) for view in shown), after)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/appliance/jobs",
        list_appliance_jobs,
        list_response("ApplianceJob", ApplianceJobBody),
        query=(RUN_STATES, SUBJECT, APPLIANCE_KIND, WORKFLOW, LABELS, ALL, *PAGING),
    ),
)
