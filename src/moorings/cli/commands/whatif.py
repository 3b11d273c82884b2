"""``moor whatif``: what another policy would change for the claims that wait now."""

from __future__ import annotations

from pathlib import Path

import click

from moorings.cli import simulation
from moorings.cli.command_tree import MoorCommand, examples
from moorings.cli.output import TableStyle, render_data, render_table
from moorings.cli.printing import make_printer, output_option
from moorings.core.model.policy import parse_policy
from moorings.core.model.quantities import age_text
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode, parse_time
from moorings.wire.forecasts import WhatIfAskedBody, WhatIfBody, WhatIfClaimBody, WhatIfSideBody
from moorings.wire.shapes import API_VERSION

ROWS_MAX = 50  # of a table; JSON has all of them
_UNKNOWN = "unknown"


@click.command(
    cls=MoorCommand,
    help="Compare another policy with the current one for the claims that wait now.\n\n"
    "The controller plays its queue on under the policy in force (NOW) and under the one of the file (THEN): all run "
    "to their time limits, and no new claims arrive. Nothing is changed.",
    epilog=examples("moor whatif --policy policy.toml", "moor whatif --policy policy.toml -o json"),
)
@click.option(
    "--policy",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="The policy file to compare.",
)
@output_option
@click.pass_obj
def whatif(session: CommandContext, /, *, policy: Path, output: str | None) -> None:
    """Compare another policy with the current one for the claims that wait now."""
    shown = make_printer(session, output, usual="table")
    text = simulation.read_file(policy, "policy.invalid")
    parse_policy(text, source=str(policy))  # here the file's name is known, for the error text
    found = session.client.compare_policies(text)
    if shown.form.name in ("json", "yaml"):
        document = {"apiVersion": API_VERSION, "kind": "WhatIf", **encode(found)}
        session.console.print_data(render_data(document, shown.form, shown.look))
        return
    session.console.print_data(what_if_text(found, shown.look))
    if len(found.claims) > ROWS_MAX:
        session.console.info(f"{len(found.claims) - ROWS_MAX} more wait; '-o json' shows them")
    if not found.whole:
        session.console.info("the queue is too long to be played to its end: what is unknown may still start")


def what_if_text(found: WhatIfBody, look: TableStyle) -> str:
    """When each claim starts, how long each size waits, and what both policies do."""
    at = parse_time(found.at)
    parts = []
    if found.claims:
        rows = [
            [
                one.name,
                one.project,
                str(one.size),
                _start(one.now_at, at),
                _start(one.then_at, at),
                _change(one, whole=found.whole),
            ]
            for one in found.claims[:ROWS_MAX]
        ]
        parts.append(render_table(["NAME", "PROJECT", "SIZE", "NOW", "THEN", "CHANGE"], rows, look))
    if found.waits:
        sizes = [[str(one.size), str(one.claims), age_text(one.now_s), age_text(one.then_s)] for one in found.waits]
        parts.append(render_table(["SIZE", "CLAIMS", "MEAN-NOW", "MEAN-THEN"], sizes, look))
    within = f" within {age_text(found.window_s)}" if found.window_s else ""
    both = (found.now, found.then)
    measures = [
        [f"devices in use{within}", *(f"{one.utilisation:.1%}" for one in both)],
        ["asked to yield", *(str(one.yields) for one in both)],
        ["asked to move", *(str(one.moves) for one in both)],
    ]
    parts.append(render_table(["MEASURE", "NOW", "THEN"], measures, look))
    asked = [[one.name, one.project, *_times(one.claim, both)] for one in _asked_in_either(both)]
    if asked:
        headers = ["ASKED", "PROJECT", "YIELDS-NOW", "YIELDS-THEN", "MOVES-NOW", "MOVES-THEN"]
        parts.append(render_table(headers, asked[:ROWS_MAX], look))
    return "\n\n".join(parts)


def _start(text: str | None, at: Timestamp) -> str:
    if text is None:
        return _UNKNOWN
    wait_s = seconds_between(at, parse_time(text))
    return f"in {age_text(wait_s)}" if wait_s > 0 else "at once"


def _change(one: WhatIfClaimBody, *, whole: bool) -> str:
    if not whole and (one.now_at is None or one.then_at is None):
        return _UNKNOWN
    if one.now_at == one.then_at:
        return "same"
    if one.now_at is None or one.then_at is None:
        return "starts" if one.now_at is None else "starts no more"
    sooner_s = seconds_between(parse_time(one.then_at), parse_time(one.now_at))
    return f"{age_text(abs(sooner_s))} {'sooner' if sooner_s > 0 else 'later'}"


def _asked_in_either(both: tuple[WhatIfSideBody, WhatIfSideBody]) -> list[WhatIfAskedBody]:
    """The claims asked to yield or move under either policy, each once."""
    named = {one.claim: one for side in both for one in side.asked}
    return [named[claim] for claim in sorted(named)]


def _times(claim: str, both: tuple[WhatIfSideBody, WhatIfSideBody]) -> list[str]:
    found = [next((one for one in side.asked if one.claim == claim), None) for side in both]
    yields = [str(one.yields) if one is not None else "0" for one in found]
    return [*yields, *(str(one.moves) if one is not None else "0" for one in found)]
