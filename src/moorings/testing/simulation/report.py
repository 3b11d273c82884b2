"""The result of many episodes: a table of what was reached, and what was not.

A simulator that never met a fault or a state has proved nothing about it, so that counts as a failure, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from moorings.core.model.claims import ClaimState
from moorings.core.model.devices import DeviceState
from moorings.core.model.events import EVENTS
from moorings.core.model.partitions import PartitionState
from moorings.testing.simulation.episode import EpisodeResult
from moorings.testing.simulation.fault_plan import KINDS
from moorings.workloads.runs import RunState

COLUMNS = 3
_NEVER_STORED = {ClaimState.ANNOUNCED}
_NEVER_SAVED = {PartitionState.REMOVED}
_NOT_HERE = {
    "key.created",
    "key.rotated",
    "key.revoked",
    "controller.led",
    "run.idled",
    "run.stayed_idle",
}  # access keys are not simulated; the start of a leader is not in a turn; a report of idle devices changes nothing

TO_REACH: tuple[str, ...] = (
    *(f"fault {kind}" for kind in KINDS),
    *(f"claim {state}" for state in ClaimState if state not in _NEVER_STORED),
    *(f"partition {state}" for state in PartitionState if state not in _NEVER_SAVED),
    *(f"device {state}" for state in DeviceState),
    *(f"run {state}" for state in RunState),
    *(f"event {name}" for name in EVENTS if name not in _NOT_HERE),
    *("database made ready", "log partition.stray_spared", "restore finished"),
)


def total_reached(outcomes: Iterable[EpisodeResult]) -> Counter[str]:
    """How often each was reached in all of them."""
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total += outcome.reached
    return total


def unreached(total: Counter[str]) -> list[str]:
    """The expected ones that were not reached."""
    return [what for what in TO_REACH if not total[what]]


def build_table(total: Counter[str]) -> list[str]:
    """All counts, in columns, group by group."""
    lines: list[str] = []
    groups: dict[str, list[tuple[str, int]]] = {}
    for what in sorted({*total, *TO_REACH}):
        group, _, name = what.partition(" ")
        groups.setdefault(group, []).append((name, total[what]))
    for group, cells in groups.items():
        lines += ["", group]
        width = max(len(name) for name, _ in cells)
        texts = [f"{name:<{width}} {count:>9,}" for name, count in cells]
        height = -(-len(texts) // COLUMNS)
        lines += ["  " + "   ".join(texts[row::height]) for row in range(height)]
    return lines


def build_failure(outcome: EpisodeResult, steps: int, only: Sequence[str] | None, lines: int) -> list[str]:
    """A broken law: which, when, the story before it, and the command to replay it."""
    broken = outcome.broken
    assert broken is not None
    chosen = "".join(f" --only {kind}" for kind in only or ())
    until = broken.step + 1  # the violation may come after the step was counted
    command = f"python -m moorings.testing.simulation --seed {outcome.seed} --steps {steps} --until {until}"
    return [
        *outcome.lines[-lines:],
        "",
        f"law {broken.law} is broken in episode {outcome.seed} at step {broken.step}: {broken.message}",
        "play it again with:",
        f"  {command} --story{chosen}",
    ]
