"""Names of resources for the shell's completion: quick, silent, and the last known when the controller is away.

A shell asks at every TAB and the user waits, so each answer has a time budget and is cached for some seconds, in a file
of the cache folder. Refused: a background process for the names: nobody would know that it runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorings.cli.queue_entries import load_queue
from moorings.client.client import Client
from moorings.client.requests import ApplianceFilter
from moorings.core.model.errors import MooringsError
from moorings.files import write_atomically
from moorings.terminal.configuration import context_servers, home
from moorings.terminal.context import CommandContext

BUDGET_S = 0.2  # for the controller's response, whatever happens
FRESH_S = 5.0  # no new request within this time; also after a failed one, so that not every TAB takes the whole budget
KNOWN_S = 600.0  # up to this age, names are used while the controller is away

_NAMES: dict[str, Callable[[Client], list[str]]] = {
    "pool": lambda client: [pool.name for pool in client.list_pools()],
    "device": lambda client: [device.id for device in client.list_devices()],
    "partition": lambda client: [partition.name for partition in client.list_partitions()],
    "claim": lambda client: [claim.name for claim in client.list_claims()],
    "run": lambda client: [name for run in client.list_runs() for name in dict.fromkeys((run.id, run.name))],
    "queue": lambda client: list(dict.fromkeys(entry.name for entry in load_queue(client) if entry.name)),
    "job": lambda client: [job.id for job in client.appliance_jobs(ApplianceFilter())],
    "project": lambda client: [project.name for project in client.list_projects()],
    "quota": lambda client: [project.name for project in client.list_projects()],
    "key": lambda client: [key.id for key in client.list_keys()],
}


def live_names(session: CommandContext, noun: str) -> list[str]:
    """Names of the existing resources of a noun, or of contexts. Never raises, never writes to stderr."""
    try:
        if noun == "context":
            return list(context_servers(session.environment))
        return _names(session, noun) if noun in _NAMES else []
    except MooringsError:  # an unusable configuration: the command itself reports it
        return []


def states(noun: str) -> list[str]:
    """The possible states of a noun's resources."""
    from moorings.core.model.claims import ClaimState
    from moorings.core.model.devices import DeviceState
    from moorings.core.model.partitions import PartitionState
    from moorings.workloads.runs import RunState

    kinds = {"claim": ClaimState, "device": DeviceState, "partition": PartitionState, "run": RunState}
    return [str(state) for state in kinds[noun]] if noun in kinds else []


@dataclass(frozen=True, slots=True)
class CachedNames:
    """Names, and the time (seconds since 1970) of the last attempt to list them."""

    at: float
    names: Sequence[str]


def _names(session: CommandContext, noun: str) -> list[str]:
    file, now = _cache_file(session, noun), time.time()
    known = _load(file)
    if known is not None and 0 <= now - known.at < FRESH_S:
        return list(known.names)
    names = _query_controller(session, noun)
    if names is None:
        names = list(known.names) if known is not None and 0 <= now - known.at < KNOWN_S else []
    _save(file, CachedNames(now, names))
    return names


def _query_controller(session: CommandContext, noun: str) -> list[str] | None:
    """The controller's response within the budget; None: there was none.

    In a thread, as a limit on each of its waits would not limit their sum.
    """
    found: list[list[str]] = []
    client = session.new_client(timeout_s=BUDGET_S)

    def query() -> None:
        try:
            with client:
                found.append(_NAMES[noun](client))
        except MooringsError:
            return

    thread = threading.Thread(target=query, daemon=True)
    thread.start()
    thread.join(BUDGET_S)
    return found[0] if found else None


def _cache_file(session: CommandContext, noun: str) -> Path:
    """One file for each noun, controller and key."""
    root = session.environment.get("XDG_CACHE_HOME", "")
    folder = Path(root) if root.startswith("/") else home(session.environment) / ".cache"
    values = session.configuration
    digest = hashlib.sha256(f"{values.text('server')}\0{values.text('access_key')}".encode()).hexdigest()[:16]
    return folder / "moorings" / "names" / f"{digest}-{noun}.json"


def _load(file: Path) -> CachedNames | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return CachedNames(float(found["at"]), [str(name) for name in found["names"]])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _save(file: Path, known: CachedNames) -> None:
    """Replace the file whole, so that another TAB never reads half of it; a cache that cannot be written is skipped."""
    content = json.dumps({"at": known.at, "names": list(known.names)}).encode()
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, content, durable=False)
