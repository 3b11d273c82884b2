"""``moor up`` and ``moor down``: a controller on this machine, apart from this terminal."""

from __future__ import annotations

import time
from pathlib import Path

import click

from moorings.cli import processes
from moorings.cli.configuration import DEFAULT_CONTEXT, credentials_file, data_folder
from moorings.cli.grammar import MoorCommand, examples
from moorings.cli.progress import Progress
from moorings.cli.session import Session
from moorings.core.errors import MooringsError
from moorings.core.quantities import parse_duration_s

START_S = 60.0
READY_PAUSE_S = 0.1
READY_ANSWER_S = 5.0

_data = click.option("--data", metavar="DIR", help="Its data folder ($MOORINGS_DATA, or ~/.local/state/moorings).")


@click.command(
    cls=MoorCommand,
    help="Start a controller on this machine.\n\n"
    "It runs apart from this terminal and writes to controller.log in its data folder. At its first start it writes an "
    "admin's access key to your credentials file.",
    epilog=examples("moor up", "moor up --pools pools.toml", "moor up --data /tmp/try --port 8099"),
)
@_data
@click.option("--pools", metavar="FILE", help="Its pools file (pools.toml in the data folder).")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), default=8090, metavar="N", help="Port to listen on (8090).")
@click.option("--timeout", default=f"{START_S:g}s", metavar="DURATION", help="How long its start may take (60s).")
@click.pass_obj
def up(session: Session, *, data: str | None, pools: str | None, host: str, port: int, timeout: str) -> int:
    """Start a controller on this machine."""
    folder = Path(data).absolute() if data else data_folder(session.environment)
    running = processes.find_running(folder)
    if running is not None:
        session.console.data(f"a controller already runs: {running.url} (process {running.pid}, data in {folder})")
        return 0
    launch = processes.Launch(
        data=folder,
        host=host,
        port=port,
        pools=Path(pools).absolute() if pools else None,
        credentials=credentials_file(session.environment).absolute(),
        context=session.flags.get("context") or session.environment.get("MOORINGS_CONTEXT") or DEFAULT_CONTEXT,
    )
    progress, limit_s = Progress(session.console), parse_duration_s(timeout)
    progress.wait(f"starting a controller at http://{host}:{port} ...")
    running = _started(session, launch, limit_s)
    progress.clear()
    session.console.data(f"controller started: {running.url} (process {running.pid}, data in {folder})")
    _tell_of_key(session, launch.credentials, running.url)
    return 0


@click.command(
    cls=MoorCommand,
    help="Stop the controller on this machine; runs go on.\n\n"
    "Partitions and the processes of runs stay as they are; the next controller on the same data folder takes them up.",
    epilog=examples("moor down", "moor down --data /tmp/try --timeout 30s"),
)
@_data
@click.option("--timeout", default="15s", metavar="DURATION", help="How long its end may take (15s).")
@click.pass_obj
def down(session: Session, *, data: str | None, timeout: str) -> int:
    """Stop the controller on this machine."""
    folder = Path(data).absolute() if data else data_folder(session.environment)
    running = processes.find_running(folder)
    if running is None:
        session.console.data(f"no controller runs on {folder}")
        return 0
    Progress(session.console).wait(f"stopping process {running.pid} ...")
    if not processes.stop(running, parse_duration_s(timeout)):
        raise MooringsError(
            "wait.timeout",
            f"process {running.pid} has not ended in {timeout}",
            hint=f"see {folder / processes.LOG_NAME}",
        )
    session.console.data(f"controller stopped (process {running.pid})")
    session.console.note("Runs go on; 'moor up' and then 'moor get runs' shows them again.")
    return 0


def _started(session: Session, launch: processes.Launch, limit_s: float) -> processes.Running:
    """The controller, started and ready.

    Raises:
        MooringsError: it died (its last words), or is not ready in time.
    """
    until = time.monotonic() + limit_s
    process = processes.start(launch)
    try:
        running = processes.await_record(process, launch.data, limit_s)
    except MooringsError as error:
        other = processes.find_running(launch.data) if error.code == "controller.running" else None
        if other is None:
            raise
        return other  # somebody else's 'moor up' was quicker: there is one, as was wished
    problem = MooringsError("controller.unreachable", "it has not said where it listens")
    while running is not None:
        with session.client_of(server=running.url, timeout_s=READY_ANSWER_S) as client:
            try:
                client.ready()
                return running
            except MooringsError as error:
                problem = error
        code = process.poll()
        if code is not None:
            raise processes.died(launch.data, code)
        if time.monotonic() > until:
            break
        time.sleep(READY_PAUSE_S)
    raise MooringsError(
        "wait.timeout",
        f"the controller (process {process.pid}) is not ready in {limit_s:g} s: {problem.detail}",
        hint=f"it goes on starting; see {launch.data / processes.LOG_NAME}, or stop it with 'moor down'",
    )


def _tell_of_key(session: Session, credentials: Path, url: str) -> None:
    """Where the key is; and what to do if the configuration leads elsewhere than to this controller."""
    session.__dict__.pop("configuration", None)  # the controller may have written the credentials file meanwhile
    configured = session.configuration.text("server")
    if configured.rstrip("/") != url.rstrip("/"):
        session.console.warn(f"moor is configured for {configured}; reach this one with --server {url}")
    elif session.configuration.text("access_key"):
        session.console.note(f"Your access key is in {credentials}.")
