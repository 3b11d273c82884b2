"""What can go wrong in an episode and how often: one ``random.Random``, from which everything in it is drawn.

Each episode troubles itself with a part of the kinds (swarm testing): with all of them at once some states are never
reached, because something always breaks first.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from moorings.drivers.simulated.faults import FaultKind

# How likely a fault strikes one call, while it may.
CALL_FAULT_RATES = {
    # an order on its way to a driver, and its answer
    "order_lost": 0.03,
    "order_late": 0.05,  # given up by us; carried out up to half a minute later
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
    # the controller dies at this very point
    "crash_before_save": 0.004,
    "crash_after_save": 0.004,
    "crash_before_act": 0.004,
    "crash_after_act": 0.004,
    # a fault of ours: deciding what somebody demands raises, whenever it is tried
    "poison": 0.5,  # of turns that have other demands, too
    # somebody makes a partition by hand, under the name of one that is about to be made
    "namesake": 0.1,
    # between a client and the controller
    "request_lost": 0.02,
    "reply_lost": 0.04,
    "other_body": 0.1,  # of retries
}
# What happens by itself: mean virtual seconds between two.
FAULT_INTERVALS_S = {
    "crash": 60.0,
    "zombie": 90.0,
    "zombie_paused": 90.0,
    "stall": 60.0,  # the controller's process is stopped for a while and goes on as if nothing had been
    "clock_forward": 60.0,
    "clock_backward": 60.0,
    "store_away": 60.0,
    "engine_away": 60.0,
    "node_lost": 20.0,
    "record_damaged": 20.0,
    "store_back": 40.0,  # the database is what it was some time ago
    **{f"vendor_{kind}": 40.0 for kind in FaultKind},
}
KINDS = (*CALL_FAULT_RATES, *FAULT_INTERVALS_S)
SHARE_MIN, SHARE_MAX = 0.3, 0.9  # of the kinds, in one episode
QUIET_OF = 0.3  # of all episodes: so few that what must happen in time can be seen to
QUIET_MAX = 0.1
RUSH_EVERY, RUSH_AT = 7, 4  # seeds: a rush is a quiet episode, too
APART_EVERY = 9
SEPARATE_FAULTS = {
    "store_back": 5,
    "poison": 7,
    "namesake": 7,
}  # in which of so many seeds they strike; drawn in no other


@dataclass(frozen=True, slots=True)
class Latency:
    """How long calls take, in seconds: most about ``usual_s``, a few up to ``slow_s``."""

    usual_s: float
    slow_s: float


class FaultPlan:
    """The chances of one episode.

    Args:
        seed: of everything.
        only: the kinds that may strike; None: a part of all, drawn.

    Attributes:
        chance: the one source of it.
        kinds: what may strike in this episode.
        calm: nothing strikes any more.
        rush: whether all want at once what they are guaranteed.
        apart: the chance of ``strikes_apart``, so that a call that asks it changes nothing of other seeds.
        goes_back: whether the database does.
    """

    def __init__(self, seed: int, only: Collection[str] | None = None) -> None:
        self.chance = random.Random(seed)
        self.apart = random.Random(f"apart {seed}")
        self.rush = seed % RUSH_EVERY == RUSH_AT  # drawn by nobody: so other seeds tell the same whatever a rush is
        quiet = self.chance.random() < QUIET_OF or self.rush
        share = self.chance.uniform(0, QUIET_MAX) if quiet else self.chance.uniform(SHARE_MIN, SHARE_MAX)
        drawn = {kind for kind in KINDS if kind not in SEPARATE_FAULTS and self.chance.random() < share}
        drawn |= {kind for kind, at in SEPARATE_FAULTS.items() if seed % APART_EVERY == at}  # drawn by nobody, likewise
        self.kinds = frozenset(drawn if only is None else only)
        self.goes_back = "store_back" in self.kinds
        self.calm = False
        self._intensity = self.chance.choice((0.5, 1.0, 2.0))
        self._store = Latency(self.chance.choice((0.0005, 0.003, 0.02)), 0.5)
        self._driver = Latency(self.chance.choice((0.002, 0.02, 0.1)), self.chance.choice((0.5, 5.0)))
        self._engine = Latency(self.chance.choice((0.002, 0.02)), 2.0)

    def strikes(self, *kinds: str) -> str | None:
        """Which of these faults strikes this call, or None."""
        drawn = self.chance.random()
        if self.calm:
            return None
        for kind in kinds:
            if kind in self.kinds:
                drawn -= CALL_FAULT_RATES[kind] * self._intensity
                if drawn < 0:
                    return kind
        return None

    def strikes_apart(self, kind: str) -> bool:
        """Whether a fault of ``APART`` strikes this call."""
        return kind in self.kinds and not self.calm and self.apart.random() < CALL_FAULT_RATES[kind]

    def pause_s(self, kind: str) -> float:
        """Virtual seconds until a happening of that kind strikes next."""
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
