"""The state of a controller as lines of its log, for admins who cannot reach it over HTTP any more (SIGUSR1)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from moorings import __version__
from moorings.app.logs import STATE
from moorings.app.wiring import Assembly
from moorings.core.model.timestamps import Timestamp

log = logging.getLogger(STATE)

LINES_MAX = 200  # of each kind; a log is no database


def log_state(assembly: Assembly | None, now: Timestamp) -> None:
    """Log it: the controller, its pools, partitions, the queue, runs, and what its tasks are doing."""
    tasks = Counter((task.get_name().split("-")[0] or "?") for task in asyncio.all_tasks())
    fields = {"version": __version__, "tasks": sum(tasks.values())}
    if assembly is None:
        log.info("state.controller", extra={**fields, "leads": False})
        return
    loop = assembly.loop
    log.info(
        "state.controller",
        extra={**fields, "leads": True, "seq": loop.seq, "rounds": loop.rounds, "problem": loop.problem},
    )
    fleet = loop.fleet
    for state in fleet.pools.values():
        counts = {"free": state.free.n_free, "out": len(state.out_of_service), "foreign": len(state.foreign_blocks)}
        log.info("state.pool", extra={"pool": state.pool.name, **counts, "problem": state.unreachable_reason})
    _log_lines(
        "state.partition",
        (
            {
                "partition": p.name,
                "pool": p.pool,
                "devices": str(p.block),
                "state": p.state.value,
                "claim": p.claim,
                "for_s": (now - p.since) // 1_000_000,
            }
            for p in fleet.partitions.values()
        ),
    )
    _log_lines(
        "state.waiting",
        (
            {"claim": c.id, "user": c.subject, "size": c.spec.size, "priority": c.spec.priority}
            for c in fleet.pending_claims()
        ),
    )
    _log_lines(
        "state.run",
        ({"run": r.id, "user": r.subject, "state": r.state.value, "claim": r.claim} for r in loop.runs.by_id.values()),
    )
    log.info("state.tasks", extra={"detail": " ".join(f"{name}={count}" for name, count in sorted(tasks.items()))})


def _log_lines(name: str, lines: Iterable[dict[str, object]]) -> None:
    more = 0
    for number, line in enumerate(lines):
        if number < LINES_MAX:
            log.info(name, extra=line)
        else:
            more += 1
    if more:
        log.info("state.more", extra={"of": name, "count": more})
