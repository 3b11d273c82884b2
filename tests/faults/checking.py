"""Is anything lost, leaked or used twice? One checker for every fault test.

It looks from outside, with code of its own, at what a kill leaves: the database's rows, the simulated hardware's
journal, the runs' folders and the machine's processes. The product's own check of its laws was not enough: it sees what
the controller believes. Each finding is a sentence that names the objects.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorings.core.model.claims import ENDED as ENDED_CLAIMS
from moorings.core.model.claims import PartitionId
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.core.reconcile import mark_for
from moorings.drivers.simulated.partition import SimulatedPartition, parse_partition
from moorings.workloads.runs import ENDED as ENDED_RUNS
from tests.faults.victims import Victim, supervisors_below
from tests.procfs import every_process
from tests.waiting import patient

_LAST_WORDS = {"claim.failed": "FAILED", "claim.cancelled": "CANCELLED", "claim.released": "RELEASED"}
_ON_THEIR_WAY = {"PROVISIONING", "RESETTING", "REMOVING"}
_GOING = {"STARTING", "RUNNING", "STOPPING"}
_DRAFT = re.compile(r"\..*\.(\d+-\d+|\d+\.tmp)|.*\.new")
LOOK_S = 0.02
FAR = 3_600_000_000  # microseconds

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Seen:
    """The database at one moment."""

    claims: Rows
    partitions: Rows
    runs: Rows
    devices: list[tuple[str, int, str]]
    keys: list[dict[str, Any]]
    events: list[dict[str, Any]]
    seq: int
    installation: str
    damage: list[str]

    @classmethod
    def of(cls, database: Path, *, whole: bool = False) -> Seen:
        """What that file holds, in one read; with ``whole`` it is looked through for damage."""
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")

            def rows(text: str) -> list[dict[str, Any]]:
                return [dict(row) for row in connection.execute(text)]

            (installation,) = rows("SELECT * FROM installation")
            damage = []
            if whole:
                damage = [str(row) for row in rows("PRAGMA integrity_check") if list(row.values()) != ["ok"]]
                damage += [f"a foreign key leads nowhere: {row}" for row in rows("PRAGMA foreign_key_check")]
            return cls(
                claims={row["id"]: row for row in rows("SELECT * FROM claims")},
                partitions={row["id"]: row for row in rows("SELECT * FROM partitions")},
                runs={row["id"]: row for row in rows("SELECT * FROM runs")},
                devices=[tuple(row.values()) for row in rows("SELECT pool, device, partition FROM partition_devices")],
                keys=rows("SELECT * FROM idempotency_keys"),
                events=rows("SELECT * FROM outbox ORDER BY seq"),
                seq=installation["seq"],
                installation=installation["id"],
                damage=damage,
            )


def broken_laws(data: Path) -> list[str]:
    """What must not be at any moment, not even between a kill and the next start."""
    seen = Seen.of(data / "moorings.db", whole=True)
    return [
        *seen.damage,
        *_devices_are_used_once(seen),
        *_partitions_have_claims(seen),
        *_claims_have_partitions(seen),
        *_runs_have_claims(seen),
        *_everything_is_told_once(seen),
        *_keys_lead_somewhere(seen),
        *_hardware_is_used_once(data),
        *_nothing_runs_after_its_end(seen),
    ]


def unsettled(data: Path) -> list[str]:
    """What is still on its way: nothing, once a controller has had time."""
    seen = Seen.of(data / "moorings.db")
    return [
        *_in_state("partition", seen.partitions, _ON_THEIR_WAY),
        *_in_state("claim", seen.claims, {"GRANTED", "RELEASING"}),
        *_in_state("run", seen.runs, {"STARTING", "STOPPING"}),
        *_records_differ_from_hardware(seen, data),
        *_drafts(data),
    ]


def left(data: Path) -> list[str]:
    """What is left of everything there ever was: nothing, once all has been released."""
    seen = Seen.of(data / "moorings.db")
    recorded = [
        *(f"claim {id_} is {row['state']}" for id_, row in seen.claims.items() if row["state"] not in ENDED_CLAIMS),
        *(f"run {id_} is {row['state']}" for id_, row in seen.runs.items() if row["state"] not in ENDED_RUNS),
        *(f"partition {id_} is {row['state']}" for id_, row in seen.partitions.items()),
    ]
    if recorded:
        return recorded  # the rest costs a look at every process
    folders = [path for path in (data / "runs").glob("*") if path.is_dir() and path.name[0] != "."]
    return [
        *(f"{pool}: {partition.name} exists" for pool, held in hardware(data).items() for partition in held),
        *(f"supervisor {pid} lives" for pid in supervisors_below(data / "runs")),
        *(f"{path} is there" for folder in folders for path in folder.glob("ipuof/*")),
        *(f"{folder} has no end" for folder in folders if not (folder / "end.json").exists()),
        *unsettled(data),
    ]


def settle(victim: Victim, look: Callable[[Path], list[str]] = unsettled, wait_s: float = 30.0) -> None:
    """Wait until ``look`` finds nothing more, then see that no law is broken."""
    give_up = time.monotonic() + patient(wait_s)
    while found := look(victim.data):
        victim.mend()
        if time.monotonic() > give_up:
            raise AssertionError("\n".join([*found, victim.log()[-4000:]]))
        time.sleep(LOOK_S)
    assert broken_laws(victim.data) == []


def events_of(data: Path) -> list[tuple[int, str]]:
    """Every event's number and name."""
    return [(row["seq"], row["name"]) for row in Seen.of(data / "moorings.db").events]


def hardware(data: Path) -> dict[str, list[SimulatedPartition]]:
    """What the simulated machines have, by pool, as their journals tell."""
    found = {}
    for journal in (data / "simulated").glob("*/journal.jsonl"):
        held = _replayed(journal)
        now = Timestamp(time.time_ns() // 1000)
        latest = max((one.gone_at or one.ready_at for one in held), default=now)
        if latest - now > FAR:  # it lives by a clock that was set
            now = latest
        found[journal.parent.name] = [one for one in held if one.state(now) is not None]
    return found


def _replayed(journal: Path) -> list[SimulatedPartition]:
    held: dict[str, SimulatedPartition] = {}
    for line in journal.read_bytes().split(b"\n")[:-1]:
        record = json.loads(line)
        if record["is"] == "partition":
            held[record["name"]] = parse_partition(record)
        elif record["is"] == "gone":
            held.pop(record["name"], None)
        elif record["is"] == "lost":
            held.clear()
    return list(held.values())


def processes_of_runs() -> dict[str, list[int]]:
    """Which processes of the machine belong to which run, by the variable every task has."""
    found: dict[str, list[int]] = {}
    for pid, variables in every_process("environ"):
        for variable in variables.split(b"\0"):
            if variable.startswith(b"MOORINGS_RUN_ID="):
                found.setdefault(os.fsdecode(variable.partition(b"=")[2]), []).append(pid)
    return found


# ---- laws


def _devices_are_used_once(seen: Seen) -> Iterator[str]:
    used: Counter[tuple[str, int]] = Counter((pool, device) for pool, device, _ in seen.devices)
    yield from (f"device {device} is in {times} partitions" for device, times in used.items() if times > 1)
    by_partition: dict[str, set[int]] = {}
    for _, device, partition in seen.devices:
        by_partition.setdefault(partition, set()).add(device)
    for id_, row in seen.partitions.items():
        if set(Block.parse(row["block"])) != by_partition.get(id_, set()):
            yield f"partition {id_} of {row['block']} holds {sorted(by_partition.get(id_, ()))}"


def _partitions_have_claims(seen: Seen) -> Iterator[str]:
    for id_, row in seen.partitions.items():
        claim = seen.claims[row["claim"]]
        holds = claim["partition"] == id_ and claim["state"] not in ENDED_CLAIMS
        if not holds and row["state"] not in ("REMOVING", "ERROR"):
            yield f"partition {id_} is {row['state']} and claim {claim['id']} ({claim['state']}) does not hold it"


def _claims_have_partitions(seen: Seen) -> Iterator[str]:
    for id_, row in seen.claims.items():
        ended = row["state"] in ENDED_CLAIMS
        if not ended and row["partition"] is not None and row["partition"] not in seen.partitions:
            yield f"claim {id_} is {row['state']} and its partition {row['partition']} does not exist"
        if row["state"] in ("GRANTED", "READY") and row["partition"] is None:
            yield f"claim {id_} is {row['state']} without a partition"


def _runs_have_claims(seen: Seen) -> Iterator[str]:
    for id_, row in seen.runs.items():
        claim = seen.claims[row["claim"]]
        if row["state"] not in ENDED_RUNS and claim["state"] in ENDED_CLAIMS:
            yield f"run {id_} is {row['state']} and its claim {claim['id']} has ended ({claim['state']})"
        if row["state"] in _GOING and claim["partition"] not in seen.partitions:
            yield f"run {id_} is {row['state']} without a partition"


def _everything_is_told_once(seen: Seen) -> Iterator[str]:
    numbers = [row["seq"] for row in seen.events]
    if numbers != list(range(1, seen.seq + 1)):
        yield f"the events' numbers are not 1 to {seen.seq}"
    told = Counter((row["name"], row["run"] if row["name"].startswith("run.") else row["claim"]) for row in seen.events)
    for id_, row in seen.runs.items():
        for name, times in (("run.created", 1), ("run.ended", int(row["state"] in ENDED_RUNS))):
            if told[name, id_] != times:
                yield f"run {id_} is {row['state']} and was told {told[name, id_]} times: {name}"
        if told["run.starting", id_] > 1 or told["run.started", id_] > 1:
            yield f"run {id_} was started more than once"
    for id_, row in seen.claims.items():
        if told["claim.created", id_] != 1:
            yield f"claim {id_} was created {told['claim.created', id_]} times"
        for name, state in _LAST_WORDS.items():
            if told[name, id_] != int(row["state"] == state):
                yield f"claim {id_} is {row['state']} and was told {told[name, id_]} times: {name}"


def _keys_lead_somewhere(seen: Seen) -> Iterator[str]:
    for row in seen.keys:
        if row["claim"] not in (None, *seen.claims) or row["run"] not in (None, *seen.runs):
            yield f"key {row['key']} leads nowhere"


def _hardware_is_used_once(data: Path) -> Iterator[str]:
    for pool, held in hardware(data).items():
        used = Counter(device for partition in held for device in partition.block)
        yield from (f"hardware: {pool}:{device} is in {n} partitions" for device, n in used.items() if n > 1)


def _nothing_runs_after_its_end(seen: Seen) -> Iterator[str]:
    for run, pids in processes_of_runs().items():
        if run in seen.runs and seen.runs[run]["state"] in ENDED_RUNS:
            yield f"run {run} has ended ({seen.runs[run]['state']}) and processes {pids} of it live"


# ---- rest


def _in_state(noun: str, rows: Rows, states: Set[str]) -> Iterator[str]:
    yield from (f"{noun} {id_} is {row['state']}" for id_, row in rows.items() if row["state"] in states)


def _records_differ_from_hardware(seen: Seen, data: Path) -> Iterator[str]:
    made = {
        (pool, partition.name, str(partition.block), partition.mark)
        for pool, held in hardware(data).items()
        for partition in held
    }
    recorded = {
        (row["pool"], row["name"], row["block"], mark_for(seen.installation, PartitionId(id_)))
        for id_, row in seen.partitions.items()
    }
    yield from (f"hardware has {one}, the records do not" for one in made - recorded)
    yield from (f"the records have {one}, hardware does not" for one in recorded - made)


def _drafts(data: Path) -> Iterator[str]:
    """Files that a killed process left half-written; those of the living are gone in a moment."""
    for folder, _, names in os.walk(data):  # which passes over folders that go meanwhile
        yield from (f"{folder}/{name} is a draft" for name in names if _DRAFT.fullmatch(name))
