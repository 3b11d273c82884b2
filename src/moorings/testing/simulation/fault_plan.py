"""The faults of an episode and their rates: one ``random.Random``, the source of everything drawn in it.

Each episode has only some of the kinds (swarm testing): with all of them at once some states are never reached, because
something always breaks first.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from moorings.drivers.simulated.faults import FaultKind

# The probability of a fault in one call, while enabled.
CALL_FAULT_RATES = {
    # an order on its way to a driver, and its response
    "order_lost": 0.03,
    "order_late": 0.05,  # the caller has given up; done up to half a minute later
    "order_twice": 0.03,
    "answer_lost": 0.03,
    "answer_never": 0.008,
    "listing_lost": 0.02,
    "listing_stale": 0.02,
    "binding_lost": 0.05,
    # the database
    "store_refuses": 0.01,  # nothing was saved
    "store_answer_lost": 0.01,  # it was saved
    "store_conflict": 0.01,
    # engines
    "fence_lost": 0.3,
    "submit_lost": 0.12,
    "submit_answer_lost": 0.08,
    "submit_rejected": 0.15,
    "observe_lost": 0.02,
    "observe_unknown": 0.02,
    "cancel_lost": 0.3,
    # the controller dies at this point
    "crash_before_save": 0.004,
    "crash_after_save": 0.004,
    "crash_before_act": 0.004,
    "crash_after_act": 0.004,
    # an internal error: deciding a certain input raises, at every attempt
    "poison": 0.5,  # of turns that have other inputs, too
    # a partition appears outside, with the name of one that is about to be made
    "namesake": 0.1,
    # between a client and the controller
    "request_lost": 0.02,
    "reply_lost": 0.04,
    "other_body": 0.1,  # of retries
}
# Spontaneous faults: mean virtual seconds between two.
FAULT_INTERVALS_S = {
    "crash": 60.0,
    "zombie": 90.0,
    "zombie_paused": 90.0,
    "stall": 60.0,  # the controller's process is stopped for a while and continues as if nothing had happened
    "clock_forward": 60.0,
    "clock_backward": 60.0,
    "store_away": 60.0,
    "engine_away": 60.0,
    "node_lost": 20.0,
    "record_damaged": 20.0,
    "store_back": 40.0,  # the database is turned back to an earlier state
    **{f"vendor_{kind}": 40.0 for kind in FaultKind},
}
KINDS = (*CALL_FAULT_RATES, *FAULT_INTERVALS_S)
SHARE_MIN, SHARE_MAX = 0.3, 0.9  # of the kinds, in one episode
QUIET_OF = 0.3  # of all episodes: few enough faults to check the bounds on time
QUIET_MAX = 0.1
RUSH_EVERY, RUSH_AT = 7, 4  # seeds: a rush is a quiet episode, too
APART_EVERY = 9
SEPARATE_FAULTS = {
    "store_back": 5,
    "poison": 7,
    "namesake": 7,
}  # in which of these seeds they occur; drawn in no other


@dataclass(frozen=True, slots=True)
class Latency:
    """How long calls take, in seconds: most about ``usual_s``, a few up to ``slow_s``."""

    usual_s: float
    slow_s: float


class FaultPlan:
    """The probabilities of one episode.

    Args:
        seed: of everything.
        only: the kinds that may occur; None: some of all, drawn.

    Attributes:
        chance: the one source of randomness.
        kinds: the kinds that may occur in this episode.
        calm: no fault occurs any more.
        rush: whether all projects request their guarantees at once.
        apart: the randomness of ``draw_separate_fault``, so that such a call does not change other seeds.
        has_rewinds: whether the database may be turned back.
    """

    def __init__(self, seed: int, only: Collection[str] | None = None) -> None:
        self.chance = random.Random(seed)
        self.apart = random.Random(f"apart {seed}")
        self.rush = seed % RUSH_EVERY == RUSH_AT  # not drawn: so a change to rushes does not change other seeds
        quiet = self.chance.random() < QUIET_OF or self.rush
        share = self.chance.uniform(0, QUIET_MAX) if quiet else self.chance.uniform(SHARE_MIN, SHARE_MAX)
        drawn = {kind for kind in KINDS if kind not in SEPARATE_FAULTS and self.chance.random() < share}
        drawn |= {kind for kind, at in SEPARATE_FAULTS.items() if seed % APART_EVERY == at}  # not drawn, likewise
        self.kinds = frozenset(drawn if only is None else only)
        self.has_rewinds = "store_back" in self.kinds
        self.calm = False
        self._intensity = self.chance.choice((0.5, 1.0, 2.0))
        self._store = Latency(self.chance.choice((0.0005, 0.003, 0.02)), 0.5)
        self._driver = Latency(self.chance.choice((0.002, 0.02, 0.1)), self.chance.choice((0.5, 5.0)))
        self._engine = Latency(self.chance.choice((0.002, 0.02)), 2.0)

    def draw_fault(self, *kinds: str) -> str | None:
        """The fault of this call, or None."""
        drawn = self.chance.random()
        if self.calm:
            return None
        for kind in kinds:
            if kind in self.kinds:
                drawn -= CALL_FAULT_RATES[kind] * self._intensity
                if drawn < 0:
                    return kind
        return None

    def draw_separate_fault(self, kind: str) -> bool:
        """Whether a fault of ``SEPARATE_FAULTS`` occurs in this call."""
        return kind in self.kinds and not self.calm and self.apart.random() < CALL_FAULT_RATES[kind]

    def next_fault_s(self, kind: str) -> float:
        """Virtual seconds until the next fault of that kind."""
        return self.chance.expovariate(self._intensity / FAULT_INTERVALS_S[kind])

    def store_s(self) -> float:
        """Seconds that one half of a call to the database takes."""
        return self._drawn(self._store)

    def driver_s(self) -> float:
        """Seconds that a message to or from a driver takes."""
        return self._drawn(self._driver)

    def engine_s(self) -> float:
        """Seconds that a message to or from an engine takes."""
        return self._drawn(self._engine)

    def _drawn(self, latency: Latency) -> float:
        if self.chance.random() < 0.02:
            return self.chance.uniform(0, latency.slow_s)
        return self.chance.expovariate(1 / latency.usual_s)
