"""``moor backup`` and ``moor restore``: save a controller's records, and put them back.

A process of the controller's kind (``moorings.app.backup``) does the work: it needs the database's libraries, and this
command starts in a tenth of a second without them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from moorings.cli import machine
from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.confirm import confirm, yes_option
from moorings.cli.errors import UsageErrorWithHint
from moorings.terminal.context import CommandContext

DAEMON_S = 60.0  # for the root daemon's start

_system = click.option("--system", is_flag=True, help="Of a machine that people share; as root.")
_data = click.option(
    "--data", metavar="DIR", help="The controller's data folder ($MOORINGS_DATA, or ~/.local/state/moorings)."
)


@click.command(
    cls=MoorCommand,
    help="Save a controller's records to a file.\n\n"
    "The database as it stands at one moment (the controller may run), the access keys' pepper and the pools file. "
    "Run it on the controller's machine, as its user; with --system, as root: then FILE is written as that user. The "
    "file is 0600: anyone with the file can become an admin.",
    epilog=examples(
        "moor backup moorings-2026-11-21.tar.gz",
        "moor backup /srv/backups/m.tar.gz --data /var/lib/moorings",
        "sudo moor backup --system /srv/backups/m.tar.gz",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@_data
@_system
@click.pass_obj
def backup(session: CommandContext, *, file: Path, data: str | None, system: bool) -> int:
    """Save a controller's records to a file."""
    folder = machine.controller_folder(session.environment, data, system=system)
    return _run(folder, "save", "--file", str(file.absolute()), system=system)


@click.command(
    cls=MoorCommand,
    help="Put a backup's records in place of a controller's.\n\n"
    "The controller must be down. What was there is kept aside. Partitions made since the backup are left alone, for "
    "jobs may run on them, until 'moor restore --finish'.\n\n"
    "A PostgreSQL database is restored by its own tools; then, before any controller starts, 'moor restore --external' "
    "makes it ready, with the controller's own settings (MOORINGS_DATABASE, --data, --shared, --controller-config).\n\n"
    "A controller does not start on a folder that was used and whose database is gone: put that back, restore, or, "
    "where both are lost, say 'moor restore --new'.",
    epilog=examples(
        "moor down && moor restore moorings-2026-11-21.tar.gz && moor up",
        "sudo moor restore --system /srv/backups/m.tar.gz",
        "moor restore --external",
        "moor restore --finish",
        "moor restore --new",
    ),
)
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.option("--external", is_flag=True, help="Make a database ready that its own tools restored (pg_restore).")
@click.option("--finish", is_flag=True, help="Remove partitions that are not in the restored records.")
@click.option("--new", "anew", is_flag=True, help="Start over, with an empty database in place of one that is lost.")
@click.option("--other-installation", is_flag=True, help="Also if FILE is of another installation than the records.")
@click.option("--shared", metavar="DIR", help="The controller's shared folder, if it is started with one.")
@click.option(
    "--controller-config", metavar="FILE", help="The controller's settings file, if it is started with one (--config)."
)
@_data
@_system
@yes_option
@click.pass_obj
def restore(
    session: CommandContext,
    *,
    file: Path | None,
    external: bool,
    finish: bool,
    anew: bool,
    other_installation: bool,
    shared: str | None,
    controller_config: str | None,
    data: str | None,
    system: bool,
    yes: bool,
) -> int:
    """Put a backup's records in place of a controller's."""
    folder = machine.controller_folder(session.environment, data, system=system)
    if [finish, external, anew, file is not None].count(True) != 1 or (other_installation and file is None):
        raise UsageErrorWithHint("name a backup, or say --external, --finish or --new", hint="moor restore FILE")
    if not (finish or external) and (shared or controller_config):
        raise UsageErrorWithHint(
            "--shared and --controller-config are for --external and --finish", hint="moor restore FILE --data DIR"
        )
    named = {"--shared": shared, "--config": controller_config}
    flags = [word for name, value in named.items() if value for word in (name, str(Path(value).absolute()))]
    if finish:
        confirm(session, f"Remove the partitions that no record in {folder} knows?", lambda: None, yes=yes)
        return _run(folder, "finish", *flags, system=system)
    if anew:
        confirm(session, f"Forget all keys, claims and runs of {folder}, and start over?", lambda: None, yes=yes)
        return _run(folder, "new", system=system)
    if external:
        confirm(session, "Has its own tool restored the database, and is every controller down?", lambda: None, yes=yes)
        return _run(folder, "external", *flags, system=system)
    confirm(session, f"Replace the records in {folder} by those in {file}?", lambda: None, yes=yes)
    other = ["--other-installation"] if other_installation else []
    return _run(folder, "restore", "--file", str(Path(str(file)).absolute()), *other, system=system)


def _run(folder: Path, *words: str, system: bool) -> int:
    """Do it in a process of the folder's owner; to restore, the root daemon must run, for it knows which jobs live.

    Raises:
        MooringsError: ``auth.denied``, ``config.invalid``, ``wait.timeout``.
    """
    if system:
        machine.check_root()
        if words[0] != "save" and machine.find_daemon() is None:
            machine.check_no_services("start", machine.SERVICES[:1])  # the controller must be down
            machine.start_daemon(DAEMON_S)
    argv = [sys.executable, "-m", "moorings.app.backup", *words, "--data", str(folder)]
    owner = machine.as_owner_of(folder) if system else {}
    return subprocess.run(argv, stdin=subprocess.DEVNULL, check=False, **owner).returncode
