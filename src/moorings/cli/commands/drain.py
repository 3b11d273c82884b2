"""``moor drain`` and ``moor resume``: devices out of service and back."""

from __future__ import annotations

from collections.abc import Sequence

import click

from moorings.cli.grammar import NounGroup, bare_names, examples, names_argument
from moorings.cli.session import Session
from moorings.core.devices import PoolName, device_id
from moorings.core.errors import MooringsError
from moorings.core.topology import Block

_reason = click.option("--reason", required=True, metavar="TEXT", help="Why, for the people after you.")


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


def _devices_of(session: Session, noun: str, names: Sequence[str]) -> list[str]:
    chosen = bare_names(noun, names)
    if noun == "device":
        return device_ids(chosen)
    return [device.id for pool in chosen for device in session.client.devices(session.client.pool(pool).name)]


def _drain_command(noun: str) -> click.Command:
    @names_argument(noun, required=True)
    @_reason
    @click.pass_obj
    def callback(session: Session, names: Sequence[str], reason: str) -> None:
        for ident in _devices_of(session, noun, names):
            device = session.client.drain_device(ident, reason)
            held = f"; {device.owner} keeps it until its end" if device.owner else ""
            session.console.data(f"device/{device.id} drained{held}")

    return click.command(noun, cls=NounGroup.command_class, help=_text("out of", noun))(callback)


def _resume_command(noun: str) -> click.Command:
    @names_argument(noun, required=True)
    @click.pass_obj
    def callback(session: Session, names: Sequence[str]) -> None:
        for ident in _devices_of(session, noun, names):
            if session.client.device(ident).state == "IN_SERVICE":
                session.console.note(f"device/{ident} is in service")
                continue
            session.console.data(f"device/{session.client.resume_device(ident).id} resumed")

    return click.command(noun, cls=NounGroup.command_class, help=_text("back into", noun))(callback)


def _text(where: str, noun: str) -> str:
    what = "devices, as pod64:3 or pod64:0-15," if noun == "device" else "all devices of pools"
    return f"Take {what} out of service." if where == "out of" else f"Put {what} back into service."


drain = NounGroup(
    name="drain",
    help="Take devices out of service.",
    epilog=examples('moor drain device pod64:17 --reason "link errors"', 'moor drain pool pod64 --reason "firmware"'),
    no_args_is_help=True,
)
resume = NounGroup(
    name="resume",
    help="Put devices back into service.",
    epilog=examples("moor resume device pod64:17", "moor resume pool pod64"),
    no_args_is_help=True,
)
for _noun in ("device", "pool"):
    drain.add_command(_drain_command(_noun), _noun)
    resume.add_command(_resume_command(_noun), _noun)
