"""A check's result: its verdict, the evidence and the remedy. Checks only read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from moorings.core.model.errors import MooringsError
from moorings.doctor.checks import docs_link
from moorings.wire.shapes import FindingBody


class CheckStatus(StrEnum):
    """The result of a check."""

    PASS = "PASS"  # noqa: S105 - no password
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


PASS, WARN, FAIL, SKIP = CheckStatus


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result: its id, verdict, evidence and remedy."""

    id: str
    verdict: CheckStatus
    evidence: str
    fix: str = ""


def failed_finding(check: str, error: MooringsError) -> Finding:
    """The finding for an error during a check."""
    return Finding(check, FAIL, error.detail, error.hint)


def skipped_findings(checks: Iterable[str], why: str) -> list[Finding]:
    """The findings of checks that could not run."""
    return [Finding(check, SKIP, why) for check in checks]


def build_finding_body(finding: Finding) -> FindingBody:
    """The finding in a controller's response, with a link to its section in the manual."""
    return FindingBody(
        id=finding.id,
        verdict=finding.verdict,
        evidence=finding.evidence,
        fix=finding.fix,
        docs=docs_link(finding.id),
    )


def parse_finding(body: FindingBody) -> Finding:
    """The finding in a controller's response."""
    known = body.verdict in set(CheckStatus)  # a newer release may have more
    return Finding(body.id, CheckStatus(body.verdict) if known else WARN, body.evidence, body.fix)
