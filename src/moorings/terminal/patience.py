"""How long a command waits for a controller that is away. Apart from ``following``: ``moor get`` needs this alone."""

from __future__ import annotations

from moorings.client.transport import RetryPolicy
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.terminal.progress import Progress

PATIENCE_S = 900.0  # an upgrade of the controller's machine fits into it; a forgotten terminal does not wait for ever


def make_patience(progress: Progress, limit_s: float = PATIENCE_S) -> RetryPolicy:
    """A retry policy that reports each wait."""

    def report(error: MooringsError, _pause_s: float) -> None:
        progress.show_waiting(f"{error.detail}; trying again for up to {duration_text(limit_s)}")

    return RetryPolicy(limit_s, on_retry=report)
