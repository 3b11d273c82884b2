"""Why a claim is in its state, as far as its reader sees others: core's explanation, and the driver's problem."""

from __future__ import annotations

from moorings.controller.driver_manager import DriverManager
from moorings.controller.loop import TurnLoop
from moorings.core.model.claims import Claim, ClaimState, PartitionId
from moorings.core.model.reasons import Reason
from moorings.core.model.visibility import Visibility
from moorings.core.scheduling.explain import WaitExplanation, explain_wait, redact_reason, unreachable_reason
from moorings.ports.clock import Clock

NO_PARTITION = PartitionId("")  # never an id


def partition_of(claim: Claim) -> PartitionId:
    """The partition it holds; else an id that no partition has."""
    return claim.partition or NO_PARTITION


class ReasonService:
    """Explains claims from the controller's present state."""

    def __init__(self, loop: TurnLoop, hardware: DriverManager, clock: Clock) -> None:
        self._loop = loop
        self._hardware = hardware
        self._clock = clock

    def driver_delay(self, claim: Claim) -> Reason | None:
        """Why a granted claim's partition takes long, if that is known."""
        state = self._loop.fleet.pools.get(claim.pool) if claim.pool is not None else None
        if claim.state is not ClaimState.GRANTED or state is None:
            return None
        if state.unreachable_reason:
            return unreachable_reason(state)
        delay = self._hardware.delays.get(partition_of(claim))
        return (
            Reason("driver.unavailable", f"the driver of {claim.pool} does not make it yet: {delay}") if delay else None
        )

    def state_reason(self, claim: Claim, visible: Visibility) -> Reason | None:
        """Why a claim that does not wait is in its state."""
        return self.driver_delay(claim) or redact_reason(self._loop.fleet, claim.reason, visible)

    def explain_pending(self, claim: Claim, visible: Visibility) -> WaitExplanation | None:
        """Its position in the queue, and why it waits; None: it does not wait."""
        if claim.state is not ClaimState.PENDING or claim.id not in self._loop.fleet.claims:
            return None
        return explain_wait(self._loop.fleet, claim, self._clock.now(), self._loop.policy, visible)
