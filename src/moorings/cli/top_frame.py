"""One frame of ``moor top`` as text: pools, people, idle holders, and as much of the queue as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moorings.cli.output import OutputFormat, TableStyle, render_list, render_table
from moorings.cli.people import UserSummary, devices_text, find_idle_holders, holder_text, summarize_users
from moorings.cli.queue_entries import QueueEntry
from moorings.cli.resources import QUEUE_ENTRIES
from moorings.core.model.timestamps import Timestamp
from moorings.terminal.text import cut_text, escape_controls
from moorings.wire.codec import format_time
from moorings.wire.shapes import PoolBody, ProjectBody

PEOPLE_PART = 3  # the table of people takes at most one part in so many of the lines; the queue has the rest
IDLE_SHOWN = 4  # lines


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What a frame shows, as of ``at``."""

    at: Timestamp
    pools: Sequence[PoolBody]
    entries: Sequence[QueueEntry]
    projects: Sequence[ProjectBody]


def build_frame(
    shown: QueueSnapshot, now: Timestamp, *, look: TableStyle, lines_max: int | None = None, problem: str = ""
) -> str:
    """The frame.

    Args:
        shown: what there is.
        now: the time.
        look: of the tables.
        lines_max: lines of the terminal; None: the frame has all rows.
        problem: why ``shown`` is older than ``now``; empty: it is not.
    """
    head = [_cut(line, look) for line in _head(shown, now, problem)]
    pools = _pool_lines(shown.pools, look)
    people = _people_lines(shown, look)
    if lines_max is not None:
        people = _fit(people, max(3, lines_max // PEOPLE_PART), "more people")
    lines = [*head, "", *pools, "", *people, ""] if people else [*head, "", *pools, ""]
    if idle := [_cut(escape_controls(holder_text(each, now)), look) for each in find_idle_holders(shown.entries)]:
        lines += [*(idle if lines_max is None else _fit(idle, IDLE_SHOWN, "more idle holders")), ""]
    queue = _queue_lines(shown, now, look)
    if lines_max is not None:
        queue = _fit(queue, lines_max - len(lines), "more")
    return "\n".join([*lines, *queue][:lines_max]).rstrip("\n")


def _head(shown: QueueSnapshot, now: Timestamp, problem: str) -> list[str]:
    waiting = sum(entry.is_waiting for entry in shown.entries)
    counts = f"{len(shown.entries) - waiting} running, {waiting} waiting"
    if not problem:
        return [f"moor top   {_clock(now)}   {counts}"]
    return [
        f"moor top   {_clock(now)}   as of {_clock(shown.at)}: {counts}",
        f"No answer, trying again: {escape_controls(problem)}",
    ]


def _clock(at: Timestamp) -> str:
    return f"{format_time(at)[11:19]}Z"


def _pool_lines(pools: Sequence[PoolBody], look: TableStyle) -> list[str]:
    rows = [
        (
            pool.name,
            pool.accelerator,
            str(pool.devices),
            str(max(0, pool.devices - pool.free - pool.out_of_service)),
            str(pool.free),
            str(pool.out_of_service),
            str(pool.waiting),
            "UP" if pool.reachable else "UNREACHABLE",
        )
        for pool in pools
    ]
    return render_table(
        ("POOL", "KIND", "TOTAL", "IN_USE", "FREE", "OUT", "WAITING", "STATE"), rows, look, narrowed=(0,)
    ).splitlines()


def _people_lines(shown: QueueSnapshot, look: TableStyle) -> list[str]:
    users = summarize_users(shown.entries, shown.pools, shown.projects)
    if not users:
        return []
    headers = ["USER", "DEVICES", "SHARE", "RUNNING", "WAITING"]
    rows = [_person(user) for user in users]
    if any(user.user_quotas for user in users):
        headers.append("QUOTA")
        rows = [[*row, _quota_text(user)] for row, user in zip(rows, users, strict=True)]
    return render_table(headers, rows, look, narrowed=(0,)).splitlines()


def _person(user: UserSummary) -> list[str]:
    return [user.user, devices_text(user.held), f"{user.share:.0%}", str(user.running), str(user.waiting)]


def _quota_text(user: UserSummary) -> str:
    return ", ".join(f"{quota.held} of {quota.most} in {quota.project}" for quota in user.user_quotas)


def _queue_lines(shown: QueueSnapshot, now: Timestamp, look: TableStyle) -> list[str]:
    if not shown.entries:
        return [f"{QUEUE_ENTRIES.nothing}."]
    return render_list(QUEUE_ENTRIES, shown.entries, OutputFormat("table"), now, look).splitlines()


def _fit(lines: list[str], most: int, more: str) -> list[str]:
    """At most so many lines of a table, with a last one that counts the others."""
    if len(lines) <= most:
        return lines
    left = max(1, most - 1)
    return [*lines[:left], f"... and {len(lines) - left} {more}"]


def _cut(line: str, look: TableStyle) -> str:
    return line if look.width is None else cut_text(line, look.width, unicode=look.unicode)
