"""Programs on partitions, as their own diaries and the journal of the simulated hardware tell; for stories of kills.

Neither passes through the controller, or what brought the partition to the program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorings.drivers.simulated.partition import SimulatedPartition, parse_partition

SKEW_S = 0.005  # between a program's look at the clock and the journal's


@dataclass(frozen=True, slots=True)
class Life:
    """One program, from its first line to its last.

    Attributes:
        name: of its job, with the number of its task.
        start: the job's id and how often it had been requeued.
        step: of the job, with its rank.
        partition: what it was told; empty: nothing.
        devices: likewise.
        begun: in epoch seconds; ``last`` is when it last wrote a line.
        whole: whether it came to its end.
    """

    name: str
    start: tuple[str, str]
    step: str
    partition: str
    devices: frozenset[int]
    begun: float
    last: float
    whole: bool


@dataclass(frozen=True, slots=True)
class Made:
    """A partition of the hardware: its devices, and from when to when it was usable, in epoch seconds."""

    name: str
    devices: frozenset[int]
    ready: float
    gone: float | None


def parse_diary(name: str, text: str) -> list[Life]:
    """The lives that a job's diary tells of; its lines are job, restart, step, event, time, partition and devices."""
    lives: dict[tuple[str, ...], Life] = {}
    for line in text.splitlines():
        job, restart, step, event, time, partition, devices = line.split()
        key = (job, restart, step)
        at = float(time)
        numbers = frozenset(int(number) for number in re.findall(r":(\d+)", devices))
        before = lives.get(key)
        begun = at if before is None or event == "begin" else before.begun
        told = "" if partition == "-" else partition
        lives[key] = Life(name, (job, restart), step, told, numbers, begun, at, event == "end")
    return [*lives.values()]


def orders(data: Path) -> dict[tuple[int, float], SimulatedPartition]:
    """The partitions of the simulated hardware as its own journal tells, by serial and since when they are ready.

    A reset makes another entry. A controller that starts compacts the journal: look before.
    """
    found: dict[tuple[int, float], SimulatedPartition] = {}
    for journal in (data / "simulated").glob("*/journal.jsonl"):
        for line in journal.read_text().splitlines():
            record = json.loads(line)
            if record["is"] == "partition":
                one = parse_partition(record)
                found[record["serial"], one.ready_at / 1e6] = one
    return found


def made_by(found: Mapping[tuple[int, float], SimulatedPartition], provision_s: float, remove_s: float) -> list[Made]:
    """When they were usable, where a reset takes ``provision_s`` and a removal ``remove_s``."""
    made = []
    for (serial, ready), one in found.items():
        resets = [other for of, other in found if of == serial and other > ready]
        gone = min(resets) - provision_s if resets else None
        if not resets and one.gone_at is not None:
            gone = one.gone_at / 1e6 - remove_s
        made.append(Made(one.name, frozenset(one.block.members), ready, gone))
    return made


def misused(lives: Sequence[Life], made: Sequence[Made], skew_s: float = SKEW_S) -> Iterator[str]:
    """Programs outside their partition, and devices in use twice."""
    by_name: dict[str, list[Made]] = {}
    for one in made:
        by_name.setdefault(one.name, []).append(one)
    for life in lives:
        of = f"{life.name} {'.'.join(life.start)} step {life.step}"
        if not life.partition:
            yield f"{of} ran without a partition"
        elif not any(_covers(one, life, skew_s) for one in by_name.get(life.partition, [])):
            yield (
                f"{of} ran from {life.begun:.3f} to {life.last:.3f} on {sorted(life.devices)}, and its partition "
                f"{life.partition} was not there all the time: {by_name.get(life.partition)}"
            )
    starts: dict[tuple[str, ...], set[str]] = {}
    for life in lives:
        starts.setdefault((life.name, *life.start), set()).add(life.partition)
    yield from (f"job {start} had {sorted(names)}" for start, names in starts.items() if len(names) > 1)
    begun = sorted(lives, key=lambda life: life.begun)
    going: list[Life] = []
    for life in begun:
        going = [one for one in going if one.last > life.begun]
        for other in going:
            if both := other.devices & life.devices:
                yield f"{other.name} and {life.name} both used devices {sorted(both)} at {life.begun:.3f}"
        going.append(life)


def _covers(made: Made, life: Life, skew_s: float) -> bool:
    over = made.gone is not None and made.gone + skew_s < life.last
    return made.ready <= life.begun + skew_s and not over and life.devices <= made.devices
