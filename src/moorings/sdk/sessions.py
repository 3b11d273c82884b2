"""A session with the controller for one step of a program: without a terminal, from any thread, also beside a loop."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from moorings.client.transport import RetryPolicy
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.terminal.context import CommandContext
from moorings.terminal.patience import PATIENCE_S

T = TypeVar("T")

_logger = logging.getLogger("moorings")


def in_session(
    environment: Mapping[str, str],
    use: Callable[[CommandContext], T],
    patience_s: float = PATIENCE_S,
    *,
    fails_unreached: bool = False,
) -> T:
    """What ``use`` returns for a new session; in a thread if this one runs an event loop, as a notebook's does.

    A connection is for one thread, and Slurm's commands are run by a loop of their own.

    Args:
        environment: says where the controller is, as for ``moor``.
        use: asks it.
        patience_s: how long a controller that is away is waited for; a warning says so.
        fails_unreached: not for one that was never reached: more likely there is none, or its address is wrong.

    Raises:
        MooringsError: as ``use`` does.
    """

    def run() -> T:
        with _open(environment, patience_s, fails_unreached=fails_unreached) as session:
            return use(session)

    return _in_thread(run) if _has_loop() else run()


@contextlib.contextmanager
def _open(environment: Mapping[str, str], patience_s: float, *, fails_unreached: bool) -> Iterator[CommandContext]:
    session = CommandContext(environment)
    session.flags["quiet"] = "true"
    has_warned = False

    def report(error: MooringsError, _pause_s: float) -> None:
        nonlocal has_warned
        if fails_unreached and not session.client.requests_sent:
            raise error
        if not has_warned:
            has_warned = True
            _logger.warning("%s; trying again for up to %s", error.detail, duration_text(patience_s))

    session.client.retry_policy = RetryPolicy(patience_s, on_retry=report)
    try:
        yield session
    finally:
        session.close()


def _has_loop() -> bool:
    if "asyncio" not in sys.modules:  # its import takes a tenth of a second
        return False
    import asyncio

    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    return False


def _in_thread(run: Callable[[], T]) -> T:
    returned: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            returned.append(run())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]
