"""The inputs that wait for a turn, each with the caller that waits for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moorings.controller.turn import AnyReply, KeyedInput
from moorings.core.model.errors import MooringsError

INPUTS_A_TURN_MAX = 256
TRIES_MAX = 5


@dataclass(slots=True)
class QueuedInput:
    """An input, and the reply that its caller waits for; None: no caller waits."""

    demanded: KeyedInput
    reply: asyncio.Future[AnyReply] | None
    tries: int = 0

    def answer(self, reply: AnyReply) -> None:
        """Answer the caller, if one still waits."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(reply)


class Inbox:
    """Inputs in the order in which turns take them; true while an input waits.

    Attributes:
        under_way: the inputs of the present turn.
        arrived: set by each new input.
    """

    def __init__(self) -> None:
        self.under_way: list[QueuedInput] = []
        self.arrived = asyncio.Event()
        self._waiting: list[QueuedInput] = []
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def check_open(self) -> None:
        """Raise ``controller.unreachable`` once it is closed."""
        if self._is_closed:
            raise _stopping_error()

    def put(self, demanded: KeyedInput, reply: asyncio.Future[AnyReply] | None = None) -> None:
        """Add an input; ``reply`` gets its reply."""
        self._waiting.append(QueuedInput(demanded, reply))
        self.arrived.set()

    def take(self) -> list[QueuedInput]:
        """The inputs of the next turn; an input from a failed turn gets a turn of its own."""
        count = 1 if self._waiting and self._waiting[0].tries else INPUTS_A_TURN_MAX
        self.under_way, self._waiting = self._waiting[:count], self._waiting[count:]
        return self.under_way

    def postpone(self, queued: QueuedInput) -> None:
        """Leave an input of this turn to a later one."""
        self._waiting.append(queued)

    def retry_or_fail(self, failed: Sequence[QueuedInput], error: MooringsError) -> None:
        """After a failed turn: retry inputs that may have failed because of others, answer the rest.

        Results of drivers and engines are dropped: they are asked again.
        """
        again = error.code == "store.conflict" or (error.code == "internal.error" and len(failed) > 1)
        for queued in failed:
            if queued.reply is None or queued.reply.done():
                continue
            if again and queued.tries < TRIES_MAX:
                self._waiting.insert(0, replace(queued, tries=queued.tries + 1))
            else:
                queued.reply.set_result(error)

    def reject_all(self, error: MooringsError) -> None:
        """Answer the callers of all inputs that wait."""
        self.retry_or_fail(self._waiting, error)
        self._waiting = []

    def close(self) -> None:
        """Answer all callers, now and from now on."""
        self._is_closed = True
        for queued in (*self.under_way, *self._waiting):
            queued.answer(_stopping_error())
        self.under_way = self._waiting = []


def _stopping_error() -> MooringsError:
    return MooringsError("controller.unreachable", "this controller stops, or leads no longer", retryable=True)
