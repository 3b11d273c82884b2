"""The last parsed version of a job: most reconciles find the version that the last one found or wrote. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moorings.kubernetes.ipujob import IPUJob, KubeObject
from moorings.kubernetes.reading import parse_ipujob

_PASSING = frozenset({"resourceVersion", "managedFields"})  # what every write changes


@dataclass(slots=True)
class ParsedJob:
    """The parsed form of one job.

    Attributes:
        found: the object.
        job: parsed from it.
    """

    found: KubeObject | None = None
    job: IPUJob | None = None

    def read(self, found: KubeObject, start_deadline_s: int | None) -> IPUJob:
        """The job of an object; parses only what changed.

        Args:
            found: the object.
            start_deadline_s: default for a job without its own.
        """
        if self.job is None or self.found is None or not _is_same(self.found, found):
            job = parse_ipujob(found)
            self.job = job if job.start_deadline_s is not None else replace(job, start_deadline_s=start_deadline_s)
            self.found = found
        return self.job

    def note(self, before: KubeObject, written: KubeObject, job: IPUJob) -> None:
        """Record that a status was written.

        Args:
            before: the object that ``job`` was parsed from.
            written: the API server's response.
            job: the job with that status.
        """
        if _beside_status(written) == _beside_status(before):  # no other change came in between
            self.found, self.job = written, job


def _is_same(one: KubeObject, other: KubeObject) -> bool:
    """Whether two objects are one version of one job. Its class's priority may have been filled in since."""
    if one is other:
        return True
    same = all(one["metadata"][name] == other["metadata"][name] for name in ("uid", "resourceVersion"))
    return same and one.get("spec") == other.get("spec")


def _beside_status(found: KubeObject) -> KubeObject:
    metadata = {name: value for name, value in found["metadata"].items() if name not in _PASSING}
    return {"metadata": metadata, "spec": found.get("spec")}
