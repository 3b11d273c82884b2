"""``moor motd``: a few lines for a login. It never fails a login, and never holds one up for longer than a second.

What needs the controller is imported and done in a thread, which is left behind when the time is up: a limit on each of
its waits would not limit their sum, and nothing limits the look-up of a host's name.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.core.model.owners import is_within
from moorings.terminal.context import CommandContext

if TYPE_CHECKING:
    from moorings.cli.motd_lines import LoginFacts

LIMIT_S = 1.0  # for all of it, from the start of the process
START_S = 0.3  # of that for the start of Python, where the kernel does not say when it was


@click.command(
    cls=MoorCommand,
    help="Print a few lines about the machine for a login.\n\n"
    "At most six: the free devices of each pool, how many people wait, your own runs, and what your project's limits "
    "leave. A run of yours that holds devices and has used no CPU for long is named first. Root gets the first two "
    "lines, and on a terminal those who hold idle devices: /etc/update-motd.d runs as root, for everybody. Without an "
    "answer within a second there is no output, and the exit code is 0 all the same; -v says why.",
    epilog=examples("moor motd", "moor motd -v"),
)
@click.pass_obj
def motd(session: CommandContext) -> int:
    """Print the lines, or nothing; return 0."""
    lines: list[str] = []
    problems: list[str] = []

    def work() -> None:
        try:
            lines.extend(_build(session, deadline_s))
        except Exception as error:
            problems.append(str(error) or type(error).__name__)

    left_s = LIMIT_S - _process_age_s()
    deadline_s = time.monotonic() + left_s
    if left_s > 0:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(left_s)
    if lines:
        session.console.print_data("\n".join(lines))
    elif "verbose" in session.flags:
        session.console.error(f"motd: {problems[0] if problems else f'no answer within {LIMIT_S:g} s'}")
    return 0


def _build(session: CommandContext, deadline_s: float) -> list[str]:
    from moorings.cli.motd_lines import build_lines

    return build_lines(_load(session, deadline_s), session.now(), unicode=session.console.unicode)


def _load(session: CommandContext, deadline_s: float) -> LoginFacts:
    """What the controller says, in five calls at most, six where a project has a limit.

    Raises:
        MooringsError: the controller is not there, or refuses.
    """
    from moorings.cli.motd_lines import LoginFacts
    from moorings.cli.people import find_devices_left
    from moorings.cli.queue_entries import load_queue

    with session.new_client(timeout_s=max(0.01, deadline_s - time.monotonic())) as client:
        pools, entries = client.list_pools(), load_queue(client)
        if os.geteuid() == 0:
            return LoginFacts(pools, entries, shows_idle=session.console.out_is_tty)
        user, projects = client.who_am_i().subject, client.list_projects()
        project = session.configuration.text("project")
        above = [each for each in projects if is_within(project, each.name)]
        quotas = client.list_quotas() if any(each.devices_max is not None for each in above) else ()
        own = [entry for entry in entries if entry.user == user]
        return LoginFacts(pools, entries, user, find_devices_left(project, user, own, above, quotas))


def _process_age_s() -> float:
    """How long this process has run, from /proc/self/stat (proc(5)): its start in ticks since the machine's.

    In some sandboxes the two clocks differ; a minute or more is no start of Python.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return START_S
    return age_s if 0 <= age_s < 60 else START_S
