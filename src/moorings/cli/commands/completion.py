"""``moor completion``: scripts for shells. Click makes them; names of live things come from the controller."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from moorings.cli.grammar import MoorCommand, examples
from moorings.cli.session import Session


@click.command(
    cls=MoorCommand,
    help="Print a completion script for a shell.",
    epilog=examples(
        "moor completion bash > ~/.local/share/bash-completion/completions/moor",
        "moor completion fish > ~/.config/fish/completions/moor.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, "the choice above"
    ctx.ensure_object(Session).console.data(kind(ctx.find_root().command, {}, "moor", "_MOOR_COMPLETE").source())
