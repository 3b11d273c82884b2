"""An event log as ``moor events --after 0 -o json`` writes it: its rows, and the trace of jobs that is in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical
from moorings.core.instants import Instant, seconds_between
from moorings.core.policy import Policy
from moorings.core.records import revive
from moorings.core.simulate import SimulatedJob
from moorings.ports.store import Row, Seq
from moorings.wire.codec import parse_time

_HELD_UNTIL = ("claim.released", "claim.lost", "claim.failed", "claim.broken", "claim.requeued")
_EXPORT = "export it with 'moor events --after 0 -o json'"


def parse_log(text: str, source: str) -> tuple[Row, ...]:
    """The rows of an exported log.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        rows = tuple(_row(item) for item in json.loads(text)["items"])
    except (ValueError, KeyError, TypeError, RecursionError, MooringsError) as error:
        raise MooringsError(
            "log.unreadable", f"{source} is no export of an event log: {error!r:.120}", hint=_EXPORT
        ) from error
    for at, row in enumerate(rows):
        if row.seq != at + 1:
            what = f"event {row.seq} stands where event {at + 1} should be"
            raise MooringsError("log.unreadable", f"{source} is not the whole log: {what}", hint=_EXPORT)
    return rows


def _row(item: dict[str, Any]) -> Row:
    event = Event(
        name=item["name"],
        at=parse_time(item["at"]),
        claim=item.get("claim"),
        partition=item.get("partition"),
        run=item.get("run"),
        pool=item.get("pool"),
        device=item.get("device"),
        data=canonical(item.get("data", {})),
    )
    return Row(Seq(int(item["seq"])), event)


def policy_of(rows: Sequence[Row]) -> Policy:
    """The policy of the last turn.

    Raises:
        MooringsError: ``log.unreadable``: there is no turn, or one of another release.
    """
    for row in reversed(rows):
        if row.event.name == "turn.decided":
            try:
                return revive(Policy, json.loads(row.event.data)["policy"])
            except (ValueError, KeyError, TypeError) as error:
                raise MooringsError("log.unreadable", f"the policy of a turn cannot be read: {error!r:.120}") from error
    raise MooringsError("log.unreadable", "there is no turn in the log", hint=_EXPORT)


def trace_of(rows: Iterable[Row]) -> tuple[SimulatedJob, ...]:
    """The claims of a log that were granted something, as jobs: each runs as long as it held devices.

    What still held devices at the end of the log ran until then.
    """
    created: dict[str, tuple[Instant, dict[str, Any]]] = {}
    since: dict[str, Instant] = {}
    held_s: dict[str, float] = {}
    last = Instant(0)
    for row in rows:
        event, last = row.event, max(last, row.event.at)
        if event.claim is None:
            continue
        if event.name == "claim.created":
            created[event.claim] = (event.at, json.loads(event.data))
        elif event.name == "claim.granted":
            since[event.claim] = event.at
        elif event.name in _HELD_UNTIL and event.claim in since:
            held = seconds_between(since.pop(event.claim), event.at)
            held_s[event.claim] = held_s.get(event.claim, 0.0) + held
    for claim, began in since.items():
        held_s[claim] = held_s.get(claim, 0.0) + seconds_between(began, last)
    first = min((at for at, _ in created.values()), default=Instant(0))
    return tuple(
        _job(claim, seconds_between(first, at), held_s[claim], data)
        for claim, (at, data) in created.items()
        if claim in held_s
    )


def _job(claim: str, arrives_s: float, runs_s: float, data: dict[str, Any]) -> SimulatedJob:
    checkpoint = data.get("checkpoint") or [False]
    return SimulatedJob(
        name=claim,
        arrives_s=arrives_s,
        runs_s=max(0.0, runs_s),
        size=data["size"],
        kind=data["kind"],
        project=data["project"],
        subject=data.get("subject") or "user",
        priority=data["priority"],
        limit_s=data["time_limit_s"],
        preemptible=data["preemptible"],
        resumable=bool(checkpoint[0]),
    )
