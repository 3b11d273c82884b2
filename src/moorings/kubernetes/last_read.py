"""A job as it was read last: most looks at a job find the version that the look before found or wrote. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moorings.kubernetes.ipujob import IPUJob, KubeObject
from moorings.kubernetes.reading import parse_ipujob

_PASSING = frozenset({"resourceVersion", "managedFields"})  # what every write changes


@dataclass(slots=True)
class ParsedJob:
    """What was read of one job.

    Attributes:
        found: the object.
        job: what was read of it.
    """

    found: KubeObject | None = None
    job: IPUJob | None = None

    def read(self, found: KubeObject, start_deadline_s: int | None) -> IPUJob:
        """The job in an object.

        Args:
            found: the object.
            start_deadline_s: of a job that names none.
        """
        if self.job is None or self.found is None or not _is_same(self.found, found):
            job = parse_ipujob(found)
            self.job = job if job.start_deadline_s is not None else replace(job, start_deadline_s=start_deadline_s)
            self.found = found
        return self.job

    def note(self, before: KubeObject, written: KubeObject, job: IPUJob) -> None:
        """Take in that a status was written.

        Args:
            before: the object that ``job`` was read of.
            written: what the API server made of it.
            job: the job with that status.
        """
        if _beside_status(written) == _beside_status(before):  # nothing else was changed meanwhile
            self.found, self.job = written, job


def _is_same(one: KubeObject, other: KubeObject) -> bool:
    """Whether two objects are one version of one job. Its priority may have been filled in since: that of its class."""
    if one is other:
        return True
    same = all(one["metadata"][name] == other["metadata"][name] for name in ("uid", "resourceVersion"))
    return same and one.get("spec") == other.get("spec")


def _beside_status(found: KubeObject) -> KubeObject:
    metadata = {name: value for name, value in found["metadata"].items() if name not in _PASSING}
    return {"metadata": metadata, "spec": found.get("spec")}
