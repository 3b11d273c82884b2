"""Signals as exceptions: Ctrl-C, a TERM or a closed terminal ends a wait at once, wherever the code is.

Only for commands that must clean up first (cancel a run). Signals that were ignored when ``moor`` was started stay
ignored, so ``nohup moor run`` works as usual.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def name(self) -> str:
        """The signal's name, as in ``SIGTERM``."""
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """128 + N, as shells count."""
        return 128 + self.number


class SignalsAsExceptions:
    """A context manager: inside it, signals raise ``Interrupted`` in the main thread."""

    def __init__(self) -> None:
        self._before: dict[int, object] = {}

    def __enter__(self) -> SignalsAsExceptions:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, _raise)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what getsignal gave


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)
