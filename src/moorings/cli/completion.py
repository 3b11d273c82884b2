"""Live names for the shell's completion: quick, silent, and empty when the controller is away."""

from __future__ import annotations

from collections.abc import Callable

from moorings.cli.session import Session
from moorings.client.client import Client
from moorings.core.errors import MooringsError

TIMEOUT_S = 0.2

_NAMES: dict[str, Callable[[Client], list[str]]] = {
    "pool": lambda client: [pool.name for pool in client.pools()],
    "partition": lambda client: [partition.name for partition in client.partitions()],
    "claim": lambda client: [claim.name for claim in client.claims()],
    "run": lambda client: [run.id for run in client.runs()],
    "key": lambda client: [key.id for key in client.keys()],
}


def live_names(session: Session, noun: str) -> list[str]:
    """Names of the things of a noun that exist now."""
    if noun not in _NAMES:
        return []
    try:
        with session.client_of(timeout_s=TIMEOUT_S) as client:
            return _NAMES[noun](client)
    except MooringsError:
        return []
