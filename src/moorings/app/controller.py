"""The controller's process: ``python -m moorings.app.controller``, started by ``moor up`` or systemd.

It runs in the foreground and logs to standard error. SIGTERM ends it within seconds and leaves every partition and every
run as it is; whoever starts next goes on from the database, the drivers and the runs' own records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import uvicorn
import uvloop

from moorings import __version__
from moorings.api.application import make_application
from moorings.api.server import make_server
from moorings.app.clock import SystemClock
from moorings.app.folders import DataFolder, write_private
from moorings.app.logs import configure
from moorings.app.settings import Settings, read_settings
from moorings.app.wiring import Assembly, assemble, read_pools
from moorings.controller.keys import Keys
from moorings.core.access import Role
from moorings.core.errors import MooringsError
from moorings.core.queue import Policy
from moorings.store.sqlite import open_sqlite
from moorings.wire.errors import Exit, kind_of

log = logging.getLogger("moorings.controller")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a controller until it is told to stop; the exit code."""
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments)
        configure(settings.log_level, settings.log_format)
        uvloop.run(serve(settings))
    except MooringsError as error:
        return _fail(error)
    except* MooringsError as group:
        first = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]  # type: ignore[assignment]
        assert isinstance(first, MooringsError)
        return _fail(first)
    return Exit.OK


def _fail(error: MooringsError) -> int:
    sys.stderr.write(f"error: {error.detail} ({error.code})\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")
    return kind_of(error.code).exit
