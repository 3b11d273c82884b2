"""The Slurm agent's process: ``moor slurm agent``, or ``python -m moorings.app.slurm_agent`` under systemd.

It runs in the foreground beside slurmctld, as root or as SlurmUser, and logs to standard error. SIGTERM closes the gate
and ends it; partitions and jobs stay as they are, and the next agent reads everything from Slurm and the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import secrets
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from moorings import __version__
from moorings.app.exits import returns_exit_code
from moorings.app.logs import configure
from moorings.core.model.errors import MooringsError
from moorings.core.model.queue_reports import INSTANCE_ID_CHARS
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import build_config, parse_config
from moorings.slurm.host.agent import AgentSettings, SlurmAgent
from moorings.slurm.host.bind_server import CONNECTIONS_MAX, BindServer
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.instance_id import ensure_instance, lock_instance
from moorings.slurm.host.node_state_file import FILE as NODES
from moorings.slurm.host.site import Site, parse_site
from moorings.slurm.host.step_allocations import FOLDER as STEPS
from moorings.slurm.host.vipu_conf import (
    SERVER_USER,
    VipuConf,
    load_vipu_conf,
    slurm_conf_path,
    slurm_uid,
    vipu_conf_path,
)
from moorings.slurm.munge import Munge

log = logging.getLogger("moorings.slurm.agent")

PAUSE_S = 1.0
OWN_FILES = 256  # requests to the controller and to munged, pipes of Slurm's commands
CONNECTIONS_MIN = 16
CALL_S = 10.0  # a controller without a response for that long is away: the gate must not stay open long


@returns_exit_code
def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a cluster until stopped."""
    parser = ArgumentParser(prog="moor slurm agent", description="Keep Slurm's IPU jobs and their partitions in step.")
    parser.add_argument("--conf", type=Path, help="vipu.conf (default: beside slurm.conf)")
    parser.add_argument("--listen", default="", metavar="ADDRESS", help="where nodes ask (default: all addresses)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    configure(given.log_level, "logfmt")
    conf = load_vipu_conf(given.conf or vipu_conf_path(os.environ), slurm_uid(slurm_conf_path(os.environ)))
    asyncio.run(serve(conf, given.listen or None, os.environ))


async def serve(conf: VipuConf, listen: str | None, environment: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        MooringsError: it cannot start.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    slurm = SlurmCommands(environment)
    site = await _wait_for_slurm(slurm, stopping)
    if site is None:
        return
    instance = ensure_instance(site.state_folder, secrets.token_hex(INSTANCE_ID_CHARS // 2))
    if not await _wait_for_instance_lock(site.state_folder, stopping):
        return
    settings = AgentSettings(
        cluster=site.cluster,
        instance=instance,
        pool=conf.pool,
        folder=str(conf.ipuof_dir or ""),
        patience_s=conf.timeout_s,
        steps_folder=site.state_folder / STEPS,
        nodes_file=site.state_folder / NODES,
        admins=frozenset({0, site.slurm_user[1]}),
    )
    calls = ControllerClient(conf.endpoint(CALL_S, environment.get(SERVER_USER, "")))
    agent = SlurmAgent(settings, slurm, calls)
    munge = Munge(site.munge_socket)
    door = BindServer(
        munge, agent.answer, agent.explain_wait, agent.record_heartbeat, connections_max=raise_open_files()
    )
    port = await door.open(listen, conf.agent_port)
    log.info(
        "agent.started",
        extra={
            "version": __version__,
            "cluster": site.cluster,
            "instance": settings.instance,
            "slurm": site.version,
            "port": port,
            "server": conf.server,
        },
    )
    work, stop = asyncio.create_task(agent.serve()), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        door.close()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        calls.close()
    log.info("agent.stopped")


async def _pause(stopping: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE_S):
            await stopping.wait()


async def _wait_for_instance_lock(folder: Path, stopping: asyncio.Event) -> bool:
    """Wait until no other agent serves the Slurm with this state folder; false: stop.

    Two agents could give the GCDs of one job to two of its steps, each knowing only its own.
    """
    logged = False
    while (lock := lock_instance(folder)) is None and not stopping.is_set():
        if not logged:
            log.warning("agent.waits", extra={"detail": f"waiting: another agent holds the lock in {folder}"})
        logged = True
        await _pause(stopping)
    return lock is not None


def raise_open_files() -> int:
    """Raise this process's limit of open files, if permitted; return the number of connections it allows."""
    wanted = CONNECTIONS_MAX + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CONNECTIONS_MAX
    room = max(soft - OWN_FILES, CONNECTIONS_MIN)
    hint = f"let it open {wanted} files: LimitNOFILE= of its unit, or ulimit -Hn"
    log.warning("agent.few_files", extra={"files": soft, "connections": room, "hint": hint})
    return room


async def _wait_for_slurm(slurm: SlurmCommands, stopping: asyncio.Event) -> Site | None:
    """Slurm's report about itself, once slurmctld answers: the agent may start first. None: stop."""
    logged = False
    while not stopping.is_set():
        try:
            return parse_site(parse_config(await slurm.run_checked(build_config())))
        except MooringsError as error:
            if not error.retryable:
                raise
            if not logged:
                log.warning("slurm.awaited", extra={"code": error.code, "detail": error.detail})
            logged = True
        await _pause(stopping)
    return None


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a request that the controller still holds would keep a process alive after a normal return
