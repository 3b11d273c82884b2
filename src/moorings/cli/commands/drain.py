"""``moor drain`` and ``moor resume device``: take devices out of service, and put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from moorings.cli.command_tree import NounGroup, examples, names_argument, strip_nouns
from moorings.cli.confirm import confirm, yes_option
from moorings.core.model.devices import PoolName, device_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import Block
from moorings.terminal.context import CommandContext

_reason = click.option("--reason", required=True, metavar="TEXT", help="Reason, shown to other admins.")
_IN_SERVICE = "is in service"


def device_ids(names: Sequence[str]) -> list[str]:
    """Device ids of names such as ``pod64:3`` or ``pod64:0-15,32``.

    Raises:
        MooringsError: ``device.unknown``, ``block.invalid``.
    """
    found: list[str] = []
    for name in names:
        pool, colon, block = name.partition(":")
        if not colon:
            raise MooringsError(
                "device.unknown", f"no device is called {name!r}", hint="a device is POOL:INDEX or POOL:FIRST-LAST"
            )
        found += [device_id(PoolName(pool), index) for index in Block.parse(block)]
    return found


def _devices_of(session: CommandContext, chosen: Sequence[str], noun: str) -> list[str]:
    if noun == "device":
        return device_ids(chosen)
    return [device.id for pool in chosen for device in session.client.list_devices(session.client.get_pool(pool).name)]


def _drain_command(noun: str) -> click.Command:
    @names_argument(noun, required=True)
    @_reason
    @yes_option
    @click.pass_obj
    def callback(session: CommandContext, names: Sequence[str], reason: str, *, yes: bool) -> None:
        client, chosen = session.client, strip_nouns(noun, names)
        if noun == "device":
            device_ids(chosen)  # refused before the user is asked
        question = f"Drain {noun} {', '.join(chosen)}?"
        confirm(session, question, lambda: _check_exist(session, chosen, noun), yes=yes)
        drained = (client.drain_device(ident, reason) for ident in _devices_of(session, chosen, noun))
        _report_grouped(session, ((device.id, _drained_text(device.owner)) for device in drained))

    return click.command(noun, cls=NounGroup.command_class, help=_text("out of", noun))(callback)


def _check_exist(session: CommandContext, chosen: Sequence[str], noun: str) -> None:
    """Raise if one of them does not exist."""
    look: Callable[[str], object] = session.client.get_pool if noun == "pool" else session.client.device
    for name in chosen if noun == "pool" else device_ids(chosen):
        look(name)


def _drained_text(owner: str | None) -> str:
    return f"drained; {owner} keeps it until its end" if owner else "drained"


def resume_devices_command(noun: str) -> click.Command:
    """The part of ``moor resume`` for devices, or for all of a pool's."""

    @names_argument(noun, required=True)
    @click.pass_obj
    def callback(session: CommandContext, names: Sequence[str]) -> None:
        devices = _devices_of(session, strip_nouns(noun, names), noun)
        _report_grouped(session, ((ident, _resumed(session, ident)) for ident in devices))

    return click.command(noun, cls=NounGroup.command_class, help=_text("back into", noun))(callback)


def _resumed(session: CommandContext, ident: str) -> str:
    if session.client.device(ident).state == "IN_SERVICE":
        return _IN_SERVICE
    session.client.resume_device(ident)
    return "resumed"


def _report_grouped(session: CommandContext, outcomes: Iterable[tuple[str, str]]) -> None:
    """Report outcomes of devices, neighbours of the same outcome in one line; also of those before an error."""
    alike: list[str] = []
    fate = ""
    try:
        for ident, what in outcomes:
            if alike and not (what == fate and _is_next(ident, alike[-1])):
                _report(session, alike, fate)
                alike = []
            alike.append(ident)
            fate = what
    finally:
        if alike:
            _report(session, alike, fate)


def _report(session: CommandContext, idents: Sequence[str], fate: str) -> None:
    last = f"-{idents[-1].rpartition(':')[2]}" if len(idents) > 1 else ""
    write = session.console.info if fate == _IN_SERVICE else session.console.print_line
    write(f"device/{idents[0]}{last} {fate}")


def _is_next(ident: str, before: str) -> bool:
    (pool, _, index), (pool_before, _, index_before) = ident.rpartition(":"), before.rpartition(":")
    return pool == pool_before and int(index) == int(index_before) + 1


def _text(where: str, noun: str) -> str:
    what = "devices, as pod64:3 or pod64:0-15," if noun == "device" else "all devices of pools"
    return f"Take {what} out of service." if where == "out of" else f"Put {what} back into service."


drain = NounGroup(
    name="drain",
    help="Take devices out of service.",
    epilog=examples('moor drain device pod64:17 --reason "link errors"', 'moor drain pool pod64 --reason "firmware"'),
    no_args_is_help=True,
)
for _noun in ("device", "pool"):
    drain.add_command(_drain_command(_noun), _noun)
