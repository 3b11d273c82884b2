"""``/v1/projects`` and ``/v1/quotas``: the projects, and what each holds."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import PAGING
from moorings.api.parse_requests import project_from
from moorings.api.render import project_body, quota_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.core.model.projects import Project
from moorings.core.scheduling.quotas import ProjectQuota
from moorings.wire import operations
from moorings.wire.shapes import ProjectBody, ProjectRequest


async def list_projects(call: RequestContext) -> Response:
    """List projects, by name."""
    shown, after = call.page_request("projects").page_of(call.controller.projects.list_projects(call.caller), _name)
    return await call.respond_list((_body(call, project) for project in shown), after)


def _name(project: Project) -> str:
    return project.name


def _body(call: RequestContext, project: Project) -> ProjectBody:
    with_people = call.controller.projects.knows_people(call.caller, project)
    return project_body(project, call.caller.subject, with_people=with_people)


async def get_project(call: RequestContext) -> Response:
    """Show a project."""
    return call.respond(_body(call, call.controller.projects.get_project(call.caller, call.path_value("project"))))


async def set_project(call: RequestContext) -> Response:
    """Make a project, or change it.

    The request holds all of it: what is left out has its default. With the `version` that was read the project is
    changed, unless somebody else has changed it since; without one there must be none of that name. An admin of the
    project changes its members, and leaves the rest as it was.
    """
    name, request = call.path_value("project"), call.parse_body(ProjectRequest)
    project = await call.controller.projects.set_project(call.caller, project_from(name, request), request.version)
    return call.respond(_body(call, project))


async def delete_project(call: RequestContext) -> Response:
    """Delete a project that has no parts, and no claims that have not ended."""
    await call.controller.projects.delete_project(call.caller, call.path_value("project"))
    return call.respond_empty()


async def list_quotas(call: RequestContext) -> Response:
    """List what each project is guaranteed, holds, borrows and waits for, by project and pool.

    What the key does not see is added up under the name `(hidden)`.
    """
    shown, after = call.page_request("quotas").page_of(call.controller.projects.list_quotas(call.caller), _place)
    return await call.respond_list(map(quota_body, shown), after)


def _place(quota: ProjectQuota) -> str:
    return f"{quota.project} {quota.pool}"


ROUTES = (
    Route(operations.LIST_PROJECTS, list_projects, PAGING),
    Route(operations.GET_PROJECT, get_project),
    Route(operations.SET_PROJECT, set_project),
    Route(operations.DELETE_PROJECT, delete_project),
    Route(operations.LIST_QUOTAS, list_quotas, PAGING),
)
