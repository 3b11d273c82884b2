"""An engine with a scheduler of its own, in virtual time, as Slurm is for runs in its queue.

It keeps the engine contract as ``engine`` does, and manages its partitions itself: a run waits, runs when its turn has
come, may be requeued, and ends once. The run's name there, and the reason of its wait, are for people; no decision may
depend on them.
"""

from __future__ import annotations

from moorings.ports.engine import RunSubmission
from moorings.testing.simulation.engine import SimulatedCluster, SimulatedProcess
from moorings.workloads.runs import RunId, RunPhase, RunStatus

NAME = "slurm"
WAITS_MEAN_S = 6.0
REQUEUED_OF = 0.3  # of all starts
RUNS_BEFORE_MEAN_S = 4.0


class SimulatedScheduler(SimulatedCluster):
    """A cluster that decides the order of its runs."""

    starts_mean_s = WAITS_MEAN_S

    def submit(self, order: RunSubmission) -> str:
        super().submit(order)
        return self._number(order.run)

    def _number(self, run: RunId) -> str:
        return str([*self.processes].index(run) + 1)

    def _status(self, run: RunId) -> RunStatus:
        process = self.processes.get(run)
        if process is None:
            return RunStatus(run, RunPhase.ABSENT)
        waits = process.phase is RunPhase.STARTING
        return RunStatus(
            *(run, process.phase, process.started_at, process.end),
            reference=self._number(run),
            reason="job is PENDING (Resources)" if waits else "",
        )

    def _began(self, run: RunId, process: SimulatedProcess) -> None:
        if self._odds.chance.random() < REQUEUED_OF:
            after_s = self._odds.chance.expovariate(1 / RUNS_BEFORE_MEAN_S)
            self._loop.call_later(after_s, self._requeue, run, process.starts)

    def _requeue(self, run: RunId, start: int) -> None:
        """Its tasks are stopped, and it waits again."""
        process = self.live.get(run)
        if process is None or process.starts != start or process.cancelled is not None:
            return
        process.phase = RunPhase.STARTING
        process.starts += 1
        self._loop.call_later(self._odds.chance.expovariate(1 / WAITS_MEAN_S), self._begin, run)
        self._notify()
