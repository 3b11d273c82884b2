"""What shows work that runs elsewhere in the scheduler of the job it was started from.

Synchronous, and nothing here fails with the scheduler or waits for one that hangs: the work is what counts, not its
reflection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnCancel = Callable[[str], None]  # is told why, as a clause ("Slurm sent its step SIGTERM"); from another thread


class MirroredWork(Protocol):
    """Work that is being shown."""

    def end(self, ok: bool) -> None:
        """Show that the work has ended, well or not; returns when that is shown, within seconds. Idempotent."""
        ...


class WatchHandle(Protocol):
    """Something that is kept an eye on."""

    def stop(self) -> None:
        """Look no more; what is found from now on is not told. Idempotent."""
        ...


class Mirror(Protocol):
    """Shows work from its start to its end."""

    def begin(self, name: str, on_cancel: OnCancel) -> MirroredWork:
        """Show that work of this name runs from now on; returns at once, it may show a moment later.

        Args:
            name: as people shall see it.
            on_cancel: called once at most, and never after ``end``, when somebody ended from outside what is shown.

        Raises:
            MooringsError: ``name.invalid``.
        """
        ...

    def watch_limit(self, on_cancel: OnCancel, lead_s: float) -> WatchHandle:
        """See to the time limit of the job around us, for work that is not shown yet since it still waits.

        Args:
            on_cancel: called once at most, ``lead_s`` before the limit, or when the job has ended.
            lead_s: seconds.
        """
        ...


class NoMirror:
    """Where there is nothing to show work in: nothing happens."""

    def begin(self, name: str, on_cancel: OnCancel) -> MirroredWork:
        return _Nothing()

    def watch_limit(self, on_cancel: OnCancel, lead_s: float) -> WatchHandle:
        return _Nothing()


class _Nothing:
    def end(self, ok: bool) -> None:
        pass

    def stop(self) -> None:
        pass
