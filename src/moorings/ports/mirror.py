"""The mirror: shows work that runs elsewhere as a step of the scheduler's job that started it.

Synchronous. It never fails with the scheduler and never waits for a hanging one: the work matters more than its
display.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnCancel = Callable[[str], None]  # gets the reason as a clause ("Slurm sent its step SIGTERM"); from another thread


class MirroredWork(Protocol):
    """Work that is shown."""

    def end(self, is_success: bool) -> None:
        """Show that the work has ended, well or not; returns when that is shown, within seconds. Idempotent."""
        ...


class WatchHandle(Protocol):
    """A handle of a watch."""

    def stop(self) -> None:
        """Stop watching; later findings are not reported. Idempotent."""
        ...


class Mirror(Protocol):
    """Shows work from its start to its end."""

    def begin(self, name: str, on_cancel: OnCancel) -> MirroredWork:
        """Show work of this name from now on; returns at once, it may show a moment later.

        Args:
            name: the displayed name.
            on_cancel: called at most once, and never after ``end``, when the shown step was ended from outside.

        Raises:
            MooringsError: ``name.invalid``.
        """
        ...

    def watch_limit(self, on_cancel: OnCancel, lead_s: float) -> WatchHandle:
        """Watch the time limit of the surrounding job, for work that still waits and so is not shown yet.

        Args:
            on_cancel: called at most once, ``lead_s`` before the limit, or when the job has ended.
            lead_s: seconds.
        """
        ...


class NoMirror:
    """The mirror outside any scheduler's job: it does nothing."""

    def begin(self, name: str, on_cancel: OnCancel) -> MirroredWork:
        return _Nothing()

    def watch_limit(self, on_cancel: OnCancel, lead_s: float) -> WatchHandle:
        return _Nothing()


class _Nothing:
    def end(self, ok: bool) -> None:
        pass

    def stop(self) -> None:
        pass
