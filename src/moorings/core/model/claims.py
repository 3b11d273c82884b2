"""Claims: a request for a partition, and then the lease on it.

The claim is the unit of queueing, quota and ownership; it outlives its partitions (one for each attempt). This file
holds the request (``ClaimSpec`` and its limits), the record (``Claim``) and the one table of its states.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NewType

from moorings.core.model.access import EXTERNAL_OWNER_PREFIXES, OWNER_KINDS, check_subject
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.state_machine import terminal_states, transition
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block

ClaimId = NewType("ClaimId", str)
PartitionId = NewType("PartitionId", str)

NAME_CHARS_MAX = 36  # facts: V-IPU partition names over 36 characters fail with a misleading device error
SIZE_MAX = 1 << 20  # no pool is larger; bounds arithmetic and messages for hostile sizes
PRIORITY_MAX = 1_000_000
TIME_LIMIT_S_MAX = 366 * 86_400
LEASE_S_MIN, LEASE_S_MAX = 5, 7 * 86_400
BROKEN_BLOCKS_LIMIT = 3  # a claim fails after so many broken blocks
OWNER_CHARS_MAX = 200
KEY_CHARS_MAX = 200

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,34}[a-z0-9])?")
_ID = re.compile(r"((claim|run)-[a-z2-7]{12}|wsjob-[a-z2-7]{22})(-[0-9]+)?")
_PROJECT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?")
_OWNER = re.compile(r"[a-z]+(/(?!\.{1,2}(/|$))[A-Za-z0-9._@+-]{1,120}){1,6}")
AUTO_SIGNAL = "auto"  # the first of ``AUTO_SIGNALS`` that the process has a handler for
AUTO_SIGNALS = ("USR2", "USR1", "TERM")
WARN_SIGNALS = (AUTO_SIGNAL, "USR1", "USR2", "TERM", "INT", "HUP")


class ClaimState(StrEnum):
    """The state of a claim."""

    ANNOUNCED = "ANNOUNCED"  # demand in another scheduler's queue; counted everywhere, never granted by itself
    PENDING = "PENDING"  # waits in our queue; holds nothing
    GRANTED = "GRANTED"  # holds a block; the partition is being created
    READY = "READY"  # the partition is ACTIVE; the job may run
    RECLAIMING = "RECLAIMING"  # its job was asked to checkpoint and yield; still holds the partition
    YIELDING = "YIELDING"  # the job has stopped for a reclaim; the partition is being removed
    LOST = "LOST"  # the partition vanished; the claim holds the block until its job ends
    RELEASING = "RELEASING"  # its owner released it; the partition is being removed
    RELEASED = "RELEASED"  # ended: held a block, holds nothing now
    CANCELLED = "CANCELLED"  # ended: never held anything
    FAILED = "FAILED"  # ended: could not be served (rejected, or too many blocks broke)


class ClaimEvent(StrEnum):
    """What can happen to a claim."""

    GRANT = "grant"
    READY = "ready"
    BROKE = "broke"
    REJECT = "reject"
    RELEASE = "release"
    RECLAIM = "reclaim"
    YIELD = "yield"
    REQUEUE = "requeue"
    LOSE = "lose"
    FREED = "freed"


# An ANNOUNCED claim is created in each turn that counts it and never saved, so it has no moves.
NEXT: dict[ClaimState, dict[ClaimEvent, ClaimState]] = {
    ClaimState.PENDING: {
        ClaimEvent.GRANT: ClaimState.GRANTED,
        ClaimEvent.RELEASE: ClaimState.CANCELLED,
    },
    ClaimState.GRANTED: {
        ClaimEvent.READY: ClaimState.READY,
        ClaimEvent.BROKE: ClaimState.PENDING,  # the block is quarantined; the claim keeps its place
        ClaimEvent.REJECT: ClaimState.FAILED,
        ClaimEvent.RELEASE: ClaimState.RELEASING,
    },
    ClaimState.READY: {
        ClaimEvent.RECLAIM: ClaimState.RECLAIMING,
        ClaimEvent.LOSE: ClaimState.LOST,
        ClaimEvent.RELEASE: ClaimState.RELEASING,
    },
    ClaimState.RECLAIMING: {
        ClaimEvent.YIELD: ClaimState.YIELDING,
        ClaimEvent.LOSE: ClaimState.LOST,
        ClaimEvent.RELEASE: ClaimState.RELEASING,
    },
    ClaimState.YIELDING: {
        ClaimEvent.REQUEUE: ClaimState.PENDING,
        ClaimEvent.RELEASE: ClaimState.RELEASING,
    },
    ClaimState.LOST: {
        ClaimEvent.RELEASE: ClaimState.RELEASING,
    },
    ClaimState.RELEASING: {
        ClaimEvent.FREED: ClaimState.RELEASED,
    },
    ClaimState.RELEASED: {},
    ClaimState.CANCELLED: {},
    ClaimState.FAILED: {},
}

ENDED = terminal_states(NEXT)
WAITING = frozenset({ClaimState.ANNOUNCED, ClaimState.PENDING})
USABLE = frozenset({ClaimState.READY, ClaimState.RECLAIMING})  # its job may use its partition
SERVED = USABLE | {ClaimState.GRANTED}  # its partition works, or is being created
LEAVING = frozenset({ClaimState.RECLAIMING, ClaimState.YIELDING, ClaimState.RELEASING})  # its devices will be free soon


class QueueMode(StrEnum):
    """What to do if no block is free now."""

    WAIT = "wait"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class CheckpointContract:
    """What the job promises about stopping and resuming.

    Attributes:
        resumable: a new attempt resumes from the newest complete checkpoint.
        warn_signal: signal name (without SIG) sent before a stop, or ``auto``.
        warn_s: seconds between the warning and the time limit.
        grace_s: seconds between TERM and KILL.
    """

    resumable: bool = False
    warn_signal: str = AUTO_SIGNAL
    warn_s: float = 120.0
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """The request of a claim.

    Attributes:
        kind: kind of accelerator (``ipu``, ``gpu``, ``csx``), as in the pools file.
        size: devices; 0 only with ``resources``.
        gcds: graph compilation domains the partition is cut into; divides ``size``.
        replicas_per_gcd: model replicas inside one GCD; divides the devices of one GCD.
        pool: only this pool, or any pool of the kind.
        resources: secondary resources by name, in base units (``memory`` in bytes).
        project: the project it is charged to.
        priority: higher is first.
        time_limit_s: how long it may hold its partition; None: unlimited.
        preemptible: may be asked to yield.
        checkpoint: what its job promises.
        lease_s: the claim is released unless its owner renews it within this time; None: no lease.
        queue: wait, or be refused at once.
        machine: with devices, what its job needs of the controller's machine (``core.model.machine``), in base units;
            it is granted with the devices or not at all.
        person: for whom a program claims, by its word (the user of a Slurm job); only shown. Empty: for its subject.
    """

    kind: str
    size: int
    gcds: int = 1
    replicas_per_gcd: int = 1
    pool: PoolName | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    project: str = "default"
    priority: int = 0
    time_limit_s: float | None = None
    preemptible: bool = False
    checkpoint: CheckpointContract = CheckpointContract()
    lease_s: float | None = None
    queue: QueueMode = QueueMode.WAIT
    machine: Mapping[str, int] = field(default_factory=dict, metadata=OMIT_IF_DEFAULT)
    person: str = field(default="", metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class PoolBlock:
    """A block of a pool."""

    pool: PoolName
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The record of one claim.

    ``version`` counts its saves (optimistic locking); ``arrival`` orders equals in the queue and is strictly
    increasing; ``attempt`` counts earlier grants that ended in a requeue; ``broken`` counts blocks that broke under it.

    ``cell`` is the guaranteed block that contains its own block (None: it holds nothing, or borrows);
    ``checkpoint_at`` is the last reported checkpoint of its job; ``asked_until`` is the deadline of a request to yield;
    ``kept`` is the block where it resumes after a move.
    """

    id: ClaimId
    name: str
    owner: str
    subject: str
    spec: ClaimSpec
    state: ClaimState
    arrival: Timestamp
    version: int = 1
    attempt: int = 0
    broken: int = 0
    pool: PoolName | None = None
    partition: PartitionId | None = None
    reason: Reason | None = None
    granted_at: Timestamp | None = None
    ready_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    lease_until: Timestamp | None = None
    cell: Block | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    checkpoint_at: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    asked_until: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    kept: PoolBlock | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    @property
    def queue_key(self) -> tuple[int, Timestamp, ClaimId]:
        """Its place in the queue: priority, then arrival; the id breaks ties."""
        return (-self.spec.priority, self.arrival, self.id)

    @property
    def user(self) -> str:
        """The user for limits of users; empty for another scheduler's job: only its agent is known here."""
        return "" if self.owner.startswith(EXTERNAL_OWNER_PREFIXES) else self.subject

    @property
    def has_yielded(self) -> bool:
        """Whether it has yielded its devices to others; attempts on broken blocks do not count."""
        return self.attempt > self.broken

    @property
    def is_ended(self) -> bool:
        """Whether no event can happen to it any more."""
        return self.state in ENDED


def step(claim: Claim, event: ClaimEvent, now: Timestamp, reason: Reason | None = None) -> Claim:
    """The claim after ``event``.

    Raises:
        IllegalTransitionError: the table has no such move.
    """
    state = transition(NEXT, "claim", claim.id, claim.state, event, lambda: _history(claim))
    changed: dict[str, Any] = {"state": state, "reason": reason, "version": claim.version + 1}
    if state is ClaimState.GRANTED:
        changed["granted_at"] = now
    elif state is ClaimState.READY and claim.state is ClaimState.GRANTED:
        changed["ready_at"] = now
    elif state in WAITING and claim.state not in WAITING:
        changed |= {"attempt": claim.attempt + 1, "pool": None, "partition": None, "granted_at": None, "ready_at": None}
    elif state in ENDED:
        changed["ended_at"] = now
    return replace(claim, **changed)


def _history(claim: Claim) -> tuple[str, ...]:
    parts = [f"asked for {claim.spec.size} {claim.spec.kind} by {claim.owner}", f"attempt {claim.attempt}"]
    if claim.partition is not None:
        parts.append(f"partition {claim.partition} in pool {claim.pool}")
    if claim.reason is not None:
        parts.append(claim.reason.message)
    return tuple(parts)


def check_name(name: str, *, what: str = "claim") -> str:
    """``name``, if a vendor's controller accepts it.

    Raises:
        MooringsError: ``name.invalid``.
    """
    if len(name) > NAME_CHARS_MAX:
        raise MooringsError(
            "name.invalid",
            f"{what} name {name[:48]!r} has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed",
            hint="longer names make the vendor's library fail later with a misleading device error",
        )
    if not _NAME.fullmatch(name):
        raise MooringsError(
            "name.invalid",
            f"{what} name {name!r} is not allowed",
            hint="use lower-case letters, digits, '-', '.' and '_'; begin and end with a letter or digit",
        )
    return name


def is_id(text: str) -> bool:
    """Whether a text is an id as controllers make them, and so no name that anybody chose."""
    return bool(_ID.fullmatch(text))


def check_new_name(name: str) -> str:
    """``name``, if a user may choose it: it must not have the form of a claim's or run's id.

    Raises:
        MooringsError: ``name.invalid``.
    """
    if is_id(name):
        raise MooringsError(
            "name.invalid", f"claim name {name!r} has the form of an id", hint="choose a name that says what it is for"
        )
    return check_name(name, what="claim")


def check_owner(owner: str) -> str:
    """``owner`` if it has the form ``<kind>/<part>[/<part>...]``.

    Raises:
        MooringsError: ``owner.invalid``.
    """
    if len(owner) > OWNER_CHARS_MAX or not _OWNER.fullmatch(owner) or owner.split("/", 1)[0] not in OWNER_KINDS:
        raise MooringsError(
            "owner.invalid",
            f"owner {owner[:80]!r} is not allowed",
            hint=f"an owner is KIND/NAME[/...] with KIND one of {', '.join(OWNER_KINDS)}",
        )
    return owner


def check_spec(spec: ClaimSpec) -> ClaimSpec:
    """``spec``, if it is valid for any pool; a pool's topology decides whether that pool can serve it.

    Raises:
        MooringsError: ``claim.size_invalid``, ``claim.gcds_invalid``, ``claim.replicas_invalid``, ``claim.invalid``,
            ``key.invalid``.
    """
    if spec.size < 0 or spec.size > SIZE_MAX:
        raise MooringsError(
            "claim.size_invalid", f"size {spec.size} is out of range", hint=f"ask for 1 to {SIZE_MAX} devices"
        )
    if spec.size == 0 and not spec.resources:
        raise MooringsError(
            "claim.size_invalid", "size 0 asks for nothing", hint="ask for at least one device, or for resources"
        )
    _check_split(spec)
    for name, amount in (*spec.resources.items(), *spec.machine.items()):
        if not name or len(name) > NAME_CHARS_MAX or amount < 0:
            raise MooringsError("claim.invalid", f"resource {name[:48]!r}: {amount} is not allowed")
    if abs(spec.priority) > PRIORITY_MAX:
        raise MooringsError(
            "claim.invalid", f"priority {spec.priority} is out of range", hint=f"use -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
    if not _PROJECT.fullmatch(spec.project):
        raise MooringsError(
            "claim.invalid",
            f"project {spec.project[:80]!r} is not allowed",
            hint="use up to 64 letters, digits, '.', '_', '-' and '/'",
        )
    if spec.person:
        check_subject(spec.person)
    if spec.checkpoint.warn_signal not in WARN_SIGNALS:
        raise MooringsError(
            "claim.invalid",
            f"warn signal {spec.checkpoint.warn_signal[:20]!r} is not allowed",
            hint=f"use one of {', '.join(WARN_SIGNALS)}",
        )
    if spec.time_limit_s is not None and not 1 <= spec.time_limit_s <= TIME_LIMIT_S_MAX:
        raise MooringsError(
            "claim.invalid", f"time limit {spec.time_limit_s:g} s is out of range", hint="use one second to 366 days"
        )
    if spec.lease_s is not None and not LEASE_S_MIN <= spec.lease_s <= LEASE_S_MAX:
        raise MooringsError(
            "claim.invalid",
            f"lease {spec.lease_s:g} s is out of range",
            hint=f"use {LEASE_S_MIN} to {LEASE_S_MAX} seconds",
        )
    return spec


def _check_split(spec: ClaimSpec) -> None:
    if spec.gcds < 1 or (spec.size and spec.size % spec.gcds) or (not spec.size and spec.gcds != 1):
        raise MooringsError(
            "claim.gcds_invalid",
            f"{spec.gcds} GCDs do not divide a partition of {spec.size} devices",
            hint="the number of GCDs (tasks) must divide the number of devices",
        )
    per_gcd = spec.size // spec.gcds
    if spec.replicas_per_gcd < 1 or (spec.replicas_per_gcd > 1 and (not per_gcd or per_gcd % spec.replicas_per_gcd)):
        raise MooringsError(
            "claim.replicas_invalid",
            f"{spec.replicas_per_gcd} replicas do not divide the {per_gcd} devices of one GCD",
            hint="the number of replicas must divide the devices of each GCD",
        )


def digested_warn_signal(contract: CheckpointContract) -> str:
    """The warn signal in the digest of a request: one with the default of now is the one with the default of before.

    A request that was sent before an upgrade must be the same when it is sent again.
    """
    return "USR1" if contract.warn_signal == AUTO_SIGNAL else contract.warn_signal


def claim_spec_payload(spec: ClaimSpec) -> dict[str, object]:
    """A specification as data for canonical JSON: in the event log and in the store, always the same bytes (law 9)."""
    contract = spec.checkpoint
    return {
        "kind": spec.kind,
        "size": spec.size,
        "gcds": spec.gcds,
        "replicas_per_gcd": spec.replicas_per_gcd,
        "pool": spec.pool,
        "resources": dict(spec.resources),
        "project": spec.project,
        "priority": spec.priority,
        "time_limit_s": spec.time_limit_s,
        "preemptible": spec.preemptible,
        "checkpoint": [contract.resumable, digested_warn_signal(contract), contract.warn_s, contract.grace_s],
        "lease_s": spec.lease_s,
        "queue": spec.queue,
        **({"machine": dict(spec.machine)} if spec.machine else {}),
        **({"person": spec.person} if spec.person else {}),
    }
