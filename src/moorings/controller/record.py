"""What a turn was decided from, as ``turn.decided`` keeps it, so that it can be decided again (law 9).

Canonical JSON in the outbox, beside what followed: the audit trail, the watch stream and the replay log are one table.
A job is kept without its environment and folder: nothing is decided by them, and everybody may read the log (law 10).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from moorings.core import inputs
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical
from moorings.core.instants import Instant
from moorings.core.queue import Plan, Policy
from moorings.core.records import plain, revive
from moorings.core.turn import decided_data
from moorings.workloads.runs import RunSighting
from moorings.workloads.turn import CancelRun, CreateRun, RunInput, StartRefused

AnyInput = inputs.Input | RunInput

# The names are the log's for ever; the classes may be renamed.
INPUTS: Final[dict[str, type[AnyInput]]] = {
    "create_claim": inputs.CreateClaim,
    "release_claim": inputs.ReleaseClaim,
    "renew_claim": inputs.RenewClaim,
    "reset_partition": inputs.ResetPartition,
    "driver_answered": inputs.DriverAnswered,
    "retry_removal": inputs.RetryRemoval,
    "foreign_seen": inputs.ForeignSeen,
    "stray_seen": inputs.StraySeen,
    "pool_answers": inputs.PoolAnswers,
    "drain_device": inputs.DrainDevice,
    "resume_device": inputs.ResumeDevice,
    "create_run": CreateRun,
    "cancel_run": CancelRun,
    "start_refused": StartRefused,
    "run_seen": RunSighting,
}
_NAMES = {kind: name for name, kind in INPUTS.items()}

# Whether memory was read from the database just before: reservations and what drivers said begin anew then.
STARTED: Final = "started"  # by a controller that began to lead
RELOADED: Final = "reloaded"  # by one that went on leading after a failed save


@dataclass(frozen=True, slots=True)
class Occasion:
    """Everything beside the fleet and the runs that a turn is decided from.

    Attributes:
        now: the turn's time.
        since: from when on callers could be heard (for leases).
        policy: of the scheduler.
        memory: ``STARTED``, ``RELOADED`` or, mostly, empty.
    """

    now: Instant
    since: Instant
    policy: Policy
    memory: str = ""


def build_decided(occasion: Occasion, given: Sequence[AnyInput], decided: Plan) -> Event:
    """The event that keeps a turn: what it was decided from, and what was granted and reserved."""
    data = {
        "now": occasion.now,
        "since": occasion.since,
        "policy": plain(occasion.policy),
        "memory": occasion.memory,
        "inputs": [[_NAMES[type(one)], plain(_told(one))] for one in given],
        **decided_data(decided),
    }
    return Event(name="turn.decided", at=occasion.now, data=canonical(data))


def parse_decided(text: str) -> tuple[Occasion, tuple[AnyInput, ...]]:
    """What a turn was decided from.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        data = json.loads(text)
        return revive(Occasion, data), tuple(revive(INPUTS[name], one) for name, one in data["inputs"])
    except (ValueError, KeyError, TypeError) as error:
        raise MooringsError(
            "log.unreadable",
            f"a turn in the log cannot be read: {error!r:.200}",
            hint="it was written by another release; replay it with that one",
        ) from error


def _told(given: AnyInput) -> AnyInput:
    if isinstance(given, CreateRun):
        return replace(given, job=replace(given.job, environment={}, workdir=""))
    return given
