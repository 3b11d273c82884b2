"""The forecasts for another policy or for moves of claims: shapes as in ``wire.shapes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from moorings.wire.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest:
    """``POST /v1/whatif``: what the policy file ``policy`` (its text) would change for those who wait now."""

    policy: str


@dataclass(frozen=True, kw_only=True)
class DefragmentRequest:
    """``POST /v1/defragment``: claims go on elsewhere, so that a block of ``size`` is free, or one for ``claim``."""

    size: int | None = None
    claim: str | None = None
    pool: str | None = None
    dry_run: bool = False
    cost_max_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class WhatIfClaimBody:
    """A claim that waits: when it starts at the latest under the policy in force, and would under the other one.

    Without the one or the other nobody can say.
    """

    claim: str
    name: str
    project: str
    size: int
    now_at: str | None = None
    then_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class WhatIfAskedBody:
    """A claim that is asked to yield or to move under a policy, and how often."""

    claim: str
    name: str
    project: str
    yields: int
    moves: int


@dataclass(frozen=True, kw_only=True)
class WhatIfSideBody:
    """What one policy does: how often it asks claims, whom, and the share of all devices' time that is in use."""

    yields: int
    moves: int
    utilisation: float
    asked: tuple[WhatIfAskedBody, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WhatIfWaitBody:
    """Of claims of one size that start under both policies: how many, and how long they wait from now on average."""

    size: int
    claims: int
    now_s: float
    then_s: float


@dataclass(frozen=True, kw_only=True)
class WhatIfBody:
    """What another policy would change: the queue is played on under both, everybody running to their time limits.

    ``claims`` are the first 1,000 that wait; ``windowS`` is the time until the last of them has started under both, and
    utilisation is that within it. ``whole`` is false where playing on took too long: what has no time may still start.
    """

    at: str
    claims: tuple[WhatIfClaimBody, ...]
    waits: tuple[WhatIfWaitBody, ...]
    now: WhatIfSideBody
    then: WhatIfSideBody
    window_s: float
    whole: bool


@dataclass(frozen=True, kw_only=True)
class MoveBody:
    """A claim that goes on elsewhere in its pool: ``devices`` it holds, and those it gets."""

    claim: str
    name: str
    project: str
    devices: str
    to: str


@dataclass(frozen=True, kw_only=True)
class DefragmentBody:
    """The room that is made (``devices`` of ``pool``), who moves for it, and the device-seconds that are lost."""

    pool: str
    devices: str
    cost_s: float
    moves: tuple[MoveBody, ...]
