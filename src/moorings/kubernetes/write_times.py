"""When a changed status of an IPUJob is written. Pure.

Each write costs the API server, so a status that is about to change again waits a moment, and a change of messages only
waits longer. Nothing is lost: the difference at the end of the wait is written then.
"""

from __future__ import annotations

from moorings.kubernetes.ipujob import IPUJobStatus
from moorings.kubernetes.plan import COMPLETED, FAILED
from moorings.kubernetes.status import RUNNING, is_same_but_messages

SOON_S = 0.5  # a status that is about to change is not written yet
WORDS_S = 10.0  # least time between two writes that change only messages


def write_delay_s(
    before: IPUJobStatus, after: IPUJobStatus, *, written_s: float, differs_s: float | None, now_s: float, hurry: bool
) -> float | None:
    """Seconds until a status is written: 0: now; None: it is unchanged.

    Args:
        before: as last written.
        after: as it should be.
        written_s: time of the last write; all times are of one monotonic clock.
        differs_s: since when it differs; None: it did not at the last look.
        now_s: the time.
        hurry: changes of messages are written soon, too.
    """
    if before == after:
        return None
    if after.state != before.state and after.state in (RUNNING, COMPLETED, FAILED):
        return 0.0
    if is_same_but_messages(before, after) and not hurry:
        due = written_s + WORDS_S
    else:
        due = (now_s if differs_s is None else differs_s) + SOON_S
    return max(due - now_s, 0.0)
