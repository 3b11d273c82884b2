"""``moor delete`` and ``moor reset``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from moorings.cli.command_tree import MoorCommand, NounGroup, examples, names_argument, options, strip_nouns
from moorings.cli.commands.projects import delete_project
from moorings.cli.confirm import confirm, yes_option
from moorings.core.model.claims import ENDED
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext
from moorings.terminal.durations import Deadline
from moorings.terminal.following import REASON_FRESH_S
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.shapes import ClaimBody

_waiting = options(
    click.option("--wait/--no-wait", default=True, help="Wait until nothing is left (yes)."),
    click.option(
        "--timeout", metavar="DURATION", help="Give up waiting after this time, as 90s or 10m, with exit code 124."
    ),
)

delete = NounGroup(
    name="delete",
    help="Remove partitions and projects, release claims, revoke keys.",
    epilog=examples("moor delete partition p64", "moor delete claim p64 -y", "moor delete key key-3hq2"),
    no_args_is_help=True,
)


delete.add_command(delete_project)


@delete.command("partition", cls=MoorCommand)
@names_argument("partition", required=True)
@yes_option
@_waiting
@click.pass_obj
def delete_partition(
    session: CommandContext, names: Sequence[str], *, yes: bool, wait: bool, timeout: str | None
) -> None:
    """Remove partitions, by releasing their claims."""
    _release(session, "partition", names, session.client.delete_partition, (yes, wait, timeout))


@delete.command("claim", cls=MoorCommand)
@names_argument("claim", required=True)
@yes_option
@_waiting
@click.pass_obj
def delete_claim(session: CommandContext, names: Sequence[str], *, yes: bool, wait: bool, timeout: str | None) -> None:
    """Release claims; their partitions are removed."""
    _release(session, "claim", names, session.client.delete_claim, (yes, wait, timeout))


@delete.command("key", cls=MoorCommand)
@names_argument("key", required=True)
@yes_option
@click.pass_obj
def delete_key(session: CommandContext, names: Sequence[str], *, yes: bool) -> None:
    """Revoke access keys, at once."""
    chosen = strip_nouns("key", names)
    confirm(session, f"Revoke {', '.join(chosen)}?", lambda: _check_keys(session, chosen), yes=yes)
    for name in chosen:
        session.client.delete_key(name)
        session.console.print_line(f"key/{name} revoked")


@delete.command("run", cls=MoorCommand, hidden=True)
@names_argument("run", required=True)
def delete_run(names: Sequence[str]) -> None:
    """Runs are cancelled, not deleted: their record stays."""
    raise click.UsageError(f"runs are not deleted; stop one with 'moor cancel {' '.join(strip_nouns('run', names))}'")


reset = NounGroup(
    name="reset",
    help="Put a partition's devices into a clean state.",
    epilog=examples("moor reset partition p64"),
    no_args_is_help=True,
)


@reset.command("partition", cls=MoorCommand)
@names_argument("partition", required=True)
@yes_option
@click.pass_obj
def reset_partition(session: CommandContext, names: Sequence[str], *, yes: bool) -> None:
    """Put partitions' devices into a clean state; they are not usable meanwhile."""
    chosen = strip_nouns("partition", names)
    question = f"Reset {', '.join(chosen)}? What runs on it is lost."
    confirm(session, question, lambda: [session.client.partition(name) for name in chosen], yes=yes)
    for name in chosen:
        partition = session.client.reset_partition(name)
        session.console.print_line(f"partition/{partition.name} reset, {partition.state}")


def _release(
    session: CommandContext,
    noun: str,
    names: Sequence[str],
    release: Callable[[str], ClaimBody],
    how: tuple[bool, bool, str | None],
) -> None:
    yes, wait, timeout = how
    chosen = strip_nouns(noun, names)
    limit, progress = Deadline.of(timeout), Progress(session.console)
    look: Callable[[str], object] = session.client.get_claim if noun == "claim" else session.client.partition
    confirm(session, f"Delete {noun} {', '.join(chosen)}?", lambda: [look(name) for name in chosen], yes=yes)
    released = [(name, release(name)) for name in chosen]
    session.client.retry_policy = make_patience(progress)
    session.if_interrupted = f"not waited for; being deleted: {noun} {', '.join(chosen)}"
    for name, claim in released:
        if wait:
            _wait_for_end(session, progress, claim, limit)
        session.console.print_line(f"{noun}/{name} {'deleted' if wait else 'is being deleted'}")


def _wait_for_end(session: CommandContext, progress: Progress, claim: ClaimBody, limit: Deadline) -> None:
    while claim.state not in ENDED:
        if limit.is_over:
            raise MooringsError(
                "wait.timeout", f"claim {claim.id} is {claim.state}; the time is up", hint="it continues"
            )
        claim = session.client.get_claim(claim.id, wait_s=limit.remaining_s(REASON_FRESH_S), until="ENDED")
        if claim.state not in ENDED:
            progress.show_waiting(f"{claim.name}: waits for its partition to be removed")
    progress.clear()


def _check_keys(session: CommandContext, names: Sequence[str]) -> None:
    known = {key.id for key in session.client.list_keys()}
    for name in names:
        if name not in known:
            raise MooringsError("key.unknown", f"there is no access key {name!r}", hint="see 'moor get keys'")
