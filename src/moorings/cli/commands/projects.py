"""``moor create|set|delete project``: projects and their guarantees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from moorings.cli.command_tree import (
    MoorCommand,
    NounGroup,
    examples,
    name_argument,
    names_argument,
    options,
    strip_nouns,
)
from moorings.cli.confirm import confirm, yes_option
from moorings.cli.guarantees import NONE, parse_guarantees, parse_limit, parse_user_limits
from moorings.cli.printing import make_printer, output_option
from moorings.cli.resources import PROJECTS
from moorings.core.model.projects import check_project_name
from moorings.core.model.quantities import parse_bytes
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import ProjectBody, ProjectRequest, ShareShape

CommandT = TypeVar("CommandT", bound=Callable[..., object])

_values = options(
    click.option(
        "--guarantee",
        "guarantees",
        metavar="POOL=SIZExCOUNT,...",
        multiple=True,
        help="Blocks of a pool that are its own at any time, as pod64=16x2,4x1; where devices go in any subset, so "
        "many devices, as gpu=24. For each pool once.",
    ),
    click.option(
        "--weight",
        type=float,
        metavar="W",
        help="Share of borrowed devices; twice the weight may borrow twice as much (1).",
    ),
    click.option("--devices-max", metavar="N", help="Maximum number of devices held at once (no limit)."),
    click.option("--user-devices-max", metavar="N", help="One subject holds so many of them at most (no limit)."),
    click.option(
        "--user-limit",
        "user_limits",
        metavar="SUBJECT=N",
        multiple=True,
        help="This subject holds so many of them at most, 0 for nothing, whatever --user-devices-max is.",
    ),
    click.option(
        "--priority-max",
        metavar="N",
        help="The highest priority that may be asked for in its name (as above it, or 0).",
    ),
    click.option(
        "--waiting-max",
        metavar="N",
        help="Maximum number of waiting claims, and of waiting runs (no limit).",
    ),
    click.option(
        "--waiting-bytes-max",
        metavar="SIZE",
        help="So large the jobs of these runs may be, together, as 64M (no limit).",
    ),
    click.option("--member", "members", metavar="SUBJECT", multiple=True, help="May ask in its name (everybody)."),
    click.option(
        "--admin",
        "admins",
        metavar="SUBJECT",
        multiple=True,
        help="May also cancel, pause and reorder what is in it (admins of Moorings).",
    ),
    click.option("--open/--closed", "open", default=None, help="Whether everybody sees what is in it (closed)."),
    click.option(
        "--alias",
        "aliases",
        metavar="ALIAS",
        multiple=True,
        help="Its name in another scheduler: slurm/CLUSTER/ACCOUNT or kubernetes/CLUSTER/NAMESPACE.",
    ),
)


@click.command("project", cls=MoorCommand)
@click.argument("name")
@_values
@output_option
@click.pass_obj
def create_project(session: CommandContext, /, name: str, *, output: str | None, **values: Any) -> None:  # noqa: ANN401
    """Make a project, as lab, or as a part of one, as lab/vision.

    What it is guaranteed is taken from what the project above it is guaranteed.
    """
    name = strip_nouns("project", [name])[0]
    check_project_name(name)
    made = session.client.set_project(name, _changed(session, ProjectRequest(), values))
    make_printer(session, output, usual="table").show_done(PROJECTS, made, f"project/{made.name} created")


set = NounGroup(  # noqa: A001 - a command is found by its name
    name="set",
    help="Change a project.",
    epilog=examples(
        "moor set project lab --weight 2",
        "moor set project lab --guarantee pod64=none --devices-max none",
        "moor set project lab/vision --member ann --member bert",
        "moor set project default --user-devices-max 4 --user-limit ann=8",
    ),
    no_args_is_help=True,
)


@set.command("project", cls=MoorCommand)
@name_argument("project")
@_values
@output_option
@click.pass_obj
def set_project(session: CommandContext, /, name: str, *, output: str | None, **values: Any) -> None:  # noqa: ANN401
    """Change a project; what is not given stays as it is.

    A guarantee changes that of its own pool alone, and a user limit that of its own subject. Members and aliases that
    are given take the place of those before. Where there is to be no guarantee, limit, member or alias, say none. Its
    own admins may change the members of a project.
    """
    if not any(value is not None and value != () for value in values.values()):
        raise click.UsageError("nothing is to be changed")
    name = strip_nouns("project", [name])[0]
    before = session.client.project(name)
    saved = session.client.set_project(name, _changed(session, _request(before), values))
    make_printer(session, output, usual="table").show_done(PROJECTS, saved, f"project/{saved.name} changed")


@click.command("project", cls=MoorCommand)
@names_argument("project", required=True)
@yes_option
@click.pass_obj
def delete_project(session: CommandContext, names: Sequence[str], *, yes: bool) -> None:
    """Remove projects that have no parts, and no claims that have not ended."""
    chosen = strip_nouns("project", names)
    question = f"Delete project {', '.join(chosen)}?"
    confirm(session, question, lambda: [session.client.project(name) for name in chosen], yes=yes)
    for name in chosen:
        session.client.delete_project(name)
        session.console.print_line(f"project/{name} deleted")


def _request(project: ProjectBody) -> ProjectRequest:
    return ProjectRequest(
        shares=project.shares,
        weight=project.weight,
        devices_max=project.devices_max,
        user_devices_max=project.user_devices_max,
        user_limits=project.user_limits,
        priority_max=project.priority_max,
        waiting_max=project.waiting_max,
        waiting_bytes_max=project.waiting_bytes_max,
        members=project.members,
        admins=project.admins,
        open=project.open,
        aliases=project.aliases,
        version=project.version,
    )


def _changed(session: CommandContext, request: ProjectRequest, values: Mapping[str, Any]) -> ProjectRequest:
    changes: dict[str, Any] = {}
    if values["guarantees"]:
        given = parse_guarantees(values["guarantees"], lambda pool: session.client.get_pool(pool).topology.type)
        merged = {share.pool: share.blocks for share in request.shares} | given
        changes["shares"] = tuple(
            ShareShape(pool=pool, blocks=blocks) for pool, blocks in sorted(merged.items()) if blocks
        )
    if values["weight"] is not None:
        changes["weight"] = values["weight"]
    for name in ("devices_max", "user_devices_max"):
        if values[name] is not None:
            changes[name] = parse_limit(values[name])
    if values["user_limits"]:
        changes["user_limits"] = parse_user_limits(values["user_limits"], request.user_limits or {}) or None
    if values["priority_max"] is not None:
        changes["priority_max"] = parse_limit(values["priority_max"], "priority")
    if values["waiting_max"] is not None:
        changes["waiting_max"] = parse_limit(values["waiting_max"], "number of claims")
    if values["waiting_bytes_max"] is not None:
        size = values["waiting_bytes_max"]
        changes["waiting_bytes_max"] = None if size == NONE else parse_bytes(size)
    if values["open"] is not None:
        changes["open"] = values["open"]
    for name in ("members", "admins", "aliases"):
        if values[name]:
            changes[name] = () if values[name] == (NONE,) else values[name]
    return replace(request, **changes)
