"""The maintenance of a controller's process: signals, the watchdog, old runs' folders, archiving.

==========  ==========================================================================================================
SIGHUP      applies the log level, loads the certificates, checks settings and pools file, reopens its log, and logs
            what needs a restart
SIGUSR1     writes its state to the log, whatever the level is
==========  ==========================================================================================================

Loading a changed pools file at run time was refused: pools are wired through drivers, the fleet and the free maps, and
a restart takes a second, during which runs and partitions continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path

from moorings.app import logs
from moorings.app.folders import KUBERNETES_RUNS
from moorings.app.quotas import MachineQuotas
from moorings.app.settings import Settings, read_settings
from moorings.app.state_dump import log_state
from moorings.app.systemd import SystemdNotifier, feed_watchdog
from moorings.app.tls import TlsContexts, watch_certificates
from moorings.app.wiring import SLURM_RUNS, Assembly
from moorings.controller.retention import RemovedCounts, Retention
from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import parse_pools
from moorings.core.model.timestamps import DAY_S, Timestamp, add_seconds
from moorings.kubernetes.engine.run_folder import KubernetesRunFolder
from moorings.local.run_folder import LocalRunFolder
from moorings.local.shared_engine import SharedEngine
from moorings.ports.clock import Clock
from moorings.slurm.engine.run_folder import SlurmRunFolder
from moorings.store.archive import ArchiveFolder
from moorings.workloads.runs import RunId

log = logging.getLogger("moorings.controller")

PRUNE_S = 3600.0
ENVIRONMENT_SWEEP_S = 60.0
ENVIRONMENT_AGE_S = 3600.0  # after which no run is made of what was saved for it: its request has long ended
RESERVE_S = 10.0
QUOTAS_S = 10.0
SWEEP_S = 3600.0  # also before the first sweep: an upgrade of two controllers, one after the other, is over by then

_AT_ONCE = frozenset({"log_level"})
_SECRET = frozenset({"database"})


@dataclass(frozen=True, slots=True)
class MaintenanceContext:
    """The parts of a controller that maintenance needs.

    Attributes:
        settings: those of its start.
        arguments: their command line.
        environment: their variables.
        pools_file: the pools file, and
        pools_digest: the digest of its text at the start.
        runs: folder of the runs.
        shared: folder of the installation.
        clock: the time.
        assembly: its parts while it leads, else None.
        tls: its TLS; None: it speaks plain HTTP.
        machine_quotas: of the people of a shared machine; None: it is none.
    """

    settings: Settings
    arguments: Sequence[str]
    environment: Mapping[str, str]
    pools_file: Path
    pools_digest: str
    runs: Path
    shared: Path
    clock: Clock
    assembly: Callable[[], Assembly | None]
    tls: TlsContexts | None = None
    machine_quotas: MachineQuotas | None = None

    def leading(self) -> Assembly | None:
        """The controller's parts while it leads and knows the records; else None."""
        assembly = self.assembly()
        return None if assembly is None or assembly.loop.problem else assembly


@contextlib.asynccontextmanager
async def run_maintenance(kept: MaintenanceContext) -> AsyncIterator[None]:
    """Maintain a serving controller until the end of the block: report ready at its start, stopping at its end."""
    notifier = SystemdNotifier(kept.environment)
    reloader = Reloader(kept, notifier)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    loop.add_signal_handler(signal.SIGUSR1, lambda: log_state(kept.assembly(), kept.clock.now()))
    tasks = [
        asyncio.create_task(feed_watchdog(notifier, lambda: _rounds(kept.assembly())), name="watchdog"),
        asyncio.create_task(_prune_runs(kept), name="prune-runs"),
        asyncio.create_task(_clean_spool(kept), name="clean-spool"),
        asyncio.create_task(_clean_environments(kept), name="clean-environments"),
        asyncio.create_task(_keep_reserve(kept), name="keep-reserve"),
        asyncio.create_task(_archive_history_loop(kept), name="sweep-history"),
    ]
    if kept.machine_quotas is not None:
        tasks.append(asyncio.create_task(_apply_quotas(kept, kept.machine_quotas), name="quotas"))
    if kept.tls is not None:
        tasks.append(asyncio.create_task(watch_certificates(kept.tls), name="certificates"))
    notifier.send(READY=1, STATUS="serves")
    try:
        yield
    finally:
        notifier.send(STOPPING=1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_reserve(kept: MaintenanceContext) -> None:
    """Keep space for the writes that end work, in a database on a disk that fills up."""
    while True:
        assembly = kept.leading()
        if assembly is not None:
            with contextlib.suppress(MooringsError):  # the loop meets it, too, and reports it
                await asyncio.to_thread(assembly.loop.store.ensure_reserve)
        await kept.clock.sleep(RESERVE_S)


async def _apply_quotas(kept: MaintenanceContext, quotas: MachineQuotas) -> None:
    """Set the limits of people as root's file says, while this controller leads."""
    while True:
        assembly = kept.leading()
        if assembly is not None:
            await quotas.apply(assembly)
        await kept.clock.sleep(QUOTAS_S)


def _rounds(assembly: Assembly | None) -> int | None:
    return assembly.loop.rounds if assembly is not None else None


def file_digest(path: Path) -> str:
    """A digest that shows whether a file has changed; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


class Reloader:
    """Reads the configuration again on request, and logs the result.

    Args:
        kept: the controller.
        notifier: gets its start and its end.
    """

    def __init__(self, kept: MaintenanceContext, notifier: SystemdNotifier) -> None:
        self._kept = kept
        self._notifier = notifier
        self._level = kept.settings.log_level

    def reload(self) -> None:
        """Apply what can be applied without a restart. A wrong configuration changes nothing."""
        self._notifier.reloading()
        try:
            logs.reopen()
        except OSError as error:
            log.warning("log.not_reopened", extra={"detail": str(error)})
        try:
            self._apply(read_settings(self._kept.arguments, self._kept.environment))
        except MooringsError as error:
            log.warning("reload.refused", extra={"code": error.code, "detail": error.detail, "hint": error.hint})
        except SystemExit:  # argparse's way to refuse: our own command line has not changed
            log.warning("reload.refused", extra={"detail": "the command line cannot be read"})
        self._check_pools_file()
        if self._kept.tls is not None:
            self._kept.tls.reload()
        self._notifier.send(READY=1)
        log.info("reload.done")

    def _apply(self, settings: Settings) -> None:
        if settings.log_level != self._level:
            self._level = settings.log_level
            logs.set_level(settings.log_level)
            log.info("reload.taken", extra={"setting": "log_level", "value": settings.log_level})
        for item in fields(Settings):
            before, now = getattr(self._kept.settings, item.name), getattr(settings, item.name)
            if before != now and item.name not in _AT_ONCE:
                shown = "" if item.name in _SECRET else str(now)
                log.warning("reload.needs_restart", extra={"setting": item.name, "value": shown})

    def _check_pools_file(self) -> None:
        path = self._kept.pools_file
        try:
            text = path.read_text(encoding="utf-8")
            entries = parse_pools(text, source=str(path))
        except (OSError, UnicodeDecodeError) as error:
            log.warning("pools.refused", extra={"file": str(path), "detail": str(error)})
        except MooringsError as error:
            log.warning("pools.refused", extra={"file": str(path), "code": error.code, "detail": error.detail})
        else:
            if file_digest(path) != self._kept.pools_digest:
                names = ",".join(entry.pool.name for entry in entries)
                detail = "it can be read; restart the controller to use it"
                log.warning("reload.needs_restart", extra={"setting": "pools", "pools": names, "detail": detail})


async def _prune_runs(kept: MaintenanceContext) -> None:
    """Remove old runs' folders regularly, while this controller leads and knows which runs have ended."""
    if not kept.settings.keep_runs_days:
        return
    while True:
        assembly = kept.leading()
        if assembly is not None:
            before = add_seconds(kept.clock.now(), -kept.settings.keep_runs_days * DAY_S)
            spared = frozenset(assembly.loop.runs.by_id)
            local = assembly.running.engines.get("local")
            shared = local.hold_ended if isinstance(local, SharedEngine) else None
            places: list[tuple[Path, HoldEnded]] = [(kept.runs, shared or LocalRunFolder.hold_ended)]
            if kept.settings.slurm is not None:
                runs = kept.settings.slurm.folder or kept.shared / SLURM_RUNS
                places.append((runs, SlurmRunFolder.hold_ended))
            if kept.settings.kubernetes is not None:
                places.append((kept.shared / KUBERNETES_RUNS, KubernetesRunFolder.hold_ended))
            removed = [
                run for runs, hold in places for run in await asyncio.to_thread(prune, runs, before, spared, hold)
            ]
            if removed:
                log.info("runs.pruned", extra={"count": len(removed), "days": kept.settings.keep_runs_days})
        await kept.clock.sleep(PRUNE_S)


async def _clean_spool(kept: MaintenanceContext) -> None:
    """Have the root daemon of a machine that people share forget jobs of which no run will be made, while we lead."""
    while True:
        await kept.clock.sleep(PRUNE_S)
        assembly = kept.leading()
        engine = assembly.running.engines.get("local") if assembly is not None else None
        if assembly is not None and isinstance(engine, SharedEngine):
            used = {run.spool_entry for run in assembly.loop.runs.by_id.values()}
            try:
                count = await asyncio.to_thread(engine.forget_unused, used)
            except (OSError, ValueError, MooringsError) as error:
                log.warning("spool.not_cleaned", extra={"detail": str(error)})
            else:
                if count:
                    log.info("spool.cleaned", extra={"count": count})


async def _clean_environments(kept: MaintenanceContext) -> None:
    """Remove the variables of runs that can start no more, while we lead."""
    while True:
        assembly = kept.leading()
        if assembly is not None:
            runs = assembly.loop.runs.by_id.values()  # the elements of an array share its variables
            used = frozenset(RunId(run.job.array.id) if run.job.array else run.id for run in runs)
            await asyncio.to_thread(assembly.running.environments.remove_unused, used, ENVIRONMENT_AGE_S)
        await kept.clock.sleep(ENVIRONMENT_SWEEP_S)


async def _archive_history_loop(kept: MaintenanceContext) -> None:
    """Move old records from the database to the archive regularly, while this controller leads."""
    if not kept.settings.keep_history_days:
        return
    while True:
        await kept.clock.sleep(SWEEP_S)
        assembly = kept.leading()
        if assembly is not None:
            await archive_history(assembly, kept.settings, kept.clock)


async def archive_history(assembly: Assembly, settings: Settings, clock: Clock) -> None:
    """Move old records from a leader's database to the archive; log the result, or why not."""
    retention = Retention(
        loop=assembly.loop,
        store=assembly.loop.store,
        archives=ArchiveFolder(settings.archive_folder),
        clock=clock,
        holder=socket.gethostname(),
        keep_days=settings.keep_history_days,
    )
    try:
        swept = await retention.archive_and_delete()
    except MooringsError as error:
        failed = {"code": error.code, "detail": error.detail, "hint": error.hint}
        log.warning("history.not_archived", extra=failed)
        assembly.loop.history_problem = error.detail
        return
    except RuntimeError as error:  # it no longer leads, and its writer has gone
        log.warning("history.not_archived", extra={"detail": str(error)})
        return
    assembly.loop.history_problem = ""
    if swept != RemovedCounts():
        counts = {"events": swept.events, "runs": swept.runs, "claims": swept.claims}
        log.info("history.archived", extra={**counts, "days": settings.keep_history_days})


# -- pruning of runs' folders ------------------------------------------------------------------------------------------
# Removes old folders of ended runs, with their output: otherwise disks fill up. The run's engine decides whether it
# has ended, and holds it meanwhile; a doubtful folder stays. It is renamed first, so that a crash half way leaves a
# folder that is clearly not a run's and is removed next time.

PRUNED_PREFIX = ".pruned-"  # no run's id begins like this

# Holds a run in the folder of all runs, so that nothing of it starts before the end of the block; gives whether it
# ended before that time. An OSError means: try again next time.
HoldEnded = Callable[[Path, RunId, Timestamp], AbstractContextManager[bool]]


def prune(runs: Path, before: Timestamp, spared: Collection[str], hold: HoldEnded) -> list[RunId]:
    """Remove the folders of runs that ended before a time; return their ids.

    Args:
        runs: the folder of all runs of an engine.
        before: runs that ended later stay.
        spared: ids of runs that stay in any case: in the records they have not ended.
        hold: the engine's function.
    """
    removed: list[RunId] = []
    with contextlib.suppress(OSError):  # it no longer exists
        for entry in sorted(os.scandir(runs), key=lambda entry: entry.name):
            if entry.name.startswith(PRUNED_PREFIX):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif (
                entry.is_dir(follow_symlinks=False)
                and entry.name not in spared
                and _prune_one(runs, RunId(entry.name), before, hold)
            ):
                removed.append(RunId(entry.name))
    return removed


def _prune_one(runs: Path, run: RunId, before: Timestamp, hold: HoldEnded) -> bool:
    doomed = runs / f"{PRUNED_PREFIX}{run}"
    try:
        with hold(runs, run, before) as ended:
            if not ended:
                return False
            (runs / run).rename(doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True
