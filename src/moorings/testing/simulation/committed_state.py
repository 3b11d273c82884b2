"""The contents of the database, from its own commits: the checkers' copy, beside memory and hardware.

It is updated at the moment of each commit, and compared with the rows themselves from time to time, so that neither a
controller's memory nor the store can be wrong unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from moorings.core.model.claims import Claim, ClaimId, PartitionId
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.projects import Project, ProjectUsage
from moorings.ports.store import Changes, Epoch, IdempotencyRecord, Seq, StoredState
from moorings.testing.simulation.episode_log import EpisodeLog
from moorings.workloads.runs import Run, RunId


@dataclass(slots=True)
class CommittedSnapshot:
    """The contents of the database at a moment."""

    epoch: Epoch
    seq: Seq
    claims: dict[ClaimId, Claim]
    partitions: dict[PartitionId, Partition]
    devices: dict[tuple[PoolName, int], Device]
    runs: dict[RunId, Run]
    projects: dict[str, Project]
    usage: dict[str, ProjectUsage]
    ended_claims: dict[ClaimId, Claim]
    ended_runs: dict[RunId, Run]
    keys: dict[tuple[str, str], IdempotencyRecord]
    partitions_ever: set[PartitionId]


class CommittedState:
    """Every record that has not ended, and the fixed facts of those that have.

    Attributes:
        leaps: event numbers that may skip after the one before: the database was turned back, and recovered.
        before: its contents when it was last turned back; None: it never was.
        unknown: partitions that were held when it was turned back, and that its records do not know since.
        ordered: partitions that the hardware was ordered to make.
        acted: the epoch of the last leader that saved something.
    """

    def __init__(self, story: EpisodeLog) -> None:
        self._story = story
        self.epoch = Epoch(0)
        self.seq = Seq(0)
        self.claims: dict[ClaimId, Claim] = {}
        self.partitions: dict[PartitionId, Partition] = {}
        self.devices: dict[tuple[PoolName, int], Device] = {}
        self.runs: dict[RunId, Run] = {}
        self.projects: dict[str, Project] = {}
        self.usage: dict[str, ProjectUsage] = {}
        self.ended_claims: dict[ClaimId, Claim] = {}
        self.ended_runs: dict[RunId, Run] = {}
        self.keys: dict[tuple[str, str], IdempotencyRecord] = {}
        self.partitions_ever: set[PartitionId] = set()
        self.leaps: set[int] = set()
        self.before: CommittedSnapshot | None = None
        self.unknown: dict[PartitionId, Partition] = {}
        self.ordered: set[PartitionId] = set()
        self.acted = Epoch(0)
        self._again = False
        self._forgotten: dict[str, int] = {}  # of claims and runs, by id: the newest version that is lost

    def begin_epoch(self, epoch: Epoch) -> None:
        """A controller began to lead."""
        if epoch <= self.epoch:
            self._story.break_law(1, f"epoch {epoch} follows epoch {self.epoch}")
        self._again = epoch <= self.acted
        self.epoch = epoch

    def apply_commit(self, epoch: Epoch, changes: Changes, seq: Seq) -> None:
        """A commit of the leader of ``epoch`` was done."""
        if epoch != self.epoch:
            self._story.break_law(
                1, f"a controller of epoch {epoch} changed the database after epoch {self.epoch} began"
            )
        if changes.events and seq < self.seq + len(changes.events):
            self._story.break_law(9, f"{len(changes.events)} events after {self.seq} end with number {seq}")
        self.seq = seq
        if changes and self._again:
            self._story.break_law(
                1, f"a leader of epoch {epoch} saves something, and one of {self.acted} has before it"
            )
        self.acted = max(self.acted, epoch) if changes else self.acted
        for ident, _ in changes.removed:
            if self.partitions.pop(ident, None) is None:
                self._story.break_law(2, f"partition {ident} was removed and was not there")
        for claim, save in changes.claims:
            self._claim(claim, save.expected)
        for partition, save in changes.partitions:
            self._partition(partition, save.expected)
        for device in changes.devices:
            self._device(device)
        for run, save in changes.runs:
            self._run(run, save.expected)
        self._apply_projects(changes)
        for use in changes.keys:
            if (use.subject, use.key) in self.keys:
                self._story.break_law(5, f"key {use.key} of {use.subject} was used twice")
            self.keys[use.subject, use.key] = use
        self._reach(changes)

    def _device(self, device: Device) -> None:
        self.devices.pop((device.pool, device.index), None)
        if device.state is not DeviceState.IN_SERVICE:
            self.devices[device.pool, device.index] = device

    def _claim(self, claim: Claim, expected: int | None) -> None:
        before = self.claims.get(claim.id)
        if claim.id in self.ended_claims or (before.version if before is not None else None) != expected:
            self._story.break_law(2, f"claim {claim.id} version {claim.version} was saved over {before}")
        self.claims.pop(claim.id, None)
        (self.ended_claims if claim.is_ended else self.claims)[claim.id] = claim

    def _partition(self, partition: Partition, expected: int | None) -> None:
        before = self.partitions.get(partition.id)
        if (before.version if before is not None else None) != expected:
            self._story.break_law(2, f"partition {partition.id} version {partition.version} was saved over {before}")
        if before is None:
            if partition.id in self.partitions_ever:
                self._story.break_law(1, f"partition {partition.id} was made a second time")
            self._free(partition)
        self.partitions_ever.add(partition.id)
        self.partitions[partition.id] = partition

    def _free(self, new: Partition) -> None:
        for other in self.partitions.values():
            if other.pool == new.pool and other.block.overlaps(new.block):
                self._story.break_law(1, f"partitions {other.id} and {new.id} both hold devices of {new.block}")

    def _run(self, run: Run, expected: int | None) -> None:
        before = self.runs.get(run.id)
        if run.id in self.ended_runs:
            self._story.break_law(3, f"run {run.id} ended as {self.ended_runs[run.id].state} and again as {run.state}")
        if (before.version if before is not None else None) != expected:
            self._story.break_law(3, f"run {run.id} version {run.version} was saved over {before}")
        self.runs.pop(run.id, None)
        (self.ended_runs if run.is_ended else self.runs)[run.id] = run

    def _apply_projects(self, changes: Changes) -> None:
        for project, save in changes.projects:
            self._project(project.name, project, save.expected)
        for name, expected in changes.projects_removed:
            self._project(name, None, expected)
        for usage in changes.usage:
            self.usage[usage.project] = usage
        for name, _ in changes.projects_removed:
            self.usage.pop(name, None)

    def _project(self, name: str, project: Project | None, expected: int | None) -> None:
        before = self.projects.pop(name, None)
        if (before.version if before is not None else None) != expected:
            self._story.break_law(2, f"project {name} was saved as {project} over {before}")
        if project is not None:
            self.projects[name] = project

    def _reach(self, changes: Changes) -> None:
        for claim, _ in changes.claims:
            self._story.count(f"claim {claim.state}")
        for partition, _ in changes.partitions:
            self._story.count(f"partition {partition.state}")
        for run, _ in changes.runs:
            self._story.count(f"run {run.state}")
        for device in changes.devices:
            self._story.count(f"device {device.state}")
        for event in changes.events:
            self._story.count(f"event {event.name}")

    # -- a database that goes back -----------------------------------------------------------------------------------

    def snapshot(self) -> CommittedSnapshot:
        """The present contents of the database."""
        return CommittedSnapshot(
            epoch=self.epoch,
            seq=self.seq,
            claims=dict(self.claims),
            partitions=dict(self.partitions),
            devices=dict(self.devices),
            runs=dict(self.runs),
            projects=dict(self.projects),
            usage=dict(self.usage),
            ended_claims=dict(self.ended_claims),
            ended_runs=dict(self.ended_runs),
            keys=dict(self.keys),
            partitions_ever=set(self.partitions_ever),
        )

    def rewind(self, to: CommittedSnapshot) -> None:
        """Restore the contents of that moment; the makers of lost records may still refer to them."""
        before = self.snapshot()
        if (to.seq, to.epoch) != (before.seq, before.epoch):  # else nothing is lost, and the leader continues
            self.before = before
        for claim in (*before.claims.values(), *before.ended_claims.values()):
            self._forgotten[claim.id] = claim.version
        for run in (*before.runs.values(), *before.ended_runs.values()):
            self._forgotten[run.id] = run.version
        for one in fields(CommittedSnapshot):
            value = getattr(to, one.name)
            setattr(self, one.name, value.copy() if isinstance(value, dict | set) else value)
        self.unknown |= {
            ident: partition
            for ident, partition in before.partitions.items()
            if ident not in self.partitions and partition.state is not PartitionState.REMOVING
        }
        self.partitions_ever |= self.ordered

    def finish_restore(self) -> None:
        """An admin has ended the protection of partitions without a record."""
        self.unknown.clear()

    def set_position(self, seq: Seq, epoch: Epoch) -> None:
        """Numbers continue from there."""
        self.seq, self.epoch = seq, epoch
        self.leaps.add(seq + 1)

    def follows(self, seq: int, last: int) -> bool:
        """Whether an event may be the next one."""
        return seq == last + 1 or (seq in self.leaps and seq > last)

    def was_saved_before_rewind(self, ident: str, version: int) -> bool:
        """Whether that version of a claim or a run was saved before the database was turned back."""
        return version <= self._forgotten.get(ident, 0)

    def state_for(self, epoch: Epoch) -> CommittedState | CommittedSnapshot:
        """The records a leader gave an order on: an earlier leader does not know that they were turned back."""
        return self.before if self.before is not None and epoch <= self.before.epoch else self

    def compare(self, saved: StoredState) -> None:
        """Check that the database's own rows, read at this moment, agree."""
        pairs = (
            ("claims", {claim.id: claim for claim in saved.claims}, self.claims),
            ("partitions", {partition.id: partition for partition in saved.partitions}, self.partitions),
            ("runs", {run.id: run for run in saved.runs}, self.runs),
            ("devices", {(device.pool, device.index): device for device in saved.devices}, self.devices),
            ("projects", {project.name: project for project in saved.projects}, self.projects),
            ("usage", {usage.project: usage for usage in saved.usage}, self.usage),
        )
        for what, rows, committed in pairs:
            if rows != committed:
                self._story.break_law(
                    2, f"the database's {what} are not what was committed: {_difference(rows, committed)}"
                )
        if saved.seq != self.seq:
            self._story.break_law(9, f"the database's last event is {saved.seq}, the last commit's was {self.seq}")


def _difference(rows: object, committed: object) -> str:
    assert isinstance(rows, dict)
    assert isinstance(committed, dict)
    for key in (*rows, *committed):
        if rows.get(key) != committed.get(key):
            return f"{key}: {rows.get(key)} there, {committed.get(key)} committed"
    return ""
