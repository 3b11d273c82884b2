"""Idle runs: those that hold devices and have not worked for long. Each is reported, and none is ever stopped for it.

What a run has used comes in readings, of a meter whose count only grows (``ports.usage``). One reading says nothing,
and a missing one never counts against a run: the time begins again. Nothing of it is saved, so after a restart of the
controller the time begins again as well. A share of the devices' own time was refused for now: no driver reports it.
"""

from __future__ import annotations

from dataclasses import dataclass

from moorings.core.model.timestamps import Timestamp, seconds_between

WORK_SHARE = 0.01  # of the time between two readings; what waits beside a sleeping program uses less
QUIET_READINGS = 3
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.5, 60.0
_READINGS = 5  # at least, until a run is idle
_LATE_S = 10.0  # of a reading on a busy machine


@dataclass(frozen=True, slots=True)
class IdleLimits:
    """When an idle run is shown to its holder, and when to admins as well.

    Attributes:
        after_s: 0: never.
        admin_after_s: 0: never; not before ``after_s``.
    """

    after_s: float
    admin_after_s: float

    @property
    def interval_s(self) -> float:
        """The time between two readings."""
        return min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, self.after_s / _READINGS))


@dataclass(frozen=True, slots=True)
class UsageReading:
    """What an attempt of a run has used since its start, in seconds of work, such as those of one CPU."""

    attempt: int
    used_s: float


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What the readings of a run say so far.

    Attributes:
        last: the last reading, of ``read_at``.
        worked_at: the last reading before which it had worked, or the first.
        quiet: readings in a row since then.
    """

    last: UsageReading
    read_at: Timestamp
    worked_at: Timestamp
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class Idleness:
    """That a run is idle.

    Attributes:
        since: when it last worked.
        is_long: whether admins are shown it.
    """

    since: Timestamp
    is_long: bool = False


def next_usage(before: RunUsage | None, reading: UsageReading, now: Timestamp, interval_s: float) -> RunUsage:
    """The usage after a reading.

    It begins again with another attempt, a count that went back, and a gap: the machine slept, or its clock was set.
    """
    if before is None or reading.attempt != before.last.attempt:
        return RunUsage(reading, now, now)
    passed_s, used_s = seconds_between(before.read_at, now), reading.used_s - before.last.used_s
    if not 0 < passed_s <= 2 * interval_s + _LATE_S or used_s < 0 or used_s >= WORK_SHARE * passed_s:
        return RunUsage(reading, now, now)
    return RunUsage(reading, now, before.worked_at, before.quiet + 1)


def find_idleness(usage: RunUsage, limits: IdleLimits) -> Idleness | None:
    """Whether a run is idle, as of its last reading; None: it is not."""
    idle_s = seconds_between(usage.worked_at, usage.read_at)
    if not limits.after_s or idle_s < limits.after_s or usage.quiet < QUIET_READINGS:
        return None
    return Idleness(usage.worked_at, is_long=0 < limits.admin_after_s <= idle_s)
