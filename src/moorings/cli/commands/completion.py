"""``moor completion``: scripts for shells. Names of existing resources come from the controller.

Click makes the scripts for zsh and fish. The one for bash is our own: bash splits words at colons, and Click's script
would complete ``pod64:1`` as if only ``1`` had been typed.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from moorings.cli.command_tree import MoorCommand, examples
from moorings.terminal.context import CommandContext

_BASH = """\
_moor_completion() {
    local rest=${COMP_LINE:0:COMP_POINT} word words=() answers answer kind value IFS=$' \\t\\n'
    # Bash has broken words at colons and equals signs: what has no blank before it belongs to the word before.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -gt 0 && $rest != [[:space:]]* ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        rest=${rest#"${rest%%[![:space:]]*}"}
        rest=${rest#"$word"}
    done
    word=${words[-1]}
    answers=$(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _MOOR_COMPLETE=bash_complete "$1" 2> /dev/null)
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"${word%"${word##*[:=]}"}"}") ;;  # bash replaces only what follows the break
        esac
    done <<< "$answers"
}

complete -o nosort -F _moor_completion moor
"""


@click.command(
    cls=MoorCommand,
    help="Print a completion script for a shell.\n\nIt completes commands, flags, and the names of what exists now.",
    epilog=examples(
        "moor completion bash > ~/.local/share/bash-completion/completions/moor",
        "moor completion zsh > ~/.zsh/completions/_moor",
        "moor completion fish > ~/.config/fish/completions/moor.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell."""
    ctx.ensure_object(CommandContext).console.print_data(_BASH if shell == "bash" else _script(ctx, shell))


def _script(ctx: click.Context, shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None, "the choice above"
    return kind(ctx.find_root().command, {}, "moor", "_MOOR_COMPLETE").source()
