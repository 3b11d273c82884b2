"""Displaces jobs for those of higher rank: reads Slurm's rules, asks the controller who holds what, and acts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from moorings.client.client import Client
from moorings.core.instants import SECOND, Instant
from moorings.slurm.commands import Commands
from moorings.slurm.formats import JobRecord, build_cancel, build_config, build_requeue, parse_config
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.ledger import KIND, Home, uses_licenses
from moorings.slurm.host.preempt import choose, waiting_in_order
from moorings.slurm.host.tiers import Preempt, Rules, build_partitions, build_qos, parse_rules
from moorings.slurm.host.troubles import Troubles
from moorings.wire.shapes import DeviceBody, PoolBody

log = logging.getLogger("moorings.slurm.agent")

RULES_S = 60.0  # a changed slurm.conf or QOS counts after so long
PAUSE_S = 1.0


class Preemptor:
    """Sees to it that a job of higher rank does not wait for IPUs behind those that it may displace.

    Attributes:
        rules: of the cluster, as last read.

    Args:
        slurm: its commands.
        calls: to the controller.
        home: of the jobs.
        pool: that they are placed in; empty: any of the kind.
        troubles: where it is told what fails.
    """

    def __init__(self, slurm: Commands, calls: Calls, home: Home, pool: str, troubles: Troubles) -> None:
        self.rules = Rules()
        self._slurm = slurm
        self._calls = calls
        self._home = home
        self._pool = pool
        self._troubles = troubles
        self._jobs: Mapping[int, JobRecord] = {}
        self._look = asyncio.Event()

    def look(self, jobs: Mapping[int, JobRecord]) -> None:
        """Take in a good listing."""
        self._jobs = jobs
        if self.rules.by is not Preempt.NONE:
            self._look.set()

    async def serve_rules(self) -> None:
        """Keep ``rules``, for ever."""
        while True:
            with self._troubles.told("slurm.rules") as good:
                self.rules = await self._read()
            await asyncio.sleep(RULES_S if good else PAUSE_S)

    async def _read(self) -> Rules:
        config = parse_config(await self._slurm.ask(build_config()))
        partitions = await self._slurm.ask(build_partitions())
        by_qos = config.get("PreemptType") == Preempt.QOS
        return parse_rules(config, partitions, await self._slurm.ask(build_qos()) if by_qos else b"")

    async def serve(self) -> None:
        """Act on the listings, for ever."""
        while True:
            await self._look.wait()
            self._look.clear()
            with self._troubles.told("job.displace"):
                await self._displace(self._jobs)
            await asyncio.sleep(PAUSE_S)

    async def _displace(self, jobs: Mapping[int, JobRecord]) -> None:
        rules, now = self.rules, Instant(int(time.time() * SECOND))
        running = [job for job in jobs.values() if uses_licenses(job)]
        waiting = waiting_in_order(jobs.values(), rules)
        if not any(rules.may_displace(high, low, now) for high in waiting for low in running):
            return
        pools, queue = await self._calls(lambda client: (self._pools(client), client.queue(self._home.queue)))
        found = choose(jobs, pools, queue.next_up, self._home, rules, now)
        if found is None:
            log.debug("nobody.displaced", extra={"next_up": str(dict(queue.next_up))})
            return
        for job in found.victims:
            again = rules.is_requeued(job)
            fields = {"job": job.job_id, "for_job": found.waiting.job_id, "requeued": again}
            log.info("job.displaced", extra=fields)
            await self._slurm.ask(build_requeue(job.target) if again else build_cancel(job.target))

    def _pools(self, client: Client) -> list[tuple[PoolBody, tuple[DeviceBody, ...]]]:
        named = [pool for pool in client.pools() if pool.accelerator == KIND and self._pool in ("", pool.name)]
        return [(pool, client.devices(pool.name)) for pool in named]
