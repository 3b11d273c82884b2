"""A session with the controller for one step of a program: without a terminal, from any thread, also beside a loop."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from moorings.client.transport import RetryPolicy
from moorings.terminal.context import CommandContext
from moorings.terminal.patience import PATIENCE_S

T = TypeVar("T")


def in_session(environment: Mapping[str, str], use: Callable[[CommandContext], T], patience_s: float = PATIENCE_S) -> T:
    """What ``use`` returns for a new session; in a thread if this one runs an event loop, as a notebook's does.

    A connection is for one thread, and Slurm's commands are run by a loop of their own.

    Args:
        environment: says where the controller is, as for ``moor``.
        use: asks it.
        patience_s: how long a controller that is away is waited for.

    Raises:
        MooringsError: as ``use`` does.
    """

    def run() -> T:
        with _open(environment, patience_s) as session:
            return use(session)

    return _in_thread(run) if _has_loop() else run()


@contextlib.contextmanager
def _open(environment: Mapping[str, str], patience_s: float) -> Iterator[CommandContext]:
    session = CommandContext(environment)
    session.flags["quiet"] = "true"
    session.client.retry_policy = RetryPolicy(patience_s)
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
