"""The end of a program: an error of ours goes to stderr with its hint, and its exit code is the program's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

from moorings.core.model.errors import MooringsError
from moorings.wire.errors import ExitCode, error_kind

P = ParamSpec("P")


def returns_exit_code(main: Callable[P, None]) -> Callable[P, int]:
    """Make a program's ``main`` return its exit code."""

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            main(*args, **kwargs)
        except MooringsError as error:
            sys.stderr.write(f"error: {error.detail} ({error.code})\n")
            if error.hint:
                sys.stderr.write(f"hint: {error.hint}\n")
            return error_kind(error.code).exit
        return ExitCode.OK

    return run
