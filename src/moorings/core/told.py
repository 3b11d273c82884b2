"""Payloads of claims and decisions in the event log: data for canonical JSON, always the same bytes (law 9)."""

from __future__ import annotations

from moorings.core.claims import Claim, ClaimSpec
from moorings.core.plans import SchedulePlan


def claim_created_payload(claim: Claim) -> dict[str, object]:
    """The whole request, as in ``claim.created``."""
    payload = {"name": claim.name, "owner": claim.owner, "subject": claim.subject, "arrival": claim.arrival}
    return payload | claim_spec_payload(claim.spec)


def claim_spec_payload(spec: ClaimSpec) -> dict[str, object]:
    """A claim's specification, as data for canonical JSON."""
    contract = spec.checkpoint
    return {
        "kind": spec.kind,
        "size": spec.size,
        "gcds": spec.gcds,
        "replicas_per_gcd": spec.replicas_per_gcd,
        "pool": spec.pool,
        "resources": dict(spec.resources),
        "project": spec.project,
        "priority": spec.priority,
        "time_limit_s": spec.time_limit_s,
        "preemptible": spec.preemptible,
        "checkpoint": [contract.resumable, contract.warn_signal, contract.warn_s, contract.grace_s],
        "lease_s": spec.lease_s,
        "queue": spec.queue,
    }


def plan_payload(decided: SchedulePlan) -> dict[str, object]:
    """A decision, as in ``turn.decided``."""
    payload: dict[str, object] = {
        "grants": [[g.claim, g.pool, str(g.block) if g.block is not None else None] for g in decided.grants],
        "reservations": [[r.claim, r.pool, str(r.block), r.until] for r in decided.reservations],
    }
    if decided.adopted:
        payload["adopted"] = [[claim, str(cell) if cell is not None else None] for claim, cell in decided.adopted]
    if decided.reclaims:
        payload["reclaims"] = [
            [r.claim, r.by, *([r.to.pool, str(r.to.block)] if r.to is not None else ())] for r in decided.reclaims
        ]
    return payload
