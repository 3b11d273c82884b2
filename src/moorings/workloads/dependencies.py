"""Runs that wait for the ends of other runs, or of arrays: ``moor run --after RUN[:ok|any|failed]``.

An array has ended when all its runs have; it is ``ok`` if all have succeeded, else ``failed``. A dependent run that
waits for the success of an array is cancelled as soon as one of them ends otherwise.

Such a run has no claim until then: a claim that may not be served would stand in the plans of the queue, and in what
estimates say of it. A run depends only on runs that exist, so no cycle can arise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from moorings.core.model.claims import ClaimId, ClaimSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import OMIT_IF_DEFAULT

AFTER_MAX = 16
_CHARS_MAX = 200
_NAMED = 3  # runs that a sentence names


class AfterEnd(StrEnum):
    """Which end of a run another one waits for."""

    OK = "ok"  # it has succeeded
    ANY = "any"
    FAILED = "failed"  # any other end than a success


@dataclass(frozen=True, slots=True)
class Dependency:
    """A run, or an array, to wait for.

    Attributes:
        run: its id, or as its submitter names it.
        end: the end to wait for.
        ended: the state that it had ended in before the dependent run was submitted; empty: it had not.
        left: of an array, how many of its runs had not ended then; 0: it is one run, or had ended.
        has_failed: a run of the array has ended without success.
    """

    run: str
    end: AfterEnd = AfterEnd.OK
    ended: str = field(default="", metadata=OMIT_IF_DEFAULT)
    left: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    has_failed: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def is_met(self, *, succeeded: bool) -> bool:
        """Whether a run that has ended so is what was waited for."""
        return self.end is AfterEnd.ANY or succeeded == (self.end is AfterEnd.OK)

    def unmet_text(self, state: str) -> str:
        """Why the dependent run never starts, now that this one has ended in ``state``."""
        wanted = "success" if self.end is AfterEnd.OK else "failure"
        return f"run {self.run} is {state}, and this one runs only after its {wanted}"


@dataclass(frozen=True, slots=True)
class RunHold:
    """What a run waits for before it asks for devices.

    Attributes:
        after: the runs that have not ended; none: it waits for a place in its array.
        claim: the id of its later claim; None: its engine's scheduler makes that.
        spec: of that claim.
    """

    after: tuple[Dependency, ...]
    claim: ClaimId | None = None
    spec: ClaimSpec | None = None

    @property
    def reason(self) -> str:
        """What it waits for, as a sentence."""
        if not self.after:
            return "waits for others of its array: no more of them may ask for devices at once"
        named = [f"{'array' if each.left else 'run'} {each.run} to end ({each.end})" for each in self.after[:_NAMED]]
        more = len(self.after) - len(named)
        return f"waits for {' and '.join(named)}{f' and {more} more' if more else ''}"


def parse_dependency(text: str) -> Dependency:
    """The dependency in ``RUN[:ok|any|failed]``.

    Raises:
        MooringsError: ``job.invalid``.
    """
    name, colon, end = text.partition(":")
    if not name or len(text) > _CHARS_MAX or (colon and end not in list(AfterEnd)):
        raise MooringsError(
            "job.invalid",
            f"after {text[:80]!r} names no run and its end",
            hint="write RUN, RUN:ok, RUN:any or RUN:failed",
        )
    return Dependency(name, AfterEnd(end) if colon else AfterEnd.OK)


def check_after(texts: Sequence[str]) -> None:
    """Check the form of what a job waits for.

    Raises:
        MooringsError: ``job.invalid``.
    """
    if len(texts) > AFTER_MAX:
        detail = f"{len(texts)} runs to wait for are more than {AFTER_MAX}"
        raise MooringsError("job.invalid", detail, hint="wait for a run that waits for some of them")
    for text in texts:
        parse_dependency(text)
