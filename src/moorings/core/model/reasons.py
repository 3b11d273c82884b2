"""Reasons for a wait or a refusal: the answer to ``moor explain``, in one shape everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from moorings.core.model.timestamps import Timestamp


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a wait or a refusal.

    Attributes:
        code: ``noun.problem``, stable.
        message: a sentence for a human.
        blockers: ids of the claims (or devices) that stand in the way; may be empty.
        until: when it is expected to end, if limits make that known.
        hint: what would change it; may be empty.
    """

    code: str
    message: str
    blockers: tuple[str, ...] = ()
    until: Timestamp | None = None
    hint: str = ""
