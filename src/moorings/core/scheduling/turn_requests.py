"""Requests of users, admins and agents in a turn, and their direct effects: a handler for each kind of input."""

from __future__ import annotations

from dataclasses import replace

from moorings.core.model import claims
from moorings.core.model.access import EXTERNAL_OWNER_PREFIXES, Ownership, Role
from moorings.core.model.backlog import Amount, BacklogEntry, check_backlog_limits
from moorings.core.model.claims import Claim, ClaimEvent, ClaimState, claim_spec_payload
from moorings.core.model.devices import Device, DeviceEvent, PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.inputs import (
    CancelPendingClaim,
    CheckpointSaved,
    CreateClaim,
    DeleteProject,
    DrainDevice,
    ForeignPartitionsListed,
    PoolReachability,
    QueueReported,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
    SetPriority,
    SetProject,
    StrayPartitionFound,
    YieldClaim,
)
from moorings.core.model.partitions import Partition, PartitionEvent, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, Projects, check_deletable, check_project, project_changed_error
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.scheduling.turn_state import TurnState


def create_claim(turn: TurnState, given: CreateClaim) -> Claim:
    """Create a pending claim."""
    given = check_claim(turn, given)
    if turn.claim_ids_by_name.get(given.name, turn.fleet.claim_ids_by_name.get(given.name)) is not None:
        raise MooringsError(
            "claim.name_taken",
            f"an unended claim is called {given.name!r}",
            hint="choose another name, or wait until that one has ended",
        )
    _check_backlog(turn, given)
    arrival = turn.queue_reports.start_job(given.owner)
    if arrival is None and given.since is not None and given.since < turn.now:
        arrival = given.since
    if arrival is None:
        arrival = turn.last_arrival = Timestamp(max(turn.now, turn.last_arrival + 1))
    lease = add_seconds(turn.now, given.spec.lease_s) if given.spec.lease_s is not None else None
    claim = Claim(
        id=given.id,
        name=given.name,
        owner=given.owner,
        subject=given.subject,
        spec=given.spec,
        state=ClaimState.PENDING,
        arrival=arrival,
        lease_until=lease,
    )
    turn.claim_ids_by_name[given.name] = claim.id
    turn.new_claim_ids.append(claim.id)
    turn.emit_event("claim.created", claim, _created_payload(claim))
    return turn.save_claim(claim, new=True)


def check_claim(turn: TurnState, given: CreateClaim) -> CreateClaim:
    """The request with its resolved project and its priority, if it could be served as things are now."""
    given = _resolve_project(turn, given)
    most = max_priority(given.role, given.spec.project, turn.projects, turn.policy)
    if given.role is Role.AGENT and most is not None and given.spec.priority > most:
        # Its scheduler has started the job: lower the priority, do not refuse.
        given = replace(given, spec=replace(given.spec, priority=most))
    _check_priority(given.spec.priority, most, given.spec.project)
    eligible_pools(given.spec, turn.fleet.pools)
    return given


def _created_payload(claim: Claim) -> dict[str, object]:
    """The whole request, as in ``claim.created``."""
    payload = {"name": claim.name, "owner": claim.owner, "subject": claim.subject, "arrival": claim.arrival}
    return payload | claim_spec_payload(claim.spec)


def _resolve_project(turn: TurnState, given: CreateClaim) -> CreateClaim:
    """The request with its resolved project, if its subject may use that project."""
    projects = turn.projects
    if not projects:
        return given
    name = projects.resolve(given.spec.project, given.owner, given.subject)
    elsewhere = given.owner.startswith(
        EXTERNAL_OWNER_PREFIXES
    )  # that scheduler checks the account; we only know its agent
    if not elsewhere and not projects.is_member(name, given.subject):
        raise MooringsError(
            "project.not_member",
            f"{given.subject} is not a member of project {name}",
            hint="name a project of yours ('moor get projects'), or ask its admins",
        )
    limit = projects.exceeded_limit(name, given.spec.size, "" if elsewhere else given.subject)
    if limit is not None:
        project, most = limit
        detail = f"{given.spec.size} devices are more than the {most} that project {project} may hold at once"
        raise MooringsError("project.limit", detail, hint=f"ask for {most} or fewer, or in another project")
    return replace(given, spec=replace(given.spec, project=name)) if name != given.spec.project else given


def _check_backlog(turn: TurnState, given: CreateClaim) -> None:
    """Check that one more claim may be pending; claims of the same turn count as pending until the turn ends."""

    def of_project(name: str) -> Amount:
        return turn.fleet.backlog.for_project(name) + turn.backlog.for_project(name)

    waits = turn.fleet.backlog.for_subject(given.subject) + turn.backlog.for_subject(given.subject)
    asked = BacklogEntry(given.role, given.subject, given.spec.project, "claims")
    check_backlog_limits(asked, waits, of_project, turn.projects, turn.policy)


def take_queue_report(turn: TurnState, given: QueueReported) -> None:
    """Take a report of another scheduler's queue."""
    waited = (order[2] for order in turn.fleet.queue)
    known = filter(None, map(turn.claim, (*waited, *turn.changes.claims)))
    own = (claim for claim in known if claim.state is ClaimState.PENDING and given.told.is_owner_of(claim.owner))
    turn.queue_reports.accept_report(given.told, max((claim.arrival for claim in own), default=None))


def record_stray(turn: TurnState, given: StrayPartitionFound) -> None:
    """Record a partition that has our mark and no claim."""
    turn.emit_event("partition.stray_found", given.pool, {"name": given.name})


def release_claim(turn: TurnState, given: ReleaseClaim) -> Claim | None:
    """Release a claim: its partition is removed, if it has one."""
    claim = turn.claim(given.claim)
    if claim is None or claim.is_ended or claim.state is ClaimState.RELEASING:
        return claim
    claim = turn.step_claim(claim, ClaimEvent.RELEASE, Reason("claim.released", given.why))
    if claim.is_ended:
        turn.emit_event("claim.cancelled", claim, {"why": given.why})
        return claim
    turn.emit_event("claim.releasing", claim, {"why": given.why})
    partition = turn.partition(claim.partition)
    if partition is None:
        return turn.finish_release(claim)
    if partition.state is not PartitionState.REMOVING:
        turn.step_partition(partition, PartitionEvent.REMOVE, given.why)
    return claim


def cancel_pending(turn: TurnState, given: CancelPendingClaim) -> Claim | None:
    """Release a claim, but only while it waits."""
    claim = turn.claim(given.claim)
    if claim is None or claim.is_ended or claim.state is ClaimState.RELEASING:
        return claim
    if claim.state not in claims.WAITING:
        raise MooringsError(
            "claim.held",
            f"claim {claim.id} is {claim.state}: it does not wait any more",
            hint="release it without onlyWaiting, if its partition is to be removed",
        )
    return release_claim(turn, ReleaseClaim(claim.id, given.why))


def yield_claim(turn: TurnState, given: YieldClaim) -> Claim:
    """Its job has stopped as asked: the claim keeps its place in the queue, and resumes from its checkpoint."""
    claim = turn.claim(given.claim)
    if claim is None or claim.is_ended:
        raise MooringsError("claim.ended", f"claim {given.claim} has ended; it has nothing to give back")
    if claim.state is not ClaimState.RECLAIMING:
        raise MooringsError(
            "claim.not_asked",
            f"claim {claim.id} is {claim.state}: nobody has asked it to yield",
            hint="release it, if it is not needed any more",
        )
    claim = turn.step_claim(claim, ClaimEvent.YIELD, Reason("claim.yielding", given.why))
    turn.emit_event("claim.yielding", claim, {"why": given.why})
    partition = turn.partition(claim.partition)
    if partition is not None and partition.state is not PartitionState.REMOVING:
        turn.step_partition(partition, PartitionEvent.REMOVE, given.why)
    return claim


def record_checkpoint(turn: TurnState, given: CheckpointSaved) -> Claim | None:
    """Record when the job of a claim last saved a checkpoint."""
    claim = turn.claim(given.claim)
    if claim is None or claim.is_ended or claim.partition is None:
        return claim
    at = min(given.at, turn.now)
    if claim.checkpoint_at is not None and at <= claim.checkpoint_at:
        return claim
    return turn.save_claim(replace(claim, checkpoint_at=at, version=claim.version + 1))


def set_project(turn: TurnState, given: SetProject) -> Project:
    """Create or change a project."""
    project, projects = given.project, turn.projects
    known = projects.get(project.name)
    if known is not None and given.version is None:
        raise MooringsError(
            "project.exists",
            f"there is a project {project.name}",
            hint=f"'moor set project {project.name}' changes it",
        )
    if given.version is not None and (known is None or known.version != given.version):
        raise project_changed_error(project.name)
    check_project(project, projects, {name: state.pool for name, state in turn.fleet.pools.items()})
    project = replace(project, version=known.version + 1 if known is not None else 1)
    _save_project(turn, project.name, project, known)
    _emit_project_event(turn, "project.set", project.name, to_plain(project))
    return project


def delete_project(turn: TurnState, given: DeleteProject) -> None:
    """Delete a project without unended claims."""
    projects = turn.projects
    check_deletable(given.name, projects)
    changed = (claim for claim, _ in turn.changes.claims.values())
    unended = (claim for claim in (*turn.fleet.claims.values(), *changed) if not claim.is_ended)
    users = sorted({claim.id for claim in unended if claim.spec.project == given.name})
    if users:
        raise MooringsError(
            "project.in_use",
            f"{len(users)} claims of project {given.name} have not ended, {users[0]} among them",
            hint="'moor get claims' shows them; wait until they have ended, or release them",
        )
    _save_project(turn, given.name, None, projects.by_name[given.name])
    _emit_project_event(turn, "project.deleted", given.name, {})


def _save_project(turn: TurnState, name: str, project: Project | None, known: Project | None) -> None:
    before = turn.changes.projects.get(name)
    stored = turn.fleet.projects.get(name)
    expected = before[1] if before is not None else stored.version if stored is not None else None
    if project is None and expected is None:
        del turn.changes.projects[name]  # created in this turn
    else:
        turn.changes.projects[name] = (project, expected)


def _emit_project_event(turn: TurnState, name: str, project: str, data: object) -> None:
    text = canonical_json({"project": project, "is": data})
    turn.events.append(Event(name=name, at=turn.now, data=text, ownership=Ownership(project=project)))


def renew_claim(turn: TurnState, given: RenewClaim) -> Claim:
    """Renew the lease of a claim."""
    claim = turn.claim(given.claim)
    if claim is None or claim.spec.lease_s is None or claim.is_ended or claim.state is ClaimState.RELEASING:
        raise MooringsError("claim.no_lease", f"claim {given.claim} has no lease to renew")
    renewed = replace(claim, lease_until=add_seconds(turn.now, claim.spec.lease_s), version=claim.version + 1)
    turn.emit_event("claim.renewed", renewed)
    return turn.save_claim(renewed)


def set_priority(turn: TurnState, given: SetPriority) -> Claim:
    """Change the priority of a claim."""
    claim = turn.claim(given.claim)
    if claim is None or claim.is_ended:
        raise MooringsError("claim.ended", f"claim {given.claim} has ended; nothing of it waits")
    if claim.spec.priority == given.priority:
        return claim
    if given.priority > claim.spec.priority:
        _check_priority(
            given.priority, max_priority(given.role, claim.spec.project, turn.projects, turn.policy), claim.spec.project
        )
    spec = replace(claim.spec, priority=given.priority)
    changed = replace(claim, spec=spec, version=claim.version + 1)
    turn.emit_event("claim.prioritised", changed, {"from": claim.spec.priority, "to": given.priority})
    return turn.save_claim(changed)


def reset_partition(turn: TurnState, given: ResetPartition) -> Partition:
    """Order the reset of an ACTIVE partition."""
    partition = turn.partition(given.partition)
    if partition is None:
        raise MooringsError("partition.unknown", f"there is no partition {given.partition!r}")
    if partition.state is PartitionState.RESETTING:
        return partition
    if partition.state is not PartitionState.ACTIVE:
        raise MooringsError(
            "partition.not_active",
            f"partition {partition.name} is {partition.state}; only an ACTIVE one can be reset",
            retryable=True,
        )
    partition = turn.step_partition(partition, PartitionEvent.RESET, "reset was asked for")
    turn.emit_event("partition.reset", partition)
    return partition


def drain_device(turn: TurnState, given: DrainDevice) -> Device:
    """Take a device out of service."""
    return turn.step_device(given.pool, given.index, DeviceEvent.DRAIN, given.reason)


def resume_device(turn: TurnState, given: ResumeDevice) -> Device:
    """Return a device to service."""
    return turn.step_device(given.pool, given.index, DeviceEvent.RESUME, "")


def update_foreign_partitions(turn: TurnState, given: ForeignPartitionsListed) -> None:
    """Update the foreign partitions of a pool; claims yield to them."""
    known = turn.fleet.pools[given.pool].foreign_blocks
    n_devices = turn.fleet.pools[given.pool].pool.topology.n_devices
    ordered = sorted(given.blocks.items())  # drivers list in any order (law 9)
    inside = {name: Block.of([i for i in block if i < n_devices]) for name, block in ordered}
    blocks = {name: block for name, block in inside.items() if len(block)}
    if known == blocks:
        return
    turn.changes.foreign[given.pool] = blocks
    for name, block in blocks.items():
        if known.get(name) != block:
            turn.emit_event("partition.foreign_seen", given.pool, {"name": name, "devices": str(block)})
            _yield_to_foreign(turn, given.pool, name, block)
    for name, block in known.items():
        if name not in blocks:
            turn.emit_event("partition.foreign_gone", given.pool, {"name": name, "devices": str(block)})


def _yield_to_foreign(turn: TurnState, pool: PoolName, name: str, block: Block) -> None:
    """Yield to a foreign partition: claims whose partitions were about to be created on its devices try again."""
    free, on_trial = turn.fleet.pools[pool].free, turn.savepoints[pool]
    for index in block:
        alone = Block.single(index)
        if free.is_free(alone):
            on_trial.allocate(alone)
    for partition in sorted(turn.list_partitions(), key=lambda one: one.id):  # not in the order of memory (law 9)
        in_the_way = partition.block.overlaps(block) or partition.name == name
        if partition.pool != pool or partition.state is not PartitionState.PROVISIONING or not in_the_way:
            continue
        why = f"partition {name!r} on devices {block} of {pool} was not made for any claim and was there first"
        turn.step_partition(partition, PartitionEvent.REMOVE, why)
        claim = turn.claim_holding(partition)
        if claim is not None and claim.state is ClaimState.GRANTED:
            turn.emit_event("claim.broken", claim, {"devices": str(partition.block), "why": why})
            turn.step_claim(claim, ClaimEvent.BROKE, Reason("claim.broken", f"{why}; it keeps its place"))


def set_pool_reachability(turn: TurnState, given: PoolReachability) -> None:
    """Record whether the driver of a pool answers."""
    if turn.fleet.pools[given.pool].unreachable_reason == given.problem:
        return
    turn.changes.problems[given.pool] = given.problem
    name = "pool.unreachable" if given.problem else "pool.reachable"
    turn.emit_event(name, given.pool, {"problem": given.problem} if given.problem else None)


def retry_removal(turn: TurnState, given: RetryRemoval) -> Partition | None:
    """Order the removal of an ERROR partition again, if no claim holds it."""
    partition = turn.partition(given.partition)
    if partition is not None and partition.state is PartitionState.ERROR and not turn.claim_holding(partition):
        return turn.step_partition(partition, PartitionEvent.REMOVE, "removal is tried again")
    return partition


def max_priority(role: Role | None, project: str, projects: Projects, policy: Policy) -> int | None:
    """The highest priority that may be requested; None: unlimited.

    Args:
        role: of the caller; None: the claim is from before there were limits, or of the controller itself.
        project: the project of the request.
        projects: the project's own maximum, or that of its nearest ancestor, replaces the role's.
        policy: has the maximum of each role.
    """
    if role is None or role is Role.ADMIN:
        return None
    own = projects.priority_max(project)
    if own is not None:
        return own
    return policy.agent_priority_max if role is Role.AGENT else policy.user_priority_max


def _check_priority(asked: int, most: int | None, project: str) -> None:
    """Check that a priority is at most ``most``.

    Raises:
        MooringsError: ``priority.denied``.
    """
    if most is not None and asked > most:
        raise MooringsError(
            "priority.denied",
            f"priority {asked} is above {most}, the highest that you may ask for in project {project}",
            hint=f"ask for {most} or less; it would go before everybody who waits, so an admin must allow it: "
            f"moor set project {project} --priority-max {asked}",
        )
