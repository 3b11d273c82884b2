"""Events: one row for every state change and for every input of a decision.

They are the audit trail, the watch stream and the replay log at once. Names are ``noun.verb_past``, and ``EVENTS`` has
all of them. ``data`` is canonical JSON (sorted keys, no spaces), so equal decisions are equal bytes (law 9).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.model.access import Ownership
from moorings.core.model.timestamps import Timestamp

EVENT_VERSION = 1

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

EVENTS: dict[str, str] = {
    "claim.created": "somebody asked for a partition; data holds the whole request",
    "claim.granted": "a block was chosen and reserved in the database; the partition is being made",
    "claim.ready": "the partition is ACTIVE",
    "claim.broken": "the block broke before it was ready; it is quarantined and the claim waits again",
    "claim.failed": "the claim ended: it could not be served",
    "claim.cancelled": "the claim ended before it held anything",
    "claim.releasing": "its owner is done; the partition is being removed",
    "claim.released": "the claim ended and nothing is left of its partition",
    "claim.renewed": "its owner renewed the lease",
    "claim.lapsed": "its lease ran out",
    "claim.prioritised": "its priority was changed; data tells from what to what",
    "claim.lost": "its partition vanished under it",
    "claim.reclaiming": "its holder was asked to yield; data tells for whom, by when, and where it would go on",
    "claim.yielding": "its job has stopped, as it was asked; the partition is being removed",
    "claim.requeued": "nothing is left of its partition; it waits again, in its old place",
    "claim.covered": "its block is within what its project is guaranteed from now on; no cell: no more, but borrowed",
    "partition.reset": "a reset was asked for",
    "partition.active": "the driver reported it usable",
    "partition.broken": "the driver reported it broken, or it could not be removed",
    "partition.removed": "the driver reported that nothing is left",
    "partition.stray_found": "the driver has a partition with our mark that nobody holds; it is being removed",
    "partition.foreign_seen": "somebody outside Moorings made a partition; its devices are not given out",
    "partition.foreign_gone": "a partition made outside Moorings has gone",
    "device.quarantined": "a partition broke on it",
    "device.drained": "it was taken out of service",
    "device.resumed": "it was put back into service",
    "pool.unreachable": "its driver does not answer; nothing new is placed there",
    "pool.reachable": "its driver answers again",
    "queue.told": "another scheduler's agent told what waits there; data holds how many jobs, and the first",
    "queue.contested": "another instance of that scheduler told a list, too, and was refused; data names it",
    "queue.silent": "nothing was heard of another scheduler's queue; its jobs are no longer reckoned with",
    "project.set": "an admin made a project or changed it; data holds all of it",
    "project.deleted": "an admin removed a project",
    "run.created": "somebody started a job; data holds its name and command",
    "run.eligible": "it asks for devices: what it waited for has ended, or its array has a place; data tells",
    "run.queued": "its engine's scheduler has it; data tells what it is called there",
    "run.requeued": "it was stopped and waits again: it has yielded, or its engine's scheduler says so; data tells why",
    "run.starting": "its partition is ACTIVE; the engine was asked to start it",
    "run.started": "its processes run",
    "run.checkpoint_saved": "a look found a newer whole checkpoint; data tells its path, step, size and the rule",
    "run.checkpoints_unseen": "its checkpoint folder cannot be looked at; data tells why",
    "run.idled": "it holds devices and has not worked for a while; data tells which, and since when",
    "run.stayed_idle": "it has been idle for so long that admins are shown it; data as of run.idled",
    "run.yielding": "its devices are needed elsewhere: it is warned, then stopped; data tells why, and by when",
    "run.pausing": "it is paused: warned, and stopped once it has saved; data tells by whom, and how long it may take",
    "run.paused": "nothing of it runs, and its claim was released; data tells why, and its next attempt",
    "run.retrying": "its attempt was lost, nothing of it runs, and it is retried; data has the reason and the time",
    "run.resumed": "it was resumed, and waits with a new claim; data tells the checkpoint, if one was chosen",
    "run.stopping": "it was asked to stop",
    "run.labelled": "its labels were changed; data has all it has now",
    "run.ended": "it ended; data tells how",
    "turn.decided": "the end of a turn; data holds its time, policy and inputs, what was granted and what reserved",
    "key.created": "an access key was made",
    "key.rotated": "an access key got a new secret; data tells until when the old one works (microseconds since 1970)",
    "key.revoked": "an access key was revoked",
    "database.turned_back": "the database went back to an earlier moment, or a backup was restored; data holds what "
    "its records learned of the world: which runs were started since, and on which partitions",
    "controller.led": "a controller began to lead",
}

# About the hardware, not about what is held of it: everybody may see these.
PUBLIC_EVENTS = tuple(name for name in EVENTS if name.startswith(("pool.", "device.")))
UNOWNED = Ownership()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened, before it has a sequence number.

    Attributes:
        ownership: whose record it is about, for who may see it. No part of the decision: equal events may differ in it,
            as in a log that was written before events had it.
    """

    name: str
    at: Timestamp
    claim: str | None = None
    partition: str | None = None
    run: str | None = None
    pool: str | None = None
    device: str | None = None
    data: str = "{}"
    ownership: Ownership = field(default=UNOWNED, compare=False)


def canonical_json(data: Mapping[str, object]) -> str:
    """``data`` as canonical JSON in ASCII, which also carries invalid Unicode: equal values give equal bytes."""
    return _CANONICAL.encode(data)
