"""Records ``orders.json`` of the vendor's driver in each state in which a controller that is killed may leave it::

    python -m tests.released.vipu_rest

A recording has the commands that brought the vendor's stand-in into its state, our file, the orders under way, and what
the driver of the release did when its controller came back. The file's text is never written anew by hand.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorings.core.model.driver_results import ListedPartition, PartitionSpec
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.drivers.vipu.driver import VipuDriver
from moorings.testing.fake_vipu import calls_of, partitions_of
from tests.unit.drivers.vipu_rig import ORDERS, VipuRig

FOLDER = Path(__file__).with_name("vipu")
NOW = Timestamp(1_790_000_000_000_000)
KILLED_S = 0.5  # after so long a controller is killed that waits for a command


@dataclass(slots=True)
class StoppedClock:
    """It is always ``NOW``, and nobody waits."""

    def now(self) -> Timestamp:
        """Microseconds since 1970 UTC."""
        return NOW

    async def sleep(self, seconds: float) -> None:
        """Wait no time at all."""
        del seconds


def order(name: str, devices: str = "0-3", gcds: int = 2) -> PartitionSpec:
    """An order as a claim's would be."""
    return PartitionSpec(name, Block.parse(devices), gcds, 1, f"claim-{name}")


def open_driver(rig: VipuRig) -> VipuDriver:
    """The driver of a controller that has just been started."""
    return VipuDriver(rig.pool, rig.settings, rig.data, StoppedClock())


def changes(rig: VipuRig, since: int = 0) -> list[list[str]]:
    """What the vendor was told to change, word by word, but for where the command's configuration lies."""
    calls = [call["argv"] for call in calls_of(rig.machine)[since:] if set(call["argv"]) & set(ORDERS)]
    return [argv[2:] if argv[0] == "--config" else argv for argv in calls]


def shown(sightings: list[ListedPartition]) -> list[dict[str, str]]:
    """A listing of the driver's, by name."""
    told = [
        {"name": one.name, "seen": str(one.state), "devices": str(one.block), "mark": one.mark} for one in sightings
    ]
    return sorted(told, key=lambda one: one["name"])


def as_json(value: PartitionSpec) -> dict[str, Any]:
    """An order, for a recording."""
    return {
        "name": value.name,
        "devices": str(value.block),
        "gcds": value.gcds,
        "replicas_per_gcd": value.replicas_per_gcd,
        "mark": value.mark,
    }


def as_order(value: dict[str, Any]) -> PartitionSpec:
    """The order in a recording."""
    block = Block.parse(value["devices"])
    return PartitionSpec(value["name"], block, value["gcds"], value["replicas_per_gcd"], value["mark"])


async def come_back(rig: VipuRig, verb: str, value: PartitionSpec, held: list[PartitionSpec]) -> dict[str, Any]:
    """What a controller that is started on a recording finds, orders again, and finds then."""
    before = len(calls_of(rig.machine))
    driver = open_driver(rig)
    try:
        driver.register_partitions(held)
        found = shown(list(await driver.list_partitions()))
        if verb == "create":
            answer = await driver.create(value)
        else:
            answer = await driver.remove(value.name, value.mark)
        then = shown(list(await driver.list_partitions()))
    finally:
        await driver.close()
    return {
        "found": found,
        "answer": [str(answer.verdict), str(answer.seen)],
        "told": changes(rig, before),
        "then": then,
        "there": partitions_of(rig.machine),
        "file": json.loads((rig.data / "orders.json").read_text()) if (rig.data / "orders.json").exists() else None,
    }


def put_back(recording: dict[str, Any], folder: Path) -> VipuRig:
    """The vendor's stand-in and our folder as they were left."""
    rig = VipuRig(folder, provision_s=0.0)
    for step in recording["vendor"]:
        rig.trouble(*step["faults"])
        subprocess.run([rig.command, *step["argv"]], check=False, capture_output=True)
    rig.trouble()
    rig.data.mkdir(parents=True)
    for name, text in recording["files"].items():
        (rig.data / name).write_text(text)
    return rig


# -- the states ------------------------------------------------------------------------------------------------------


async def _killed(work: Awaitable[object]) -> None:
    """The controller is killed while it waits for that."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=KILLED_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _written(rig: VipuRig, driver: VipuDriver) -> None:
    rig.trouble({"kind": "hang", "on": ["create"]})
    await _killed(driver.create(order("p")))


async def _done_unheard(rig: VipuRig, driver: VipuDriver) -> None:
    rig.trouble({"kind": "hang_after", "on": ["create"]})
    await _killed(driver.create(order("p")))


async def _active(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("p"))


async def _active_of_many(rig: VipuRig, driver: VipuDriver) -> None:
    for number in range(4):
        await driver.create(order(f"slurm_{number}", f"{number * 2}-{number * 2 + 1}", 1))


async def _refused(rig: VipuRig, driver: VipuDriver) -> None:
    rig.trouble({"kind": "fail_before", "on": ["create"], "says": "no such cluster"})
    await driver.create(order("p"))


async def _lost(rig: VipuRig, driver: VipuDriver) -> None:
    rig.trouble({"kind": "fail_before", "on": ["create"], "says": "deadline exceeded"})
    await driver.create(order("p"))


async def _given_up(rig: VipuRig, driver: VipuDriver) -> None:
    await _lost(rig, driver)
    await driver.remove("p", order("p").mark)


async def _made_larger(rig: VipuRig, driver: VipuDriver) -> None:
    rig.trouble({"kind": "larger", "on": ["create"], "times": 1})
    await driver.create(order("p"))


async def _made_elsewhere(rig: VipuRig, driver: VipuDriver) -> None:
    rig.trouble({"kind": "elsewhere", "on": ["create"], "times": 1})
    await driver.create(order("p"))


async def _adopted(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("p"))
    (rig.data / "orders.json").unlink()
    driver.register_partitions([order("p")])
    await driver.list_partitions()


async def _of_another_machine(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("p"))
    (rig.data / "orders.json").unlink()


async def _removal_unheard(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("p"))
    rig.trouble({"kind": "hang_after", "on": ["delete"]})
    await _killed(driver.remove("p", order("p").mark))


async def _removal_not_begun(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("p"))
    rig.trouble({"kind": "hang", "on": ["delete"]})
    await _killed(driver.remove("p", order("p").mark))


async def _all_removed(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("p"))
    await driver.remove("p", order("p").mark)


async def _draft_left(rig: VipuRig, driver: VipuDriver) -> None:
    await driver.create(order("q", "4-7"))
    text = (rig.data / "orders.json").read_text()
    (rig.data / ".orders.json.tmp").write_text(text[: len(text) // 2])


_Making = Callable[[VipuRig, VipuDriver], Awaitable[None]]
# By name: how it comes about, and the order with which the next controller goes on.
STATES: dict[str, tuple[_Making, str, PartitionSpec]] = {
    "written-not-given": (_written, "create", order("p")),
    "done-answer-unheard": (_done_unheard, "create", order("p")),
    "done-unheard-and-unwanted": (_done_unheard, "remove", order("p")),
    "active": (_active, "create", order("p")),
    "active-removed-next": (_active, "remove", order("p")),
    "active-of-many": (_active_of_many, "remove", order("slurm_2", "4-5", 1)),
    "refused": (_refused, "create", order("p")),
    "answer-lost": (_lost, "create", order("p")),
    "given-up": (_given_up, "create", order("p")),
    "given-up-other-comes": (_given_up, "create", order("q", "4-7")),
    "made-larger": (_made_larger, "remove", order("p")),
    "made-elsewhere": (_made_elsewhere, "remove", order("p")),
    "adopted": (_adopted, "create", order("p")),
    "of-another-machine": (_of_another_machine, "create", order("p")),
    "removal-unheard": (_removal_unheard, "remove", order("p")),
    "removal-not-begun": (_removal_not_begun, "remove", order("p")),
    "all-removed": (_all_removed, "create", order("p")),
    "draft-left": (_draft_left, "create", order("p")),
}
# What the controller's database holds then, and tells the driver: all that has a claim.
HELD = {"active-of-many": ["slurm_0", "slurm_1", "slurm_2", "slurm_3"], "draft-left": ["q"]}


async def record(name: str, folder: Path) -> dict[str, Any]:
    """Make a state, and what follows of it."""
    make, verb, value = STATES[name]
    rig = VipuRig(folder / "made", provision_s=0.0)
    driver = open_driver(rig)
    await make(rig, driver)
    await driver.close()
    held = [order("p")] if name not in HELD else [order("q", "4-7")]
    if name == "active-of-many":
        held = [order(f"slurm_{number}", f"{number * 2}-{number * 2 + 1}", 1) for number in range(4)]
    faults = {"made-larger": {"kind": "larger"}, "made-elsewhere": {"kind": "elsewhere"}}
    told = [argv for argv in changes(rig) if _was_done(rig, name, argv)]
    recording: dict[str, Any] = {
        "vendor": [{"argv": argv, "faults": [faults[name]] if name in faults else []} for argv in told],
        "files": {path.name: path.read_text() for path in sorted(rig.data.iterdir()) if "orders.json" in path.name},
        "held": [as_json(one) for one in held],
        "again": {"verb": verb, "order": as_json(value)},
    }
    again = put_back(recording, folder / "again")
    assert partitions_of(again.machine) == partitions_of(rig.machine), name
    recording["did"] = await come_back(again, verb, value, held)
    return recording


def _was_done(rig: VipuRig, name: str, argv: list[str]) -> bool:
    """Whether the vendor has done a command."""
    undone = {"written-not-given", "refused", "answer-lost", "given-up", "given-up-other-comes"}
    return name not in undone and not (name == "removal-not-begun" and "delete" in argv)


async def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name in STATES:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(await record(name, Path(folder)), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(main())
