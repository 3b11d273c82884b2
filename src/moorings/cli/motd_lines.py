"""The lines of ``moor motd``: what a person wants to know at a login, in six lines of 79 characters at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moorings.cli.people import DevicesLeft
from moorings.cli.queue_entries import QueueEntry
from moorings.terminal.text import cut_text, escape_controls
from moorings.wire.shapes import PoolBody

LINE_CHARS = 79  # one less than a terminal has: some wrap a full line
WAITING_SHOWN = 2  # of the caller's own; with them there are six lines


@dataclass(frozen=True, slots=True)
class LoginFacts:
    """What the controller says; ``user`` is the caller, None for the machine's own message, without anybody's runs."""

    pools: Sequence[PoolBody]
    entries: Sequence[QueueEntry]
    user: str | None = None
    left: DevicesLeft | None = None


def build_lines(facts: LoginFacts, *, unicode: bool = True) -> list[str]:
    """The lines; ``unicode``: whether a cut one may end with a sign beyond ASCII."""
    lines = [_pools_line(facts.pools), _waiting_line(facts.entries)]
    if facts.user is not None:
        lines += _own_lines([entry for entry in facts.entries if entry.user == facts.user])
    if facts.left is not None:
        left = facts.left
        lines.append(f"Quota: {left.left} of {left.most} devices left in project {left.project}")
    return [cut_text(escape_controls(line), LINE_CHARS, unicode=unicode) for line in lines]


def _pools_line(pools: Sequence[PoolBody]) -> str:
    """As many pools as one line has room for."""
    texts = [
        f"{pool.name} {pool.free} of {pool.devices} {pool.accelerator}"
        if pool.reachable
        else f"{pool.name} unreachable"
        for pool in pools
    ]
    for count in range(len(texts), 0, -1):
        rest = f", {len(texts) - count} more pools" if count < len(texts) else ""
        line = f"Free: {', '.join(texts[:count])}{rest}"
        if len(line) <= LINE_CHARS or count == 1:
            return line
    return "Free: there are no pools"


def _waiting_line(entries: Sequence[QueueEntry]) -> str:
    waiting = [entry for entry in entries if entry.is_waiting]
    people = len({entry.user for entry in waiting})
    if not waiting:
        return "Waiting: none"
    return f"Waiting: {_count(people, 'person', 'people')} with {_count(len(waiting), 'job', 'jobs')}"


def _own_lines(own: Sequence[QueueEntry]) -> list[str]:
    waiting = [entry for entry in own if entry.is_waiting]
    lines = [f"Yours: {len(own) - len(waiting)} running, {len(waiting)} waiting"]
    shown = waiting if len(waiting) <= WAITING_SHOWN else waiting[: WAITING_SHOWN - 1]
    lines += [f"  {_wait_text(entry)}" for entry in shown]
    if len(shown) < len(waiting):
        lines.append(f"  and {len(waiting) - len(shown)} more: moor get queue --mine")
    return lines


def _wait_text(entry: QueueEntry) -> str:
    place = f" at position {entry.position}" if entry.position is not None else ""
    why = f": {entry.short_reason}" if entry.short_reason else ""
    return f"{entry.name or entry.ident} waits{place}{why}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
