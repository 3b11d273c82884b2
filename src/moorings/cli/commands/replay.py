"""``moor replay``: decides an event log again, under its own policy or another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.output import render_data
from moorings.cli.printing import make_printer, output_option
from moorings.core.model.pools import parse_pools
from moorings.terminal.configuration import data_folder
from moorings.terminal.context import CommandContext
from moorings.terminal.text import escape_controls
from moorings.wire.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moorings.controller.replay import TurnDifference
    from moorings.core.model.events import Event

SHOWN_CHARS = 400


@click.command(
    cls=MoorCommand,
    help="Replay an event log, or test another policy on it.\n\n"
    "LOG is what 'moor events --after 0 -o json' writes (with '-f', a line an event), or 'moor backup'. What had "
    "left the database by then is read from the archives. Every turn is decided again from the beginning; the same "
    "inputs must give the same events, byte for byte (exit code 1 if they do not).\n\n"
    "With --policy the claims of the log that were granted something become a trace of jobs, which is served under "
    "the log's own policy (A) and under the other one (B), as 'moor simulate' does it.",
    epilog=examples(
        "moor events --after 0 -o json > log.json && moor replay log.json",
        "moor replay moorings-2026-11-21.tar.gz",
        "moor replay log.json --pools pools.toml --policy policy.toml",
    ),
)
@click.argument("log", metavar="LOG", type=click.Path(path_type=Path))
@click.option(
    "--pools",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Pools file of the log's time (that of the backup, or pools.toml in the data folder).",
)
@click.option(
    "--archive",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Archives of the events before LOG's first (archive in the data folder).",
)
@click.option("--policy", metavar="FILE", type=click.Path(path_type=Path), help="Try this policy file on the log.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="With --policy: write report.json, jobs.csv and timeline.svg there.",
)
@output_option
@click.pass_obj
def replay(
    session: CommandContext,
    /,
    log: Path,
    *,
    pools: Path | None,
    archive: Path | None,
    policy: Path | None,
    out: Path | None,
    output: str | None,
) -> int:
    """Replay an event log, or test another policy on it."""
    from moorings.cli import simulation
    from moorings.cli.event_log import build_trace, last_policy, read_log
    from moorings.controller.replay import Replay

    if out is not None and policy is None:
        raise click.UsageError("--out is for --policy")
    shown = make_printer(session, output, usual="table")
    other = simulation.read_policy(policy)
    found = read_log(log, archive or data_folder(session.environment) / "archive")
    if pools is None and found.pools is not None:
        known = tuple(entry.pool for entry in parse_pools(found.pools, source=f"pools.toml of {log}"))
    else:
        known = simulation.read_pools(str(pools or data_folder(session.environment) / "pools.toml"))
    rows = found.rows
    again = Replay(known)
    difference = next(iter(again.replay_rows(rows)), None)
    if difference is not None:
        session.console.print_data(difference_text(difference, again.turns))
        return ExitCode.FAILED
    same = f"{again.turns} turns, all the same, byte for byte"
    if policy is None:
        session.console.print_line(same)
        return ExitCode.OK
    session.console.info(same)
    jobs = build_trace(rows)
    both = (("the log's policy", last_policy(rows)), (str(policy), other))
    outcomes = [simulation.run_simulation(name, known, jobs, one, again.fleet.projects) for name, one in both]
    if shown.form.name in ("json", "yaml"):
        session.console.print_data(render_data(simulation.outcome_data(outcomes), shown.form, shown.look))
    else:
        session.console.print_data(simulation.outcome_text(outcomes, shown.look))
    if out is not None:
        written = simulation.write_files(out, f"{log.name}: {len(jobs)} claims", outcomes)
        session.console.info(f"wrote {', '.join(str(path) for path in written)}")
    return ExitCode.OK


def difference_text(difference: TurnDifference, turns: int) -> str:
    """The first turn with a different decision, and its first event that differs."""
    pairs = zip(
        _padded(difference.logged, difference.decided), _padded(difference.decided, difference.logged), strict=True
    )
    logged, decided = next(pair for pair in pairs if pair[0] != pair[1])
    return "\n".join(
        (
            f"turn {turns}, which ends with event {difference.seq}, was decided otherwise",
            f"- the log: {_event_text(logged)}",
            f"- now:     {_event_text(decided)}",
        )
    )


def _padded(events: Iterable[Event], others: tuple[Event, ...]) -> list[Event | None]:
    found: list[Event | None] = list(events)
    return found + [None] * (len(others) - len(found))


def _event_text(event: Event | None) -> str:
    if event is None:
        return "no such event"
    about = next((one for one in (event.run, event.claim, event.device, event.pool) if one), "")
    text = escape_controls(f"{event.name} {about} {event.data}")
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
