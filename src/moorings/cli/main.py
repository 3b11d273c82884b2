"""``moor``: the entry point. Parses, calls, and turns every outcome into an exit code and a sentence."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from moorings import __version__
from moorings.cli.command_tree import LazyCommandGroup, global_options
from moorings.cli.commands import COMMANDS
from moorings.core.model.errors import MooringsError
from moorings.terminal.context import CommandContext

GARBAGE_AFTER = 50_000  # new objects: loading a command makes fewer, none of them garbage
SIGINT_EXIT = 130  # 128 + 2
SIGPIPE_EXIT = 141  # 128 + 13, as a shell reports for a command whose reader has gone
SIGHUP_EXIT = 129  # 128 + 1, and for one whose terminal has gone

root = LazyCommandGroup(
    COMMANDS,
    name="moor",
    params=[
        *global_options(hidden=False),
        click.Option(
            ["--version"],
            is_flag=True,
            help="Show the version of the command.",
            is_eager=True,
            expose_value=False,
            callback=lambda *given: _version(*given),
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    help="Moorings gives AI jobs a berth on accelerators.\n\n"
    "\b\nmoor up                                    start a controller here\n"
    "moor run --ipus 4 -- python3 train.py      run a job on 4 IPUs of its own\n"
    "moor get partitions                        see what is in use\n"
    "moor explain NAME                          ask why it waits",
)


def _version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(CommandContext).console.print_data(f"moor {__version__}")
        ctx.exit()


def program() -> int:
    """The program ``moor``: one command, and then the end of the process."""
    gc.set_threshold(GARBAGE_AFTER)
    try:
        return main()
    finally:
        gc.freeze()  # the process ends: to look for garbage first would take a tenth of its time


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Every message has been written."""
    session = CommandContext(os.environ)
    try:
        result = root.main(arguments, prog_name="moor", standalone_mode=False, obj=session)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        return _usage(session, error)
    except click.ClickException as error:
        session.console.error(f"error: {error.format_message()}")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        if session.console.err_is_tty:
            session.console.write_live("")  # the terminal has shown ^C behind what stood there
        session.console.error(session.if_interrupted)
        return SIGINT_EXIT
    except Exception as error:
        return _failure(session, error)
    finally:
        session.close()


def _usage(session: CommandContext, error: click.UsageError) -> int:
    session.console.error(f"error: {' '.join(error.format_message().split())}")  # Click breaks its lists into lines
    path = error.ctx.command_path if error.ctx is not None else "moor"
    hint = getattr(error, "hint", "") or f"see '{path} --help'"
    session.console.error(f"hint: {hint}")
    return error.exit_code


def _failure(session: CommandContext, error: Exception) -> int:
    from moorings.cli.errors import CommandExit
    from moorings.terminal.errors import OutputClosed, TerminalClosed, error_lines, exit_code

    if isinstance(error, CommandExit):
        return error.code
    if isinstance(error, OutputClosed | BrokenPipeError):
        from moorings.terminal.console import discard

        discard(sys.stdout)
        return SIGHUP_EXIT if isinstance(error, TerminalClosed) else SIGPIPE_EXIT
    if not isinstance(error, MooringsError) or "debug" in session.flags:
        import traceback

        if "debug" in session.flags:
            traceback.print_exception(error)
    if not isinstance(error, MooringsError):
        session.console.error(f"error: internal error in moor: {type(error).__name__}: {error}")
        session.console.error("hint: 'moor --debug ...' shows where; please report it")
        return 1
    for line in error_lines(error):
        session.console.error(line)
    return exit_code(error)


if __name__ == "__main__":
    sys.exit(program())
