"""``/v1/projects`` and ``/v1/quotas``: the projects, and what each holds."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import project_from
from moorings.api.operations import NO_CONTENT, Operation, list_response, object_response
from moorings.api.parameters import PAGING
from moorings.api.render import project_body, quota_body
from moorings.core.projects import Project
from moorings.core.quotas import ProjectQuota
from moorings.wire.shapes import ProjectBody, ProjectRequest, QuotaBody


async def list_projects(call: RequestContext) -> Response:
    """List projects, by name."""
    shown, after = call.wanted("projects").choose(call.controller.projects.all(), _name)
    return await call.answer_list((project_body(project, call.caller) for project in shown), after)


def _name(project: Project) -> str:
    return project.name


async def get_project(call: RequestContext) -> Response:
    """Show a project."""
    return call.answer(project_body(call.controller.projects.get(call.path("project")), call.caller))


async def set_project(call: RequestContext) -> Response:
    """Make a project, or change it.

    The request holds all of it: what is left out has its default. With the `version` that was read the project is
    changed, unless somebody else has changed it since; without one there must be none of that name.
    """
    name, request = call.path("project"), call.body(ProjectRequest)
    project = await call.controller.projects.set(call.caller, project_from(name, request), request.version)
    return call.answer(project_body(project, call.caller))


async def delete_project(call: RequestContext) -> Response:
    """Delete a project that has no parts, and no claims that have not ended."""
    await call.controller.projects.delete(call.caller, call.path("project"))
    return call.answer_nothing()


async def list_quotas(call: RequestContext) -> Response:
    """List what each project is guaranteed, holds, borrows and waits for, by project and pool."""
    shown, after = call.wanted("quotas").choose(call.controller.projects.quotas(), _place)
    return await call.answer_list(map(quota_body, shown), after)


def _place(quota: ProjectQuota) -> str:
    return f"{quota.project} {quota.pool}"


_PROJECT = object_response("Project", ProjectBody)

OPERATIONS = (
    Operation("GET", "/v1/projects", list_projects, list_response("Project", ProjectBody), query=PAGING),
    Operation("GET", "/v1/projects/{project}", get_project, _PROJECT),
    Operation("PUT", "/v1/projects/{project}", set_project, _PROJECT, body=ProjectRequest),
    Operation("DELETE", "/v1/projects/{project}", delete_project, NO_CONTENT),
    Operation("GET", "/v1/quotas", list_quotas, list_response("Quota", QuotaBody), query=PAGING),
)
