"""An array of runs that a person submits to Slurm: a run, a job and a token for each element.

No array of Slurm's: each of its tasks would have one comment with all others, and a lost answer could not be settled.
All elements are saved here before the first is submitted, so the person's next ``moor`` goes on where one was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.slurm.personal.own_runs import OwnRun, OwnRuns
from moorings.wire.shapes import SubmissionBody
from moorings.workloads.arrays import ArrayPart, element_id, parse_array
from moorings.workloads.jobs import element_of


@dataclass(frozen=True, slots=True)
class ArraySubmission:
    """What was submitted of an array.

    Attributes:
        jobs: the jobs, in the order of the elements.
        error: why the next one was not; None: all were.
    """

    jobs: Sequence[int]
    error: MooringsError | None = None


def element_runs(array: str, own: OwnRun, tokens: Sequence[str]) -> dict[str, OwnRun]:
    """The runs of an array by id, in the order of their indexes.

    With a limit of N, each waits for the end of the one N places before it: then never more than N run at once.

    Args:
        array: its id.
        own: the run of the whole job.
        tokens: the secret of each.
    """
    indexes, limit = parse_array(own.job.array)
    idents = [element_id(array, index) for index in indexes]
    predecessors = [""] * min(limit, len(idents)) + idents if limit else [""] * len(idents)
    made = {}
    for index, ident, before, token in zip(indexes, idents, predecessors, tokens, strict=False):
        part = ArrayPart(array, index, len(indexes), limit)
        made[ident] = replace(own, job=element_of(own.job, part), token=token, predecessor=before)
    return made


def submit_elements(
    runs: OwnRuns, client: Client, idents: Sequence[str], submission: SubmissionBody
) -> ArraySubmission:
    """Submit the saved runs of an array one by one, up to the first that cannot be submitted now."""
    jobs: list[int] = []
    for ident in idents:
        try:
            jobs.append(runs.submit(client, ident, submission))
        except MooringsError as error:
            return ArraySubmission(jobs, error)
    return ArraySubmission(jobs)
