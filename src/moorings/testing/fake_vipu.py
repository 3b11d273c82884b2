"""A stand-in for the ``vipu`` command and the V-IPU controller behind it: a real program, for tests of the vipu driver.

It accepts the words of the public documents (facts: vipu section 3), keeps its partitions in a folder, and any number
of its processes may run at once. It is *not* a description of V-IPU: where the documents are silent it is made up, in
several ways, so that the driver is tested on all of them. ``machine.json`` selects the way, ``faults.json`` the faults.

This file runs by its path, in a Python without site packages, which starts fast, so it imports nothing of ours.
Refused: a mock inside the test's process. A partial response, a hang, a flood and a killed process are real here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AGENT_IPUS = 4  # IPUs in an IPU-Machine

MACHINE: dict[str, Any] = {
    "cluster": "c0",
    "ipus": 8,
    "domain_size": 8,
    "foreign_ipus": 0,  # of a second cluster, c1
    "provision_s": 0.05,
    "reset_s": 0.05,
    "remove_s": 0.0,
    "waits": False,  # `create` and `reset` return when the partition is ready, not at once
    "index": "block",  # the unit of --index: "block" (of the partition's size), "device", or "" (not known)
    "picks": "first",  # without --index: the "first" free block, or the "last"
    "layout": 0,  # of the table
    "words": {},  # this release's words for the states, by ours
    "json_states": True,  # whether JSON has the state
    "wrapped": True,  # whether JSON wraps a partition as {"partition": {...}}
    "chatty_clusters": False,  # whether JSON has more on an IPU in a cluster than in a partition
    "users": {},  # access keys by user; none: everybody has access
}
LAYOUTS = (
    ("Partition", "Cluster", "ILDs", "GW Routing", "ILD Routing", "Size", "GCDs", "State"),
    ("ID", "Partition", "Size", "State", "Cluster"),
    ("Cluster", "State", "Partition ID", "GCDs"),
)


# ---- for tests


def write_command(folder: Path, **machine: object) -> Path:
    """Make the command ``<folder>/vipu`` over an empty machine in ``folder``; ``machine`` as in ``MACHINE``."""
    unknown = machine.keys() - MACHINE.keys()
    assert not unknown, f"no machine has {unknown}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps({**MACHINE, **machine}))
    command = folder / "vipu"
    words = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder)])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    return command


def set_faults(folder: Path, *faults: Mapping[str, object]) -> None:
    """From now on these faults occur, and no others.

    A fault is ``{"kind": ..., "on": [verbs], "times": n}`` and its kind's further keys: ``slow`` (``seconds``),
    ``held`` (until ``release_held``), ``hang``, ``fail_before`` and ``fail_after`` doing it (``says``), ``hang_after``,
    ``late`` (fails, and is done after ``seconds`` all the same), ``nothing`` (reports success), ``garbage``,
    ``binary``, ``half``, ``empty``, ``flood``, ``elsewhere`` (a new partition is made on the last IPUs), ``avoids`` (no
    new partition gets ``ipu``; one that should is made on the first others), ``larger`` (a new partition has twice its
    size), ``breaks`` (a new partition is in ERROR), ``state`` (``name`` is shown in ``state``), ``hidden`` (``name`` is
    not shown).
    """
    with _locked(folder):
        _replace(folder / "faults.json", [dict(fault) for fault in faults])


def release_held(folder: Path) -> None:
    """Continue ``held`` calls, and do ``late`` ones."""
    with _locked(folder):
        partitions = _load(folder / "state.json", {})
        for partition in partitions.values():
            early_s = max(0.0, partition["appears_at"] - time.time())
            partition["appears_at"] -= early_s
            partition["ready_at"] -= early_s
        _replace(folder / "state.json", partitions)
    (folder / "go").touch()


def vanish(folder: Path, name: str) -> None:
    """Remove a partition, as another user with the same rights may do."""
    with _locked(folder):
        partitions = _load(folder / "state.json", {})
        partitions.pop(name, None)
        _replace(folder / "state.json", partitions)


def partitions_of(folder: Path) -> dict[str, list[int]]:
    """The IPUs of each partition that really exists, also of late ones in progress, by name."""
    with _locked(folder):
        known = _Controller(folder).partitions
    return {name: partition["ipus"] for name, partition in known.items()}


def calls_of(folder: Path) -> list[dict[str, Any]]:
    """Every call, in order: ``argv``, ``pid``, ``began`` and ``ended`` (None: it was killed).

    ``environment`` has the names of variables that could have affected it.
    """
    path = folder / "calls.jsonl"
    calls: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        call = json.loads(line)
        calls.setdefault(call["pid"], {"ended": None}).update(call)
    return list(calls.values())


# ---- the machine's memory


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _load(path: Path, default: Any) -> Any:  # noqa: ANN401  (JSON that we wrote)
    return json.loads(path.read_text()) if path.exists() else default


def _replace(path: Path, value: object) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def _note(folder: Path, **call: object) -> None:
    line = json.dumps({"pid": os.getpid(), **call}) + "\n"
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(line)


class _RefusedError(Exception):
    """The controller refuses."""


class _Controller:
    """The controller behind the command, for one call; the caller must hold the lock."""

    def __init__(self, folder: Path) -> None:
        self.machine: dict[str, Any] = _load(folder / "machine.json", MACHINE)
        self._path = folder / "state.json"
        now = time.time()
        known: dict[str, Any] = _load(self._path, {})
        self.partitions = {
            name: partition
            for name, partition in known.items()
            if partition["gone_at"] is None or now < partition["gone_at"]
        }

    def save(self) -> None:
        _replace(self._path, self.partitions)

    def state(self, partition: Mapping[str, Any]) -> str:
        now = time.time()
        if partition["gone_at"] is not None:
            word = "REMOVING"
        elif partition["broken"]:
            word = "ERROR"
        elif now < partition["ready_at"]:
            word = "RESETTING" if partition["was_reset"] else "PROVISIONING"
        else:
            word = "ACTIVE"
        return str(self.machine["words"].get(word, word))

    def shown(self) -> dict[str, Any]:
        now = time.time()
        return {name: one for name, one in self.partitions.items() if one["appears_at"] <= now}

    def find(self, name: str) -> dict[str, Any]:
        partition = self.shown().get(name)
        if partition is None:
            raise _RefusedError(f"partition {name} not found")
        return dict(partition)

    def create(self, name: str, options: Mapping[str, str], faults: list[dict[str, Any]]) -> float:
        size, gcds = int(options["--size"]), int(options.get("--num-gcds", "1"))
        if name in self.partitions:
            raise _RefusedError(f"partition {name} already exists")
        if size < 1 or size & (size - 1):
            raise _RefusedError("the size must be a power of 2")
        ipus = self._ipus(size, options.get("--index"), faults)
        late = [fault["seconds"] for fault in faults if fault["kind"] == "late"]
        appears_at = time.time() + (late[0] if late else 0)
        self.partitions[name] = {
            "ipus": ipus,
            "gcds": gcds,
            "replicas": int(options.get("--gcd-sync-replicas", "1")),
            "appears_at": appears_at,
            "ready_at": appears_at + self.machine["provision_s"],
            "was_reset": False,
            "broken": any(fault["kind"] == "breaks" for fault in faults),
            "gone_at": None,
        }
        return float(self.machine["provision_s"])

    def _ipus(self, size: int, index: str | None, faults: list[dict[str, Any]]) -> list[int]:
        taken = {ipu for partition in self.partitions.values() for ipu in partition["ipus"]}
        kinds = {fault["kind"]: fault for fault in faults}
        if "larger" in kinds:
            size, index = size * 2, None
        blocks = [list(range(start, start + size)) for start in range(0, self.machine["ipus"], size)]
        if "elsewhere" in kinds or (index is None and self.machine["picks"] == "last"):
            blocks.reverse()
        elif index is not None:
            if not self.machine["index"]:
                raise _RefusedError("unknown flag: --index")
            number = int(index) if self.machine["index"] == "block" else int(index) // size
            chosen = blocks[number : number + 1]
            if "avoids" not in kinds or kinds["avoids"]["ipu"] not in chosen[0]:
                blocks = chosen
        for block in blocks:
            avoided = "avoids" in kinds and kinds["avoids"]["ipu"] in block
            if len(block) == size and not taken & set(block) and not avoided:
                return block
        raise _RefusedError(f"no {size} IPUs are available")

    def reset(self, name: str) -> float:
        partition = self.find(name)
        self.partitions[name] = {**partition, "ready_at": time.time() + self.machine["reset_s"], "was_reset": True}
        return float(self.machine["reset_s"])

    def delete(self, name: str) -> None:
        partition = self.find(name)
        if self.machine["remove_s"]:
            self.partitions[name] = {**partition, "gone_at": time.time() + self.machine["remove_s"]}
        else:
            del self.partitions[name]


# ---- what is printed


def _ipu(number: int, *, more: bool = False) -> dict[str, Any]:
    ipu: dict[str, Any] = {"agent": f"ag{number // AGENT_IPUS}", "index": number % AGENT_IPUS}
    return {**ipu, "serial": f"0024.{number:04d}"} if more else ipu


def _partitions_json(controller: _Controller, shown: Mapping[str, Any], states: Mapping[str, str]) -> str:
    listed = []
    for name, partition in shown.items():
        spec = {
            "ipus": [_ipu(number) for number in partition["ipus"]],
            "num_gcds": partition["gcds"],
            "num_replicas": partition["replicas"],
        }
        one: dict[str, Any] = {"id": name, "spec": spec}
        if controller.machine["json_states"]:
            one["status"] = {"state": states[name]}
        listed.append({"partition": one} if controller.machine["wrapped"] else one)
    return json.dumps(listed, indent=2) + "\n"


def _partitions_table(controller: _Controller, shown: Mapping[str, Any], states: Mapping[str, str]) -> str:
    header = LAYOUTS[controller.machine["layout"]]
    rows = [header]
    for number, (name, partition) in enumerate(shown.items()):
        cells = {
            "ID": str(number),
            "Partition": name,
            "Partition ID": name,
            "Cluster": controller.machine["cluster"],
            "ILDs": "1",
            "GW Routing": "DEFAULT",
            "ILD Routing": "RINGSWNC",
            "Size": str(len(partition["ipus"])),
            "GCDs": str(partition["gcds"]),
            "State": states[name],
        }
        rows.append(tuple(cells[column] for column in header))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [" " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:]), rule]) + "\n"


def _clusters_json(controller: _Controller) -> str:
    machine = controller.machine
    more = machine["chatty_clusters"]
    size, most = machine["domain_size"], machine["ipus"]
    domains = [range(start, min(start + size, most)) for start in range(0, most, size)]
    clusters = [(machine["cluster"], domains)]
    if machine["foreign_ipus"]:
        clusters.append(("c1", [range(most, most + machine["foreign_ipus"])]))
    listed = [
        {"id": name, "spec": {"ipu_link_domains": [{"ipus": [_ipu(ipu, more=more) for ipu in one]} for one in wired]}}
        for name, wired in clusters
    ]
    return json.dumps(listed) + "\n"


def _ipuof(partition: Mapping[str, Any], gcd: int) -> str:
    share = len(partition["ipus"]) // partition["gcds"]
    if not 0 <= gcd < partition["gcds"]:
        raise _RefusedError(f"there is no GCD {gcd}")
    devices = [
        {"host": f"10.1.5.{1 + number // AGENT_IPUS}", "port": 50_052, "index": number % AGENT_IPUS}
        for number in partition["ipus"][gcd * share : (gcd + 1) * share]
    ]
    return json.dumps({"attributes": {"GCD Id": str(gcd)}, "devices": devices}, indent=2) + "\n"


# ---- one call


def _split(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words and the options; every option takes a value, unless it is one word."""
    words, options, rest = [], {}, list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("--showjson", "--reconfigurable", "--ipuof-configs", "--ipu-configs"):
            options[word] = "true"
        elif word.startswith("-"):
            options[word] = rest.pop(0) if rest else ""
        else:
            words.append(word)
    return words, options


def _authenticate(machine: Mapping[str, Any], options: Mapping[str, str]) -> None:
    if "--api-access-key" in options:
        raise _RefusedError("a key on a command line can be read by everybody")
    given: dict[str, str] = {}
    for line in Path(options["--config"]).read_text().splitlines() if "--config" in options else []:
        name, _, value = line.partition("=")
        given[name.strip()] = json.loads(value)
    users = machine["users"]
    user = given.get("api-user-id", "")
    if users and (user not in users or users[user] != given.get("api-access-key")):
        raise _RefusedError(f"permission denied for {user!r} with key {given.get('api-access-key')!r}")


def _faults(folder: Path, verb: str) -> list[dict[str, Any]]:
    """The faults of this call; each occurs ``times`` times."""
    faults = _load(folder / "faults.json", [])
    struck = [one for one in faults if verb in one.get("on", [verb]) and one.get("times", 1) > 0]
    for fault in struck:
        if "times" in fault:
            fault["times"] -= 1
    if struck:
        _replace(folder / "faults.json", faults)
    return struck


def _answer(controller: _Controller, words: list[str], options: dict[str, str], faults: list[dict[str, Any]]) -> str:
    """Do what was asked; return the output."""
    verb, noun, *names = words
    if noun.rstrip("s") not in ("partition", "cluster") or verb not in ("create", "delete", "reset", "list", "get"):
        raise _RefusedError(f"unknown command {' '.join(words)!r}")
    if verb == "list" and noun.startswith("cluster"):
        return _clusters_json(controller)
    if verb == "list":
        hidden = {fault["name"] for fault in faults if fault["kind"] == "hidden"}
        false_states = {fault["name"]: fault["state"] for fault in faults if fault["kind"] == "state"}
        shown = {name: one for name, one in controller.shown().items() if name not in hidden}
        states = {name: false_states.get(name, controller.state(one)) for name, one in shown.items()}
        as_text = _partitions_json if "--showjson" in options else _partitions_table
        return as_text(controller, shown, states)
    if verb == "get":
        return _ipuof(controller.find(names[0]), int(options["--gcd"]))
    wait_s = 0.0
    if verb == "create":
        wait_s = controller.create(names[0], options, faults)
    elif verb == "reset":
        wait_s = controller.reset(names[0])
    else:
        controller.delete(names[0])
    controller.save()
    if controller.machine["waits"]:
        options["waits"] = str(wait_s)
    return f"{verb} partition ({names[0]}): success.\n"


def _hang() -> None:
    subprocess.Popen(["sleep", "3600"])  # a child that keeps the pipes open, as wrapper scripts have
    time.sleep(3600)


def _call(folder: Path, argv: list[str]) -> int:
    words, options = _split(argv)
    with _locked(folder):
        heeded = sorted(name for name in os.environ if name.startswith(("VIPU_", "IPUOF_", "MOORINGS_")))
        _note(folder, argv=argv, environment=heeded, began=time.time())
        faults = _faults(folder, words[0] if words else "")
    kinds = {fault["kind"]: fault for fault in faults}
    if "slow" in kinds:
        time.sleep(kinds["slow"]["seconds"])
    while "held" in kinds and not (folder / "go").exists():
        time.sleep(0.01)
    if "hang" in kinds:
        _hang()
    if "fail_before" in kinds:
        raise _RefusedError(kinds["fail_before"].get("says", "connection refused"))
    while "flood" in kinds:
        sys.stdout.write("x" * 65_536)
    with _locked(folder):
        controller = _Controller(folder)
        _authenticate(controller.machine, options)
        if "nothing" in kinds:
            answer = f"{words[0]} partition ({words[2]}): success.\n"
        else:
            answer = _answer(controller, words, options, faults)
    if "late" in kinds or "fail_after" in kinds:
        raise _RefusedError(kinds.get("fail_after", {}).get("says", "deadline exceeded"))
    if "hang_after" in kinds:
        _hang()
    if "garbage" in kinds:
        answer = "panic: runtime error: index out of range [3] with length 3\n{[}"
    elif "half" in kinds:
        answer = answer[: len(answer) // 2]
    elif "empty" in kinds:
        answer = ""
    sys.stdout.buffer.write(b"\xff\xfe\x00" if "binary" in kinds else answer.encode())
    sys.stdout.flush()
    time.sleep(float(options.get("waits", 0)))
    return 0


def main(folder: Path, argv: list[str]) -> int:
    """Answer one call; return the exit code."""
    try:
        status = _call(folder, argv)
    except (_RefusedError, KeyError, ValueError, IndexError) as error:
        sys.stderr.write(f"Error: {error}\n")
        status = 1
    with _locked(folder):
        _note(folder, ended=time.time())
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
