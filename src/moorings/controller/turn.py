"""One turn of the controller as a function: inputs, fleet and runs in; changes to save and replies out.

It joins core's turn (claims, partitions) and that of ``workloads`` (runs), so that both are saved in one transaction.
It decides nothing itself, waits for nothing, and does not change fleet or runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moorings.controller.turn_record import AnyInput, TurnContext, build_turn_event
from moorings.core.model.claims import Claim, ClaimId
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event
from moorings.core.model.inputs import CancelPendingClaim, CreateClaim, Input, ReleaseClaim, ResetPartition, YieldClaim
from moorings.core.model.partitions import Partition
from moorings.core.model.timestamps import Timestamp
from moorings.core.placement.fleet import Fleet, FleetChanges
from moorings.core.scheduling.turn import Reply, Turn
from moorings.ports.store import Changes, ExpectedVersion, IdempotencyRecord
from moorings.workloads.run_turn import CreateRun, ResumeRun, RunInput, RunRegistry, RunTurn, first_run
from moorings.workloads.runs import Run

AnyReply = Reply | Run


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """An input, and the idempotency key its caller sent with it."""

    given: AnyInput
    key: IdempotencyRecord | None = None


@dataclass(slots=True)
class TurnOutcome:
    """The decisions of a turn: ``changes`` go to the database, the rest to memory once they are saved.

    ``replies`` answers each input, in order; ``at`` is the turn's time.
    """

    changes: Changes
    fleet: FleetChanges
    at: Timestamp = Timestamp(0)
    runs: list[Run] = field(default_factory=list)
    replies: list[AnyReply] = field(default_factory=list)


def decide_turn(fleet: Fleet, runs: RunRegistry, inputs: Sequence[KeyedInput], occasion: TurnContext) -> TurnOutcome:
    """The outcome of a turn over ``inputs``; its last event, ``turn.decided``, records the turn's input."""
    policy, now = occasion.policy, occasion.now
    with Turn(fleet, policy, now) as turn:
        run_turn = RunTurn(runs, turn.claim, now, policy, lambda: turn.projects, fleet.claims.values)
        replies: list[AnyReply] = []
        created: dict[ClaimId, int] = {}
        for position, demanded in enumerate(inputs):
            replies.append(_handle(turn, run_turn, demanded.given))
            claim = _new_claim_id(demanded.given)
            if claim is not None:
                created[claim] = position
        for demand in run_turn.cancel_expired(turn.expire_leases(occasion.since, run_turn.has_run)):
            turn.handle_input(demand)
        for demand in run_turn.apply_claim_changes(run_turn.awaited(_changed_claims(turn))):
            turn.handle_input(demand)
        _start_dependents(turn, run_turn)
        for claim, refusal in turn.schedule(run_turn.may_have_processes):
            replies[created[claim]] = refusal
        for demand in run_turn.apply_claim_changes(_changed_claims(turn)):
            turn.handle_input(demand)
        _start_dependents(turn, run_turn)
        replies = [_current_reply(turn, run_turn, reply) for reply in replies]
        changes = _changes(turn.changes, run_turn, turn.events, inputs, replies)
        if changes or turn.changes.reserved_blocks is not None or turn.changes.queue_reports:
            changes.events.append(build_turn_event(occasion, [demanded.given for demanded in inputs], turn.plan))
        return TurnOutcome(
            changes=changes,
            at=now,
            fleet=turn.changes,
            runs=[run for run, _ in run_turn.changed.values()],
            replies=replies,
        )


def _handle(turn: Turn, run_turn: RunTurn, given: AnyInput) -> AnyReply:
    if not isinstance(given, RunInput):
        return _refusal(turn, run_turn, given) or turn.handle_input(given)
    try:
        demands = run_turn.handle_input(given)
    except MooringsError as error:
        return error
    for demand in demands:
        reply = turn.handle_input(demand)
        if isinstance(reply, MooringsError) and isinstance(given, CreateRun | ResumeRun):
            run_turn.rollback()
            return reply
    if isinstance(given, CreateRun) and (later := run_turn.held_claim(first_run(given))) is not None:
        refusal = turn.check_claim(replace(later, role=given.role))
        if refusal is not None:
            return _taken_back(run_turn, refusal)
    return run_turn.run(first_run(given) if isinstance(given, CreateRun) else given.run)


def _taken_back(run_turn: RunTurn, refusal: MooringsError) -> MooringsError:
    """Take back a run of which the later claim would be refused; return why."""
    run_turn.rollback()
    return refusal


def _changed_claims(turn: Turn) -> list[Claim]:
    return [claim for claim, _ in turn.changes.claims.values()]


def _start_dependents(turn: Turn, run_turn: RunTurn) -> None:
    """Start or cancel the runs that waited for others' ends; the end of one may decide about the next."""
    while demands := run_turn.start_dependents():
        for demand in demands:
            refusal = turn.handle_input(demand)
            if isinstance(refusal, MooringsError):
                run_turn.refuse_claim(demand.id, refusal.detail)


def _refusal(turn: Turn, run_turn: RunTurn, given: Input) -> MooringsError | None:
    """Why that claim or partition cannot be taken away now: a run is on it, perhaps since this turn (law 4)."""
    if isinstance(given, ResetPartition):
        partition = turn.partition(given.partition)
        claim = partition.claim if partition is not None else None
    elif isinstance(given, ReleaseClaim | CancelPendingClaim | YieldClaim):
        claim = given.claim
    else:
        return None
    run = run_turn.run_of_claim(claim) if claim is not None else None
    if run is None:
        return None
    hint = "it is stopped, and yields by itself" if isinstance(given, YieldClaim) else f"moor cancel {run.id}"
    return MooringsError("claim.held_by_run", f"run {run.id} has claim {claim}", hint=hint)


def _new_claim_id(given: AnyInput) -> ClaimId | None:
    if isinstance(given, CreateClaim):
        return given.id
    if isinstance(given, ResumeRun):
        return given.claim
    return given.claim if isinstance(given, CreateRun) and not given.within else None


def _current_reply(turn: Turn, run_turn: RunTurn, reply: AnyReply) -> AnyReply:
    """The reply at the end of the turn: a claim may have been granted after it was created."""
    if isinstance(reply, Run):
        return run_turn.run(reply.id)
    if isinstance(reply, Claim):
        return turn.claim(reply.id) or reply
    if isinstance(reply, Partition):
        return turn.partition(reply.id) or reply
    return reply


def _changes(
    fleet: FleetChanges,
    run_turn: RunTurn,
    events: list[Event],
    inputs: Sequence[KeyedInput],
    replies: Sequence[AnyReply],
) -> Changes:
    return Changes(
        claims=[(claim, ExpectedVersion(expected)) for claim, expected in fleet.claims.values()],
        partitions=[(partition, ExpectedVersion(expected)) for partition, expected in fleet.partitions.values()],
        removed=list(fleet.removed_partitions.items()),
        devices=list(fleet.devices.values()),
        projects=[
            (project, ExpectedVersion(expected)) for project, expected in fleet.projects.values() if project is not None
        ],
        projects_removed=[
            (name, expected)
            for name, (project, expected) in fleet.projects.items()
            if project is None and expected is not None
        ],
        usage=list(fleet.usage.values()),
        runs=[(run, ExpectedVersion(expected)) for run, expected in run_turn.changed.values()],
        jobs=run_turn.jobs,
        keys=[
            demanded.key
            for demanded, reply in zip(inputs, replies, strict=True)
            if demanded.key is not None and not isinstance(reply, MooringsError)
        ],
        events=[*events, *run_turn.events],
    )
