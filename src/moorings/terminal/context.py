"""The context of every command: the flags, the configuration, a console, and a client.

Each is made on first use: ``moor --version`` does not pay for HTTP, nor ``moor run --help`` for files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from moorings.core.model.timestamps import DAY_S, Timestamp, seconds_between
from moorings.terminal.console import Console

if TYPE_CHECKING:
    from moorings.client.client import Client
    from moorings.client.transport import Endpoint
    from moorings.terminal.configuration import Configuration

KEY_WARN_S = 14 * DAY_S  # as in the doctor


class CommandContext:
    """One invocation of ``moor``.

    Attributes:
        environment: the variables it was called with.
        flags: the given global flags, by the setting's name.
        if_interrupted: what Ctrl-C says has happened, and what goes on.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.flags: dict[str, str] = {}
        self.if_interrupted = "interrupted"
        self._closing = contextlib.ExitStack()

    def close(self) -> None:
        """Close connections; warn if the user's access key expires soon."""
        client: Client | None = self.__dict__.get("client")
        if client is not None and client.key_expires_at and self.console.err_is_tty:
            self._warn_of_expiry(client.key_expires_at)
        self._closing.close()

    def _warn_of_expiry(self, expires: str) -> None:
        from moorings.core.model.errors import MooringsError
        from moorings.core.model.quantities import age_text
        from moorings.wire.codec import parse_time

        with contextlib.suppress(MooringsError):  # the server there need not be a controller
            left_s = seconds_between(self.now(), parse_time(expires))
            if 0 < left_s <= KEY_WARN_S:
                self.console.info(f"note: your access key expires in {age_text(left_s)}: moor rotate key")

    @cached_property
    def console(self) -> Console:
        """The terminal to write to."""
        # The configuration may be the broken part: colours are not worth an error.
        colour = self.flags.get("color") or self.environment.get("MOORINGS_COLOR") or "auto"
        return Console(self.environment, colour=colour, quiet="quiet" in self.flags)

    @cached_property
    def configuration(self) -> Configuration:
        """Every setting with its origin.

        Raises:
            MooringsError: ``config.invalid``, ``credentials.unsafe``.
        """
        from moorings.terminal.configuration import load_configuration

        return load_configuration(self.flags, self.environment)

    @cached_property
    def client(self) -> Client:
        """A client of the configured controller; connects at its first request."""
        return self._closing.enter_context(self.new_client())

    def new_client(self, *, timeout_s: float | None = None, server: str | None = None) -> Client:
        """Another client, to be closed by the caller; without the access key if that belongs to another ``server``."""
        from moorings.client.client import Client
        from moorings.client.transport import Transport

        trace = self.console.error if "verbose" in self.flags else None
        return Client(Transport(self.build_endpoint(timeout_s=timeout_s, server=server), trace=trace))

    def build_endpoint(self, *, timeout_s: float | None = None, server: str | None = None) -> Endpoint:
        """The address of the configured controller, or of another ``server``, and how to connect to it."""
        from moorings.client.transport import Endpoint

        values = self.configuration
        return Endpoint(
            server=server or values.text("server"),
            access_key=values.text("access_key") if server in (None, values.text("server")) else "",
            ca_file=values.text("ca_file"),
            cert_file=values.text("cert_file"),
            key_file=values.text("key_file"),
            timeout_s=values.timeout_s if timeout_s is None else timeout_s,
            server_user=values.text("server_user"),
        )

    def now(self) -> Timestamp:
        """The current time, for ages."""
        return Timestamp(time.time_ns() // 1000)
