"""Runs and claims by name. Two of one name are asked about: a guess would stop or explain the wrong job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from moorings.cli.arrays import find_run
from moorings.cli.command_tree import singular
from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.queue_entries import QueueEntry, load_queue
from moorings.cli.resources import elapsed_text, size_text
from moorings.core.model.claims import is_id
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext
from moorings.terminal.text import escape_controls

LISTED_MAX = 20


@dataclass(frozen=True, slots=True)
class Named:
    """What a name means: ``noun`` is ``run`` or ``claim``."""

    noun: str
    ident: str


def resolve_run(session: CommandContext, name: str, command: str) -> str:
    """The run that a name means among those that have not ended; the name itself if none or one has it.

    Args:
        session: of this command.
        name: an id, or the name of a job.
        command: what is to be done, for the hint: ``moor cancel``.

    Raises:
        UsageErrorWithHint: several have it, and there is no terminal to ask at.
    """
    chosen = _select_among_active(session, name, command, lambda entry: entry.run is not None)
    return chosen.ident if chosen is not None else name


def resolve_any(session: CommandContext, name: str, command: str) -> Named:
    """The run or claim that a name means: by its noun, by its id, else of what runs or waits, else of what has ended.

    Raises:
        UsageErrorWithHint: as ``resolve_run``.
        MooringsError: ``run.unknown``: there is neither.
    """
    before, slash, after = name.partition("/")
    if slash and singular(before) in ("run", "claim"):
        return Named(singular(before), after)
    if slash:
        raise click.UsageError(f"{name!r} is neither a run nor a claim")
    return _select_among_active(session, name, command, lambda _entry: True) or _find(session, name)


def _select_among_active(
    session: CommandContext, name: str, command: str, is_meant: Callable[[QueueEntry], bool]
) -> Named | None:
    if is_id(name):
        return None
    found = [entry for entry in load_queue(session.client) if is_meant(entry) and entry.name == name]
    if not found:
        return None
    if len(found) > 1:  # one's own come first, as for the controller
        me = session.client.who_am_i().subject
        found = [entry for entry in found if entry.user == me] or found
    entry = found[0] if len(found) == 1 else _ask_which(session, name, command, found)
    return Named("run" if entry.run else "claim", entry.ident)


def _ask_which(session: CommandContext, name: str, command: str, found: Sequence[QueueEntry]) -> QueueEntry:
    console = session.console
    several = f"{len(found)} runs or claims are called {name!r}"
    shown = found[:LISTED_MAX]
    lines = [f"{entry.ident}: {_summary(session, entry)}" for entry in shown]
    if not console.can_ask:
        more = f", and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
        raise UsageErrorWithHint(
            f"{several}: {'; '.join(lines)}{more}", hint=f"name one by its id: {command} {_reference(found[0])}"
        )
    console.error(f"{several}:")
    for number, line in enumerate(lines, start=1):
        console.error(f"{number:3}  {line}")
    number = click.prompt(escape_controls("Which one?"), type=click.IntRange(1, len(shown)), err=True)
    return shown[number - 1]


def _reference(entry: QueueEntry) -> str:
    return entry.ident if entry.run else f"claim/{entry.ident}"


def _summary(session: CommandContext, entry: QueueEntry) -> str:
    place = f"position {entry.position}" if entry.position is not None else ""
    parts = (
        entry.user,
        entry.state,
        size_text(entry.size, entry.accelerator),
        elapsed_text(entry, session.now()),
        place,
    )
    return ", ".join(part for part in parts if part)


def _find(session: CommandContext, name: str) -> Named:
    try:
        return Named("run", find_run(session.client, name).id)
    except MooringsError as error:
        if error.code != "run.unknown":
            raise
    try:
        return Named("claim", session.client.get_claim(name).id)
    except MooringsError as error:
        if error.code != "claim.unknown":
            raise
        raise MooringsError(
            "run.unknown",
            f"there is no run or claim {name!r}",
            hint="see 'moor get runs --all' and 'moor get claims --all'",
        ) from error
