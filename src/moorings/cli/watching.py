"""Watch a list: the whole list once, then each item that has changed, as kubectl does.

The event stream says *that* something happened; the list is then read again, at most once a batch of events. Rebuilding
items from events was refused: it would repeat the controller's state machines in the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from moorings.cli.following import make_patience
from moorings.cli.kinds import ResourceKind
from moorings.cli.output import TableStyle, render_line, render_list
from moorings.cli.progress import Progress
from moorings.cli.showing import ResourcePrinter
from moorings.wire.codec import encode

T = TypeVar("T")


def watch_items(
    shown: ResourcePrinter, kind: ResourceKind[T], load: Callable[[], Sequence[T]], last: Callable[[str], T | None]
) -> None:
    """Show the list, then each change, until interrupted.

    Args:
        shown: the printer.
        kind: of the items.
        load: the current list.
        last: the last state of an item that has left the list; None if it is no longer known.
    """
    client = shown.session.client
    client.patience = make_patience(Progress(shown.session.console))
    before: dict[str, Any] = {}
    look = replace(shown.look, widths=[])
    for _batch in client.watch_events():
        items = load()
        now = {kind.ident(item): encode(item) for item in items}
        changed = [item for item in items if before.get(kind.ident(item)) != now[kind.ident(item)]]
        ended = (last(ident) for ident in before if ident not in now)
        changed += [item for item in ended if item is not None]
        if changed:
            _show_changed(shown, kind, changed, look)
            look = replace(look, headers=False)
        before = now


def _show_changed(shown: ResourcePrinter, kind: ResourceKind[T], items: Sequence[T], look: TableStyle) -> None:
    console, session = shown.session.console, shown.session
    if shown.form.name == "json":
        for item in items:
            console.data(render_line(kind, item, look))
    else:
        console.data(render_list(kind, items, shown.form, session.now(), look))
