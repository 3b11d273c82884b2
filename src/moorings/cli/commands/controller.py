"""``moor up`` and ``moor down``: a controller on this machine, detached from this terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from moorings.cli import machine, processes
from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.errors import UsageErrorWithHint
from moorings.client.requests import ApiError
from moorings.client.transport import socket_path
from moorings.core.model.errors import MooringsError
from moorings.pki.files import client_certificate, client_key
from moorings.privileged import places
from moorings.terminal.configuration import (
    DEFAULT_CONTEXT,
    Configuration,
    context_servers,
    credentials_file,
)
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import parse_seconds
from moorings.terminal.progress import Progress

PORT = 8090  # V-IPU's port, known to its users
START_S = 60.0
READY_PAUSE_S = 0.1
READY_ANSWER_S = 5.0
RUNS_ANSWER_S = 2.0  # a controller that hangs is stopped all the same

_system = click.option("--system", is_flag=True, help="Of a machine that people share; as root.")
_data = click.option("--data", metavar="DIR", help="Its data folder ($MOORINGS_DATA, or ~/.local/state/moorings).")


@click.command(
    cls=MoorCommand,
    help="Start a controller on this machine.\n\n"
    "It runs apart from this terminal and writes to controller.log in its data folder. At its first start it writes an "
    "admin's access key to your credentials file.\n\n"
    "With --system it is the machine's, for everybody who has an account there: jobs run as the people who start them, "
    "by a small daemon of root's, and people need no key.",
    epilog=examples(
        "moor up",
        "moor up --pools pools.toml",
        "moor up --data /tmp/try --port 8099",
        "moor up --pki ~/.config/moorings/pki --secure --host 0.0.0.0",
        "sudo moor up --system",
    ),
)
@_data
@_system
@click.option("--pools", metavar="FILE", help="Its pools file (pools.toml in the data folder).")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help=f"Port to listen on ({PORT}, or the one it had when it was killed).",
)
@click.option("--pki", metavar="DIR", help="Serve over TLS, with the certificates of this folder ('moor pki init').")
@click.option("--secure", is_flag=True, help="With --pki: require client certificates ('moor pki issue').")
@click.option(
    "--plain-http", is_flag=True, help="Serve other machines without TLS. Access keys can be read on the network."
)
@click.option("--timeout", default=f"{START_S:g}s", metavar="DURATION", help="How long its start may take (60s).")
@click.pass_obj
def up(
    session: CommandContext,
    *,
    data: str | None,
    system: bool,
    pools: str | None,
    host: str,
    port: int | None,
    pki: str | None,
    secure: bool,
    plain_http: bool,
    timeout: str,
) -> int:
    """Start a controller on this machine."""
    if secure and pki is None:
        raise UsageErrorWithHint("--secure needs certificates", hint="name their folder with --pki")
    if plain_http and pki is not None:
        raise UsageErrorWithHint(
            "--plain-http and --pki exclude each other", hint="with certificates leave --plain-http out"
        )
    limit_s, folder = parse_seconds(timeout), machine.controller_folder(session.environment, data, system=system)
    if system:
        _begin_system(session, folder, limit_s)
    running = processes.find_running(folder)
    if running is not None:
        session.console.print_line(
            f"a controller already runs: {running.url} (process {running.pid}, data in {folder})"
        )
        _report_access(session, running.url, system=system)
        return 0
    port = next(number for number in (port, processes.last_port(folder), PORT) if number is not None)
    launch = processes.ControllerLaunch(
        data=folder,
        host=host,
        port=port,
        pools=Path(pools).absolute() if pools else None,
        credentials=credentials_file(session.environment).absolute() if not system else None,
        context=session.flags.get("context") or session.environment.get("MOORINGS_CONTEXT") or DEFAULT_CONTEXT,
        pki=Path(pki).expanduser().absolute() if pki else None,
        secure=secure,
        plain_http=plain_http,
        sockets=places.SOCKETS if system else None,
    )
    _show_certificates(session, launch)
    progress = Progress(session.console)
    progress.show_waiting(f"starting a controller at {launch.scheme}://{host}:{port} ...")
    running = _start_and_wait(session, launch, limit_s)
    progress.clear()
    session.console.print_line(f"controller started: {running.url} (process {running.pid}, data in {folder})")
    if os.geteuid() == 0 and not session.environment.get("MOORINGS_JOBS_AS_ROOT"):
        session.console.info("Its jobs run as root. For a machine with several people: moor up --system")
    _report_access(session, running.url, system=system)
    return 0


def _begin_system(session: CommandContext, data: Path, limit_s: float) -> None:
    """Start the root daemon, and become the controller's user.

    Raises:
        MooringsError: ``auth.denied``, ``config.invalid``, ``wait.timeout``.
    """
    machine.check_root()
    machine.check_no_services("start")
    machine.find_controller_user()
    pid = machine.start_daemon(limit_s)
    session.console.print_line(f"root daemon: process {pid}, jobs in {places.JOBS}")
    _become_controller(session, data)


def _become_controller(session: CommandContext, data: Path) -> None:
    machine.become_controller(data)
    session.environment = os.environ


def _report_access(session: CommandContext, url: str, *, system: bool) -> None:
    if not system:
        _report_key(session, url)
        return
    session.console.info("People of this machine need no key: 'moor run' works for each of them. Root is its admin.")
    if socket_path(url) is not None:
        session.console.warn("another program has its port, so it takes no access keys (agents, other machines)")
        session.console.info(f"hint: {machine.PORT_TAKEN_REMEDY}")


@click.command(
    cls=MoorCommand,
    help="Stop the controller on this machine; runs continue.\n\n"
    "Partitions and the processes of runs stay as they are; the next controller on the same data folder takes them up.",
    epilog=examples("moor down", "moor down --data /tmp/try --timeout 30s", "sudo moor down --system"),
)
@_data
@_system
@click.option("--timeout", default="15s", metavar="DURATION", help="How long its end may take (15s).")
@click.pass_obj
def down(session: CommandContext, *, data: str | None, system: bool, timeout: str) -> int:
    """Stop the controller on this machine."""
    folder = machine.controller_folder(session.environment, data, system=system)
    if system:
        _end_daemon(session, folder, parse_seconds(timeout))
    running = processes.find_running(folder) or _find_unannounced(folder)
    if running is None:
        session.console.print_line(f"no controller runs on {folder}")
        return 0
    Progress(session.console).show_waiting(f"stopping process {running.pid} ...")
    left = _has_runs(session, running.url)
    if not processes.stop_controller(running, parse_seconds(timeout)):
        raise MooringsError(
            "wait.timeout",
            f"process {running.pid} has not ended in {timeout}",
            hint=f"see {folder / processes.LOG_NAME}",
        )
    session.console.print_line(f"controller stopped (process {running.pid})")
    up = "moor up --system" if system else "moor up"
    if left is None:
        session.console.info(f"Runs, if there are any, continue; '{up}' and then 'moor get runs' shows them.")
    elif left:
        session.console.info(f"Runs continue; '{up}' and then 'moor get runs' shows them again.")
    return 0


def _end_daemon(session: CommandContext, data: Path, limit_s: float) -> None:
    """Stop the root daemon, and become the controller's user.

    Raises:
        MooringsError: ``auth.denied``, ``config.invalid``, ``wait.timeout``.
    """
    machine.check_root()
    machine.check_no_services("stop")
    pid = machine.stop_daemon(limit_s)
    session.console.print_line(f"root daemon stopped (process {pid})" if pid is not None else "no root daemon runs")
    _become_controller(session, data)


def _has_runs(session: CommandContext, url: str) -> bool | None:
    """Whether a controller has runs that have not ended; None: unknown."""
    try:
        authenticated = _session_with_key(session, url)
        if authenticated is None:
            return None
        with authenticated.new_client(timeout_s=RUNS_ANSWER_S) as client:
            return bool(client.list_runs())
    except MooringsError:
        return None


def _session_with_key(session: CommandContext, url: str) -> CommandContext | None:
    """A session with the controller at ``url``; None without an access key for it: another's key is not sent to it.

    Raises:
        MooringsError: ``config.invalid``, ``credentials.unsafe``.
    """
    if _is_same_url(session.configuration.text("server"), url):
        return session
    holders = [name for name, server in context_servers(session.environment).items() if _is_same_url(server, url)]
    return _with_context(session, holders[0], url) if holders else None


def _show_certificates(session: CommandContext, launch: processes.ControllerLaunch) -> None:
    """Let this command trust the controller it starts, and present this user's certificate where one is required.

    Raises:
        MooringsError: ``pki.invalid``: there is no certificate.
    """
    if launch.pki is None:
        return
    session.flags.setdefault("ca_file", str(launch.pki / "ca.pem"))
    subject = processes.user_subject()
    own, key = client_certificate(launch.pki, subject), client_key(launch.pki, subject)
    if own.exists():
        session.flags |= {"cert_file": str(own), "key_file": str(key)}
    elif launch.secure:
        hint = f"moor pki issue {subject} --dir {launch.pki}"
        raise MooringsError("pki.invalid", f"you have no certificate in {launch.pki}", hint=hint)


def _find_unannounced(folder: Path) -> processes.ControllerProcess | None:
    """The controller that holds a folder's lock without a record: it is starting, or the record was damaged.

    Raises:
        MooringsError: ``controller.running``: the lock's holder is not a controller, but for instance a restore.
    """
    for pid in processes.find_lock_holders(folder / processes.LOCK_NAME):
        running = processes.controller_of_pid(pid)
        if running is None:
            raise MooringsError(
                "controller.running",
                f"process {pid} uses {folder} and is no controller",
                hint=f"a restore ends by itself; else see what it is with 'ps -fp {pid}', and stop that",
            )
        return running
    return None


def _start_and_wait(
    session: CommandContext, launch: processes.ControllerLaunch, limit_s: float
) -> processes.ControllerProcess:
    """Start the controller and wait until it is ready.

    Raises:
        MooringsError: it died (with its last log lines), or is not ready in time.
    """
    until = time.monotonic() + limit_s
    started = processes.start_controller(launch)
    try:
        running = processes.wait_for_address(started, launch.data, limit_s)
    except MooringsError as error:
        other = processes.find_running(launch.data) if error.code == "controller.running" else None
        if other is None:
            raise
        return other  # another 'moor up' was quicker: a controller runs, as requested
    problem = MooringsError("controller.unreachable", "the controller has not reported its address")
    while running is not None:
        with session.new_client(server=running.url, timeout_s=READY_ANSWER_S) as client:
            try:
                client.ready()
                return running
            except MooringsError as error:
                problem = error
        # Above all a certificate that is not trusted; errors of a controller that is starting do pass.
        if not isinstance(problem, ApiError) and not problem.retryable:
            raise _unreachable_error(launch, running, problem)
        code = started.process.poll()
        if code is not None:
            raise processes.exit_error(launch.data, code, started.log_at)
        if time.monotonic() > until:
            break
        time.sleep(READY_PAUSE_S)
    raise MooringsError(
        "wait.timeout",
        f"the controller (process {started.process.pid}) is not ready in {limit_s:g} s: {problem.detail}",
        hint=f"it continues to start; see {launch.data / processes.LOG_NAME}, or stop it with 'moor down'",
    )


def _unreachable_error(
    launch: processes.ControllerLaunch, running: processes.ControllerProcess, problem: MooringsError
) -> MooringsError:
    """The error for a controller that runs but cannot be reached by this command."""
    hint = f"{problem.hint}; 'moor down' stops it; its log: {launch.data / processes.LOG_NAME}"
    return MooringsError(
        problem.code,
        f"the controller (process {running.pid}) runs, and cannot be asked whether it is ready: {problem.detail}",
        hint=hint.removeprefix("; "),
    )


def _report_key(session: CommandContext, url: str) -> None:
    """Report where this controller's key is, how to use it if the configuration points elsewhere, and if it works."""
    session.__dict__.pop("configuration", None)  # the controller may have written the credentials file since
    configured, console = session.configuration, session.console
    file = credentials_file(session.environment)
    current = configured.text("context")
    leads_here = _is_same_url(configured.text("server"), url)
    holders = [name for name, server in context_servers(session.environment).items() if _is_same_url(server, url)]
    if leads_here and configured.text("access_key"):
        name = current
        console.info(f"Your access key is in {file}." if current in holders else "You have an access key.")
    elif holders:
        name = current if current in holders else holders[0]
        console.info(f"Your access key for it is in {file}, in context {name}.")
        console.info(_use_text(configured, name, url))
    else:
        console.warn(f"moor is configured for {configured.text('server')}; {file} has no access key for {url}")
        return
    problem = _key_error(session, name, url)
    if problem is not None:
        console.warn(f"the access key of context {name} does not work: {problem.detail}")


def _use_text(configured: Configuration, name: str, url: str) -> str:
    """How to reach a controller whose key is in the context ``name``."""
    origin = configured.values["server"].origin
    if origin.startswith("environment"):  # it takes precedence over any context
        return f"moor is configured for {configured.text('server')} ({origin}); use it with: moor --server {url} ..."
    return f"use it with: moor --context {name} ..., or moor config use-context {name}"


def _key_error(session: CommandContext, name: str, url: str) -> MooringsError | None:
    """Why the controller refuses the key of a context; None if it accepts it."""
    try:
        with _with_context(session, name, url).new_client(timeout_s=READY_ANSWER_S) as client:
            client.list_pools()
    except MooringsError as error:
        return error
    return None


def _with_context(session: CommandContext, name: str, url: str) -> CommandContext:
    """A session with the controller at ``url``, through the context ``name``."""
    other = CommandContext(session.environment)
    other.flags = {**session.flags, "server": url}
    if name != session.configuration.text("context"):  # the current context need not be in a file
        other.flags["context"] = name
    return other


def _is_same_url(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
