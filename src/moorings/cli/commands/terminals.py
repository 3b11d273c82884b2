"""``moor shell``, ``attach``, ``exec`` and ``port-forward``: into what a run holds."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

import click

from moorings.cli.arrays import find_one_run
from moorings.cli.command_tree import MoorCommand, complete_names, examples, name_argument, strip_nouns
from moorings.cli.commands.run import CommandBehindDashes, run
from moorings.cli.interactive import SIGHUP_EXIT, TerminalSession, check_terminal, find_command, socket_of
from moorings.cli.slurm_terminals import StepForwarder, become_step, check_own_job, is_on_slurm
from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.submission.slurm_submission import reporting
from moorings.terminal.attaching import (
    Relay,
    RelayEnd,
    RelayResult,
    TerminalRefusedError,
    connect,
    raw_terminal,
    window_size,
)
from moorings.terminal.context import CommandContext
from moorings.terminal.errors import error_lines
from moorings.terminal.interrupts import Interrupted, SignalsAsExceptions
from moorings.terminal.patience import make_patience
from moorings.terminal.port_forwarding import Forwarder, PortForwarder, SupervisorForwarder, parse_ports
from moorings.terminal.progress import Progress
from moorings.wire.errors import ExitCode
from moorings.wire.frames import TerminalAction, TerminalRequest
from moorings.wire.shapes import RunBody, TaskContainerBody
from moorings.workloads.runs import ENDED

SIGPIPE_EXIT = 141
END_POLL_S = 5.0
_NOT_OF_A_SHELL = frozenset({"file", "detach", "interactive", "resume", "from_", "ntasks", "retries"})


@click.pass_context
def _run_shell(ctx: click.Context, /, **flags: object) -> int:
    """Run a shell."""
    session = ctx.ensure_object(CommandContext)
    in_container = flags["engine"] == "kubernetes" or flags["image"] is not None
    ctx.meta["command"] = find_command(session.environment, in_container=in_container)
    absent: dict[str, object] = dict.fromkeys(_NOT_OF_A_SHELL) | {"file": (), "detach": False, "interactive": True}
    result: int = ctx.invoke(run, **absent, **flags)
    return result


shell = MoorCommand(
    "shell",
    callback=_run_shell,
    params=[each for each in run.params if each.name not in _NOT_OF_A_SHELL and not (each.name or "_").startswith("_")],
    help="Open a shell on a partition of its own.\n\n"
    "It is your login shell, in this folder, and holds its devices until you leave it. Ctrl-P Ctrl-Q detaches; if it "
    "stays so, or its terminal is closed, for the time of --keep, it ends. With --image it is the image's bash or sh. "
    "On Kubernetes your own kubectl attaches to that: to detach, close the terminal.",
    epilog=examples(
        "moor shell --ipus 4", "moor shell --size 0 --cpus 2", "moor shell --ipus 4 --time 2:00:00 --keep 1h"
    ),
)


@click.command(
    cls=MoorCommand,
    help="Come back to the terminal of a run.\n\n"
    "Of one that 'moor run -i' or 'moor shell' has started. Several may be attached: each sees all output and "
    "may type. Ctrl-P Ctrl-Q detaches; on Kubernetes, where your own kubectl attaches, close the terminal.",
    epilog=examples("moor attach bash", "moor attach run-7f3kq2m4xw2a"),
)
@name_argument("run")
@click.pass_obj
def attach(session: CommandContext, name: str) -> int:
    """Come back to the terminal of a run."""
    (name,) = strip_nouns("run", [name])
    check_terminal()
    progress = Progress(session.console)
    found = find_one_run(session.client, name, "moor attach")
    if found.engine == "kubernetes" and found.job.terminal_keep_s is None:
        hint = f"'moor exec {found.id} -- COMMAND' runs a command beside its tasks"
        raise MooringsError("terminal.refused", f"run {found.id} has no terminal", hint=hint)
    session.client.retry_policy = make_patience(progress)
    terminal = TerminalSession(session, progress)
    with SignalsAsExceptions(), reporting(session, found.id):
        try:
            return terminal.follow(found)
        except Interrupted as stop:
            terminal.report_left(found)
            return stop.exit_code


@click.command(
    "exec",
    cls=CommandBehindDashes,
    help="Run a command beside the tasks of a run.\n\n"
    "It has the variables, the folder and the devices of task 0, and ends with the run. It gets a terminal if this is "
    "one; else its output and its errors stay apart. The exit code is the command's own. Your own srun runs it on "
    "Slurm, and your own kubectl on Kubernetes.",
    epilog=examples(
        "moor exec digits -- bash",
        "moor exec digits -- nvidia-smi",
        "moor exec run-7f3kq2m4xw2a -- tar c checkpoints > saved.tar",
    ),
)
@name_argument("run")
@click.option("--tty/--no-tty", default=None, help="Give it a terminal (if this is one).")
@click.pass_context
def exec(ctx: click.Context, name: str, *, tty: bool | None) -> int:  # noqa: A001 - the name of the command
    """Run a command beside the tasks of a run."""
    session = ctx.ensure_object(CommandContext)
    command: Sequence[str] = ctx.meta["command"]
    if not command:
        raise click.UsageError("give a command behind --")
    (name,) = strip_nouns("run", [name])
    if tty:
        check_terminal()
    tty = sys.stdin.isatty() and sys.stdout.isatty() if tty is None else tty
    request = TerminalRequest(
        action=TerminalAction.EXEC,
        command=tuple(command),
        tty=tty,
        term=session.environment.get("TERM", "")[:100],
        size=window_size(0),
    )
    found = find_one_run(session.client, name, "moor exec")
    if is_on_slurm(found):
        return become_step(found, request)
    where = session.client.get_terminal(found.id)
    if where.container is not None:
        from moorings.cli.pod_terminal import become_command

        become_command(found.id, where.container, command, tty=tty)
    try:
        connected = connect(socket_of(where), request)
    except TerminalRefusedError as error:
        for line in error_lines(error):
            session.console.error(line)
        return error.exit_code or ExitCode.DENIED
    with connected, SignalsAsExceptions():
        return _relay_command(Relay(connected, terminal=tty), is_raw=tty)


def _relay_command(relay: Relay, *, is_raw: bool) -> int:
    """Pass bytes until the command has ended; without a terminal signals are passed on, a second one ends the wait."""
    try:
        if is_raw:
            with raw_terminal(0):
                return _command_code(relay.run())
        try:
            return _command_code(relay.run())
        except Interrupted as stop:
            relay.send_signal(stop.number)
            return _command_code(relay.run())
    except Interrupted as stop:
        return stop.exit_code


def _command_code(result: RelayResult) -> int:
    match result.end:
        case RelayEnd.EXITED:
            return result.exit_code
        case RelayEnd.DETACHED:
            return ExitCode.OK
        case RelayEnd.CLOSED:
            return SIGHUP_EXIT if sys.stdout.isatty() else SIGPIPE_EXIT
        case RelayEnd.LOST:
            return 128 + signal.SIGKILL  # the run's supervisor was killed, and with it the command


@click.command(
    "port-forward",
    cls=MoorCommand,
    help="Reach a port of a run's machine from here.\n\n"
    "Listens on 127.0.0.1 and passes each connection to that port of the machine where the run is. Only your own "
    "programs on this machine are let in; on Kubernetes your own kubectl listens, and lets in all users of this "
    "machine. Ends with the run, or by Ctrl-C.",
    epilog=examples("moor port-forward notebook 8888", "moor port-forward notebook 9000:8888 6006"),
)
@click.argument("name", metavar="RUN", shell_complete=complete_names("run"))
@click.argument("ports", metavar="[LOCAL:]REMOTE...", nargs=-1, required=True)
@click.pass_obj
def port_forward(session: CommandContext, name: str, ports: Sequence[str]) -> int:
    """Reach a port of a run's machine from here."""
    wanted = [parse_ports(text) for text in ports]
    (name,) = strip_nouns("run", [name])
    progress = Progress(session.console)
    found = find_one_run(session.client, name, "moor port-forward")
    forwarder: Forwarder
    if is_on_slurm(found):
        forwarder = StepForwarder(str(check_own_job(session, found).job_id), progress.report)
    else:
        where = session.client.get_terminal(found.id)
        if where.container is not None:
            session.client.retry_policy = make_patience(progress)
            return _forward_by_kubectl(session.client, progress, found, where.container, wanted)
        forwarder = SupervisorForwarder(socket_of(where), progress.report)
    session.client.retry_policy = make_patience(progress)
    with (
        SignalsAsExceptions(),
        reporting(session, found.id),
        PortForwarder(forwarder, wanted, progress.report) as forwarding,
    ):
        try:
            for local, remote in forwarding.ports:
                session.console.print_line(f"Forwarding from 127.0.0.1:{local} -> {remote}")
            found = _follow_to_end(session.client, found, lambda: False)
        except Interrupted as stop:
            return stop.exit_code
    progress.report(f"{found.id}: {found.state}")
    return ExitCode.OK


def _follow_to_end(client: Client, found: RunBody, is_enough: Callable[[], bool]) -> RunBody:
    """The run, once this attempt has ended, or it is enough."""
    attempt = found.attempt
    while found.state not in ENDED and found.attempt == attempt and not is_enough():
        found = client.get_run(found.id, wait_s=END_POLL_S)
    return found


def _forward_by_kubectl(
    client: Client, progress: Progress, found: RunBody, place: TaskContainerBody, ports: Sequence[tuple[int, int]]
) -> int:
    """Forward ports by the person's own ``kubectl`` until the run, or that, has ended."""
    from moorings.cli.pod_terminal import check_place, run_kubectl
    from moorings.kubernetes.engine.kubectl import PodRight, build_port_forward

    check_place(found.id, place, PodRight.PORT_FORWARD)
    with SignalsAsExceptions(), run_kubectl(build_port_forward(place, ports)) as kubectl:
        try:
            found = _follow_to_end(client, found, lambda: kubectl.poll() is not None)
        except Interrupted as stop:
            return stop.exit_code
        if (code := kubectl.poll()) is not None:
            return code
    progress.report(f"{found.id}: {found.state}")
    return ExitCode.OK
