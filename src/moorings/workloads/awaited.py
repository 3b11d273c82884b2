"""What a new run waits for, as the runs that were found for a name: one run, or those of an array."""

from __future__ import annotations

from collections.abc import Sequence

from moorings.core.model.errors import MooringsError
from moorings.workloads.dependencies import AfterEnd, Dependency
from moorings.workloads.runs import Run, RunState

AWAITED_JOBS_MAX = 10_000  # of one submission to a scheduler that follows dependencies itself


def dependency_on(runs: Sequence[Run], end: AfterEnd) -> Dependency:
    """The dependency on one run, or on the array that these runs are; the first is reported if one has failed.

    Args:
        runs: at least one; several are all runs of an array.
        end: the end to wait for.
    """
    first = runs[0]
    if len(runs) == 1:
        return Dependency(first.id, end, first.state.value if first.is_ended else "")
    assert first.job.array is not None
    array = first.job.array.id
    failed = next((run for run in runs if run.is_ended and run.state is not RunState.SUCCEEDED), None)
    if failed is not None and end is AfterEnd.OK:  # it can never be met: this one says why
        return Dependency(failed.id, end, failed.state.value)
    left = sum(not run.is_ended for run in runs)
    if left:
        return Dependency(array, end, left=left, has_failed=failed is not None)
    return Dependency(array, end, failed.state.value if failed is not None else RunState.SUCCEEDED.value)


def check_own_dependency(each: Dependency, runs: Sequence[Run], engine: str, subject: str) -> None:
    """Raise if a run that its person submits to a scheduler cannot wait for these: the scheduler itself waits.

    Args:
        each: the dependency.
        runs: those of it that have not ended.
        engine: of the new run.
        subject: who submits it.

    Raises:
        MooringsError: ``run.never_starts``, ``engine.rejected``.
    """
    if each.ended:
        hint = f"leave it out, or wait for any end: {each.run}:any"
        raise MooringsError("run.never_starts", each.unmet_text(each.ended), hint=hint)
    other = next((run for run in runs if run.engine != engine or run.submitter is None), None)
    if other is not None:
        detail = f"run {other.id} is on engine {other.engine}, and this one is a job of your own in Slurm"
        raise MooringsError("engine.rejected", detail, hint=f"submit it once that has ended: moor wait {other.id}")
    other = next((run for run in runs if run.subject != subject), None)
    if other is not None:
        detail = f"run {other.id} is {other.subject}'s: your job in Slurm waits for your own jobs alone"
        raise MooringsError("engine.rejected", detail, hint=f"submit it once that has ended: moor wait {other.id}")
    if each.left and each.end is AfterEnd.FAILED:
        detail = f"Slurm cannot wait until a run of array {each.run} has failed and all have ended"
        raise MooringsError("engine.rejected", detail, hint=f"wait for any end: {each.run}:any")
