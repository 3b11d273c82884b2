"""Chooses the jobs that a job of higher rank preempts, from Slurm's jobs, its rules and the controller's devices.

Slurm never preempts a job for a license, so a job of the highest tier would wait for IPUs behind all others. One
pending job is helped at a time, the first in Slurm's order, with the block whose holders have lost least: the
longest-running holder decides. No job is preempted where a block is free or being freed; nor where a claim of another
owner waits before the job, because that claim would get the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology
from moorings.core.placement.free_map import OUT_OF_SERVICE
from moorings.core.placement.release_times import release_times_for
from moorings.slurm.formats import JobRecord, SlurmJobPhase
from moorings.slurm.host.job_table import REASON_LICENSES, ClusterIdentity, JobStart, has_ended, start_of, uses_licenses
from moorings.slurm.host.preemption_rules import PreemptionRules
from moorings.wire.shapes import DeviceBody, PoolBody

_FREEING = Timestamp(0)


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pending job and the jobs to preempt for it."""

    waiting: JobRecord
    victims: tuple[JobRecord, ...]


def waiting_in_order(jobs: Iterable[JobRecord], rules: PreemptionRules) -> list[JobRecord]:
    """Return the jobs that only wait for IPUs, in Slurm's order."""
    found = [
        job
        for job in jobs
        if job.order is not None and job.phase is SlurmJobPhase.WAITING and job.reason == REASON_LICENSES
    ]
    return sorted(found, key=lambda job: (-rules.tier(job), -job.priority, job.job_id))


def may_preempt_any(jobs: Mapping[int, JobRecord], rules: PreemptionRules, now: Timestamp) -> bool:
    """Whether any pending job may preempt any running one, whatever they hold."""
    waiting = waiting_in_order(jobs.values(), rules)
    running = [job for job in jobs.values() if uses_licenses(job)] if waiting else []
    return any(rules.may_preempt(high, low, now) for high in waiting for low in running)


def choose_victims(
    jobs: Mapping[int, JobRecord],
    pools: Sequence[tuple[PoolBody, Sequence[DeviceBody]]],
    next_up: Mapping[str, str],
    home: ClusterIdentity,
    rules: PreemptionRules,
    now: Timestamp,
) -> Preemption | None:
    """Return the jobs to preempt now, and for which job; None: no preemption.

    Args:
        jobs: a complete listing.
        pools: the pools for jobs of the cluster, with their devices.
        next_up: by pool, the owner of the job that gets the next free devices from the controller.
        home: the jobs' cluster.
        rules: of the cluster.
        now: the time.
    """
    for waiting in waiting_in_order(jobs.values(), rules):
        assert waiting.order is not None
        best: tuple[Timestamp, tuple[JobRecord, ...]] | None = None
        for pool, devices in pools:
            if next_up.get(pool.name) != _owner(waiting, home):
                continue
            topology = topology_of(pool)
            if topology.ineligible_reason(waiting.order.ipus, waiting.order.gcds) is not None:
                continue
            held = {device.index: device for device in devices}
            losses = {
                index: _loss(device, jobs, waiting, home, rules, now)
                for index, device in held.items()
                if _is_held(device)
            }
            found = _cheapest_block(topology, waiting.order.ipus, losses)
            if found is None or found[1] >= OUT_OF_SERVICE:
                continue
            block, lost = found
            owners = {held[index].owner for index in block if index in held}
            victims = [job for job in jobs.values() if _owner(job, home) in owners and uses_licenses(job)]
            if best is None or lost < best[0]:
                best = (lost, tuple(sorted(victims, key=lambda job: job.job_id)))
        if best is not None:
            return Preemption(waiting, best[1]) if best[1] else None
    return None


def topology_of(pool: PoolBody) -> Topology:
    """Return a pool's topology as a value."""
    shape = pool.topology
    if shape.type == "any-subset":
        return AnySubset(pool.devices, shape.max_block)
    if shape.type == "catalogue":
        return Catalogue(pool.devices, tuple(map(Block.parse, shape.blocks)))
    return PowerOfTwo(shape.domains, shape.domain_size, shape.max_block)


def _is_held(device: DeviceBody) -> bool:
    return device.partition is not None or device.state != "IN_SERVICE"


def _owner(job: JobRecord, home: ClusterIdentity) -> str | None:
    return JobStart.of(job, job.order).owner(home) if job.order is not None else None


def _cheapest_block(topology: Topology, size: int, losses: Mapping[int, Timestamp]) -> tuple[Block, Timestamp] | None:
    """The block whose holders have lost least, and that loss; ``losses``: of held devices."""
    if isinstance(topology, AnySubset):  # release times would choose devices with late ends, not the free ones
        chosen = sorted((losses.get(index, _FREEING), index) for index in range(topology.n_devices))[:size]
        return Block.of([index for _, index in chosen]), chosen[-1][0]
    ends = release_times_for(topology)
    for index, loss in losses.items():
        ends.set_release(Block.single(index), loss)
    found = ends.earliest_block(size)
    return None if found is None else (found[0], max(found[1], _FREEING))


def _loss(
    device: DeviceBody,
    jobs: Mapping[int, JobRecord],
    waiting: JobRecord,
    home: ClusterIdentity,
    rules: PreemptionRules,
    now: Timestamp,
) -> Timestamp:
    """Return what the holder of a device has lost, in the place of a release time; OUT_OF_SERVICE: it stays."""
    start = start_of(device.owner or "")
    job = jobs.get(start.job_id) if start is not None else None
    if device.state != "IN_SERVICE" or start is None or job is None or start.owner(home) != device.owner:
        return OUT_OF_SERVICE
    if has_ended(start, jobs) or not uses_licenses(job):
        return _FREEING
    if _owner(job, home) != device.owner or job.start_time is None or not rules.may_preempt(waiting, job, now):
        return OUT_OF_SERVICE
    return Timestamp(max(now - job.start_time, 0) + 1)
