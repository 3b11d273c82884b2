"""Picks the implementation of each port, and joins them into one controller."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.app.clock import RandomIds
from moorings.app.folders import PROTECT_FILE, runs_folders
from moorings.app.people import MachinePeople
from moorings.app.recovery import prepare_to_lead
from moorings.app.settings import Settings
from moorings.controller.driver_manager import DriverManager
from moorings.controller.idle_watch import IdleWatch
from moorings.controller.keys import AccessKeyManager
from moorings.controller.loop import TurnLoop
from moorings.controller.rewind_recovery import begin_leading
from moorings.controller.run_manager import RunManager
from moorings.controller.service import Controller
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.machine import machine_pool
from moorings.core.model.policy import DEFAULT_POLICY, Policy, parse_policy
from moorings.core.model.pools import PoolEntry, parse_pools
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.drivers.vipu.driver import VipuDriver
from moorings.drivers.vipu.settings import VipuSettings
from moorings.engines.environments import FolderEnvironments
from moorings.kubernetes.engine.settings import KubernetesEngineSettings
from moorings.local.engine import LocalEngine
from moorings.local.live_runs import partitions_in_use
from moorings.local.shared_engine import SharedEngine
from moorings.ports.clock import Clock
from moorings.ports.driver import Driver
from moorings.ports.engine import Engine
from moorings.ports.leadership import Leadership, SingleController
from moorings.ports.personal import PersonalEngine
from moorings.ports.store import Store
from moorings.ports.usage import UsageMeter
from moorings.privileged import places
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.engine.engine import SlurmEngine
from moorings.slurm.engine.personal import PersonalSlurmEngine
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.store.log_position import LogPositionFile
from moorings.store.sqlite import open_sqlite
from moorings.workloads.idleness import IdleLimits

SLURM_RUNS = "slurm-runs"  # in the data folder; copies of what people's jobs report


def read_policy(path: Path | None, usual: Path, *, reserve: bool) -> Policy:
    """The policy of the named policy file, else of the ``usual`` one, if it exists.

    Raises:
        MooringsError: ``policy.invalid``, with file and line.
    """
    found = path if path is not None else usual
    policy = DEFAULT_POLICY
    if path is not None or usual.exists():
        try:
            text = found.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            hint = "give a readable TOML file in UTF-8"
            raise MooringsError("policy.invalid", f"{found}: {error}", hint=hint) from error
        policy = parse_policy(text, source=str(found))
    return policy if reserve else replace(policy, reserve=False)


def read_pools(path: Path) -> tuple[PoolEntry, ...]:
    """The pools of a pools file.

    Raises:
        MooringsError: ``pools.invalid``, with file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MooringsError("pools.invalid", f"{path}: {error}", hint="give a readable TOML file in UTF-8") from error
    return parse_pools(text, source=str(path))


def _simulated(entry: PoolEntry, data: Path, clock: Clock) -> Driver:
    settings = SimulatedSettings.read(entry.settings)
    return SimulatedDriver(entry.pool, settings, data / "simulated" / entry.pool.name, clock)


def _vipu(entry: PoolEntry, data: Path, clock: Clock) -> Driver:
    settings = VipuSettings.read(entry.settings)
    return VipuDriver(entry.pool, settings, data / "vipu" / entry.pool.name, clock)


DRIVERS: dict[str, Callable[[PoolEntry, Path, Clock], Driver]] = {"simulated": _simulated, "vipu": _vipu}


def make_drivers(
    entries: Sequence[PoolEntry], data: Path, clock: Clock, undo: AsyncExitStack
) -> dict[PoolName, Driver]:
    """A driver for each pool; ``undo`` closes each one from the moment it is made.

    Raises:
        MooringsError: ``driver.unknown``, ``pools.invalid``.
    """
    drivers: dict[PoolName, Driver] = {}
    for entry in entries:
        make = DRIVERS.get(entry.pool.driver)
        if make is None:
            raise MooringsError(
                "driver.unknown",
                f"{entry.settings.location()}: pool {entry.pool.name}: there is no driver {entry.pool.driver[:40]!r}",
                hint=f"drivers: {', '.join(DRIVERS)}",
            )
        driver = drivers[entry.pool.name] = make(entry, data, clock)
        undo.push_async_callback(driver.close)
    return drivers


def open_store(settings: Settings) -> tuple[Store, Leadership]:
    """The database in the settings, and this controller's part in its election.

    Raises:
        MooringsError: ``store.*``, ``config.invalid``.
    """
    if not settings.database:
        return open_sqlite(settings.data / "moorings.db"), SingleController()
    from moorings.store.leader_lock import LeaderLock  # psycopg is an extra
    from moorings.store.postgresql import open_postgresql

    return open_postgresql(settings.database), LeaderLock(settings.database)


def check_slurm_user(settings: SlurmEngineSettings | None, user_id: int) -> None:
    """Check that jobs may be submitted as that user: root's jobs would be root's on every node, for any submitter.

    Raises:
        MooringsError: ``config.invalid``.
    """
    if settings is not None and settings.folder is not None and user_id == 0:
        raise MooringsError(
            "config.invalid",
            "[slurm]: this controller runs as root, and so would everybody's jobs, on every node of the cluster",
            hint="leave folder out, so that people submit their jobs themselves, or run it as a user of its own",
        )


def make_slurm_engine(settings: SlurmEngineSettings, clock: Clock, environment: Mapping[str, str]) -> SlurmEngine:
    """The engine for that cluster."""
    conf = {"SLURM_CONF": str(settings.conf)} if settings.conf is not None else {}
    assert settings.folder is not None, "else people submit their jobs themselves"
    return SlurmEngine(settings, settings.folder, SlurmCommands({**environment, **conf}), clock)


def make_kubernetes_engine(
    settings: KubernetesEngineSettings, folder: Path, installation: str, clock: Clock, environment: Mapping[str, str]
) -> Engine:
    """The engine for that cluster.

    Args:
        settings: the cluster.
        folder: of the runs; made if missing.
        installation: its IPUJobs are ours.
        clock: the time.
        environment: may name a kubeconfig.

    Raises:
        MooringsError: ``kubernetes.not_configured``, ``config.invalid``.
    """
    try:  # they are an extra
        from moorings.kubernetes.engine.engine import KubernetesEngine
        from moorings.kubernetes.kube.client import connect
        from moorings.kubernetes.kube.kubeconfig import load_credentials
        from moorings.kubernetes.kube.pod_streams import PodStreams
    except ImportError as error:
        hint = "install moorings[kubernetes], or leave [kubernetes] out"
        raise MooringsError("config.invalid", f"[kubernetes]: {error}", hint=hint) from error

    folder.mkdir(mode=0o700, exist_ok=True)
    kube = connect(environment, path=settings.kubeconfig, context=settings.context)
    calls = PodStreams(load_credentials(environment, path=settings.kubeconfig, context=settings.context))
    return KubernetesEngine(settings, folder, installation, kube, calls, clock)


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of one controller, joined."""

    loop: TurnLoop
    hardware: DriverManager
    running: RunManager
    idle: IdleWatch
    keys: AccessKeyManager
    controller: Controller

    async def close(self) -> None:
        """Close drivers and engines; partitions and runs stay."""
        for driver in self.hardware.drivers.values():
            await driver.close()
        for engine in self.running.engines.values():
            await engine.close()


def _may_be_in_use(data: Path, runs: Path, partition: str) -> bool:
    """Whether a partition without a record may be in use: by a run of this machine, or since a restored backup.

    Raises:
        OSError, RecordUnreadableError: that is unknown.
    """
    return (data / PROTECT_FILE).exists() or partition in partitions_in_use(runs)


async def assemble(
    *,
    store: Store,
    entries: Sequence[PoolEntry],
    data: Path,
    runs: Path,
    mark: LogPositionFile,
    pepper: bytes,
    policy: Policy,
    clock: Clock,
    holder: str,
    url: str = "",
    local_runs: bool = True,
    machine: Mapping[str, int] | None = None,
    sockets: Path | None = None,
    admins_only: bool = False,
    output_bytes_max: int = 0,
    key_lifetime_s: float = 0.0,
    slurm: SlurmEngineSettings | None = None,
    kubernetes: KubernetesEngineSettings | None = None,
    idle: IdleLimits = IdleLimits(0.0, 0.0),  # noqa: B008 - a value
) -> Assembly:
    """Assemble one controller over these pools, leading from now on, with its memory loaded.

    Args:
        store: the installation's database.
        entries: the pools.
        data: folder of the installation, with the simulated hardware.
        runs: folder of the runs.
        mark: the known position of the database's log.
        pepper: for the digests of access keys.
        policy: of the scheduler.
        clock: the time.
        holder: this controller's name among those of the installation.
        url: its address for the others.
        local_runs: whether jobs run as processes of this machine.
        machine: the CPUs and bytes of memory that it gives to its jobs; what is 0 or missing is not counted.
        sockets: of the root daemon that starts these as their people; None: they are this user's.
        admins_only: whether only admins may start such jobs, because this controller is root.
        output_bytes_max: the limit for all tasks' logs of one such job together; 0: no limit.
        key_lifetime_s: of new access keys without a given lifetime; 0: they never expire.
        slurm: the cluster for submitted jobs; None: there is none.
        kubernetes: likewise, a Kubernetes cluster.
        idle: when a run is idle; it is never by default.

    Raises:
        MooringsError: ``driver.unknown``, ``pools.invalid``, ``store.*``, ``config.invalid``.
    """
    async with AsyncExitStack() as undo:
        drivers = make_drivers(entries, data, clock, undo)
        await asyncio.to_thread(prepare_to_lead, store, data, runs if local_runs else None, mark, clock.now())
        epoch = await asyncio.to_thread(
            begin_leading, store, mark.read(), mark.record_blocking, holder, clock.now(), url
        )
        pools = [entry.pool for entry in entries]
        if local_runs:
            pools.append(machine_pool(machine or {}))
        loop = TurnLoop(store, pools, policy, clock, epoch)
        undo.callback(loop.discard)
        installation = store.installation()
        hardware = DriverManager(
            loop,
            drivers,
            clock,
            installation,
            in_use=lambda name: asyncio.to_thread(_may_be_in_use, data, runs, name),
            record_position=mark.record,
        )
        engines: dict[str, Engine] = {}
        meters: dict[str, UsageMeter] = {}
        if local_runs and sockets is not None:
            shared = SharedEngine(runs, sockets / places.CONTROL, clock, output_bytes_max)
            engines["local"] = meters["local"] = shared
        elif local_runs:
            engines["local"] = LocalEngine(runs, clock, output_bytes_max)
        personal: dict[str, PersonalEngine] = {}
        if slurm is not None and slurm.folder is None:
            engines["slurm"] = personal["slurm"] = PersonalSlurmEngine(slurm, data / SLURM_RUNS, clock)
        elif slurm is not None:
            engines["slurm"] = make_slurm_engine(slurm, clock, os.environ)
        folders = runs_folders(data, runs, slurm.folder if slurm is not None else None)
        if kubernetes is not None:
            engines["kubernetes"] = make_kubernetes_engine(
                kubernetes, folders["kubernetes"], installation, clock, os.environ
            )
        ids = RandomIds()
        environments = FolderEnvironments({name: folder for name, folder in folders.items() if name in engines})
        await asyncio.to_thread(environments.remove_drafts)
        running = RunManager(loop, engines, hardware, clock, ids, installation, environments)
        watch = IdleWatch(loop, meters, idle, clock)
        keys = AccessKeyManager(store, clock, pepper, key_lifetime_s)
        controller = Controller(
            loop=loop,
            store=store,
            hardware=hardware,
            engines=engines,
            keys=keys,
            clock=clock,
            ids=ids,
            installation=installation,
            environments=environments,
            people=MachinePeople().find_caller if sockets is not None else None,
            handed_in=("local",) if sockets is not None else (),
            admins_only=("local",) if admins_only else (),
            personal=personal,
        )
        await loop.load()
        undo.pop_all()
        return Assembly(loop, hardware, running, watch, keys, controller)
