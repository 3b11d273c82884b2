"""Builders of consistent records, from a number; a test gives the fields it cares about by name.

The records of one number belong together: the claim, its partition on devices of its own, its run.
"""

from __future__ import annotations

from dataclasses import replace

from moorings.core.model.access import Role
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.events import Event
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.ports.store import AccessKey, Changes, ExpectedVersion
from moorings.workloads.jobs import JobSpec, summarize_job
from moorings.workloads.runs import Run, RunId, RunState

POOL = PoolName("pod64")
NOW = Timestamp(1_700_000_000_000_000)
NEW = ExpectedVersion(None)
DEVICES_A_CLAIM = 4


def a_claim(number: int = 0, **other: object) -> Claim:
    """A pending claim, different for every number."""
    claim = Claim(
        id=ClaimId(f"claim-{number:04d}"),
        name=f"job-{number}",
        owner=f"user/ann/{number}",
        subject="ann",
        spec=ClaimSpec(kind="ipu", size=DEVICES_A_CLAIM),
        state=ClaimState.PENDING,
        arrival=Timestamp(NOW + number),
    )
    return replace(claim, **other)  # type: ignore[arg-type]


def a_partition(number: int = 0, **other: object) -> Partition:
    """The partition of the claim of that number, on devices of its own."""
    first = number * DEVICES_A_CLAIM
    partition = Partition(
        id=PartitionId(f"part-{number:04d}"),
        name=f"job-{number}",
        claim=ClaimId(f"claim-{number:04d}"),
        pool=POOL,
        block=Block.of(range(first, first + DEVICES_A_CLAIM)),
        gcds=2,
        replicas_per_gcd=1,
        state=PartitionState.PROVISIONING,
        since=NOW,
    )
    return replace(partition, **other)  # type: ignore[arg-type]


def a_job(number: int = 0, **other: object) -> JobSpec:
    """The job of the run of that number."""
    job = JobSpec(name=f"train-{number}", command=("python3", "train.py"), workdir="/home/ann")
    return replace(job, **other)  # type: ignore[arg-type]


def a_run(number: int = 0, **other: object) -> Run:
    """The run of the claim of that number."""
    run = Run(
        id=RunId(f"run-{number:04d}"),
        job=summarize_job(a_job(number)),
        engine="local",
        subject="ann",
        claim=ClaimId(f"claim-{number:04d}"),
        state=RunState.WAITING,
        created_at=Timestamp(NOW + number),
    )
    return replace(run, **other)  # type: ignore[arg-type]


def jobs_for(*runs: Run) -> dict[RunId, JobSpec]:
    """A job for each of these runs, by its name."""
    return {run.id: a_job(name=run.job.name) for run in runs}


def a_project(number: int = 0, **other: object) -> Project:
    """A project with a guarantee of one partition of the usual size."""
    project = Project(name=f"lab-{number:04d}", shares=(ProjectShare(POOL, ((DEVICES_A_CLAIM, 1),)),))
    return replace(project, **other)  # type: ignore[arg-type]


def an_event(name: str = "claim.created", **other: object) -> Event:
    """An event."""
    return replace(Event(name=name, at=NOW), **other)  # type: ignore[arg-type]


def an_access_key(number: int = 0, **other: object) -> AccessKey:
    """A valid access key."""
    key = AccessKey(f"key{number}", "ann", Role.USER, "user/ann", f"{number:064x}", created_at=Timestamp(NOW - number))
    return replace(key, **other)  # type: ignore[arg-type]


def granted_claims(*numbers: int) -> Changes:
    """New claims, each granted, with its partition and two events."""
    changes = Changes()
    for number in numbers:
        partition = a_partition(number)
        claim = a_claim(number, state=ClaimState.GRANTED, pool=POOL, partition=partition.id, granted_at=NOW)
        changes.claims.append((claim, NEW))
        changes.partitions.append((partition, NEW))
        changes.events.append(an_event("claim.created", claim=claim.id))
        changes.events.append(an_event("claim.granted", claim=claim.id, partition=partition.id, pool=POOL))
    return changes
