"""Requests of users, admins and agents in a turn, and their direct effects."""

from __future__ import annotations

from dataclasses import replace

from moorings.core import claims
from moorings.core.access import EXTERNAL_OWNER_PREFIXES, Role
from moorings.core.announced import QueueReport
from moorings.core.answers import DriverTurn
from moorings.core.backlog import Amount, BacklogEntry, check_backlog_limits
from moorings.core.claims import Claim, ClaimEvent, ClaimSpec, ClaimState
from moorings.core.devices import Device, DeviceEvent, PoolName
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical_json
from moorings.core.inputs import (
    CancelPendingClaim,
    CheckpointSaved,
    CreateClaim,
    DeleteProject,
    DrainDevice,
    ForeignPartitionsListed,
    PoolReachability,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
    SetPriority,
    SetProject,
    YieldClaim,
)
from moorings.core.instants import Timestamp, add_seconds
from moorings.core.partitions import Partition, PartitionEvent, PartitionState
from moorings.core.priorities import check_priority, max_priority
from moorings.core.projects import Project, check_deletable, check_project
from moorings.core.reasons import Reason
from moorings.core.records import to_plain
from moorings.core.serving import eligible_pools
from moorings.core.told import claim_created_payload
from moorings.core.topology import Block


class InputTurn(DriverTurn):
    """The part of a turn that handles requests."""

    def create(self, given: CreateClaim) -> Claim:
        given = self._paid(given)
        most = self._ceiling(given.spec, given.role)
        if given.role is Role.AGENT and most is not None and given.spec.priority > most:
            # Its scheduler has started the job: lower the priority, do not refuse.
            given = replace(given, spec=replace(given.spec, priority=most))
        check_priority(given.spec.priority, most, given.spec.project)
        eligible_pools(given.spec, self.fleet.pools)
        if self._names.get(given.name, self.fleet.names.get(given.name)) is not None:
            raise MooringsError(
                "claim.name_taken",
                f"an unended claim is called {given.name!r}",
                hint="choose another name, or wait until that one has ended",
            )
        self._check_quotas(given)
        arrival = self._elsewhere.start(given.owner)
        if arrival is None and given.since is not None and given.since < self.now:
            arrival = given.since
        if arrival is None:
            arrival = self._arrival = Timestamp(max(self.now, self._arrival + 1))
        lease = add_seconds(self.now, given.spec.lease_s) if given.spec.lease_s is not None else None
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
        self._names[given.name] = claim.id
        self._new.append(claim.id)
        self._tell("claim.created", claim, claim_created_payload(claim))
        return self._save_claim(claim, new=True)

    def _paid(self, given: CreateClaim) -> CreateClaim:
        """The request with its resolved project, if its subject may use that project."""
        projects = self.projects
        if not projects:
            return given
        name = projects.resolve(given.spec.project, given.owner)
        elsewhere = given.owner.startswith(
            EXTERNAL_OWNER_PREFIXES
        )  # that scheduler knows who may use the account; we only know its agent
        if not elsewhere and not projects.may(name, given.subject):
            raise MooringsError(
                "project.not_member",
                f"{given.subject} is not a member of project {name}",
                hint="name a project of yours ('moor get projects'), or ask its admins",
            )
        limit = projects.never_fits(name, given.spec.size, of_user=not elsewhere)
        if limit is not None:
            project, most = limit
            detail = f"{given.spec.size} devices are more than the {most} that project {project} may hold at once"
            raise MooringsError("project.limit", detail, hint=f"ask for {most} or fewer, or in another project")
        return replace(given, spec=replace(given.spec, project=name)) if name != given.spec.project else given

    def _ceiling(self, spec: ClaimSpec, role: Role | None) -> int | None:
        return max_priority(role, spec.project, self.projects, self.policy)

    def _check_quotas(self, given: CreateClaim) -> None:
        """Check that one more claim may be pending; claims of the same turn count as pending until the turn ends."""

        def of_project(name: str) -> Amount:
            return self.fleet.backlog.of_project(name) + self._backlog.of_project(name)

        waits = self.fleet.backlog.of_subject(given.subject) + self._backlog.of_subject(given.subject)
        asked = BacklogEntry(given.role, given.subject, given.spec.project, "claims")
        check_backlog_limits(asked, waits, of_project, self.projects, self.policy)

    def _started(self, told: QueueReport) -> Timestamp | None:
        """Arrival of the last pending claim of a queue; None: it has none."""
        waited = (order[2] for order in self.fleet.queue)
        claims = filter(None, map(self.claim, (*waited, *self.changes.claims)))
        own = (claim for claim in claims if claim.state is ClaimState.PENDING and told.owns(claim.owner))
        return max((claim.arrival for claim in own), default=None)

    def release(self, given: ReleaseClaim) -> Claim | None:
        claim = self.claim(given.claim)
        if claim is None or claim.ended or claim.state is ClaimState.RELEASING:
            return claim
        claim = self._step_claim(claim, ClaimEvent.RELEASE, Reason("claim.released", given.why))
        if claim.ended:
            self._tell("claim.cancelled", claim, {"why": given.why})
            return claim
        self._tell("claim.releasing", claim, {"why": given.why})
        partition = self.partition(claim.partition)
        if partition is None:
            return self._freed(claim)
        if partition.state is not PartitionState.REMOVING:
            self._step_partition(partition, PartitionEvent.REMOVE, given.why)
        return claim

    def withdraw(self, given: CancelPendingClaim) -> Claim | None:
        claim = self.claim(given.claim)
        if claim is None or claim.ended or claim.state is ClaimState.RELEASING:
            return claim
        if claim.state not in claims.WAITING:
            raise MooringsError(
                "claim.held",
                f"claim {claim.id} is {claim.state}: it does not wait any more",
                hint="release it without onlyWaiting, if its partition is to be removed",
            )
        return self.release(ReleaseClaim(claim.id, given.why))

    def give_way(self, given: YieldClaim) -> Claim:
        """Its job has stopped as asked: the claim keeps its place in the queue, and resumes from its checkpoint."""
        claim = self.claim(given.claim)
        if claim is None or claim.ended:
            raise MooringsError("claim.ended", f"claim {given.claim} has ended; it has nothing to give back")
        if claim.state is not ClaimState.RECLAIMING:
            raise MooringsError(
                "claim.not_asked",
                f"claim {claim.id} is {claim.state}: nobody has asked it to yield",
                hint="release it, if it is not needed any more",
            )
        claim = self._step_claim(claim, ClaimEvent.YIELD, Reason("claim.yielding", given.why))
        self._tell("claim.yielding", claim, {"why": given.why})
        partition = self.partition(claim.partition)
        if partition is not None and partition.state is not PartitionState.REMOVING:
            self._step_partition(partition, PartitionEvent.REMOVE, given.why)
        return claim

    def checkpoint(self, given: CheckpointSaved) -> Claim | None:
        claim = self.claim(given.claim)
        if claim is None or claim.ended or claim.partition is None:
            return claim
        at = min(given.at, self.now)
        if claim.checkpoint_at is not None and at <= claim.checkpoint_at:
            return claim
        return self._save_claim(replace(claim, checkpoint_at=at, version=claim.version + 1))

    def set_project(self, given: SetProject) -> Project:
        project, projects = given.project, self.projects
        known = projects.get(project.name)
        if known is not None and given.version is None:
            raise MooringsError(
                "project.exists",
                f"there is a project {project.name}",
                hint=f"'moor set project {project.name}' changes it",
            )
        if given.version is not None and (known is None or known.version != given.version):
            raise MooringsError(
                "project.changed",
                f"project {project.name} was changed or deleted meanwhile",
                hint="look at it as it is now, then change it again",
            )
        check_project(project, projects, {name: state.pool for name, state in self.fleet.pools.items()})
        project = replace(project, version=known.version + 1 if known is not None else 1)
        self._save_project(project.name, project, known)
        self._tell_project("project.set", project.name, to_plain(project))
        return project

    def delete_project(self, given: DeleteProject) -> None:
        projects = self.projects
        check_deletable(given.name, projects)
        changed = (claim for claim, _ in self.changes.claims.values())
        unended = (claim for claim in (*self.fleet.claims.values(), *changed) if not claim.ended)
        users = sorted({claim.id for claim in unended if claim.spec.project == given.name})
        if users:
            raise MooringsError(
                "project.in_use",
                f"{len(users)} claims of project {given.name} have not ended, {users[0]} among them",
                hint="'moor get claims' shows them; wait until they have ended, or release them",
            )
        self._save_project(given.name, None, projects.by_name[given.name])
        self._tell_project("project.deleted", given.name, {})

    def _save_project(self, name: str, project: Project | None, known: Project | None) -> None:
        before = self.changes.projects.get(name)
        stored = self.fleet.projects.get(name)
        expected = before[1] if before is not None else stored.version if stored is not None else None
        if project is None and expected is None:
            del self.changes.projects[name]  # created in this turn
        else:
            self.changes.projects[name] = (project, expected)

    def _tell_project(self, name: str, project: str, data: object) -> None:
        self.events.append(Event(name=name, at=self.now, data=canonical_json({"project": project, "is": data})))

    def renew(self, given: RenewClaim) -> Claim:
        claim = self.claim(given.claim)
        if claim is None or claim.spec.lease_s is None or claim.ended or claim.state is ClaimState.RELEASING:
            raise MooringsError("claim.no_lease", f"claim {given.claim} has no lease to renew")
        renewed = replace(claim, lease_until=add_seconds(self.now, claim.spec.lease_s), version=claim.version + 1)
        self._tell("claim.renewed", renewed)
        return self._save_claim(renewed)

    def prioritise(self, given: SetPriority) -> Claim:
        claim = self.claim(given.claim)
        if claim is None or claim.ended:
            raise MooringsError("claim.ended", f"claim {given.claim} has ended; nothing of it waits")
        if claim.spec.priority == given.priority:
            return claim
        if given.priority > claim.spec.priority:
            check_priority(given.priority, self._ceiling(claim.spec, given.role), claim.spec.project)
        spec = replace(claim.spec, priority=given.priority)
        changed = replace(claim, spec=spec, version=claim.version + 1)
        self._tell("claim.prioritised", changed, {"from": claim.spec.priority, "to": given.priority})
        return self._save_claim(changed)

    def reset(self, given: ResetPartition) -> Partition:
        partition = self.partition(given.partition)
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
        partition = self._step_partition(partition, PartitionEvent.RESET, "reset was asked for")
        self._tell("partition.reset", partition)
        return partition

    def drain(self, given: DrainDevice) -> Device:
        return self._device_event(given.pool, given.index, DeviceEvent.DRAIN, given.reason)

    def resume(self, given: ResumeDevice) -> Device:
        return self._device_event(given.pool, given.index, DeviceEvent.RESUME, "")

    def foreign(self, given: ForeignPartitionsListed) -> None:
        known = self.fleet.pools[given.pool].foreign
        n_devices = self.fleet.pools[given.pool].pool.topology.n_devices
        ordered = sorted(given.blocks.items())  # drivers list in any order (law 9)
        inside = {name: Block.of([i for i in block if i < n_devices]) for name, block in ordered}
        blocks = {name: block for name, block in inside.items() if len(block)}
        if known == blocks:
            return
        self.changes.foreign[given.pool] = blocks
        for name, block in blocks.items():
            if known.get(name) != block:
                self._tell("partition.foreign_seen", given.pool, {"name": name, "devices": str(block)})
                self._occupied(given.pool, name, block)
        for name, block in known.items():
            if name not in blocks:
                self._tell("partition.foreign_gone", given.pool, {"name": name, "devices": str(block)})

    def _occupied(self, pool: PoolName, name: str, block: Block) -> None:
        """Yield to a foreign partition: claims whose partitions were about to be created on its devices try again."""
        free, on_trial = self.fleet.pools[pool].free, self._trials[pool]
        for index in block:
            alone = Block(range(index, index + 1))
            if free.is_free(alone):
                on_trial.take(alone)
        for partition in sorted(self._partitions(), key=lambda one: one.id):  # not in the order of memory (law 9)
            in_the_way = partition.block.overlaps(block) or partition.name == name
            if partition.pool != pool or partition.state is not PartitionState.PROVISIONING or not in_the_way:
                continue
            why = f"partition {name!r} on devices {block} of {pool} was not made for any claim and was there first"
            self._step_partition(partition, PartitionEvent.REMOVE, why)
            claim = self._holder(partition)
            if claim is not None and claim.state is ClaimState.GRANTED:
                self._tell("claim.broken", claim, {"devices": str(partition.block), "why": why})
                self._step_claim(claim, ClaimEvent.BROKE, Reason("claim.broken", f"{why}; it keeps its place"))

    def health(self, given: PoolReachability) -> None:
        if self.fleet.pools[given.pool].problem == given.problem:
            return
        self.changes.problems[given.pool] = given.problem
        name = "pool.unreachable" if given.problem else "pool.reachable"
        self._tell(name, given.pool, {"problem": given.problem} if given.problem else None)

    def retry(self, given: RetryRemoval) -> Partition | None:
        partition = self.partition(given.partition)
        if partition is not None and partition.state is PartitionState.ERROR and not self._holder(partition):
            return self._step_partition(partition, PartitionEvent.REMOVE, "removal is tried again")
        return partition
