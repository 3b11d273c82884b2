"""The lines of ``moor motd``: what a person wants to know at a login, in six lines of 79 characters at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moorings.cli.people import DevicesLeft, find_idle_holders, holder_text, unused_text
from moorings.cli.queue_entries import QueueEntry
from moorings.core.model.timestamps import Timestamp
from moorings.terminal.text import cut_text, escape_controls
from moorings.wire.shapes import PoolBody

LINE_CHARS = 79  # one less than a terminal has: some wrap a full line
OWN_SHOWN = 2  # of the caller's runs; with them there are six lines
HOLDERS_SHOWN = 4  # likewise, for root


@dataclass(frozen=True, slots=True)
class LoginFacts:
    """What the controller says.

    Attributes:
        user: the caller; None: root.
        shows_idle: whether it is for root alone, who is shown holders of idle devices; what is for everybody has
            nothing of anybody's runs.
    """

    pools: Sequence[PoolBody]
    entries: Sequence[QueueEntry]
    user: str | None = None
    left: DevicesLeft | None = None
    shows_idle: bool = False


def build_lines(facts: LoginFacts, now: Timestamp, *, unicode: bool = True) -> list[str]:
    """The lines; ``unicode``: whether a cut one may end with a sign beyond ASCII."""
    lines = [_pools_line(facts.pools), _waiting_line(facts.entries)]
    if facts.user is not None:
        lines += _own_lines([entry for entry in facts.entries if entry.user == facts.user], now)
    elif facts.shows_idle:
        holders = [holder_text(each, now) for each in find_idle_holders(facts.entries)]
        lines += _first(holders, HOLDERS_SHOWN, "moor top")
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


def _own_lines(own: Sequence[QueueEntry], now: Timestamp) -> list[str]:
    waiting = [entry for entry in own if entry.is_waiting]
    texts = [f"  {_idle_text(entry, entry.idle.since, now)}" for entry in own if entry.idle is not None]
    texts += [f"  {_wait_text(entry)}" for entry in waiting]
    counts = f"Yours: {len(own) - len(waiting)} running, {len(waiting)} waiting"
    return [counts, *_first(texts, OWN_SHOWN, "moor get queue --mine")]


def _first(texts: list[str], most: int, command: str) -> list[str]:
    """At most so many lines, with a last one that counts the others."""
    if len(texts) <= most:
        return texts
    return [*texts[: most - 1], f"  and {len(texts) - most + 1} more: {command}"]


def _idle_text(entry: QueueEntry, since: str, now: Timestamp) -> str:
    return f"{entry.name or entry.ident} holds {entry.size} {entry.accelerator} and {unused_text(since, now)}"


def _wait_text(entry: QueueEntry) -> str:
    place = f" at position {entry.position}" if entry.position is not None else ""
    why = f": {entry.short_reason}" if entry.short_reason else ""
    return f"{entry.name or entry.ident} waits{place}{why}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
